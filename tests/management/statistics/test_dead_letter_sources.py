"""Queues that keep dead letters: which queues they are, and the bounds of the work to find them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from qq.machine.protocol import commands as c
from qq.management.statistics.dead_letter_sources import (
    PASS_STEPS_MAX,
    ROUTE_STEPS_MAX,
    SLICE_STEPS_MAX,
    DeadLetterSources,
)
from tests.machine.machine_driver import Driver, declare

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qq.machine.protocol.commands import Command, Table

TAKES = 20
"""Passes that are enough for every trace below."""


def exchange(name: str, kind: str = "topic") -> c.DeclareExchange:
    return c.DeclareExchange(1, name, kind, False, True, False, False, {})


def bind(queue: str, source: str, key: str, arguments: Table | None = None) -> c.BindQueue:
    return c.BindQueue(1, 1, queue, source, key, arguments or {})


def source(name: str, exchange: str, key: str | None = None) -> c.DeclareQueue:
    routing = {} if key is None else {"x_dead_letter_routing_key": key}
    return declare(name, x_dead_letter_exchange=exchange, **routing)


class Watched:
    """A machine with its dead-letter sources."""

    def __init__(self, *commands: Command) -> None:
        self.driver = Driver()
        self.sources = DeadLetterSources()
        self.vhosts = self.driver.machine.vhosts
        self.apply(commands)

    def apply(self, commands: Iterable[Command]) -> None:
        every = list(commands)
        for start in range(0, len(every), 100):
            self.driver.apply(*every[start : start + 100])

    def pass_over(self) -> list[int]:
        """Make a pass, and return the steps of its slices."""
        for queue in self.driver.machine.queues():
            self.sources.add(queue, is_taken=False)
        self.sources.end_pass()
        return list(self.sources.trace(self.vhosts))

    def kept(self) -> list[str]:
        queues = self.driver.machine.queues()
        return [queue.name for queue in queues if self.sources.is_kept(queue, is_taken=False)]


@pytest.mark.parametrize(
    ("kind", "binding", "arguments", "key", "is_kept"),
    [
        ("direct", "a.b", {}, "a.b", True),
        ("direct", "a.b", {}, "a.c", False),
        ("direct", "a.b", {}, None, True),
        ("fanout", "", {}, "a.b", True),
        ("topic", "a.#", {}, "a.b", True),
        ("topic", "b.*", {}, "a.b", False),
        ("topic", "b.*", {}, None, True),
        ("headers", "", {"x-match": "any", "h": 1}, "a.b", True),
        ("x-random", "", {}, "a.b", True),
    ],
)
def test_queue_is_kept_if_dead_letters_may_reach_it(
    kind: str, binding: str, arguments: Table, key: str | None, is_kept: bool
) -> None:
    watched = Watched(
        exchange("first", "fanout"),
        exchange("dlx", kind),
        c.BindExchange(1, "dlx", "first", "", {}),
        declare("dead"),
        bind("dead", "dlx", binding, arguments),
        source("direct source", "dlx", key),
    )
    watched.pass_over()
    assert watched.kept() == (["dead"] if is_kept else [])
    watched.apply([c.DeleteQueue(1, 1, "direct source", False, False), source("source", "first", key)])
    watched.pass_over()
    assert watched.kept() == (["dead"] if is_kept else [])
    watched.apply([c.UnbindQueue(1, 1, "dead", "dlx", binding, arguments)])
    watched.pass_over()
    assert watched.kept() == []


def test_each_of_many_queues_with_a_pattern_is_kept() -> None:
    watched = Watched(exchange("dlx"))
    for number in range(1000):
        names = f"dead{number}", f"tenant{number}"
        watched.apply(
            [
                declare(names[0]),
                bind(names[0], "dlx", f"{names[1]}.#"),
                source(names[1], "dlx", f"{names[1]}.x"),
            ]
        )
    first = watched.pass_over()
    assert watched.kept() == [f"dead{number}" for number in range(1000)]
    assert max(first) <= SLICE_STEPS_MAX + ROUTE_STEPS_MAX
    assert sum(watched.pass_over()) < 10  # the topology is the same
    watched.apply([declare("one more")])
    assert sum(watched.pass_over()) == sum(first)


HARD = ".".join(["#", "a"] * 20)


@pytest.mark.parametrize(
    ("kind", "patterns", "keys"),
    [
        ("topic", [f"{HARD}.z{number}" for number in range(100)], [f"{'a.' * 60}k{n}" for n in range(110)]),
        ("topic", [f"a.*.z{number}" for number in range(100)], [f"a.b.k{n}" for n in range(1000)]),
        ("topic", ["#", *("#." + "*." * n + "#" for n in range(50))], [f"k{n}" for n in range(1000)]),
        ("fanout", [f"k{number}" for number in range(4000)], [f"k{n}" for n in range(1000)]),
        ("fanout", [f"k{number}" for number in range(2000)], [f"k{n}" for n in range(1000)]),
        ("headers", [f"k{number}" for number in range(4000)], [f"k{n}" for n in range(1000)]),
    ],
)
def test_slice_and_pass_are_bounded_for_any_bindings(kind: str, patterns: list[str], keys: list[str]) -> None:
    watched = Watched(exchange("dlx", kind), declare("dead"))
    watched.apply(bind("dead", "dlx", pattern) for pattern in patterns)
    watched.apply(source(f"source{number}", "dlx", key) for number, key in enumerate(keys))
    watched.apply(source(f"back{number}", "back", key) for number, key in enumerate(keys))
    for _ in range(TAKES):
        steps = watched.pass_over()
        assert max(steps) <= SLICE_STEPS_MAX + ROUTE_STEPS_MAX + 100
        assert sum(steps) <= PASS_STEPS_MAX + ROUTE_STEPS_MAX + 100


def test_trace_is_completed_while_the_topology_changes() -> None:
    watched = Watched(exchange("dlx", "fanout"), declare("dead"))
    watched.apply(bind("dead", "dlx", f"k{number}") for number in range(500))
    watched.apply(source(f"source{number}", "dlx", f"k{number}") for number in range(300))
    passes = 0
    while not watched.kept():
        watched.pass_over()
        watched.apply([declare(f"other{passes}")])
        passes += 1
    assert 1 < passes < 10
    assert watched.kept() == ["dead"]


def test_other_vhost_is_traced_after_a_pass_that_was_cut() -> None:
    watched = Watched(exchange("dlx", "fanout"), declare("dead"))
    watched.apply(bind("dead", "dlx", f"k{number}") for number in range(500))
    watched.apply(source(f"source{number}", "dlx", f"k{number}") for number in range(300))
    watched.apply(
        [
            c.PutVhost("other", "", [], ""),
            c.PutUser("u", b"", b"", []),
            c.SetPermissions("u", "other", ".*", ".*", ".*"),
        ]
    )
    watched.apply([c.Connect(50, "other", "u"), c.OpenChannel(51, 50)])
    watched.apply(
        [declare("parked", session=51), source("work", "", "parked")._replace(session=51, connection=50)]
    )
    watched.pass_over()
    assert watched.kept() == []
    watched.apply([declare("new")])
    watched.pass_over()
    assert watched.kept() == ["parked"]
