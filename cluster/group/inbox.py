"""The inbox of a group: decode each message of a peer, and pass it to the part that handles it.

Invariant: only some messages of a connected non-member are accepted (`Members.accepts_from_non_member`). A node without
memory (`Standing.BLANK`) accepts no message that would make it promise something.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cluster.log.entry import MalformedEntry
from cluster.log.hardstate import Standing
from cluster.raft.elections import Role
from cluster.raft.log_matching import ForeignLog
from cluster.raft.messages import Append, AppendResponse, Forward, MalformedFrame, Message, Status, decode

if TYPE_CHECKING:
    from cluster.engine.engine import Engine
    from cluster.engine.rejoin import Recovery
    from cluster.group.link_events import Epochs
    from cluster.membership.peer_status import Peers
    from cluster.membership.view import Members
    from cluster.raft.cluster_clock import ClusterClock
    from cluster.raft.proposals import ProposalQueue
    from cluster.runtime.ports import Runtime
    from cluster.runtime.turn_timer import TurnTimer
    from cluster.storage.fail_stop import Stopping
    from cluster.transport.outbox import LogSync

log = logging.getLogger(__name__)

Taker = Callable[[str, Any], None]
"""Handles a message. The first argument is the sender's name."""


class Inbox:
    """Receives the events of a group's links (`cluster.transport.ports.LinkEvents`)."""

    def __init__(
        self,
        members: Members,
        peers: Peers,
        engine: Engine,
        clock: ClusterClock,
        recovery: Recovery,
        proposals: ProposalQueue,
        epochs: Epochs,
        log_sync: LogSync,
        stopping: Stopping,
        turns: TurnTimer,
        runtime: Runtime,
        part_received: Callable[[str], None],
        handlers: Mapping[type[Message], Taker],
    ) -> None:
        """`handlers` maps types of messages to their handlers. All other types go to the engine.

        `part_received` is called with the name of a peer when a part of a large frame arrives.
        """
        self._members = members
        self._linked = members.linked
        self._peers = peers
        self._engine = engine
        self._clock = clock
        self._recovery = recovery
        self._proposals = proposals
        self._epochs = epochs
        self._log_sync = log_sync
        self._stopping = stopping
        self._turns = turns
        self._runtime = runtime
        self._part_received = part_received
        self._handlers: dict[type[Any], Taker] = {
            Forward: self._forwarded,
            Status: self._told_status,
            **handlers,
        }
        self._malformed: set[str] = set()
        """Peers whose malformed frames were already logged on their current link."""

    # Links

    def peer_connected(self, peer: str) -> None:
        self._malformed.discard(peer)
        self._epochs.begins(peer)

    def peer_lost(self, peer: str, *, dead: bool) -> None:
        if dead:
            self._epochs.died(peer)
        else:
            self._epochs.ends(peer)

    def peer_drained(self, peer: str) -> None:
        self._epochs.has_room(peer)

    def part_received(self, peer: str) -> None:
        if not self._turns.is_on:
            return
        self._members.follow()
        is_member = self._linked.is_member(peer)
        if is_member:
            self._peers.heard(peer, self._runtime.monotonic())
        self._part_received(peer)
        if self._recovery.standing is not Standing.BLANK and (is_member or not self._engine.is_leader):
            self._engine.part_received(peer)
            if self._engine.outbox:
                self._turns.ask()

    def frame_received(self, peer: str, frame: bytes) -> None:
        if not self._turns.is_on:
            return
        self._members.follow()
        is_member = self._linked.is_member(peer)
        if is_member:
            self._peers.heard(peer, self._runtime.monotonic())
        try:
            message = decode(frame)
        except MalformedFrame as error:
            if peer not in self._malformed:
                log.error("peer %s sends malformed frames, which are ignored; the first one: %s", peer, error)  # noqa: TRY400
                self._malformed.add(peer)
            return
        try:
            if is_member or self._members.accepts_from_non_member(message):
                self._receive(peer, message)
        except ForeignLog as error:
            self._stopping.foreign_log(error)
        if not isinstance(message, Append | AppendResponse) or self._engine.wants_turn:
            self._turns.ask()
        elif isinstance(message, Append) and not message.entries and self._engine.outbox:
            self._log_sync.send()  # the answer waits for no sync, and may be the only work until the next heartbeat

    # Messages

    def _receive(self, peer: str, message: Message) -> None:
        take = self._handlers.get(type(message))
        if take is not None:
            take(peer, message)
        elif self._recovery.standing is not Standing.BLANK:  # a blank node's lost promises may contradict it
            self._engine.receive(peer, message)
            self._members.follow()
            self._log_sync.begin()

    def _forwarded(self, peer: str, message: Forward) -> None:
        """Accept batches that a peer forwarded for the current term. The peer sends batches of other terms again."""
        if not self._engine.is_leader or message.term != self._engine.term:
            return
        try:
            self._proposals.accept(peer, b"".join(message.batches))
        except MalformedEntry:
            log.exception("peer %s forwarded malformed batches; ignored", peer)

    def _told_status(self, peer: str, status: Status) -> None:
        if status.state == Role.LEADER:
            self._engine.check_end_of(peer, status.term, status.last_index)
            self._recovery.heard_leader(status)
        voters = self._members.configurations.membership.voters
        awake_s = self._log_sync.look()  # after a stall, the status may be old
        if self._linked.is_member(peer):
            self._peers.said(peer, status)
            if status.standing != Standing.VOTER:
                self._engine.peer_has_lost(peer, status.last_index)
            if peer in voters:
                self._clock.add_peer_reading(peer, status.steady_ms, self._runtime.monotonic())
            self._recovery.heard(peer, status, awake_s)
        elif peer in voters and self._linked.is_member_by_latest(peer):
            self._recovery.heard(peer, status, awake_s)
        elif peer in voters:
            self._recovery.heard_other(peer, status, awake_s)
