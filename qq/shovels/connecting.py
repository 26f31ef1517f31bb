"""Connects a shovel to a broker: over TCP, with TLS, or to this node itself.

Invariant: every failure is a `Closed`. Its text contains no password and reveals no contents of files.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.net import sockets
from cluster.net.resolver import Resolver
from qq.shovels.client import Client, Closed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from random import Random
    from socket import socket

    from qq.shovels.uris import BrokerUri, UriTls

    MayReach = Callable[[str], bool]
    """Returns whether shovels may connect to a host."""
    Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
    ConnectLocally = Callable[[str], Awaitable[Streams]]
    """Connects to this node as a client that has all permissions in the given virtual host."""

log = logging.getLogger(__name__)

READ_AHEAD_BYTES = 128 * 1024
"""Limit of the read buffer of a stream, in bytes."""
TLS_FILE_BYTES_MAX = 2 * 1024 * 1024
"""Largest certificate file that is read, in bytes: some ten times a system's trust store."""


@dataclass(frozen=True)
class Connector:
    """Connects shovels to brokers."""

    connect_locally: ConnectLocally
    may_reach: MayReach
    message_bytes_max: int
    """The largest message body that a shovel accepts, in bytes."""
    random: Random
    names: Resolver = field(default_factory=Resolver)
    """The resolver of host names."""

    async def connect(self, uris: Sequence[BrokerUri], name: str) -> Client:
        """Log in at these brokers in random order, and return the first connection that succeeds.

        `name` is the connection name that the broker's operators see. Raises Closed with the reason of the last broker.
        """
        failure = Closed("there is no URI")
        for uri in self.random.sample(uris, len(uris)):
            try:
                self._check_host(uri)
                return await self._connect(uri, name)
            except Closed as closed:
                failure = Closed(f"{uri.shown}: {closed}")
        raise failure

    def _check_host(self, uri: BrokerUri) -> None:
        if uri.host and not self.may_reach(uri.host):
            raise Closed("this host is not among those of [shovels] hosts in the node's configuration")

    async def _connect(self, uri: BrokerUri, name: str) -> Client:
        client = None
        try:
            async with asyncio.timeout(uri.connect_timeout_s):
                client = Client(*await self._open(uri), uri, name, self.message_bytes_max)
                await client.log_in()
                return client
        except BaseException as error:
            if client is not None:
                client.abort()
            if isinstance(error, TimeoutError):
                raise Closed("no answer in time") from None
            if isinstance(error, OSError):  # also TLS
                raise Closed(_reason(error)) from None
            if isinstance(error, ValueError | TypeError):
                raise Closed(f"its URI has an unusable part: {error}") from None
            raise

    async def _open(self, uri: BrokerUri) -> Streams:
        if not uri.host:
            return await self.connect_locally(uri.vhost)
        if uri.tls is None:
            sock = await sockets.connect(self.names, uri.host, uri.port, is_peer=False)
            return await _streams(sock)
        context = await asyncio.to_thread(tls_context, uri.tls)
        name = uri.tls.server_name
        wanted = "" if name is None else name or uri.host
        # Check the name here: in the event loop the error would reach only its handler, which ends the node.
        context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=wanted or None)
        sock = await sockets.connect(self.names, uri.host, uri.port, is_peer=False)
        return await _streams(sock, ssl=context, server_hostname=wanted)


async def _streams(sock: socket, **tls: Any) -> Streams:
    """Open streams on a socket; close the socket if that fails."""
    try:
        return await asyncio.open_connection(sock=sock, limit=READ_AHEAD_BYTES, **tls)
    except BaseException:
        sock.close()
        raise


def tls_context(files: UriTls) -> ssl.SSLContext:
    """Make a TLS context from certificate files. Raises Closed."""
    context = ssl.create_default_context() if not files.ca else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        for name in filter(None, (files.ca, files.cert, files.key)):
            _check_file(Path(name))
        if files.ca:
            context.load_verify_locations(files.ca)
        if files.cert:
            context.load_cert_chain(files.cert, files.key or None, lambda: files.password)
    except (OSError, ValueError) as error:
        # The shovel's owner must not learn which files this machine has, so the details go to the node's log.
        log.warning("a shovel's certificates or key cannot be read: %s", error)
        raise Closed("its certificates or key cannot be read; the node's log shows the error") from None
    if not files.verifies or files.server_name is None:
        context.check_hostname = False
    if not files.verifies:
        context.verify_mode = ssl.CERT_NONE
    return context


def _check_file(path: Path) -> None:
    """Raise OSError or ValueError unless this is a regular file of bounded size: a device could be read for ever."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) or not 0 < found.st_size <= TLS_FILE_BYTES_MAX:
        raise ValueError(f"{path} is not a file of 1 to {TLS_FILE_BYTES_MAX} octets")


def _reason(error: OSError) -> str:
    """Return the reason of an error without names of files or hosts."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not good: {error.verify_message}"
    return error.strerror or str(error) or type(error).__name__
