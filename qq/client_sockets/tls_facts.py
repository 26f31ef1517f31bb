"""Properties of a client's TLS connection, for operators."""

from __future__ import annotations

from datetime import UTC, datetime
from ssl import cert_time_to_seconds
from typing import TYPE_CHECKING, Any

from qq.sessions.session_info import TlsFacts
from qq.tls.distinguished_names import distinguished_name

if TYPE_CHECKING:
    from ssl import SSLObject


def tls_facts(connection: SSLObject | None) -> TlsFacts | None:
    """Return the TLS properties of a connection, or None if it has no TLS."""
    if connection is None:
        return None
    cipher, *_ = connection.cipher() or ("",)
    certificate: Any = connection.getpeercert()
    if not certificate:
        return TlsFacts(connection.version() or "", cipher)
    return TlsFacts(
        connection.version() or "",
        cipher,
        distinguished_name(certificate.get("subject", ())),
        distinguished_name(certificate.get("issuer", ())),
        f"{_moment(certificate['notBefore'])} - {_moment(certificate['notAfter'])}",
    )


def _moment(text: str) -> str:
    """Return a time of a certificate in RabbitMQ's format."""
    return datetime.fromtimestamp(cert_time_to_seconds(text), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
