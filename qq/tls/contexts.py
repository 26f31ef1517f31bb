"""The TLS contexts of this node's sockets, made from files that may change.

Invariant: open connections keep the context with which they were opened.
"""

from __future__ import annotations

import logging
import ssl
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from cluster.transport.peer_links import PeerTls
from qq.config import read_hidden
from qq.diagnosis.node_rules import ENDS_SOON_S
from qq.diagnosis.words import days
from qq.errors import StartError
from qq.tls.certificates import InvalidCertificate, validities
from qq.tls.distinguished_names import distinguished_name
from qq.tls.reloadable import Reloadable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from qq.config import ClientTls, TlsFiles

log = logging.getLogger(__name__)

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def for_clients(settings: ClientTls) -> Reloadable[ssl.SSLContext]:
    """Make the context for AMQP clients and the files it is read from; raises StartError."""
    return Reloadable(_files_of(settings), partial(_client_context, settings))


def for_peers(files: TlsFiles) -> Reloadable[PeerTls]:
    """Make the contexts for peers and the files they are read from; raises StartError."""
    return Reloadable(_files_of(files), partial(_peer_contexts, files))


def _files_of(settings: ClientTls | TlsFiles) -> list[Path]:
    files = (settings.cert, settings.key, settings.ca, settings.key_password_file)
    return [file for file in files if file is not None]


def _check_readable(settings: ClientTls | TlsFiles) -> None:
    """Raise StartError for the first file that cannot be read. OpenSSL does not say which file it is.

    The file of a passphrase is read only if the key is encrypted.
    """
    for file in filter(None, (settings.cert, settings.key, settings.ca)):
        try:
            file.open("rb").close()
        except OSError as error:
            raise StartError(f"{file} cannot be read: {error.strerror}") from None


def _client_context(settings: ClientTls) -> ssl.SSLContext:
    _check_readable(settings)
    try:
        context = _trusting(settings.ca if settings.verify_peer else None, ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = _VERSIONS[settings.minimum_version]
        if settings.ciphers is not None:
            context.set_ciphers(settings.ciphers)
        _show(context, settings)
        if settings.verify_peer and settings.ca is not None:
            required = settings.fail_if_no_peer_cert
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    except (OSError, ssl.SSLError) as error:
        raise StartError(f"TLS for clients cannot be set up from {settings.cert}: {error}") from None
    _log_expiry(settings.cert, settings.ca)
    return context


def _peer_contexts(files: TlsFiles) -> PeerTls:
    """Make the contexts of both sides of a link: each must show a certificate of the cluster's CA."""
    _check_readable(files)
    try:
        server = _trusting(files.ca, ssl.Purpose.CLIENT_AUTH)
        server.verify_mode = ssl.CERT_REQUIRED
        client = _trusting(files.ca, ssl.Purpose.SERVER_AUTH)
        # The certificate proves membership; the handshake of the links proves the node's name.
        client.check_hostname = False
        for context in (server, client):
            _show(context, files)
    except (OSError, ssl.SSLError) as error:
        raise StartError(f"TLS for peers cannot be set up from {files.cert}: {error}") from None
    _log_expiry(files.cert, files.ca)
    return PeerTls(server, client)


def _log_expiry(*files: Path | None) -> None:
    """Log each file with a certificate that has expired, expires soon, or is not valid yet."""
    now_s = time.time()
    for file in filter(None, files):
        try:
            dates = validities(file.read_bytes())
        except (OSError, InvalidCertificate) as error:
            log.warning("the dates of the certificates in %s cannot be read: %s", file, error)
            continue
        ends_s = min(each.ends.timestamp() for each in dates)
        begins_s = max(each.begins.timestamp() for each in dates)
        if ends_s <= now_s:
            log.warning("a certificate in %s expired %s ago", file, days(now_s - ends_s))
        elif ends_s - now_s < ENDS_SOON_S:
            log.warning("a certificate in %s expires in %s", file, days(ends_s - now_s))
        elif begins_s > now_s:
            log.warning("a certificate in %s is valid only in %s", file, days(begins_s - now_s))


def _trusting(authorities: Path | None, purpose: ssl.Purpose) -> ssl.SSLContext:
    """Make a context that trusts the authorities in a file; raises StartError."""
    try:
        return ssl.create_default_context(purpose, cafile=authorities)
    except (OSError, ssl.SSLError) as error:
        raise StartError(f"the authorities in {authorities} cannot be used: {error}") from None


def _show(context: ssl.SSLContext, settings: ClientTls | TlsFiles) -> None:
    """Load the certificate into the context. Raises OSError, ssl.SSLError, or OperatingError for the passphrase."""
    key, file = settings.key, settings.key_password_file
    asked = False

    def passphrase() -> str:
        nonlocal asked
        asked = True
        if file is None:
            raise StartError(f"{key} is encrypted: name the file with its passphrase as key_password_file")
        return read_hidden(file)

    try:
        # Without a function OpenSSL would ask on the terminal and block the node.
        context.load_cert_chain(settings.cert, key, passphrase)
    except (ValueError, ssl.SSLError) as error:  # a passphrase may be too long, or wrong
        if asked and getattr(error, "reason", None) != "KEY_VALUES_MISMATCH":
            raise StartError(f"{key} cannot be decrypted with the passphrase in {file}: {error}") from None
        raise


def name_in(certificate: Mapping[str, Any], login_from: str) -> str | None:
    """Return the user's name in a certificate of `SSLSocket.getpeercert`, or None without a name.

    With "distinguished_name" it is the subject, written as in RFC 4514 and as in RabbitMQ. With "common_name" it is the
    CN, or all CNs separated by commas.
    """
    subject: Sequence[Sequence[tuple[str, str]]] = certificate.get("subject", ())
    if login_from == "common_name":
        names = [value for relative in subject for kind, value in relative if kind == "commonName"]
        return ",".join(names) or None
    return distinguished_name(subject) or None
