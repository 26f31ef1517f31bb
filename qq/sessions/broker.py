"""The broker of one node: what all its sessions share, whatever protocol their clients speak.

Invariant: a connection and a session are told to the log when they begin, and once when they end.
"""

from __future__ import annotations

import base64
import logging
from typing import TYPE_CHECKING, Any

from cluster.state.apply import Confirmed, Expelled
from qq.machine.protocol import commands
from qq.machine.protocol.codec import check_command
from qq.metrics.counters import Counters
from qq.sessions.dead_letters import DeadLetters
from qq.sessions.dispatch import Dispatcher
from qq.sessions.entries import Entries
from qq.sessions.login import Logins
from qq.sessions.mover import Mover
from qq.sessions.no_quorum import Leaderless
from qq.sessions.shovels import Shovels
from qq.sessions.submissions import Submissions
from qq.sessions.throttle import Throttle
from qq.sessions.verdicts import Verdicts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cluster.runtime.ports import Disk, Runtime
    from qq.config import NodeLimits
    from qq.machine.machine import QueueMachine
    from qq.machine.protocol.effects import Effect
    from qq.sessions.ports import Connection, Log, Session

log = logging.getLogger(__name__)

LET_GO_S = 2.0
"""How long a client waits for close-ok, or for connection.close, at most until the end of its connection is applied."""
_IMPERSONATOR = "impersonator"


class Broker:
    """The sessions of this node. It is the `GroupEvents` of the group whose log it is given."""

    def __init__(
        self,
        name: str,
        machine: QueueMachine,
        group: Log,
        disk: Disk,
        runtime: Runtime,
        loopback_users: Sequence[str],
        limits: NodeLimits,
    ) -> None:
        """`disk` is asked to read what is in the log of the group and not in memory any more."""
        self.name = name
        self.machine = machine
        self.limits = limits
        self.runtime = runtime
        self.counters = Counters()
        self.elections = 0
        """Changes of leader that this node has seen."""
        self.alarm: str | None = None
        """Why publishers must wait; None if they need not."""
        self.live = False
        """Whether this incarnation's first batch is applied: then the node has caught up and may serve."""
        self.submissions = Submissions(name, group, machine, runtime, limits.publish_timeout_ms / 1000)
        self.entries = Entries([group], disk, machine.fragments_of)
        self.logins = Logins(machine, self.submissions, runtime, loopback_users, self.counters)
        self._verdicts = Verdicts(name, machine, group.undecided, runtime)
        self._dead_letters = DeadLetters(machine, self.submissions, self.entries, runtime)
        self._mover = Mover(machine, self.submissions, self.entries, runtime, lambda: self.alarm is not None)
        self._shovels = Shovels(machine, self.submissions, runtime)
        self._dispatcher = Dispatcher(self.counters)
        machine.needed_from = self._dispatcher.needed_from
        self.throttle = Throttle(name, machine, runtime, limits)
        self.leaderless = Leaderless(
            self.connections, group.why_undecided, runtime, limits.majority_timeout_ms / 1000
        )
        self.why_undecided = group.why_undecided
        self._last_id = 0
        self._full: dict[Connection, None] = {}
        self._leader: str | None = None

    def new_id(self) -> int:
        """A number for a connection, session or consumer; never used twice while the process lives."""
        self._last_id += 1
        return self._last_id

    def server_name(self, prefix: str) -> str:
        """A name nobody else has, in RabbitMQ's form: the node draws it, so that the log holds it like any other."""
        return prefix + base64.urlsafe_b64encode(self.runtime.random.randbytes(16)).rstrip(b"=").decode()

    # What is counted

    @property
    def routed(self) -> int:
        """How often messages of its clients went into a queue since this process began."""
        return self.machine.routed.get(self.name, 0) if self.live else 0

    @property
    def dropped(self) -> int:
        """How many messages of its clients that were not mandatory have reached no queue since then."""
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
        connection.lane.payer = None  # nothing is counted for it any more, and it refers to its lane

    def connection_left(self, connection: Connection) -> None:
        """Tell the log, once, that a connection is gone; its socket may linger."""
        if connection.in_log:
            connection.in_log = False
            self.submissions.add(commands.ConnectionDown(connection.id), connection.lane)

    def let_go(self, connection: Connection, gone: Callable[[], None]) -> bool:
        """Tell the log that a connection is gone, and call `gone` when its claims have ended, or after LET_GO_S.

        Returns False, and never calls `gone`, if the connection has no claims or there is no leader.
        """
        was_in_log = connection.in_log
        self.connection_left(connection)
        if not was_in_log or self.why_undecided() is not None:
            return False
        timer = self.runtime.call_later(LET_GO_S, gone)

        def applied() -> None:
            timer.cancel()
            gone()

        self.submissions.read_barrier(applied, connection.lane)
        return True

    def connect(self, connection: Connection) -> None:
        """Ask the log to let a connection into its virtual host. Raises InvalidCommand if the log cannot."""
        connection.lane.tenant = self.submissions.tenant(connection.vhost)
        self.submissions.add(self.connection_command(connection), connection.lane)
        connection.in_log = True

    def connect_when_known(self, connection: Connection, connect: Callable[[], None]) -> None:
        """Call `connect`, as soon as no claim of a dead node takes the connection's place within a limit."""
        self._verdicts.when_known(self.connection_command(connection), connection.vhost, connect)

    def connection_command(self, connection: Connection) -> commands.Connect | commands.ConnectVouched:
        """The command that lets a connection in; that for users of tokens is not known to release 0.1."""
        is_vouched = connection.scopes is not None
        connect = commands.ConnectVouched if is_vouched else commands.Connect
        return connect(connection.id, connection.vhost, connection.user)

    def session_opened(self, session: Session) -> None:
        self._dispatcher.sessions[session.session] = session
        self.counters.channels_opened += 1
        connection = session.connection
        self.submissions.add(commands.OpenChannel(session.session, connection.id), connection.lane)

    def open_when_known(self, session: Session, open_session: Callable[[], None]) -> bool:
        """Call `open_session`, as soon as no claim of a dead node takes its place; True if that is at once."""
        connection = session.connection
        command = commands.OpenChannel(session.session, connection.id)
        return self._verdicts.when_known(command, connection.vhost, open_session)

    def ask_when_known(
        self, command: commands.Command, connection: Connection, is_over: Callable[[], bool]
    ) -> None:
        """Submit a command, unless `is_over` by then, as soon as no claim of a dead node bars it.

        Raises InvalidCommand at once if the log cannot hold the command.
        """
        if not self._verdicts.are_awaited(command, connection.vhost):
            self.submissions.add(command, connection.lane)
            return
        check_command(command, self.machine.version)

        def submit() -> None:
            if not is_over():
                self.submissions.add(command, connection.lane)

        self._verdicts.when_known(command, connection.vhost, submit)

    def session(self, number: int) -> Session | None:
        """The session of this node that the log knows under this number."""
        return self._dispatcher.sessions.get(number)

    def session_ended(self, session: Session) -> None:
        if self._dispatcher.sessions.pop(session.session, None) is not None:
            self.counters.channels_closed += 1
            self.submissions.add(commands.SessionDown(session.session), session.connection.lane)

    def may_impersonate(self, connection: Connection) -> bool:
        """Whether messages of its user may have any `user-id` (RabbitMQ's tag impersonator)."""
        if connection.scopes is not None:
            return _IMPERSONATOR in connection.scopes.tags
        known = self.machine.users.get(connection.user)
        return known is not None and _IMPERSONATOR in known.tags

    @property
    def leader(self) -> str | None:
        """The node that leads, as far as this one knows; None if it knows of none yet."""
        return self._leader

    # Back-pressure over all connections

    @property
    def uncommitted_bytes_max(self) -> int:
        """Octets that one connection may have asked for and the log not taken in: all share half of the node's limit.

        So however many connections a client opens, others have room; only large messages can make the node full.
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

    def waits_for_room(self, connection: Connection) -> None:
        self._full[connection] = None

    def alarm_changed(self, reason: str | None) -> None:
        """Let publishers wait for a reason, or go on (None)."""
        self.alarm = reason
        for connection in self.connections.values():
            connection.alarm_changed()

    # What the log says

    def applied(self, index: int, effects: Sequence[Any]) -> None:  # noqa: ARG002
        name, carry_out = self.name, self._dispatcher.carry_out
        for effect in effects:
            match effect:
                case Confirmed():
                    self._confirmed(effect.sequence)
                case Expelled():
                    self._expelled()
                case _:
                    if effect.node == name:
                        carry_out(effect)
        self.submissions.entry_applied()
        self._dead_letters.submit_step()
        self._mover.submit_step()

    def resumed(self, sequence: int, outstanding: Sequence[Effect]) -> None:
        """Go on from a snapshot: batches up to `sequence` are applied; only the effects in `outstanding` are told."""
        self._dispatcher.resume(outstanding)
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

    def _expelled(self) -> None:
        if self.connections:
            log.error("the cluster gave this node up while it was away; its clients must connect again")
        # First of all: the log does not know their sessions any more, and nothing may be asked for in those.
        for connection in list(self.connections.values()):
            connection.close_now()
        self.submissions.give_up()

    def leader_changed(self, leader: str | None, term: int) -> None:  # noqa: ARG002
        self.leaderless.leader_changed(leader)
        if leader is None or leader == self._leader:
            return
        is_failover, self._leader = self._leader is not None, leader
        self.elections += 1
        self._dead_letters.lead(leader == self.name)
        self._mover.lead(leader == self.name)
        self._shovels.lead(leader == self.name)
        if is_failover:
            for session in list(self._dispatcher.sessions.values()):
                session.leader_changed()
