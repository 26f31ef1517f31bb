"""Commands at a silent node, such as a frozen node: it accepts the connection and never answers."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qq.cli import main
from qq.cli.client import remote
from qq.cli.terminal import progress

if TYPE_CHECKING:
    from collections.abc import Generator

CHECKOUT = Path(__file__).parents[2]
GRACE_S = 0.2
REMEDY = "; look at the node, or name another node with --url"


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """The URL of a silent server; all times except the command's own are short."""
    monkeypatch.setattr(remote, "_GRACE_S", GRACE_S)
    monkeypatch.setattr(progress, "NOTICE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("command", "path", "waiting_for"),
    [
        (["drain"], "members", "an answer"),
        (["drain", "n2"], "members/n2/drain", "n2 to lead nothing and have no clients"),
        (["revive", "n2"], "members/n2/drain", "the maintenance of n2 to end"),
        (["member", "add", "n4", "h:7"], "members/n4", "n4 to come"),
        (["member", "remove", "n2"], "members", "an answer"),
        (["upgrade", "finish"], "upgrade/finish", "the upgrade to be finished"),
        (["leader", "transfer", "--to", "n3"], "leader", "n3 to lead"),
        (["check", "safe-to-stop"], "safe-to-stop", "the others to go on without it"),
    ],
)
def test_command_ends_at_its_timeout_without_claiming_success(
    silent: str, capsys: pytest.CaptureFixture[str], command: list[str], path: str, waiting_for: str
) -> None:
    assert main([*command, "--http", silent, "--timeout", "0.1"]) == 1
    *waiting, error = capsys.readouterr().err.splitlines()
    assert re.search(rf"/{path}: no answer within 0\.[23]\d? s{REMEDY}$", error)
    why = "" if waiting_for == "an answer" else f": {silent} has not answered yet"
    assert set(waiting) <= {f"waiting for {waiting_for} ({tenths / 10:g} s){why}" for tenths in range(1, 100)}
    assert waiting


@pytest.mark.parametrize("command", [["status"], ["leader", "transfer"], ["check", "safe-to-stop"]])
def test_command_without_a_timeout_waits_for_the_default_timeout(
    silent: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr(remote, "_ANSWER_TIMEOUT_S", 0.4)
    assert main([*command, "--http", silent]) == 1
    assert capsys.readouterr().err.endswith(f": no answer within 0.4 s{REMEDY}\n")


def test_backup_from_a_silent_node_times_out(
    silent: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(remote, "_STREAM_TIMEOUT_S", 0.3)
    assert main(["backup", str(tmp_path / "new"), "--http", silent]) == 1
    first, *_, error = capsys.readouterr().err.splitlines()
    assert first == "waiting for the answer to begin (0.1 s)"
    assert error == f"qq backup: {silent}/api/cluster/backup: no answer within 0.3 s{REMEDY}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["-", "new"])
def test_backup_from_a_node_that_falls_silent_times_out(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "NOTICE_S", 0.1)
    monkeypatch.setattr(remote, "_STREAM_TIMEOUT_S", 0.35)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                head = "HTTP/1.1 200 OK\r\nContent-Type: application/x-tar\r\nContent-Length: 99999\r\n\r\n"
                for part in (head.encode(), *[bytes(10)] * 3):
                    connection.sendall(part)
                    is_over.wait(0.05)  # less than it takes to be told
                is_over.wait(10)

        is_over = threading.Event()
        answering = threading.Thread(target=answer)
        answering.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert main(["backup", target, "--http", url]) == 1
        is_over.set()
        answering.join()
    *waiting, error = capfd.readouterr().err.splitlines()
    assert f"waiting for more of the answer of {url} (0.2 s)" in waiting
    assert set(waiting) <= {f"waiting for more of the answer of {url} (0.{n} s)" for n in range(1, 10)}
    assert error == (
        f"qq backup: {url}/api/cluster/backup: the answer was broken off: nothing has come for 0.35 s: "
        "try again, or ask another node"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_backup_that_waits_can_be_ended(silent: str, tmp_path: Path) -> None:
    command = [sys.executable, "-P", str(CHECKOUT / "qq" / "__main__.py"), "backup", "new", "--http", silent]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"waiting for the answer to begin (1 s)\n"
        process.send_signal(signal.SIGINT)
        assert (process.wait(30), process.stderr.read().count(b"Traceback")) == (130, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", ["qq.cli", "click", "http.client", "qq.cli.commands.status"])
def test_an_interrupted_import_is_no_error(module: str) -> None:
    entry = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["scripts"]["qq"]
    program = f"""
import sys
class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
sys.argv[1:] = ["status", "--http", "127.0.0.1:9"]
from {entry.partition(":")[0]} import {entry.partition(":")[2]} as run
sys.exit(run())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (130, "")


@pytest.mark.parametrize(
    "module", ["qq.process.garbage", "qq.cli", "click", "qq.cli.command_line.values", "uvloop"]
)
def test_ctrl_c_in_the_middle_of_an_import_is_not_lost(module: str) -> None:
    """Python only prints an exception in a finalizer: of ten interrupted nodes, one continued."""
    program = f"""
import os, signal, sys
class Interrupted:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            Interrupted()
sys.meta_path.insert(0, Interrupts())
sys.argv[1:] = ["serve", "--config", "no-such-file"]
from qq.__main__ import run
sys.exit(run())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, timeout=30, check=False
    )
    assert (ended.returncode, ended.stderr) == (130, "")


def test_first_process_ends_at_a_signal_during_import() -> None:
    """The system ends no such process by itself: `docker stop` waited in vain and killed a node that had just begun."""
    program = """
import os, signal, sys
class Ends:
    def find_spec(self, name, path, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Ends())
sys.argv[1:] = ["status", "--http", "127.0.0.1:9"]
from qq.__main__ import run
sys.exit(run())
"""
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    ended = subprocess.run(
        [*alone, sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGTERM, "")
