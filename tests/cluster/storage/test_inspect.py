"""Findings about a directory, and the repairs of the next start that they announce."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from zlib import crc32

import pytest

from cluster.configuration.configuration import OtherVersion, Versions
from cluster.log.checkpoints import checkpoint_name, write_checkpoint
from cluster.log.hardstate import HardState, VoterStatus
from cluster.log.journal import JournalSizes, SegmentedJournal
from cluster.log.sealed_segment import verify, write_sparse
from cluster.log.segment import FILE_HEADER_BYTES, CorruptJournal, ForeignJournal, Segment, UnknownFormat
from cluster.log.sync_mark import MARK_NAME, Mark
from cluster.runtime.asyncio_runtime import DirectoryInUse, ReadOnlyDisk, RealDisk, check_not_in_use
from cluster.storage.directory import MOVING, GroupDirectory
from cluster.storage.identity import ForeignDirectory, Identity, Owner
from cluster.storage.inspect import (
    CheckpointFound,
    EntryFound,
    Finding,
    HardStateFound,
    Leftover,
    LogFound,
    ManifestFound,
    MarkFound,
    OtherProblem,
    OwnerFound,
    Problem,
    Remedy,
    SegmentFound,
    entries,
    inspect,
)

if TYPE_CHECKING:
    from cluster.runtime.ports import Disk

OWNER = Owner("qq", "n1", 0)
MEMBERS = ["n1", "n2", "n3"]
MACHINE_VERSION = 7
VERSIONS = Versions(MACHINE_VERSION, MACHINE_VERSION)
GROUP = "groups/0"
SEGMENT_ENTRIES = 10
SPARSE, DENSE, SECOND_DENSE, OPEN = (
    "00000000000000000001-00000005.sparse",
    "00000000000000000011-00000002.segment",
    "00000000000000000021-00000003.segment",
    "00000000000000000031-00000004.segment",
)
OLD, NEW = checkpoint_name(12), checkpoint_name(33)


class State:
    """A replicated state that is only ever loaded."""

    def read(self, body: bytes) -> str:
        return describe(body)

    def adopt(self, state: str) -> None:
        assert state


def describe(body: bytes) -> str:
    if not body.startswith(b"state"):
        raise ValueError("not a state of version 2")
    return body.decode()


def payload(index: int) -> bytes:
    return b"entry %d" % index


class World:
    """A node's directory, as the node makes it and starts from it."""

    def __init__(self, root: Path) -> None:
        self.disk = RealDisk(root)
        self.group = GroupDirectory(self.disk, GROUP, OWNER)

    def start(self) -> SegmentedJournal:
        claim = self.group.claim(1000, VERSIONS, MEMBERS, 0)
        journal, _ = self.group.start(claim, cast("Any", State()), self.open, repairable=False)
        return journal

    def open(self, writes_lost: bool) -> SegmentedJournal:
        return SegmentedJournal(
            self.group.log_files,
            self.group.hard_state,
            JournalSizes(segment_entries=SEGMENT_ENTRIES),
            on_failure=raising,
            writes_lost=writes_lost,
        )

    def verify(self, journal: SegmentedJournal) -> None:
        """Verify the sealed segments, as a node does soon after its start."""
        for segment in journal.segments():
            if segment.sealed:
                verify(self.disk, f"{self.group.log}/{segment.name}", self.group.identity)

    def close(self) -> None:
        self.disk.close()


def raising(error: Exception) -> None:
    raise error


def make(root: Path) -> Path:
    """Make a directory with a sparse, two dense and an open segment, and two checkpoints; return that of the group."""
    world = World(root)
    world.group.hard_state.store(HardState(2, "n3", VoterStatus.BLANK))
    journal = world.start()
    world.group.hard_state.store(HardState(2, "n3", VoterStatus.VOTER))
    for index in range(1, 36):
        journal.add(payload(index), index, 1 if index < 15 else 2)
        journal.sync_now()
    first = journal.segments()[0]
    name = journal.new_name(1, sparse=True)
    kept = [(payload(index), index, 1) for index in (3, 7)]
    size = write_sparse(world.disk, f"{world.group.log}/{name}", world.group.identity, 1, 11, kept)
    journal.replace([first], Segment.sealed_file(name, 1, 11, size, sparse=True))
    journal.sync_now()
    for index, term in ((12, 1), (33, 2)):
        write_checkpoint(
            world.disk, world.group.log, world.group.identity, index, term, [b"state of %d" % index]
        )
    world.close()
    return root / GROUP


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("original"))


@pytest.fixture
def group(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original.parent.parent, tmp_path / "data") / GROUP


def reading(group: Path) -> Disk:
    return cast("Disk", ReadOnlyDisk(group))


def content(directory: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(directory.rglob("*")) if file.is_file()}


def found_in(group: Path) -> list[Finding]:
    """Return the findings, and assert that the inspection changes no file."""
    before = content(group)
    found = list(inspect(reading(group), "", describe, VERSIONS))
    assert content(group) == before
    return found


def problems_in(group: Path) -> list[Problem]:
    return [
        finding.problem
        for finding in found_in(group)
        if not isinstance(finding, LogFound) and finding.problem is not None
    ]


def flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 0x10
    file.write_bytes(data)


def flip_in_middle(file: Path) -> None:
    flip(file, file.stat().st_size // 2)


def flip_copies(file: Path) -> None:
    """In both of the copies that the file holds."""
    flip(file, 20)
    flip(file, file.stat().st_size // 2 + 20)


def test_whole_directory_is_described(group: Path) -> None:
    identity, hard, manifest, mark, log, *rest = found_in(group)
    assert isinstance(identity, OwnerFound)
    assert identity.identity == Identity(OWNER, MACHINE_VERSION, ("n1", "n2", "n3"))
    assert identity.start is not None
    assert (identity.start.incarnation, identity.problem) == (1000, None)
    assert hard == HardStateFound(HardState(2, "n3", VoterStatus.VOTER), ("ok", "ok"), None)
    assert manifest == ManifestFound(present=True, problem=None)
    sizes = [(group / "log" / name).stat().st_size for name in (SPARSE, DENSE, SECOND_DENSE, OPEN)]
    assert mark == MarkFound(Mark(OPEN, sizes[-1]), None)
    assert log == LogFound(11, 35, sum(sizes), 4)
    assert rest == [
        SegmentFound(SPARSE, "sparse", 1, 11, 2, sizes[0], (1, 1), 0, None),
        SegmentFound(DENSE, "dense", 11, 21, 10, sizes[1], (1, 2), 0, None),
        SegmentFound(SECOND_DENSE, "dense", 21, 31, 10, sizes[2], (2, 2), 0, None),
        SegmentFound(OPEN, "open", 31, 36, 5, sizes[3], (2, 2), 0, None),
        CheckpointFound(OLD, 1, (group / "log" / OLD).stat().st_size, "state of 12", None),
        CheckpointFound(NEW, 2, (group / "log" / NEW).stat().st_size, "state of 33", None),
    ]


def test_empty_log_of_a_node_that_was_started_once_is_whole(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.start()
    world.close()
    assert problems_in(tmp_path / GROUP) == []
    assert LogFound(1, 0, 0, 0) in found_in(tmp_path / GROUP)


class Damage(NamedTuple):
    do: Callable[[Path], None]
    finding: type[Finding]
    cures: list[Remedy]
    what: str = ""


def remove(name: str) -> Callable[[Path], None]:
    return lambda group: (group / name).unlink()


def change(name: str, how: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda group: how(group / name)


def both(*damages: Callable[[Path], None]) -> Callable[[Path], None]:
    def do(group: Path) -> None:
        for damage in damages:
            damage(group)

    return do


def write(name: str, data: bytes) -> Callable[[Path], None]:
    def do(group: Path) -> None:
        (group / name).write_bytes(data)

    return do


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def of_version_9(file: Path) -> None:
    """Every magic number is followed by the version; of two copies both are changed."""
    data = bytearray(file.read_bytes())
    data[4] = 9
    if file.name in ("identity", "manifest"):
        half = len(data) // 2
        data[half + 4] = 9
        for start in (0, half):
            end = start + 44 + int.from_bytes(data[start + 40 : start + 44], "little")
            data[end : end + 4] = crc32(data[start:end]).to_bytes(4, "little")
    elif file.name.startswith(("hardstate", "start")):
        data[-4:] = crc32(data[:-4]).to_bytes(4, "little")
    elif file.suffix == ".checkpoint":
        data[64:68] = crc32(data[:64]).to_bytes(4, "little")
    else:
        end = FILE_HEADER_BYTES - 4
        data[end : end + 4] = crc32(data[:end]).to_bytes(4, "little")
    file.write_bytes(data)


def of_another_node(group: Path) -> None:
    """Replace the log with that of a foreign node with the same indexes."""
    root = group.parent.parent.parent / "other"
    world = World.__new__(World)
    world.disk = RealDisk(root)
    world.group = GroupDirectory(world.disk, GROUP, OWNER._replace(node="n2"))
    world.start()
    world.close()
    shutil.rmtree(group / "log")
    (root / GROUP / "log").rename(group / "log")


def of_another_machine(group: Path) -> None:
    """Make the directory one of a program with a different machine."""
    disk = RealDisk(group.parent.parent)
    disk.remove(f"{GROUP}/identity")
    GroupDirectory(disk, GROUP, OWNER).claim(1000, Versions(6, 6), MEMBERS, 0)
    disk.close()


REPAIR, SPARE, HEARING, OPERATOR = [Remedy.REPAIR], [Remedy.SPARE], [Remedy.HEARING], [Remedy.OPERATOR]
DAMAGES = {
    "one copy of the identity": Damage(change("identity", lambda file: flip(file, 20)), OwnerFound, SPARE),
    "the identity": Damage(change("identity", flip_copies), OwnerFound, OPERATOR, "delete that file"),
    "the version of the machine": Damage(of_another_machine, OwnerFound, OPERATOR, "version 6 of the state"),
    "one count of starts": Damage(change("start-1", flip_in_middle), OwnerFound, SPARE, "start-1: damaged"),
    "both counts of starts are missing": Damage(
        both(remove("start-0"), remove("start-1")), OwnerFound, SPARE, "start-0 and start-1"
    ),
    "the version of a count of starts": Damage(
        change("start-0", of_version_9), OwnerFound, OPERATOR, "version 9"
    ),
    "the identity is missing": Damage(remove("identity"), OwnerFound, SPARE, "is missing"),
    "the version of the identity": Damage(
        change("identity", of_version_9), OwnerFound, OPERATOR, "version 9"
    ),
    "one hard state": Damage(change("hardstate-1", flip_in_middle), HardStateFound, SPARE, "hardstate-1"),
    "one hard state is missing": Damage(remove("hardstate-0"), HardStateFound, SPARE, "hardstate-0"),
    "both hard states": Damage(
        both(change("hardstate-0", flip_in_middle), change("hardstate-1", flip_in_middle)),
        HardStateFound,
        HEARING,
    ),
    "both hard states are missing": Damage(
        both(remove("hardstate-0"), remove("hardstate-1")), OtherProblem, HEARING, "missing"
    ),
    "the version of a hard state": Damage(
        change("hardstate-0", of_version_9), HardStateFound, OPERATOR, "version 9"
    ),
    "one copy of the manifest": Damage(
        change("log/manifest", lambda file: flip(file, 60)), ManifestFound, SPARE
    ),
    "the manifest": Damage(change("log/manifest", flip_copies), ManifestFound, REPAIR, "both copies"),
    "the manifest is missing": Damage(remove("log/manifest"), ManifestFound, REPAIR, "missing"),
    "the version of the manifest": Damage(
        change("log/manifest", of_version_9), ManifestFound, OPERATOR, "version 9"
    ),
    "the log is missing": Damage(lambda group: shutil.rmtree(group / "log"), ManifestFound, REPAIR),
    "the log of another node": Damage(of_another_node, ManifestFound, OPERATOR, "belongs to another"),
    "a sealed segment": Damage(change(f"log/{DENSE}", flip_in_middle), SegmentFound, REPAIR, "offset"),
    "the footer of a sealed segment": Damage(
        change(f"log/{DENSE}", lambda file: flip(file, -5)), SegmentFound, REPAIR, "bad index at the end"
    ),
    "a sealed segment is cut": Damage(change(f"log/{DENSE}", cut), SegmentFound, REPAIR, "instead of"),
    "a sealed segment is missing": Damage(remove(f"log/{DENSE}"), SegmentFound, REPAIR, "missing"),
    "the version of a sealed segment": Damage(
        change(f"log/{DENSE}", of_version_9), SegmentFound, OPERATOR, "version 9"
    ),
    "a sparse segment": Damage(change(f"log/{SPARSE}", flip_in_middle), SegmentFound, REPAIR),
    "the open segment": Damage(change(f"log/{OPEN}", flip_in_middle), SegmentFound, REPAIR, "durable"),
    "the end of the open segment": Damage(
        change(f"log/{OPEN}", lambda file: flip(file, -1)), SegmentFound, REPAIR, "no write can"
    ),
    "the open segment is missing": Damage(remove(f"log/{OPEN}"), SegmentFound, REPAIR, "missing"),
    "the newer checkpoint": Damage(change(f"log/{NEW}", flip_in_middle), CheckpointFound, SPARE),
    "the older checkpoint": Damage(change(f"log/{OLD}", flip_in_middle), CheckpointFound, SPARE),
    "both checkpoints": Damage(
        both(change(f"log/{OLD}", flip_in_middle), change(f"log/{NEW}", flip_in_middle)),
        CheckpointFound,
        [Remedy.REPAIR, Remedy.REPAIR],
    ),
    "both checkpoints are missing": Damage(
        both(remove(f"log/{OLD}"), remove(f"log/{NEW}")), OtherProblem, REPAIR, "no checkpoint"
    ),
    "the version of a checkpoint": Damage(
        change(f"log/{NEW}", of_version_9), CheckpointFound, OPERATOR, "version 9"
    ),
    "damage found in use": Damage(write("damage", b"offset 7"), Leftover, REPAIR, "in use: offset 7"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_where_it_is_and_nowhere_else(group: Path, name: str) -> None:
    damage = DAMAGES[name]
    damage.do(group)
    found = [
        finding
        for finding in found_in(group)
        if not isinstance(finding, LogFound) and finding.problem is not None
    ]
    assert {type(finding) for finding in found} == {damage.finding}
    problems = [finding.problem for finding in found]
    assert [problem.remedy for problem in problems] == damage.cures
    assert all(damage.what in problem.what for problem in problems)


@pytest.mark.parametrize("name", DAMAGES)
def test_start_does_as_inspection_has_reported(group: Path, name: str) -> None:
    damage = DAMAGES[name]
    damage.do(group)
    world = World(group.parent.parent)
    try:
        match max(damage.cures):
            case Remedy.OPERATOR:
                with pytest.raises((UnknownFormat, ForeignJournal, ForeignDirectory, OtherVersion)):
                    world.verify(world.start())
            case Remedy.REPAIR:
                with pytest.raises(CorruptJournal):
                    world.verify(world.start())
            case Remedy.HEARING:
                world.verify(world.start())
                assert world.group.hard_state.state is None
            case _:
                world.verify(world.start())
                assert world.group.hard_state.state == HardState(2, "n3", VoterStatus.VOTER)
    finally:
        world.close()


@pytest.mark.parametrize("name", [DENSE, SPARSE, OPEN, NEW])
@pytest.mark.slow
def test_no_flipped_bit_is_overlooked(group: Path, name: str) -> None:
    file = group / "log" / name
    for place in range(0, file.stat().st_size, 3):
        flip(file, place)
        assert problems_in(group), place
        flip(file, place)


def test_terms_that_are_older_than_the_log_are_not_believed(group: Path) -> None:
    world = World(group.parent.parent)
    world.group.hard_state.load()
    world.group.hard_state.store(HardState(1, None, VoterStatus.VOTER))
    world.close()
    [problem] = problems_in(group)
    assert problem.remedy is Remedy.HEARING
    assert "below that of the last entry, 2" in problem.what


def test_checkpoint_newer_than_the_log_shows_that_the_log_lost(group: Path) -> None:
    world = World(group.parent.parent)
    write_checkpoint(world.disk, world.group.log, world.group.identity, 36, 2, [b"state of 36"])
    world.close()
    assert [problem.remedy for problem in problems_in(group)] == REPAIR
    (group / "incoming").mkdir()
    (group / "incoming" / MOVING).write_bytes(b"35")
    assert [problem.remedy for problem in problems_in(group)] == REPAIR
    # This checkpoint is that of a snapshot, whose segments are not in the log yet.
    (group / "incoming" / MOVING).write_bytes(b"36")
    assert problems_in(group) == []


def test_state_of_an_unknown_version_needs_the_operator(group: Path) -> None:
    world = World(group.parent.parent)
    write_checkpoint(world.disk, world.group.log, world.group.identity, 33, 2, [b"something else"])
    world.close()
    [problem] = problems_in(group)
    assert problem == Problem(
        "not a state of version 2; start the program version that wrote it", Remedy.OPERATOR
    )


def test_a_torn_tail_is_no_damage_and_stays(group: Path) -> None:
    file = group / "log" / OPEN
    with file.open("ab") as appending:
        appending.write(b"\x32")  # of a record's magic number
    assert problems_in(group) == []
    [opened] = [found for found in found_in(group) if isinstance(found, SegmentFound) and found.name == OPEN]
    assert (opened.end, opened.entries, opened.torn_bytes) == (36, 5, 1)
    assert file.read_bytes()[-1:] == b"\x32"


def test_records_that_are_missing_at_the_end_are_damage(group: Path) -> None:
    file = group / "log" / OPEN
    size = file.stat().st_size
    with file.open("r+b") as shortened:
        shortened.truncate(size - (size - FILE_HEADER_BYTES) // 5)
    [problem] = problems_in(group)
    assert problem.what.endswith(f"the whole records end here, and the first {size} bytes were synced")
    assert problem.remedy is Remedy.REPAIR
    found = list(entries(reading(group), ""))
    assert isinstance(found[-2], EntryFound)
    assert found[-2].index == 34
    assert isinstance(found[-1], OtherProblem)


@pytest.mark.parametrize("state", ["missing", "damaged"])
def test_a_mark_that_is_lost_is_made_anew(group: Path, state: str) -> None:
    mark = group / "log" / MARK_NAME
    mark.unlink()
    if state == "damaged":
        mark.write_bytes(b"no mark")
    assert problems_in(group) == [Problem(f"the file is {state}; made anew at the next start", Remedy.SPARE)]


def test_mark_of_an_unknown_version_needs_the_operator(group: Path) -> None:
    mark = group / "log" / MARK_NAME
    start = bytearray(mark.read_bytes()[:-4])
    start[4] += 1
    mark.write_bytes(start + crc32(start, crc32(OWNER.key())).to_bytes(4, "little"))
    assert {problem.remedy for problem in problems_in(group)} == {Remedy.OPERATOR}


def test_unexpected_files_are_listed(group: Path) -> None:
    strange = {
        "identity.tmp": "of a crash; harmless",
        "notes": "not of this node; left alone",
        "log/manifest.tmp": "of a crash; removed at the next start",
        "log/00000000000000000041-00000009.segment": "of a crash; removed at the next start",
        "log/hardstate": "not of this log; left alone",
    }
    for name in strange:
        (group / name).write_bytes(b"12345")
    for name in ("incoming", "damaged-7", "obsolete"):
        (group / name).mkdir()
        (group / name / "00000000").write_bytes(b"123")
    found = [finding for finding in found_in(group) if isinstance(finding, Leftover)]
    assert {finding.path: finding.what for finding in found if finding.file_bytes == 5} == strange
    described = [(finding.path, finding.what[:9]) for finding in found if finding.file_bytes == 3]
    assert described == [
        ("damaged-7/", "files: 1;"),
        ("incoming/", "files: 1;"),
        ("obsolete/", "files: 1;"),
    ]
    assert problems_in(group) == []


def test_entries_come_in_order_and_in_the_requested_range(group: Path) -> None:
    everything = [3, 7, *range(11, 36)]
    found = list(entries(reading(group), ""))
    assert found == [EntryFound(index, 1 if index < 15 else 2, payload(index)) for index in everything]
    some = [entry.index for entry in entries(reading(group), "", 7, 32) if isinstance(entry, EntryFound)]
    assert some == [index for index in everything if 7 <= index <= 32]


def test_entries_go_on_behind_a_damaged_segment(group: Path) -> None:
    flip_in_middle(group / "log" / DENSE)
    flip(group / "log" / OPEN, -1)
    found = list(entries(reading(group), ""))
    troubles = [trouble.path for trouble in found if isinstance(trouble, OtherProblem)]
    assert troubles == [f"log/{DENSE}", f"log/{OPEN}"]
    indexes = [entry.index for entry in found if isinstance(entry, EntryFound)]
    assert indexes == [3, 7, *range(11, 15), *range(21, 35)]  # a piece with a single term is read at once


def test_entries_without_manifest_or_identity_are_trouble(group: Path) -> None:
    (group / "log" / "manifest").unlink()
    assert list(entries(reading(group), "")) == [
        OtherProblem("log/manifest", Problem("the file is missing", Remedy.REPAIR))
    ]
    (group / "identity").unlink()
    [trouble] = entries(reading(group), "")
    assert isinstance(trouble, OtherProblem)
    assert trouble.path == "identity"


def test_a_segment_is_read_only_when_its_turn_comes(group: Path) -> None:
    opened: list[str] = []

    class Watched(ReadOnlyDisk):
        def open(self, path: str) -> Any:
            opened.append(path)
            return super().open(path)

    found = entries(cast("Disk", Watched(group)), "", 11)
    next(found)
    assert not any(name in path for path in opened for name in (SPARSE, SECOND_DENSE, OPEN))


def test_directory_in_use_is_recognized_without_a_change(group: Path) -> None:
    root = group.parent.parent
    world = World(root)
    with pytest.raises(DirectoryInUse, match="in use by another process"):
        check_not_in_use(root)
    world.close()
    before = content(root)
    check_not_in_use(root)
    check_not_in_use(group)
    assert content(root) == before
