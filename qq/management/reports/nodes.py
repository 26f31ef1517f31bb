"""Nodes: resources, ports, alarms, logins."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Listener(NamedTuple):
    """A port of a node."""

    protocol: str
    """"amqp", "amqp/ssl", "http", "https", "clustering" or "clustering/ssl", as in RabbitMQ."""
    host: str
    port: int
    uses_tls: bool = False


class LoginCount(NamedTuple):
    """Logins of a protocol ("amqp091" or "http") that succeeded and failed since the last reset."""

    protocol: str
    succeeded: int
    failed: int


class NodeReport(NamedTuple):
    """Report of a node about itself. Plain data, so that nodes can send it to each other."""

    name: str
    pid: int
    uptime_ms: int
    processors: int
    run_queue: int
    """Threads of the whole machine that run or wait for a processor."""
    context_switches: int
    collections: int
    """Number of runs of the interpreter's garbage collector."""
    memory_bytes: int
    memory_limit_bytes: int
    memory_alarm: bool
    files: int
    files_max: int
    connections: int
    """Number of AMQP connections; `connections_max` is their limit."""
    connections_max: int
    connections_opened: int
    connections_closed: int
    channels_opened: int
    channels_closed: int
    disk_free_bytes: int
    disk_free_limit_bytes: int
    disk_alarm: bool
    log_bytes: int
    """Bytes of the log on the disk."""
    writes: int
    """Number of writes to the log, each with its sync; `write_ms` is their total time."""
    write_ms: float
    data_dir: str
    listeners: Sequence[Listener]
    logins: Sequence[LoginCount]
    release: str = ""
    """Release of qq that the node runs; nodes of release 0.1 do not tell."""
    queues_declared: int = 0
    rates: Mapping[str, float] = MappingProxyType({})
    """RabbitMQ's name of a number -> its change per second."""


class ResourceAlarm(NamedTuple):
    """An alarm of a node: it is short of `resource`, "memory" or "disk"."""

    node: str
    resource: str


class CertificateFiles(NamedTuple):
    """The certificates of a port, as paths of PEM files."""

    protocol: str
    cert: str
    ca: str | None
