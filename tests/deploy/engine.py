"""docker-compose.yml, run by an engine of this machine under a project name of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any

from tests.deploy.deployment import NODES, ROOT

PROJECT = "qq-deploy-test"
BUILT_FROM = "0123456789abcdef"
"""The revision that the image is told it was built from."""
PASSWORD = "of the deployment's test"
"""Of the user `app` and of Grafana's `admin`. A file .env of this directory does not count."""
ENVIRONMENT = {
    "COMPOSE_PROJECT_NAME": PROJECT,
    "QQ_PASSWORD": PASSWORD,
    "QQ_CLUSTER_SECRET": "a secret of the deployment's test",
    "GRAFANA_PASSWORD": PASSWORD,
}
HOW_TO_GET_ONE = """\
There is no engine that runs docker-compose.yml:
{reasons}
Install Docker Engine with its compose plugin (https://docs.docker.com/engine/install/; Debian 13: apt install docker.io
docker-cli docker-compose docker-buildx), have it run (systemctl start docker), and let yourself use it
(usermod -aG docker $USER, then log in again). Or install Podman with a provider of `podman compose`.
`docker info` and `docker compose version` succeed when all is there."""


class NoEngineError(Exception):
    """No engine with compose answers; the message has the installation."""


class Engine:
    """Docker or Podman, by the name of its command."""

    def __init__(self, command: str) -> None:
        self._command = command

    def run(
        self, *arguments: str, check: bool = True, shown: bool = False, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of the engine; its output is either shown or captured."""
        ran = subprocess.run(
            [self._command, *arguments],
            cwd=ROOT,
            env=os.environ | environ,
            capture_output=not shown,
            text=True,
            check=False,
            timeout=1200,
        )
        assert not check or ran.returncode == 0, f"{' '.join(arguments)}: {(ran.stderr or '')[-4000:]}"
        return ran

    def inspect(self, container: str) -> dict[str, Any]:
        """Return the engine's document about a container, running or ended."""
        (document,) = json.loads(self.run("container", "inspect", container).stdout)
        return document


def find_engine() -> Engine:
    """Return Docker, or else Podman. Raises NoEngineError."""
    reasons = []
    for name in ("docker", "podman"):
        if shutil.which(name) is None:
            reasons.append(f"  {name}: there is no such command")
            continue
        engine = Engine(name)
        for command in (("info",), ("compose", "version")):
            answer = engine.run(*command, check=False)
            if answer.returncode != 0:
                why = (answer.stderr.strip() or answer.stdout.strip()).splitlines()[-1:]
                reasons.append(f"  `{name} {' '.join(command)}` fails: {''.join(why)}")
                break
        else:
            return engine
    raise NoEngineError(HOW_TO_GET_ONE.format(reasons="\n".join(reasons)))


def wait_until(condition: Callable[[], bool], seconds: float, event: Callable[[], str]) -> float:
    """Return the seconds until the condition held. Raises AssertionError with `event` after `seconds`."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"not within {seconds:g} s: {event()}"
        time.sleep(0.1)
    return time.monotonic() - began


class Deployment:
    """The services of docker-compose.yml, with the override file that compose adds by itself."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def compose(
        self, *arguments: str, check: bool = True, shown: bool = False, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        return self._engine.run("compose", *arguments, check=check, shown=shown, **ENVIRONMENT | environ)

    def build(self, *services: str) -> None:
        """Build images. It takes minutes, so the builder's own output is seen."""
        self.compose("build", *services, shown=True)

    def use(self, image: str, *nodes: str) -> None:
        """Have nodes run this image from their next start on. They have tags of their own, as compose gives them."""
        for node in nodes:
            self._engine.run("tag", image, f"{PROJECT}-{node}")

    def forget(self, *options: str) -> None:
        """Remove containers, volumes and networks: the next start begins a new cluster."""
        self.compose("--profile", "*", "down", "--volumes", "--remove-orphans", *options)

    def remove(self) -> None:
        """Remove everything, also the images."""
        self.forget("--rmi", "local")

    def start(self, *services: str) -> float:
        """Start services as they are configured, and return after how many seconds all are healthy."""
        began = time.monotonic()
        self.compose("up", "--detach", "--no-build", *services)
        for service in services:
            self.wait_healthy(service)
        return time.monotonic() - began

    def wait_healthy(self, service: str) -> None:
        wait_until(
            lambda: self.state(service)["Health"]["Status"] == "healthy",
            120,
            lambda: self.last_log_lines(service),
        )

    def kill(self, service: str) -> None:
        """Kill a container. Docker may find it gone when it looks again, and then says that it cannot kill it."""
        self.compose("kill", service, check=False)
        wait_until(lambda: not self.state(service)["Running"], 30, lambda: self.last_log_lines(service))

    def inspect(self, service: str) -> dict[str, Any]:
        """Return the engine's document about the container of a service, running or ended."""
        return self._engine.inspect(self.compose("ps", "--all", "--quiet", service).stdout.strip())

    def state(self, service: str) -> dict[str, Any]:
        return self.inspect(service)["State"]

    def last_log_lines(self, service: str) -> str:
        """The state of a service and the end of its log."""
        logged = self.compose("logs", "--no-color", "--tail", "20", service)
        return f"{service} is {self.state(service)}\n{logged.stdout}{logged.stderr}"

    def qq(self, node: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command in a node's container, as its user."""
        login = ("-e", "QQ_USER=app", "-e", f"QQ_PASSWORD={PASSWORD}")
        return self.compose("exec", "-T", *login, node, "qq", *arguments, check=False)

    def leader(self) -> str:
        shown = self.qq(NODES[0], "leader", "show")
        assert shown.returncode == 0, shown.stderr
        return shown.stdout.strip()

    def members(self, node: str) -> dict[str, Any]:
        """Return the members as `qq member list` shows them."""
        shown = self.qq(node, "member", "list", "--json")
        assert shown.returncode == 0, shown.stderr
        return json.loads(shown.stdout)

    def wait_until_safe_to_stop(self, node: str, *, via: str) -> None:
        """Wait as operators do, until `via` reports that the cluster can spare the node."""
        result = self.qq(via, "check", "safe-to-stop", "--node", node, "--timeout", "60")
        assert result.returncode == 0, result.stdout + result.stderr
