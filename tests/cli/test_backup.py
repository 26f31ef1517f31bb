"""`qq backup`, `qq restore` and `qq recover`: their results, and refusals that leave all files unchanged."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.configuration.configuration import (
    Configuration,
    Member,
    PeerAddress,
    Versions,
    make_configuration,
)
from cluster.log.checkpoints import write_checkpoint
from cluster.log.entry import make_batch, make_entry
from cluster.log.hardstate import HardState, VoterStatus
from cluster.log.manifest import row_of
from cluster.runtime.asyncio_runtime import RealDisk
from cluster.snapshots import restore
from cluster.snapshots.backup import CONTENTS, SUMS, BackupSegment, Contents, pack_contents, sum_line
from qq.cli import main
from qq.cli.local import backup as backup_command
from qq.cli.local import restore as restore_command
from qq.machine.machine import QueueMachine
from qq.machine.protocol.codec import encode_batch
from qq.machine.protocol.commands import DeclareQueue
from tests.cli.new_logs import GROUP, new_log

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from cluster.log.journal import SegmentedJournal
    from cluster.state.group_state import GroupState
    from cluster.storage.directory import GroupDirectory

TIME_MS = 1_767_323_045_678
SETTING_UP = b"".join(encode_batch([DeclareQueue(1, 1, "tasks", False, True, False, False, False, {})], []))
ENTRIES = [
    b"\x01",
    make_entry(TIME_MS, [make_batch("n1", 7, 1, [])]),
    make_entry(TIME_MS, [make_batch("n1", 7, 2, [SETTING_UP])]),
    *(make_entry(TIME_MS + 1, [make_batch("n1", 7, sequence, [])]) for sequence in range(3, 12)),
]
CONFIGURATION = """
[node]
name = "n2"
data_dir = "data"
[cluster]
secret = "a secret of the cluster"
[[nodes]]
name = "n1"
host = "h1"
peer_port = 1
amqp_port = 2
http_port = 3
[[nodes]]
name = "n2"
host = "h2"
peer_port = 1
amqp_port = 2
http_port = 3
"""


@pytest.fixture(autouse=True)
def _clusters_get_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    low = QueueMachine.versions[0]
    monkeypatch.setattr(QueueMachine, "versions", (low, max(low + 1, QueueMachine.versions[1])))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of one of two nodes, with three segments and a checkpoint; and a backup of it."""
    root = tmp_path_factory.mktemp("original")
    low = QueueMachine.versions[0]
    disk = RealDisk(root / "data")
    group, journal, state = one_of_two(disk)
    group.hard_state.store(HardState(4, "n2", VoterStatus.VOTER))
    for index, entry in enumerate(ENTRIES, 1):
        journal.add(entry, index, 3)
    journal.sync_now()
    state.machine.apply_batch("n1", 3, 0, TIME_MS, memoryview(SETTING_UP))
    state.time_ms = TIME_MS
    body = state.freeze().dump()
    size = write_checkpoint(disk, group.log, group.identity, 4, 3, [body])
    segments = tuple(BackupSegment(*row_of(row)) for row in journal.segments() if row.sealed)
    disk.close()
    log = root / "data" / group.log
    contents = Contents("qq", b"", "n1", 0, low, 10, 3, TIME_MS, str(log), 4, size, segments)
    backup = root / "backup"
    backup.mkdir()
    (backup / CONTENTS).write_bytes(pack_contents(contents))
    names = [name for name, _ in contents.files]
    for name in names:
        shutil.copy(log / name, backup / name)
    lines = [sum_line(sha256((backup / name).read_bytes()).hexdigest(), name) for name in (CONTENTS, *names)]
    (backup / SUMS).write_text("".join(lines))
    (root / "backup.tar").write_bytes(archive(backup, [CONTENTS, *names, SUMS]))
    return root


def one_of_two(disk: RealDisk) -> tuple[GroupDirectory, SegmentedJournal, GroupState]:
    low = QueueMachine.versions[0]
    return new_log(disk, 7, Versions(low, low), ["n1", "n2"], segment_entries=5)


def archive(backup: Path, names: list[str]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in names:
            tar.add(backup / name, name)
    return data.getvalue()


@pytest.fixture
def backup(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original / "backup", tmp_path / "backup")


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The configuration of a node that has not begun."""
    (tmp_path / "node").mkdir()
    config = tmp_path / "node" / "node.toml"
    config.write_text(CONFIGURATION)
    return config


@pytest.fixture
def survivor(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original / "data", tmp_path / "survivor")


Printed = tuple[int, list[str], list[str]]


class RunQq:
    """Calls commands; tells exit status, lines of the output, lines of the errors."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Printed:
        status = main([*map(str, arguments)])
        output, errors = self._capsys.readouterr()
        return status, output.splitlines(), errors.splitlines()


@pytest.fixture
def run_qq(capsys: pytest.CaptureFixture[str]) -> RunQq:
    return RunQq(capsys)


def content(directory: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(directory)): file.read_bytes()
        for file in sorted(directory.rglob("*"))
        if file.is_file()
    }


def flip(file: Path, place: int = -1, bit: int = 0) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1 << bit
    file.write_bytes(data)


# Backups


def test_a_backup_is_inspected_in_a_directory_and_in_a_file(original: Path, run_qq: RunQq) -> None:
    for path in (original / "backup", original / "backup.tar"):
        status, lines, errors = run_qq("inspect", path)
        assert (status, errors) == (0, [])
        assert lines[0] == "backup       of qq, cluster id none yet, given by node n1"
        assert lines[2] == "log          up to entry 10 of term 3, made at 2026-01-02T03:04:05.678Z"
        state = "the state at entry 4: 1 queue, 0 ready, 0 unacked, 1 session"
        assert lines[5].endswith(f"  ok: {state}")
        assert lines[6].endswith("ok: 5 entries of 1 to 5")
        assert lines[-1] == "whole: nothing is damaged"


def test_damage_of_a_backup_is_found(backup: Path, run_qq: RunQq) -> None:
    flip(next(backup.glob("*.segment")))
    status, lines, _ = run_qq("inspect", backup)
    assert status == 1
    assert (
        sum("damaged: the content is not that of the backup (wrong SHA-256)" in line for line in lines) == 1
    )
    assert lines[-1].startswith("damaged or missing: 0000")
    assert run_qq("inspect", "--dump", backup)[2] == [
        f"qq inspect: {backup}: is a backup; the entries can be printed of a node's data directory only"
    ]


@contextmanager
def answering(status: int, body: bytes, length: int, kind: str = "application/x-tar") -> Generator[str]:
    """A server that gives this answer, and says that it has this length."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_backup_links_files_of_a_node_on_this_machine(original: Path, tmp_path: Path, run_qq: RunQq) -> None:
    data = (original / "backup.tar").read_bytes()
    with answering(200, data, len(data)) as url:
        status, [line], errors = run_qq("backup", tmp_path / "new", "--http", url)
    assert (status, errors) == (0, [])
    assert line.startswith(
        f"{tmp_path / 'new'}: cluster qq up to entry 10 of term 3 (2026-01-02T03:04:05.678Z), "
    )
    assert line.endswith(" bytes, linked")
    links = {file.name: file.stat().st_nlink for file in (tmp_path / "new").iterdir()}
    assert {name for name, count in links.items() if count > 1} == {
        file.name for file in (original / "backup").glob("*.segment")
    }
    assert content(tmp_path / "new") == content(original / "backup")


def test_backup_copies_files_of_a_distant_node(original: Path, tmp_path: Path, run_qq: RunQq) -> None:
    data = (original / "backup.tar").read_bytes()
    away = original / "away"
    (original / "data").rename(away)
    try:
        with answering(200, data, len(data)) as url:
            status, [line], _ = run_qq("backup", tmp_path / "new", "--http", url)
    finally:
        away.rename(original / "data")
    assert status == 0
    assert line.endswith(" bytes, copied")
    assert content(tmp_path / "new") == content(original / "backup")


def test_interrupted_or_damaged_backup_leaves_no_files(original: Path, tmp_path: Path, run_qq: RunQq) -> None:
    data = (original / "backup.tar").read_bytes().replace(str(original).encode(), b"/" * len(str(original)))
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 1
    answers = [
        (data[: len(data) // 2], ""),
        (data[:100], "broken off"),
        (b"", "broken off"),
        (bytes(damaged), "no backup was made: "),
        (b"nonsense" * 10_000, "broken off"),
    ]
    for body, text in answers:
        with answering(200, body, len(data)) as url:
            status, lines, [error] = run_qq("backup", tmp_path / "new", "--http", url)
        assert (status, lines) == (1, [])
        assert text in error
        assert list(tmp_path.iterdir()) == []


def test_refused_or_unreachable_backup_is_reported(tmp_path: Path, run_qq: RunQq) -> None:
    body = b'{"error": "not_authorised", "reason": "Not administrator user"}'
    with answering(401, body, len(body), "application/json") as url:
        status, _, [error] = run_qq("backup", tmp_path / "new", "--http", url)
    assert (status, error) == (
        1,
        f"qq backup: {url}/api/cluster/backup: Not administrator user",
    )
    status, _, [error] = run_qq("backup", tmp_path / "new", "--http", "http://127.0.0.1:1")
    assert (status, "cannot connect to 127.0.0.1:1 (Connection refused); " in error) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_answer_that_is_not_an_archive_is_reported(tmp_path: Path, run_qq: RunQq) -> None:
    with answering(200, b"hi", 2, "text/html") as url:
        assert run_qq("backup", tmp_path / "new", "--http", url) == (
            1,
            [],
            [f"qq backup: {url}: the answer is not that of a qq node"],
        )
    assert list(tmp_path.iterdir()) == []


def test_a_backup_goes_to_a_new_directory_only(tmp_path: Path, run_qq: RunQq) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").touch()
    for target in (tmp_path / "old", tmp_path / "old" / "file"):
        assert run_qq("backup", target)[2] == [f"qq backup: {target}: is there already; name a new directory"]
    assert run_qq("backup", tmp_path / "no" / "new")[0] == 1


@pytest.mark.parametrize("step", ["RealDisk", "_empty", "restore"])
def test_node_does_not_start_after_a_killed_restore(
    original: Path, node: Path, run_qq: RunQq, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_arguments: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RealDisk, "remove_directory", killed)  # a killed process does not clean up
        patch.setattr(restore_command, step, killed)
        with pytest.raises(Killed):
            run_qq("restore", original / "backup", "--config", node)
    status, _, [error] = run_qq("serve", "--config", node)
    assert status == 1
    assert "a restore was begun there and did not end" in error
    assert run_qq("restore", original / "backup", "--config", node)[0] == 0


def test_restore_into_a_directory_in_use_leaves_no_mark(
    original: Path, node: Path, run_qq: RunQq, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = node.parent / "data"
    disk = RealDisk(data)
    with monkeypatch.context() as patch:  # the other process came after it was looked
        patch.setattr(restore_command, "check_not_in_use", lambda _root: None)
        status, _, [error] = run_qq("restore", original / "backup", "--config", node)
    disk.close()
    assert (status, error.partition(" (")[0]) == (1, f"qq restore: {data}: in use by another process")
    assert not (data / "groups" / "restoring").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_backup_ended_by_a_signal_leaves_no_files(
    original: Path, tmp_path: Path, run_qq: RunQq, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    data = (original / "backup.tar").read_bytes()

    def ended(directory: Path) -> Any:
        assert (directory / CONTENTS).exists()
        os.kill(os.getpid(), number)

    monkeypatch.setattr(backup_command, "_check_backup", ended)
    with answering(200, data, len(data)) as url:
        assert exit_status_of(run_qq, "backup", tmp_path / "new", "--http", url) == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_a_backup_in_no_directory_says_which(tmp_path: Path, run_qq: RunQq) -> None:
    status, _, errors = run_qq("backup", tmp_path / "no" / "such", "--http", "http://127.0.0.1:1")
    assert (status, errors) == (1, [f"qq backup: {tmp_path}/no: No such file or directory"])


def test_backup_refuses_a_directory_created_meanwhile(
    original: Path, tmp_path: Path, run_qq: RunQq, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (original / "backup.tar").read_bytes()
    target, check = tmp_path / "new", backup_command._check_backup

    def overtaken(directory: Path) -> Any:
        target.mkdir()
        (target / "of the other one").touch()
        return check(directory)

    monkeypatch.setattr(backup_command, "_check_backup", overtaken)
    with answering(200, data, len(data)) as url:
        status, _, errors = run_qq("backup", target, "--http", url)
    why = f"{target}: somebody else has made it meanwhile; name a new directory"
    assert (status, errors) == (1, [f"qq backup: {why}"])
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "of the other one"]


def test_broken_output_stream_of_a_backup_is_reported(original: Path) -> None:
    data = (original / "backup.tar").read_bytes() * 100
    with answering(200, data, len(data)) as url, Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "qq", "backup", "-", "--http", url]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        why = "No space left on device; the output is no backup"
        assert (ended.returncode, ended.stderr) == (1, f"qq backup: standard output: {why}\n")
        cut = subprocess.run(
            ["sh", "-c", f"{shlex.join(command)} | head -c 100 > /dev/null"],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert cut.stderr == "qq backup: standard output: Broken pipe; the output is no backup\n"


# Restoring


def test_a_backup_is_restored_once(original: Path, node: Path, run_qq: RunQq) -> None:
    status, lines, errors = run_qq("restore", original / "backup", "--config", node)
    assert (status, errors) == (0, [])
    assert lines[0].startswith("restored: cluster qq up to entry 10 of term 3 ")
    assert lines[1].startswith("node n2 is the only member of a new cluster now, ")
    assert lines[1].endswith(": start it, and then the others with empty data directories")
    status, lines, _ = run_qq("inspect", node.parent / "data")
    assert (status, lines[-1]) == (0, "whole: nothing is damaged")
    before = content(node.parent)
    status, lines, errors = run_qq("restore", original / "backup", "--config", node)
    assert (status, lines) == (1, [])
    assert errors == [
        f"qq restore: {node.parent / 'data'}: is not empty; give the node a new data directory, or empty this one"
    ]
    assert content(node.parent) == before


def test_backup_is_restored_from_a_file_and_from_standard_input(
    original: Path, node: Path, run_qq: RunQq, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (original / "backup.tar", "-"):
        with (original / "backup.tar").open("rb") as file:
            monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=file))
            assert run_qq("restore", path, "--config", node)[0] == 0
        assert run_qq("inspect", node.parent / "data")[0] == 0
        shutil.rmtree(node.parent / "data")


def test_a_directory_that_is_in_use_or_not_empty_is_left_alone(
    original: Path, node: Path, run_qq: RunQq
) -> None:
    data = node.parent / "data"
    disk = RealDisk(data)
    status, _, [error] = run_qq("restore", original / "backup", "--config", node)
    assert (status, error.partition(" (")[0]) == (1, f"qq restore: {data}: in use by another process")
    assert error.endswith("stop the node first")
    disk.close()
    (data / "file").touch()
    before = content(data)
    assert "is not empty" in run_qq("restore", original / "backup", "--config", node)[2][0]
    assert content(data) == before


def test_restore_replaces_the_rest_of_an_interrupted_restore(
    original: Path, node: Path, run_qq: RunQq
) -> None:
    unfinished = node.parent / "data" / "groups" / "restoring"
    unfinished.mkdir(parents=True)
    (unfinished / "identity").write_bytes(b"nonsense")
    (node.parent / "data" / "lock").touch()
    assert run_qq("restore", original / "backup", "--config", node)[0] == 0
    assert not unfinished.exists()
    assert run_qq("inspect", node.parent / "data")[0] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_restore_ended_by_a_signal_leaves_no_files(
    original: Path, node: Path, run_qq: RunQq, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    unfinished = node.parent / "data" / "groups" / "restoring"

    def ended(*arguments: Any) -> Any:
        restore.restore(*arguments)
        assert unfinished.exists()
        os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(restore_command, "restore", ended)
        assert exit_status_of(run_qq, "restore", original / "backup", "--config", node) == 128 + number
    assert not unfinished.exists()
    assert run_qq("restore", original / "backup", "--config", node)[0] == 0


@pytest.fixture(autouse=True)
def signals_end() -> Iterator[None]:
    """Restore the handlers of signals, because tests in the background, or under `nohup`, ignore them."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def exit_status_of(run_qq: RunQq, *arguments: object) -> int | str | None:
    try:
        return run_qq(*arguments)[0]
    except SystemExit as end:
        return end.code


def test_commands_refuse_a_directory_with_an_unfinished_restore(node: Path, run_qq: RunQq) -> None:
    data = node.parent / "data"
    (data / "groups" / "restoring").mkdir(parents=True)
    expected = (
        f"{data}: holds a restore that did not end: give `qq restore` again, or remove groups/restoring in it"
    )
    assert run_qq("inspect", data) == (1, [], [f"qq inspect: {expected}"])
    assert run_qq("recover", "--unsafe-from", data) == (1, [], [f"qq recover: {expected}"])
    assert run_qq("serve", "--config", node)[0] == 1
    assert [path.name for path in (data / "groups").iterdir()] == ["restoring"]


def test_invalid_or_incomplete_backup_is_refused(
    original: Path, backup: Path, node: Path, run_qq: RunQq, tmp_path: Path
) -> None:
    whole = (original / "backup.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "nonsense").write_bytes(b"nonsense" * 1000)
    (backup / SUMS).unlink()
    for path, text in {
        tmp_path / "nowhere": "No such file or directory",
        tmp_path / "cut.tar": "cut",
        tmp_path / "nonsense": "no backup",
        backup: f"the backup is cut: {SUMS}, which comes last, is missing; make another one",
        node.parent: "this is not a backup",
    }.items():
        status, lines, [error] = run_qq("restore", path, "--config", node)
        assert (status, lines) == (1, [])
        assert text in error
        assert not (node.parent / "data").exists()


def test_restore_refuses_an_unsupported_state_version(
    original: Path, node: Path, run_qq: RunQq, monkeypatch: pytest.MonkeyPatch
) -> None:
    low = QueueMachine.versions[0]
    monkeypatch.setattr(QueueMachine, "versions", (low + 2, low + 3))
    status, _, [error] = run_qq("restore", original / "backup", "--config", node)
    assert status == 1
    assert f"at version {low + 1} of the state, and this program can run {low + 2} to {low + 3}" in error
    assert not (node.parent / "data").exists()


@settings(
    max_examples=settings.default.max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_damaged_archive_restores_the_original_or_fails(
    original: Path, node: Path, run_qq: RunQq, data: st.DataObject
) -> None:
    """Octets between the files of a tar archive have no meaning, so a flip there is harmless."""
    whole = (original / "backup.tar").read_bytes()
    damaged = bytearray(whole)
    place = data.draw(st.integers(0, len(whole) - 1))
    is_cut = data.draw(st.booleans())
    if is_cut:
        del damaged[place:]
    else:
        damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    path = node.parent / "damaged.tar"
    path.write_bytes(damaged)
    status, _, errors = run_qq("restore", path, "--config", node)
    if status == 0:
        assert contents_of(bytes(damaged)) == contents_of(whole)
        assert run_qq("inspect", node.parent / "data")[0] == 0
        shutil.rmtree(node.parent / "data")
    else:
        assert len(errors) == 1
        assert not (node.parent / "data").exists()


def contents_of(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {entry.name: file.read() for entry in tar if (file := tar.extractfile(entry))}


# Recovering


def test_recover_without_yes_only_describes_the_survivor(survivor: Path, run_qq: RunQq) -> None:
    before = content(survivor)
    status, lines, errors = run_qq("recover", "--unsafe-from", survivor)
    assert (status, errors) == (1, [])
    low = QueueMachine.versions[0]
    assert lines == [
        f"directory        {survivor / GROUP}",
        f"it is of         node n1 of cluster qq (n1, n2), state version {low}",
        "the log ends     with entry 12 of term 3, made at 2026-01-02T03:04:05.679Z",
        "known committed  up to entry 4 of term 3, made at 2026-01-02T03:04:05.678Z (the newest checkpoint)",
        "uncertain        entries 5 to 12 are all taken as committed, also what was confirmed to nobody",
        "may be missing   what was confirmed to clients behind entry 12, after 2026-01-02T03:04:05.679Z",
        "nothing was changed; if you want this, say --yes",
    ]
    assert content(survivor) == before


def test_a_survivor_is_recovered_once(survivor: Path, run_qq: RunQq) -> None:
    status, lines, errors = run_qq("recover", "--unsafe-from", survivor, "--yes")
    assert (status, errors) == (0, [])
    assert lines[-1].startswith("node n1 is the only member of a new cluster now, ")
    again = run_qq("recover", "--unsafe-from", survivor, "--yes")
    assert (again[0], again[1][-1]) == (0, lines[-1])
    status, lines, _ = run_qq("inspect", survivor)
    assert (status, lines[-1]) == (0, "whole: nothing is damaged")
    assert lines[1].startswith("identity     node n1 of cluster qq (members as in the log), ")


def test_directory_of_a_removed_node_is_reported(survivor: Path, run_qq: RunQq) -> None:
    (survivor / GROUP / "removed").touch()
    status, lines, _ = run_qq("inspect", survivor)
    assert status == 1
    assert lines[-1].endswith("was removed from its cluster, and can be no member again")
    status, lines, _ = run_qq("recover", "--unsafe-from", survivor)
    assert "and more: this node was removed from its cluster, which may have gone on without it" in lines[6]
    assert run_qq("recover", "--unsafe-from", survivor, "--yes")[0] == 0
    assert run_qq("inspect", survivor)[1][-1] == "whole: nothing is damaged"


@pytest.mark.parametrize("is_voter", [True, False])
def test_survivor_without_a_vote_is_reported(run_qq: RunQq, tmp_path: Path, is_voter: bool) -> None:
    """A new node may lack confirmed messages, however long its log is."""
    low = QueueMachine.versions[0]
    disk = RealDisk(tmp_path)
    group, journal, _ = one_of_two(disk)
    group.hard_state.store(HardState(4, "n2", VoterStatus.VOTER))
    n1 = Member("n1", PeerAddress("h1", 1), bytes(16), is_voter=is_voter)
    n2 = Member("n2", PeerAddress("h2", 1), bytes([1]) * 16)
    before = make_configuration(TIME_MS, Configuration.of(low + 1, [n2], b"c" * 16))
    newest = make_configuration(TIME_MS, Configuration.of(low + 1, [n1, n2], b"c" * 16))
    for index, entry in enumerate([*ENTRIES, before, newest], 1):
        journal.add(entry, index, 3)
    journal.sync_now()
    disk.close()
    _, lines, _ = run_qq("recover", "--unsafe-from", tmp_path)
    had_no_vote = "and more: this node was new, had no vote, and was being given the log; a voter has more"
    assert (had_no_vote in map(str.strip, lines)) == (not is_voter)


def test_recover_refuses_a_backup(original: Path, run_qq: RunQq) -> None:
    for backup in (original / "backup", original / "backup.tar"):
        error = f"qq recover: {backup}: is no data directory; of a backup, `qq restore` begins a new cluster"
        assert run_qq("recover", "--unsafe-from", backup, "--yes") == (1, [], [error])


def test_recover_refuses_a_directory_in_use_or_damaged(survivor: Path, run_qq: RunQq, tmp_path: Path) -> None:
    disk = RealDisk(survivor)
    before = content(survivor)
    status, lines, [error] = run_qq("recover", "--unsafe-from", survivor, "--yes")
    assert (status, lines) == (1, [])
    assert error.endswith("stop the node first")
    assert content(survivor) == before
    disk.close()
    status, _, [error] = run_qq("recover", "--unsafe-from", tmp_path / "nowhere", "--yes")
    assert status == 1
    flip(min((survivor / GROUP / "log").glob("*.segment")), 300)
    before = content(survivor)
    status, lines, [error] = run_qq("recover", "--unsafe-from", survivor, "--yes")
    assert (status, lines) == (1, [])
    assert "take the directory of another survivor, or a backup" in error
    assert content(survivor) == before


def test_recover_refuses_a_directory_without_a_log(
    run_qq: RunQq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new node that found no peers leaves such a directory: with the entry at the begin of every log."""
    blank = tmp_path / "blank"
    low = QueueMachine.versions[0]
    disk = RealDisk(blank)
    group, journal, state = one_of_two(disk)
    journal.add(b"\x01", 1, 0)
    journal.sync_now()
    write_checkpoint(disk, group.log, group.identity, 1, 0, state.freeze().pieces())
    disk.close()
    for versions in ((low, low + 1), (low + 2, low + 3)):
        monkeypatch.setattr(QueueMachine, "versions", versions)
        status, lines, [error] = run_qq("recover", "--unsafe-from", blank)
        assert (status, lines) == (1, [])
        assert f"{blank / GROUP}: there is no log in it: take the directory of another survivor" in error


def test_a_survivor_of_a_program_that_is_too_new_is_left_alone(
    survivor: Path, run_qq: RunQq, monkeypatch: pytest.MonkeyPatch
) -> None:
    low = QueueMachine.versions[0]
    monkeypatch.setattr(QueueMachine, "versions", (low, low))
    before = content(survivor)
    status, _, [error] = run_qq("recover", "--unsafe-from", survivor, "--yes")
    assert status == 1
    assert f"at version {low + 1} of the state, and this program can run {low}" in error
    assert content(survivor) == before
