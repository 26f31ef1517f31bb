"""The effects owed to a session after its node missed entries, and the references that keep messages live."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from qq.machine.catalog.reply_names import REPLY_PREFIX
from qq.machine.protocol.commands import (
    BindQueue,
    Cancel,
    Command,
    DeclareQueue,
    DeleteQueue,
    Enqueue,
    Get,
    GetMessages,
    PurgeQueue,
    Recover,
    ReplyTo,
    SessionDown,
    Settle,
)
from qq.machine.protocol.effects import (
    Consuming,
    Deliver,
    Done,
    Effect,
    Failed,
    GetEmpty,
    GetOk,
    Got,
    Known,
    QueueDeclared,
    QueueDeleted,
    QueuePurged,
    Recovered,
    Reply,
    Result,
)
from qq.machine.protocol.queue_types import CLASSIC, QUORUM
from qq.machine.protocol.versions import VERSIONS
from qq.machine.queue.runs import _WORDS
from qq.machine.snapshot.state import _PIECE_BYTES
from qq.ranges import Range
from tests.machine.machine_driver import Driver, consume, declare, publish, reloaded

if TYPE_CHECKING:
    from collections.abc import Sequence


def get(number: int, queue: str, *, no_ack: bool = False) -> Get:
    return Get(1, 1, 1, number, queue, no_ack, 0)


def owed(driver: Driver) -> list[Effect]:
    """Return the outstanding effects of the node's sessions, equal on a loaded machine."""
    effects = driver.machine.outstanding("n1")
    assert reloaded(driver.machine).outstanding("n1") == effects
    return effects


@pytest.mark.parametrize(
    ("command", "result"),
    [
        (declare("q"), QueueDeclared("q", 2, 0)),
        (DeleteQueue(1, 1, "q", False, False), QueueDeleted(2)),
        (PurgeQueue(1, 1, "q"), QueuePurged(2)),
        (BindQueue(1, 1, "q", "amq.direct", "", {}), Done()),
        (consume(5, "q", 0), Consuming(5)),
        (get(5, "q"), GetOk(5, Range(2, 0, 1, size=1), 1, None, None)),
        (get(5, "empty"), GetEmpty()),
        (GetMessages(1, 1, 1, 5, "q", False, 0, 3), Got(5, [Range(2, 0, 2, size=2)], 0, {}, None)),
        (GetMessages(1, 1, 1, 5, "q", True, 0, 1), Got(5, [Range(2, 0, 1, size=1)], 1, {}, None)),
        (GetMessages(1, 1, 1, 5, "empty", False, 0, 3), Got(5, [], 0, {}, None)),
        (Recover(1), Recovered()),
    ],
)
def test_the_last_answer_is_remembered(command: Command, result: Result) -> None:
    driver = Driver()
    driver.machine.raise_to(VERSIONS[1])
    driver.apply(declare("q"), declare("empty"))
    driver.apply(publish(2), messages=[b"x"] * 2)
    answer = driver.apply(command)
    assert answer == [Reply("n1", 1, result, 3)]
    live = [result.consumer] if isinstance(result, Consuming) else []
    assert owed(driver) == [*answer, Known("n1", 1, 3, live)]


@pytest.mark.parametrize(
    ("version", "kind", "contract"),
    [(8, CLASSIC, "4.0"), (8, QUORUM, "4.0"), (9, CLASSIC, None), (9, QUORUM, "4.0")],
)
@pytest.mark.parametrize("arguments", [{}, {"x-delivery-count-mode": "4.3"}], ids=["4.0", "4.3"])
def test_answer_to_get_counts_deliveries_of_quorum_queues_only(
    version: int, kind: str, contract: str | None, arguments: dict[str, str]
) -> None:
    if arguments and kind == CLASSIC:
        arguments = {}
    elif arguments:
        contract = "4.3"
    driver = Driver()
    driver.machine.raise_to(version)
    driver.apply(declare("q", **{"x-queue-type": kind}, **arguments))
    driver.apply(publish(2), messages=[b"x"] * 2)
    [one] = driver.apply(get(5, "q"))
    assert isinstance(one, Reply)
    assert isinstance(one.result, GetOk)
    assert one.result.count_contract == contract
    assert owed(driver)[0] == one
    [several] = driver.apply(GetMessages(1, 1, 1, 6, "q", False, 0, 3))
    assert isinstance(several, Reply)
    assert isinstance(several.result, Got)
    assert several.result.count_contract == contract
    assert owed(driver)[0] == several


def test_a_failure_is_the_last_answer() -> None:
    driver = Driver()
    failed = driver.apply(PurgeQueue(1, 1, "none"), declare("q"), publish(1, "none"), messages=[b"x"])
    assert len(failed) == 1
    assert isinstance(failed[0], Failed)
    assert failed[0].number == 1
    assert owed(driver) == [*failed, Known("n1", 1, 1, [])]


def test_a_failed_publish_is_an_answer() -> None:
    driver = Driver()
    driver.apply(declare("q"))
    failed = driver.apply(Enqueue(1, 1, 1, "none", "", False, 1), messages=[b"x"])
    assert [getattr(effect, "number", None) for effect in failed] == [2]
    assert owed(driver) == [*failed, Known("n1", 1, 2, [])]


def test_session_is_known_from_its_first_answer_until_it_is_down() -> None:
    driver = Driver()
    driver.apply(Recover(1))
    driver.apply(Recover(2), node="n2")
    assert owed(driver) == [Reply("n1", 1, Recovered(), 1), Known("n1", 1, 1, [])]
    driver.apply(SessionDown(1))
    assert owed(driver) == []


def test_a_publish_leaves_no_session_behind() -> None:
    driver = Driver()
    driver.apply(publish(1), messages=[b"x"])
    assert owed(driver) == []


def test_cancellations_are_counted_and_not_remembered() -> None:
    driver = Driver()
    driver.apply(declare("q"), consume(1, "q", 1), consume(2, "q", 1), Cancel(1, 1), Cancel(1, 2))
    assert owed(driver) == [Reply("n1", 1, Consuming(2), 3), Known("n1", 1, 5, [])]


def test_held_messages_are_owed_after_missed_entries() -> None:
    driver = Driver()
    driver.apply(declare("q", session=9), consume(1, "q", 100))
    driver.apply(publish(4), messages=[b"x"] * 4)
    driver.apply(publish(2), messages=[b"x"] * 2)
    driver.apply(Settle(1, 2, 2))
    driver.apply(Cancel(1, 1))
    assert owed(driver) == [
        Reply("n1", 9, QueueDeclared("q", 0, 0), 1),
        Known("n1", 9, 1, []),
        Reply("n1", 1, Consuming(1), 1),
        Deliver("n1", 1, 1, 0, [Range(2, 0, 2, size=2)], {}, None),
        Deliver(
            "n1", 1, 1, 3, [Range(2, 3, 1, size=1, position=3), Range(3, 0, 2, size=2, position=4)], {}, None
        ),
        Known("n1", 1, 2, []),
    ]


def test_consumer_of_a_deleted_queue_is_not_known() -> None:
    driver = Driver()
    driver.apply(declare("q"), declare("r"), consume(1, "q", 1), consume(2, "r", 1))
    driver.apply(DeleteQueue(1, 1, "q", False, False))
    assert owed(driver)[-1] == Known("n1", 1, 5, [2])


def test_message_is_live_while_a_queue_or_consumer_refers_to_it() -> None:
    driver = Driver()
    driver.apply(declare("q"), declare("r"), BindQueue(1, 1, "q", "amq.fanout", "", {}))
    driver.apply(BindQueue(1, 1, "r", "amq.fanout", "", {}))
    driver.apply(Enqueue(1, 1, 3, "amq.fanout", "", False, 1), publish(2), messages=[b"x"] * 5)
    frozen = driver.machine.freeze()
    assert frozen.counts([0, 3, 4]) == [0, 8]
    assert frozen.live(0, 9) == {3: {0: [(0, 5)]}}
    assert frozen.live(0, 3) == frozen.live(4, 9) == {}

    driver.apply(PurgeQueue(1, 1, "r"), get(1, "q"), get(2, "q", no_ack=True))
    driver.apply(Settle(1, 0, 0))
    # The answer to the last Get has to be told to a node that misses this entry.
    assert driver.machine.freeze().live(3, 4) == {3: {0: [(1, 4)]}}
    driver.apply(Recover(1))
    assert driver.machine.freeze().live(3, 4) == {3: {0: [(2, 3)]}}


@pytest.mark.parametrize("bounds", [[], [5]])
def test_no_cells_no_counts(bounds: Sequence[int]) -> None:
    driver = Driver()
    driver.apply(declare("q"))
    driver.apply(publish(2), messages=[b"x"] * 2)
    assert driver.machine.freeze().counts(bounds) == []


def test_frozen_state_is_not_changed_by_later_commands() -> None:
    driver = Driver()
    arguments: dict[str, Any] = {"x-max-length": 1}
    driver.apply(DeclareQueue(1, 1, "q", False, True, False, False, False, arguments), consume(1, "q", 2))
    driver.apply(publish(5), messages=[b"x"] * 5)
    frozen = driver.machine.freeze()
    dump = frozen.dump()
    driver.apply(Settle(1, 0, 0), publish(3), messages=[b"x"] * 3)
    driver.apply(Cancel(1, 1), SessionDown(1), DeleteQueue(2, 1, "q", False, False))
    assert frozen.dump() == dump


def test_unchanged_backlogs_are_not_frozen_again() -> None:
    driver = Driver()
    names = [f"queue-{number}" for number in range(20)]
    driver.apply(*map(declare, names))
    for name in names[10:]:
        driver.apply(publish(2, name), messages=[b"x"] * 2)

    def frozen() -> dict[str, tuple[object, object]]:
        return {row.queue.name: (row.backlog, row.histories) for row in driver.machine.freeze().queues}

    first = frozen()
    driver.apply(publish(1, names[0]), messages=[b"x"])
    driver.apply(PurgeQueue(1, 1, names[10]))
    anew = {name for name, parts in frozen().items() if any(map(operator.is_not, parts, first[name]))}
    assert anew == {names[0], names[10]}


def test_large_backlog_is_packed_in_parts_to_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qq.machine.queue.runs._CHUNK_WORDS", 2 * _WORDS)
    driver = Driver()
    driver.apply(declare("q"))
    for _ in range(200):
        driver.apply(publish(1))
    frozen = driver.machine.freeze()
    sizes: list[int] = []

    class Recorded(msgpack.Packer):
        def pack(self, value: Any) -> None:
            before = len(self.getbuffer())
            super().pack(value)
            sizes.append(len(self.getbuffer()) - before)

    monkeypatch.setattr("qq.machine.protocol.codec.msgpack.Packer", Recorded)
    in_parts = frozen.dump()
    largest_part = max(sizes)
    monkeypatch.setattr("qq.machine.snapshot.state._CHUNKS_AT_ONCE", 1000)
    assert frozen.dump() == in_parts
    assert max(sizes) > 50 * largest_part


def test_a_large_state_is_given_in_small_pieces() -> None:
    driver = Driver()
    driver.apply(*(declare(f"{number}-{'n' * 200}") for number in range(5000)))
    pieces = driver.machine.freeze().pieces()
    assert len(pieces) > 2
    assert max(map(len, pieces)) < _PIECE_BYTES + 1000
    assert b"".join(pieces) == driver.machine.dump()


def test_direct_reply_consumer_is_known_and_misses_are_lost() -> None:
    driver = Driver()
    name = REPLY_PREFIX + "x" * 22
    driver.apply(ReplyTo(1, 7, name))
    driver.apply(publish(3, name, session=2), node="n2")
    assert owed(driver) == [Reply("n1", 1, Consuming(7), 1), Known("n1", 1, 1, [7])]
    assert driver.machine.freeze().live(0, 9) == {}
    driver.apply(Cancel(1, 7))
    assert owed(driver) == [Reply("n1", 1, Consuming(7), 1), Known("n1", 1, 2, [])]
