"""Stand-ins for pysyncobj's environment: clock, randomness, journal, network, dumps, pickle.

Invariant: an import of this module installs the stand-ins. After that, pysyncobj touches the outside world only through
them. The hazards are numbered as in ARCHITECTURE.md.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol
from zlib import crc32

import pysyncobj.syncobj as stock
from pysyncobj.node import Node
from pysyncobj.serializer import SERIALIZER_STATE
from pysyncobj.transport import Transport

if TYPE_CHECKING:
    from logging import LogRecord

    from cluster.log.journal import SegmentedJournal
    from cluster.runtime.ports import Runtime

PINNED_VERSION = "0.3.17"


class Ambient(threading.local):
    """Stands in for pysyncobj's module globals `monotonicTime` and `random`, which know no instance.

    The engine that is about to call pysyncobj sets its runtime here first. Each thread has its own value. Otherwise
    nodes on several threads of a process would use each other's clocks, and vote and campaign at wrong times.
    """

    runtime: Runtime

    def monotonic(self) -> float:
        return self.runtime.monotonic()

    def random(self) -> float:
        return self.runtime.random.random()


class _NoPickle:
    """Stands in for the module pickle, which pysyncobj must not use. Any use raises RuntimeError (hazard H11)."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"pysyncobj tried to use pickle.{name}")


class NoDumps:
    """Stands in for pysyncobj's Serializer. It is always busy, so pysyncobj never dumps or truncates on its own."""

    def checkSerializing(self) -> tuple[int, None]:  # noqa: N802
        return SERIALIZER_STATE.SERIALIZING, None

    def getTransmissionData(self, _node: Node) -> None:  # noqa: N802
        return None

    def setTransmissionData(self, _data: Any) -> bool:  # noqa: N802
        return False

    def cancelTransmisstion(self, _node: Node) -> None:  # noqa: N802
        """Do nothing. The spelling is pysyncobj's."""


class NoPoller:
    """Stands in for the poller of pysyncobj's own sockets at the end of each tick. Here pysyncobj has no sockets."""

    def poll(self, _timeout: float) -> None:
        """Return at once, because there are no sockets to wait for."""


class StableNode(Node):
    """A node with the same hash in every process. pysyncobj iterates over sets of nodes, and a seed must replay."""

    id: str = ""  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]
    """The name. An attribute replaces pysyncobj's property, because it is read several times for each message."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        vars(self)["id"] = name  # pysyncobj forbids to set it
        self._hash = crc32(name.encode())

    def __hash__(self) -> int:
        return self._hash


class Sender(Protocol):
    """Takes each message that pysyncobj wants to send. The engine implements it."""

    def stock_sends(self, node: Node, message: dict[str, Any]) -> None: ...


class Outbox(Transport):
    """pysyncobj's transport, which hands each message to the engine."""

    def __init__(self, engine: Sender, self_node: Node, other_nodes: Any) -> None:
        super().__init__(engine, self_node, other_nodes)
        self._engine = engine

    @property
    def ready(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return True

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        self._engine.stock_sends(node, message)
        return True


ambient = Ambient()


def _given_journal(journal: SegmentedJournal) -> SegmentedJournal:
    """Stand in for pysyncobj's factory of journals, which gets the journal itself as the "path"."""
    return journal


def instrument() -> None:
    """Install the stand-ins. Raises RuntimeError if a version of pysyncobj is installed that they do not fit."""
    if stock.VERSION != PINNED_VERSION:
        raise RuntimeError(
            f"pysyncobj {stock.VERSION} is installed; this engine is written for {PINNED_VERSION}"
        )
    stock.monotonicTime = ambient.monotonic
    stock.random = ambient
    stock.pickle = _NoPickle()
    stock.createJournal = _given_journal
    stock.PIPE_NOTIFIER_ENABLED = False
    stock.logger.addFilter(_is_no_false_alarm)


def _is_no_false_alarm(record: LogRecord) -> bool:
    """Return False for pysyncobj's warning of a deletion of applied entries, which does not happen here (H2, H12)."""
    return not record.msg.startswith("truncating already-applied")


instrument()
