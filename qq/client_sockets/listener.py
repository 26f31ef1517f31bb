"""The ports for clients: accept connections, read a proxy's header, and do the TLS handshake before the protocol.

Invariant: a connection counts as unauthenticated from the accepted socket to its login, in every phase between. A PROXY
header is read and believed only from proxies that the configuration names.
"""

from __future__ import annotations

import asyncio
import logging
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, NamedTuple

from cluster.net.acceptor import accept_all, begin, listen_on, readable
from qq.client_sockets.proxy import ProxyError, ProxyHeader, Source
from qq.client_sockets.shared import Arrival, Peer, keepalive_of
from qq.tls.handshakes import TlsHandshakes

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Sequence
    from ipaddress import IPv4Network, IPv6Network

    from cluster.net.connection_slots import Slot
    from qq.client_sockets.shared import CertificateName, ClientSockets
    from qq.tls.handshakes import TlsOptions

    MakeConnection = Callable[[Arrival], asyncio.Protocol]
    """Makes the protocol of an accepted connection, which releases the slot."""

log = logging.getLogger(__name__)

BACKLOG = 1024


class Tls(NamedTuple):
    """The TLS of a port."""

    context: Callable[[], ssl.SSLContext]
    """Returns the TLS context, with the newest certificate, for a connection that begins now."""
    certificate_name: CertificateName


class ClientPort:
    """Listens on an address."""

    def __init__(
        self,
        sockets: ClientSockets,
        make_connection: MakeConnection,
        tls: Tls | None = None,
        proxies: Sequence[IPv4Network | IPv6Network] = (),
    ) -> None:
        """Create a port. Connections from the networks of `proxies` must begin with a PROXY protocol header."""
        self._sockets = sockets
        self._make_connection = make_connection
        self._handshakes = TlsHandshakes(tls.context, sockets.limits.tls_handshake_timeout_s) if tls else None
        self._certificate_name = tls.certificate_name if tls else None
        self._proxies = proxies
        self._listeners: list[socket.socket] = []

    async def listen(self, host: str, port: int) -> None:
        """Bind the address. Raises OSError."""
        keepalive = keepalive_of(self._sockets.limits)
        self._listeners = await listen_on(host, port, BACKLOG, keepalive)

    @property
    def port(self) -> int:
        return self._listeners[0].getsockname()[1]

    async def serve(self) -> None:
        """Accept connections until cancelled, then release the address."""
        try:
            # The inner group ends first: its accepted sockets must be passed on, or they would never be closed.
            async with asyncio.TaskGroup() as beginnings, asyncio.TaskGroup() as accepting:

                def take(sock: socket.socket, address: Any) -> None:
                    self._take(sock, Source(*address[:2]), beginnings)

                for listener in self._listeners:
                    accepting.create_task(accept_all(listener, take, self._sockets.throttled_log, "client"))
        finally:
            for listener in self._listeners:
                listener.close()

    def _take(self, sock: socket.socket, source: Source, beginnings: asyncio.TaskGroup) -> None:
        slot = self._sockets.slots.take(source.host)
        if slot is None:
            sock.close()
            return
        slot.port = source.port
        begin(beginnings.create_task(self._begin(sock, source, slot)), sock, slot)

    async def _begin(self, sock: socket.socket, source: Source, slot: Slot) -> None:
        peer = await self._await_begin(sock, source, slot)
        if peer is None:
            sock.close()
            slot.release()
            return
        arrival = Arrival(peer, slot, self._certificate_name)
        options: TlsOptions = self._handshakes.options() if self._handshakes else {}
        try:
            # From here on the transport owns the socket.
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._make_connection(arrival), sock, **options
            )
        except OSError as error:  # also TimeoutError and ssl.SSLError
            self._log_failure(peer, str(error) or type(error).__name__)
            slot.release()

    async def _await_begin(self, sock: socket.socket, source: Source, slot: Slot) -> Peer | None:
        """Read a proxy's header and wait for TLS to begin, if due. Return the client's address, or None to drop it."""
        peer = Peer(source.host, source.port)
        try:
            if self._is_proxy(source.host):
                peer = await self._proxied(sock, source)
                slot.port = peer.port
                if not slot.reassign(peer.host):
                    return None
            if self._handshakes:
                await self._handshakes.wait_first_octet(sock)
                await self._handshakes.wait_turn(slot)
        except ProxyError as error:
            self._sockets.throttled_log.warning(
                "proxy", f"a connection from {source.host}:{source.port} is dropped: {error}"
            )
            return None
        except TimeoutError:
            self._log_failure(peer, "nothing has come in time")
            return None
        return peer

    def _log_failure(self, peer: Peer, why: str) -> None:
        what = "TLS handshake" if self._handshakes else "connection"
        self._sockets.throttled_log.warning("begin", f"the {what} with {peer.host}:{peer.port} failed: {why}")

    def _is_proxy(self, host: str) -> bool:
        if not self._proxies:
            return False
        address = ip_address(host)
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._proxies)

    async def _proxied(self, sock: socket.socket, source: Source) -> Peer:
        """Read the proxy's header, and return the client's address. Raises ProxyError."""
        header = ProxyHeader()
        try:
            async with asyncio.timeout(self._sockets.limits.handshake_timeout_s):
                while header.wanted:
                    await _receive(sock, header)
        except TimeoutError:
            raise ProxyError("no header of the PROXY protocol in time") from None
        except OSError as error:
            raise ProxyError(str(error)) from None
        if header.source is None:
            return Peer(source.host, source.port)
        return Peer(header.source.host, header.source.port, source.host)


async def _receive(sock: socket.socket, header: ProxyHeader) -> None:
    try:
        data = sock.recv(header.wanted)
    except BlockingIOError:
        await readable(sock)
        return
    if not data:
        raise ProxyError("it left before the end of its PROXY header")
    header.receive(data)
