"""Messages by reference, from whole and compacted entries, while files are removed and added."""

from __future__ import annotations

import gc
import tracemalloc
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

import pytest

from cluster.log.entry import batches_of, make_batch, make_compacted, make_entry
from cluster.log.segment import CorruptJournal, EntryMoved, EntryNotFound
from qq.machine.handlers.fragments import Fragment
from qq.machine.protocol.codec import encode_batch, keep
from qq.machine.protocol.commands import Enqueue, JoinFragments, StoreFragment
from qq.ranges import MESSAGE_BITS, Range
from qq.sessions import entries as entries_module
from qq.sessions.entries import (
    READ_AHEAD_MAX,
    READ_AHEAD_MIN,
    READ_BYTES_MAX,
    Entries,
    Messages,
    MessagesGone,
    ReadAhead,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class FakeJournal:
    """Entries on disk; a job that was made before `replace` finds its file gone."""

    def __init__(self) -> None:
        self.cached: dict[int, bytes] = {}
        self.stored: dict[int, bytes] = {}
        self.sparse: set[int] = set()
        """Entries without kept messages, in a file of kept entries."""
        self.unapplied = 0
        """How many of the newest entries are not applied."""
        self.error: Exception | None = None
        self.requested: list[int] = []
        self._replaced = 0

    @property
    def applied_index(self) -> int:
        return max((*self.cached, *self.stored)) - self.unapplied

    def payload(self, index: int) -> bytes | None:
        return self.cached.get(index)

    def read_job(self, indexes: Sequence[int], bytes_max: int) -> Callable[[], list[bytes]]:
        if any(index not in self.stored for index in indexes):
            raise EntryNotFound("not here")
        self.requested.extend(indexes)
        payloads, replaced = [self.stored[index] for index in indexes], self._replaced
        sizes = accumulate(map(len, payloads), initial=0)
        payloads = [payload for payload, before in zip(payloads, sizes, strict=False) if before < bytes_max]

        def job() -> list[bytes]:
            if self.error is not None:
                raise self.error
            if self._replaced != replaced:
                raise EntryMoved("the file went away")
            if missing := self.sparse.intersection(indexes):
                raise EntryNotFound(f"not in its file: {missing}")
            return payloads

        return job

    def replace(self, stored: dict[int, bytes]) -> None:
        self.stored = stored
        self._replaced += 1


class FakeDisk:
    """Reads when it is told to."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], Any], Callable[[Any, Exception | None], None]]] = []
        self.reads = 0

    def submit_read(self, job: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        self._waiting.append((job, done))

    def read(self) -> None:
        while self._waiting:
            self.reads += 1
            job, done = self._waiting.pop(0)
            try:
                result = job()
            except CorruptJournal as error:
                done(None, error)
            else:
                done(result, None)


class Setup:
    def __init__(self) -> None:
        self.journal = FakeJournal()
        self.disk = FakeDisk()
        self.failures: list[BaseException] = []
        log: Any = self.journal
        log.disk_failed = self.failures.append
        self.fragments: dict[int, dict[int, list[Fragment]]] = {}
        """The fragments of large messages, by index and slot."""
        self.entries = Entries(log, cast("Any", self.disk), lambda index: self.fragments.get(index, {}))
        self.loaded: list[str] = []

    def load(self, *indexes: int, name: str = "", ahead: ReadAhead | None = None) -> None:
        self.entries.load(list(indexes), lambda: self.loaded.append(name), ahead)

    def bodies(self, index: int, slot: int, count: int) -> list[bytes] | None:
        found = self.entries.messages(Range(index, slot, count, 0))
        return [body for messages in found for body in messages.messages] if found else None


@pytest.fixture
def setup() -> Setup:
    return Setup()


def payload(*bodies: bytes) -> bytes:
    """Return a batch that publishes the first two messages to an exchange and the rest to a second exchange."""
    requested = [Enqueue(1, 1, 2, "x", "k", False, 1), Enqueue(1, 1, len(bodies) - 2, "y", "l", False, 2)]
    return b"".join(encode_batch(requested, list(bodies)))


BODIES = [b"0", b"1", b"2", b"3", b"4"]
WHOLE = make_entry(
    1, [make_batch("n1", 1, 1, [payload(*BODIES)]), make_batch("n2", 1, 1, [payload(*BODIES)])]
)
KEPT = make_compacted({1: keep(payload(*BODIES), [(1, 3)])})
SECOND = 1 << MESSAGE_BITS


def test_an_entry_that_is_not_applied_is_not_read_ahead(setup: Setup) -> None:
    """A large entry of an isolated leader would have delivered its messages in place of the next leader's."""
    setup.journal.stored = {6: WHOLE, 7: WHOLE, 8: WHOLE}
    setup.journal.unapplied = 1
    ahead = ReadAhead()
    for index in (6, 7):
        setup.load(index, ahead=ahead)
        setup.disk.read()
        assert setup.bodies(index, 0, 1) == [b"0"]
    other_entry = make_entry(2, [make_batch("n1", 1, 1, [payload(b"a", b"b", b"c")])])
    setup.journal.stored[8], setup.journal.unapplied = other_entry, 0
    assert setup.bodies(8, 0, 1) is None
    setup.load(8, ahead=ahead)
    setup.disk.read()
    assert setup.bodies(8, 0, 1) == [b"a"]


def test_messages_in_memory_are_returned_at_once(setup: Setup) -> None:
    setup.journal.cached[7] = WHOLE
    assert setup.entries.messages(Range(7, SECOND | 2, 2, 0)) == [Messages("y", "l", 2, [b"2", b"3"])]


def test_messages_of_several_publications(setup: Setup) -> None:
    """A range spans publications, also in a compacted entry, but not a gap."""
    both = [Messages("x", "k", 1, [b"1"]), Messages("y", "l", 2, [b"2", b"3"])]
    setup.journal.cached = {7: WHOLE, 8: KEPT}
    assert setup.entries.messages(Range(7, SECOND | 1, 3, 0)) == both
    assert setup.entries.messages(Range(8, SECOND | 1, 3, 0)) == both
    with pytest.raises(MessagesGone):
        setup.entries.messages(Range(8, SECOND, 3, 0))
    with pytest.raises(MessagesGone):
        setup.entries.messages(Range(8, SECOND | 2, 3, 0))


def test_messages_on_disk_are_read_first(setup: Setup) -> None:
    setup.journal.stored = {7: WHOLE, 8: WHOLE}
    assert setup.bodies(7, 0, 1) is None
    setup.load(7, 8)
    assert setup.bodies(7, 0, 1) is None
    setup.disk.read()
    assert setup.loaded == [""]
    assert setup.bodies(7, 0, 2) == [b"0", b"1"]
    assert setup.bodies(8, SECOND, 1) == [b"0"]


def test_the_smaller_the_entries_are_the_more_are_read_together(setup: Setup) -> None:
    large = make_entry(1, [make_batch("n1", 1, 1, [payload(*[bytes(120_000)] * 4)])])
    setup.journal.stored = dict.fromkeys(range(1000), WHOLE) | dict.fromkeys(range(1000, 2000), large)
    bounded = READ_BYTES_MAX // len(large) + 1
    large_ranges = [(first, bounded) for first in range(1000, 1080, 10)]
    for first, together in ((0, READ_AHEAD_MIN), (10, READ_AHEAD_MAX), *large_ranges, (1400, READ_AHEAD_MIN)):
        indexes = range(first, first + READ_AHEAD_MAX + 1)
        setup.load(*indexes)
        setup.disk.read()
        assert [index for index in indexes if setup.bodies(index, 0, 1)] == [*indexes][:together]
        assert setup.loaded.pop() == ""


def test_entry_left_out_of_a_large_read_is_still_read(setup: Setup) -> None:
    large = make_entry(1, [make_batch("n1", 1, 1, [payload(*[bytes(READ_BYTES_MAX // 4)] * 4)])])
    setup.journal.stored = dict.fromkeys(range(10), WHOLE) | dict.fromkeys(range(10, 100), large)
    setup.load(*range(10))
    setup.disk.read()
    setup.load(10, 11, 12, 13, name="first")
    setup.load(12, name="third")
    setup.disk.read()
    assert setup.loaded == ["", "first", "third"]
    assert [index for index in range(10, 14) if setup.bodies(index, 0, 1)] == [10, 12]


def test_sequential_reader_is_read_ahead_in_growing_steps(setup: Setup) -> None:
    setup.journal.stored = dict.fromkeys(range(2000), WHOLE)
    ahead, reads, index = ReadAhead(), [], 10
    for _ in range(7):
        setup.load(index, ahead=ahead)
        setup.disk.read()
        first = index
        while setup.bodies(index, 0, 1):
            index += 1
        reads.append(index - first)
    assert reads == [1, 4, 16, 64, 256, 512, 512]
    setup.load(1990, 1991, 1992, ahead=ahead)
    setup.disk.read()
    assert [setup.bodies(index, 0, 1) is None for index in (1989, 1992, 1993)] == [True, False, True]


def test_sequential_reader_waits_only_for_its_first_reads(setup: Setup) -> None:
    """Entries are read ahead of their use, once, and not if they are in memory."""
    setup.journal.stored = dict.fromkeys(range(4000), WHOLE)
    setup.journal.cached = dict.fromkeys(range(3000, 4000), WHOLE)
    ahead = ReadAhead()
    for index in range(10, 4000):
        if setup.bodies(index, 0, 1) is None:
            setup.load(index, ahead=ahead)
            setup.disk.read()
            assert setup.bodies(index, 0, 1) == [b"0"]
        if ahead.is_due(index):
            setup.entries.load_more(ahead)
            setup.disk.read()
    assert len(setup.loaded) == 2
    assert setup.disk.reads <= 2 * 2990 // READ_AHEAD_MAX
    assert len(setup.journal.requested) == len(set(setup.journal.requested)) == 2990


def test_random_reader_is_not_due_for_read_ahead(setup: Setup) -> None:
    setup.journal.stored = dict.fromkeys(range(100), WHOLE)
    ahead = ReadAhead()
    assert not ahead.is_due(10)
    for index in (10, 11):
        setup.load(index, ahead=ahead)
        setup.disk.read()
    assert [index for index in range(20) if ahead.is_due(index)] == [13, 14]


def test_entries_needed_in_any_order_are_read_once(setup: Setup) -> None:
    """Requeued messages lie behind newer messages; the entries after the last read are needed already (seed 25, 3
    nodes).
    """
    setup.journal.stored = dict.fromkeys(range(100), WHOLE)
    ahead = ReadAhead()
    for index in (5, 6):
        setup.load(index, ahead=ahead)
        setup.disk.read()
    setup.load(14, 13, 11, 12, 10, ahead=ahead)
    setup.disk.read()
    assert setup.loaded == [""] * 3
    assert len(setup.journal.requested) == len(set(setup.journal.requested))
    assert [index for index in range(10, 15) if setup.bodies(index, 0, 1)] == [*range(10, 15)]


def test_an_entry_without_batches_may_be_met_ahead(setup: Setup) -> None:
    setup.journal.stored = {7: WHOLE, 8: WHOLE, 9: b"\x01", 10: WHOLE}
    ahead = ReadAhead()
    for index in (7, 8):
        setup.load(index, ahead=ahead)
        setup.disk.read()
    assert setup.loaded == ["", ""]
    assert setup.bodies(10, 0, 1) == [b"0"]
    assert setup.failures == []


def test_sparse_entries_are_not_read_ahead(setup: Setup) -> None:
    """Each read ahead meets entries that are gone; to look for each of them alone would cost far more than it saves."""
    setup.journal.stored = dict.fromkeys(range(1000), WHOLE)
    live = range(5, 1000, 10)
    setup.journal.sparse = {index for index in range(1000) if index not in live}
    ahead = ReadAhead()
    for index in live:
        setup.load(index, ahead=ahead)
        setup.disk.read()
        assert setup.bodies(index, 0, 1) == [b"0"]
    assert len(setup.loaded) == len(live)
    assert setup.disk.reads <= 2 * len(live)


def test_requested_entry_is_read_although_read_ahead_is_pending(setup: Setup) -> None:
    setup.journal.stored = dict.fromkeys(range(7, 20), WHOLE)
    setup.journal.sparse = {11}
    ahead = ReadAhead()
    setup.load(7, ahead=ahead)
    setup.disk.read()
    setup.load(8, ahead=ahead)
    setup.load(10, name="asked for")
    setup.disk.read()
    assert setup.loaded == ["", "", "asked for"]
    assert [setup.bodies(index, 0, 1) is None for index in (8, 9, 10)] == [False, True, False]


def test_read_ahead_skips_cached_and_missing_entries(setup: Setup) -> None:
    setup.journal.stored = dict.fromkeys(range(200), WHOLE)
    setup.journal.cached = {103: WHOLE}
    ahead = ReadAhead()
    for index in (100, 101, 199):
        setup.load(index, ahead=ahead)
        setup.disk.read()
    setup.journal.cached.clear()
    assert [index for index in range(95, 200) if setup.bodies(index, 0, 1)] == [100, 101, 102, 199]


def test_empty_compacted_entry_is_requested_once(setup: Setup) -> None:
    """Its file is there, so it looks as if it was there, too: it was asked for again and again."""
    setup.journal.stored = dict.fromkeys(range(5, 10), WHOLE)
    setup.journal.sparse = {7}
    setup.load(6, 7)
    setup.load(7, name="gone")
    setup.disk.read()
    assert setup.loaded == ["", "gone"]
    assert setup.disk.reads == 3  # together, and each alone
    assert setup.bodies(6, 0, 1) == [b"0"]


def large(*fragments: bytes, at: int = 50) -> tuple[bytes, dict[int, bytes], list[Fragment]]:
    """The entry that joins fragments, those of the fragments, and where these are."""
    requested = [Enqueue(1, 1, 1, "x", "k", False, 1), JoinFragments(1), Enqueue(1, 1, 2, "x", "k", False, 1)]
    joined = make_entry(1, [make_batch("n1", 1, 1, encode_batch(requested, [b"a", b"begins-", b"c"]))])
    stored = {
        at + number: make_entry(1, [make_batch("n1", 1, 1, encode_batch([StoreFragment(1)], [fragment]))])
        for number, fragment in enumerate(fragments)
    }
    return joined, stored, [Fragment(index, 0, 1) for index in stored]


def test_large_message_in_memory_is_returned_at_once(setup: Setup) -> None:
    joined, stored, fragments = large(b"goes-on-", b"ends")
    setup.journal.cached = {90: joined, **stored}
    setup.fragments = {90: {1: fragments}}
    assert setup.entries.messages(Range(90, 0, 3)) == [
        Messages("x", "k", 1, [b"a"]),
        Messages("x", "k", 1, [b"begins-goes-on-ends"]),
        Messages("x", "k", 1, [b"c"]),
    ]
    assert setup.entries.messages(Range(90, 2, 1)) == [Messages("x", "k", 1, [b"c"])]


@pytest.mark.parametrize("kept", [False, True])
def test_a_large_message_on_disk_is_read_first(
    setup: Setup, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no room for all of it among the entries that are kept decoded."""
    monkeypatch.setattr(entries_module, "VIEWS_BYTES_MAX", 1000)
    content = [bytes([number]) * 300 for number in range(30)]
    joined, stored, fragments = large(*content)
    if kept:
        [view] = batches_of(joined)
        joined = make_compacted({0: keep(joined[view.start : view.end], [(1, 1)])})
    setup.journal.stored = {90: joined, **stored}
    setup.fragments = {90: {1: fragments}}
    found: list[list[bytes] | None] = []

    def attempt() -> None:
        found.append(setup.bodies(90, 1, 1))
        if found[-1] is None:
            setup.entries.load([90], attempt)

    attempt()
    setup.entries.load([90], attempt)  # a second consumer, called at the same time
    setup.disk.read()
    assert [each for each in found if each is not None] == [[b"begins-" + b"".join(content)]] * 2
    assert not setup.entries._gathered
    assert not setup.entries._lacking
    assert setup.disk.reads < len(content)


def test_large_messages_leave_no_reference_cycle(setup: Setup) -> None:
    """A circle would stay until memory is short, and grow with each message by all of it."""
    joined, stored, fragments = large(b"goes-on-", b"ends")
    setup.journal.cached = {90: joined}
    setup.journal.stored = stored
    setup.fragments = {90: {1: fragments}}
    found = [setup.bodies(90, 1, 1)]
    gc.collect()
    gc.disable()
    try:
        setup.entries.load([90], lambda: found.append(setup.bodies(90, 1, 1)))
        setup.disk.read()
        in_circles = gc.collect()
    finally:
        gc.enable()
    assert found == [None, [b"begins-goes-on-ends"]]
    assert in_circles == 0


def test_two_large_messages_of_an_entry(setup: Setup) -> None:
    """A consumer waits for the fragments of the first message when a second consumer begins to wait for the second."""
    requested = [JoinFragments(1), Enqueue(1, 1, 1, "", "q", False, 1)] * 2
    setup.journal.stored[90] = make_entry(
        1, [make_batch("n1", 1, 1, encode_batch(requested, [b"one-", b"other-"]))]
    )
    setup.fragments[90] = {}
    for slot, at in enumerate((50, 60)):
        _, stored, setup.fragments[90][slot] = large(b"%d" % at, b"-ends", at=at)
        setup.journal.stored |= stored
    found: dict[int, list[bytes] | None] = {}

    def attempt(slot: int) -> None:
        found[slot] = setup.bodies(90, slot, 1)
        if found[slot] is None:
            setup.entries.load([90], partial(attempt, slot))

    setup.load(90)
    setup.disk.read()
    attempt(0)
    attempt(1)
    setup.disk.read()
    assert found == {0: [b"one-50-ends"], 1: [b"other-60-ends"]}


def test_large_messages_of_an_entry_are_taken_individually(setup: Setup) -> None:
    """Together they may be as much as a node's clients have ever sent at once."""
    setup.fragments[90] = {slot: [] for slot in (1, 2, 7, 9)}
    setup.fragments[91] = {0: []}
    portions: list[int] = []
    slot = 0
    while slot < 9:
        portions.append(setup.entries.portion(Range(90, slot, 9 - slot)))
        slot += portions[-1]
    assert portions == [2, 1, 5, 1]
    assert setup.entries.portion(Range(92, 0, 9)) == 9


def test_beginning_of_a_large_message_is_read_without_fragments(setup: Setup) -> None:
    setup.journal.cached[90], _, fragments = large(b"goes-on-", b"ends")
    setup.fragments = {90: {1: fragments}}
    [stored] = setup.entries.messages(Range(90, 1, 1), frames_max=0) or []
    assert stored.messages == [b"begins-"]
    assert setup.entries.messages(Range(90, 1, 1)) is None


@pytest.mark.parametrize(("octets", "count"), [(1, 1), (8, 1), (9, 2), (12, 2), (13, 3), (99, 3)])
def test_first_octets_of_a_large_message_need_few_fragments(setup: Setup, octets: int, count: int) -> None:
    parts = [b"goes-on-", b"and ", b"ends"]
    joined, stored, places = large(*parts)
    fragments = [place._replace(size=len(part)) for place, part in zip(places, parts, strict=True)]
    setup.fragments = {90: {1: fragments}}
    expected = b"begins-" + b"".join(parts[:count])
    setup.journal.cached = {90: joined} | dict(list(stored.items())[:count])  # only these are in memory
    [found] = setup.entries.messages(Range(90, 1, 1), frames_max=octets) or []
    assert found.messages == [expected]


def test_first_octets_of_a_large_message_are_read(setup: Setup) -> None:
    parts = [b"goes-on-", b"and ", b"ends"]
    joined, setup.journal.stored, places = large(*parts)
    setup.journal.cached = {90: joined}
    setup.fragments = {90: {1: [place._replace(size=len(p)) for place, p in zip(places, parts, strict=True)]}}
    found: list[list[bytes]] = []

    def take() -> None:
        found.extend(each.messages for each in setup.entries.messages(Range(90, 1, 1), frames_max=8) or [])

    take()
    setup.entries.load([90], take)
    setup.disk.read()
    assert found == [[b"begins-goes-on-"]]


@pytest.mark.parametrize("how", ["no reference", "compacted"])
def test_large_message_with_missing_fragments_raises(setup: Setup, how: str) -> None:
    joined, stored, fragments = large(b"goes-on-", b"ends")
    setup.journal.stored = {90: joined, **stored}
    if how == "compacted":
        setup.journal.sparse = {51}
        setup.fragments = {90: {1: fragments}}
    missing: list[str] = []

    def attempt() -> None:
        try:
            if setup.bodies(90, 1, 1) is None:
                setup.entries.load([90], attempt)
        except MessagesGone as error:
            missing.append(str(error))

    attempt()
    setup.disk.read()
    assert len(missing) == 1
    assert setup.failures == []


def test_large_message_of_a_deleted_queue_raises(setup: Setup) -> None:
    joined, stored, fragments = large(b"goes-on-", b"ends")
    setup.journal.stored = {90: joined, **stored}
    setup.fragments = {90: {1: fragments}}
    setup.load(90)
    setup.disk.read()
    assert setup.bodies(90, 1, 1) is None
    setup.fragments.clear()
    setup.load(90)
    with pytest.raises(MessagesGone):
        setup.bodies(90, 1, 1)


def test_messages_of_a_compacted_entry(setup: Setup) -> None:
    setup.journal.stored = {7: KEPT}
    setup.load(7)
    setup.disk.read()
    assert setup.entries.messages(Range(7, SECOND | 1, 1, 0)) == [Messages("x", "k", 1, [b"1"])]
    assert setup.entries.messages(Range(7, SECOND | 2, 2, 0)) == [Messages("y", "l", 2, [b"2", b"3"])]
    assert setup.bodies(7, SECOND | 3, 1) == [b"3"]


@pytest.mark.parametrize(
    ("slot", "count"), [(SECOND, 1), (SECOND | 3, 2), (SECOND | 4, 1), (0, 1), (2 << MESSAGE_BITS, 1)]
)
def test_messages_dropped_by_compaction_raise(setup: Setup, slot: int, count: int) -> None:
    setup.journal.stored = {7: KEPT}
    setup.load(7)
    setup.disk.read()
    with pytest.raises(MessagesGone):
        setup.bodies(7, slot, count)


def test_a_batch_that_was_kept_whole(setup: Setup) -> None:
    setup.journal.cached[7] = make_compacted({3: payload(*BODIES)})
    assert setup.bodies(7, 3 << MESSAGE_BITS | 1, 1) == [b"1"]


def test_a_file_that_was_replaced_while_it_was_read(setup: Setup) -> None:
    setup.journal.stored = {6: WHOLE, 7: WHOLE}
    setup.load(7, 6, name="first")
    setup.journal.replace({7: KEPT})
    setup.load(7, name="second")
    setup.disk.read()
    assert setup.loaded == ["first", "second"]
    assert setup.disk.reads == 3
    assert setup.bodies(7, SECOND | 1, 1) == [b"1"]
    assert setup.failures == []


def test_missing_entry_raises_after_it_was_requested(setup: Setup) -> None:
    missing: list[int] = []

    def used() -> None:
        with pytest.raises(MessagesGone):
            setup.bodies(7, 0, 1)
        missing.append(7)

    setup.journal.stored = {8: WHOLE}
    setup.entries.load([7, 8], used)
    assert missing == []
    setup.disk.read()
    assert missing == [7]
    assert setup.bodies(8, 0, 1) == [b"0"]


def test_an_entry_that_comes_back_is_found(setup: Setup) -> None:
    setup.load(7)
    setup.disk.read()
    assert setup.bodies(7, 0, 1) is None
    setup.journal.stored = {7: WHOLE}
    setup.load(7)
    setup.disk.read()
    assert setup.bodies(7, 0, 1) == [b"0"]


def test_damage_is_a_failure_of_the_node(setup: Setup) -> None:
    setup.journal.stored = {7: WHOLE}
    setup.journal.error = CorruptJournal("file", 0, "damaged")
    setup.load(7)
    setup.disk.read()
    assert setup.failures == [setup.journal.error]
    assert setup.loaded == []


def decoded(entry: bytes, batches: int = 1) -> entries_module._View:
    """Return the view of an entry after its first batches were requested."""
    view = entries_module._view(entry)
    for ordinal in range(batches):
        view.messages(ordinal * SECOND, 1)
    return view


@pytest.mark.parametrize(
    ("batches", "pieces", "messages"), [(1, 1, 1), (10, 1, 1), (1, 10, 1), (1, 1, 1000), (3, 5, 100)]
)
def test_size_of_a_view_is_its_memory(batches: int, pieces: int, messages: int) -> None:
    """Once only payloads counted: 32 MiB of small entries took 430 MB."""
    publishes = [
        Enqueue(session, 1, messages, "x", f"key{session}", 0, 1) for session in range(1, pieces + 1)
    ]
    batch = encode_batch(publishes, [b"x" * 40] * (pieces * messages))
    entry = make_entry(1, [make_batch("n1", 1, number, batch) for number in range(1, batches + 1)])
    copies = [bytes(bytearray(entry)) for _ in range(50)]
    tracemalloc.start()
    views = [decoded(copy, batches) for copy in copies]
    memory = tracemalloc.get_traced_memory()[0] / len(copies) + len(entry)
    tracemalloc.stop()
    assert 0.9 * memory < views[0].size < 1.3 * memory


def test_views_are_limited_when_they_are_decoded(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that were read ahead, with many pieces, took eight times the limit after they were decoded."""
    batch = encode_batch([Enqueue(1, 1, 1, "x", f"key{number}", 0, 1) for number in range(50)], [b"x"] * 50)
    entry = make_entry(1, [make_batch("n1", 1, 1, batch)])
    limit = 4 * entries_module._view(entry).size
    monkeypatch.setattr(entries_module, "VIEWS_BYTES_MAX", limit)
    setup.journal.stored = dict.fromkeys(range(1, 5), entry)
    setup.load(1, 2, 3, 4)
    setup.disk.read()
    assert len(setup.entries._views) == 4
    assert setup.bodies(1, 0, 1) == setup.bodies(1, 1, 1) == [b"x"]
    assert len(setup.entries._views) == 1, "the entry takes more than the limit by itself"


def test_views_are_limited_by_their_bytes(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries_module, "VIEWS_BYTES_MAX", 2 * decoded(WHOLE).size)
    setup.journal.stored = dict.fromkeys(range(1, 10), WHOLE)
    for index in (1, 2, 3):
        setup.load(index)
        # Meanwhile it is found in memory, so it arrives a second time.
        setup.journal.cached[index] = WHOLE
        assert setup.bodies(index, 0, 1) == [b"0"]
        setup.disk.read()
    setup.journal.cached.clear()
    assert setup.bodies(1, 0, 1) is None
    assert setup.bodies(2, 0, 1) == setup.bodies(3, 0, 1) == [b"0"]
