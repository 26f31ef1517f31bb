"""pysyncobj as it is driven here: made without its surroundings, and its state under the names of the field.

Invariant: nobody but this and engine.py names an attribute of SyncObj that begins with an underscore.
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
    """One member's consensus state, as pysyncobj has it; it is told nothing but what its owner makes of messages."""

    # Its private state, as far as it is touched here and by the engine.
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
        """Take up the log as it is. pysyncobj reads all properties while it is made, so they have to work by then."""
        self.journal = journal
        self.outbox: list[OutgoingMessage] = []
        """What is to be sent, in this order."""
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
        """Let pysyncobj go by this node's clock and randomness; called before each call into it."""
        ambient.runtime = self._runtime

    # Its state

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
        """The member that this one voted for in `term`; None if it has not voted."""
        return self._SyncObj__votedForNodeId

    @property
    def commit_index(self) -> int:
        return self._SyncObj__raftCommitIndex

    @property
    def applied_index(self) -> int:
        return self._SyncObj__raftLastApplied

    def last_applied(self) -> tuple[int, int]:
        """Index and term of the last entry that is applied."""
        index = self._SyncObj__raftLastApplied
        return index, self.journal.term_at(index)

    def remember(self, term: int, vote: str | None) -> None:
        """Take over term and vote, which are stored already: they were unknown when this was made."""
        self._SyncObj__raftCurrentTerm = term
        self._SyncObj__votedForNodeId = vote

    def _forget_node(self, node: Node) -> None:
        """Send nothing more to a node, and count it nowhere."""
        self._SyncObj__raftMatchIndex.pop(node, None)
        self._SyncObj__lastResponseTime.pop(node, None)
        self._SyncObj__connectedNodes.discard(node)
        if self._SyncObj__raftLeader == node:
            self._SyncObj__raftLeader = None

    def _log_end(self) -> LogEnd:
        last_index = self.journal.last_index
        return LogEnd(self.journal.term_at(last_index), last_index)

    # What it is told

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

    # What it wants to send

    def stock_sends(self, node: Node, message: dict[str, Any]) -> None:
        """Translate what pysyncobj wants to send."""
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
        """Answer the append that pysyncobj has taken in; the engine's to do."""
        raise NotImplementedError

    def _emit(self, peer: str, message: Message, sync_point: int = 0) -> None:
        self.outbox.append(OutgoingMessage(sync_point, peer, message))

    # What it does by itself

    def _tick_is_due(self) -> bool:
        """Whether a tick could do anything: most turns come of what is no business of pysyncobj's."""
        if self.applied_index < self.commit_index:
            return True
        if self.is_leader:
            return self._SyncObj__newAppendEntriesTime < self._runtime.monotonic()
        return self._is_candidate or self._SyncObj__raftElectionDeadline < self._runtime.monotonic()

    def _SyncObj__getCurrentLogIndex(self) -> int:  # noqa: N802
        """Return what pysyncobj finds by reading the last entry."""
        return self.journal.last_index

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        """Do nothing: commands come through `Engine.propose` and not through pysyncobj's queue."""
