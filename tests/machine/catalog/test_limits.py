"""Limits of objects: at a limit, above it, below it again, and on a replica that was loaded from a dump."""

from __future__ import annotations

import sys
import tracemalloc
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from qq.machine.catalog import catalog
from qq.machine.catalog.limits import (
    ARGUMENTS_BYTES_MAX,
    USER_LIMITS,
    VALUE_BYTES,
    VHOST_LIMITS,
    in_force,
    limit_of,
    table_bytes,
)
from qq.machine.machine import QueueMachine
from qq.machine.protocol import commands as c
from qq.machine.protocol.effects import Failed, Reply
from qq.machine.protocol.refusals import Refused
from tests.machine.machine_driver import Driver, batch, consume, declare, publish, reloaded

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.machine.protocol.commands import Change, Command, Table

LIMIT = 3
ANN = (c.PutUser("ann", b"", b"", []), c.SetPermissions("ann", "/", ".*", ".*", ".*"))


def bind(key: str, queue: str = "q", exchange: str = "amq.topic", arguments: Table | None = None) -> Command:
    return c.BindQueue(1, 1, queue, exchange, key, arguments or {})


def exchange(name: str, arguments: Table | None = None) -> c.DeclareExchange:
    return c.DeclareExchange(1, name, "direct", False, True, False, False, arguments or {})


@dataclass(frozen=True)
class Case:
    """The steps of a client that reaches the limit and makes room again."""

    limit: str
    there: int
    """How many there are before."""
    make: Callable[[int], Command]
    unmake: Callable[[int], Command]
    code: int
    text: str


CASES = [
    Case(
        "max-queues",
        1,
        lambda i: declare(f"q{i}"),
        lambda i: c.DeleteQueue(1, 1, f"q{i}", False, False),
        406,
        "cannot declare queue 'q9': queue limit in vhost '/' ({}) is reached",
    ),
    Case(
        "max-exchanges",
        7,
        lambda i: exchange(f"x{i}"),
        lambda i: c.DeleteExchange(1, f"x{i}", False),
        406,
        "cannot declare exchange 'x9': limit max-exchanges ({}) of vhost '/' is reached",
    ),
    Case(
        "max-bindings",
        0,
        lambda i: bind(f"k{i}"),
        lambda i: c.UnbindQueue(1, 1, "q", "amq.topic", f"k{i}", {}),
        406,
        "cannot bind queue 'q': limit max-bindings ({}) of vhost '/' is reached",
    ),
    Case(
        "max-bindings",
        0,
        lambda i: c.BindExchange(1, "amq.fanout", "amq.topic", f"k{i}", {}),
        lambda i: c.UnbindExchange(1, "amq.fanout", "amq.topic", f"k{i}", {}),
        406,
        "cannot bind exchange 'amq.fanout': limit max-bindings ({}) of vhost '/' is reached",
    ),
    Case(
        "max-bindings-per-queue",
        0,
        lambda i: bind(f"k{i}"),
        lambda i: c.UnbindQueue(1, 1, "q", "amq.topic", f"k{i}", {}),
        406,
        "cannot bind queue 'q': limit max-bindings-per-queue ({}) of queue 'q' is reached",
    ),
    Case(
        "max-bindings-per-exchange",
        0,
        lambda i: bind(f"k{i}"),
        lambda i: c.UnbindQueue(1, 1, "q", "amq.topic", f"k{i}", {}),
        406,
        "cannot bind queue 'q': "
        "limit max-bindings-per-exchange ({}) of exchange 'amq.topic' in vhost '/' is reached",
    ),
    Case(
        "max-consumers",
        0,
        lambda i: consume(i, "q", 1, session=1 + i),
        lambda i: c.Cancel(1 + i, i),
        406,
        "cannot consume from queue 'q': limit max-consumers ({}) of vhost '/' is reached",
    ),
    Case(
        "max-consumers-per-queue",
        0,
        lambda i: consume(i, "q", 1, session=1 + i),
        lambda i: c.Cancel(1 + i, i),
        406,
        "cannot consume from queue 'q': "
        "limit max-consumers-per-queue ({}) of queue 'q' in vhost '/' is reached",
    ),
    Case(
        "max-consumers-per-channel",
        0,
        lambda i: consume(i, "q", 1),
        lambda i: c.Cancel(1, i),
        530,
        "reached maximum ({}) of consumers per channel",
    ),
    Case(
        "max-argument-bytes",
        0,
        lambda i: bind("k", arguments={f"{i}": "x" * 35}),
        lambda i: c.UnbindQueue(1, 1, "q", "amq.topic", "k", {f"{i}": "x" * 35}),
        406,
        "cannot bind queue 'q': limit max-argument-bytes ({}) of vhost '/' is reached",
    ),
]


def refusals(driver: Driver, command: Command) -> list[tuple[int, str]]:
    """Those of a command on a channel of its own, so that an error closes no other."""
    effects = driver.apply(command)
    return [(effect.code, effect.text) for effect in effects if isinstance(effect, Failed)]


@pytest.mark.parametrize("case", CASES, ids=[f"{case.limit}-{number}" for number, case in enumerate(CASES)])
def test_limit_refuses_objects_until_a_deletion(case: Case) -> None:
    driver = Driver()
    driver.apply(declare("q"))
    limit = case.there + LIMIT
    if case.limit == "max-argument-bytes":
        # The queue has an argument, its type; each other value has a name of one octet and a text of 35.
        limit = driver.machine.vhosts["/"].argument_bytes + LIMIT * (VALUE_BYTES + 36)
    driver.apply(c.ChangeVhostLimits("/", {case.limit: limit}))
    for number in range(LIMIT):
        assert refusals(driver, case.make(number)) == []
    replica = Driver()
    replica.machine, replica.index = reloaded(driver.machine), driver.index
    for each in (driver, replica):
        one_more = case.make(9)
        session = one_more._replace(session=99) if case.limit != "max-consumers-per-channel" else one_more
        assert refusals(each, session) == [(case.code, case.text.format(limit))]
    assert driver.machine.digest() == replica.machine.digest()
    if case.limit == "max-consumers-per-channel":
        return  # its channel is closed, and the rest is empty
    for each in (driver, replica):
        assert refusals(each, case.unmake(1)) == []
        assert refusals(each, case.make(9)) == []
    assert driver.machine.digest() == replica.machine.digest()


@pytest.mark.parametrize(
    "case", CASES[:-1], ids=[f"{case.limit}-{number}" for number, case in enumerate(CASES[:-1])]
)
def test_objects_above_a_lowered_limit_stay_and_work(case: Case) -> None:
    driver = Driver()
    driver.apply(declare("q"), *(case.make(number) for number in range(LIMIT)))
    before = driver.machine.dump()
    driver.apply(c.ChangeVhostLimits("/", {case.limit: 0}))
    driver.apply(c.ChangeVhostLimits("/", {case.limit: None}))
    assert driver.machine.dump() == before
    driver.apply(c.ChangeVhostLimits("/", {case.limit: 0}))
    if "consumers" not in case.limit:
        assert refusals(driver, case.make(1)) == []  # it is there already
    assert refusals(driver, case.make(9)) != []
    driver.apply(c.ChangeVhostLimits("/", {case.limit: -1}))
    assert refusals(driver, case.make(8)._replace(session=50)) == []


def test_message_from_get_counts_as_a_consumer_until_acked() -> None:
    driver = Driver()
    driver.apply(declare("q"), c.ChangeVhostLimits("/", {"max-consumers": 2}))
    driver.apply(publish(5))

    def get(number: int, *, no_ack: bool = False) -> Command:
        return c.Get(number, 1, 1, number, "q", no_ack, 0)

    driver.apply(get(1), get(2))
    text = "cannot get from queue 'q': limit max-consumers (2) of vhost '/' is reached"
    assert refusals(driver, get(3)) == [(406, text)]
    assert refusals(driver, get(4, no_ack=True)) == []
    driver.apply(c.Settle(1, 0, 0))
    assert refusals(driver, get(5)) == []
    driver.apply(c.SessionDown(2), c.SessionDown(5))
    assert driver.machine.vhosts["/"].consumers == 0


def test_consumers_of_a_deleted_queue_do_not_count() -> None:
    driver = Driver()
    driver.apply(declare("q"), consume(1, "q", 5), consume(2, "q", 5))
    driver.apply(publish(1))
    assert reloaded(driver.machine).vhosts["/"].consumers == driver.machine.vhosts["/"].consumers == 2
    driver.apply(c.DeleteQueue(1, 1, "q", False, False))
    assert driver.machine.vhosts["/"].consumers == 0


WITH_TABLES: dict[str, Callable[[Table], Command]] = {
    "queue": lambda table: declare("q")._replace(arguments=table),
    "exchange": lambda table: exchange("x", table),
    "binding": lambda table: bind("k", queue="there", arguments=table),
    "binding-of-exchange": lambda table: c.BindExchange(1, "amq.fanout", "amq.topic", "k", table),
    "consumer": lambda table: consume(1, "there", 1, arguments=table),
}


@pytest.mark.parametrize("make", WITH_TABLES.values(), ids=WITH_TABLES)
def test_arguments_above_the_size_limit_are_refused(make: Callable[[Table], Command]) -> None:
    driver = Driver()
    driver.apply(declare("there"), c.SessionDown(1))
    fits = {"a": "x" * (ARGUMENTS_BYTES_MAX - VALUE_BYTES - 1)}
    assert table_bytes(fits) == ARGUMENTS_BYTES_MAX
    before = driver.machine.digest()
    [(code, text)] = refusals(driver, make({"a": fits["a"] + "x"}))
    assert (
        code,
        f"{ARGUMENTS_BYTES_MAX + 1} bytes" in text,
        f"the limit is {ARGUMENTS_BYTES_MAX}" in text,
    ) == (
        406,
        True,
        True,
    )
    driver.apply(c.SessionDown(1))
    assert driver.machine.digest() == before
    assert refusals(driver, make(fits)) == []


def test_table_bytes_counts_nested_values() -> None:
    table = {"é": [1, {"a": b"12"}], "b": None}
    assert table_bytes(table) == 2 + 1 + 1 + 2 + 5 * VALUE_BYTES
    assert table_bytes({}) == 0


def test_argument_bytes_are_freed_on_deletion() -> None:
    driver = Driver()
    arguments = {"a": "b"}
    before = driver.machine.vhosts["/"].argument_bytes
    driver.apply(declare("q", x_max_length=3), exchange("x", arguments), bind("k", "q", "x", arguments))
    driver.apply(c.BindExchange(1, "amq.fanout", "x", "k", arguments))
    there = driver.machine.vhosts["/"].argument_bytes
    assert (before, reloaded(driver.machine).vhosts["/"].argument_bytes) == (0, there)
    assert there > 0
    driver.apply(c.DeleteExchange(1, "x", False), c.DeleteQueue(1, 1, "q", False, False))
    assert driver.machine.vhosts["/"].argument_bytes == 0


CLUSTER: list[tuple[str, str, Callable[[int], Change], Callable[[int], Change]]] = [
    ("VHOSTS_MAX", "max-vhosts", lambda i: c.PutVhost(f"v{i}", "", [], ""), lambda i: c.DeleteVhost(f"v{i}")),
    ("USERS_MAX", "max-users", lambda i: c.PutUser(f"u{i}", b"", b"", []), lambda i: c.DeleteUser(f"u{i}")),
    (
        "USERS_MAX",
        "max-users",
        lambda i: c.PutHashedUser(f"u{i}", b"", b"", [], "md5"),
        lambda i: c.DeleteUser(f"u{i}"),
    ),
    (
        "PERMISSIONS_MAX",
        "max-permissions",
        lambda i: c.SetPermissions("ann", f"w{i}", "", "", ""),
        lambda i: c.ClearPermissions("ann", f"w{i}"),
    ),
    (
        "TOPIC_PERMISSIONS_MAX",
        "max-topic-permissions",
        lambda i: c.SetTopicPermissions("ann", "/", f"x{i}", "", ""),
        lambda i: c.ClearTopicPermissions("ann", "/", f"x{i}"),
    ),
]


@pytest.mark.parametrize(
    ("constant", "name", "make", "unmake"), CLUSTER, ids=[f"{row[1]}-{at}" for at, row in enumerate(CLUSTER)]
)
def test_cluster_limits_refuse_further_objects(
    constant: str,
    name: str,
    make: Callable[[int], Change],
    unmake: Callable[[int], Change],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver()
    driver.apply(*ANN, *(c.PutVhost(f"w{number}", "", [], "") for number in range(5)))
    there = {"VHOSTS_MAX": 6, "USERS_MAX": 1, "PERMISSIONS_MAX": 1, "TOPIC_PERMISSIONS_MAX": 0}[constant]
    monkeypatch.setattr(catalog, constant, there + 2)
    driver.apply(make(0), make(1))
    before = driver.machine.digest()
    with pytest.raises(Refused, match=rf"limit {name} \({there + 2}\) of the cluster is reached"):
        driver.machine.catalog.check_room(make(2))
    driver.apply(make(2))
    assert driver.machine.digest() == before
    driver.apply(make(1))  # it is there already
    driver.apply(unmake(0), make(2))
    assert driver.machine.digest() != before
    driver.apply(make(3))
    assert reloaded(driver.machine).digest() == driver.machine.digest()


def test_policies_are_limited() -> None:
    driver = Driver()

    def put(name: str, *, operator: bool = False, definition: Table | None = None) -> c.PutPolicy:
        return c.PutPolicy("/", name, operator, "x", "all", 0, definition or {"max-length": 1})

    driver.apply(c.ChangeVhostLimits("/", {"max-policies": 2}), put("a"), put("a", operator=True), put("b"))
    policies = driver.machine.vhosts["/"].policies
    assert [(row.name, row.operator) for row in policies.rows()] == [("a", False), ("a", True)]
    driver.apply(put("a", definition={"max-length": 2}), c.DeletePolicy("/", "a", True), put("c"))
    assert [(row.name, row.definition) for row in policies.rows()] == [
        ("a", {"max-length": 2}),
        ("c", {"max-length": 1}),
    ]
    long = {"dead-letter-exchange": "x" * ARGUMENTS_BYTES_MAX}
    driver.apply(put("a", definition=long))
    assert policies.rows()[0].definition == {"max-length": 2}


def test_channels_and_connections_of_a_user_are_counted() -> None:
    driver = Driver()
    driver.apply(*ANN, c.Connect(1, "/", "ann"), c.ChangeUserLimits("ann", {"max-channels": 1}))
    assert refusals(driver, c.OpenChannel(2, 1)) == []
    text = "number of channels opened for user 'ann' has reached the maximum allowed user limit of (1)"
    assert refusals(driver, c.OpenChannel(3, 1)) == [(530, text)]
    driver.apply(c.SessionDown(2))
    assert refusals(driver, c.OpenChannel(4, 1)) == []


def test_own_limit_overrides_the_default_and_minus_is_unlimited() -> None:
    assert limit_of({}, "max-queues") == VHOST_LIMITS["max-queues"] == in_force({})["max-queues"]
    assert (limit_of({"max-queues": 5}, "max-queues"), limit_of({"max-queues": -5}, "max-queues")) == (
        5,
        None,
    )
    assert limit_of({}, "max-channels") == USER_LIMITS["max-channels"]
    assert limit_of({}, "max-connections") is None
    shown = in_force({"max-queues": -5, "max-bindings": 7})
    assert (shown["max-queues"], shown["max-bindings"], shown["max-connections"]) == (-1, 7, -1)
    assert list(shown) == list(VHOST_LIMITS)


def bytes_each(make: Callable[[int], Command], count: int = 1000) -> float:
    machine = QueueMachine()
    payloads = [batch([*ANN, declare("q")])]
    payloads += [
        batch([make(number) for number in range(first, first + 500)]) for first in range(0, count, 500)
    ]
    machine.apply_batch("n1", 1, 0, 1, payloads.pop(0))
    tracemalloc.start()
    for index, payload in enumerate(payloads, 2):
        effects = machine.apply_batch("n1", index, 0, 1, payload)
        assert not any(isinstance(effect, Failed) for effect in effects)
        assert all(isinstance(effect, Reply) for effect in effects)
        del effects
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / count


VHOST_BYTES_MAX = 7_000 if sys.version_info < (3, 13) else 7_500
SIZES: dict[str, tuple[Callable[[int], Command], int]] = {
    "queue": (lambda i: declare(f"some.queue.{i}"), 6_000),
    "exchange": (lambda i: exchange(f"some.exchange.{i}"), 1_000),
    "binding": (lambda i: bind(f"some.routing.key.{i}"), 1_500),
    "consumer": (lambda i: consume(i, "q", 1), 1_200),
    "vhost": (lambda i: c.PutVhost(f"vhost{i}", "", [], ""), VHOST_BYTES_MAX),
    "user": (lambda i: c.PutUser(f"user{i}", b"salt", bytes(32), []), 800),
}


@pytest.mark.parametrize(("make", "most"), SIZES.values(), ids=SIZES)
def test_limited_objects_take_at_most_the_assumed_memory(make: Callable[[int], Command], most: int) -> None:
    assert bytes_each(make) < most
