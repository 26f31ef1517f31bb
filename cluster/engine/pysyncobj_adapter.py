"""pysyncobj without its environment, and with its state under the names of the Raft paper.

Stand-ins replace its clock, randomness, journal, network, dumps and pickle.

Invariant: an import of this module installs the stand-ins. After that, pysyncobj touches the outside world only through
them. Only this module and engine.py name attributes of SyncObj that begin with an underscore. The hazards are numbered
as in ARCHITECTURE.md.
"""

from __future__ import annotations

import sys
import threading
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast
from zlib import crc32

from pysyncobj import SyncObj, SyncObjConf, syncobj
from pysyncobj.node import Node
from pysyncobj.serializer import SERIALIZER_STATE
from pysyncobj.transport import Transport

from cluster.raft.elections import LogEnd, Role
from cluster.raft.messages import Append, Message, OutgoingMessage, Vote, VoteRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from logging import LogRecord

    from cluster.log.journal import SegmentedJournal
    from cluster.raft.timing import Timing
    from cluster.runtime.ports import Runtime

PINNED_VERSION = "0.3.17"


class AmbientRuntime(threading.local):
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


class EngineTransport(Transport):
    """pysyncobj's transport, which hands each message to the engine."""

    def __init__(self, engine: SyncObjAdapter, self_node: Node, other_nodes: Any) -> None:
        super().__init__(engine, self_node, other_nodes)
        self._engine = engine

    @property
    def ready(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return True

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        self._engine.send_for_pysyncobj(node, message)
        return True


ambient = AmbientRuntime()


def _given_journal(journal: SegmentedJournal) -> SegmentedJournal:
    """Stand in for pysyncobj's factory of journals, which gets the journal itself as the "path"."""
    return journal


def instrument() -> None:
    """Install the stand-ins. Raises RuntimeError if a version of pysyncobj is installed that they do not fit."""
    if syncobj.VERSION != PINNED_VERSION:
        raise RuntimeError(
            f"pysyncobj {syncobj.VERSION} is installed; this engine is written for {PINNED_VERSION}"
        )
    syncobj.monotonicTime = ambient.monotonic
    syncobj.random = ambient
    syncobj.pickle = _NoPickle()
    syncobj.createJournal = _given_journal
    syncobj.PIPE_NOTIFIER_ENABLED = False
    syncobj.logger.addFilter(_is_no_false_alarm)


def _is_no_false_alarm(record: LogRecord) -> bool:
    """Return False for pysyncobj's warning of a deletion of applied entries, which does not happen here (H2, H12)."""
    return not record.msg.startswith("truncating already-applied")


instrument()


class SyncObjAdapter(SyncObj):
    """The consensus state of a member, as pysyncobj keeps it. It gets only messages that the engine has translated."""

    # pysyncobj's private state that this module and the engine use.
    _SyncObj__raftState: int
    _SyncObj__raftCurrentTerm: int
    _SyncObj__votedForNodeId: str | None
    _SyncObj__raftLeader: Node | None
    _SyncObj__raftElectionDeadline: float
    _SyncObj__newAppendEntriesTime: float
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftLastApplied: int
    _SyncObj__raftMatchIndex: dict[Node, int]
    _SyncObj__lastResponseTime: dict[Node, float]
    _SyncObj__connectedNodes: set[Node]
    _SyncObj__otherNodes: set[Node]
    _SyncObj__readonlyNodes: set[Node]
    _SyncObj__transferInProgress: bool
    _SyncObj__setState: Callable[[int], None]
    _SyncObj__generateRaftTimeout: Callable[[], float]
    _SyncObj__onMessageReceived: Callable[[Node, dict[str, Any]], None]

    def __init__(self, name: str, journal: SegmentedJournal, timing: Timing, runtime: Runtime) -> None:
        """Take up the log as it is.

        pysyncobj reads all properties during its own `__init__`, so they must work by then.
        """
        self.journal = journal
        self.outbox: list[OutgoingMessage] = []
        """Messages to send, in order."""
        self._runtime = runtime
        self._set_ambient_runtime()
        conf = SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=False,
            appendEntriesPeriod=timing.heartbeat_s,
            appendEntriesBatchSizeBytes=sys.maxsize,
            raftMinTimeout=timing.election_min_s,
            raftMaxTimeout=timing.election_max_s,
            connectionTimeout=timing.election_max_s,
            leaderFallbackTimeout=timing.election_min_s,
            commandsWaitLeader=False,
            journalFile=journal,
            dynamicMembershipChange=False,
        )
        super().__init__(StableNode(name), [], conf, transportClass=EngineTransport)  # pyright: ignore[reportArgumentType]
        self._SyncObj__serializer = NoDumps()
        self._poller = NoPoller()

    def _set_ambient_runtime(self) -> None:
        """Set this node's clock and randomness for pysyncobj. Must be called before each call into pysyncobj."""
        ambient.runtime = self._runtime

    # State

    # Getters in C, because these fields are read some 60 times for a message that comes alone.
    term = cast("int", property(attrgetter("_SyncObj__raftCurrentTerm")))
    commit_index = cast("int", property(attrgetter("_SyncObj__raftCommitIndex")))
    applied_index = cast("int", property(attrgetter("_SyncObj__raftLastApplied")))

    @property
    def role(self) -> Role:
        return Role(self._SyncObj__raftState)

    @property
    def is_leader(self) -> bool:
        return self._SyncObj__raftState == Role.LEADER

    @property
    def _is_candidate(self) -> bool:
        return self._SyncObj__raftState == Role.CANDIDATE

    @property
    def leader(self) -> str | None:
        node: Node | None = self._SyncObj__raftLeader
        return None if node is None else node.id

    @property
    def voted_for(self) -> str | None:
        """The member that this member voted for in `term`, or None."""
        return self._SyncObj__votedForNodeId

    def last_applied(self) -> tuple[int, int]:
        """Return index and term of the last applied entry."""
        index = self._SyncObj__raftLastApplied
        return index, self.journal.term_at(index)

    def remember(self, term: int, vote: str | None) -> None:
        """Set term and vote, which are stored already but were unknown when this object was made."""
        self._SyncObj__raftCurrentTerm = term
        self._SyncObj__votedForNodeId = vote

    def _forget_node(self, node: Node) -> None:
        """Send no more messages to a node, and count it nowhere."""
        self._SyncObj__raftMatchIndex.pop(node, None)
        self._SyncObj__lastResponseTime.pop(node, None)
        self._SyncObj__connectedNodes.discard(node)
        if self._SyncObj__raftLeader == node:
            self._SyncObj__raftLeader = None

    def _log_end(self) -> LogEnd:
        last_index = self.journal.last_index
        return LogEnd(self.journal.term_at(last_index), last_index)

    # Messages to pysyncobj

    def _deliver(self, node: Node, **message: Any) -> None:
        self._SyncObj__onMessageReceived(node, message)

    def _deliver_append(self, node: Node, message: Append) -> None:
        self._deliver(
            node,
            type="append_entries",
            term=message.term,
            commit_index=message.commit_index,
            entries=message.entries,
            prevLogIdx=message.prev_index,
            prevLogTerm=message.prev_term,
        )

    def _deliver_vote_request(self, node: Node, message: VoteRequest) -> None:
        self._deliver(
            node,
            type="request_vote",
            term=message.term,
            last_log_index=message.last_index,
            last_log_term=message.last_term,
        )

    # Messages from pysyncobj

    def send_for_pysyncobj(self, node: Node, message: dict[str, Any]) -> None:
        """Translate a message that pysyncobj wants to send."""
        kind = message["type"]
        if kind == "next_node_idx":
            self._acknowledge(node, message)
        elif kind == "request_vote":
            self._emit(
                node.id, VoteRequest(message["term"], message["last_log_index"], message["last_log_term"])
            )
        elif kind == "response_vote":
            self._emit(node.id, Vote(message["term"]))
        else:
            raise RuntimeError(f"pysyncobj wants to send {kind!r}")

    def _acknowledge(self, node: Node, message: dict[str, Any]) -> None:
        """Answer an append that pysyncobj has taken in. The engine implements it."""
        raise NotImplementedError

    def _emit(self, peer: str, message: Message, sync_point: int = 0) -> None:
        self.outbox.append(OutgoingMessage(sync_point, peer, message))

    # Ticks

    def _tick_is_due(self) -> bool:
        """Return whether a tick could change state. Most turns have other causes, so they need no tick."""
        if self.applied_index < self.commit_index:
            return True
        if self.is_leader:
            return self._SyncObj__newAppendEntriesTime < self._runtime.monotonic()
        return self._is_candidate or self._SyncObj__raftElectionDeadline < self._runtime.monotonic()

    def _SyncObj__getCurrentLogIndex(self) -> int:  # noqa: N802
        """Return the last index. pysyncobj's own method reads the last entry for it."""
        return self.journal.last_index

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        """Do nothing: commands come through `Engine.propose` and not through pysyncobj's queue."""
