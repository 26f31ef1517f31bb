"""A node of RabbitMQ 4 from Debian's package, with its shovel plugin.

RABBITMQ_ROOT: the root of a Debian 13 in which the package is installed, if it is not on this machine. Such a root
needs no daemon: the node runs in it by `chroot`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.live.cluster import free_ports

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

ROOT = Path(os.environ.get("RABBITMQ_ROOT", "/"))
PROGRAMS = "/usr/lib/rabbitmq/bin"
HOW = (
    "there is no RabbitMQ 4 here: `apt-get install rabbitmq-server` on Debian 13; elsewhere, as root, "
    "`debootstrap --variant=minbase trixie DIR && chroot DIR apt-get install --no-install-recommends rabbitmq-server`, "
    "and RABBITMQ_ROOT=DIR for `make interop`"
)
START_S = 60.0


def is_installed() -> bool:
    return any((ROOT / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-4.*"))


@contextmanager
def rabbitmq_node(queues: Sequence[str], shovels: Mapping[str, Mapping[str, Any]]) -> Generator[Path]:
    """Run a node with quorum queues and shovels; yield its log."""
    amqp_port, peer_port, epmd_port = islice(free_ports(), 3)
    directory = Path(tempfile.mkdtemp(prefix="qq-rabbitmq-", dir=ROOT / "tmp"))
    inside = f"/{directory.relative_to(ROOT)}"
    (directory / "definitions.json").write_text(json.dumps(definitions(queues, shovels)))
    (directory / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{amqp_port}\n"
        f"load_definitions = {inside}/definitions.json\n"
        f"log.file = node.log\n"
    )
    (directory / "enabled_plugins").write_text("[rabbitmq_shovel].")
    (directory / ".erlang.cookie").write_text(secrets.token_hex())
    (directory / ".erlang.cookie").chmod(0o400)
    loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "HOME": inside,
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(epmd_port),
        "RABBITMQ_NODENAME": "rabbit@localhost",
        "RABBITMQ_DIST_PORT": str(peer_port),
        "RABBITMQ_MNESIA_BASE": f"{inside}/data",
        "RABBITMQ_LOG_BASE": f"{inside}/log",
        "RABBITMQ_PID_FILE": f"{inside}/pid",
        "RABBITMQ_CONFIG_FILE": f"{inside}/rabbitmq.conf",
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{inside}/enabled_plugins",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": loopback,
    }
    try:
        with (
            in_root(["epmd", "-address", "127.0.0.1", "-port", str(epmd_port)], environment),
            in_root([f"{PROGRAMS}/rabbitmq-server"], environment) as node,
        ):
            wait_for_listener(amqp_port, node)
            yield directory / "log" / "node.log"
    finally:
        shutil.rmtree(directory)


def definitions(queues: Sequence[str], shovels: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    every = {"configure": ".*", "write": ".*", "read": ".*"}
    quorum = {"durable": True, "auto_delete": False, "arguments": {"x-queue-type": "quorum"}}
    return {
        "vhosts": [{"name": "/"}],
        "users": [{"name": "guest", "password": "guest", "tags": "administrator"}],
        "permissions": [{"user": "guest", "vhost": "/", **every}],
        "queues": [{"name": name, "vhost": "/", **quorum} for name in queues],
        "parameters": [
            {"component": "shovel", "vhost": "/", "name": name, "value": value}
            for name, value in shovels.items()
        ],
    }


@contextmanager
def in_root(command: Sequence[str], environment: Mapping[str, str]) -> Generator[subprocess.Popen[str]]:
    changed = [] if Path("/") == ROOT else ["chroot", str(ROOT)]
    with subprocess.Popen(
        [*changed, *command],
        cwd="/",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def wait_for_listener(port: int, node: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert node.poll() is None, node.stdout and node.stdout.read()
            assert time.monotonic() < deadline, f"RabbitMQ does not listen after {START_S:g} s"
            time.sleep(0.1)
        else:
            return
