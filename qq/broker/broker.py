"""The broker of one node: its connections and sessions, and the effects that are theirs.

Every node computes the same effects from the same log; each carries out those of its own sessions (design 1).

Law: an effect is dispatched in the order in which the log has it, and never waits.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cluster.complaints import Complaints
from cluster.group import Confirmed, Expelled
from qq.broker.dead_letters import DeadLetters
from qq.broker.entries import Entries
from qq.broker.login import Logins
from qq.broker.resume import resume
from qq.broker.submissions import Submissions
from qq.errors import Reply as ReplyCode
from qq.errors import amqp_error
from qq.machine import commands
from qq.machine.effects import (
    ConnectionForced,
    ConsumerGone,
    DeadLettered,
    Deliver,
    DeliveryTimeout,
    DirectReply,
    Effect,
    Failed,
    Known,
    OriginExpelled,
    Rejected,
    Reply,
    Returned,
    SessionEffect,
)
from qq.metrics import Counters

if TYPE_CHECKING:
    from cluster.group import Group
    from cluster.ports import Disk, Runtime
    from cluster.strangers import Places
    from qq.amqp.connection import Settings
    from qq.broker.channel import Channel
    from qq.broker.listener import ClientConnection
    from qq.config import Limits
    from qq.machine.machine import QueueMachine

log = logging.getLogger(__name__)

COMPLAINTS_PER_S = 10
"""Lines in the log about strangers, of each kind."""


class Broker:
    """The sessions of this node."""

    def __init__(
        self,
        name: str,
        machine: QueueMachine,
        runtime: Runtime,
        settings: Settings,
        loopback_users: Sequence[str],
        limits: Limits,
        places: Places,
    ) -> None:
        self.name = name
        self.machine = machine
        self.settings = settings
        self.limits = limits
        self.counters = Counters()
        self.connections: dict[int, ClientConnection] = {}
        self.places = places
        """Of the connections."""
        self.complaints = Complaints(log, COMPLAINTS_PER_S)
        self.elections = 0
        """Changes of leader that this node has seen."""
        self.alarm: str | None = None
        """Why publishers must wait."""
        self.live = False
        """This incarnation's first batch is applied: the node has caught up and may serve."""
        self._runtime = runtime
        self._loopback_users = loopback_users
        self._sessions: dict[int, Channel] = {}
        self._last_id = 0
        self._full: dict[ClientConnection, None] = {}
        self._leader: str | None = None

    def attach(self, group: Group, disk: Disk) -> None:
        """Connect to the group; before anything else is called."""
        self.group = group
        self.submissions = Submissions(
            self.name, group, self.machine, self._runtime, self.limits.publish_timeout_ms / 1000
        )
        self.logins = Logins(
            self.machine, self.submissions, self._runtime, self._loopback_users, self.counters
        )
        self.entries = Entries(group, disk, group.disk_failed)
        self._dead_letters = DeadLetters(self.machine, self.submissions, self.entries, self._runtime)

    def new_id(self) -> int:
        """A number for a connection, session or consumer; never used twice while the process lives."""
        self._last_id += 1
        return self._last_id

    def server_name(self, prefix: str) -> str:
        """A name nobody else has, in RabbitMQ's form: the node draws it, so that the log holds it like any other."""
        return prefix + base64.urlsafe_b64encode(self._runtime.random.randbytes(16)).rstrip(b"=").decode()

    # Connections and sessions

    def connection_opened(self, connection: ClientConnection) -> None:
        self.connections[connection.id] = connection
        self.counters.connections_opened += 1

    def connection_closed(self, connection: ClientConnection) -> None:
        del self.connections[connection.id]
        self._full.pop(connection, None)
        self.counters.connections_closed += 1
        self.connection_left(connection)
        connection.lane.connection = None  # nothing is counted for it any more, and it refers to its lane

    def connection_left(self, connection: ClientConnection) -> None:
        """Tell the log, once, that a connection is gone; its socket may linger."""
        if connection.in_log:
            connection.in_log = False
            self.submissions.add(commands.ConnectionDown(connection.id), connection.lane)

    def connect(self, connection: ClientConnection) -> None:
        """Ask the log to let a connection into its virtual host."""
        self.submissions.add(
            commands.Connect(connection.id, connection.vhost, connection.user), connection.lane
        )

    def session_opened(self, channel: Channel) -> None:
        self._sessions[channel.session] = channel
        self.counters.channels_opened += 1
        self.submissions.add(
            commands.OpenChannel(channel.session, channel.connection.id), channel.connection.lane
        )

    def channel(self, session: int) -> Channel | None:
        """The channel that the log knows under this number."""
        return self._sessions.get(session)

    def session_ended(self, channel: Channel) -> None:
        if self._sessions.pop(channel.session, None) is not None:
            self.counters.channels_closed += 1
            self.submissions.add(commands.SessionDown(channel.session), channel.connection.lane)

    def may_impersonate(self, user: str) -> bool:
        """Whether this user's messages may have any `user-id` (RabbitMQ's tag impersonator)."""
        known = self.machine.users.get(user)
        return known is not None and "impersonator" in known.tags

    # Back-pressure over all connections

    @property
    def uncommitted_bytes_max(self) -> int:
        """What one connection may have asked for that the log has yet to take in: all together half of the node's.

        So however many a client opens, there is room for others; only large messages can make the node full.
        """
        limits = self.limits
        share = limits.node_uncommitted_bytes // (2 * max(1, len(self.connections)))
        return min(limits.uncommitted_bytes, share)

    @property
    def is_full(self) -> bool:
        return self.submissions.pending_bytes > self.limits.node_uncommitted_bytes

    @property
    def why_full(self) -> str:
        limit = self.limits.node_uncommitted_bytes
        return f"what the log has not taken in yet is more than node_uncommitted_bytes ({limit})"

    def waits_for_room(self, connection: ClientConnection) -> None:
        self._full[connection] = None

    def alarm_changed(self, reason: str | None) -> None:
        """Let publishers wait for a reason, or go on (None)."""
        self.alarm = reason
        for connection in self.connections.values():
            connection.alarm_changed()

    # What the log says

    def applied(self, index: int, effects: Sequence[Any]) -> None:  # noqa: ARG002
        name = self.name
        for effect in effects:
            match effect:
                case Confirmed():
                    self._confirmed(effect.sequence)
                case Expelled():
                    self._expelled()
                case _:
                    if effect.node == name:
                        self._carry_out(effect)
        self.submissions.entry_applied()
        self._dead_letters.turn()

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, OriginExpelled):
            return
        if isinstance(effect, DeadLettered):
            self.counters.dead_lettered[effect.reason, effect.strategy] += effect.count
            return
        channel = self._sessions.get(effect.session)
        if channel is None:
            self._tell_connection(effect)
            return
        match effect:
            case Deliver():
                channel.deliver(effect)
            case Reply():
                channel.replied(effect.result)
            case Failed():
                channel.failed(effect)
            case Returned():
                channel.unroutable(effect)
            case DirectReply():
                channel.direct_reply(effect)
            case Rejected():
                channel.refuse(effect.first_seq, effect.first_seq + effect.count - 1)
            case DeliveryTimeout():
                channel.timed_out(effect)
            case ConsumerGone():
                channel.consumer_gone(effect.consumer)
            # The first is told in `resumed` only, the second never to a channel.
            case Known() | ConnectionForced():
                pass

    def _tell_connection(self, effect: SessionEffect) -> None:
        """Carry out what is about a connection itself, if there still is one; its id is no channel's."""
        connection = self.connections.get(effect.session)
        if connection is None:
            return
        match effect:
            case Reply():
                connection.admitted()
            case Failed():
                connection.not_admitted(
                    amqp_error(effect.code, effect.text, effect.class_id, effect.method_id)
                )
            case ConnectionForced():
                connection.force_close(effect.text, ReplyCode(effect.code))
            case _:
                pass

    def resumed(self, sequence: int, outstanding: Sequence[Effect]) -> None:
        """Go on from a snapshot: the batches up to `sequence` are applied, and `outstanding` is all that is told."""
        for effect in outstanding:
            if isinstance(effect, OriginExpelled | DeadLettered):
                continue
            channel = self._sessions.get(effect.session)
            if channel is None:
                self._tell_connection(effect)
            else:
                resume(channel, effect)
        if sequence:
            self._confirmed(sequence, unseen=True)

    def needed_from(self) -> int | None:
        """The smallest index whose entry holds what waits for a client and is in no queue any more; None if nothing."""
        indexes = [channel.outgoing.needed_from() for channel in self._sessions.values()]
        return min((index for index in indexes if index is not None), default=None)

    def _confirmed(self, sequence: int, *, unseen: bool = False) -> None:
        self.live = True
        self.submissions.applied(sequence, unseen=unseen)
        if self._full and not self.is_full:
            waiting, self._full = self._full, {}
            for connection in waiting:
                connection.count_uncommitted(0)

    def _expelled(self) -> None:
        log.error("the cluster gave this node up while it was away; its clients must connect again")
        # First of all: the log does not know their sessions any more, and nothing may be asked for in those.
        for connection in list(self.connections.values()):
            connection.close_now()
        self.submissions.give_up()

    def leader_changed(self, leader: str | None, term: int) -> None:  # noqa: ARG002
        if leader is None or leader == self._leader:
            return
        is_failover, self._leader = self._leader is not None, leader
        self.elections += 1
        self._dead_letters.lead(leader == self.name)
        if is_failover:
            for channel in list(self._sessions.values()):
                channel.leader_changed()
