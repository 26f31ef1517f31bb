"""Parses broker addresses in RabbitMQ's form (https://www.rabbitmq.com/docs/uri-spec, amqp_uri.erl).

Invariant: error texts contain neither the URI nor a password.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from qq.machine.protocol.commands import DEFAULT_VHOST

DEFAULT_USER = "guest"
"""User and password of a login if the URI names no user."""
PORTS = {"amqp": 5672, "amqps": 5671}
HEARTBEAT_S = 10
"""Heartbeat interval in seconds if the URI gives no interval, as in RabbitMQ's own client."""
HEARTBEAT_MAX_S = 65_535
CONNECT_TIMEOUT_MS = 60_000
CONNECT_TIMEOUT_MAX_MS = 3_600_000
MECHANISMS = ("plain", "amqplain", "external")
VHOST_BYTES_MAX = 255
"""Longest name of a virtual host in bytes: an AMQP short string."""


class InvalidUri(ValueError):
    """The URI is not a valid broker address. The text does not contain the URI."""


class UriTls(NamedTuple):
    """TLS settings of a URI. The files are on the node that connects."""

    ca: str = ""
    """File of trusted certificates; empty: the trust store of the system."""
    cert: str = ""
    key: str = ""
    password: str = ""
    """Password of the key file."""
    verifies: bool = True
    """Whether the broker must present a trusted certificate."""
    server_name: str | None = ""
    """Name that the broker's certificate must have; empty: the host; `None`: any name, and no SNI is sent."""


class BrokerUri(NamedTuple):
    """Address of a broker, and how to log in there."""

    host: str
    """Host name or address; empty: this cluster."""
    port: int
    vhost: str
    user: str
    """User that logs in; empty only for this cluster, which then needs no password."""
    password: str
    heartbeat_s: int
    """Heartbeat interval in seconds; 0: no heartbeats."""
    connect_timeout_s: float
    is_external: bool
    """Whether to log in with the client's certificate (EXTERNAL), if the broker offers that."""
    tls: UriTls | None
    """TLS settings; `None`: plain TCP."""
    shown: str
    """URI without user, password and query."""

    def __repr__(self) -> str:
        """Show the address without user and password."""
        return f"BrokerUri({self.shown})"

    @property
    def is_local(self) -> bool:
        """Return whether this is the own cluster, which needs no password."""
        return not self.host and not self.user


def parse_uri(text: str) -> BrokerUri:
    """Parse a URI. Raises InvalidUri."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
        pairs = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        raise InvalidUri("not a valid URI") from None
    if not text.isprintable():
        raise InvalidUri(
            "a control character in a URI is written as % and two digits"
        )  # urlsplit leaves some out
    if parts.scheme not in PORTS:
        raise InvalidUri("it should begin with amqp:// or amqps://")
    uses_tls = parts.scheme == "amqps"
    if not host and (uses_tls or port is not None):
        raise InvalidUri("a port, or amqps, needs a host")
    if port == 0:
        raise InvalidUri("no broker listens on port 0")
    if "/" in (path := parts.path.removeprefix("/")):
        raise InvalidUri("a slash in the name of a virtual host is written %2F")
    if "@" in path:  # most likely it is behind a password with a slash in it
        raise InvalidUri("an @ in the name of a virtual host is written %40, and a slash in a password %2F")
    query, mechanisms = dict(pairs), {value for key, value in pairs if key == "auth_mechanism" and value}
    if not mechanisms.issubset(MECHANISMS):
        raise InvalidUri(f"auth_mechanism should be one of {', '.join(MECHANISMS)}")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if host and not user:
        user = password = DEFAULT_USER
    if len(unquote(path).encode(errors="surrogatepass")) > VHOST_BYTES_MAX:
        raise InvalidUri(f"the name of a virtual host is longer than {VHOST_BYTES_MAX} octets")
    return BrokerUri(
        _host(host, "the host"),
        PORTS[parts.scheme] if port is None else port,
        unquote(path) or DEFAULT_VHOST,
        user,
        password,
        _number(query, "heartbeat", HEARTBEAT_S, range(HEARTBEAT_MAX_S + 1)),
        _number(query, "connection_timeout", CONNECT_TIMEOUT_MS, range(1, CONNECT_TIMEOUT_MAX_MS + 1)) / 1000,
        "external" in mechanisms,
        _tls_files(query) if uses_tls else None,
        f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}",
    )


def _tls_files(query: dict[str, str]) -> UriTls:
    verify, name = query.get("verify", "verify_peer"), query.get("server_name_indication", "")
    if verify not in ("verify_peer", "verify_none"):
        raise InvalidUri("verify should be verify_peer or verify_none")
    if "keyfile" in query and "certfile" not in query:
        raise InvalidUri("a keyfile needs a certfile")
    if name != "disable":
        _host(name, "server_name_indication")
    return UriTls(
        query.get("cacertfile", ""),
        query.get("certfile", ""),
        query.get("keyfile", ""),
        query.get("password", ""),
        verify == "verify_peer",
        None if name == "disable" else name,
    )


def _host(text: str, what: str) -> str:
    """Return the unquoted host name or address. Raises InvalidUri if it cannot be a host name."""
    host = unquote(text)
    try:
        host.encode("idna")
    except UnicodeError:
        raise InvalidUri(f"{what} is not the name of one") from None
    if not host.isprintable():
        raise InvalidUri(f"{what} is not the name of one")
    return host


def _number(query: dict[str, str], key: str, default: int, allowed: range) -> int:
    text = query.get(key, str(default))
    if not (
        text.isascii() and text.isdigit() and len(text) <= len(str(allowed.stop)) and int(text) in allowed
    ):
        raise InvalidUri(f"{key} should be a number from {allowed.start} to {allowed.stop - 1}")
    return int(text)


def redacted(value: object) -> object:
    """Return a URI, or a list of URIs, without user, password and query."""
    if isinstance(value, list):
        return [redacted(each) for each in value]
    if not isinstance(value, str):
        return None
    try:
        return parse_uri(value).shown
    except InvalidUri:
        return "amqp://(invalid)"
