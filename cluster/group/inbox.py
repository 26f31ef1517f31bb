"""The inbox of a group: handle the events of links, decode each message of a peer, and pass it to its handler.

Each connection with a peer is an *epoch*. Messages of an earlier epoch count as unsent if they may not have arrived.

Invariant: only some messages of a connected non-member are accepted (`Members.accepts_from_non_member`). A node without
memory (`VoterStatus.BLANK`) accepts no message that would make it promise something.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cluster.log.entry import MalformedEntry
from cluster.log.hardstate import VoterStatus
from cluster.raft.elections import Role
from cluster.raft.log_matching import ForeignLog
from cluster.raft.messages import (
    Append,
    AppendResponse,
    BrokerMessage,
    Forward,
    MalformedFrame,
    Message,
    ReadIndexAnswer,
    ReadIndexRequest,
    Status,
    TermCheck,
    TermConfirmed,
    decode,
)

if TYPE_CHECKING:
    from cluster.group.reads import Reads
    from cluster.membership.assembly import MembershipParts
    from cluster.replica import Replica
    from cluster.snapshots.receiver import SnapshotReceiver
    from cluster.transport.queries import Queries

log = logging.getLogger(__name__)

_WITHOUT_TURN = (
    Append,
    AppendResponse,
    ReadIndexRequest,
    ReadIndexAnswer,
    TermCheck,
    TermConfirmed,
    BrokerMessage,
)
"""Messages that need a turn only if the engine wants one."""
Handler = Callable[[str, Any], None]
"""Handles a message. The first argument is the sender's name."""


class Inbox:
    """Receives the events of a group's links (`cluster.transport.ports.LinkEvents`)."""

    def __init__(
        self,
        replica: Replica,
        membership: MembershipParts,
        *,
        receiver: SnapshotReceiver,
        queries: Queries,
        reads: Reads,
        handlers: Mapping[type[Message], Handler],
    ) -> None:
        """`handlers` maps types of messages to their handlers. All other types go to the engine."""
        self._links = replica.links
        self._linked = replica.linked
        self._engine = replica.engine
        self._clock = replica.clock
        self._rejoin = replica.rejoin
        self._pending = replica.pending
        self._proposals = replica.proposals
        self._outbox = replica.outbox
        self._log_sync = replica.log_sync
        self._fail_stop = replica.fail_stop
        self._turns = replica.turns
        self._runtime = replica.runtime
        self._campaign_jitter_s = replica.config.timing.campaign_jitter_s
        self._members = membership.members
        self._peers = membership.peers
        self._joining = membership.joining
        self._discovery = membership.discovery
        self._evictions = membership.evictions
        self._rollbacks = membership.rollbacks
        self._own_status = membership.own_status
        self._leadership = membership.leadership
        self._receiver = receiver
        self._queries = queries
        self._reads = reads
        self._handlers: dict[type[Any], Handler] = {
            Forward: self._forwarded,
            Status: self._status_received,
            **handlers,
        }
        self._malformed: set[str] = set()
        """Peers whose malformed frames were already logged on their current link."""

    # Links

    def peer_connected(self, peer: str) -> None:
        """Handle a new link. No message of an earlier link will arrive any more."""
        self._malformed.discard(peer)
        self._linked.link_began(peer, self._links.peer_id(peer))
        self._outbox.drop(peer)
        self._queries.fail_queries_to(peer)
        if not self._members.follow():
            self._members.update_engine()
        if not self._linked.is_member(peer):
            self._engine.non_member_connected()
        self._discovery.introduce_to(peer)
        self._rollbacks.link_began(peer)
        # All peers get it. Otherwise they would believe for up to a second that this link is missing.
        self._outbox.transmit_to_all(self._own_status.now())
        self._receiver.connected(peer)
        self._pending.mark_unsent(peer)
        self._reads.link_began(peer)
        self._turns.request()

    def peer_lost(self, peer: str, *, dead: bool) -> None:
        if dead:
            self._peer_died(peer)
        else:
            self._link_ended(peer)

    def _link_ended(self, peer: str) -> None:
        """Handle the loss of a link."""
        self._members.follow()
        self._outbox.drop(peer)
        self._clock.forget(peer)
        self._joining.forget(peer)
        self._rejoin.record_lost_link(peer)
        self._queries.fail_queries_to(peer)
        self._reads.link_ended(peer)
        if peer in self._engine.progress:
            self._engine.peer_lost(peer)
        self._linked.link_ended(peer)
        self._members.update_engine()
        if peer in self._members.known:
            self._peers.lost(peer, self._runtime.monotonic())
            self._evictions.record_lost_link()
        # The leader counts the members that have lost the link, before it considers the process dead.
        self._outbox.transmit_to_all(self._own_status.now())
        if self._leadership.leader_term.leader == peer:
            self._runtime.call_later(self._campaign_jitter_s, self._turns.request)
        self._turns.request()

    def _peer_died(self, peer: str) -> None:
        """Record that the process of a peer without a link has ended, or did not run when this node started.

        `_link_ended` has handled the lost link before. A second campaign would disturb a member that is campaigning.
        """
        self._members.follow()
        if peer in self._members.known:
            self._peers.died(peer, self._runtime.monotonic())
            self._evictions.record_death()

    def peer_drained(self, peer: str) -> None:
        """Handle the end of a link's congestion."""
        self._members.follow()
        if self._linked.is_member(peer):
            self._engine.peer_resumed(peer)
            self._turns.request()

    def part_received(self, peer: str) -> None:
        if not self._turns.is_on:
            return
        self._members.follow()
        is_member = self._linked.is_member(peer)
        if is_member:
            self._peers.record_contact(peer, self._runtime.monotonic())
        self._receiver.part_received(peer)
        if self._rejoin.voter_status is not VoterStatus.BLANK and (is_member or not self._engine.is_leader):
            self._engine.part_received(peer)
            if self._engine.outbox:
                self._turns.request()

    def frame_received(self, peer: str, frame: bytes) -> None:
        if not self._turns.is_on:
            return
        self._members.follow()
        is_member = self._linked.is_member(peer)
        if is_member:
            self._peers.record_contact(peer, self._runtime.monotonic())
        try:
            message = decode(frame)
        except MalformedFrame as error:
            if peer not in self._malformed:
                log.error("peer %s sends malformed frames, which are ignored; the first one: %s", peer, error)  # noqa: TRY400
                self._malformed.add(peer)
            return
        if is_member:
            self._rollbacks.heard(peer, message)
        try:
            if is_member or self._members.accepts_from_non_member(message):
                self._receive(peer, message)
        except ForeignLog as error:
            self._fail_stop.foreign_log(error)
        if not isinstance(message, _WITHOUT_TURN) or self._engine.wants_turn:
            self._turns.request()
        elif isinstance(message, Append) and not message.entries and self._engine.outbox:
            self._log_sync.send()  # the answer waits for no sync, and may be the only work until the next heartbeat

    # Messages

    def _receive(self, peer: str, message: Message) -> None:
        take = self._handlers.get(type(message))
        if take is not None:
            take(peer, message)
        elif (
            self._rejoin.voter_status is not VoterStatus.BLANK
        ):  # a blank node's lost promises may contradict it
            self._engine.receive(peer, message)
            self._members.follow()
            self._log_sync.begin()

    def _forwarded(self, peer: str, message: Forward) -> None:
        """Accept batches that a peer forwarded for the current term. The peer sends batches of other terms again."""
        if not self._engine.is_leader or message.term != self._engine.term:
            return
        try:
            self._proposals.accept(peer, b"".join(message.batches), may_wait=message.may_wait)
        except MalformedEntry:
            log.exception("peer %s forwarded malformed batches; ignored", peer)

    def _status_received(self, peer: str, status: Status) -> None:
        if status.state == Role.LEADER:
            self._engine.check_end_of(peer, status.term, status.last_index)
            self._rejoin.record_leader_end(status)
        voters = self._members.configurations.membership.voters
        awake_s = self._log_sync.awake_s()  # after a stall, the status may be old
        if self._linked.is_member(peer):
            self._peers.record_status(peer, status)
            self._engine.record_committed(status.commit_index)
            # A voter whose log ends before its acknowledgements was put back as it was earlier.
            if (
                status.voter_status != VoterStatus.VOTER
                or status.last_index < self._engine.acknowledged_index(peer)
            ):
                self._engine.peer_has_lost(peer, status.last_index)
            if peer in voters:
                self._clock.add_peer_reading(peer, status.steady_ms, self._runtime.monotonic())
            self._rejoin.record_status(peer, status, awake_s)
        elif peer in voters and self._linked.is_member_by_latest(peer):
            self._rejoin.record_status(peer, status, awake_s)
        elif peer in voters:
            self._rejoin.record_foreign_status(peer, status, awake_s)
