"""Deleted objects vanish at once for all clients; their memory is freed in portions."""

from __future__ import annotations

import gc
import weakref
from itertools import pairwise

import pytest

from qq.machine.catalog.vhost import VirtualHost
from qq.machine.handlers import core as core_module
from qq.machine.protocol.commands import (
    BindQueue,
    Connect,
    ConnectionDown,
    DeclareQueue,
    DeleteQueue,
    DeleteVhost,
    Get,
    OpenChannel,
    PurgeQueue,
    PutUser,
    PutVhost,
    SessionDown,
    SetPermissions,
    UnbindQueue,
)
from qq.machine.protocol.effects import Failed, QueueDeclared, Reply
from qq.machine.protocol.work_meter import QUEUES_GONE_MAX
from qq.machine.queue.deferred_free import DeferredFree
from qq.machine.queue.queue import Queue
from qq.ranges import RangeMap
from tests.machine.likeness import differences
from tests.machine.machine_driver import Driver, assert_kept_is_current, consume, declare, publish, reloaded

FREED_MAX = 200
"""A tenth of the real bound, because the test examines all objects after each portion."""
QUEUES = 3 * FREED_MAX


def tenant(queues: int) -> Driver:
    """Queues of virtual host v, each with a binding, a consumer and a message."""
    driver = Driver()
    driver.apply(PutUser("u", b"", b"", []), PutVhost("v", "", [], ""), SetPermissions("u", "v", "", "", ""))
    driver.apply(Connect(9, "v", "u"), OpenChannel(1, 9))
    for name in map(str, range(queues)):
        driver.apply(declare(name, x_expires=1000), BindQueue(1, 1, name, "amq.topic", f"*.{name}", {}))
        driver.apply(consume(int(name), name, 1), publish(1, name))
    return driver


def in_memory() -> int:
    """How many queues of virtual host v there are somewhere."""
    return sum(isinstance(each, Queue) and each.vhost == "v" for each in gc.get_objects())


def test_deleted_virtual_host_frees_its_memory_in_portions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core_module, "FREED_MAX", FREED_MAX)
    gc.collect()
    gc.freeze()  # garbage of other tests is not examined
    driver = tenant(QUEUES)
    gc.collect()
    gc.disable()
    try:
        driver.apply(DeleteVhost("v"))
        assert not driver.machine.consumers
        assert "v" not in driver.machine.vhosts
        assert reloaded(driver.machine).digest() == driver.machine.digest()
        there = [QUEUES, in_memory()]
        while driver.machine.due_ms() == 0:
            driver.apply()
            there.append(in_memory())
    finally:
        gc.enable()
    assert max(before - after for before, after in pairwise(there)) <= FREED_MAX
    # No object remains for the garbage collector, which would free all at once.
    assert there[-1] == 0


def test_replaced_state_frees_its_memory_in_portions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core_module, "FREED_MAX", FREED_MAX)
    gc.collect()
    gc.freeze()
    driver = tenant(QUEUES)
    machine = driver.machine
    state = machine.read(machine.dump())
    gc.collect()
    gc.disable()
    try:
        machine.adopt(state)
        there = [2 * QUEUES, in_memory()]
        while driver.machine.due_ms() == 0:
            driver.apply()
            there.append(in_memory())
    finally:
        gc.enable()
    assert max(before - after for before, after in pairwise(there)) <= FREED_MAX
    assert there[-1] == QUEUES, "those of the state that is there"


def test_recreated_virtual_host_is_independent_of_the_deleted() -> None:
    driver = tenant(5)
    effects = driver.apply(
        DeleteVhost("v"),
        PutVhost("v", "", [], ""),
        SetPermissions("u", "v", "", "", ""),
        Connect(10, "v", "u"),
    )
    assert not [effect for effect in effects if isinstance(effect, Failed)]
    effects = driver.apply(OpenChannel(2, 10), declare("1", session=2), declare("1", session=1))
    assert [(type(each), each.session) for each in effects if isinstance(each, Reply | Failed)] == [
        (Reply, 2),
        (Failed, 1),
    ]
    driver.wait_until(driver.time_ms + 5000)
    assert list(driver.machine.vhosts["v"].queues) == ["1"]
    assert driver.machine.vhosts["v"].consumers == 0


def test_deleted_queue_drops_its_unacked_messages() -> None:
    driver = Driver()
    driver.apply(declare("q"), consume(1, "q", 10))
    driver.apply(publish(2))
    driver.apply(publish(2))
    deferred_free = driver.machine._core.deferred_free
    driver.apply(DeleteQueue(1, 1, "q", False, False))
    assert not deferred_free


def test_remains_are_freed_in_portions() -> None:
    deferred_free = DeferredFree()
    many, others = [1, 2, 3, 4], dict.fromkeys(range(4))
    deferred_free.add(many, others)
    left: list[tuple[int, int]] = []
    while deferred_free:
        deferred_free.free(3)
        left.append((len(many), len(others)))
    # The entry that put them aside frees none at its end, because it has cost enough.
    assert left == [(4, 4), (4, 1), (2, 0), (0, 0)]


def test_range_map_drops_references_to_taken_values() -> None:
    class Value:
        pass

    ranges: RangeMap[Value] = RangeMap()
    values = [Value() for _ in range(10)]
    there = [weakref.ref(value) for value in values]
    for number, value in enumerate(values):
        ranges.append(number, 1, value)
    values.clear()
    del value
    ranges.take(0, 1)
    ranges.take_pieces(2)
    assert [each() is None for each in there] == [True] * 4 + [False] * 6


def exclusive(name: str, session: int = 1, connection: int = 1) -> DeclareQueue:
    return DeclareQueue(session, connection, name, False, False, True, False, False, {})


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the queues that were removed."""
    names: list[str] = []
    delete_queue = VirtualHost.delete_queue

    def counting(vhost: VirtualHost, queue: Queue) -> None:
        names.append(queue.name)
        delete_queue(vhost, queue)

    monkeypatch.setattr(VirtualHost, "delete_queue", counting)
    return names


@pytest.mark.parametrize("end", ["connection", "node"])
def test_exclusive_queues_end_in_portions_and_are_free_at_once(removed: list[str], end: str) -> None:
    driver = Driver()
    names = list(map(str, range(3 * QUEUES_GONE_MAX)))
    driver.apply(*map(exclusive, names))
    if end == "node":
        driver.machine.origin_down("n1", driver.time_ms, evicted=False)
        driver.machine.end_entry(driver.time_ms)
    else:
        driver.apply(ConnectionDown(1))
    assert removed == names[: 2 * QUEUES_GONE_MAX]
    last = names[-1]
    effects = driver.apply(exclusive(last, session=2, connection=2), publish(1, last, session=2))
    assert [effect.result for effect in effects if isinstance(effect, Reply)] == [QueueDeclared(last, 0, 0)]
    assert reloaded(driver.machine).digest() == driver.machine.digest()
    driver.apply(declare("x", session=2))
    driver.lead()
    assert sorted(removed) == sorted(names)
    assert list(driver.machine.vhosts["/"].queues) == [last, "x"]


def test_auto_delete_queues_of_a_closed_channel_end_in_portions(removed: list[str]) -> None:
    """All queues belong to a single closed channel."""
    driver = Driver()
    names = list(map(str, range(3 * QUEUES_GONE_MAX)))
    driver.apply(*(DeclareQueue(1, 1, name, False, False, False, True, False, {}) for name in names))
    driver.apply(*(consume(number, name, 1, session=2) for number, name in enumerate(names)))
    driver.apply(SessionDown(2))
    assert removed == names[: 2 * QUEUES_GONE_MAX]
    [failed] = driver.apply(consume(1, names[-1], 1, session=3))
    assert isinstance(failed, Failed)
    assert failed.code == 404
    driver.lead()
    assert removed == names


def test_unused_queues_expire_in_portions(removed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    due_max, gone_max = 200, 50
    monkeypatch.setattr(core_module, "DUE_QUEUES_MAX", due_max)
    monkeypatch.setattr(core_module, "QUEUES_GONE_MAX", gone_max)
    driver = Driver()
    names = list(map(str, range(2 * due_max)))
    driver.apply(*(declare(name, x_expires=1_000) for name in names))
    driver.time_ms += 2_000
    counts: list[int] = []
    while driver.machine.vhosts["/"].queues:
        before = len(removed)
        driver.apply()
        counts.append(len(removed) - before)
        assert reloaded(driver.machine).digest() == driver.machine.digest()
    assert sorted(removed) == sorted(names)
    assert max(counts) <= 2 * gone_max


def test_queue_that_awaits_deletion_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "QUEUES_GONE_MAX", 0)
    driver = Driver()
    driver.apply(exclusive("q"), BindQueue(1, 1, "q", "amq.fanout", "", {}))
    driver.apply(ConnectionDown(1))
    frozen = driver.machine.freeze()
    assert list(driver.machine.vhosts["/"].queues) == ["q"]
    for session, command in enumerate(
        [consume(1, "q", 1), PurgeQueue(1, 1, "q"), Get(1, 1, 1, 5, "q", True, 0)]
    ):
        [failed] = driver.apply(command._replace(session=10 + session))
        assert isinstance(failed, Failed)
        assert failed.code == 404
    driver.apply(DeleteQueue(2, 1, "q", False, False))
    assert not driver.machine.vhosts["/"].queues
    assert driver.machine.due_ms() is None
    assert frozen.abandoned


def test_unbinding_a_queue_that_awaits_deletion_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core_module, "QUEUES_GONE_MAX", 0)
    driver = Driver()
    driver.apply(exclusive("q"), BindQueue(1, 1, "q", "amq.fanout", "", {}))
    driver.apply(ConnectionDown(1))
    [reply] = driver.apply(UnbindQueue(2, 2, "q", "amq.fanout", "", {}))
    assert isinstance(reply, Reply)
    assert not driver.machine.vhosts["/"].bindings


def test_queues_without_an_owner_are_equal_after_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "QUEUES_GONE_MAX", 0)
    driver = Driver()
    driver.apply(exclusive("q"), exclusive("r", connection=2))
    driver.apply(ConnectionDown(2))
    driver.apply(ConnectionDown(1))
    assert differences(driver.machine, reloaded(driver.machine)) == []


def test_frozen_state_keeps_the_owner_of_an_exclusive_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core_module, "QUEUES_GONE_MAX", 0)
    driver = Driver()
    driver.apply(exclusive("q"))
    before, frozen = driver.machine.dump(), driver.machine.freeze()
    driver.apply(ConnectionDown(1))
    assert frozen.dump() == before
    assert_kept_is_current(driver.machine)
