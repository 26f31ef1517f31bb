"""The limit of open files, and how it is divided among the ports of a node.

Invariant: the connections of all ports together leave a node the descriptors for its own work: its log, its
checkpoints, its peers, and what it reads about its process.
"""

from __future__ import annotations

import logging
import re
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qq.errors import StartError

if TYPE_CHECKING:
    from qq.config import NodeLimits

log = logging.getLogger(__name__)

_OPEN_FILES = Path("/proc/self/fd")
_STATUS, _ROOM = Path("/proc/self/status"), re.compile(r"FDSize:\s*(\d+)")
OWN = 192
"""Files for the node's own work.

These are 64 unauthenticated connections at the peer port, three sockets for each of six peers, and 16 connected
non-members. About ninety more are for listeners, the event loop, the log, checkpoints, snapshots, certificates and
files about the process.
"""
LEAST = 256
"""The fewest files that a node must be allowed to open: with fewer it does not start."""
_HTTP_SHARE = 10
"""HTTP gets a tenth of the remaining files as connections, `_HTTP_MAX` at most."""
_HTTP_MAX = 1024
_FILES_PER_HTTP = 2
"""Files of an HTTP connection: its socket, and the page that is being sent."""
_STRANGERS_SHARE = 2
_STRANGERS_MAX = 4096
_STRANGER_BYTES = 64 * 1024
"""Bytes of memory of an unauthenticated connection during a TLS handshake; without TLS it takes a tenth."""
_MEMORY_SHARE = 20
"""Unauthenticated connections get a twentieth of the node's memory, but always enough for `_STRANGERS_MIN`."""
_STRANGERS_MIN = 128


class Shares(NamedTuple):
    """The numbers of connections that a node accepts at a time."""

    clients: int
    """AMQP clients, with or without TLS."""
    logged_in: int
    """AMQP clients that may be logged in (`connection_max`)."""
    strangers: int
    """AMQP clients that may be connected without a login."""
    http: int


def allow_all() -> None:
    """Raise this process's limit of open files to the hard limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def allowed() -> int:
    """Return how many files this process may have open."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if files == resource.RLIM_INFINITY else files


def in_use() -> int:
    """Return how many files this process has open. Linux before 6.2 tells only the present size of the table."""
    return _OPEN_FILES.stat().st_size or int(_ROOM.findall(_STATUS.read_text())[0])


def shares(limits: NodeLimits, memory_bytes: int) -> Shares:
    """Divide the files of this process among its ports. Raises StartError if they are too few for any node.

    `memory_bytes` is the memory that the node may use.
    """
    return shares_of(allowed(), memory_bytes, limits)


def shares_of(files: int, memory_bytes: int, limits: NodeLimits) -> Shares:
    """Divide this number of files among the kinds of connections. Raises StartError if they are too few."""
    if files < LEAST:
        raise StartError(
            f"the process may have {files} files open (ulimit -n), and a node needs {LEAST} at least"
        )
    left = files - OWN
    http = min(
        limits.http_connection_max or min(left // _HTTP_SHARE, _HTTP_MAX), left // (2 * _FILES_PER_HTTP)
    )
    clients = left - http * _FILES_PER_HTTP
    for name, wanted, there in (
        ("connection_max", limits.connection_max, clients),
        ("http_connection_max", limits.http_connection_max, http),
    ):
        if wanted > there:
            log.warning(
                "[limits] %s is %d, but %d open files (ulimit -n) allow %d", name, wanted, files, there
            )
    in_memory = max(memory_bytes // _MEMORY_SHARE // _STRANGER_BYTES, _STRANGERS_MIN)
    strangers = limits.strangers_max or min(clients // _STRANGERS_SHARE, in_memory, _STRANGERS_MAX)
    return Shares(clients, min(limits.connection_max or clients, clients), min(strangers, clients), http)
