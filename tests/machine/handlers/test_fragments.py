"""Large messages that are stored in fragments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.machine.handlers.fragments import Fragment
from qq.machine.protocol.commands import (
    DeleteQueue,
    JoinFragments,
    PurgeQueue,
    SessionDown,
    Settle,
    StoreFragment,
)
from qq.machine.protocol.effects import Returned
from qq.machine.queue.backlog import FrozenBacklog
from tests.machine.machine_driver import (
    Driver,
    consume,
    declare,
    live_messages,
    publish,
    ready_messages,
    reloaded,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest

    from qq.machine.queue.queue import Queue

FIRST, SECOND = b"f" * 100, b"s" * 50
SIZE = len(FIRST) + len(SECOND) + 1


class Large(Driver):
    """An empty queue, and a session that publishes to it."""

    def __init__(self, **arguments: object) -> None:
        super().__init__()
        self.machine.raise_to(8)
        self.apply(declare("q", **arguments))

    def store(self, *fragments: bytes, session: int = 2) -> None:
        for fragment in fragments:
            self.apply(StoreFragment(session), messages=[fragment])

    def join(self, session: int = 2, key: str = "q") -> None:
        self.apply(JoinFragments(session), publish(1, key, session=session), messages=[b"h"])

    @property
    def queue(self) -> Queue:
        return self.machine.vhosts["/"].queues["q"]


def test_a_message_is_as_large_as_its_fragments_together() -> None:
    driver = Large(x_max_length_bytes=2 * SIZE)
    for _ in range(3):
        driver.store(FIRST, SECOND)
        assert len(ready_messages(driver.queue)) == min(2, driver.queue.ready)
        driver.join()
    assert (driver.queue.ready, driver.queue.backlog.size) == (2, 2 * SIZE)


def test_publish_between_fragments_keeps_both_messages_whole() -> None:
    driver = Large()
    driver.store(FIRST)
    driver.apply(publish(1, session=3), StoreFragment(3), messages=[b"x", b"of another"])
    driver.store(SECOND)
    driver.join()
    before = live_messages(driver.machine)
    driver.machine = reloaded(driver.machine)
    assert live_messages(driver.machine) == before
    assert driver.machine.fragments_of(driver.index) == {0: (Fragment(2, 0, 100), Fragment(4, 0, 50))}
    driver.join(session=3)
    assert driver.machine.fragments_of(driver.index) == {0: (Fragment(3, 1, len(b"of another")),)}


def test_join_completes_only_the_first_message_of_a_publish() -> None:
    driver = Large()
    driver.store(FIRST)
    driver.apply(JoinFragments(2), publish(3, session=2), publish(1, session=2))
    assert list(driver.machine.fragments_of(driver.index)) == [0]
    assert driver.queue.backlog.size == len(FIRST) + 4


def places(driver: Large) -> list[int]:
    """Return the entries with kept messages."""
    return list(driver.machine.freeze().live(0, driver.index + 1))


def test_fragments_are_kept_as_long_as_their_message() -> None:
    driver = Large()
    driver.store(FIRST, SECOND)
    stored = [driver.index - 1, driver.index]
    assert places(driver) == stored
    driver.join()
    joined = driver.index
    driver.apply(consume(1, "q", 1))
    assert places(driver) == [*stored, joined]
    driver.apply(Settle(1, 0, 0))
    assert places(driver) == []


def test_fragments_are_freed_when_their_message_is_purged() -> None:
    """A small unconsumed message would keep all large messages that were published beside it."""
    driver = Large()
    driver.apply(declare("other"))
    driver.store(FIRST)
    driver.store(SECOND, session=3)
    commands = [publish(1, "other"), JoinFragments(2), publish(1, session=2), JoinFragments(3)]
    driver.apply(*commands, publish(1, "other", session=3))
    assert places(driver) == [3, 4, 5]
    driver.apply(PurgeQueue(1, 1, "q"))
    assert places(driver) == [4, 5]
    driver.machine.freeze()
    assert list(driver.machine.fragments_of(5)) == [2]
    driver.apply(PurgeQueue(1, 1, "other"))
    assert places(driver) == []


def test_fragments_are_not_searched_in_every_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 20,000 queues and 3,000 large messages in one of them, this took 2 s of each checkpoint on every node, now
    50 ms.
    """
    driver = Large()
    driver.apply(*[declare(f"empty {number}") for number in range(50)])
    for _ in range(50):
        driver.store(FIRST)
        driver.join()
    lookups: list[int] = []
    ranges, add_counts = FrozenBacklog.ranges, FrozenBacklog.add_counts

    def record_ranges(backlog: FrozenBacklog, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        lookups.append(1)
        return ranges(backlog, first, end)

    def record_counts(backlog: FrozenBacklog, bounds: Sequence[int], counts: list[int]) -> None:
        lookups.append(len(counts))
        add_counts(backlog, bounds, counts)

    frozen = driver.machine.freeze()
    monkeypatch.setattr(FrozenBacklog, "ranges", record_ranges)
    monkeypatch.setattr(FrozenBacklog, "add_counts", record_counts)
    assert len(frozen._fragments_in_use()) == 50
    assert sum(lookups) < 300


def test_fragments_are_freed_with_their_session_and_queue() -> None:
    driver = Large()
    driver.store(FIRST)
    driver.apply(SessionDown(2))
    assert places(driver) == []
    for command in (PurgeQueue(1, 1, "q"), DeleteQueue(1, 1, "q", False, False)):
        driver.store(FIRST)
        driver.join()
        assert len(places(driver)) == 2
        driver.apply(command)
        assert places(driver) == []


def test_failed_channel_frees_its_fragments_and_stores_no_more() -> None:
    driver = Large()
    driver.store(FIRST)
    driver.apply(publish(1, session=2, exchange="none"))
    assert places(driver) == []
    driver.store(SECOND)
    driver.join()
    assert places(driver) == []
    assert driver.queue.ready == 0


def test_lost_node_has_no_stored_fragments() -> None:
    driver = Large()
    driver.store(FIRST)
    driver.machine.origin_down("n1", driver.time_ms, evicted=True)
    assert places(driver) == []


def test_unreferenced_fragments_are_freed_later_and_not_dumped() -> None:
    driver = Large()
    driver.store(FIRST)
    driver.join()
    joined = driver.index
    driver.apply(PurgeQueue(1, 1, "q"))
    assert driver.machine.fragments_of(joined)
    assert driver.machine.digest() == reloaded(driver.machine).digest()
    driver.machine.freeze()
    assert not driver.machine.fragments_of(joined)


def test_fragments_of_a_returned_message_are_kept_while_needed() -> None:
    """A message that is returned is in no queue."""
    driver = Large()
    driver.store(FIRST, SECOND)
    effects = driver.apply(JoinFragments(2), publish(1, "none", session=2)._replace(mandatory=True))
    [returned] = [each for each in effects if isinstance(each, Returned)]
    assert driver.machine.first_fragment_from(driver.index) == driver.index - 2
    driver.machine.needed_from = lambda: driver.index
    for _ in range(3):
        driver.machine.dump()
    assert len(driver.machine.fragments_of(returned.index)[0]) == 2
    driver.machine.needed_from = lambda: None
    driver.machine.dump()
    assert not driver.machine.fragments_of(returned.index)
    assert driver.machine.first_fragment_from(driver.index) == driver.index
