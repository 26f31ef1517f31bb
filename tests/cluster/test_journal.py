"""The log as pysyncobj and the engine use it, on the simulated disk."""

from __future__ import annotations

import errno
from collections import deque
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.transport import Transport

from chaos.sim.disk import SimulatedDisk
from cluster.journal import JournalMisuseError, SegmentedJournal
from cluster.segment import (
    RECORD_HEADER_BYTES,
    CorruptJournal,
    EntryGone,
    ForeignJournal,
    UnknownFormat,
    segment_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable

IDENTITY = b"cluster/0"
KIB = 1024


class Agenda:
    """A world without a clock: what was scheduled runs when the test says so, in order."""

    def __init__(self) -> None:
        self._due: deque[Callable[[], None]] = deque()

    def schedule(self, _delay_s: float, callback: Callable[[], None]) -> None:
        self._due.append(callback)

    def step(self) -> None:
        if self._due:
            self._due.popleft()()

    def run(self) -> None:
        while self._due:
            self.step()


class Node:
    """A disk and the journals opened on it."""

    def __init__(self, seed: int = 0, **options: int) -> None:
        self.agenda = Agenda()
        self.disk = SimulatedDisk(Random(seed), self.agenda.schedule)
        self.options = {"segment_bytes": 400, **options}
        self.failures: list[Exception] = []
        self.journal = self.open()

    def open(self, identity: bytes = IDENTITY) -> SegmentedJournal:
        self.journal = SegmentedJournal(self.disk, "log", identity, self.failures.append, **self.options)
        return self.journal

    def add(self, count: int, term: int = 1, size: int = 20) -> None:
        if self.journal.getCurrentTerm() < term:
            self.journal.setCurrentTerm(term, None)
        for index in range(self.journal.last_index + 1, self.journal.last_index + 1 + count):
            self.journal.add(payload_of(index, term, size), index, term)

    def sync(self) -> None:
        self.journal.start_sync(lambda: None)
        self.agenda.run()

    def files(self) -> list[str]:
        return [name for name in self.disk.list_directory("log") if name.endswith(".segment")]


def payload_of(index: int, term: int, size: int = 20) -> bytes:
    return f"{index}:{term}:".encode().ljust(size, b".")


def contents(journal: SegmentedJournal) -> list[tuple[bytes, int, int]]:
    return list(iter(journal[0 : len(journal)]))


# What pysyncobj sees


def test_an_empty_log_has_no_entries_and_takes_the_first_of_any_index() -> None:
    node = Node()
    assert len(node.journal) == 0
    with pytest.raises(IndexError):
        node.journal[-1]
    node.journal.add(b"snapshot", 41, 3)
    assert (node.journal.first_index, node.journal.last_index, len(node.journal)) == (41, 41, 1)


def test_pysyncobj_starts_on_it_and_adds_the_first_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    monkeypatch.setattr("pysyncobj.syncobj.createJournal", lambda _path: node.journal)  # pyright: ignore[reportUnknownLambdaType]
    conf = SyncObjConf(journalFile=node.journal, autoTick=False)
    alone = SyncObj("a:1", [], conf, transport=Transport(None, None, set()))
    assert tuple(node.journal[-1]) == (b"\x01", 1, 0)
    alone.destroy()


def test_entries_are_found_by_position_from_both_ends_before_and_after_a_restart() -> None:
    node = Node()
    node.add(30)
    node.add(5, term=2)
    node.sync()
    for journal in (node.journal, node.open()):
        assert [journal[at][1] for at in (0, 7, -1, -35)] == [1, 8, 35, 1]
        assert (journal[-1][2], journal[29][2], journal[30][2]) == (2, 1, 2)
        assert journal[9][0] == payload_of(10, 1)
        assert tuple(journal[9]) == (payload_of(10, 1), 10, 1)
        assert journal[9] == (payload_of(10, 1), 10, 1)
        assert journal[9] != (payload_of(10, 1), 10, 2)
        with pytest.raises(IndexError):
            journal[35]


def test_an_open_ended_slice_is_bounded_by_bytes() -> None:
    node = Node(slice_bytes=10 * KIB, segment_bytes=25 * KIB)
    node.add(100, size=KIB)
    part = node.journal[20:]
    assert len(part) == 10 * KIB // (KIB + RECORD_HEADER_BYTES)
    assert [entry[1] for entry in part] == list(range(21, 21 + len(part)))
    assert (part[0][1], part[-1][1]) == (21, 20 + len(part))
    assert [entry[1] for entry in part[:3]] == [21, 22, 23]
    assert [entry[1] for entry in reversed(part[1:3])] == [23, 22]


def test_a_bounded_slice_goes_on_in_the_next_segment() -> None:
    node = Node(slice_bytes=8 * 60, segment_bytes=200)
    node.add(50)
    assert [len(node.journal[start:]) for start in range(5)] == [8, 8, 8, 8, 8]


def test_a_slice_of_large_entries_shows_that_something_follows_the_first() -> None:
    node = Node(slice_bytes=10)
    node.add(5)
    assert [len(node.journal[start:]) for start in range(6)] == [2, 2, 2, 2, 1, 0]
    assert not node.journal[5:]


def test_a_closed_slice_is_not_bounded_and_reads_what_left_the_cache() -> None:
    node = Node(slice_bytes=100, cache_bytes=500)
    node.add(60)
    node.sync()
    assert node.journal.payload(1) is None
    assert node.journal.payload(60) == payload_of(60, 1)
    assert contents(node.journal) == [(payload_of(index, 1), index, 1) for index in range(1, 61)]


def test_an_entry_must_follow_the_last_one() -> None:
    node = Node()
    node.add(3)
    for index in (3, 5):
        with pytest.raises(JournalMisuseError):
            node.journal.add(b"x", index, 1)
    assert node.journal.last_index == 3


def test_deleting_from_the_end_and_the_start_is_what_a_list_would_do() -> None:
    node = Node()
    node.add(40)
    node.sync()
    node.journal.deleteEntriesFrom(33)
    node.add(2, term=2)
    node.journal.deleteEntriesTo(10)
    assert (node.journal.first_index, node.journal.last_index, len(node.journal)) == (11, 35, 25)
    assert (node.journal[0][1], node.journal[-1][2]) == (11, 2)
    with pytest.raises(EntryGone):
        node.journal.term_at(10)
    expected = contents(node.journal)
    assert segment_name(1) in node.files()
    node.sync()
    assert segment_name(1) not in node.files()
    again = node.open()
    assert again.first_index <= 11
    assert contents(again)[11 - again.first_index :] == expected


def test_keep_tail_protects_what_does_not_conflict() -> None:
    node = Node()
    node.add(5)
    node.journal.keep_tail = True
    node.journal.deleteEntriesFrom(2)
    assert node.journal.last_index == 5
    node.journal.keep_tail = False
    node.journal.deleteEntriesFrom(2)
    assert node.journal.last_index == 2


def test_clear_removes_every_file_and_the_log_may_begin_elsewhere() -> None:
    node = Node()
    node.add(40)
    node.sync()
    node.journal.clear()
    assert len(node.journal) == 0
    node.journal.add(b"a", 99, 1)
    node.journal.add(b"b", 100, 1)
    assert node.journal.synced_index == 0
    node.sync()
    assert node.files() == [segment_name(99)]
    assert contents(node.open()) == [(b"a", 99, 1), (b"b", 100, 1)]


# Term and vote


def test_term_and_vote_are_durable_at_once() -> None:
    node = Node()
    node.journal.setCurrentTerm(7, "b")
    node.disk.crash(power_loss=True)
    assert (node.open().getCurrentTerm(), node.journal.getVotedForNodeId()) == (7, "b")
    node.journal.setCurrentTerm(8, None)
    node.disk.crash(power_loss=True)
    assert (node.open().getCurrentTerm(), node.journal.getVotedForNodeId()) == (8, None)


def test_a_damaged_term_is_an_error_and_never_term_zero() -> None:
    node = Node()
    node.journal.setCurrentTerm(7, "b")
    for bit in range(len(node.disk.read_file("log/hardstate")) * 8):
        node.disk.flip_bit("log/hardstate", bit)
        with pytest.raises(CorruptJournal, match="log/hardstate"):
            node.open()
        node.disk.flip_bit("log/hardstate", bit)


def test_a_lost_term_is_an_error_when_the_log_knows_of_one() -> None:
    node = Node()
    node.add(1, term=3)
    node.sync()
    node.disk.remove("log/hardstate")
    with pytest.raises(CorruptJournal, match="term 0 is below the log's term 3"):
        node.open()


def test_a_term_that_cannot_be_stored_is_not_taken() -> None:
    node = Node()
    node.disk.full = True
    with pytest.raises(OSError, match="No space"):
        node.journal.setCurrentTerm(1, "a")
    assert node.journal.getCurrentTerm() == 0
    assert len(node.failures) == 1


def test_the_commit_index_is_kept_in_memory_only() -> None:
    node = Node()
    assert node.journal.getRaftCommitIndex() == 1
    node.journal.setRaftCommitIndex(5)
    assert node.journal.getRaftCommitIndex() == 5


# Group commit


def test_nothing_counts_as_synced_before_the_disk_says_so() -> None:
    node = Node()
    node.add(3)
    done: list[bool] = []
    assert node.journal.dirty
    node.journal.start_sync(lambda: done.append(True))
    node.add(2)
    assert (node.journal.synced, node.journal.synced_index, node.journal.sync_in_flight) == (0, 0, True)
    with pytest.raises(JournalMisuseError):
        node.journal.start_sync(lambda: None)
    node.agenda.run()
    assert done
    assert (node.journal.synced, node.journal.synced_index, node.journal.dirty) == (3, 3, True)
    node.sync()
    assert (node.journal.synced_index, node.journal.dirty) == (5, False)


def test_entries_waiting_for_the_disk_can_be_read() -> None:
    node = Node(cache_bytes=0)
    node.add(3)
    node.journal.start_sync(lambda: None)
    node.add(3)
    assert node.journal.read_job(range(1, 7))() == [payload_of(index, 1) for index in range(1, 7)]
    node.agenda.run()
    assert node.journal.payload(3) is None
    assert node.journal.read(3) == payload_of(3, 1)


def test_a_sync_in_flight_does_not_vouch_for_entries_that_replaced_its_own() -> None:
    node = Node()
    node.add(4)
    node.sync()
    node.add(4)
    node.journal.start_sync(lambda: None)
    node.journal.deleteEntriesFrom(5)
    node.add(6, term=2)
    node.agenda.run()
    assert node.journal.synced_index == 5
    node.disk.crash(power_loss=True)
    assert contents(node.open())[:5] == [(payload_of(index, 1), index, 1) for index in range(1, 6)]


def test_a_truncation_of_synced_entries_lowers_the_synced_index_at_once() -> None:
    node = Node()
    node.add(20)
    node.sync()
    node.journal.start_sync(lambda: None)
    node.journal.deleteEntriesFrom(2)
    assert node.journal.synced_index == 2
    node.add(1, term=2)
    node.agenda.run()
    assert node.journal.synced_index == 2
    node.sync()
    assert node.journal.synced_index == 3


@pytest.mark.parametrize("fault", ["sync", "space"])
def test_after_a_failure_nothing_is_ever_synced(fault: str) -> None:
    node = Node()
    node.add(3)
    node.sync()
    node.add(3)
    if fault == "sync":
        node.disk.fail_next_sync()
    node.disk.full = fault == "space"
    done: list[bool] = []
    node.journal.start_sync(lambda: done.append(True))
    node.agenda.run()
    assert [type(error) for error in node.failures] == [OSError]
    node.disk.full = False
    with pytest.raises(JournalMisuseError):
        node.journal.start_sync(lambda: done.append(True))
    assert not done
    assert (node.journal.synced_index, node.journal.sync_in_flight) == (3, True)
    node.disk.crash(power_loss=False)
    assert contents(node.open())[:3] == [(payload_of(index, 1), index, 1) for index in range(1, 4)]


def test_sync_now_makes_everything_durable_and_raises_what_the_disk_says() -> None:
    node = Node()
    node.add(3)
    node.journal.sync_now()
    node.disk.crash(power_loss=True)
    assert len(node.open()) == 3
    node.add(1)
    node.disk.fail_next_sync(errno.EIO)
    with pytest.raises(OSError):
        node.journal.sync_now()
    assert node.failures


# Reading while writing


def test_a_read_job_says_so_when_its_entry_was_deleted_meanwhile() -> None:
    node = Node(cache_bytes=0)
    node.add(30)
    node.sync()
    from_the_tail = node.journal.read_job([29, 30])
    from_the_start = node.journal.read_job([1, 2])
    node.journal.deleteEntriesFrom(28)
    node.add(2, term=2)
    node.journal.deleteEntriesTo(15)
    node.sync()
    for job in (from_the_tail, from_the_start):
        with pytest.raises(EntryGone):
            job()


def test_reads_come_in_the_order_asked_for_from_cache_and_disk() -> None:
    node = Node(cache_bytes=1000)
    node.add(30)
    node.sync()
    wanted = [30, 3, 4, 5, 29, 12, 3]
    assert node.journal.read_job(wanted)() == [payload_of(index, 1) for index in wanted]


def test_damage_found_while_reading_names_file_and_offset() -> None:
    node = Node(cache_bytes=0)
    node.add(3)
    node.sync()
    node.disk.flip_bit(f"log/{segment_name(1)}", (60 + RECORD_HEADER_BYTES) * 8)
    with pytest.raises(
        CorruptJournal, match=rf"log/{segment_name(1)}: offset \d+: wrong checksum of entry 1;"
    ):
        node.journal.read(1)


# Opening


def test_left_over_temporary_files_are_removed() -> None:
    node = Node()
    node.disk.open("log/hardstate.tmp", create=True).append([b"half"])
    node.open()
    assert "hardstate.tmp" not in node.disk.list_directory("log")


def test_a_missing_segment_is_corruption() -> None:
    node = Node()
    node.add(60)
    node.sync()
    node.disk.remove(f"log/{node.files()[1]}")
    with pytest.raises(CorruptJournal, match="gap in the log: it ends before index 7"):
        node.open()


def test_a_file_that_only_looks_like_a_segment_is_refused() -> None:
    node = Node()
    node.disk.open("log/12.segment", create=True)
    with pytest.raises(CorruptJournal, match=r"log/12\.segment"):
        node.open()


def test_the_log_of_another_group_is_refused() -> None:
    node = Node()
    node.journal.setCurrentTerm(1, None)
    with pytest.raises(ForeignJournal):
        node.open(b"cluster/1")
    node.disk.remove("log/hardstate")
    node.open()
    node.add(1, term=0)
    node.sync()
    with pytest.raises(ForeignJournal):
        node.open(b"cluster/1")


def test_errors_are_one_line() -> None:
    for error in (CorruptJournal("a", 1, "b"), UnknownFormat("a", 9), ForeignJournal("a")):
        assert "\n" not in str(error)
        assert str(error).startswith("a: ")


def test_the_start_of_the_log_goes_only_when_what_remains_is_durable() -> None:
    for seed in range(60):
        node = Node(seed)
        node.add(6)
        node.sync()
        assert len(node.files()) == 1
        node.add(6)
        node.journal.deleteEntriesTo(8)
        node.journal.start_sync(lambda: None)
        node.disk.crash(power_loss=True)
        assert node.open().last_index >= 6


def test_a_crash_within_a_long_deletion_leaves_no_gap() -> None:
    for seed in range(60):
        node = Node(seed)
        node.add(40)
        node.sync()
        if seed % 2:
            node.journal.deleteEntriesFrom(2)
        else:
            node.journal.deleteEntriesTo(38)
        node.journal.start_sync(lambda: None)
        node.disk.crash(power_loss=True)
        node.open()
        assert node.journal.first_index == 1 or node.journal.last_index == 40


def test_a_crash_after_a_conflict_never_looks_like_corruption() -> None:
    for seed in range(200):
        node = Node(seed, segment_bytes=100_000)
        for term in range(1, 6):
            node.add(30, term, size=200)
            node.sync()
        node.journal.deleteEntriesFrom(20)
        node.add(60, term=6, size=170)
        node.journal.start_sync(lambda: None)
        node.disk.crash(power_loss=True)
        node.open()
        assert node.journal.read(20) == payload_of(20, 1, 200)


@pytest.mark.parametrize("filler", [b"", bytes(64), b"\xa5" * 64])
def test_a_tail_torn_at_any_byte_of_the_last_write_costs_no_synced_entry(filler: bytes) -> None:
    node = Node(segment_bytes=10_000)
    node.add(4)
    node.sync()
    path = f"log/{segment_name(1)}"
    durable = len(node.disk.read_file(path))
    node.add(3)
    node.sync()
    whole = node.disk.read_file(path)
    for cut in range(durable, len(whole)):
        node.disk.replace_file(path, whole[:cut] + filler)
        journal = node.open()
        kept = 4 + (cut - durable) // (RECORD_HEADER_BYTES + 20)
        assert contents(journal) == [(payload_of(index, 1), index, 1) for index in range(1, kept + 1)]
        assert journal.synced_index == kept
        assert len(node.disk.read_file(path)) == durable + (kept - 4) * (RECORD_HEADER_BYTES + 20)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=6), st.data())
def test_any_flipped_bit_of_what_is_known_durable_is_reported(
    batches: list[int], data: st.DataObject
) -> None:
    node = Node()
    for count in batches:
        node.add(count)
        node.sync()
    before_last = node.journal[-batches[-1]][1]
    image: list[tuple[str, int]] = []
    for name in node.files():
        size = len(node.disk.read_file(f"log/{name}"))
        image.append((f"log/{name}", size))
    last_path, _ = image[-1]
    if int(last_path[4:24]) < before_last:
        # The last batch begins in the last file and vouches for what is below it there.
        claimed = node.journal._segments[-1].extent(before_last)[0]
        image[-1] = (last_path, claimed)
    else:
        image.pop()
    path, size = data.draw(st.sampled_from(image)) if image else ("", 0)
    if path:
        node.disk.flip_bit(path, data.draw(st.integers(0, size * 8 - 1)))
        with pytest.raises(CorruptJournal, match=path):
            node.open()


# Against an oracle


class State(NamedTuple):
    """The log after a number of changes, as plain data."""

    entries: dict[int, tuple[bytes, int]]
    first: int


class Oracle:
    """Remembers every state of the log since the last restart."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.states: dict[int, State] = {}
        self.note()

    def note(self) -> None:
        journal = self.node.journal
        entries = {index: (payload, term) for payload, index, term in contents(journal)}
        self.states[journal.written] = State(entries, journal.first_index)

    def check_reopened(self, journal: SegmentedJournal, synced: int, written: int) -> None:
        """What came back is a state since the last sync, or lies between two of them.

        Entries deleted at the start may come back; a long deletion at the end may have been done in part.
        """
        found = {index: (payload, term) for payload, index, term in contents(journal)}
        candidates = [self.states[at] for at in range(synced, written + 1) if at in self.states]
        assert any(
            _same(found, state) or (following and _between(found, state, following))
            for state, following in zip(candidates, [*candidates[1:], None], strict=True)
        ), (found, candidates)


def _same(found: dict[int, tuple[bytes, int]], state: State) -> bool:
    if not state.entries:
        return not found
    return {index: found[index] for index in found if index >= state.first} == state.entries


def _between(found: dict[int, tuple[bytes, int]], state: State, following: State) -> bool:
    """Part of the entries that the next change deletes at the end are gone."""
    kept = {index: entry for index, entry in found.items() if index >= state.first}
    remaining = len(following.entries) if following.entries.items() <= state.entries.items() else None
    return (
        remaining is not None
        and kept.items() <= state.entries.items()
        and len(kept) >= remaining
        and following.entries.items() <= found.items()
        and list(kept) == list(range(state.first, state.first + len(kept)))
    )


KINDS = ["add"] * 8 + ["sync"] * 6 + ["step"] * 5 + ["from"] * 4 + ["to"] * 2 + ["clear", "kill", "power"]
OPERATIONS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 12)), min_size=10, max_size=60)


class Story:
    """Random changes and crashes, with the oracle looking on."""

    def __init__(self, seed: int) -> None:
        self.node = Node(seed, segment_bytes=200, cache_bytes=700, slice_bytes=150)
        self.oracle = Oracle(self.node)
        self.term = 1

    def do(self, kind: str, argument: int) -> None:
        node, journal = self.node, self.node.journal
        match kind:
            case "add":
                for _ in range(argument):
                    node.add(1, self.term, size=10 + argument * 7)
                    self.oracle.note()
            case "from":
                journal.deleteEntriesFrom(max(0, len(journal) - argument))
                self.term += 1
            case "to":
                journal.deleteEntriesTo(min(argument, len(journal)))
            case "clear":
                journal.clear()
            case "sync":
                if journal.dirty and not journal.sync_in_flight:
                    journal.start_sync(lambda: None)
            case "step":
                node.agenda.step()
            case _:
                self.restart(power_loss=kind == "power")
        self.oracle.note()

    def restart(self, *, power_loss: bool) -> None:
        journal = self.node.journal
        promised = [entry for entry in contents(journal) if entry[1] <= journal.synced_index]
        self.node.disk.crash(power_loss=power_loss)
        reopened = self.node.open()
        self.oracle.check_reopened(reopened, journal.synced, journal.written)
        assert set(promised) <= set(contents(reopened))
        assert reopened.synced_index == reopened.last_index
        self.oracle = Oracle(self.node)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), OPERATIONS)
def test_a_reopened_log_is_one_that_there_was(seed: int, operations: list[tuple[str, int]]) -> None:
    story = Story(seed)
    for kind, argument in operations:
        story.do(kind, argument)
    story.restart(power_loss=True)
