"""How a shovel gets to a broker: over the network, also with TLS, or to this node itself.

Invariant: what goes wrong is a `Closed`, whose text has no password and does not tell what is in which file.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.net import sockets
from qq.shovels.client import Client, Closed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from random import Random
    from socket import socket

    from cluster.net.resolver import HostNames
    from qq.shovels.uris import BrokerUri, UriTls

    MayReach = Callable[[str], bool]
    """Tells whether shovels may connect to a host."""
    Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
    OpenOwn = Callable[[str], Awaitable[Streams]]
    """Connects to this node, for a shovel that may do in a virtual host what it is there for."""

log = logging.getLogger(__name__)

READ_AHEAD_BYTES = 128 * 1024
"""How much is read from a socket before somebody wants it."""
TLS_FILE_BYTES_MAX = 2 * 1024 * 1024
"""The largest file of certificates that is read: some ten times those that a system trusts."""


async def connect(
    uris: Sequence[BrokerUri],
    name: str,
    message_bytes_max: int,
    may_reach: MayReach,
    open_own: OpenOwn,
    names: HostNames,
    random: Random,
) -> Client:
    """Log in at one of these brokers, in any order. Raises Closed with what the last one said."""
    failure = Closed("there is no URI")
    for uri in random.sample(uris, len(uris)):
        try:
            _check_host(uri, may_reach)
            return await _connect(uri, name, message_bytes_max, open_own, names)
        except Closed as closed:
            failure = Closed(f"{uri.shown}: {closed}")
    raise failure


def _check_host(uri: BrokerUri, may_reach: MayReach) -> None:
    if uri.host and not may_reach(uri.host):
        raise Closed("this host is not among those of [shovels] hosts in the node's configuration")


async def _connect(
    uri: BrokerUri, name: str, message_bytes_max: int, open_own: OpenOwn, names: HostNames
) -> Client:
    client = None
    try:
        async with asyncio.timeout(uri.connect_timeout_s):
            client = Client(*await _open(uri, open_own, names), uri, name, message_bytes_max)
            await client.log_in()
            return client
    except BaseException as error:
        if client is not None:
            client.abort()
        if isinstance(error, TimeoutError):
            raise Closed("no answer in time") from None
        if isinstance(error, OSError):  # also TLS
            raise Closed(_words(error)) from None
        if isinstance(error, ValueError | TypeError):
            raise Closed(f"what its URI says cannot be used: {error}") from None
        raise


async def _open(uri: BrokerUri, open_own: OpenOwn, names: HostNames) -> Streams:
    if not uri.host:
        return await open_own(uri.vhost)
    if uri.tls is None:
        sock = await sockets.connect(names, uri.host, uri.port, is_peer=False)
        return await _streams(sock)
    context = await asyncio.to_thread(tls_context, uri.tls)
    name = uri.tls.server_name
    wanted = "" if name is None else name or uri.host
    # An event loop tells nobody but its own handler, which ends the node, that TLS cannot begin with a name.
    context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=wanted or None)
    sock = await sockets.connect(names, uri.host, uri.port, is_peer=False)
    return await _streams(sock, ssl=context, server_hostname=wanted)


async def _streams(sock: socket, **tls: Any) -> Streams:
    """What is read and written at a socket, which is closed if that cannot be."""
    try:
        return await asyncio.open_connection(sock=sock, limit=READ_AHEAD_BYTES, **tls)
    except BaseException:
        sock.close()
        raise


def tls_context(files: UriTls) -> ssl.SSLContext:
    """Read certificates. Raises Closed."""
    context = ssl.create_default_context() if not files.ca else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        for name in filter(None, (files.ca, files.cert, files.key)):
            _check_file(Path(name))
        if files.ca:
            context.load_verify_locations(files.ca)
        if files.cert:
            context.load_cert_chain(files.cert, files.key or None, lambda: files.password)
    except (OSError, ValueError) as error:
        # Whoever set the shovel may not know which files this machine has: that is for those who read its log.
        log.warning("a shovel's certificates or key cannot be read: %s", error)
        raise Closed("its certificates or key cannot be read; the node's log tells why") from None
    if not files.verifies or files.server_name is None:
        context.check_hostname = False
    if not files.verifies:
        context.verify_mode = ssl.CERT_NONE
    return context


def _check_file(path: Path) -> None:
    """Raise OSError or ValueError for what would be read for ever, as a device or a pipe."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) or not 0 < found.st_size <= TLS_FILE_BYTES_MAX:
        raise ValueError(f"{path} is not a file of 1 to {TLS_FILE_BYTES_MAX} octets")


def _words(error: OSError) -> str:
    """What went wrong, without the name of anything."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not good: {error.verify_message}"
    return error.strerror or str(error) or type(error).__name__
