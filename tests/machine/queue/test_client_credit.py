"""Consumers whose clients set the credit: drains in portions, timeouts, annotations and their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from qq.machine.handlers import core as core_module
from qq.machine.protocol import commands as c
from qq.machine.protocol import death_history
from qq.machine.protocol.codec import InvalidCommand, check_command
from qq.machine.protocol.effects import (
    Attached,
    AttachRefused,
    ConsumerGone,
    ConsumerState,
    Deliver,
    DeliveriesReleased,
    DeliveryTimeout,
    Known,
    Reply,
)
from qq.machine.protocol.versions import VERSIONS
from qq.machine.queue import queue as queue_module
from qq.machine.queue.consumers import CREDIT_MAX
from tests.machine.likeness import differences
from tests.machine.machine_driver import Driver, attach, consume, declare, publish, ready_ranges, reloaded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.machine.protocol.effects import Effect
    from qq.machine.queue.queue import Queue


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.machine.raise_to(VERSIONS[1])
    driver.apply(declare("q", x_queue_type="quorum"))
    return driver


def queue_of(driver: Driver) -> Queue:
    return driver.machine.vhosts["/"].queues["q"]


def credit(consumer: int, number: int, limit: int, *, drain: bool = False, echo: bool = False) -> c.SetCredit:
    return c.SetCredit(consumer, number, limit, drain, echo)


def modify(consumer: int, first: int, last: int, **annotations: bytes) -> c.Modify:
    keys = [f"x-{key}" for key in annotations]
    return c.Modify(consumer, first, last, True, False, keys, list(annotations.values()), 0)


def states(effects: Sequence[Effect]) -> list[ConsumerState]:
    return [effect for effect in effects if isinstance(effect, ConsumerState)]


def delivered(effects: Sequence[Effect]) -> int:
    return sum(part.count for effect in effects if isinstance(effect, Deliver) for part in effect.ranges)


@pytest.mark.parametrize("command", [attach(1, "q"), credit(1, 1, 1), modify(1, 0, 0)])
def test_commands_of_clients_with_credit_need_version_13(command: c.Command) -> None:
    with pytest.raises(InvalidCommand, match="version 13 of the state"):
        check_command(command, 12)
    check_command(command, 13)


def test_refused_consumer_leaves_its_session_open(driver: Driver) -> None:
    [refused] = driver.apply(attach(1, "nowhere"))
    assert isinstance(refused, Reply)
    assert refused.result == AttachRefused(1, 404, "no queue 'nowhere' in vhost '/'")
    [attached] = driver.apply(attach(2, "q"))
    assert isinstance(attached, Reply)
    assert attached.result == Attached(2, True)


def test_drain_ends_behind_deliveries_in_several_entries(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_module, "SERVED_MAX", 8)
    for _ in range(30):
        driver.apply(publish(1))
    driver.apply(attach(1, "q"))
    effects = driver.apply(credit(1, 1, 100, drain=True))
    entries = 0
    while not states(effects):
        assert driver.machine.due_ms() == 0
        loaded = reloaded(driver.machine)
        assert differences(driver.machine, loaded) == []
        driver.machine = loaded
        effects += driver.apply()
        entries += 1
    assert entries > 1
    assert delivered(effects) == 30
    assert isinstance(effects[-1], ConsumerState)
    assert effects[-1][3:] == (1, 30, 0, 0, False, True)
    assert not states(driver.apply(publish(1)))


def test_drain_waits_for_messages_that_come_back(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "RANGES_AT_ONCE", 1)
    monkeypatch.setattr(core_module, "RANGES_MAX", 2)
    driver.apply(consume(1, "q", 10), attach(2, "q", session=2))
    for _ in range(5):
        driver.apply(publish(1))
    effects = driver.apply(c.SetPrefetch(1, 0), c.Return(1, 0, 4), credit(2, 1, 9, drain=True))
    assert queue_of(driver).returning
    assert not states(effects)
    effects += driver.lead()
    assert delivered(effects) == 5
    [state] = states(effects)
    assert state[4:] == (5, 0, 0, False, True)


def test_new_credit_replaces_an_unfinished_drain(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "SERVED_MAX", 4)
    for _ in range(20):
        driver.apply(publish(1))
    driver.apply(attach(1, "q"))
    driver.apply(credit(1, 1, 100, drain=True))
    assert queue_of(driver).to_report
    driver.apply(credit(1, 2, 15))
    effects = driver.lead()
    assert not states(effects)
    assert driver.machine.consumers["n1", 1].next_id == 15


def test_deleted_queue_ends_a_drain_with_its_consumer(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_module, "SERVED_MAX", 4)
    for _ in range(20):
        driver.apply(publish(1))
    driver.apply(attach(1, "q"))
    driver.apply(credit(1, 1, 100, drain=True))
    effects = driver.apply(c.DeleteQueue(1, 1, "q", False, False))
    assert effects[-1] == ConsumerGone("n1", 1, 1)
    assert not states(effects + driver.lead())


def test_largest_credit_counts_as_the_maximum(driver: Driver) -> None:
    driver.apply(attach(1, "q"), credit(1, 1, 2**64 - 1))
    driver.apply(publish(3))
    assert driver.machine.consumers["n1", 1].credit == CREDIT_MAX - 3
    [state] = states(driver.apply(credit(1, 2, 2**64 - 1, echo=True)))
    assert state.credit == CREDIT_MAX


def test_node_gets_the_state_of_each_consumer_after_a_snapshot(driver: Driver) -> None:
    driver.apply(attach(1, "q"), attach(2, "q", session=2), credit(2, 7, 2))
    driver.apply(publish(3))
    driver.apply(c.Cancel(1, 1))
    *_, delivery, state, known = driver.machine.outstanding("n1")
    assert isinstance(delivery, Deliver)
    assert state == ConsumerState("n1", 2, 2, 7, 2, 0, 1, False, True)
    assert isinstance(known, Known)
    assert len(states(driver.machine.outstanding("n1"))) == 1


def test_overdue_deliveries_return_and_the_consumer_stays(driver: Driver) -> None:
    driver.apply(attach(1, "q", timeout_ms=5_000), credit(1, 1, 3))
    driver.apply(publish(2))
    driver.time_ms += 3_000
    driver.apply(publish(1))
    effects = driver.wait_until(driver.time_ms + 3_500)
    assert [type(effect) for effect in effects] == [DeliveryTimeout, DeliveriesReleased]
    assert effects[1] == DeliveriesReleased("n1", 1, 1, 0, 1)
    assert [messages.deliveries for messages in ready_ranges(queue_of(driver))] == [1]
    driver.apply(c.Settle(1, 0, 1))  # too late
    assert queue_of(driver).ready == 2
    assert driver.machine.consumers["n1", 1].live
    effects = driver.apply(credit(1, 2, 9))
    assert delivered(effects) == 2


def test_settled_deliveries_have_no_timeout(driver: Driver) -> None:
    driver.apply(attach(1, "q", no_ack=True, timeout_ms=1_000), credit(1, 1, 3), publish(1))
    assert driver.wait_until(driver.time_ms + 10_000) == []


def test_released_message_has_not_failed(driver: Driver) -> None:
    driver.apply(attach(1, "q"), credit(1, 1, 3), publish(3))
    driver.apply(c.Return(1, 0, 0), modify(1, 1, 1), c.Modify(1, 2, 2, False, False, [], [], 0))
    returned = ready_ranges(queue_of(driver))
    assert [(messages.deliveries, messages.failures) for messages in returned] == [(1, 0), (1, 1), (1, 0)]


def test_annotations_are_merged_up_to_their_limit(driver: Driver) -> None:
    driver.apply(attach(1, "q"), credit(1, 1, 99), publish(2))
    half = bytes(death_history.ANNOTATIONS_MAX // 2)
    queue = queue_of(driver)

    def annotations() -> list[dict[str, int]]:
        held = [piece.value.history for piece in driver.machine.consumers["n1", 1].unacked.pieces()]
        histories = [queue.histories.get(number) for number in held]
        return [{key: len(value) for key, value in each.annotations} for each in histories if each]

    driver.apply(modify(1, 0, 1, a=half))
    driver.apply(modify(1, 2, 3, b=b"1", c=b""))
    assert annotations() == [{"x-a": len(half), "x-b": 1, "x-c": 0}]
    driver.apply(modify(1, 4, 5, b=half))
    assert annotations() == [{"x-a": len(half), "x-b": 1, "x-c": 0}]
    driver.apply(modify(1, 6, 7, a=b"22", b=half))
    assert annotations() == [{"x-a": 2, "x-b": len(half), "x-c": 0}]
    driver.apply(c.Settle(1, 8, 9))
    assert not queue.histories


def test_queue_keeps_a_bounded_amount_of_annotations(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(death_history, "HISTORIES_BYTES_MAX", 3_000)
    driver.apply(attach(1, "q"), credit(1, 1, 10), *(publish(1, ttl_ms=10**6 + n) for n in range(10)))
    for number in range(10):
        driver.apply(modify(1, number, number, a=bytes([number]) * 1_000))
    histories = queue_of(driver).histories
    assert len(histories) == 2
    assert sum(messages.history > 0 for messages in ready_ranges(queue_of(driver))) == 2
    driver.apply(credit(1, 2, 20))
    driver.apply(c.Settle(1, 10, 11))
    assert len(histories) in (0, 1)


def test_dead_letter_keeps_its_annotations_and_properties_of_its_publish(driver: Driver) -> None:
    driver.apply(
        declare("dies", x_queue_type="quorum", x_dead_letter_exchange="", x_dead_letter_routing_key="q")
    )
    driver.apply(attach(1, "dies"), credit(1, 1, 5), publish(1, "dies"))
    driver.apply(c.Modify(1, 0, 0, True, False, ["x-a"], [b"v"], 0))
    driver.apply(c.Discard(1, 1, 1))
    driver.lead()
    [dead] = ready_ranges(queue_of(driver))
    history = queue_of(driver).histories.get(dead.history)
    assert history is not None
    assert history.annotations == (("x-a", b"v"),)
    assert [(death.queue, death.exchange, death.routing_keys) for death in history.deaths] == [
        ("dies", "", ("dies",))
    ]
    assert history.failures == 2


def test_many_annotated_ranges_return_in_small_portions(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "RANGES_AT_ONCE", 8)
    monkeypatch.setattr(core_module, "RANGES_MAX", 16)
    driver.apply(attach(1, "q"), credit(1, 1, 9))
    for _ in range(9):
        driver.apply(publish(1))
    driver.apply(modify(1, 0, 8, a=b"1"))
    coming_back = []
    while driver.machine.due_ms() is not None:
        coming_back.append(queue_of(driver).coming_back)
        loaded = reloaded(driver.machine)
        assert differences(driver.machine, loaded) == []
        driver.apply()
    assert coming_back == [7, 5, 3, 1]
    assert queue_of(driver).ready == 9
