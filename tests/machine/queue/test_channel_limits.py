"""Consumers that share the limit of a channel (basic.qos, global): no consumer waits while there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.machine.handlers import core as core_module
from qq.machine.machine import QueueMachine
from qq.machine.protocol.commands import (
    Cancel,
    Command,
    Credit,
    DeclareQueue,
    DeleteQueue,
    Limit,
    PurgeQueue,
    SessionDown,
    SetPrefetch,
    Settle,
)
from qq.machine.protocol.effects import Deliver
from qq.machine.protocol.versions import VERSIONS
from qq.machine.queue.queue import Queue
from tests.machine.likeness import differences
from tests.machine.machine_driver import (
    Driver,
    assert_kept_is_current,
    batch,
    consume,
    declare,
    publish,
    reloaded,
)

if TYPE_CHECKING:
    from qq.machine.queue.queue import Consumer

QUEUES = ["q0", "q1", "q2"]
FULL: dict[str, Any] = {"x_overflow": "reject-publish", "x_max_length": 0}
"""A queue that accepts only messages that its consumers can have at once."""
SESSIONS = [1, 2]

numbers = st.integers(0, 7)
queues = st.sampled_from(QUEUES)
sessions = st.sampled_from(SESSIONS)
steps = st.one_of(
    st.tuples(st.just("publish"), queues, st.integers(1, 4)),
    st.tuples(st.just("consume"), queues, sessions, st.integers(1, 5)),
    st.tuples(st.just("settle"), numbers, st.integers(1, 3)),
    st.tuples(st.just("credit"), numbers, st.integers(0, 3)),
    st.tuples(st.just("prefetch"), numbers, st.integers(0, 3)),
    st.tuples(st.just("cancel"), numbers),
    st.tuples(st.just("limit"), sessions, st.integers(0, 4)),
    st.tuples(st.just("purge"), queues),
    st.tuples(st.just("delete"), queues),
    st.tuples(st.just("down"), sessions),
)


def declared(queue: str, session: int = 1) -> DeclareQueue:
    return declare(queue, session, **(FULL if queue == "q2" else {}))


def commands_of(machine: QueueMachine, step: tuple[object, ...], number: int) -> tuple[list[Command], int]:
    """Return the commands of a step in the present state, and the number of their messages."""
    consumers = list(machine.consumers.values())
    match step:
        case ("publish", str(queue), int(count)):
            return [publish(count, queue)], count
        case ("consume", str(queue), int(session), int(credit)):
            arguments = {"x-priority": number % 3} if number % 2 else {}
            return [declared(queue, session), consume(number, queue, credit, session, arguments=arguments)], 0
        case ("settle", int(which), int(count)) if consumers:
            consumer = consumers[which % len(consumers)]
            first = consumer.unacked.first() or 0
            return [Settle(consumer.id, first, first + count - 1)], 0
        case ("credit", int(which), int(count)) if consumers:
            return [Credit(consumers[which % len(consumers)].id, count)], 0
        case ("prefetch", int(which), int(count)) if consumers:
            return [SetPrefetch(consumers[which % len(consumers)].id, count)], 0
        case ("cancel", int(which)) if consumers:
            consumer = consumers[which % len(consumers)]
            return [Cancel(consumer.session, consumer.id)], 0
        case ("limit", int(session), int(count)):
            return [Limit(session, count)], 0
        case ("purge", str(queue)):
            return [declared(queue), PurgeQueue(1, 1, queue)], 0
        case ("delete", str(queue)):
            return [DeleteQueue(1, 1, queue, False, False), declared(queue)], 0
        case ("down", int(session)):
            return [SessionDown(session)], 0
        case _:
            return [], 0


def naive_room(machine: QueueMachine, consumer: Consumer) -> int:
    """Return the consumer's room, computed from all messages that its channel holds."""
    session = machine._core.sessions[consumer.node, consumer.session]
    held = sum(len(other.unacked) for other in session.consumers.values() if other.budget is not None)
    limit = session.budget.limit
    return min(consumer.credit, limit - held) if limit else consumer.credit


@given(st.lists(st.lists(steps, min_size=1, max_size=4), max_size=30), st.sampled_from(VERSIONS))
def test_every_consumer_with_room_has_a_message(
    entries: list[list[tuple[object, ...]]], version: int
) -> None:
    machine = QueueMachine()
    machine.raise_to(version)
    machine.apply_batch("n1", 1, 0, 1000, batch([declared(queue) for queue in QUEUES]))
    machine.end_entry(1000)
    number = 0
    with mock.patch.object(core_module, "WOKEN_MAX", 3):
        for index, entry in enumerate(entries, 2):
            loaded = reloaded(machine)
            for ordinal, step in enumerate(entry):
                number += 1
                commands, count = commands_of(machine, step, number)
                payload = batch(commands, [b"x"] * count)
                effects = machine.apply_batch("n1", index, ordinal, 1000, payload)
                assert loaded.apply_batch("n1", index, ordinal, 1000, payload) == effects
            assert machine.end_entry(1000) == loaded.end_entry(1000)
            assert machine.digest() == loaded.digest()
            assert_kept_is_current(machine)
            assert differences(machine, reloaded(loaded)) == []
            for consumer in machine.consumers.values():
                room = naive_room(machine, consumer)
                assert room >= 0 or not consumer.live or consumer.budget is not None
                may_have_more = consumer.live and room > 0 and consumer.queue.ready
                assert not may_have_more or machine.due_ms() == 0  # the next entry goes on


def test_consumer_with_a_turn_no_longer_waits_for_room() -> None:
    """On a running machine as on a loaded machine."""
    driver, other = Driver(), Driver()
    driver.apply(*map(declare, ("first", *QUEUES)), Limit(1, 2))
    driver.apply(consume(1, "first", 5), publish(2, "first"))
    driver.apply(*(consume(number, queue, 5) for number, queue in enumerate(QUEUES, 2)))
    # They wait for room, each with something in its queue, that goes then.
    driver.apply(*(publish(1, queue) for queue in QUEUES))
    driver.apply(*(PurgeQueue(1, 1, queue) for queue in QUEUES))
    # The second consumer gets the room; the third gets a turn too, and finds none left.
    driver.apply(Settle(1, 0, 0), Credit(3, 1), publish(1, "q0"))
    driver.apply(consume(20, "q2", 9, session=2))
    other.machine, other.index = reloaded(driver.machine), driver.index
    for each in (driver, other):
        effects = each.apply(Settle(2, 0, 0), publish(4, "q2"))
        assert [effect.consumer for effect in effects if isinstance(effect, Deliver)] == [20, 4]
    assert driver.machine.digest() == other.machine.digest()


def test_consumer_without_a_turn_at_a_full_queue_is_not_dumped() -> None:
    """Without publishes the queue is not served; its next consumer waits for room in its channel."""
    driver = Driver()
    driver.apply(declare("full", **FULL), declare("q"), Limit(1, 1))
    driver.apply(consume(1, "full", 1), consume(2, "q", 1), publish(1, "q"))
    full = driver.machine.vhosts["/"].queues["full"]
    assert full.rotation
    driver.machine.dump()
    driver.apply(publish(1, "full"))
    assert not full.rotation
    assert_kept_is_current(driver.machine)


def test_consumer_blocked_for_a_second_reason_does_not_wait() -> None:
    def check(*commands: Command) -> None:
        driver.apply(*commands)
        assert differences(driver.machine, reloaded(driver.machine)) == []

    driver = Driver()
    driver.apply(declare("q"), declare("single", x_single_active_consumer=True), Limit(1, 2))
    driver.apply(consume(1, "q", 5), consume(2, "q", 5), publish(9, "q"))
    check(SetPrefetch(1, 1))  # it has reached its prefetch
    driver.apply(Limit(2, 2), consume(3, "single", 5, session=2), publish(9, "single"))
    check(consume(4, "single", 5, arguments={"x-priority": 1}))  # it must give way to the new consumer
    check(Settle(3, 0, 0))


def test_settling_does_not_visit_thousands_of_waiting_consumers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requested: list[int] = []
    give_credit = Queue.give_credit

    def counting(queue: Queue, consumer: Consumer, count: int) -> None:
        requested.append(consumer.id)
        give_credit(queue, consumer, count)

    driver = Driver()
    driver.apply(declare("q"), Limit(1, 1))
    driver.apply(*(consume(number, "q", 10) for number in range(1, 3001)))
    driver.apply(publish(100), messages=[b"x"] * 100)
    monkeypatch.setattr(Queue, "give_credit", counting)
    for consumer in range(1, 100):
        driver.apply(Settle(consumer, 0, 0))
    assert len(requested) == 2 * 99  # the consumer that settled, and the consumer with the turn
    requested.clear()
    driver.apply(Limit(1, 0))
    assert len(requested) <= 3000


def test_ack_does_not_visit_all_single_active_candidates() -> None:
    """The active consumer is known without visiting the candidates."""
    driver = Driver()
    driver.apply(declare("q", x_single_active_consumer=True))
    driver.apply(*(consume(number, "q", 10) for number in range(1, 1001)))
    queue = driver.machine.vhosts["/"].queues["q"]
    holders = mock.MagicMock(wraps=queue.holders)
    holders.__iter__.side_effect = AssertionError("somebody looks at all of them")
    queue.holders = holders
    driver.apply(publish(10), messages=[b"x"] * 10)
    for number in range(10):
        driver.apply(Settle(1, number, number))
    driver.apply(Cancel(1, 1))
    assert queue.active is not None
    assert queue.active.id == 2


def test_consumer_behind_an_empty_queue_gets_the_room() -> None:
    driver = Driver()
    driver.apply(*map(declare, QUEUES), Limit(1, 1))
    driver.apply(*(consume(number, queue, 10) for number, queue in enumerate(QUEUES, 1)))
    driver.apply(*(publish(1, queue) for queue in QUEUES), messages=[b"x"] * 3)
    driver.apply(PurgeQueue(1, 1, "q1"))
    driver.apply(Settle(1, 0, 0))
    assert [len(consumer.unacked) for consumer in driver.machine.consumers.values()] == [0, 0, 1]


@pytest.mark.parametrize(
    ("version", "takers"), [(11, [1, 2, 3, 4, 5, 1, 2]), (12, [2, 4, 5, 2, 4, 5, 2])], ids=["11", "12"]
)
def test_freed_room_goes_to_the_highest_priority_of_a_queue(version: int, takers: list[int]) -> None:
    """Consumers 2 and 4 have the highest priority at q0, and 5 is alone at q1, each with a message to have."""
    driver = Driver()
    driver.machine.raise_to(version)
    driver.apply(*map(declare, QUEUES), declare("first"), Limit(1, 1))
    driver.apply(consume(9, "first", 1), publish(1, "first"))
    for number, priority in ((1, 0), (2, 7), (3, 3), (4, 7)):
        driver.apply(consume(number, "q0", 1, arguments={"x-priority": priority}))
    driver.apply(consume(5, "q1", 1))
    driver.apply(*(publish(9, queue) for queue in QUEUES[:2]), messages=[b"x"] * 18)
    holder, at, got = 9, dict.fromkeys(range(1, 10), 0), []
    for _ in takers:
        other = Driver()
        other.machine, other.index = reloaded(driver.machine), driver.index
        settle = Settle(holder, at[holder], at[holder])
        effects = driver.apply(settle)
        assert other.apply(settle) == effects
        at[holder] += 1
        (holder,) = [effect.consumer for effect in effects if isinstance(effect, Deliver)]
        got.append(holder)
    assert got == takers
