"""The addresses of brokers, in RabbitMQ's form (https://www.rabbitmq.com/docs/uri-spec, amqp_uri.erl).

Invariant: no URI, and no password, is part of an error's text.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from qq.machine.protocol.commands import DEFAULT_VHOST

DEFAULT_USER = "guest"
"""The user that logs in if a URI names none; the password is the same word."""
PORTS = {"amqp": 5672, "amqps": 5671}
HEARTBEAT_S = 10
"""The interval of heartbeats if a URI names none, as of RabbitMQ's own client."""
HEARTBEAT_MAX_S = 65_535
CONNECT_TIMEOUT_MS = 60_000
CONNECT_TIMEOUT_MAX_MS = 3_600_000
MECHANISMS = ("plain", "amqplain", "external")
VHOST_BYTES_MAX = 255
"""The longest name of a virtual host: an AMQP short string."""


class InvalidUri(ValueError):
    """A URI is not one of a broker. The text does not have it."""


class UriTls(NamedTuple):
    """What a URI says of TLS. The files are on the node that connects."""

    ca: str = ""
    """The certificates that are trusted; empty: those that the system trusts."""
    cert: str = ""
    key: str = ""
    password: str = ""
    """The password of the key."""
    verifies: bool = True
    """Whether the broker has to have a certificate that is trusted."""
    server_name: str | None = ""
    """The name that its certificate has to have; empty: its host's; None: any, and it is told none."""


class BrokerUri(NamedTuple):
    """Where a broker is, and how to log in there."""

    host: str
    """The host; empty: this cluster."""
    port: int
    vhost: str
    user: str
    """Who logs in; empty only for this cluster, which then asks for no password."""
    password: str
    heartbeat_s: int
    """How often each side says that it is there, at least; 0: never."""
    connect_timeout_s: float
    is_external: bool
    """Whether to log in with the client's certificate, if the broker lets one."""
    tls: UriTls | None
    """How to speak TLS; None: not at all."""
    shown: str
    """The URI without user, password and query."""

    def __repr__(self) -> str:
        """Tell everything but the password."""
        return f"BrokerUri({self.shown})"

    @property
    def is_own(self) -> bool:
        """Whether it is this cluster, which asks for no password."""
        return not self.host and not self.user


def parse_uri(text: str) -> BrokerUri:
    """Read a URI. Raises InvalidUri."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
        pairs = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        raise InvalidUri("not a valid URI") from None
    if parts.scheme not in PORTS:
        raise InvalidUri("it should begin with amqp:// or amqps://")
    uses_tls = parts.scheme == "amqps"
    if not host and (uses_tls or port is not None):
        raise InvalidUri("a port, or amqps, needs a host")
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
        port or PORTS[parts.scheme],
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
    """The name of a host, or its address, if it can be one."""
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
    """A URI, or a list of them, as it may be shown: without user, password and query."""
    if isinstance(value, list):
        return [redacted(each) for each in value]
    if not isinstance(value, str):
        return None
    try:
        return parse_uri(value).shown
    except InvalidUri:
        return "amqp://(invalid)"
