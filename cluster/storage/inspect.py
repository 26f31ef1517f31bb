"""Inspection of a group's directory for an operator, while no node uses it (`qq inspect`).

Invariant: an inspection writes, repairs, cuts and removes no file. Damage to a file does not keep the rest from being
inspected. Sealed segments are read piece by piece, so a log is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from cluster.configuration.configuration import OtherVersion, Versions
from cluster.log.checkpoints import checkpoint_name, list_checkpoints, read_checkpoint
from cluster.log.hardstate import NAMES as HARD_STATE_NAMES
from cluster.log.hardstate import HardState, HardStateFile, StoredState, VoterStatus
from cluster.log.manifest import MANIFEST_NAME, Manifest, Row, is_segment_name, log_start
from cluster.log.manifest import load_copies as load_manifest_copies
from cluster.log.owned_directory import OwnedDirectory
from cluster.log.sealed_segment import load_index, open_file, records, verify
from cluster.log.segment import (
    RECORD_HEADER_BYTES,
    CorruptJournal,
    ForeignJournal,
    JournalError,
    Scan,
    Segment,
    UnknownFormat,
    path_in,
    read_at,
    scan_records,
)
from cluster.log.segment_reader import scan_open
from cluster.log.sync_mark import MARK_NAME, Mark, load_mark
from cluster.log.term_runs import TermRuns
from cluster.runtime.ports import TEMPORARY
from cluster.storage.directory import ASIDE_PREFIX, DAMAGE, INCOMING, OBSOLETE, moving_checkpoint
from cluster.storage.identity import FILE as IDENTITY_NAME
from cluster.storage.identity import MEMBER_FILE, START_FILES, Identity, Start, load_member_copies, load_start
from cluster.storage.identity import load_copies as load_identity_copies
from cluster.storage.paths import REMOVED

if TYPE_CHECKING:
    from cluster.runtime.ports import Disk

INDEX_MAX = 2**64 - 1

_LOG = "log"

DescribeState = Callable[[bytes], str]
"""Function that returns a line about the state in a checkpoint's body; raises ValueError for an unknown version."""


class Remedy(IntEnum):
    """How a problem gets solved, mostly by the node's next start; the worst is last."""

    SPARE = 1
    """The node repairs the problem by itself, from a second copy or by writing the file anew."""

    HEARING = 2
    """The node waits until every other member has reported its term, and then catches up (engine/rejoin.py)."""

    REPAIR = 3
    """The node sets its log aside and gets the log of the other nodes."""

    OPERATOR = 4
    """The node refuses to start until an operator has acted."""


class Problem(NamedTuple):
    what: str
    remedy: Remedy


class OwnerFound(NamedTuple):
    """Findings about the owner of the directory."""

    identity: Identity | None
    start: Start | None
    """Record of the last start; `None` if it is lost, and then the next start assumes lost writes."""
    problem: Problem | None


class HardStateFound(NamedTuple):
    """Findings about the two files of term, vote and voter status."""

    state: HardState | None
    copies: tuple[str, ...]
    """Condition of each of the two files: "ok", "older", "damaged", "missing" or "unreadable"."""

    problem: Problem | None


class ManifestFound(NamedTuple):
    present: bool
    problem: Problem | None


class LogFound(NamedTuple):
    """The log according to its manifest and its open segment."""

    first_index: int
    """Index of the first entry of the gapless log; the segments below it hold single entries."""

    last_index: int | None
    """Index of the last entry; 0 in an empty log, `None` if the open segment is damaged."""

    file_bytes: int
    """Total size of all segment files in bytes."""

    files: int
    """Number of segment files."""


class MarkFound(NamedTuple):
    """Findings about the sync mark, which records how much of the open segment was synced."""

    mark: Mark | None
    problem: Problem | None


class SegmentFound(NamedTuple):
    name: str
    kind: str
    """Kind of segment: "dense", "sparse" or "open"."""

    first: int
    end: int
    """Index after the last entry, or after the range of a sparse segment; equal to `first` in a damaged open
    segment."""

    entries: int | None
    file_bytes: int
    terms: tuple[int, int] | None
    """Terms of the first and the last entry; `None` if the segment is empty or its terms are unknown."""

    torn_bytes: int
    """Bytes of an interrupted write at the end of the open segment; the next start cuts them."""

    problem: Problem | None


class CheckpointFound(NamedTuple):
    name: str
    term: int | None
    file_bytes: int
    state: str
    problem: Problem | None


class Leftover(NamedTuple):
    """A file that is not in use, or that tells the next start something."""

    path: str
    file_bytes: int
    what: str
    problem: Problem | None = None


class OtherProblem(NamedTuple):
    """A problem outside of all other findings."""

    path: str
    problem: Problem


Finding = (
    OwnerFound
    | HardStateFound
    | ManifestFound
    | MarkFound
    | LogFound
    | SegmentFound
    | CheckpointFound
    | Leftover
    | OtherProblem
)


@dataclass(frozen=True, slots=True)
class EntryFound:
    index: int
    term: int
    payload: bytes


def inspect(
    disk: Disk, directory: str, describe_state: DescribeState, versions: Versions
) -> Iterator[Finding]:
    """Inspect everything in a group's directory, and yield each finding as soon as it is known.

    `versions` are the versions of the state that the program of the next start can run. If the owner of the directory
    is unknown, `OwnerFound` is the only finding, because the files of a directory cannot be checked without it. Raises
    OSError.
    """
    inspection = _Inspection(disk, directory, describe_state, versions)
    yield inspection.whose
    if inspection.whose.identity is not None:
        yield from inspection.findings()


def entries(
    disk: Disk, directory: str, first: int = 0, last: int = INDEX_MAX
) -> Iterator[EntryFound | OtherProblem]:
    """Yield the readable entries of the directory from index `first` to `last`. Raises OSError."""
    inspection = _Inspection(disk, directory, lambda _: "", None)
    whose = inspection.whose
    if whose.identity is None:
        yield OtherProblem(IDENTITY_NAME, whose.problem or _missing())
        return
    found, manifest = inspection.find_manifest()
    if found.problem is not None:
        yield OtherProblem(path_in(_LOG, MANIFEST_NAME), found.problem)
    if manifest is not None:
        yield from inspection.entries(manifest, first, last)


class _Inspection:
    def __init__(
        self, disk: Disk, directory: str, describe_state: DescribeState, versions: Versions | None
    ) -> None:
        """Without `versions`, the version of the directory is not checked."""
        self._disk = disk
        self._versions = versions
        self._directory = directory
        self._log = path_in(directory, _LOG)
        self._describe_state = describe_state
        self._names = disk.list_directory(directory)
        self._log_names = disk.list_directory(self._log) if _LOG in self._names else []
        self.whose = self._find_whose()
        owner = self.whose.identity.owner if self.whose.identity else None
        self._identity = owner.key() if owner else b""

    def findings(self) -> Iterator[Finding]:
        hard = self._find_hard_state()
        yield hard
        yield from self._find_member_trouble()
        found, manifest = self.find_manifest()
        empty = manifest is None or not manifest.names()
        if (
            not found.present
            and found.problem is None
            and hard.state
            and hard.state.voter_status is VoterStatus.VOTER
        ):
            found = found._replace(problem=_missing())
        yield found
        first_index, last_index = 0, None
        if manifest is not None:
            yield self._find_mark()
            opened, scan = self._find_open(manifest)
            first_index, last_index = _log_range(manifest, scan)
            if opened is not None and scan is None:
                last_index = None
            sizes = [row.file_bytes for row in manifest.sealed] + ([opened.file_bytes] if opened else [])
            yield LogFound(first_index, last_index, sum(sizes), len(sizes))
            for row in manifest.sealed:
                yield self._find_sealed(row)
            if opened is not None:
                yield opened
            yield from self._find_term_lost(hard, manifest, scan)
        if hard.state is None and hard.problem is None and not empty:
            what = "both are missing: term and vote are unknown"
            yield OtherProblem(" and ".join(HARD_STATE_NAMES), Problem(what, Remedy.HEARING))
        yield from self._find_checkpoints(first_index, last_index)
        yield from self._find_leftovers(manifest)

    def _find_whose(self) -> OwnerFound:
        if IDENTITY_NAME not in self._names:
            what = "the file is missing, so whose the directory is cannot be told"
            return OwnerFound(None, None, Problem(what, Remedy.SPARE))
        try:
            copies = load_identity_copies(self._disk, self._directory)
        except UnknownFormat as error:
            return OwnerFound(None, None, _problem(error))
        whole = [copy for copy in copies if copy is not None]
        if not whole:
            what = "both copies are damaged; if the directory is this node's, delete that file"
            return OwnerFound(None, None, Problem(what, Remedy.OPERATOR))
        try:
            start, bad = load_start(self._disk, self._directory, whole[0].owner)
        except (UnknownFormat, ForeignJournal) as error:
            return OwnerFound(whole[0], None, _problem(error))
        found, versions = whole[0].machine_version, self._versions
        if versions is not None and not versions.include(found):
            what = OtherVersion(self._directory, found, versions).what
            return OwnerFound(whole[0], start, Problem(what, Remedy.OPERATOR))
        if bad:
            what = f"{' and '.join(bad)}: damaged or missing; written anew"
            return OwnerFound(whole[0], start, Problem(what, Remedy.SPARE))
        return OwnerFound(whole[0], start, _half(len(whole)))

    def _find_member_trouble(self) -> Iterator[OtherProblem]:
        """Yield the problem with the member id, if any; a directory of release 0.1 has no member id yet."""
        if MEMBER_FILE not in self._names:
            return
        try:
            copies = load_member_copies(self._disk, self._directory, self._identity)
        except (UnknownFormat, ForeignJournal) as error:
            yield OtherProblem(MEMBER_FILE, _problem(error))
            return
        whole = [copy for copy in copies if copy is not None]
        if not whole:
            yield OtherProblem(
                MEMBER_FILE,
                Problem("both copies are damaged: which member this is, is lost", Remedy.OPERATOR),
            )
        elif (problem := _half(len(whole))) is not None:
            yield OtherProblem(MEMBER_FILE, problem)

    def _find_hard_state(self) -> HardStateFound:
        try:
            stored = HardStateFile(OwnedDirectory(self._disk, self._directory, self._identity)).load_copies()
        except (UnknownFormat, ForeignJournal) as error:
            return HardStateFound(None, ("unreadable",) * len(HARD_STATE_NAMES), _problem(error))
        latest = max((copy for copy in stored if copy is not None), key=_sequence, default=None)
        copies = tuple(
            self._copy_state(name, copy, latest) for name, copy in zip(HARD_STATE_NAMES, stored, strict=True)
        )
        if latest is not None:
            bad = [name for name, copy in zip(HARD_STATE_NAMES, copies, strict=True) if copy != "ok"]
            what = f"{' and '.join(bad)}: written anew from the other one"
            return HardStateFound(latest.state, copies, Problem(what, Remedy.SPARE) if bad else None)
        if "damaged" in copies:
            return HardStateFound(None, copies, Problem("term and vote are lost", Remedy.HEARING))
        return HardStateFound(None, copies, None)

    def _copy_state(self, name: str, copy: StoredState | None, latest: StoredState | None) -> str:
        if copy is None:
            return "damaged" if name in self._names else "missing"
        return "ok" if copy == latest else "older"

    # The log

    def find_manifest(self) -> tuple[ManifestFound, Manifest | None]:
        if MANIFEST_NAME not in self._log_names:
            segments = any(map(is_segment_name, self._log_names))
            return ManifestFound(present=False, problem=_missing() if segments else None), None
        path = path_in(self._log, MANIFEST_NAME)
        try:
            copies = load_manifest_copies(self._disk, path, self._identity)
        except (UnknownFormat, ForeignJournal) as error:
            return ManifestFound(present=True, problem=_problem(error)), None
        whole = [copy for copy in copies if copy is not None]
        if not whole:
            damaged = Problem("both copies are damaged", Remedy.REPAIR)
            return ManifestFound(present=True, problem=damaged), None
        return ManifestFound(present=True, problem=_half(len(whole))), whole[0]

    def _find_mark(self) -> MarkFound:
        try:
            mark = load_mark(self._disk, self._log, self._identity)
        except UnknownFormat as error:
            return MarkFound(None, _problem(error))
        if mark is not None:
            return MarkFound(mark, None)
        what = "damaged" if MARK_NAME in self._log_names else "missing"
        return MarkFound(None, Problem(f"the file is {what}; made anew at the next start", Remedy.SPARE))

    def _find_sealed(self, row: Row) -> SegmentFound:
        segment = Segment.sealed_file(*row[:4], sparse=row.sparse)
        found = SegmentFound(
            row.name,
            "sparse" if row.sparse else "dense",
            row.first,
            row.end,
            None,
            row.file_bytes,
            None,
            0,
            None,
        )
        path = path_in(self._log, row.name)
        size = self._size(path)
        if row.name in self._log_names and size != row.file_bytes:
            what = f"the file has {size} bytes instead of {row.file_bytes}"
            return found._replace(problem=Problem(what, Remedy.REPAIR))
        try:
            verify(self._disk, path, self._identity)
            index = load_index(self._disk, self._log, self._identity, segment)
        except JournalError as error:
            return found._replace(problem=_problem(error))
        terms = (index.runs[0][1], index.runs[-1][1]) if index.runs else None
        return found._replace(entries=len(index.offsets), terms=terms)

    def _find_open(self, manifest: Manifest) -> tuple[SegmentFound | None, Scan | None]:
        name, first = manifest.open_name, manifest.open_first
        if name is None:
            return None, None
        size = self._size(path_in(self._log, name))
        found = SegmentFound(name, "open", first, first, None, size, None, 0, None)
        try:
            opened = open_file(self._disk, path_in(self._log, name), self._identity)
            try:
                mark = load_mark(self._disk, self._log, self._identity)
                scan = scan_open(opened, manifest, mark, writes_lost=self._writes_lost())
            finally:
                opened.file.close()
        except JournalError as error:
            return found._replace(problem=_problem(error)), None
        terms = (scan.runs[0][1], scan.runs[-1][1]) if scan.runs else None
        index = scan.records
        found = found._replace(end=index.end, entries=len(index.offsets), terms=terms)
        return found._replace(torn_bytes=size - index.size), scan

    def _writes_lost(self) -> bool:
        """Return whether the next start must assume that unsynced writes are lost."""
        start = self.whose.start
        return start is None or start.writes_lost or start.boot_id != self._disk.boot_id()

    def _find_term_lost(
        self, hard: HardStateFound, manifest: Manifest, scan: Scan | None
    ) -> Iterator[OtherProblem]:
        terms = TermRuns(manifest.runs)
        terms.extend(scan.runs if scan else ())
        if hard.state is not None and hard.state.term < terms.last:
            what = f"term {hard.state.term} is below that of the last entry, {terms.last}: the files are old ones"
            yield OtherProblem(" and ".join(HARD_STATE_NAMES), Problem(what, Remedy.HEARING))

    # Checkpoints

    def _find_checkpoints(
        self, first_index: int, last_index: int | None
    ) -> Iterator[CheckpointFound | OtherProblem]:
        indexes = list_checkpoints(self._disk, self._log) if self._log_names else []
        found = [(index, self._find_checkpoint(index)) for index in indexes]
        whole = [index for index, checkpoint in found if checkpoint.problem is None]
        newest = max(whole, default=0)
        enough = newest >= first_index or first_index <= 1
        for index, checkpoint in found:
            problem = checkpoint.problem
            if problem is not None and problem.remedy is Remedy.SPARE and not enough:
                problem = problem._replace(remedy=Remedy.REPAIR)
            elif self._is_too_new(index, newest, last_index):
                problem = Problem(f"newer than the log, which ends with entry {last_index}", Remedy.REPAIR)
            yield checkpoint._replace(problem=problem)
        if not enough and not any(checkpoint.problem for _, checkpoint in found):
            what = f"no checkpoint is of entry {first_index} or later, where the log begins"
            yield OtherProblem(_LOG, Problem(what, Remedy.REPAIR))

    def _is_too_new(self, index: int, newest: int, last_index: int | None) -> bool:
        """Return whether this is the newest whole checkpoint and is newer than the log, which then has lost entries."""
        if last_index is None:
            return False
        # The checkpoint of a snapshot is moved into the log's directory before its segments.
        moving = moving_checkpoint(self._disk, path_in(self._directory, INCOMING))
        return index == newest > last_index and index != moving

    def _find_checkpoint(self, index: int) -> CheckpointFound:
        name = checkpoint_name(index)
        path = path_in(self._log, name)
        found = CheckpointFound(name, None, self._size(path), "", None)
        try:
            checkpoint = read_checkpoint(self._disk, path, self._identity)
        except CorruptJournal as error:
            return found._replace(problem=Problem(_without_path(error, error.path), Remedy.SPARE))
        except (UnknownFormat, ForeignJournal) as error:
            return found._replace(problem=_problem(error))
        if checkpoint.index != index:
            what = f"the name says index {index}, the file says {checkpoint.index}"
            return found._replace(problem=Problem(what, Remedy.SPARE))
        try:
            state = self._describe_state(checkpoint.body)
        except ValueError as error:
            what = f"{error}; start the program version that wrote it"
            return found._replace(term=checkpoint.term, problem=Problem(what, Remedy.OPERATOR))
        return found._replace(term=checkpoint.term, state=state)

    # The rest

    def _find_leftovers(self, manifest: Manifest | None) -> Iterator[Leftover]:
        for name in self._names:
            if name not in (IDENTITY_NAME, MEMBER_FILE, *START_FILES, *HARD_STATE_NAMES, _LOG):
                yield self._find_leftover(name)
        checkpoints = list_checkpoints(self._disk, self._log) if self._log_names else []
        belonging = {
            MANIFEST_NAME,
            MARK_NAME,
            *map(checkpoint_name, checkpoints),
            *(manifest.names() if manifest else ()),
        }
        for name in self._log_names:
            if name not in belonging:
                of_crash = name.endswith(TEMPORARY) or (manifest is not None and is_segment_name(name))
                what = "of a crash; removed at the next start" if of_crash else "not of this log; left alone"
                yield Leftover(path_in(_LOG, name), self._size(path_in(self._log, name)), what)

    def _find_leftover(self, name: str) -> Leftover:
        path = path_in(self._directory, name)
        if name == INCOMING:
            return self._find_directory(name, "a snapshot that had not all arrived; it is fetched anew")
        if name.startswith(ASIDE_PREFIX):
            return self._find_directory(name, "a damaged log, kept until this node has caught up")
        if name == OBSOLETE:
            return self._find_directory(
                name, "a log that was given up for want of space; removed at the next start"
            )
        if name == REMOVED:
            what = "the directory was removed from its cluster, and can be no member again"
            return Leftover(name, 0, what, Problem(what, Remedy.OPERATOR))
        if name == DAMAGE:
            reason = self._disk.read_file(path).decode(errors="replace")
            what = f"the log was found damaged while it was in use: {reason}"
            return Leftover(name, self._size(path), "", Problem(what, Remedy.REPAIR))
        what = "of a crash; harmless" if name.endswith(TEMPORARY) else "not of this node; left alone"
        return Leftover(name, self._size(path), what)

    def _find_directory(self, name: str, what: str) -> Leftover:
        path = path_in(self._directory, name)
        names = self._disk.list_directory(path)
        size = sum(self._size(path_in(path, file)) for file in names)
        return Leftover(f"{name}/", size, f"files: {len(names)}; {what}")

    def _size(self, path: str) -> int:
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return 0
        size = file.size
        file.close()
        return size

    # Entries

    def entries(self, manifest: Manifest, first: int, last: int) -> Iterator[EntryFound | OtherProblem]:
        for row in manifest.sealed:
            if row.first > last or row.end <= first:
                continue
            segment = Segment.sealed_file(*row[:4], sparse=row.sparse)
            found = (EntryFound(*entry) for entry in records(self._disk, self._log, self._identity, segment))
            yield from self._reading(row.name, (entry for entry in found if first <= entry.index <= last))
        if manifest.open_name is not None and manifest.open_first <= last:
            found = self._open_entries(manifest, manifest.open_name)
            yield from self._reading(
                manifest.open_name, (entry for entry in found if first <= entry.index <= last)
            )

    def _reading(self, name: str, found: Iterator[EntryFound]) -> Iterator[EntryFound | OtherProblem]:
        try:
            yield from found
        except JournalError as error:
            yield OtherProblem(path_in(_LOG, name), _problem(error))

    def _open_entries(self, manifest: Manifest, name: str) -> Iterator[EntryFound]:
        """Yield the entries of the open segment up to damage, if any; then raise JournalError for the damage."""
        path = path_in(self._log, name)
        opened = open_file(self._disk, path, self._identity)
        try:
            data = read_at(opened.file, path, 0, opened.file.size)
            scan = scan_records(data, path, name, opened.header)
            terms = TermRuns(scan.runs)
            for index in range(scan.records.first, scan.records.end):
                start, end = scan.records.extent(index)
                yield EntryFound(index, terms.at(index), data[start + RECORD_HEADER_BYTES : end])
            mark = load_mark(self._disk, self._log, self._identity)
            scan_open(opened, manifest, mark, writes_lost=self._writes_lost())
        finally:
            opened.file.close()


def _log_range(manifest: Manifest, scan: Scan | None) -> tuple[int, int]:
    """Return the first and the last index of the gapless entries."""
    grown = scan is not None and bool(scan.records.offsets)
    end = scan.records.end if grown and scan else manifest.sealed[-1].end if manifest.sealed else 1
    return log_start(manifest.sealed, manifest.open_first if grown else end), end - 1


def _sequence(stored: StoredState) -> int:
    return stored.sequence


def _half(whole: int) -> Problem | None:
    return None if whole > 1 else Problem("one of the two copies in it is damaged", Remedy.SPARE)


def _missing() -> Problem:
    return Problem("the file is missing", Remedy.REPAIR)


def _problem(error: JournalError) -> Problem:
    if isinstance(error, CorruptJournal):
        return Problem(_without_path(error, error.path), Remedy.REPAIR)
    if isinstance(error, UnknownFormat | ForeignJournal):
        return Problem(_without_path(error, error.path), Remedy.OPERATOR)
    return Problem(str(error), Remedy.OPERATOR)


def _without_path(error: JournalError, path: str) -> str:
    return str(error).removeprefix(f"{path}: ")
