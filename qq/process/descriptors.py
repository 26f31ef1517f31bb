"""How many files a process may have open, and who gets how many of them.

Invariant: what all ports together may have open leaves a node the descriptors for its own work: its log, its
checkpoints, its peers, what it reads about itself.
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
"""Files for the node's own work: 64 strangers at the peer port, three sockets for each of six peers, 16 nodes that are
no members, and about ninety for listeners, the event loop, the log, checkpoints, snapshots, certificates and what is
read about the process."""
LEAST = 256
"""The fewest files that a node must be allowed to open: with fewer it does not start."""
_HTTP_SHARE = 10
"""HTTP gets as many connections as a tenth of the files that are left, _HTTP_MAX at most."""
_HTTP_MAX = 1024
_FILES_PER_HTTP = 2
"""The files of one HTTP connection: its socket, and the page that is being sent."""
_STRANGERS_SHARE = 2
_STRANGERS_MAX = 4096
_STRANGER_BYTES = 64 * 1024
"""The memory that a stranger takes while a TLS handshake is under way; without TLS it is a tenth."""
_MEMORY_SHARE = 20
"""Strangers get a twentieth of the memory that a node may use, or what the fewest need."""
_STRANGERS_MIN = 128


class Shares(NamedTuple):
    """How many connections there may be at a time."""

    clients: int
    """AMQP clients, with TLS or without."""
    logged_in: int
    """How many of the clients may log in (`connection_max`)."""
    strangers: int
    """How many of the clients may be connected without having logged in."""
    http: int


def allow_all() -> None:
    """Raise the limit of this process as far as it may."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def allowed() -> int:
    """How many files this process may have open."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if files == resource.RLIM_INFINITY else files


def in_use() -> int:
    """How many files this process has open. Linux before 6.2 says only how many there is room for at the moment."""
    return _OPEN_FILES.stat().st_size or int(_ROOM.findall(_STATUS.read_text())[0])


def shares(limits: NodeLimits, memory_bytes: int) -> Shares:
    """Share out what the limit of this process allows. Raises StartError if that is too little for any node.

    The node may use so many bytes of memory.
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
