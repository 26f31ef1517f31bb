"""The files of a local cluster, as `qq up` keeps them in its directory.

    DIR/lock            held while a cluster runs on the directory
    DIR/secret          the cluster's secret, kept between runs
    DIR/cluster.json    written when the cluster serves: nodes, processes, ports
    DIR/<node>/node.toml, log, data/

Invariant: only the files listed above are ever written or deleted; the directory may hold other files of the user.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import tomllib
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import tomli_w

from qq.config import NodeAddress
from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

HOST = "127.0.0.1"
USER = "guest"
PASSWORD = "guest"  # noqa: S105 -- the default that every AMQP client knows, good from loopback only
AMQPS_PORT_OFFSET = 5_000
HTTP_PORT_OFFSET = 10_000
PEER_PORT_OFFSET = 20_000
NODE_COUNT_MAX = 5
BASE_PORT_MAX = 65_535 - PEER_PORT_OFFSET - (NODE_COUNT_MAX - 1)
_NODE_NAMES = tuple(f"n{number}" for number in range(1, NODE_COUNT_MAX + 1))


@dataclass(frozen=True, slots=True)
class LocalNode:
    """A node of the local cluster and its files."""

    address: NodeAddress
    directory: Path

    @property
    def name(self) -> str:
        return self.address.name

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    @property
    def config(self) -> Path:
        return self.directory / "node.toml"

    @property
    def log(self) -> Path:
        return self.directory / "log"


def local_nodes(
    data_dir: Path, node_count: int, base_port: int, *, has_tls: bool = False
) -> tuple[LocalNode, ...]:
    """Return the nodes of a cluster on ports from `base_port` on; `has_tls` adds ports for AMQP over TLS."""
    return tuple(
        LocalNode(
            NodeAddress(
                name=name,
                host=HOST,
                peer_port=base_port + PEER_PORT_OFFSET + number,
                amqp_port=base_port + number,
                http_port=base_port + HTTP_PORT_OFFSET + number,
                amqps_port=base_port + AMQPS_PORT_OFFSET + number if has_tls else None,
            ),
            data_dir / name,
        )
        for number, name in enumerate(_NODE_NAMES[:node_count])
    )


@contextmanager
def locked(data_dir: Path) -> Generator[None]:
    """Hold the lock of the directory, which is made if missing. Raises CommandError if it is locked."""
    with _errors_explained(data_dir):
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (data_dir / "lock").open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError(f"{data_dir} is in use by another local cluster") from None
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # a process that was forked meanwhile has a copy of the file


Settings = Mapping[str, Mapping[str, Any]]
"""Keys of nodes' configurations and their values, by section. See `qq/config.py`."""


def prepare(
    data_dir: Path, nodes: Sequence[LocalNode], *, fresh: bool, settings: Settings = MappingProxyType({})
) -> None:
    """Write the nodes' configurations and the secret. The data of an earlier run stays, unless `fresh`.

    `settings` are added to the configuration of every node and override the defaults.
    """
    with _errors_explained(data_dir):
        if fresh:
            _delete(data_dir)
        _refuse_other_size(data_dir, len(nodes))
        # The file describes processes of an earlier run, and readers must not take them for the new processes.
        (data_dir / "cluster.json").unlink(missing_ok=True)
        if not (data_dir / "secret").exists():
            _replace(data_dir / "secret", secrets.token_hex(32) + "\n")
        for node in nodes:
            _prepare_node(node, nodes, settings)


def prepare_joining(
    data_dir: Path, node: LocalNode, members: Sequence[LocalNode], settings: Settings = MappingProxyType({})
) -> None:
    """Write the configuration of a node that joins the cluster of these members, in the same directory."""
    seeds = [f"{member.address.host}:{member.address.peer_port}" for member in members]
    cluster = {**settings.get("cluster", {}), "join": seeds}
    with _errors_explained(data_dir):
        _prepare_node(node, [node], {**settings, "cluster": cluster})


def _prepare_node(node: LocalNode, listed: Sequence[LocalNode], settings: Settings) -> None:
    node.directory.mkdir(mode=0o700, exist_ok=True)
    node.directory.chmod(0o700)  # an older release may have made it
    node.data_dir.mkdir(mode=0o700, exist_ok=True)
    _replace(node.config, _configuration(node, listed, settings))
    node.log.touch(mode=0o600)
    node.log.open("ab").close()  # reports a log that cannot be written before any node starts


def write_cluster_file(data_dir: Path, nodes: Sequence[LocalNode], pids: Mapping[str, int]) -> None:
    described = [
        {
            "name": node.name,
            "pid": pids[node.name],
            "amqp_port": node.address.amqp_port,
            "http_port": node.address.http_port,
            "peer_port": node.address.peer_port,
            "data_dir": str(node.data_dir),
            "config": str(node.config),
        }
        for node in nodes
    ]
    document = {"nodes": described, "user": USER, "password": PASSWORD}
    with _errors_explained(data_dir):
        _replace(data_dir / "cluster.json", json.dumps(document, indent=2) + "\n")


def _configuration(node: LocalNode, nodes: Sequence[LocalNode], settings: Settings) -> str:
    """Return the text of node.toml."""
    usual: dict[str, dict[str, Any]] = {
        "node": {"name": node.name, "data_dir": "data"},
        "cluster": {"secret_file": "../secret"},
        "users": {"default_user": USER, "default_password": PASSWORD},
    }
    sections = {
        name: _without_none({**usual.get(name, {}), **settings.get(name, {})})
        for name in {**usual, **settings}
    }
    listed = [_without_none(asdict(member.address)) for member in nodes]
    head = "# Written by `qq up` at every start: changes here are lost. It shows what a node needs.\n"
    return head + tomli_w.dumps({**sections, "nodes": listed})


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}


def _refuse_other_size(data_dir: Path, node_count: int) -> None:
    """Raise CommandError if the directory holds a cluster of a different size, which has a different majority."""
    for name in _NODE_NAMES:
        config = data_dir / name / "node.toml"
        if not config.exists():
            continue
        try:
            document = tomllib.loads(config.read_text("utf-8"))
            if "join" in document["cluster"]:
                continue  # a joined node lists only itself
            found = len(document["nodes"])
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError):
            raise CommandError(f"{config} is damaged; --fresh deletes the cluster in {data_dir}") from None
        if found != node_count:
            raise CommandError(
                f"{data_dir} holds a cluster of {found} nodes, not {node_count}; --fresh deletes it"
            )


def _delete(data_dir: Path) -> None:
    for name in _NODE_NAMES:
        # A directory of this name without node.toml belongs to the user.
        if (data_dir / name / "node.toml").exists():
            shutil.rmtree(data_dir / name)
    for name in ("cluster.json", "secret"):
        (data_dir / name).unlink(missing_ok=True)


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically, readable by the owner only: these files contain the secret and the password."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(
        os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
    ) as file:
        file.write(text)
    temporary.replace(path)


@contextmanager
def _errors_explained(data_dir: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or data_dir
        raise CommandError(f"cannot use the directory {data_dir}: {where}: {error.strerror}") from None
