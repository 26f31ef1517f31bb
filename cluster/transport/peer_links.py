"""Peer links on asyncio: an authenticated FIFO TCP connection for each pair of nodes.

Of two nodes, the node with the smaller name dials at once, the other when no connection has come for a while. Each
authenticated connection is a new epoch: `_links` holds the connection of the current epoch, and events of any other
connection are ignored.

A connected non-member has an epoch like any peer, but is not dialled and not checked for death. A seed is the address
of a node whose name is unknown, or does not count yet (`PeerAdmission.seeds`). The node that answers there starts as a
non-member.

Invariant: unauthenticated connections cost bounded memory, time and log lines, and delay no peer. The number of
connected non-members is bounded. No message of a group ends a link or a turn.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
import socket
from collections import deque
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from itertools import chain, repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from cluster.configuration.configuration import PeerAddress
from cluster.net.acceptor import accept_all
from cluster.net.connection_slots import QUICK_SHARE, ConnectionSlots, SlotLimits
from cluster.net.log_throttle import ThrottledLog
from cluster.net.resolver import Resolver
from cluster.net.sockets import connect, listen
from cluster.transport.admission import Link, PeerAdmission
from cluster.transport.connection import FrameTooLargeError, LinkLimits, PeerConnection
from cluster.transport.handshake import (
    MESSAGE_BYTES_MAX,
    NONCE_BYTES,
    PROCESS_BYTES,
    VERSIONS,
    AcceptorHandshake,
    AlreadyLinkedError,
    Credentials,
    DiallerHandshake,
    DisagreementError,
    HandshakeError,
    OtherMembersError,
    RejectedError,
    SecondProcessError,
    Terms,
    TooManyNonMembersError,
    UnknownNodeError,
    VersionMismatchError,
    WrongSecretError,
    disagreement,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from cluster.configuration.configuration import Versions
    from cluster.configuration.history import Configurations
    from cluster.net.sockets import Address
    from cluster.runtime.ports import Buffer
    from cluster.transport.connection import Frame
    from cluster.transport.ports import LinkEvents

log = logging.getLogger(__name__)

_FLUSH_ON_STOP_S = 1.0
_TLS_GOODBYE_S = 1.0

# A killed process may lose its connections a moment before its listener: probe again soon. A frozen process may be
# killed later: continue to probe.
_PROBE_DELAYS_S = (0.0, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.4)
_PROBE_INTERVAL_S = 2.0
_PROBE_TIMEOUT_S = 1.0

# A peer is dead when its host has refused a connection and accepted none in the time after. A proxy that is restarting
# may refuse a single connection. By then, the address of a killed container may no longer exist.
_REFUSES_FOR_S = 0.03

_REDIAL_S = 0.02
_REDIAL_MAX_S = 0.08

# A peer that has not connected so long after the start may be dead. Nodes that start together need less.
_ABSENT_AFTER_S = 1.0

# For so many peers the logged reasons are remembered; well-behaved peers are always fewer.
_REASONS_MAX = 256

# A second process under the name of a linked peer tries each second. After the loss of a host, the new process of the
# peer is refused as well, but not for so long (`admission._GONE_AFTER_S`).
_SECOND_PROCESS_AFTER_S = 5.0

# While a process with a member's name and another data directory is linked, the member is dialled at this interval.
_FALSE_S = 1.0

# A link that ends so soon was not wanted by the other side.
_BRIEF_S = 1.0
_BRIEF_TIMES = 3


def redial_s(brief_times: int, patience_s: float) -> float:
    """Return the seconds to wait before dialling a lost peer, after `brief_times` brief links in succession.

    Both sides dial soon; the side without `patience_s` dials a little sooner. So a process that no connection can reach
    shows that it lives before its peers take it for dead (`GroupConfig.dead_origin_grace_s`).
    """
    return min(_REDIAL_S * 2 ** min(brief_times + bool(patience_s), 8), _REDIAL_MAX_S)


class PeerTls(NamedTuple):
    """Contexts for accepted and dialled connections; both should demand a certificate of the cluster's CA."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class LinkConfig(NamedTuple):
    """The settings of this node's links."""

    node: str
    cluster: str
    bind: Address
    """The address on which this node listens."""
    versions: Versions
    """The versions of the state that this node's program can run."""
    listed: Mapping[str, PeerAddress] = MappingProxyType({})
    """The addresses of nodes in this node's file."""
    prefers_listed: bool = False
    """Whether the nodes in `listed` are dialled only there."""
    seeds: Sequence[Address] = ()
    """Addresses of nodes of the cluster that this node must join."""


class _HostAnswer(Enum):
    """The outcome of an attempt to connect to a host."""

    ACCEPTED = auto()
    REFUSED = auto()
    """No process listens."""
    NONE = auto()
    """The host is unreachable, or its name cannot be resolved."""


class _Span(NamedTuple):
    """The first and the last time of a repeated event, in seconds."""

    first_s: float
    last_s: float

    def goes_on(self, now_s: float) -> bool:
        return now_s - self.last_s < _SECOND_PROCESS_AFTER_S


class PeerLinks:
    """The `Links` port on real sockets. All calls and callbacks are on the event loop of `start`."""

    def __init__(
        self,
        config: LinkConfig,
        cluster_secrets: Sequence[bytes],
        *,
        tls: PeerTls | None = None,
        limits: LinkLimits | None = None,
    ) -> None:
        """Create the links of this node; `start` begins to listen and to dial.

        `configure` must set the members before `start`.
        """
        process = secrets.token_bytes(PROCESS_BYTES)
        self._known = PeerAdmission(
            config.node, config.versions, process, config.listed, prefers_listed=config.prefers_listed
        )
        self._cluster = config.cluster
        self._node = config.node
        self._secrets = tuple(cluster_secrets)
        self._bind = config.bind
        self._tls = tls
        self._limits = limits or LinkLimits()
        if self._limits.unauthenticated_bytes_max < MESSAGE_BYTES_MAX:
            raise ValueError(
                f"unauthenticated_bytes_max is at least {MESSAGE_BYTES_MAX}, the longest handshake message"
            )
        self._names = Resolver()
        self._groups: dict[int, LinkEvents] = {}
        self._links: dict[str, PeerConnection] = {}
        """The connection of the current epoch with each peer, by name."""
        self._throttled_log = ThrottledLog(log, spares_repeats=True)
        self._unauthenticated = ConnectionSlots(
            SlotLimits(
                self._limits.unauthenticated_max,
                quick_max=self._limits.unauthenticated_max // QUICK_SHARE,
                fair_s=self._limits.unauthenticated_fair_s,
            ),
            throttled_log=self._throttled_log,
            label="peer connection",
        )
        """The accepted connections that have not authenticated a peer."""
        self._missing: set[str] = set()
        """Peers that were lost, or have not connected since the start, and are not known to be dead."""
        self._awaited: set[str] = set()
        """Peers that have not connected since the start: they may still be starting."""
        self._refused_since_s: dict[str, float] = {}
        """When each missing peer's host first refused a connection since it last accepted one."""
        self._has_started = False
        self._seeds = tuple(config.seeds)
        self._dialling: dict[str | Address, asyncio.Task[None]] = {}
        """The dialling tasks, by peer or by seed."""
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._accepting: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._logged_reasons: dict[str | Address, deque[str]] = {}
        """The last logged reasons for a missing link with a peer or a seed, so that they are logged only once."""
        self._brief_links: dict[str, int] = {}
        """The peers whose links end right after they begin, and how often in succession they did."""
        self._second_processes: dict[str, _Span] = {}
        """When second processes were refused under the name of a linked peer, by peer."""
        self._refusals: dict[Address, str] = {}
        """Why the last attempt to join at each seed has failed."""

    async def start(self) -> None:
        """Listen, then dial. Raises OSError when the address cannot be bound."""
        # First the listener: a dying process closes its files in the order of their numbers, so the listener refuses by
        # the time the peers see their connections break.
        for listener in await listen(self._bind):
            accepting = self._spawn(accept_all(listener, self._accept, self._throttled_log, "peer"))
            accepting.add_done_callback(partial(_close, listener))
            self._accepting.add(accepting)
        self._has_started = True
        for peer in sorted(self._known.addresses):
            self._start_dialling(peer)
        self._dial_seeds()

    async def stop(self) -> None:
        """Close everything, after sending queued bytes if that is quick. No events follow."""
        self._groups.clear()
        connections = self._take_links()
        # The accepting task first: tasks for sockets that it has accepted must have begun, or those sockets stay open.
        await _cancel(self._accepting)
        while self._tasks:
            await _cancel(self._tasks)
        connections += self._take_links()
        for connection in connections:
            connection.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_ON_STOP_S):
                for connection in connections:
                    await connection.gone.wait()
        for connection in connections:
            connection.abort()

    def renew_tls(self, tls: PeerTls) -> None:
        """Use these contexts for the connections that begin from now on."""
        self._tls = tls

    def renew_secrets(self, cluster_secrets: Sequence[bytes]) -> None:
        """Use and accept these secrets in the handshakes that begin from now on."""
        self._secrets = tuple(cluster_secrets)

    def _take_links(self) -> list[PeerConnection]:
        connections = list(self._links.values())
        self._links.clear()
        return connections

    def _start_dialling(self, peer: str) -> None:
        """Dial a peer as long as it is a member, and find out whether it is dead."""
        attempt = partial(self._try_peer, peer)
        work = self._keep_dialled(attempt, peer, self._known.patience_s(peer))
        self._dialling[peer] = self._spawn(work)
        if peer not in self._links:
            self._awaited.add(peer)
            self._probes[peer] = self._spawn(self._probe_absent(peer))

    def _stop_dialling(self, peer: str) -> None:
        for tasks in (self._dialling, self._probes):
            task = tasks.pop(peer, None)
            if task is not None:
                task.cancel()
        self._missing.discard(peer)
        self._awaited.discard(peer)
        self._refused_since_s.pop(peer, None)
        self._logged_reasons.pop(peer, None)

    def _dial_seeds(self) -> None:
        """Dial the present seeds, and stop dialling addresses that are seeds no longer."""
        seeds = self._known.seeds(self._seeds)
        for whom in [whom for whom in self._dialling if not isinstance(whom, str) and whom not in seeds]:
            self._dialling.pop(whom).cancel()
        for seed in seeds:
            if seed not in self._dialling:
                self._dialling[seed] = self._spawn(self._keep_dialled(partial(self._try_seed, seed)))

    @property
    def why_not_joined(self) -> str | None:
        """Why all seeds have refused this node; None if it has joined, or has not tried all seeds."""
        if not self._known.seeks_members or len(self._refusals) < len(self._seeds):
            return None
        reasons = [f"{_shown(seed)}: {reason}" for seed, reason in self._refusals.items()]
        return f"cannot join the cluster at {'; '.join(reasons)}" if reasons else None

    @property
    def why_apart(self) -> str | None:
        """The members without a link, each with the reason, except members whose host refuses connections; or None."""
        peers = sorted(self._known.addresses)
        return ", ".join(f"{peer} ({why})" for peer in peers if (why := self.why_apart_from(peer))) or None

    def why_apart_from(self, peer: str) -> str | None:
        """Return why there is no link with this member, or None if its host refuses connections or the link exists."""
        reasons = self._logged_reasons.get(peer)
        return reasons[-1] if reasons and peer not in self._links else None

    def is_twice(self, peer: str) -> bool:
        """Return whether a second process goes on using the name of this linked peer."""
        span = self._second_processes.get(peer)
        now_s = asyncio.get_running_loop().time()
        return span is not None and span.goes_on(now_s) and now_s - span.first_s >= _SECOND_PROCESS_AFTER_S

    # The port.

    def configure(self, member_id: bytes, configurations: Configurations) -> None:
        """Dial the members of these configurations and stop dialling removed nodes.

        A moved member is dialled at its new address.

        When this node learns its cluster, it ends the links with nodes that may be of a different cluster.
        """
        before = self._known.addresses.keys()
        linked = {peer: self._terms_of(connection) for peer, connection in self._links.items()}
        for peer in self._known.configure(member_id, configurations, linked):
            log.warning("dropped the connection of peer %s: it is no member of this node's cluster", peer)
            self._links[peer].abort()
        now = self._known.addresses.keys()
        for peer in before - now:
            self._stop_dialling(peer)
        if self._has_started:
            for peer in sorted(now - before):
                self._start_dialling(peer)
            self._dial_seeds()

    def register(self, group_id: int, events: LinkEvents) -> None:
        """Deliver frames of this group, and connection events from now on, to `events`."""
        if group_id in self._groups:
            raise ValueError(f"group {group_id} is registered already")
        self._groups[group_id] = events

    def send(self, peer: str, group_id: int, buffers: Sequence[Buffer]) -> None:
        """Queue a frame on the peer's current epoch, or drop it if there is no epoch.

        The buffers are not copied, so they must not change afterwards. A frame above the limit should not occur. It
        ends the epoch, because the frames after it must not arrive without it.
        """
        connection = self._links.get(peer)
        if connection is None:
            return
        length = sum(map(len, buffers))
        if length > self._limits.frame_bytes_max:
            error = FrameTooLargeError(
                f"a frame of {length} bytes is above the limit of {self._limits.frame_bytes_max}"
            )
            self._throttled_log.critical(type(error), f"cannot send to peer {peer}: {error}")
            connection.abort()
            return
        connection.write(group_id, buffers, length)

    def connected(self, peer: str) -> bool:
        return peer in self._links

    def peer_id(self, peer: str) -> bytes:
        return self._terms_of(self._links[peer]).member

    def peer_process(self, peer: str) -> bytes:
        return self._terms_of(self._links[peer]).process

    def protocol(self, peer: str) -> int:
        return self._links[peer].protocol

    def congested(self, peer: str) -> bool:
        connection = self._links.get(peer)
        return connection is not None and connection.congested

    # Epochs: events of the connections.

    def begin(self, connection: PeerConnection) -> None:
        """Make a connection that has just authenticated the peer the only connection of that peer."""
        peer = connection.peer
        old = self._links.pop(peer, None)
        if old is not None:
            self._log_replaced(old, connection)
            old.abort()
            self._report_lost(peer, dead=False)
        if not self._is_false(connection):
            self._missing.discard(peer)
            self._awaited.discard(peer)
            self._refused_since_s.pop(peer, None)
            if (probe := self._probes.pop(peer, None)) is not None:
                probe.cancel()
        self._links[peer] = connection
        if peer in self._brief_links:
            asyncio.get_running_loop().call_later(_BRIEF_S, self._log_connected, connection)
        else:
            self._log_connected(connection)
        for events in list(self._groups.values()):
            events.peer_connected(peer)

    def _log_replaced(self, old: PeerConnection, new: PeerConnection) -> None:
        peer = new.peer
        if self._is_false(old) and not self._is_false(new):
            log.warning(
                "node %s has connected with the data directory of the member: the process with another directory that "
                "called itself %s is disconnected",
                peer,
                peer,
            )
        else:
            log.info("peer %s has connected again: its old connection is dropped", peer)

    def _log_connected(self, connection: PeerConnection) -> None:
        """Log that a peer is connected, unless the connection has ended."""
        if self._links.get(connection.peer) is connection:
            self._brief_links.pop(connection.peer, None)
            self._logged_reasons.pop(connection.peer, None)
            log.info("peer %s is connected", connection.peer)

    def _log_lost(self, connection: PeerConnection, error: Exception | None) -> None:
        """Log that a connection is lost, but log repeated brief connections only once."""
        peer = connection.peer
        was_logged = peer not in self._brief_links
        if asyncio.get_running_loop().time() - connection.made_s < _BRIEF_S:
            times = self._brief_links[peer] = self._brief_links.get(peer, 0) + 1
            if times == _BRIEF_TIMES:
                log.info("peer %s ends each connection as soon as it has begun: its log tells why", peer)
            if len(self._brief_links) > _REASONS_MAX:
                del self._brief_links[next(iter(self._brief_links))]
        if was_logged:
            log.info("the connection to peer %s is lost: %s", peer, error or "closed")

    def end(self, connection: PeerConnection, error: Exception | None) -> None:
        """Report that a connection has ended; only the end of the current epoch is an event."""
        peer = connection.peer
        if self._links.get(peer) is not connection:
            return
        del self._links[peer]
        self._log_lost(connection, error)
        if peer in self._known.addresses:
            self._missing.add(peer)
            if (probe := self._probes.get(peer)) is not None:
                probe.cancel()
            self._probes[peer] = self._spawn(self._probe(peer))
        self._report_lost(peer, dead=False)

    def deliver(self, connection: PeerConnection, frames: list[Frame]) -> None:
        peer = connection.peer
        for group_id, body in frames:
            # Checked for each frame, because the previous frame may have ended the epoch.
            if self._links.get(peer) is not connection:
                return
            events = self._groups.get(group_id)
            if events is not None:
                events.frame_received(peer, body)

    def part_received(self, connection: PeerConnection) -> None:
        if self._links.get(connection.peer) is connection:
            for events in list(self._groups.values()):
                events.part_received(connection.peer)

    def drained(self, connection: PeerConnection) -> None:
        if self._links.get(connection.peer) is connection:
            for events in list(self._groups.values()):
                events.peer_drained(connection.peer)

    def broken(self, connection: PeerConnection, error: FrameTooLargeError) -> None:
        self._throttled_log.warning(type(error), f"dropped the connection of peer {connection.peer}: {error}")
        connection.abort()

    def _report_lost(self, peer: str, *, dead: bool) -> None:
        for events in list(self._groups.values()):
            events.peer_lost(peer, dead=dead)

    def _refused(self, peer: str) -> None:
        """Report the peer as dead, once, if its host has refused connections for a while.

        That is not a fault of this node and may last for days, so it is logged once and not as a warning.
        """
        self._logged_reasons.pop(peer, None)
        if peer not in self._missing:
            return
        now_s = asyncio.get_running_loop().time()
        if now_s - self._refused_since_s.setdefault(peer, now_s) >= _REFUSES_FOR_S:
            self._missing.discard(peer)
            found = f"waiting for peer {peer}" if peer in self._awaited else f"peer {peer} is dead"
            log.info("%s: nobody listens at %s", found, self._known.addresses[peer])
            self._report_lost(peer, dead=True)

    async def _probe_absent(self, peer: str) -> None:
        """Find out whether a peer died before this node started: the messages of its clients must return, too."""
        await asyncio.sleep(_ABSENT_AFTER_S)
        self._missing.add(peer)
        await self._probe(peer)

    async def _probe(self, peer: str) -> None:
        """Find out whether a lost peer is dead, sooner than dialling would."""
        for delay_s in chain(_PROBE_DELAYS_S, repeat(_PROBE_INTERVAL_S)):
            await asyncio.sleep(delay_s)
            answers = [await self._answer(address) for address in self._known.possible_addresses(peer)]
            if _HostAnswer.ACCEPTED in answers:
                self._refused_since_s.pop(peer, None)
            elif peer in self._refused_since_s or set(answers) == {_HostAnswer.REFUSED}:
                self._refused(peer)
                if peer not in self._missing:
                    return

    async def _answer(self, address: Address) -> _HostAnswer:
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                sock = await connect(self._names, *address)
        except ConnectionRefusedError:
            return _HostAnswer.REFUSED
        except OSError:
            return _HostAnswer.NONE
        sock.close()
        return _HostAnswer.ACCEPTED

    # The dialling side.

    def dial_address(self, peer: str, address: PeerAddress) -> PeerAddress:
        """Return where to dial a new member with this address: this node's file may list a different address."""
        return self._known.dial_address(peer, address)

    async def reach(self, peer: str, place: PeerAddress) -> bytes:
        """Connect to the node of this name at `place` and return the id of its data directory; it may be no member.

        Raises OSError (also for time and TLS), or HandshakeError if a different node listens there. A working link to
        that place is kept: this may be called every second.
        """
        link = self._link_of(peer)
        if link is not None and link.works and self._links[peer].dialled == place:
            return self.peer_id(peer)
        try:
            await self._dial(peer, place)
        except HandshakeError as error:
            cause = _cause(error)
            if cause is UnknownNodeError:
                raise UnknownNodeError(f"a node that is not {peer!r} listens there") from None
            if cause is not AlreadyLinkedError:
                raise
        if not self.connected(peer):
            raise ConnectionResetError(errno.ECONNRESET, "the connection is lost again")
        return self.peer_id(peer)

    async def _keep_dialled(
        self, attempt: Callable[[], Awaitable[str]], peer: str = "", patience_s: float = 0.0
    ) -> None:
        """Attempt to connect whenever there has been no link with the peer for `patience_s` seconds.

        An attempt returns the name of the peer, as far as it is known then.
        """
        retry_s, pause_s = self._limits.retry_first_s, patience_s
        while True:
            await asyncio.sleep(pause_s)
            connection = self._links.get(peer)
            if connection is None:
                peer = await attempt()
                connection = self._links.get(peer)
            if connection is None:
                pause_s = retry_s
                retry_s = min(2 * retry_s, self._limits.retry_max_s)
            elif await self._goes_within(connection):
                retry_s = self._limits.retry_first_s
                pause_s = redial_s(self._brief_links.get(peer, 0), patience_s)
            else:
                await self._try_peer(peer)
                pause_s = 0.0

    async def _goes_within(self, connection: PeerConnection) -> bool:
        """Wait for the end of a connection, but not longer than `_FALSE_S` if another process is the member.

        Return whether the connection has ended.
        """
        is_false = connection.peer in self._known.addresses and self._is_false(connection)
        with suppress(TimeoutError):
            async with asyncio.timeout(_FALSE_S if is_false else None):
                await connection.gone.wait()
        return connection.gone.is_set()

    async def _try_peer(self, peer: str) -> str:
        linked, is_refused = self._links.get(peer), True
        for address in self._known.possible_addresses(peer):
            if linked is not None and linked.dialled == address:
                is_refused = False
                continue
            is_refused &= await self._is_refused(peer, address)
            if self._links.get(peer) not in (None, linked):
                return peer
        if is_refused:
            self._refused(peer)
        return peer

    async def _is_refused(self, peer: str, address: Address) -> bool:
        """Dial a peer at this address, and return True if no process listens."""
        try:
            await self._dial(peer, address)
        except ConnectionRefusedError:
            return True
        except (OSError, HandshakeError) as error:
            if not self._may_be(peer, error):
                reason = _reason(error)
                self._log_once(peer, reason, f"cannot connect to peer {peer} at {_shown(address)}: {reason}")
        return False

    async def _try_seed(self, seed: Address) -> str:
        try:
            connection = await self._dial(None, seed)
        except (OSError, HandshakeError) as error:
            if _cause(error) is AlreadyLinkedError:
                self._refusals.pop(seed, None)
                return ""
            reason = _reason(error)
            if _cause(error) is VersionMismatchError:
                reason += "; a node of release 0.1 lets no new members in"
            elif isinstance(error, OtherMembersError):
                reason = (
                    "the node there is of no cluster that can be joined: it waits for one, as this node does, or not "
                    "all members of its cluster run this release"
                )
            self._refusals[seed] = reason
            self._log_once(seed, reason, f"cannot join the cluster at {_shown(seed)}: {reason}")
            return ""
        self._logged_reasons.pop(seed, None)
        self._refusals.pop(seed, None)
        return connection.peer

    def _may_be(self, peer: str, error: Exception) -> bool:
        """Return whether this failure to connect is expected.

        A connection may exist already, and release 0.1 accepts none from a node that does not dial first.
        """
        cause = _cause(error)
        return cause is AlreadyLinkedError or (
            cause is VersionMismatchError and not self._known.dials_first(peer)
        )

    async def _dial(self, peer: str | None, address: Address) -> PeerConnection:
        """Return an authenticated connection; raises OSError (also for time and TLS) or HandshakeError.

        `peer` is the expected name, or None to accept any node. A peer does not tell which secrets it accepts: after a
        rejection, the next secret may fit.
        """
        *others, last = self._secrets
        for secret in others:
            try:
                return await self._dial_with(secret, peer, address)
            except RejectedError as error:
                if error.cause is not WrongSecretError:
                    raise
        return await self._dial_with(last, peer, address)

    def _credentials(self, cluster_secrets: Sequence[bytes]) -> Credentials:
        return Credentials(self._cluster, self._node, tuple(cluster_secrets), self._known.terms)

    async def _dial_with(self, secret: bytes, peer: str | None, address: Address) -> PeerConnection:
        """Dial with this secret, in the newest version of the handshake that the peer speaks."""
        older, newest = VERSIONS
        try:
            return await self._dial_in(newest, secret, peer, address)
        except RejectedError as error:
            in_vain = peer is None or not self._known.dials_first(peer) or self._known.terms.is_named
            if in_vain or error.cause is not VersionMismatchError:
                raise
        return await self._dial_in(older, secret, peer, address)

    async def _dial_in(
        self, version: int, secret: bytes, peer: str | None, address: Address
    ) -> PeerConnection:
        host, port = address
        why_rejected = partial(self._why_rejected, dialled_here=True)
        handshake = DiallerHandshake(
            self._credentials([secret]), peer, secrets.token_bytes(NONCE_BYTES), why_rejected, version
        )
        connection = PeerConnection(self, handshake, self._limits, dialled=address)
        try:
            async with asyncio.timeout(self._limits.handshake_timeout_s):
                sock = await connect(self._names, host, port)
                await asyncio.get_running_loop().create_connection(
                    lambda: connection,
                    sock=sock,
                    ssl=self._tls.client if self._tls else None,
                    server_hostname=host if self._tls else None,
                    ssl_shutdown_timeout=_TLS_GOODBYE_S if self._tls else None,
                )
                if connection.gone.is_set():
                    # The first write has failed. uvloop has closed the descriptor without telling the socket object,
                    # which would close any file that has that number by now.
                    sock.detach()
                await connection.wait_authenticated()
        finally:
            connection.abandon()
        return connection

    # The accepting side.

    def _accept(self, sock: socket.socket, address: Any) -> None:
        slot = self._unauthenticated.take(address[0])
        if slot is None:
            sock.close()
            return
        task = self._spawn(self._admit(sock, address[0]))
        slot.evict = task.cancel

        def ended(task: asyncio.Task[None]) -> None:
            slot.release()
            if task.cancelled():  # the task may never have begun, and then the socket is still open
                sock.close()

        task.add_done_callback(ended)

    async def _admit(self, sock: socket.socket, host: str) -> None:
        nonce = secrets.token_bytes(NONCE_BYTES)
        why_rejected = partial(self._why_rejected, dialled_here=False)
        handshake = AcceptorHandshake(self._credentials(self._secrets), nonce, why_rejected)
        connection = PeerConnection(self, handshake, self._limits)
        try:
            async with asyncio.timeout(self._limits.handshake_timeout_s):
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: connection,
                    sock,
                    ssl=self._tls.server if self._tls else None,
                    ssl_shutdown_timeout=_TLS_GOODBYE_S if self._tls else None,
                )
                await connection.wait_authenticated()
        except ConnectionError:
            # The other side closed the connection by itself, as a peer's probe or a health check does.
            log.debug("%s left during the handshake", host)
        except AlreadyLinkedError as error:
            log.debug("refused a connection from %s: %s", host, error)
        except DisagreementError as error:
            self._log_once(connection.peer, str(error), f"refused a connection from {host}: {error}")
        except (OSError, HandshakeError) as error:
            self._throttled_log.warning(type(error), f"dropped a connection from {host}: {_reason(error)}")
        finally:
            connection.abandon()

    # Both sides.

    def _why_rejected(self, peer: str, terms: Terms, *, dialled_here: bool) -> HandshakeError | None:
        """Return why a node that knows the secret is refused under this name, or None to accept it."""
        self._known.learn_cluster(terms)
        # This node may have joined a cluster since the handshake began.
        error = disagreement(self._known.terms, peer, terms)
        error = error or self._known.why_rejected(peer, terms, self._link_of(peer), dialled_here=dialled_here)
        if isinstance(error, SecondProcessError):
            self._record_second_process(peer)
        if error is not None or peer in self._links or peer in self._known.addresses:
            return error
        if len(self._links.keys() - self._known.addresses.keys()) < self._limits.non_members_max:
            return None
        return TooManyNonMembersError(
            f"node {peer!r} is no member, and {self._limits.non_members_max} nodes are connected that are none, either"
        )

    def _record_second_process(self, peer: str) -> None:
        now_s = asyncio.get_running_loop().time()
        self._second_processes = {
            name: span for name, span in self._second_processes.items() if span.goes_on(now_s)
        }
        before = self._second_processes.get(peer)
        self._second_processes[peer] = _Span(before.first_s if before else now_s, now_s)

    def _link_of(self, peer: str) -> Link | None:
        connection = self._links.get(peer)
        if connection is None:
            return None
        silent_s = asyncio.get_running_loop().time() - connection.heard_s
        terms = self._terms_of(connection)
        return Link(terms.process, terms.member, silent_s)

    def _is_false(self, connection: PeerConnection) -> bool:
        """Return whether this process has a member's name and not its data directory."""
        return self._known.is_another_directory(connection.peer, self._terms_of(connection).member)

    @staticmethod
    def _terms_of(connection: PeerConnection) -> Terms:
        assert connection.terms is not None  # it is authenticated
        return connection.terms

    def _log_once(self, whom: str | Address, why: str, line: str) -> None:
        """Log why there is no link, unless the same reason was logged before.

        The last two reasons are remembered: both sides dial, and each may meet a different reason.
        """
        logged = self._logged_reasons.setdefault(whom, deque(maxlen=2))
        if why not in logged:
            logged.append(why)
            log.warning("%s", line)
        if len(self._logged_reasons) > _REASONS_MAX:
            del self._logged_reasons[next(iter(self._logged_reasons))]

    # Tasks.

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Operating errors are handled where they occur. This error is a bug, and the owner of the event loop
            # decides.
            context = {"message": "the peer links are broken", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)


def _close(listener: socket.socket, _accepting: asyncio.Task[None]) -> None:
    listener.close()


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _reason(error: Exception) -> str:
    return str(error) or "no answer in time"


def _cause(error: Exception) -> type[Exception]:
    """Return the type of an error or, if the peer has sent REJECT, of the error that the peer met."""
    return error.cause if isinstance(error, RejectedError) else type(error)


def _shown(address: Address) -> str:
    return str(PeerAddress(*address))
