from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from qq.management.statistics.client_watch import ClientWatch
from qq.management.statistics.vhost_clients import ClientCounts, VhostClients

if TYPE_CHECKING:
    from qq.management.node_queries import AnswerRows


class StubQueries:
    """Answers of two other nodes, set by the test."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Any]] = {"n2": [], "n3": []}

    def answer_rows(self, _topic: str, rows_after: AnswerRows) -> None:
        self.rows_after = rows_after

    async def rows_of_all(self, _topic: str) -> dict[str, list[Any]]:
        return self.rows


class World:
    """The counts of a node with the virtual hosts `a` and `b`."""

    def __init__(self) -> None:
        self.counters = SimpleNamespace(confirmed_in=Counter({"a": 5, "gone": 9}))
        self.watch = ClientWatch()
        self.watch.octets_of = {"b": (100, 10), "gone": (1, 1)}
        self.vhosts = dict.fromkeys("ab")
        self.queries = StubQueries()
        broker = SimpleNamespace(counters=self.counters, machine=SimpleNamespace(vhosts=self.vhosts))
        self.clients = VhostClients(cast("Any", broker), self.watch, cast("Any", self.queries))

    def refresh(self, **rows: list[Any]) -> None:
        self.queries.rows = rows
        asyncio.run(self.clients.refresh())


@pytest.fixture
def world() -> World:
    return World()


def test_counts_of_all_nodes_are_added(world: World) -> None:
    world.refresh(n2=[["a", 1, 20, 30]], n3=[["a", 2, 0, 0], ["b", 0, 1, 2]])
    assert world.clients.of_vhost("a") == ClientCounts(8, 20, 30)
    assert world.clients.of_vhost("b") == ClientCounts(0, 101, 12)
    assert world.clients.of_vhost("c") == ClientCounts()


def test_counts_of_a_silent_node_stay_until_it_is_removed(world: World) -> None:
    world.refresh(n2=[["a", 1, 0, 0]], n3=[["a", 2, 0, 0]])
    world.refresh(n2=[["a", 4, 0, 0]], n3=[])
    assert world.clients.of_vhost("a").confirm == 5 + 4 + 2
    world.refresh(n2=[["a", 4, 0, 0]])
    assert world.clients.of_vhost("a").confirm == 5 + 4


def test_counts_of_deleted_virtual_hosts_are_forgotten(world: World) -> None:
    world.refresh()
    assert list(world.queries.rows_after(None)) == [("a", ["a", 5, 0, 0]), ("b", ["b", 0, 100, 10])]
    assert list(world.queries.rows_after("a")) == [("b", ["b", 0, 100, 10])]
    assert set(world.counters.confirmed_in) | set(world.watch.octets_of) == {"a", "b"}
