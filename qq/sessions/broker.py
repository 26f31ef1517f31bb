"""The broker of a node: the parts that all its sessions share, for every client protocol.

Invariant: the start of each connection and session is submitted to the log, and its end exactly once.
"""

from __future__ import annotations

import base64
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from cluster.state.apply import Confirmed, Evicted
from qq.machine.protocol import commands
from qq.machine.protocol.codec import check_command
from qq.metrics.counters import Counters
from qq.sessions.claim_waits import ClaimWaits
from qq.sessions.dead_letters import DeadLetters
from qq.sessions.direct_replies import DirectReplies
from qq.sessions.dispatch import Dispatcher
from qq.sessions.entries import Entries
from qq.sessions.login import Logins
from qq.sessions.mover import Mover
from qq.sessions.no_quorum import NoQuorum
from qq.sessions.queue_removals import QueueRemovals
from qq.sessions.shovels import Shovels
from qq.sessions.submissions import Submissions
from qq.sessions.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cluster.runtime.ports import Disk, Runtime
    from qq.config import NodeLimits
    from qq.machine.machine import QueueMachine
    from qq.machine.protocol.effects import Effect
    from qq.sessions.ports import Connection, Log, Session

log = logging.getLogger(__name__)

END_CLAIMS_S = 2.0
"""Seconds that a client waits for close-ok, or for connection.close, at most, until the end of its connection is
applied."""
AHEAD_BYTES = 1024 * 1024
"""Octets that wait for a batch above which the log is behind: as many as an entry takes."""
BEHIND_BYTES = 3 * 1024 * 1024
"""Octets that all connections may have requested while the log is behind: those on their way, and AHEAD_BYTES."""
BEHIND_BYTES_MIN = 16 * 1024
"""Octets that a connection may have requested in any case while the log is behind."""
OPERATORS_BYTES = 16 * 1024 * 1024
"""Octets above `node_uncommitted_bytes` that are left for operators: they may have to delete the flood's queues."""
EVICTED = (
    "the cluster evicted this node while it was silent, and returned the messages of its clients to their queues; "
    "connect again, here or at another node"
)
"""Reason for the clients of a node that comes back after its eviction."""
_IMPERSONATOR = "impersonator"


class QueueReplica(NamedTuple):
    """A node's replica of the queues: the state machine, and the log that it applies."""

    node: str
    """The name of the node."""
    machine: QueueMachine
    log: Log
    disk: Disk
    """The disk with the log's entries that are no longer in memory."""
    runtime: Runtime


class Broker:
    """The sessions of this node and their shared parts.

    Implements `GroupEvents` for the group whose log it receives.
    """

    def __init__(self, replica: QueueReplica, loopback_users: Sequence[str], limits: NodeLimits) -> None:
        """Create the parts. `loopback_users` may log in from this machine only."""
        name, machine, group, disk, runtime = replica
        self.name = name
        self.machine = machine
        self.limits = limits
        self.runtime = runtime
        self.counters = Counters()
        self.elections = 0
        """Changes of leader that this node has seen."""
        self.alarm: str | None = None
        """Why publishers must wait; None if there is no alarm."""
        self.live = False
        """Whether the first batch of this process start is applied: then the node has caught up and may serve
        clients."""
        self.submissions = Submissions(name, group, machine, runtime, limits.publish_timeout_ms / 1000)
        self.entries = Entries(group, disk, machine.fragments_of)
        self.logins = Logins(machine, self.submissions, runtime, loopback_users, self.counters)
        self._claim_waits = ClaimWaits(name, machine, group.undecided, runtime)
        self._dead_letters = DeadLetters(machine, self.submissions, self.entries, runtime)
        self._mover = Mover(machine, self.submissions, self.entries, runtime, lambda: self.alarm is not None)
        self._shovels = Shovels(machine, self.submissions, runtime)
        self._dispatcher = Dispatcher(self.counters)
        self.direct_replies = DirectReplies(name, group, self._dispatcher, self.counters, runtime)
        self.queue_removals = QueueRemovals()
        machine.needed_from = self._dispatcher.needed_from
        machine.queue_removed = self.queue_removals.removed
        self.throttle = Throttle(name, machine, runtime, limits)
        self.no_quorum = NoQuorum(
            self.connections,
            group.why_undecided,
            self.submissions.oldest_pending,
            runtime,
            limits.majority_timeout_ms / 1000,
        )
        self.why_undecided = group.why_undecided
        self._last_id = 0
        self._full: dict[Connection, None] = {}
        self._leader: str | None = None

    def new_id(self) -> int:
        """Return a new number for a connection, session or consumer.

        Numbers are never reused while the process runs.
        """
        self._last_id += 1
        return self._last_id

    def server_name(self, prefix: str) -> str:
        """Return `prefix` with a random unique suffix in RabbitMQ's form.

        The node draws it, so the log gets an ordinary name.
        """
        return prefix + base64.urlsafe_b64encode(self.runtime.random.randbytes(16)).rstrip(b"=").decode()

    # Counters

    @property
    def routed(self) -> int:
        """How often messages of this node's clients went into a queue since this process began."""
        return self.machine.routed.get(self.name, 0) if self.live else 0

    @property
    def routed10(self) -> int:
        """The part of `routed` that clients of AMQP 1.0 have published."""
        return self.machine.routed10.get(self.name, 0) if self.live else 0

    @property
    def dropped(self) -> int:
        """Messages of this node's clients that were not mandatory and reached no queue, since this process began."""
        return self.machine.dropped.get(self.name, 0) if self.live else 0

    # Connections and sessions

    @property
    def connections(self) -> Mapping[int, Connection]:
        return self._dispatcher.connections

    @property
    def sessions(self) -> Mapping[int, Session]:
        return self._dispatcher.sessions

    def connection_opened(self, connection: Connection) -> None:
        self._dispatcher.connections[connection.id] = connection
        self.counters.connections_opened += 1

    def connection_closed(self, connection: Connection) -> None:
        del self._dispatcher.connections[connection.id]
        self._full.pop(connection, None)
        self.throttle.connection_left(connection)
        self.counters.connections_closed += 1
        self.connection_left(connection)
        connection.lane.payer = None  # breaks the reference cycle; no more octets are counted

    def connection_left(self, connection: Connection) -> None:
        """Submit, once, that a connection has ended. Its socket may still be open."""
        if connection.in_log:
            connection.in_log = False
            self.submissions.add(commands.ConnectionDown(connection.id), connection.lane)

    def end_claims(self, connection: Connection, gone: Callable[[], None]) -> bool:
        """Submit that a connection has ended, and call `gone` when its claims have ended, or after END_CLAIMS_S.

        Return False, and never call `gone`, if the connection has no claims or no leader is known.
        """
        was_admitted = connection.is_admitted
        self.connection_left(connection)
        if not was_admitted or self.why_undecided() is not None:
            return False
        timer = self.runtime.call_later(END_CLAIMS_S, gone)

        def applied() -> None:
            timer.cancel()
            gone()

        self.submissions.read_barrier(applied, connection.lane)
        return True

    def connect(self, connection: Connection) -> None:
        """Ask the log to admit a connection to its virtual host.

        Raise InvalidCommand if the log cannot hold the request.
        """
        connection.lane.tenant = self.submissions.tenant(connection.vhost)
        self.submissions.add(self.connection_command(connection), connection.lane)
        connection.in_log = True

    def connect_when_free(self, connection: Connection, connect: Callable[[], None]) -> None:
        """Call `connect` as soon as no claim of a dead node uses up the limit that the connection counts against."""
        self._claim_waits.submit_when_free(self.connection_command(connection), connection.vhost, connect)

    def connection_command(self, connection: Connection) -> commands.Connect | commands.ConnectVouched:
        """Return the command that admits a connection. Release 0.1 does not know the command for users of tokens."""
        is_vouched = connection.scopes is not None
        connect = commands.ConnectVouched if is_vouched else commands.Connect
        return connect(connection.id, connection.vhost, connection.user)

    def session_opened(self, session: Session) -> None:
        self._dispatcher.sessions[session.session] = session
        self.counters.channels_opened += 1
        connection = session.connection
        self.submissions.add(commands.OpenChannel(session.session, connection.id), connection.lane)

    def open_when_free(self, session: Session, open_session: Callable[[], None]) -> bool:
        """Call `open_session` when no claim of a dead node takes its place under a limit.

        Return True if that is at once.
        """
        connection = session.connection
        command = commands.OpenChannel(session.session, connection.id)
        return self._claim_waits.submit_when_free(command, connection.vhost, open_session)

    def submit_when_free(
        self, command: commands.Command, connection: Connection, is_over: Callable[[], bool]
    ) -> None:
        """Submit a command as soon as no claim of a dead node bars it, unless `is_over()` is true by then.

        Raise InvalidCommand at once if the log cannot hold the command.
        """
        if not self._claim_waits.must_wait(command, connection.vhost):
            self.submissions.add(command, connection.lane)
            return
        check_command(command, self.machine.version)

        def submit() -> None:
            if not is_over():
                self.submissions.add(command, connection.lane)

        self._claim_waits.submit_when_free(command, connection.vhost, submit)

    def session(self, number: int) -> Session | None:
        """Return this node's session with this number in the log, or None."""
        return self._dispatcher.sessions.get(number)

    def session_ended(self, session: Session) -> None:
        if self._dispatcher.sessions.pop(session.session, None) is not None:
            self.counters.channels_closed += 1
            self.submissions.add(commands.SessionDown(session.session), session.connection.lane)

    def may_impersonate(self, connection: Connection) -> bool:
        """Return whether the user's messages may have any `user-id` (RabbitMQ's tag impersonator)."""
        if connection.scopes is not None:
            return _IMPERSONATOR in connection.scopes.tags
        known = self.machine.users.get(connection.user)
        return known is not None and _IMPERSONATOR in known.tags

    @property
    def leader(self) -> str | None:
        """The last leader known to this node; None before the first."""
        return self._leader

    # Back-pressure over all connections

    @property
    def uncommitted_bytes_max(self) -> int:
        """Octets that a connection may have requested and the log not taken in.

        All connections share half of the node's limit.

        So other connections have room however many connections a client opens. Only large messages can make the node
        full.
        """
        limits, connections = self.limits, max(1, len(self.connections))
        share = limits.node_uncommitted_bytes // (2 * connections)
        if self.submissions.waiting_bytes > AHEAD_BYTES:
            share = min(share, max(BEHIND_BYTES // connections, BEHIND_BYTES_MIN))
        return min(limits.uncommitted_bytes, share)

    @property
    def is_full(self) -> bool:
        return self.submissions.pending_bytes > self.limits.node_uncommitted_bytes

    def is_full_for(self, vhost: str) -> bool:
        """Return whether a client may not connect to the virtual host, because requests fill the memory.

        Clients of a virtual host with few pending requests have room in a node that other virtual hosts have filled.
        """
        if not self.is_full:
            return False
        pending = self.submissions.tenant(vhost).pending_bytes
        return pending > self.limits.node_uncommitted_bytes // self.submissions.tenant_shares

    @property
    def is_full_for_operators(self) -> bool:
        """Whether operators' requests have no room either. At most `limits.requests` of them run at a time."""
        return self.submissions.pending_bytes > self.limits.node_uncommitted_bytes + OPERATORS_BYTES

    @property
    def why_full(self) -> str:
        limit = self.limits.node_uncommitted_bytes
        return f"what the log has not taken in yet is more than node_uncommitted_bytes ({limit})"

    def waits_for_room(self, connection: Connection) -> None:
        self._full[connection] = None

    def alarm_changed(self, reason: str | None) -> None:
        """Make publishers wait for `reason`, or let them continue (None)."""
        self.alarm = reason
        for connection in self.connections.values():
            connection.alarm_changed()

    # Events from the log

    def applied(self, index: int, effects: Sequence[Any]) -> None:
        name, carry_out = self.name, self._dispatcher.carry_out
        self.direct_replies.begin(index)
        for effect in effects:
            match effect:
                case Confirmed():
                    self._confirmed(effect.sequence)
                case Evicted():
                    self._evicted()
                case _:
                    if effect.node == name:
                        carry_out(effect)
        if self.queue_removals.to_notify:
            self.queue_removals.notify()
        if self.direct_replies.early:
            self.direct_replies.deliver_applied(index)
        self.submissions.entry_applied()
        self._dead_letters.submit_step()
        self._mover.submit_step()

    def resumed(self, sequence: int, outstanding: Sequence[Effect]) -> None:
        """Continue from a snapshot: batches up to `sequence` are applied, only effects in `outstanding` are known."""
        self._dispatcher.resume(outstanding)
        self.direct_replies.deliver_applied(self.direct_replies.applied_index)
        if sequence:
            self._confirmed(sequence, unseen=True)

    def needed_from(self) -> int | None:
        index = self._dispatcher.needed_from()
        return None if index is None else self.machine.first_fragment_from(index)

    def _confirmed(self, sequence: int, *, unseen: bool = False) -> None:
        if not self.live:
            self.live = self._dispatcher.is_live = True
            self.machine.count_anew()
        self.submissions.applied(sequence, unseen=unseen)
        if self._full and not self.is_full:
            waiting, self._full = self._full, {}
            for connection in waiting:
                connection.count_uncommitted(0)

    def _evicted(self) -> None:
        if self.connections:
            log.error("the cluster gave this node up while it was away; its clients must connect again")
        # Close the connections first: the log has forgotten their sessions, so what they submit now is dropped, too.
        for connection in list(self.connections.values()):
            connection.forget(EVICTED)
        self.submissions.abandon()

    def leader_changed(self, leader: str | None, term: int) -> None:  # noqa: ARG002
        self.no_quorum.leader_changed(leader)
        if leader is None or leader == self._leader:
            return
        is_failover, self._leader = self._leader is not None, leader
        self.elections += 1
        self._dead_letters.set_leading(leader == self.name)
        self._mover.set_leading(leader == self.name)
        self._shovels.set_leading(leader == self.name)
        if is_failover:
            for session in list(self._dispatcher.sessions.values()):
                if session.consumers is not None:
                    session.consumers.leader_changed()
