"""Messages held in very many ranges return in portions: in order, without loss, equally on every node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from qq.machine.handlers import core as core_module
from qq.machine.protocol.commands import (
    DeleteQueue,
    Discard,
    Get,
    PurgeQueue,
    Recover,
    Reject,
    Return,
    SessionDown,
    Settle,
)
from qq.machine.protocol.effects import Deliver, Failed, GetEmpty, GetOk, QueueDeleted, QueuePurged, Reply
from qq.machine.protocol.work_meter import RANGES_MAX
from qq.machine.queue import queue as queue_module
from qq.machine.queue.leaving import ranges_of
from qq.machine.queue.queue import Queue
from tests.machine.machine_driver import (
    Driver,
    batch,
    consume,
    declare,
    held_messages,
    live_messages,
    messages_of,
    publish,
    reloaded,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.machine.protocol.effects import Effect
    from qq.ranges import Piece, Range

MANY = 3 * RANGES_MAX


def held(driver: Driver, number: int, consumers: int = 1, **arguments: object) -> tuple[Queue, int]:
    """Messages of as many entries, that consumers of session 2 hold by turns; their queue, and the first entry."""
    driver.apply(declare("q", **arguments))
    each = number // consumers
    driver.apply(*(consume(consumer, "q", each, session=2) for consumer in range(consumers)))
    queue = driver.machine.vhosts["/"].queues["q"]
    first = driver.index + 1
    for _ in range(number):
        driver.index += 1
        queue.backlog.add(driver.index, 0, 1, 1)
    driver.machine._core.touch(queue)
    driver.lead()
    assert queue.unacked == number
    return queue, first


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many ranges were looked at, by each call that looks at some."""
    counted: list[int] = []

    def counting(pieces: list[Piece[Range]]) -> list[Range]:
        counted.append(len(pieces))
        return ranges_of(pieces)

    monkeypatch.setattr(queue_module, "ranges_of", counting)
    monkeypatch.setattr("qq.machine.queue.leaving.ranges_of", counting)
    return counted


def ticks(driver: Driver, moved: list[int]) -> Iterator[list[Effect]]:
    """Yield the effects of the entries that a leader appends by itself; each must respect its bound."""
    while driver.machine.due_ms() == 0:
        other = reloaded(driver.machine)
        moved.clear()
        effects = driver.machine.end_entry(driver.time_ms)
        assert 0 < sum(moved) <= RANGES_MAX
        assert other.end_entry(driver.time_ms) == effects
        assert other.digest() == driver.machine.digest()
        yield effects


def delivered(effects: Sequence[Effect]) -> list[int]:
    """Return the entries of the delivered messages in order."""
    return [
        index for effect in effects if isinstance(effect, Deliver) for index, *_ in messages_of(effect.ranges)
    ]


ENDS: dict[str, Callable[[Driver], object]] = {
    "session": lambda driver: driver.apply(SessionDown(2)),
    "recover": lambda driver: driver.apply(Recover(2)),
    "returned": lambda driver: driver.apply(*(Return(number, 0, MANY) for number in range(3))),
    "rejected": lambda driver: driver.apply(*(Reject(number, 0, MANY) for number in range(3))),
    "settled": lambda driver: driver.apply(*(Settle(number, 0, MANY) for number in range(3))),
    "discarded": lambda driver: driver.apply(*(Discard(number, 0, MANY) for number in range(3))),
    "node": lambda driver: [
        driver.machine.origin_down("n1", driver.time_ms, evicted=False),
        driver.machine.end_entry(driver.time_ms),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_return_of_many_ranges_is_bounded_per_entry(
    moved: list[int], end: Callable[[Driver], object]
) -> None:
    driver = Driver()
    queue, _ = held(driver, MANY, consumers=3)
    end(driver)
    assert 0 < sum(moved) <= RANGES_MAX
    assert len(list(ticks(driver, moved))) >= 2
    assert queue.ready + queue.unacked in (0, MANY)
    assert queue.unacked_size == queue.unacked


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_returned_messages_are_delivered_in_order_before_new(moved: list[int], kind: str) -> None:
    driver = Driver()
    _, first = held(driver, MANY, consumers=3, x_queue_type=kind)
    driver.apply(consume(9, "q", 3 * MANY, session=3))
    effects = driver.apply(publish(1))
    got = delivered(effects)
    effects = driver.apply(SessionDown(2))
    effects += driver.apply(publish(1))
    for more in ticks(driver, moved):
        effects += more
    got += delivered(effects)
    new, *again, newer = got
    assert again == list(range(first, first + MANY))
    assert first + MANY <= new < newer


def test_settling_many_messages_restores_the_credit_at_once() -> None:
    driver = Driver()
    held(driver, MANY)
    driver.apply(publish(1))
    assert len(delivered(driver.apply(Settle(0, 0, MANY)))) == 1
    # It crossed with the first, and is ignored.
    driver.apply(Discard(0, 5, 5))
    driver.lead()
    queue = driver.machine.vhosts["/"].queues["q"]
    assert queue.tally.acknowledged == MANY
    assert not queue.tally.died
    assert queue.unacked == 1


def test_dead_letters_keep_their_order(moved: list[int]) -> None:
    driver = Driver()
    queue, first = held(driver, MANY, x_dead_letter_exchange="nowhere")
    driver.apply(Discard(0, 0, MANY // 2), Discard(0, 0, MANY))
    for _ in ticks(driver, moved):
        pass
    assert [dead.range.index for dead in queue.dead] == list(range(first, first + MANY))
    assert queue.dead_count == MANY


def test_restarted_node_gets_no_messages_of_its_previous_process(moved: list[int]) -> None:
    driver = Driver()
    held(driver, MANY, x_queue_type="quorum")
    driver.machine.origin_down("n1", driver.time_ms, evicted=False)
    effects = driver.apply(consume(0, "q", 5, session=2))
    assert not [effect for effect in effects if isinstance(effect, Failed)]
    (consumer,) = driver.machine.consumers.values()
    assert len(held_messages(consumer)) == 5
    driver.apply(Settle(0, 0, 1))
    for _ in ticks(driver, moved):
        pass
    assert driver.machine.vhosts["/"].queues["q"].ready == MANY - 7


def answer(effects: Sequence[Effect]) -> object:
    (reply,) = [effect for effect in effects if isinstance(effect, Reply)]
    return reply.result


def test_queue_stays_consistent_while_messages_return() -> None:
    driver = Driver()
    queue, first = held(driver, MANY)
    driver.apply(publish(1))
    payload = batch([SessionDown(2), *(Get(3, 1, 1, number, "q", True, 0) for number in range(100, 103))])
    effects = driver.machine.apply_batch("n1", driver.index, 0, driver.time_ms, payload)
    got = [effect.result for effect in effects if isinstance(effect, Reply)]
    assert [each.range.index for each in got if isinstance(each, GetOk)] == [first, first + 1, first + 2]
    driver.machine.end_entry(driver.time_ms)
    effects = driver.apply(DeleteQueue(4, 1, "q", False, True))
    assert [effect.text for effect in effects if isinstance(effect, Failed)] == [
        "queue 'q' in vhost '/' not empty"
    ]
    there = MANY + 1 - 3
    assert queue.messages == there
    assert answer(driver.apply(PurgeQueue(5, 1, "q"))) == QueuePurged(there)
    assert queue.messages == 0
    driver.lead()
    assert queue.unacked == queue.unacked_size == 0
    assert isinstance(answer(driver.apply(Get(5, 1, 1, 200, "q", True, 0))), GetEmpty)
    # Of the last answer only.
    assert live_messages(driver.machine) == [(first + 2, 0, 0)]


def test_queue_deleted_during_a_return_has_no_messages() -> None:
    driver = Driver()
    held(driver, MANY)
    driver.apply(SessionDown(2))
    assert isinstance(answer(driver.apply(DeleteQueue(1, 1, "q", False, False))), QueueDeleted)
    assert not live_messages(reloaded(driver.machine))
    driver.lead()
    assert driver.machine.due_ms() is None


def test_rejecting_queue_has_no_room_while_messages_return() -> None:
    driver = Driver()
    queue, _ = held(driver, MANY, x_max_length=MANY + 1, x_overflow="reject-publish")
    driver.apply(SessionDown(2))
    driver.apply(publish(5))
    driver.lead()
    assert queue.ready == MANY + 1


def test_queues_take_turns_returning_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "RANGES_AT_ONCE", 40)
    monkeypatch.setattr(core_module, "RANGES_MAX", 6)
    monkeypatch.setattr(core_module, "RANGES_OF_QUEUE_MAX", 2)
    driver = Driver()
    names = [f"q{number}" for number in range(6)]
    driver.apply(*map(declare, names))
    driver.apply(*(consume(number, name, 999, session=2) for number, name in enumerate(names)))
    for _ in range(20):
        driver.apply(*(publish(1, name) for name in names))
    queues = [driver.machine.vhosts["/"].queues[name] for name in names]
    driver.apply(SessionDown(2))
    came_back = [[queue.ready for queue in queues]]
    for _ in range(2):
        driver.apply()
        came_back.append([queue.ready for queue in queues])
    # Two fit into a portion.
    assert came_back == [[20, 20, 2, 2, 2, 0], [20, 20, 4, 4, 2, 2], [20, 20, 6, 4, 4, 4]]
