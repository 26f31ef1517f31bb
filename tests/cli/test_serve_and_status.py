"""`qq serve`, a real process around a stub node, and `qq status`."""

from __future__ import annotations

import json
import logging
import os
import signal
import socketserver
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from qq import __version__
from qq.cli.local.launch import node_environment
from qq.cli.local.serve import LineFormatter
from qq.cli.local_files import local_nodes, prepare
from tests.cli.processes import started

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    Called = Callable[..., tuple[int, str, str]]


@pytest.fixture
def config(tmp_path: Path, base_port: int) -> Path:
    nodes = local_nodes(tmp_path, 3, base_port)
    prepare(tmp_path, nodes, fresh=False)
    return nodes[0].config


@contextmanager
def answering(answer: bytes) -> Generator[str]:
    """Give the URL of a server that says the same to everyone."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def started_with(config: Path) -> str:
    """Return the line that a node logs when it starts, without the time."""
    data = config.parent / "data"
    return f"INFO qq.cli.local.serve: node n1 of qq {__version__}, configured by {config}, data in {data}\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_stops_with_status_0(tmp_path: Path, config: Path, number: signal.Signals) -> None:
    with started(tmp_path, "serve", "--config", str(config)) as qq:
        qq.until_line("n1 serves")
        qq.process.send_signal(number)
        assert qq.exit_status() == 0
        first, last = qq.errors.splitlines()
        assert f"{first}\n".endswith(started_with(config))
        assert last.endswith("INFO qq.cli.local.serve: node n1 was told to stop, and has stopped")


@pytest.mark.parametrize("how", ["STUB_HANGS", "STUB_STUBBORN"])
def test_serve_ends_at_its_deadline_although_a_task_hangs(tmp_path: Path, config: Path, how: str) -> None:
    with started(tmp_path, "serve", "--config", str(config), **{how: "n1"}) as qq:
        qq.until_line("n1 serves")
        qq.process.send_signal(signal.SIGTERM)
        assert qq.exit_status() == 1
        assert "CRITICAL qq.cli.local.serve: not stopped 2 s after a signal: something hangs" in qq.errors


def test_serve_reports_on_a_single_line_why_a_node_cannot_start(tmp_path: Path, config: Path) -> None:
    with started(tmp_path, "serve", "--config", str(config), STUB_REFUSES="n1") as qq:
        assert qq.exit_status() == 1
        expected = f"qq serve: {config.parent / 'data'}: belongs to another node\n"
        assert qq.errors.endswith(started_with(config) + expected)


def test_serve_reports_an_invalid_configuration_on_a_single_line(tmp_path: Path, config: Path) -> None:
    with started(tmp_path, "serve", "--config", str(config), QQ_NODE_NAME="n9") as qq:
        assert qq.exit_status() == os.EX_CONFIG
        assert qq.errors == f"qq serve: {config}: [node] name: 'n9' is not the name of one of the [[nodes]]\n"


def test_unreadable_configuration_exits_as_a_configuration_error(tmp_path: Path, called: Called) -> None:
    """The status stops restarts by a supervisor. Of an unreadable file the system's error is printed."""
    config = tmp_path / "node.toml"
    config.write_text("[node]\n")
    config.chmod(0)
    with patch.object(os, "access", return_value=False):
        status, _, errors = called("serve", "--config", str(config))
    assert status == os.EX_CONFIG
    assert errors.startswith(f"qq serve: {config}: ")


def test_serve_refuses_unknown_qq_variables_except_of_commands(tmp_path: Path, config: Path) -> None:
    with started(tmp_path, "serve", "--config", str(config), QQ_CLUSTR_SECRET="s" * 16) as qq:
        assert qq.exit_status() == os.EX_CONFIG
        assert qq.errors == "qq serve: environment: QQ_CLUSTR_SECRET: there is no such key\n"
    of_status = {"QQ_USER": "guest", "QQ_PASSWORD": "guest", "QQ_PASSWORD_FILE": "p"}
    with started(tmp_path, "serve", "--config", str(config), **of_status) as qq:
        qq.until_line("n1 serves")


def test_serve_does_not_start_without_its_parent(tmp_path: Path, config: Path) -> None:
    with started(tmp_path, "serve", "--config", str(config), QQ_PARENT_PID="1") as qq:
        assert qq.exit_status() == 1
        assert qq.errors == "qq serve: the `qq up` that started this node is gone\n"


def test_status_is_a_table_or_the_answer_itself(
    tmp_path: Path, config: Path, base_port: int, called: Called
) -> None:
    url = f"http://127.0.0.1:{base_port + 10000}/"
    with started(tmp_path, "serve", "--config", str(config)) as node:
        node.until_line("n1 serves")
        status, output, _ = called("status", "--wide", "--http", url)
        assert status == 1
        assert output.splitlines() == [
            (
                "not well: publishers wait, for want of disk or memory of n1; has not come yet: n2, n3; "
                "n1 leads; under maintenance: n2, n3"
            ),
            "cluster qq, version 8 of the state, as n1 sees it",
            (
                "name  state   role     standing  term  first  last  commit  applied  checkpoint  disk free  alarm"
                "  clock offset  versions  drained"
            ),
            (
                "n1    leader  voter    voter     3     7      120   119     118      100         5.0 GiB    yes"
                "    -0.8 s        7 to 8    no"
            ),
            (
                "n2    down    awaited  -         -     -      -     -       -        -           -          -"
                "      -             -         yes"
            ),
            (
                "n3    down    awaited  -         -     -      -     -       -        -           -          -"
                "      -             -         yes"
            ),
        ]
        status, output, _ = called("status", "--http", url, "--json")
        assert (status, json.loads(output)["nodes"][0]["commit_index"]) == (1, 119)
        refused = f"qq status: {url}api/cluster: login of 'guest' was refused\n"
        assert called("status", "--http", url, "--password", "wrong") == (1, "", refused)


def test_a_node_trusts_the_authorities_that_the_system_trusts() -> None:
    """A shovel to `amqps://` without authorities in its URI needs them."""
    with patch.dict(os.environ, SSL_CERT_FILE="/etc/ssl/cert.pem"):
        assert node_environment()["SSL_CERT_FILE"] == "/etc/ssl/cert.pem"


def test_password_is_read_from_an_option_file_or_variable(
    tmp_path: Path, config: Path, base_port: int, called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{base_port + 10000}"
    good, wrong, empty = (tmp_path / name for name in ("good", "wrong", "empty"))
    good.write_text("p4ss\n")
    wrong.write_text("wrong\n")
    empty.write_text("\n")
    default = {"QQ_USERS_DEFAULT_USER": "admin", "QQ_USERS_DEFAULT_PASSWORD": "p4ss"}

    def error_of(*options: str, **environ: str) -> str:
        with monkeypatch.context() as patch:
            for variable, value in environ.items():
                patch.setenv(variable, value)
            status, _, errors = called("member", "list", "--http", url, *options)
        assert status == (2 if "--help" in errors else 1 if errors else 0)
        return errors.removeprefix("qq member list: ").removesuffix("\n")

    with started(tmp_path, "serve", "--config", str(config), **default) as node:
        node.until_line("n1 serves")
        assert error_of("--user", "admin", "--password-file", str(good)) == ""
        assert error_of(QQ_USER="admin", QQ_PASSWORD="p4ss") == ""
        assert error_of(QQ_USER="admin", QQ_PASSWORD_FILE=str(good)) == ""
        # An option counts more than the environment.
        refused = f"{url}/api/cluster/members: login of 'admin' was refused"
        assert error_of("--user", "admin", QQ_USER="guest", QQ_PASSWORD="p4ss") == ""
        assert error_of("--password-file", str(good), QQ_USER="admin", QQ_PASSWORD="wrong") == ""
        assert error_of("--password", "p4ss", QQ_USER="admin", QQ_PASSWORD_FILE=str(wrong)) == ""
        assert error_of("--password-file", str(wrong), QQ_USER="admin", QQ_PASSWORD="p4ss") == refused
        assert error_of(QQ_USER="admin") == refused
        assert error_of("--password-file", str(empty)) == f"{empty}: is empty"
        assert error_of(QQ_PASSWORD_FILE="none") == "none: cannot be read: No such file or directory"
        both = "environment: give either QQ_PASSWORD or QQ_PASSWORD_FILE"
        assert error_of(QQ_PASSWORD="p4ss", QQ_PASSWORD_FILE=str(good)) == both
        either = "give either --password or --password-file (see `qq member list --help`)"
        assert error_of("--password", "p4ss", "--password-file", str(good)) == either


FOREIGN = "the answer is not that of a qq node"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n[]", FOREIGN),
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n{", FOREIGN),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi", FOREIGN),
        (
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
            f"HTTP status 503: {FOREIGN}",
        ),
        (b"AMQP\x00\x00\x09\x01", FOREIGN),
        (
            b"",
            (
                "the connection was lost before the answer (Remote end closed connection without response); is it the "
                "HTTP port of a node, by default 15672? Ports for AMQP, for other nodes and for TLS end such a "
                "connection"
            ),
        ),
    ],
)
def test_status_reports_a_foreign_or_malformed_answer(called: Called, answer: bytes, expected: str) -> None:
    with answering(answer) as url:
        status, _, errors = called("status", "--http", url)
        assert status == 1
        assert errors.removeprefix(f"qq status: {url}").removeprefix("/api/cluster") == f": {expected}\n"


def test_list_by_name_refuses_the_answer_of_release_0_1(called: Called) -> None:
    """Release 0.1 gives this answer to any request."""
    whole = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n[]"
    with answering(whole) as url:
        status, _, errors = called("list", "queues", "--name", "q", "--url", url)
        older = "this node is of a release that looks for no names in lists; upgrade it first"
        assert (status, errors) == (1, f"qq list queues: {url}: {older}\n")


def test_status_reports_that_no_node_listens(tmp_path: Path, base_port: int) -> None:
    url = f"http://127.0.0.1:{base_port}"
    with started(tmp_path, "status", "--http", url) as qq:
        assert qq.exit_status() == 1
        assert qq.errors.startswith(f"qq status: {url}/api/cluster: cannot connect")
        assert qq.errors.count("\n") == 1


def test_a_small_command_does_not_load_a_node() -> None:
    program = (
        "import sys; from qq.cli import main; main(['status', '--http', 'http://127.0.0.1:9']); "
        "assert 'qq.cli.commands.status' in sys.modules; assert 'qq.node' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30, capture_output=True)


def test_log_lines_escape_control_characters() -> None:
    record = logging.LogRecord("qq", logging.INFO, "", 0, "no queue '%s'", ("a\nINFO forged\x1b[2J",), None)
    assert (
        LineFormatter("%(levelname)s %(message)s").format(record)
        == r"INFO no queue 'a\x0aINFO forged\x1b[2J'"
    )
