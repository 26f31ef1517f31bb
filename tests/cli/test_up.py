"""`qq up`, as real processes around a stub node."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import stat
import subprocess
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qq.cli.local.up import _outgoing_ports, _why_not_bound
from qq.cli.local_files import local_nodes
from qq.config import load
from tests.cli.processes import is_alive, nodes_of, started, wait_until
from tests.harness.certificates import Authority

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tests.cli.processes import Qq


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "var"


def up(data_dir: Path, base_port: int, *options: str, **environ: str) -> AbstractContextManager[Qq]:
    if "--nodes" not in options:
        options = ("--nodes", "1", *options)
    arguments = ("up", "--data-dir", str(data_dir), "--base-port", str(base_port), *options)
    return started(data_dir.parent, *arguments, STUB_LISTENS="yes", **environ)


def refusal(data_dir: Path, base_port: int, *options: str, **environ: str) -> str:
    """Return the single line on standard error of a failed start."""
    with up(data_dir, base_port, *options, **environ) as qq:
        assert qq.exit_status() == 1
        assert qq.errors.count("\n") == 1
        return qq.errors


def run_once(data_dir: Path, base_port: int, *options: str) -> None:
    with up(data_dir, base_port, *options) as qq:
        qq.until_line("cluster ready")


def test_up_writes_cluster_json_before_the_cluster_is_ready(data_dir: Path, base_port: int) -> None:
    with up(data_dir, base_port, "--nodes", "3") as qq:
        qq.until_line("cluster ready")
        cluster = json.loads((data_dir / "cluster.json").read_text())
        assert (cluster["user"], cluster["password"]) == ("guest", "guest")
        assert sorted(cluster) == ["nodes", "password", "user"]
        assert f"for commands: export QQ_URL=http://127.0.0.1:{base_port + 10000}\n" in qq.output
        for number, node in enumerate(cluster["nodes"]):
            assert f"/  pid {node['pid']}\n" in qq.output
            assert is_alive(node.pop("pid"))
            assert node == {
                "name": f"n{number + 1}",
                "amqp_port": base_port + number,
                "http_port": base_port + 10000 + number,
                "peer_port": base_port + 20000 + number,
                "data_dir": str(data_dir / f"n{number + 1}" / "data"),
                "config": str(data_dir / f"n{number + 1}" / "node.toml"),
            }
            assert f"amqp://guest:guest@127.0.0.1:{base_port + number}/" in qq.output
            assert f"http://127.0.0.1:{base_port + 10000 + number}/" in qq.output
            with urllib.request.urlopen(f"http://127.0.0.1:{node['http_port']}/healthz") as answer:
                assert answer.status == 200


def test_up_shows_https_when_the_environment_says_so(data_dir: Path, base_port: int, tmp_path: Path) -> None:
    files = Authority(tmp_path).issue("server")
    environment = {"QQ_HTTP_TLS_CERT": str(files.cert), "QQ_HTTP_TLS_KEY": str(files.key)}
    with up(data_dir, base_port, **environment) as qq:
        qq.until_line("cluster ready")
        assert f"  https://127.0.0.1:{base_port + 10000}/  " in qq.output
        assert f"for commands: export QQ_URL=https://127.0.0.1:{base_port + 10000}\n" in qq.output
        assert "http://" not in qq.output


def test_up_passes_only_real_settings_to_its_nodes(data_dir: Path, base_port: int) -> None:
    foreign_variables = {
        "QQ_SECRET": "of another program",
        "QQ_NODE_NAME": "n1",
        "QQ_NODE_DATA_DIR": "/dev/null",
    }
    settings = {"QQ_NODE_LOG_LEVEL": "error"}
    with up(data_dir, base_port, **foreign_variables, **settings) as qq:
        qq.until_line("cluster ready")
        for node in nodes_of(data_dir):
            assert (data_dir / node["name"] / "log").read_text() == f"{node['name']} serves\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_nodes_and_the_exit_status_is_0(
    data_dir: Path, base_port: int, number: signal.Signals
) -> None:
    with up(data_dir, base_port) as qq:
        qq.until_line("cluster ready")
        pids = [node["pid"] for node in nodes_of(data_dir)]
        qq.process.send_signal(number)
        assert qq.exit_status() == 0
        assert qq.errors == ""
        assert not any(map(is_alive, pids))


def test_up_writes_complete_configurations_with_mode_600(data_dir: Path, base_port: int) -> None:
    run_once(data_dir, base_port, "--nodes", "3")
    first, second = (load(data_dir / name / "node.toml", {}) for name in ("n1", "n2"))
    assert first.secrets == second.secrets
    assert first.nodes == second.nodes
    assert first.data_dir.is_dir()
    for file in ("secret", "cluster.json", "n1/node.toml"):
        assert stat.S_IMODE((data_dir / file).stat().st_mode) == 0o600


def test_up_keeps_data_and_secret_unless_fresh(data_dir: Path, base_port: int) -> None:
    run_once(data_dir, base_port)
    secret = (data_dir / "secret").read_text()
    stored, own = data_dir / "n1" / "data" / "journal", data_dir / "notes.txt"
    stored.touch()
    own.touch()
    run_once(data_dir, base_port)
    assert stored.exists()
    assert (data_dir / "secret").read_text() == secret
    run_once(data_dir, base_port, "--fresh")
    assert not stored.exists()
    assert (data_dir / "secret").read_text() != secret
    assert own.exists()


def test_up_shows_node_output_with_the_name_and_logs_it(data_dir: Path, base_port: int) -> None:
    with up(data_dir, base_port) as qq:
        qq.until_line("n1 | n1 serves")
        assert "n1 serves\n" in (data_dir / "n1" / "log").read_text()


def test_a_node_that_is_killed_is_reported_and_not_started_again(data_dir: Path, base_port: int) -> None:
    with up(data_dir, base_port, "--nodes", "3") as qq:
        qq.until_line("cluster ready")
        before = nodes_of(data_dir)
        os.kill(before[1]["pid"], signal.SIGKILL)
        qq.until_line(f"n2 (pid {before[1]['pid']}) was killed by SIGKILL")
        assert is_alive(before[0]["pid"])
        assert nodes_of(data_dir) == before
        qq.process.terminate()
        assert qq.exit_status() == 0


def test_up_ends_when_all_nodes_have_ended(data_dir: Path, base_port: int) -> None:
    with up(data_dir, base_port, "--nodes", "3") as qq:
        qq.until_line("cluster ready")
        for node in nodes_of(data_dir):
            os.kill(node["pid"], signal.SIGKILL)
        assert qq.exit_status() == 1
        assert qq.output.count("was killed by SIGKILL") == 3
        assert (
            qq.errors == f"qq up: all nodes that were started here have ended; their logs are in {data_dir}\n"
        )


def test_up_shows_node_output_before_the_cluster_is_ready(data_dir: Path, base_port: int) -> None:
    with up(data_dir, base_port, "--nodes", "3") as qq:
        qq.until_line("cluster ready")
        before = qq.output.partition("3 nodes, data in")[0]
        assert {f"n{number} | n{number} serves" for number in (1, 2, 3)} <= set(before.splitlines())


def test_up_warns_of_ports_for_outgoing_connections(data_dir: Path) -> None:
    def proxy_of(base_port: int, outgoing: range) -> str | None:
        return _outgoing_ports(local_nodes(data_dir, 3, base_port), outgoing)

    assert proxy_of(12_765, range(32_768, 61_000)) is None
    assert proxy_of(12_767, range(32_768, 61_000)) == (
        "the system may give ports 32768, 32769 to outgoing connections: "
        "a node that starts again may find its port taken"
    )
    assert "12767, 12768, 12769, 22767, 22768, 22769 to" in (proxy_of(12_767, range(1, 32_767)) or "")


def test_used_port_of_the_outgoing_range_is_explained() -> None:
    used = OSError(errno.EADDRINUSE, "in use")
    assert _why_not_bound(used, 5672, range(32_768, 61_000)) == "is in use"
    assert "so that all ports are below 32768" in _why_not_bound(used, 45_000, range(32_768, 61_000))


def test_killed_node_of_up_can_be_started_by_hand(data_dir: Path, base_port: int) -> None:
    with up(data_dir, base_port, "--nodes", "3") as qq:
        qq.until_line("cluster ready")
        node = nodes_of(data_dir)[0]
        os.kill(node["pid"], signal.SIGKILL)
        qq.until_output("was killed by SIGKILL")
        with started(data_dir.parent, "serve", "--config", node["config"]) as by_hand:
            by_hand.until_line("n1 serves")


def test_with_restart_a_node_that_dies_is_started_again(data_dir: Path, base_port: int) -> None:
    with up(data_dir, base_port, "--restart") as qq:
        qq.until_line("cluster ready")
        [before] = nodes_of(data_dir)
        os.kill(before["pid"], signal.SIGTERM)
        qq.until_line(f"n1 (pid {before['pid']}) exited with status 0")
        qq.until_output("n1 started again")
        [after] = nodes_of(data_dir)
        assert after["pid"] != before["pid"]
        assert is_alive(after["pid"])


def test_a_node_that_cannot_start_stops_the_command(data_dir: Path, base_port: int) -> None:
    with up(data_dir, base_port, "--nodes", "3", STUB_REFUSES="n2") as qq:
        assert qq.exit_status() == 1
        assert "n2 | qq serve: " in qq.output
        assert "belongs to another node" in qq.output
        assert "Traceback" not in qq.output
        assert qq.errors.startswith("qq up: n2 (pid ")
        assert "exited with status 1 before the cluster was ready; see " in qq.errors
        assert not (data_dir / "cluster.json").exists()


def test_up_serves_without_a_removed_node(data_dir: Path, base_port: int) -> None:
    with up(data_dir, base_port, "--nodes", "3", STUB_REMOVED="n2") as qq:
        qq.until_line("cluster ready")
        assert "n2 | qq serve: " in qq.output
        assert [node["name"] for node in nodes_of(data_dir)] == ["n1", "n3"]
        qq.process.terminate()
        assert qq.exit_status() == 0


def test_a_node_that_does_not_stop_is_killed(data_dir: Path, base_port: int) -> None:
    with up(data_dir, base_port, STUB_STUBBORN="n1") as qq:
        qq.until_line("cluster ready")
        [node] = nodes_of(data_dir)
        qq.process.terminate()
        assert qq.exit_status() == 0
        assert f"n1 (pid {node['pid']}) did not stop" in qq.output
        assert not is_alive(node["pid"])


def test_no_node_outlives_a_command_that_is_killed(data_dir: Path, base_port: int) -> None:
    with up(data_dir, base_port) as qq:
        qq.until_line("cluster ready")
        pids = [node["pid"] for node in nodes_of(data_dir)]
        qq.process.kill()
        wait_until(lambda: not any(map(is_alive, pids)), "a node is still alive")


def test_unread_output_of_up_delays_neither_nodes_nor_the_stop(data_dir: Path, base_port: int) -> None:
    arguments = ("up", "--data-dir", str(data_dir), "--base-port", str(base_port), "--nodes", "1")
    with started(
        data_dir.parent, *arguments, stdout=subprocess.PIPE, STUB_LISTENS="yes", STUB_CHATTY="n1"
    ) as qq:
        assert qq.process.stdout is not None
        with qq.process.stdout:
            wait_until((data_dir / "cluster.json").exists, "the cluster is not ready")
            qq.process.terminate()
            assert qq.exit_status() == 0
        assert (data_dir / "n1" / "log").read_text().count("chatter\n") == 100_000


@pytest.mark.parametrize(("offset", "expected"), [(1, "AMQP"), (10001, "HTTP"), (20001, "peers")])
def test_up_refuses_a_port_in_use(data_dir: Path, base_port: int, offset: int, expected: str) -> None:
    with socket.create_server(("127.0.0.1", base_port + offset)):
        line = refusal(data_dir, base_port, "--nodes", "3")
    assert line == f"qq up: port {base_port + offset} ({expected} of n2) is in use\n"


def test_up_refuses_a_directory_in_use(data_dir: Path, base_port: int) -> None:
    with up(data_dir, base_port) as qq:
        qq.until_line("cluster ready")
        before = nodes_of(data_dir)
        line = refusal(data_dir, base_port + 5, "--fresh")
        assert line == f"qq up: {data_dir} is in use by another local cluster\n"
        assert nodes_of(data_dir) == before


def test_up_refuses_a_different_number_of_nodes_unless_fresh(data_dir: Path, base_port: int) -> None:
    run_once(data_dir, base_port)
    line = refusal(data_dir, base_port, "--nodes", "3")
    assert line == f"qq up: {data_dir} holds a cluster of 1 nodes, not 3; --fresh deletes it\n"
    run_once(data_dir, base_port, "--nodes", "3", "--fresh")


def test_up_refuses_a_damaged_configuration_unless_fresh(data_dir: Path, base_port: int) -> None:
    run_once(data_dir, base_port)
    (data_dir / "n1" / "node.toml").write_bytes(b"\xff\x00nodes")
    assert "node.toml is damaged; --fresh deletes the cluster" in refusal(data_dir, base_port)
    run_once(data_dir, base_port, "--fresh")


def test_up_refuses_a_file_as_its_directory(data_dir: Path, base_port: int) -> None:
    data_dir.touch()
    assert (
        refusal(data_dir, base_port)
        == f"qq up: cannot use the directory {data_dir}: {data_dir}: File exists\n"
    )


def test_up_refuses_a_log_that_cannot_be_written(data_dir: Path, base_port: int) -> None:
    (data_dir / "n1" / "log").mkdir(parents=True)
    line = refusal(data_dir, base_port)
    assert line == f"qq up: cannot use the directory {data_dir}: {data_dir}/n1/log: Is a directory\n"


def test_up_refuses_a_directory_that_cannot_be_written(data_dir: Path, base_port: int) -> None:
    # No user can create files there, not even root, whom the mode of an ordinary directory would not stop.
    data_dir.symlink_to("/sys/kernel")
    assert refusal(data_dir, base_port).startswith("qq up: cannot use the directory ")


def test_fresh_keeps_a_user_directory_named_like_a_node(data_dir: Path, base_port: int) -> None:
    letters = data_dir / "n2" / "letters.txt"
    letters.parent.mkdir(parents=True)
    letters.touch()
    run_once(data_dir, base_port, "--fresh")
    assert letters.exists()


@pytest.mark.parametrize("options", [["--nodes", "2"], ["--base-port", "60000"], ["--base-port", "x"]])
def test_options_that_cannot_work_are_refused(data_dir: Path, base_port: int, options: list[str]) -> None:
    with up(data_dir, base_port, *options) as qq:
        assert qq.exit_status() == 2
        assert "Traceback" not in qq.errors
    assert not data_dir.exists()
