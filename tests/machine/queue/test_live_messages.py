"""The live messages that the state reports to compaction."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qq.machine.queue.live_messages import CELL_BITS, LiveMessages
from qq.ranges import MESSAGE_BITS

FAR = 3 << CELL_BITS
Recorded = list[tuple[int, int, int, int]]


def ordinals(recorded: Recorded) -> dict[int, dict[int, set[int]]]:
    """Return the ordinals of all messages, by the index of their entry and the ordinal of their batch."""
    found: dict[int, dict[int, set[int]]] = {}
    for index, batch, first, count in recorded:
        found.setdefault(index, {}).setdefault(batch, set()).update(range(first, first + count))
    return found


@given(
    st.lists(st.tuples(st.integers(0, FAR), st.integers(0, 3), st.integers(0, 9), st.integers(1, 5))),
    st.lists(st.integers(0, FAR)),
)
def test_messages_are_found_in_order_and_each_once(recorded: Recorded, indexes: list[int]) -> None:
    live = LiveMessages()
    for index, batch, first, count in recorded:
        live.add(index, batch << MESSAGE_BITS | first, count)
    expected = ordinals(recorded)
    assert list(live) == sorted(expected)
    assert len(live) == len(expected)
    for index in [*indexes, *expected]:
        batches = live.get(index, {})
        for ranges in batches.values():
            ends = [first + count for first, count in ranges]
            assert all(end < first for end, (first, _) in zip(ends, ranges[1:], strict=False))
        found = [(index, batch, first, count) for batch in batches for first, count in batches[batch]]
        assert ordinals(found).get(index, {}) == expected.get(index, {})
