"""Peer links on asyncio: one authenticated FIFO TCP connection per pair of nodes.

Lives here: dialling, accepting, epochs, and finding out that a lost peer is dead. Not here: one connection
(connection.py), how a peer proves who it is (handshake.py), what a frame means (envelope.py), heartbeats (the group
sends them).

Of two nodes the one with the smaller name dials. Each authenticated connection is a new epoch: `_links` holds
the connection of the current one, and whatever another connection object still has to say is not heard.

Law: a stranger costs bounded memory, time and log lines, and no peer waits for it. Nothing that a group sends ends a
link or a turn.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from cluster.accepting import accept_all
from cluster.complaints import Complaints
from cluster.connection import FrameTooLargeError, LinkLimits, PeerConnection
from cluster.handshake import (
    MESSAGE_BYTES_MAX,
    NONCE_BYTES,
    PROCESS_BYTES,
    VERSIONS,
    AcceptorHandshake,
    Credentials,
    DiallerHandshake,
    DisagreementError,
    HandshakeError,
    RejectedError,
    SecondProcessError,
    Terms,
    VersionMismatchError,
    WrongSecretError,
)
from cluster.known_members import KnownMembers
from cluster.sockets import connect, listen
from cluster.strangers import Places

if TYPE_CHECKING:
    import ssl
    from collections.abc import Coroutine, Sequence

    from cluster.configuration import Versions
    from cluster.configurations import Configurations
    from cluster.connection import Frame
    from cluster.link_ports import LinkEvents
    from cluster.ports import Buffer
    from cluster.sockets import Address

log = logging.getLogger(__name__)

_FLUSH_ON_STOP_S = 1.0
_TLS_GOODBYE_S = 1.0

# A killed process may lose its connections a moment before its listener: ask again soon. A frozen one may be killed
# later: go on asking.
_PROBE_DELAYS_S = (0.0, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.4)
_PROBE_INTERVAL_S = 2.0
_PROBE_TIMEOUT_S = 1.0

# A peer that has not connected so long after the start may be dead. Nodes that start together need less.
_ABSENT_AFTER_S = 1.0

# A peer that works says something every second. One that has been silent for so long may be gone with its host, and the
# process that now has its name is its next life.
_SILENT_AFTER_S = 3.0


class PeerTls(NamedTuple):
    """Contexts for accepted and dialled connections; both should demand a certificate of the cluster's CA."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class PeerLinks:
    """The `Links` port on real sockets. All calls and callbacks are on the loop that `start` ran on."""

    def __init__(
        self,
        node: str,
        cluster: str,
        cluster_secrets: Sequence[bytes],
        bind: Address,
        *,
        versions: Versions,
        tls: PeerTls | None = None,
        limits: LinkLimits | None = None,
    ) -> None:
        """`bind` is where this node listens, `versions` which versions of the state its program can run.

        Who the members are is told by `configure`, before `start`.
        """
        self._known = KnownMembers(node, versions, secrets.token_bytes(PROCESS_BYTES))
        self._cluster = cluster
        self._node = node
        self._secrets = tuple(cluster_secrets)
        self._bind = bind
        self._tls = tls
        self._limits = limits or LinkLimits()
        if self._limits.stranger_bytes_max < MESSAGE_BYTES_MAX:
            raise ValueError(
                f"stranger_bytes_max is at least {MESSAGE_BYTES_MAX}, the longest handshake message"
            )
        self._groups: dict[int, LinkEvents] = {}
        self._links: dict[str, PeerConnection] = {}
        """The connection of the current epoch with each peer, by name."""
        self._strangers = Places(self._limits.strangers_max)
        """The connections that were accepted and have not authenticated a peer."""
        self._missing: set[str] = set()
        """Peers that were lost, or have not come since the start, and are not known to be dead."""
        self._awaited: set[str] = set()
        """Peers that have not connected since the start: they may be starting, too."""
        self._has_started = False
        self._dialling: dict[str, asyncio.Task[None]] = {}
        """The tasks that dial, by peer."""
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._accepting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._complaints = Complaints(log)
        self._refusals: dict[str, str] = {}
        """Why members are refused, as was logged last, by name: it is not logged again with each attempt."""

    async def start(self) -> None:
        """Listen, then dial. Raises OSError when the address cannot be bound."""
        # First the listener: a dying process closes its files in the order of their numbers, so the listener
        # refuses by the time the peers see their connections break.
        listener = await listen(self._bind)
        self._accepting = self._spawn(accept_all(listener, self._take, self._complaints, "peer"))
        self._accepting.add_done_callback(lambda _: listener.close())
        self._has_started = True
        for peer in sorted(self._known.addresses):
            self._look_for(peer)

    async def stop(self) -> None:
        """Close everything, after sending what is queued if that goes quickly. No more events."""
        self._groups.clear()
        connections = self._take_links()
        # The accepting task first: tasks for sockets that it has accepted must have begun, or nobody closes those.
        if self._accepting is not None:
            await _cancel({self._accepting})
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
        """Use other contexts for the connections that begin from now on."""
        self._tls = tls

    def renew_secrets(self, cluster_secrets: Sequence[bytes]) -> None:
        """Use and accept other secrets in the handshakes that begin from now on."""
        self._secrets = tuple(cluster_secrets)

    def _take_links(self) -> list[PeerConnection]:
        connections = list(self._links.values())
        self._links.clear()
        return connections

    def _look_for(self, peer: str) -> None:
        """Dial a peer as long as it is a member, if that is this node's part; and find out whether it is dead."""
        if self._node < peer:
            self._dialling[peer] = self._spawn(self._keep_dialled(peer))
        self._probes[peer] = self._spawn(self._probe_absent(peer))

    def _look_no_more(self, peer: str) -> None:
        for tasks in (self._dialling, self._probes):
            task = tasks.pop(peer, None)
            if task is not None:
                task.cancel()
        self._missing.discard(peer)
        self._awaited.discard(peer)
        self._refusals.pop(peer, None)
        connection = self._links.pop(peer, None)
        if connection is not None:
            connection.close()

    # The port.

    def configure(self, member_id: bytes, configurations: Configurations) -> None:
        """Keep links to the members, and to nobody else. One that has moved is dialled at its new address."""
        before = self._known.addresses.keys()
        self._known.configure(member_id, configurations)
        now = self._known.addresses.keys()
        for peer in before - now:
            self._look_no_more(peer)
        for peer, connection in list(self._links.items()):
            if connection.terms is not None and not self._known.is_of(peer, connection.terms):
                connection.abort()  # it is of a directory that has been replaced
        new = sorted(now - before)
        self._awaited.update(new)
        if self._has_started:
            for peer in new:
                self._look_for(peer)

    def register(self, group_id: int, events: LinkEvents) -> None:
        """Deliver frames of this group, and connection events from now on, to `events`."""
        if group_id in self._groups:
            raise ValueError(f"group {group_id} is registered already")
        self._groups[group_id] = events

    def send(self, peer: str, group_id: int, buffers: Sequence[Buffer]) -> None:
        """Queue one frame on the peer's current epoch; dropped if there is none.

        The buffers are not copied, so they must not change afterwards. There should be no frame above the limit; one
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
            self._complaints.about(type(error), f"cannot send to peer {peer}: {error}", logging.CRITICAL)
            connection.abort()
            return
        connection.write(group_id, buffers, length)

    def connected(self, peer: str) -> bool:
        return peer in self._links

    def peer_id(self, peer: str) -> bytes:
        terms = self._links[peer].terms
        assert terms is not None  # only who has proved who it is has a link
        return terms.member

    def protocol(self, peer: str) -> int:
        return self._links[peer].protocol

    def congested(self, peer: str) -> bool:
        connection = self._links.get(peer)
        return connection is not None and connection.congested

    # Epochs: what the connections report.

    def begin(self, connection: PeerConnection) -> None:
        """Make a connection that has just authenticated the peer's only one."""
        peer = connection.peer
        old = self._links.pop(peer, None)
        if old is not None:
            log.info("peer %s connects anew: its old connection is dropped", peer)
            old.abort()
            self._report_lost(peer, dead=False)
        self._missing.discard(peer)
        self._awaited.discard(peer)
        if (probe := self._probes.pop(peer, None)) is not None:
            probe.cancel()
        self._links[peer] = connection
        self._refusals.pop(peer, None)
        log.info("peer %s is connected", peer)
        for events in list(self._groups.values()):
            events.peer_connected(peer)

    def end(self, connection: PeerConnection, error: Exception | None) -> None:
        """Note that a connection is gone; only the end of the current one is an event."""
        peer = connection.peer
        if self._links.get(peer) is not connection:
            return
        del self._links[peer]
        log.info("the connection to peer %s is lost: %s", peer, error or "closed")
        self._missing.add(peer)
        self._probes[peer] = self._spawn(self._probe(peer))
        self._report_lost(peer, dead=False)

    def deliver(self, connection: PeerConnection, frames: list[Frame]) -> None:
        peer = connection.peer
        for group_id, body in frames:
            # Asked for each frame, because the one before may have ended the epoch.
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
        self._complaints.about(type(error), f"dropped the connection of peer {connection.peer}: {error}")
        connection.abort()

    def _report_lost(self, peer: str, *, dead: bool) -> None:
        for events in list(self._groups.values()):
            events.peer_lost(peer, dead=dead)

    def _refused(self, peer: str) -> None:
        """Report the peer as dead, because nobody listens at its address, unless that was reported already.

        That is no fault of this node and may last for days, so it is logged once and not as a warning.
        """
        if peer in self._missing:
            self._missing.discard(peer)
            found = f"waiting for peer {peer}" if peer in self._awaited else f"peer {peer} is dead"
            log.info("%s: nobody listens at %s:%d", found, *self._known.addresses[peer])
            self._report_lost(peer, dead=True)

    async def _probe_absent(self, peer: str) -> None:
        """Find out whether a peer died before this node started: what its clients held must come back, too."""
        await asyncio.sleep(_ABSENT_AFTER_S)
        self._missing.add(peer)
        await self._probe(peer)

    async def _probe(self, peer: str) -> None:
        """Find out whether a lost peer is dead. The accepting side has no other way: it never dials."""
        for delay_s in chain(_PROBE_DELAYS_S, repeat(_PROBE_INTERVAL_S)):
            await asyncio.sleep(delay_s)
            try:
                async with asyncio.timeout(_PROBE_TIMEOUT_S):
                    sock = await connect(*self._known.addresses[peer])
            except ConnectionRefusedError:
                self._refused(peer)
                return
            except OSError:
                continue
            sock.close()

    # The dialling side.

    async def _keep_dialled(self, peer: str) -> None:
        retry_s = self._limits.retry_first_s
        logged = ""
        while True:
            try:
                connection = await self._dial(peer)
            except (OSError, HandshakeError) as error:
                reason = _reason(error)
                if isinstance(error, ConnectionRefusedError):
                    self._refused(peer)
                elif reason != logged:
                    log.warning(
                        "cannot connect to peer %s at %s:%d: %s", peer, *self._known.addresses[peer], reason
                    )
                logged = reason
            else:
                await connection.gone.wait()
                retry_s = self._limits.retry_first_s
                logged = ""
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, self._limits.retry_max_s)

    async def _dial(self, peer: str) -> PeerConnection:
        """Return an authenticated connection; raises OSError (also for time and TLS) or HandshakeError.

        A peer does not say which secrets it accepts: where one is refused, the next may fit.
        """
        *others, last = self._secrets
        for secret in others:
            try:
                return await self._dial_with(secret, peer)
            except RejectedError as error:
                if error.cause is not WrongSecretError:
                    raise
        return await self._dial_with(last, peer)

    def _credentials(self, cluster_secrets: Sequence[bytes]) -> Credentials:
        return Credentials(self._cluster, self._node, tuple(cluster_secrets), self._known.terms)

    async def _dial_with(self, secret: bytes, peer: str) -> PeerConnection:
        """Dial with this secret, in the newest version of the handshake that the peer speaks."""
        older, newest = VERSIONS
        try:
            return await self._dial_in(newest, secret, peer)
        except RejectedError as error:
            if error.cause is not VersionMismatchError:
                raise
        return await self._dial_in(older, secret, peer)

    async def _dial_in(self, version: int, secret: bytes, peer: str) -> PeerConnection:
        host, port = self._known.addresses[peer]
        identity = self._credentials([secret])
        handshake = DiallerHandshake(
            identity, peer, secrets.token_bytes(NONCE_BYTES), self._known.judge_acceptor, version
        )
        connection = PeerConnection(self, handshake, self._limits)
        try:
            async with asyncio.timeout(self._limits.handshake_timeout_s):
                sock = await connect(host, port)
                await asyncio.get_running_loop().create_connection(
                    lambda: connection,
                    sock=sock,
                    ssl=self._tls.client if self._tls else None,
                    server_hostname=host if self._tls else None,
                    ssl_shutdown_timeout=_TLS_GOODBYE_S if self._tls else None,
                )
                await connection.wait_authenticated()
        finally:
            connection.abandon()
        return connection

    # The accepting side.

    def _take(self, sock: socket.socket, address: Any) -> None:
        place = self._strangers.take(address[0])
        assert place is not None  # only strangers have places here, so one can be pushed out
        task = self._spawn(self._admit(sock, address[0]))
        place.push_out = partial(self._push_out, task)

        def ended(task: asyncio.Task[None]) -> None:
            place.leave()
            if task.cancelled():  # perhaps before it had begun, so that nothing else closes the socket
                sock.close()

        task.add_done_callback(ended)

    def _push_out(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        text = f"dropped an unauthenticated connection: {self._limits.strangers_max} others wait for authentication"
        self._complaints.about("strangers", text)

    async def _admit(self, sock: socket.socket, host: str) -> None:
        nonce = secrets.token_bytes(NONCE_BYTES)
        handshake = AcceptorHandshake(self._credentials(self._secrets), nonce, self._judge)
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
            # The other side left by itself, as a peer's probe or a health check does.
            log.debug("%s left during the handshake", host)
        except DisagreementError as error:
            self._refuse(connection.peer, host, str(error))
        except (OSError, HandshakeError) as error:
            self._complaints.about(type(error), f"dropped a connection from {host}: {_reason(error)}")
        finally:
            connection.abandon()

    def _judge(self, peer: str, terms: Terms) -> HandshakeError | None:
        """Why a node that knows the secret is not let in under this name, or None."""
        error = self._known.judge_dialler(peer, terms)
        if error is None and self._is_second(peer, terms.process):
            return SecondProcessError(
                f"another process calls itself node {peer!r}, which is connected; stop one of the two"
            )
        return error

    def _is_second(self, peer: str, process: bytes) -> bool:
        """Whether another process of this name is connected and not silent: two must not vote under one name."""
        link = self._links.get(peer)
        if link is None or link.terms is None or link.terms.process == process:
            return False
        return asyncio.get_running_loop().time() - link.heard_s < _SILENT_AFTER_S

    def _refuse(self, peer: str, host: str, why: str) -> None:
        if self._refusals.get(peer) != why:
            self._refusals[peer] = why
            log.warning("refused a connection from %s: %s", host, why)

    # Tasks.

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Operating errors are handled where they occur: this one is a bug, and the loop's owner decides.
            context = {"message": "the peer links are broken", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _reason(error: Exception) -> str:
    return str(error) or "no answer in time"
