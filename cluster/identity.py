"""Whose data directory this is, and how often it was started.

A directory belongs to one node of one cluster. Its incarnation grows with every start: the cluster tells by it that
what an earlier process of the same name held is gone.
"""

from __future__ import annotations

from typing import NamedTuple

import msgpack

from cluster.ports import Disk, pack

FILE = "identity"


class ForeignDirectory(Exception):
    """The directory holds the data of another node, another cluster or another group."""


class Owner(NamedTuple):
    cluster: str
    node: str
    group_id: int

    def key(self) -> bytes:
        """What every file of the group starts with."""
        return f"{self.cluster}/{self.node}/{self.group_id}".encode()


def next_incarnation(disk: Disk, directory: str, owner: Owner, wall_ms: int) -> int:
    """Claim the directory for `owner` and count a new incarnation, durably. Raises `ForeignDirectory`.

    Not less than the time, so that a node which lost its directory still comes back as a later incarnation.
    """
    path = f"{directory}/{FILE}"
    previous = 0
    if FILE in disk.list_directory(directory):
        previous = _previous_incarnation(path, disk.read_file(path), owner)
    incarnation = max(previous + 1, wall_ms)
    disk.replace_file(path, pack([*owner, incarnation]))
    return incarnation


def _previous_incarnation(path: str, data: bytes, owner: Owner) -> int:
    try:
        cluster, node, group_id, incarnation = msgpack.unpackb(data)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ForeignDirectory(
            f"{path} is damaged; if the directory is this node's, delete that file"
        ) from error
    if (cluster, node, group_id) != tuple(owner):
        found = f"node {node!r} of cluster {cluster!r}"
        raise ForeignDirectory(
            f"{path}: the directory belongs to {found}, not to node {owner.node!r} of {owner.cluster!r}"
        )
    return incarnation
