"""Histories of dead-lettered messages, against a plain list of all that happened to them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.machine.protocol import death_history as history_module
from qq.machine.protocol.death_history import REASONS, Death, Histories, History, died, is_cycle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qq.machine.protocol.death_history import FrozenHistories

SMALL_BLOCK_ROWS = 3
PUBLISHED = ("key", "cc1", "cc2")
QUEUES = ("q1", "q2", "q3")


class Event(NamedTuple):
    """A death, and where the message went."""

    queue: str
    reason: str
    time_ms: int
    new_exchange: str
    new_routing_key: str | None


events = st.lists(
    st.builds(
        Event,
        st.sampled_from(QUEUES),
        st.sampled_from(REASONS),
        st.integers(0, 5000),
        st.sampled_from(["dlx1", "dlx2"]),
        st.sampled_from([None, None, "dead"]),
    ),
    min_size=1,
    max_size=8,
)


def history_of(events: list[Event], expiration: str | None = "500") -> History:
    history: History | None = None
    for event in events:
        queue, reason, time_ms, exchange, key = event
        history = died(history, queue, reason, time_ms, "x", PUBLISHED, expiration, exchange, key)
    assert history is not None
    return history


def expected_history(events: list[Event]) -> History:
    """Return the history of a message that was published to "x" and expires after 500 ms."""
    exchanges = ["x", *(event.new_exchange for event in events)]
    keys = [PUBLISHED]
    for event in events:
        keys.append(keys[-1] if event.new_routing_key is None else (event.new_routing_key,))
    last_place = {event[:2]: place for place, event in enumerate(events)}
    deaths: list[Death] = []
    for (queue, reason), _ in sorted(last_place.items(), key=lambda item: -item[1]):
        places = [place for place, event in enumerate(events) if event[:2] == (queue, reason)]
        first = places[0]
        time_ms = events[first].time_ms // 1000 * 1000
        expiration = "500" if first == 0 else None
        deaths.append(Death(queue, reason, len(places), time_ms, exchanges[first], keys[first], expiration))
    return History(
        exchanges[-1],
        keys[-1][0],
        any(event.new_routing_key is not None for event in events),
        tuple(deaths),
        (events[0].reason, events[0].queue, "x"),
        (events[-1].reason, events[-1].queue, exchanges[-2]),
        1,
    )


@given(events)
def test_history_lists_each_queue_and_reason_once_newest_first(events: list[Event]) -> None:
    assert history_of(events) == expected_history(events)


@given(events, st.sampled_from([*QUEUES, "q4"]))
def test_cycle_is_detected_unless_the_message_was_rejected_since(events: list[Event], target: str) -> None:
    visits = [place for place, event in enumerate(events) if event.queue == target]
    since = events[visits[-1] :] if visits else []
    expected = bool(visits) and all(event.reason != "rejected" for event in since)
    assert is_cycle(history_of(events), target) == expected


def test_message_expiring_between_two_queues_is_a_cycle() -> None:
    first = Event("work", "expired", 0, "", "retry")
    history = history_of([first])
    assert not is_cycle(history, "retry")
    history = history_of([first, Event("retry", "expired", 0, "", "work")])
    assert is_cycle(history, "work")


def test_rejected_and_retried_message_may_circle_forever() -> None:
    rounds = 5
    circle = [Event("work", "rejected", 0, "", "retry"), Event("retry", "expired", 0, "", "work")]
    history = history_of(circle * rounds)
    assert not is_cycle(history, "work")
    assert [(death.queue, death.count) for death in history.deaths] == [("retry", rounds), ("work", rounds)]


def test_message_keeps_its_keys_until_a_dead_letter_key() -> None:
    kept = history_of([Event("q1", "maxlen", 0, "dlx", None)])
    assert kept.keys(PUBLISHED) == PUBLISHED
    replaced = history_of([Event("q1", "maxlen", 0, "dlx", "dead"), Event("q2", "maxlen", 0, "dlx", None)])
    assert replaced.keys(PUBLISHED) == ("dead",)
    assert [death.routing_keys for death in replaced.deaths] == [("dead",), PUBLISHED]


# Tables of histories


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    with mock.patch.object(history_module, "_BLOCK_ROWS", SMALL_BLOCK_ROWS):
        yield


HISTORIES = [
    history_of([Event(queue, reason, 0, "dlx", None)], None) for queue in QUEUES for reason in REASONS
]

steps = st.lists(
    st.tuples(
        st.sampled_from(["intern", "intern", "retain", "release", "release all", "keep only", "freeze"]),
        st.integers(0, len(HISTORIES) - 1),
        st.integers(1, 3),
    ),
    max_size=40,
)


def reloaded(histories: Histories) -> Histories:
    other = Histories()
    other.load(histories.freeze().dump())
    return other


def check(histories: Histories, model: Counter[int], meaning: dict[int, History]) -> None:
    """It has the histories of the model, and lets go of them after so many messages."""
    assert len(histories) == len(model)
    for history_id, count in model.items():
        assert histories.get(history_id) == meaning[history_id]
        histories.release(history_id, count - 1)
        assert histories.get(history_id) == meaning[history_id]
        histories.release(history_id, 1)
    assert len(histories) == 0


@given(steps)
def test_histories_hold_exactly_the_referenced_deaths(steps: list[tuple[str, int, int]]) -> None:
    histories, twin = Histories(), Histories()
    model: Counter[int] = Counter()
    meaning: dict[int, History] = {}
    frozen: list[tuple[FrozenHistories, Counter[int]]] = []
    for verb, which, count in steps:
        there = list(model)
        history_id = there[which % len(there)] if there else 0
        if verb == "intern":
            history = HISTORIES[which]
            history_id = histories.intern(history, count)
            assert twin.intern(history, count) == history_id
            # An id keeps its meaning, and a present history has a single id.
            assert meaning.setdefault(history_id, history) == history
            assert [known for known in there if meaning[known] == history] in ([], [history_id])
            assert history_id in there or history_id == max(meaning)
            model[history_id] += count
        elif verb == "keep only":
            kept = {known: count for known in there[::-1] if known % 2 == which % 2}
            for table in (histories, twin):
                table.keep_only(kept)
            model = Counter(kept)
        elif verb == "freeze":
            frozen.append((histories.freeze(), model.copy()))
        elif there and verb == "retain":
            for table in (histories, twin):
                table.retain(history_id, count)
            model[history_id] += count
        elif there:
            count = model[history_id] if verb == "release all" else min(count, model[history_id])
            for table in (histories, twin):
                table.release(history_id, count)
            model[history_id] -= count
        model = +model
        # A replica that was loaded at any time has the same dump as a replica that was never loaded.
        assert twin.freeze().dump() == histories.freeze().dump()
        twin = reloaded(twin)
    for then, there in frozen:
        copy = Histories()
        copy.load(then.dump())
        check(copy, there, meaning)
    check(histories, model, meaning)


def test_no_history_has_the_number_0_and_is_not_counted() -> None:
    histories = Histories()
    histories.retain(0, 5)
    histories.release(0, 7)
    assert histories.get(0) is None
    assert not histories


def test_unreferenced_history_cannot_be_retained_or_released() -> None:
    histories = Histories()
    history_id = histories.intern(HISTORIES[0], 2)
    histories.intern(HISTORIES[1], 1)
    with pytest.raises(ValueError, match="which 2 have"):
        histories.release(history_id, 3)
    histories.release(history_id, 2)
    with pytest.raises(ValueError, match="which 0 have"):
        histories.retain(history_id, 1)


def test_text_that_is_not_utf_8_survives_a_dump() -> None:
    history = died(None, "q\udcff", "expired", 0, "x\udcff", ("k\udcff",), "\udcff", "d\udcff", None)
    histories = Histories()
    history_id = histories.intern(history, 1)
    assert reloaded(histories).get(history_id) == history
