"""A SyncObj without pysyncobj's environment, with its state under the names of the Raft paper.

Invariant: only this module and engine.py name attributes of SyncObj that begin with an underscore.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pysyncobj import SyncObj, SyncObjConf

from cluster.engine.pysyncobj_adapter import NoDumps, NoPoller, Outbox, StableNode, ambient
from cluster.raft.elections import LogEnd, Role
from cluster.raft.messages import Append, Message, OutgoingMessage, Vote, VoteRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pysyncobj.node import Node

    from cluster.log.journal import SegmentedJournal
    from cluster.raft.timing import Timing
    from cluster.runtime.ports import Runtime


class Stock(SyncObj):
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
        self._enter()
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
        super().__init__(StableNode(name), [], conf, transportClass=Outbox)  # pyright: ignore[reportArgumentType]
        self._SyncObj__serializer = NoDumps()
        self._poller = NoPoller()

    def _enter(self) -> None:
        """Set this node's clock and randomness for pysyncobj. Must be called before each call into pysyncobj."""
        ambient.runtime = self._runtime

    # State

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
    def term(self) -> int:
        return self._SyncObj__raftCurrentTerm

    @property
    def voted_for(self) -> str | None:
        """The member that this member voted for in `term`, or None."""
        return self._SyncObj__votedForNodeId

    @property
    def commit_index(self) -> int:
        return self._SyncObj__raftCommitIndex

    @property
    def applied_index(self) -> int:
        return self._SyncObj__raftLastApplied

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

    def _receive_stock(self, node: Node, **message: Any) -> None:
        self._SyncObj__onMessageReceived(node, message)

    def _receive_stock_append(self, node: Node, message: Append) -> None:
        self._receive_stock(
            node,
            type="append_entries",
            term=message.term,
            commit_index=message.commit_index,
            entries=message.entries,
            prevLogIdx=message.prev_index,
            prevLogTerm=message.prev_term,
        )

    def _receive_stock_vote_request(self, node: Node, message: VoteRequest) -> None:
        self._receive_stock(
            node,
            type="request_vote",
            term=message.term,
            last_log_index=message.last_index,
            last_log_term=message.last_term,
        )

    # Messages from pysyncobj

    def stock_sends(self, node: Node, message: dict[str, Any]) -> None:
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
