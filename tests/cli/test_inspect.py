"""`qq inspect` on the directory of a node that was killed in the middle of its work."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import pytest

from cluster.configuration.configuration import Versions
from cluster.log.checkpoints import checkpoint_name, write_checkpoint
from cluster.log.entry import KIND_EVICTION, KIND_OUTAGE, make_batch, make_compacted, make_entry
from cluster.log.hardstate import HardState, VoterStatus
from cluster.log.journal import SegmentedJournal
from cluster.log.sealed_segment import write_sparse
from cluster.log.segment import FILE_HEADER_BYTES, Segment
from cluster.runtime.asyncio_runtime import RealDisk
from cluster.storage.directory import GroupDirectory
from cluster.storage.identity import Owner
from qq.cli import main
from qq.machine.machine import QueueMachine
from qq.machine.protocol.codec import encode_batch, keep
from qq.machine.protocol.commands import Command, DeclareQueue, Enqueue, PutHashedUser, PutUser, SessionDown
from qq.machine.protocol.versions import VERSIONS
from tests.cli.new_logs import GROUP, new_log, raising

TIME_MS = 1_767_323_045_678
INCARNATION = 7
FIRST_SEGMENT, SECOND_SEGMENT = (
    "00000000000000000001-00000001.segment",
    "00000000000000000009-00000002.segment",
)
QUEUE = "tasks\x1b[2J"
"""A name that clears the terminal if it is printed unescaped."""


def batch_of(commands: list[Command], messages: list[bytes]) -> bytes:
    return b"".join(encode_batch(commands, messages))


SETTING_UP = batch_of(
    [
        PutUser("guest", b"the salt", b"the hash", ["administrator"]),
        PutHashedUser("ann", b"the salt", b"the hash", [], "md5"),
        DeclareQueue(1, 1, QUEUE, False, True, False, False, False, {"x-queue-type": "quorum"}),
    ],
    [],
)
PUBLISHING = batch_of(
    [Enqueue(1, 1, 2, "", QUEUE, False, 1), Enqueue(1, 3, 1, "", "nowhere", True, 1), SessionDown(1)],
    [b"the body", b"another one", b"and this"],
)
ENTRIES = [
    b"\x01",
    make_entry(TIME_MS, [make_batch("n1", INCARNATION, 1, [])]),
    make_entry(TIME_MS, [make_batch("n1", INCARNATION, 2, [SETTING_UP])]),
    make_entry(
        TIME_MS + 1,
        [
            make_batch("n1", INCARNATION, 3, [PUBLISHING]),
            make_batch("n2", 4, 0, [], KIND_EVICTION),
            make_batch("n3", 5, 1, [b"nonsense"]),
        ],
    ),
    b"\x00nonsense",
    make_entry(
        TIME_MS + 2,
        [make_batch("n1", 0, 12_000, [], KIND_OUTAGE), make_batch("n1", INCARNATION, 4, [])],
    ),
    *(make_entry(TIME_MS + 2, [make_batch("n1", INCARNATION, sequence, [])]) for sequence in range(5, 10)),
]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a dense and a sparse segment, and a checkpoint."""
    root = tmp_path_factory.mktemp("original")
    disk = RealDisk(root)
    versions = Versions(*QueueMachine.versions)
    group, journal, state = new_log(disk, INCARNATION, versions, ["n1"], segment_entries=8)
    group.hard_state.store(HardState(1, "n2", VoterStatus.VOTER))
    for index, entry in enumerate(ENTRIES, 1):
        journal.add(entry, index, 1)
    journal.sync_now()
    state.machine.apply_batch("n1", 3, 0, TIME_MS, memoryview(SETTING_UP))
    state.machine.apply_batch("n1", 4, 0, TIME_MS, memoryview(PUBLISHING))
    body = state.freeze().dump()
    write_checkpoint(disk, group.log, group.identity, 10, 1, [body])
    disk.close()
    return root


@pytest.fixture
def data_dir(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "n1" / "data")


def compact(data_dir: Path) -> None:
    """Of the first segment only a message of the fourth entry is kept."""
    disk = RealDisk(data_dir)
    group = GroupDirectory(disk, GROUP, Owner("qq", "n1", 0))
    group.hard_state.load()
    journal = SegmentedJournal(group.log_files, group.hard_state, on_failure=raising)
    [first, _] = journal.segments()
    name = journal.new_name(1, sparse=True)
    kept = make_compacted({0: keep(PUBLISHING, [(1, 1)]), 2: b"nonsense"})
    size = write_sparse(disk, f"{group.log}/{name}", group.identity, 1, 9, [(kept, 4, 1)])
    journal.replace([first], Segment.sealed_file(name, 1, 9, size, sparse=True))
    journal.sync_now()
    disk.close()


def flip(file: Path, place: int = -1) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[str], list[str]]:
    """Exit status, lines of the output, lines of the errors."""
    status = main(["inspect", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out.splitlines(), captured.err.splitlines()


def test_a_whole_directory(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines, errors = printed(capsys, data_dir)
    log = data_dir / "groups" / "0" / "log"
    sizes = [(log / name).stat().st_size for name in (FIRST_SEGMENT, SECOND_SEGMENT, checkpoint_name(10))]
    assert lines == [
        f"directory    {data_dir}/groups/0",
        f"identity     node n1 of cluster qq (n1), group 0, incarnation 7, state version {VERSIONS[0]}",
        "hardstate    voter, term 1, vote for n2; copies: ok, ok",
        "manifest     ok",
        f"synced       {sizes[1]:,} bytes of {SECOND_SEGMENT}",
        f"log          entries 1 to 11, {sizes[0] + sizes[1]:,} bytes in 2 files",
        "",
        (
            "segment                                kind          first          end   entries"
            "          bytes      terms  state"
        ),
        f"{FIRST_SEGMENT}  dense             1            9         8  {sizes[0]:>13,}          1  ok",
        f"{SECOND_SEGMENT}  open              9           12         3  {sizes[1]:>13,}          1  ok",
        "",
        "checkpoint                               term          bytes  state",
        f"{checkpoint_name(10)}             1  {sizes[2]:>13,}  ok: 1 queue, 2 ready, 0 unacked, 0 sessions",
        "",
        "whole: nothing is damaged",
    ]
    assert (status, errors) == (0, [])


@pytest.mark.parametrize("name", [".", "data", "data/groups/0"])
def test_inspect_accepts_the_node_data_or_group_directory(
    data_dir: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    status, lines, _ = printed(capsys, data_dir.parent / name)
    assert (status, lines[0]) == (0, f"directory    {data_dir}/groups/0")


def test_inspect_shows_damage_and_its_consequence(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = data_dir / "groups" / "0"
    flip(group / "log" / FIRST_SEGMENT)
    flip(group / "hardstate-1")
    status, lines, errors = printed(capsys, data_dir)
    assert "hardstate    voter, term 1, vote for n2; copies: ok, damaged" in lines
    assert [line for line in lines if line.startswith(FIRST_SEGMENT) and "damaged: offset" in line]
    assert lines[-1] == (
        f"damaged or missing: hardstate, log/{FIRST_SEGMENT}. At its next start the node puts right by itself what it "
        "has a second time or can make anew, and sets its log aside and is repaired from the others; without others "
        "it refuses to start"
    )
    assert (status, errors) == (1, [])


def test_inspect_says_when_the_operator_must_act(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = data_dir / "groups" / "0" / "log" / FIRST_SEGMENT
    data = bytearray(segment.read_bytes())
    data[4] += 1
    end = FILE_HEADER_BYTES - 4
    data[end : end + 4] = crc32(data[:end]).to_bytes(4, "little")
    segment.write_bytes(data)
    flip(data_dir / "groups" / "0" / "hardstate-1")
    status, lines, _ = printed(capsys, data_dir)
    assert status == 1
    assert lines[-1] == (
        f"the node refuses to start until this is put right: log/{FIRST_SEGMENT}: format version 3 is unknown; start "
        "the program version that wrote it"
    )


def test_a_learner_and_a_torn_tail_and_leftovers_are_no_damage(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = data_dir / "groups" / "0"
    disk = RealDisk(data_dir)
    directory = GroupDirectory(disk, GROUP, Owner("qq", "n1", 0))
    directory.hard_state.load()
    directory.hard_state.store(HardState(1, "n2", VoterStatus.LEARNER))
    disk.close()
    with (group / "log" / SECOND_SEGMENT).open("ab") as file:
        file.write(b"\x32")  # of a record's magic number
    (group / "damaged-6").mkdir()
    (group / "log" / "manifest.tmp").write_bytes(b"12345")
    status, lines, _ = printed(capsys, data_dir)
    assert status == 0
    assert [
        line for line in lines if "ok; torn tail: " in line and line.endswith("bytes, cut at the next start")
    ]
    assert lines[-5:] == [
        "also",
        "damaged-6/  0 bytes, files: 0; a damaged log, kept until this node has caught up",
        "log/manifest.tmp  5 bytes, of a crash; removed at the next start",
        "",
        "whole: nothing is damaged; the node is a learner: it is being repaired from the others",
    ]


def test_inspect_reports_a_missing_identity(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data_dir / "groups" / "0" / "identity").unlink()
    status, lines, _ = printed(capsys, data_dir)
    assert status == 1
    assert lines[1] == "identity     unknown; the file is missing, so whose the directory is cannot be told"
    assert lines[-1].startswith("damaged or missing: identity. ")


def test_inspect_refuses_a_directory_in_use(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disk = RealDisk(data_dir)
    status, lines, [error] = printed(capsys, data_dir)
    disk.close()
    assert (status, lines) == (1, [])
    assert error.startswith(f"qq inspect: {data_dir}: in use by another process (pid ")


def test_inspect_reports_a_directory_that_a_node_opens(
    data_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    disks: list[RealDisk] = []

    def starts(*_: Any) -> Any:
        disks.append(RealDisk(data_dir))
        (data_dir / "groups" / "0" / "log" / FIRST_SEGMENT).unlink()
        raise FileNotFoundError(2, "No such file or directory", FIRST_SEGMENT)

    monkeypatch.setattr(import_module("qq.cli.local.inspect"), "find_all", starts)
    status, _, [error] = printed(capsys, data_dir)
    for disk in disks:
        disk.close()
    assert status == 1
    assert "in use by another process" in error


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_inspect_refuses_a_directory_without_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    status, lines, errors = printed(capsys, tmp_path / name)
    assert (status, lines) == (1, [])
    assert errors == [f"qq inspect: {tmp_path / name}: neither the data directory of a node nor a backup"]


def test_dump_shows_commands_without_messages_and_passwords(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, lines, errors = printed(capsys, data_dir, "--dump", "--to", 6)
    assert (status, errors) == (0, [])
    assert lines == [
        "1  term 1  the beginning of a reign",
        f"2  term 1  2026-01-02T03:04:05.678Z  {len(ENTRIES[1])} bytes",
        "  batch 0 of n1 7.1: nothing, the node only tells that it lives",
        f"3  term 1  2026-01-02T03:04:05.678Z  {len(ENTRIES[2])} bytes",
        f"  batch 0 of n1 7.2, {len(SETTING_UP)} bytes",
        "    PutUser name='guest', tags=['administrator']",
        "    PutHashedUser name='ann', tags=[], hashing='md5'",
        (
            "    DeclareQueue session=1, connection=1, name='tasks\\x1b[2J', passive=False, durable=True, "
            "exclusive=False, auto_delete=False, server_named=False, arguments={'x-queue-type': 'quorum'}"
        ),
        f"4  term 1  2026-01-02T03:04:05.679Z  {len(ENTRIES[3])} bytes",
        f"  batch 0 of n1 7.3, {len(PUBLISHING)} bytes",
        (
            "    Enqueue session=1, first_seq=1, count=2, exchange='', routing_key='tasks\\x1b[2J', mandatory=False, "
            "frames_channel=1: 2 messages of 19 bytes with frames"
        ),
        (
            "    Enqueue session=1, first_seq=3, count=1, exchange='', routing_key='nowhere', mandatory=True, "
            "frames_channel=1: 1 message of 8 bytes with frames"
        ),
        "    SessionDown session=1",
        "  batch 1 of n2 4.0: n2 is evicted",
        "  batch 2 of n3 5.1, 8 bytes",
        "    not readable: 1936617326 messages in one batch",
        "5  term 1  not readable: entry header cut short",
        f"6  term 1  2026-01-02T03:04:05.680Z  {len(ENTRIES[5])} bytes",
        "  batch 0 of n1: an outage of 12,000 ms at most",
        "  batch 1 of n1 7.4: nothing, the node only tells that it lives",
    ]


def test_dump_shows_the_rest_of_compacted_entries(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compact(data_dir)
    status, lines, _ = printed(capsys, data_dir, "--dump", "--to", 9)
    assert status == 0
    assert lines[0].startswith("4  term 1  compacted, ")
    assert lines[2] == (
        "    kept from message 1 on: 1 message of 11 bytes with frames; exchange='', routing_key='tasks\\x1b[2J', "
        "frames_channel=1"
    )
    assert lines[3:5] == ["  batch 2, 8 bytes", "    not readable: 1936617326 messages in one batch"]
    assert [line.partition(" ")[0] for line in lines if line[0] != " "] == ["4", "9"]


def test_dump_continues_after_a_missing_segment(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data_dir / "groups" / "0" / "log" / FIRST_SEGMENT).unlink()
    status, lines, errors = printed(capsys, data_dir, "--dump", "--from", 3)
    assert (status, errors) == (1, [f"qq inspect: log/{FIRST_SEGMENT}: offset 0: the file is missing"])
    assert [line.partition(" ")[0] for line in lines if line[0] != " "] == ["9", "10", "11"]


@pytest.mark.parametrize("arguments", [(), ("--dump",)])
def test_closed_pipe_of_inspect_is_no_error(data_dir: Path, arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "qq", "inspect", *arguments, str(data_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        cast("Any", process.stdout).close()
        assert cast("Any", process.stderr).read() == b""
        assert process.wait() == 0
