"""The Dockerfile without an engine: its steps work, and a node finds its files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import metadata
from pathlib import Path
from threading import Thread

import pytest

from qq import __version__
from qq.config import load
from qq.testing import ClusterNode
from tests.deploy.deployment import DEPLOY, RUNS_AS, WHEEL_OPTIONS
from tests.deploy.dockerfile import Instruction, stages

pytestmark = pytest.mark.xdist_group("deploy")

STAGES = stages(DEPLOY / "Dockerfile")
SOURCES = "/usr/local/src/qq"
CONFIG = load(
    DEPLOY / "compose" / "node.toml",
    {"QQ_NODE_NAME": "n1", "QQ_CLUSTER_SECRET": "x" * 16, "QQ_USERS_DEFAULT_PASSWORD": "x"},
)


def instructions(stage: str, name: str) -> list[Instruction]:
    return [instruction for instruction in STAGES[stage] if instruction.name == name]


def only(stage: str, name: str) -> Instruction:
    (instruction,) = instructions(stage, name)
    return instruction


def test_node_stage_is_the_default_build() -> None:
    assert list(STAGES)[-1] == "node"


@pytest.mark.parametrize("stage", ["node", "chaos"])
def test_containers_run_as_the_qq_user(stage: str) -> None:
    user = only(stage, "USER").text
    assert user == f"{RUNS_AS}:{RUNS_AS}"
    created = next(step.text for step in instructions(stage, "RUN") if "useradd" in step.text)
    assert f"groupadd --system --gid {RUNS_AS} qq" in created
    assert f"useradd --system --uid {RUNS_AS} --gid qq" in created


@pytest.mark.parametrize("stage", ["node", "chaos"])
def test_image_labels_give_licenses_and_version(stage: str) -> None:
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', only(stage, "LABEL").text))
    arguments = dict(re.findall(r"^ARG (\w+)=(.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE))
    assert labels.keys() == {"title", "description", "licenses", "version", "revision"}
    assert (labels["licenses"], labels["version"], labels["revision"]) == (
        metadata("qq-broker")["License-Expression"],
        "${VERSION}",
        "${REVISION}",
    )
    assert arguments["VERSION"] == __version__
    # An argument before the first stage is known only in stages that declare it.
    assert [step.text for step in instructions(stage, "ARG")] == ["VERSION", "REVISION"]


def test_a_node_describes_itself_as_its_package_does() -> None:
    assert f'description="{metadata("qq-broker")["Summary"]}"' in only("node", "LABEL").text


def test_image_copies_only_the_built_packages() -> None:
    (packages,) = [step.text for step in instructions("node", "COPY")]
    assert packages == "--from=build /usr/local/qq /usr/local/qq"
    packages, *sources = [step.text for step in instructions("chaos", "COPY")]
    assert packages == "--from=chaos-build /usr/local/qq /usr/local/qq"
    assert sources == [f"--chmod=0755 {name} {SOURCES}/{name}" for name in ("chaos", "cluster")], (
        "read by the image's user, whoever may read the checkout"
    )
    assert f"PYTHONPATH={SOURCES}" in only("chaos", "ENV").text.split()
    assert {"build", "chaos-build"} < set(STAGES)


def test_node_is_pid_1_and_stops_at_sigterm() -> None:
    assert only("node", "STOPSIGNAL").text == "SIGTERM"
    assert only("node", "ENTRYPOINT").arguments == ["qq", "serve"]
    assert only("node", "CMD").arguments == ["--config", "/etc/qq/node.toml"]


def test_chaos_workload_stops_at_sigint() -> None:
    assert only("chaos", "STOPSIGNAL").text == "SIGINT"


def test_image_volume_and_ports_match_the_configuration() -> None:
    assert Path(only("node", "VOLUME").text) == CONFIG.data_dir
    address = CONFIG.address
    exposed = {int(port) for port in only("node", "EXPOSE").text.split()}
    assert exposed == {address.amqp_port, 5671, address.http_port, address.peer_port}


def test_installed_packages_are_pinned_with_hashes() -> None:
    installs = [
        command
        for stage in ("build", "chaos-build")
        for step in instructions(stage, "RUN")
        for command in re.findall(r"pip (?:--python \S+ )?(?:install|wheel) [^&]*", step.text)
    ]
    assert len(installs) == 7
    for command in installs:
        assert "--require-hashes" in command or "--no-deps" in command or "--no-index" in command, command


# The steps


def test_wheel_is_built_with_the_tested_command() -> None:
    """tests/deploy/test_wheel.py checks its contents, and that it works."""
    step = next(step.text for step in instructions("build", "RUN") if "--no-deps" in step.text)
    assert f"pip wheel {' '.join(WHEEL_OPTIONS)} --wheel-dir wheels ." in step


@pytest.mark.long
def test_chaos_image_runs_from_its_sources(context: Path, wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    (tmp_path / "src").mkdir()
    for name in ("chaos", "cluster"):
        (tmp_path / "src" / name).symlink_to(context / name)
    shown = subprocess.run(
        [sys.executable, "-P", "-m", "chaos", "run", "--help"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'src'}:{tmp_path / 'site'}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "--endpoints" in shown.stdout


# The health check


def health(port: int) -> int:
    """Run the image's health check against a port of this machine, behind a proxy that is not there."""
    command = only("node", "HEALTHCHECK")
    interpreter, option, code = command.arguments
    assert (interpreter, option) == ("python", "-ISc")
    assert str(CONFIG.address.http_port) in code
    checked = subprocess.run(
        [sys.executable, option, code.replace(str(CONFIG.address.http_port), str(port))],
        env={**os.environ, "http_proxy": "http://127.0.0.1:1"},
        check=False,
        capture_output=True,
        timeout=30,
    )
    return checked.returncode


@pytest.fixture
def port_of_unready_node() -> Generator[int]:
    class Unready(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if self.path == "/healthz" else 200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Unready) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_node_that_serves_is_healthy(node: ClusterNode) -> None:
    assert health(node.http_port) == 0


def test_a_node_that_does_not_serve_is_not(port_of_unready_node: int) -> None:
    assert health(port_of_unready_node) == 1
