"""The configuration of a node: the settings, and the reader of the file and the environment.

Invariant: a configuration that loads is complete and consistent. A faulty configuration gives a single line that names
the file (or the environment variable), the key and the fault. An unknown key is an error, never ignored.

A key is `[section] key` in the file and `QQ_<SECTION>_<KEY>` in the environment, which wins. The list of nodes is only
in the file. Relative paths are relative to the directory of the file. A secret may be in a file of its own, which
`key_file` names instead of `key`.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from hashlib import blake2b
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeGuard, TypeVar

from qq.errors import OperatingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LOG_LEVELS = ("debug", "info", "warning", "error")
NODES_MAX = 7  # every entry goes to every node: more members cost speed and add no safety
SECRET_LENGTH_MIN = 16  # the only protection between a peer port and the log
SECRETS_MAX = 2  # the present secret, and its successor
PORT_MAX = 65_535
# A name is part of file names, paths of HTTP, metrics and wire messages.
NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9_.@-]{1,64}")
NAME_RULE = "must be 1 to 64 of A-Z a-z 0-9 _ . @ -, and neither . nor .."
ENVIRONMENT_PREFIX = "QQ_"
SECTIONS = (
    "node",
    "cluster",
    "listen",
    "users",
    "limits",
    "tls",
    "http_tls",
    "peer_tls",
    "oauth2",
    "tracing",
    "shovels",
    "product",
)
"""The sections of the file, except the `[[nodes]]` tables."""
# Kubernetes gives every pod variables of all services, and the name of a service may be "qq", or begin with it.
_OF_KUBERNETES = re.compile(r"QQ(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
_WEB_ADDRESS = re.compile(r"https?://[^/?#\s]+(/[^?#\s]*)?")
TLS_VERSIONS = ("1.2", "1.3")
_KNOWN_TO_ALL = "guest"  # RabbitMQ's first user, and the password
TOKEN_ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Signature algorithms with a public key. Algorithms with a shared secret are excluded, because the key is public."""
_OWN_MACHINE = ("127.0.0.1", "localhost")
CERT_LOGINS = ("distinguished_name", "common_name")
PEER_ADDRESSES = ("log", "file")


Default = TypeVar("Default")


class Seed(NamedTuple):
    """The address of a cluster's node that a joining node asks first."""

    host: str
    port: int


class _DefaultUser(TypedDict):
    default_user: str
    default_password: str
    loopback_users: tuple[str, ...]


class ConfigError(OperatingError):
    """The configuration cannot be used."""

    exit_status = os.EX_CONFIG  # of its own: a start with the same configuration ends in the same way


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """The addresses of a cluster's node."""

    name: str
    host: str
    peer_port: int
    amqp_port: int
    http_port: int
    amqps_port: int | None = None
    """The port for AMQP over TLS; None: not served."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Certificate, private key and the authority that signs the peers' certificates (PEM files)."""

    cert: Path
    key: Path
    ca: Path
    key_password_file: Path | None = None
    """The file with the passphrase of the key, if that is encrypted."""


@dataclass(frozen=True, slots=True)
class ClientTls:
    """TLS for the clients of a port: AMQP or HTTP. The names are those of RabbitMQ's ssl_options."""

    cert: Path
    """The certificate, with the intermediate certificates after it, and its private key (PEM files)."""
    key: Path
    ca: Path | None = None
    """The authority that signs the certificates of clients (PEM file); `verify_peer` needs it."""
    verify_peer: bool = False
    """Whether a client's certificate is checked. With AMQP it then allows a login with EXTERNAL."""
    fail_if_no_peer_cert: bool = False
    """Whether a client must show a certificate."""
    minimum_version: str = "1.2"
    """A value of `TLS_VERSIONS`."""
    ciphers: str | None = None
    """The ciphers up to TLS 1.2, as OpenSSL writes them; None: the interpreter's choice."""
    cert_login_from: str = "distinguished_name"
    """RabbitMQ's ssl_cert_login_from: the part of a certificate that is the user's name; a value of `CERT_LOGINS`.

    Only for AMQP.
    """
    key_password_file: Path | None = None
    """The file with the passphrase of the key, if that is encrypted: RabbitMQ's ssl_options.password, in a file."""


@dataclass(frozen=True, slots=True)
class OAuth2:
    """Tokens of OAuth 2 in place of passwords. The names are those of RabbitMQ's auth_oauth2."""

    resource_server_id: str
    """The name of this service in tokens: an audience of each token, and the beginning of its scopes."""
    issuer: str | None = None
    """The address of the tokens' issuer, where OpenID Connect Discovery tells the address of the keys."""
    jwks_url: str | None = None
    """The address of the keys, if discovery is not used."""
    ca: Path | None = None
    """The authority that signs the certificate at these addresses (PEM file); None: the system's authorities."""
    signing_keys: tuple[tuple[str, Path], ...] = ()
    """Keys by their ids, in PEM files."""
    default_key: str | None = None
    """The id of the key of tokens without a key id."""
    algorithms: tuple[str, ...] = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "EdDSA")
    """The algorithms that tokens may be signed with; all possible values are in `TOKEN_ALGORITHMS`."""
    scope_prefix: str = ""
    """The prefix of scopes for this service; `resource_server_id` with a point, unless set."""
    scope_aliases: tuple[tuple[str, str], ...] = ()
    """Names for several scopes, which are separated by spaces."""
    additional_scopes_keys: tuple[str, ...] = ()
    """Claims with further scopes, besides `scope`."""
    preferred_username_claims: tuple[str, ...] = ()
    """Claims that may name the user: the first present claim counts; after these, `sub` and `client_id`."""
    verify_aud: bool = True
    """Whether `resource_server_id` must be among the audiences of a token."""
    leeway_s: float = 1.0
    """Seconds that the issuer's clock may be ahead of this node's, or behind it."""
    client_id: str | None = None
    """The issuer's client id of the management page: RabbitMQ's management.oauth_client_id.

    None: the page accepts passwords only.
    """
    client_secret: str | None = field(default=None, repr=False)
    """The node's secret as this client at the issuer. None: the issuer requires no secret."""
    scopes: tuple[str, ...] = ("openid", "profile")
    """The scopes that the page asks for: RabbitMQ's management.oauth_scopes."""

    @staticmethod
    def is_safe_for_keys(url: str) -> bool:
        """Return whether keys may be fetched from this address, which requires TLS or the own machine.

        An attacker that can alter the answer could log in as any user.
        """
        scheme, _, rest = url.partition("://")
        host = re.split(r"[/:?#]", rest, maxsplit=1)[0]
        return bool(rest) and (scheme == "https" or (scheme == "http" and host in _OWN_MACHINE))


@dataclass(frozen=True, slots=True)
class Tracing:
    """Traces of messages, for a collector that speaks OTLP over HTTP."""

    endpoint: str
    """The address of the collector; traces go to the path /v1/traces below it."""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """The headers of each request to the collector: they may hold a secret."""
    ca: Path | None = None
    """The authority that signs the collector's certificate (PEM file); None: the system's authorities."""
    ratio: float = 0.0
    """The share of publishes without a trace context that begin a trace.

    Publishes with a trace context are traced if the context says so. With the default 0, only applications begin
    traces.
    """
    spans_per_s_max: int = 200
    """The most spans in a second; further spans are dropped and counted.

    Each span is some 0.2 ms of work, so the default is some 4 % of the node's core.
    """
    service_name: str = "qq"
    """The attribute `service.name` of all spans."""


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """The settings of `[limits]`; all are above zero, except those in `_MAY_BE_ZERO`."""

    connection_max: int = 0
    """RabbitMQ's connection_max: clients of a node. 0: as many as it may have files open, less its own share."""
    channel_max: int = 2047
    """Channels of a connection; 0: no limit. RabbitMQ's default, which clients have compiled in."""
    session_max_per_connection: int = 64
    """Sessions of an AMQP 1.0 connection, as in RabbitMQ."""
    link_max_per_session: int = 256
    """Links of an AMQP 1.0 session, as in RabbitMQ."""
    link_credit: int = 16_384
    """Deliveries that an AMQP 1.0 client may publish on a link before the node gives it credit anew."""
    session_incoming_window: int = 32_768
    """Transfers that an AMQP 1.0 client may send in a session before the node opens its window anew."""
    frame_max: int = 131_072
    """Bytes of the largest frame, 4096 at least.

    RabbitMQ's default. There is no "unlimited", because unfinished frames are held in memory.
    """
    client_heartbeat_s: int = 60
    """RabbitMQ's heartbeat: the interval in seconds that clients are told; 0: none.

    They may choose a different interval.
    """
    client_keepalive_idle_s: int = 60
    """Seconds of silence after which the kernel probes a client, of AMQP or HTTP: TCP keepalive. 0: never.

    It finds clients whose host has vanished and that have no heartbeats.
    """
    client_keepalive_interval_s: int = 10
    """Seconds between two probes."""
    client_keepalive_probes: int = 6
    """Probes without an answer, after which the connection is closed."""
    strangers_max: int = 0
    """Clients of a node without a login.

    Above it, a new client evicts a client whose handshake makes no progress, or is refused. 0: half of the node's
    possible clients, 4096 at most, and as its memory allows.
    """
    handshake_timeout_s: float = 10.0
    """RabbitMQ's handshake_timeout: seconds that a client may take until connection.open, from the accepted socket.

    With TLS, they count from the end of the TLS handshake.
    """
    tls_handshake_timeout_s: float = 5.0
    """RabbitMQ's ssl_handshake_timeout: seconds that the TLS handshake may take."""
    http_connection_max: int = 0
    """HTTP clients of a node.

    Above it, a new client evicts a connection that has had no user's request for a while, or is refused. 0: a tenth of
    the files that a node may have open, 1024 at most.
    """
    http_request_max: int = 0
    """Concurrent requests of users; further requests are answered with 503. 0: half of the connections, 128 at most."""
    lease_stream_max: int = 16
    """Streams of leased messages that a node writes at a time; further requests are answered with 503.

    While its client is slow, each holds a batch or a large message: 2.4 MiB with messages of 1 MB, and 14.5 MiB with
    messages of 16 MB. A user has half of the streams at most. Further readers go to other nodes, or wait.
    """
    http_header_timeout_s: float = 10.0
    """Seconds that a request's header may take, from its first byte or from the accepted socket."""
    http_body_timeout_s: float = 60.0
    """Seconds that a request's body may take."""
    http_idle_timeout_s: float = 60.0
    """Seconds that a client may send no request, or not read its answer."""
    http_session_s: float = 8 * 3600.0
    """Seconds that a login with the page lasts. RabbitMQ's login_session_timeout, with its default."""
    message_bytes: int = 16 * 1024 * 1024
    """Bytes of the largest message body.

    RabbitMQ's default: a message is a part of a single log entry, in memory while it is replicated. 128 MiB at most,
    because each node copies it several times and is blocked meanwhile. A node accepts what its own file allows, and
    replicates all messages that its peers have accepted.
    """
    write_buffer_bytes: int = 1024 * 1024
    """Bytes that wait to be written to a connection.

    Above it deliveries pause, and a slow consumer's backlog stays in the log.
    """
    uncommitted_bytes: int = 8 * 1024 * 1024
    """Bytes of a connection's requests (publishes, acknowledgements, declarations) that are not in the log yet.

    Above it the node stops reading. Each command counts 256, and each message 64, besides its bytes.
    """
    node_uncommitted_bytes: int = 128 * 1024 * 1024
    """The same for all connections together: the memory that a node without a majority may use.

    Above it, the node refuses new connections to the virtual hosts that have more than an equal share of it (an eighth
    at most).
    """
    connection_publishes_per_s: int = 0
    """Messages that a connection may publish in a second; above it, reading from it pauses for a while. 0: no limit."""
    connection_publish_bytes_per_s: int = 0
    """The same in bytes, headers and frames included."""
    cache_bytes: int = 32 * 1024 * 1024
    """Bytes of recent entries kept in memory; older entries are read back from the disk."""
    segment_bytes: int = 64 * 1024 * 1024
    """Bytes at which a segment file is closed: the unit in which disk space is freed."""
    segment_entries: int = 65_536
    """Entries at which a segment file is closed as well: it bounds the scan at a start if entries are small."""
    checkpoint_entries: int = 16_384
    """Entries between two checkpoints. A start replays this many at most."""
    checkpoint_bytes: int = 64 * 1024 * 1024
    """Bytes of log after which the next checkpoint is written, but at least the size of the last checkpoint."""
    checkpoint_interval_s: float = 60.0
    """Seconds after which the next checkpoint is written, if the log has grown."""
    retained_bytes: int = 128 * 1024 * 1024
    """Bytes of log kept for nodes that are behind.

    A node that lacks more gets the checkpoint and the stored messages.
    """
    memory_high_watermark: float = 0.6
    """RabbitMQ's vm_memory_high_watermark: the share of the memory above which publishers wait."""
    memory_high_watermark_bytes: int = 0
    """The same watermark in bytes; 0: the share counts."""
    disk_free_limit_bytes: int = 50 * 1024 * 1024
    """RabbitMQ's disk_free_limit: bytes of free space on a node's disk, below which publishers wait."""
    consumer_timeout_ms: int = 1_800_000
    """RabbitMQ's consumer_timeout: milliseconds that a delivery may be unacknowledged; 0: for ever."""
    default_consumer_prefetch: int = 0
    """RabbitMQ's default_consumer_prefetch: the prefetch on a channel that has not sent basic.qos; 0: no limit."""
    consumer_max_per_channel: int = 0
    """RabbitMQ's consumer_max_per_channel: the most consumers of a channel; 0: no limit."""
    transaction_bytes: int = 64 * 1024 * 1024
    """Bytes published and not committed on a channel, counted as for `uncommitted_bytes`.

    A transaction is in memory, and in a single entry of the log.
    """
    publish_timeout_ms: int = 0
    """Milliseconds after which an unconfirmed publish is refused (basic.nack), outcome unknown; 0: never."""
    majority_timeout_ms: int = 30_000
    """Milliseconds without a known leader, after which the node refuses clients; 0: never.

    Clients that wait for an answer are told to try again (320), outcome unknown, and new clients are not accepted.
    Elections take seconds; after a minute a majority without this node evicts it, and its clients with it.
    """
    catch_up_bytes_per_s: int = 64 * 1024 * 1024
    """Bytes per second that a leader sends to a learner.

    A learner is a new member, or a member that has lost its disk. While the log grows it is a quarter of that, but at
    least twice the growth of the log.
    """
    drain_grace_s: float = 5.0
    """Seconds that clients may stay on a node whose maintenance has begun.

    In this time their load balancer should notice that the node is not ready; otherwise they come back at once.
    """


_MAY_BE_ZERO = (
    "connection_max",
    "strangers_max",
    "http_connection_max",
    "http_request_max",
    "channel_max",
    "client_heartbeat_s",
    "client_keepalive_idle_s",
    "memory_high_watermark_bytes",
    "retained_bytes",
    "consumer_timeout_ms",
    "default_consumer_prefetch",
    "consumer_max_per_channel",
    "publish_timeout_ms",
    "majority_timeout_ms",
    "connection_publishes_per_s",
    "connection_publish_bytes_per_s",
)
_PORTS = ("peer_port", "amqp_port", "http_port", "amqps_port")
_OF_THE_CLUSTER = (
    "replace_emptied",
    "finish_upgrades",
    # A leader must send its heartbeats before any other node suspects it.
    "election_timeout_min_s",
    "election_timeout_max_s",
    "heartbeat_s",
)
WHOLE_NUMBER_MAX = 2**63 - 1
"""The largest integer in commands of the log, and in numbers of the system."""
_LEAST = {
    "frame_max": 4096,  # clients may not ask for less (AMQP 0-9-1, frame-min-size)
    "catch_up_bytes_per_s": 16 * 1024 * 1024,  # each heartbeat takes a slice of the log along in any case
}
_MOST = {
    "channel_max": 65_535,  # the range of the fields of connection.tune
    "client_heartbeat_s": 65_535,
    # The ranges of the numbers of channels and links in AMQP 1.0, and of what a client can keep in mind.
    "session_max_per_connection": 65_536,
    "link_max_per_session": 65_536,
    "link_credit": 1_000_000,
    "session_incoming_window": 1_000_000,
    # The range of Linux.
    "client_keepalive_idle_s": 32_767,
    "client_keepalive_interval_s": 32_767,
    "client_keepalive_probes": 127,
    "memory_high_watermark": 1,
    # A message or a transaction of these sizes, with the largest content header and in the smallest accepted frames, is
    # less than `cluster.log.entry.BATCH_BYTES_MAX` together with a full batch before it.
    "frame_max": 16 * 1024 * 1024,
    "message_bytes": 128 * 1024 * 1024,
    "transaction_bytes": 128 * 1024 * 1024,
    "http_session_s": 366 * 86_400,
    "write_buffer_bytes": 2**31 - 1,  # uvloop refuses more, and with it every client
    # The range of a segment's footer.
    "segment_bytes": 2**32 - 1,
    "segment_entries": 2**32 - 1,
}


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """All settings of a node. Durations are in seconds."""

    name: str
    data_dir: Path
    nodes: tuple[NodeAddress, ...]
    secrets: tuple[bytes, ...] = field(repr=False)
    """The secrets that all nodes share: one, or two while it is changed."""
    secret_file: Path | None = None
    """The file from which the secrets are read again when it changes; None: they are in the configuration."""
    cluster_name: str = "qq"
    join: tuple[Seed, ...] = ()
    """Nodes of the cluster that this node must join; empty: it is a node of `nodes`.

    A joining node takes only its own address from `nodes`. As soon as the log has a configuration, that counts more.
    """
    replace_emptied: bool = True
    """Whether a node that returns with an empty directory replaces the member with its name and address.

    That member's disk must be lost then, so no operator need confirm it.
    """
    finish_upgrades: bool = True
    """Whether the cluster raises the version of the state by itself, when the programs of all members can run it.

    Afterwards the older program cannot come back.
    """
    peer_addresses: str = PEER_ADDRESSES[0]
    """The source of peers' addresses: `log` takes the addresses in the log, `file` those in `nodes`."""
    log_level: str = "info"

    amqp_host: str = "127.0.0.1"
    """The address to listen on. A deployment over several machines sets this and the next three."""
    amqps_host: str = "127.0.0.1"
    http_host: str = "127.0.0.1"
    peer_host: str = "127.0.0.1"

    amqp_address_v1: bool = False
    """Whether AMQP 1.0 clients may use addresses of version 1: RabbitMQ's deprecated feature of this name.

    Off, because an attach then declares a queue of any name that does not exist.
    """
    metrics_need_login: bool = False
    """Whether metrics are only for users with the tag monitoring or administrator."""

    default_user: str = _KNOWN_TO_ALL
    """The user that is created, with the tag administrator, if the cluster has no users."""
    default_password: str = field(default=_KNOWN_TO_ALL, repr=False)
    loopback_users: tuple[str, ...] = ("guest",)
    """Users who may log in from this machine only: the default password is public knowledge."""
    anonymous_login_user: str = _KNOWN_TO_ALL
    """The user of AMQP 1.0 clients on this machine that log in without a name; "": they may not."""
    proxy_protocol_from: tuple[str, ...] = ()
    """Networks whose connections to the AMQP ports begin with a header of the PROXY protocol."""

    election_timeout_min_s: float = 1.0
    election_timeout_max_s: float = 2.0
    heartbeat_s: float = 0.1

    limits: NodeLimits = NodeLimits()
    tls: ClientTls | None = None
    """TLS for AMQP; None: not served."""
    http_tls: ClientTls | None = None
    """TLS for HTTP: the port then redirects other requests. None: plain HTTP."""
    peer_tls: TlsFiles | None = None
    oauth2: OAuth2 | None = None
    """Settings for tokens; None: tokens are refused."""
    tracing: Tracing | None = None
    """The destination of traces; None: messages are not traced."""

    shovel_hosts: tuple[str, ...] | None = None
    """The hosts that shovels may connect to, as their URIs name them; None: all, as with RabbitMQ.

    A migration from RabbitMQ needs that, and only users with a tag that an administrator has given may set shovels.
    """

    product: str = "RabbitMQ"
    """The product name in connection.start.

    Several clients (kombu among them) choose their behaviour by product and version.
    """
    version: str = "4.0.0"

    def shown(self) -> dict[str, str]:
        """Return all settings that are not secret, by name; nested settings as `parent.child`."""
        return dict(_shown(self))

    def common(self) -> dict[str, str]:
        """Return the settings that must be the same on all nodes, by section and key.

        The password is included as 16 bits of a hash: enough to tell two apart, and too little to guess it.
        """
        password = blake2b(self.default_password.encode(), digest_size=2).hexdigest()
        return {
            **{f"[cluster] {key}": str(getattr(self, key)) for key in _OF_THE_CLUSTER},
            **dict(_shown(self.limits, "[limits] ")),
            "[users] default_user": self.default_user,
            "[users] default_password": password,
            "[users] loopback_users": str(self.loopback_users),
        }

    def shovels_may_reach(self, host: str) -> bool:
        """Return whether shovels may connect to this host."""
        return self.shovel_hosts is None or host.lower() in map(str.lower, self.shovel_hosts)

    @property
    def is_open_to_all(self) -> bool:
        """Whether the default user's password is public and the user may log in from everywhere."""
        return self.default_password == _KNOWN_TO_ALL and self.default_user not in self.loopback_users

    @property
    def address(self) -> NodeAddress:
        """The entry of `nodes` for this node."""
        return next(node for node in self.nodes if node.name == self.name)


def _shown(settings: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    for each in fields(settings):
        value = getattr(settings, each.name)
        if is_dataclass(value):
            yield from _shown(value, f"{prefix}{each.name}.")
        elif each.repr:
            yield f"{prefix}{each.name}", str(value)


def load(path: Path, environ: Mapping[str, str], join: Sequence[Seed] = ()) -> NodeConfig:
    """Read and check the file at `path`, with overrides from `environ`, and by `join`; raises ConfigError."""
    reader = _SettingsReader(path, _parse(path), environ)
    config = _read(reader)
    if join:
        config = replace(config, join=tuple(join))
    reader.refuse_unknown()
    _check(config, path)
    return config


def seed_in(text: str) -> Seed:
    """Read `HOST:PORT`, or `[HOST]:PORT` with an IPv6 address as host; raises ValueError."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) <= PORT_MAX):
        raise ValueError(f"{text!r} must be HOST:PORT")
    return Seed(host, int(port))


def read_hidden(path: Path) -> str:
    """Read a password or similar secret from its own file; raises ConfigError."""
    text = _text_in(path).rstrip("\n")
    if not text:
        raise ConfigError(f"{path}: is empty")
    return text


def read_secrets(path: Path) -> tuple[bytes, ...]:
    """Read the secrets of the cluster from their own file; raises ConfigError."""
    try:
        return _secrets_in(read_hidden(path))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def _secrets_in(text: str) -> tuple[bytes, ...]:
    """Split a text with a secret on each line; raises ValueError."""
    secrets = [line.strip() for line in text.split("\n") if line.strip()]
    if not 1 <= len(secrets) <= SECRETS_MAX:
        raise ValueError(f"must be one secret, or {SECRETS_MAX} with a line each, not {len(secrets)}")
    if min(map(len, secrets)) < SECRET_LENGTH_MIN:
        raise ValueError(f"must have at least {SECRET_LENGTH_MIN} characters on each line")
    if len(set(secrets)) < len(secrets):
        raise ValueError("has the same secret twice")
    return tuple(secret.encode() for secret in secrets)


def _text_in(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # editors of Windows begin a file with a mark
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text_in(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None


def _read(reader: _SettingsReader) -> NodeConfig:
    default = NodeConfig("", Path(), (), ())
    seconds, text = reader.seconds, reader.text
    amqp_host = reader.host("amqp_host", default.amqp_host)
    return NodeConfig(
        name=text("node", "name"),
        data_dir=reader.path("node", "data_dir"),
        log_level=text("node", "log_level", default.log_level),
        nodes=reader.nodes(),
        cluster_name=text("cluster", "name", default.cluster_name),
        join=reader.seeds("cluster", "join"),
        replace_emptied=reader.flag("cluster", "replace_emptied", default.replace_emptied),
        finish_upgrades=reader.flag("cluster", "finish_upgrades", default.finish_upgrades),
        peer_addresses=reader.choice("cluster", "peer_addresses", default.peer_addresses, PEER_ADDRESSES),
        secrets=reader.secrets("cluster", "secret"),
        secret_file=reader.hidden_file("cluster", "secret"),
        election_timeout_min_s=seconds("cluster", "election_timeout_min_s", default.election_timeout_min_s),
        election_timeout_max_s=seconds("cluster", "election_timeout_max_s", default.election_timeout_max_s),
        heartbeat_s=seconds("cluster", "heartbeat_s", default.heartbeat_s),
        amqp_host=amqp_host,
        amqps_host=reader.host("amqps_host", amqp_host),
        http_host=reader.host("http_host", default.http_host),
        peer_host=reader.host("peer_host", default.peer_host),
        amqp_address_v1=reader.flag("listen", "amqp_address_v1", default.amqp_address_v1),
        metrics_need_login=reader.flag("listen", "metrics_need_login", default.metrics_need_login),
        **reader.default_user(default),
        anonymous_login_user=reader.text("users", "anonymous_login_user", default.anonymous_login_user),
        proxy_protocol_from=reader.networks("listen", "proxy_protocol_from"),
        limits=reader.limits(),
        tls=reader.client_tls("tls", has_cert_logins=True),
        http_tls=reader.client_tls("http_tls"),
        peer_tls=reader.tls("peer_tls"),
        oauth2=reader.oauth2("oauth2"),
        tracing=reader.tracing("tracing"),
        shovel_hosts=reader.texts("shovels", "hosts", default.shovel_hosts),
        product=text("product", "name", default.product),
        version=text("product", "version", default.version),
    )


def _check(config: NodeConfig, path: Path) -> None:
    """Check conditions on several keys; raises ConfigError."""
    for key, name in (("[node] name", config.name), ("[cluster] name", config.cluster_name)):
        if NAME.fullmatch(name) is None:
            raise ConfigError(f"{path}: {key}: {name!r} {NAME_RULE}")
    if config.name not in [node.name for node in config.nodes]:
        raise ConfigError(f"{path}: [node] name: {config.name!r} is not the name of one of the [[nodes]]")
    if config.log_level not in LOG_LEVELS:
        raise ConfigError(f"{path}: [node] log_level: must be one of {', '.join(LOG_LEVELS)}")
    if (config.tls is None) != (config.address.amqps_port is None):
        raise ConfigError(f"{path}: [tls] and an amqps_port of node {config.name!r} belong together")
    listened: dict[tuple[str, int | None], str] = {}
    for key in _PORTS:
        place = getattr(config, key.replace("port", "host")), getattr(config.address, key)
        if listened.setdefault(place, key) != key:
            raise ConfigError(
                f"{path}: [[nodes]] {key} of node {config.name!r}: is its {listened[place]}, too, at {place[0]}"
            )
    if config.election_timeout_min_s >= config.election_timeout_max_s:
        # Nodes that time out at the same moment split the vote repeatedly.
        raise ConfigError(f"{path}: [cluster] election_timeout_max_s: must be above election_timeout_min_s")
    if config.heartbeat_s * 3 >= config.election_timeout_min_s:
        # A single lost heartbeat must not depose a leader.
        raise ConfigError(
            f"{path}: [cluster] heartbeat_s: must be less than a third of election_timeout_min_s"
        )
    limits = config.limits
    if 0 < limits.memory_high_watermark_bytes < limits.message_bytes:
        # The first part of such a message would raise an alarm, which would stop the reading of the rest.
        raise ConfigError(
            f"{path}: [limits] memory_high_watermark_bytes: {limits.memory_high_watermark_bytes} must be at least "
            f"message_bytes, {limits.message_bytes}"
        )


class _SettingsReader:
    """Looks up each key, in the environment first, and remembers the known keys to refuse unknown keys."""

    def __init__(self, path: Path, document: dict[str, Any], environ: Mapping[str, str]) -> None:
        self._path = path
        self._document = document
        self._environ = environ
        self._known: dict[str, set[str]] = {}

    # --- values

    def text(self, section: str, key: str, default: str | None = None) -> str:
        value = self._required(section, key, default)
        if not isinstance(value, str) or not value:
            raise self._error(section, key, "must be a non-empty string")
        return value

    def host(self, key: str, default: str) -> str:
        """Read the host of an address to listen on; an IPv6 address may have brackets, as in URLs."""
        host = self.text("listen", key, default)
        return host[1:-1] if host.startswith("[") and host.endswith("]") else host

    def texts(self, section: str, key: str, default: Default) -> tuple[str, ...] | Default:
        """Read a list of strings; in the environment separated by commas."""
        value = self._find(section, key)
        if value is None:
            return default
        if self._in_environment(section, key):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if not _is_text_list(value):
            raise self._error(section, key, "must be a list of non-empty strings")
        return tuple(value)

    def networks(self, section: str, key: str) -> tuple[str, ...]:
        """Read a list of networks, or of single addresses."""
        values = self.texts(section, key, ())
        for value in values:
            try:
                ip_network(value)
            except ValueError as error:
                raise self._error(section, key, str(error)) from None
        return values

    def seeds(self, section: str, key: str) -> tuple[Seed, ...]:
        try:
            return tuple(map(seed_in, self.texts(section, key, ())))
        except ValueError as error:
            raise self._error(section, key, str(error)) from None

    def default_user(self, default: NodeConfig) -> _DefaultUser:
        """Read the first user of a new cluster, and the users who may log in from this machine only."""
        user = self.text("users", "default_user", default.default_user)
        loopback_users = self.texts("users", "loopback_users", default.loopback_users)
        given = self.hidden("users", "default_password")
        if user != default.default_user and given is None:
            raise self._error("users", "default_password", f"is missing, and default_user {user!r} needs one")
        password = given or default.default_password
        if (
            password == default.default_password
            and user != default.default_user
            and user not in loopback_users
        ):
            text = f"{password!r} is public knowledge: choose a different password, or add {user!r} to loopback_users"
            raise self._error("users", "default_password", text)
        return _DefaultUser(default_user=user, default_password=password, loopback_users=loopback_users)

    def seconds(self, section: str, key: str, default: float) -> float:
        value = self._number(section, key, default)
        if not math.isfinite(value) or value <= 0:
            raise self._error(section, key, "must be a number of seconds above zero")
        return float(value)

    def share(self, section: str, key: str, default: float) -> float:
        value = self._number(section, key, default)
        if not math.isfinite(value) or value <= 0:
            raise self._error(section, key, "must be a number above zero")
        return float(value)

    def flag(self, section: str, key: str, default: bool) -> bool:
        value = self._required(section, key, default)
        if self._in_environment(section, key):
            value = {"true": True, "false": False}.get(value.lower())
        if not isinstance(value, bool):
            raise self._error(section, key, "must be true or false")
        return value

    def choice(self, section: str, key: str, default: str, choices: tuple[str, ...]) -> str:
        value = self.text(section, key, default)
        if value not in choices:
            raise self._error(section, key, f"must be one of {', '.join(choices)}")
        return value

    def size(self, section: str, key: str, default: int, minimum: int = 1) -> int:
        value = self._number(section, key, default)
        if not isinstance(value, int) or value < minimum:
            bound = "above zero" if minimum else "and not below zero"
            raise self._error(section, key, f"must be a whole number {bound}")
        return value

    def limits(self) -> NodeLimits:
        values: dict[str, Any] = {
            limit.name: self._limit(limit.name, limit.default) for limit in fields(NodeLimits)
        }
        return NodeLimits(**values)

    def _limit(self, name: str, default: Any) -> float:
        if isinstance(default, int):
            value = self.size("limits", name, default, minimum=0 if name in _MAY_BE_ZERO else 1)
        elif name.endswith("_s"):
            value = self.seconds("limits", name, default)
        else:
            value = self.share("limits", name, default)
        unbounded = WHOLE_NUMBER_MAX if isinstance(default, int) else math.inf
        least, most = _LEAST.get(name, 0), _MOST.get(name, unbounded)
        if not least <= value <= most:
            bound = f"at least {least}" if value < least else f"at most {most}"
            raise self._error("limits", name, f"must be {bound}")
        return value

    def path(self, section: str, key: str) -> Path:
        return self._path.parent / self.text(section, key)

    def hidden_file(self, section: str, key: str) -> Path | None:
        """Return the path of the file that holds the secret, or None without such a file.

        With such a file, the configuration itself holds no secret and can be shown around.
        """
        is_given = self._find(section, key) is not None
        if self._find(section, f"{key}_file") is None:
            return None
        if is_given:
            raise self._error(section, key, f"give either {key} or {key}_file")
        return self.path(section, f"{key}_file")

    def hidden(self, section: str, key: str) -> str | None:
        """Read a secret, from the configuration or from its file."""
        path = self.hidden_file(section, key)
        if path is None:
            return None if self._find(section, key) is None else self.text(section, key)
        try:
            return read_hidden(path)
        except ConfigError as error:
            raise self._error(section, f"{key}_file", str(error)) from None

    def secrets(self, section: str, key: str) -> tuple[bytes, ...]:
        text = self.hidden(section, key)
        if text is None:
            raise self._error(section, key, "is missing")
        try:
            return _secrets_in(text)
        except ValueError as error:
            named = key if self.hidden_file(section, key) is None else f"{key}_file"
            raise self._error(section, named, str(error)) from None

    def tls(self, section: str) -> TlsFiles | None:
        keys = [key for key in ("cert", "key", "ca") if self._find(section, key) is not None]
        key_password_file = self._optional_file(section, "key_password_file")
        if not keys and section not in self._document:
            return None
        cert, key, ca = (self._existing_file(section, key) for key in ("cert", "key", "ca"))
        return TlsFiles(cert, key, ca, key_password_file)

    def client_tls(self, section: str, *, has_cert_logins: bool = False) -> ClientTls | None:
        # Optional keys are looked up in any case, so that they are known.
        ca = self._optional_file(section, "ca")
        key_password_file = self._optional_file(section, "key_password_file")
        ciphers = None if self._find(section, "ciphers") is None else self.text(section, "ciphers")
        verify_peer = self.choice(section, "verify", "none", ("none", "peer")) == "peer"
        fail_if_no_peer_cert = self.flag(section, "fail_if_no_peer_cert", False)
        minimum_version = self.choice(section, "minimum_version", TLS_VERSIONS[0], TLS_VERSIONS)
        cert_login_from = CERT_LOGINS[0]
        if has_cert_logins:
            cert_login_from = self.choice(section, "cert_login_from", cert_login_from, CERT_LOGINS)
        if not any(self._find(section, key) is not None for key in ("cert", "key")) and (
            section not in self._document
        ):
            return None
        if verify_peer and ca is None:
            raise self._error(section, "ca", "is missing, and verify = peer needs it")
        if fail_if_no_peer_cert and not verify_peer:
            raise self._error(section, "fail_if_no_peer_cert", "needs verify = peer")
        return ClientTls(
            self._existing_file(section, "cert"),
            self._existing_file(section, "key"),
            ca,
            verify_peer,
            fail_if_no_peer_cert,
            minimum_version,
            ciphers,
            cert_login_from,
            key_password_file,
        )

    def oauth2(self, section: str) -> OAuth2 | None:
        default = OAuth2("")
        texts = partial(self.texts, section)
        values: dict[str, Any] = {
            "issuer": self._address(section, "issuer"),
            "jwks_url": self._address(section, "jwks_url"),
            "ca": self._optional_file(section, "ca"),
            "signing_keys": tuple(
                (name, self._path.parent / file) for name, file in self._pairs(section, "signing_keys")
            ),
            "default_key": self._optional_text(section, "default_key"),
            "algorithms": texts("algorithms", default.algorithms),
            "scope_prefix": self._optional_text(section, "scope_prefix"),
            "scope_aliases": self._pairs(section, "scope_aliases"),
            "additional_scopes_keys": texts("additional_scopes_keys", ()),
            "preferred_username_claims": texts("preferred_username_claims", ()),
            "verify_aud": self.flag(section, "verify_aud", default.verify_aud),
            "leeway_s": self.seconds(section, "leeway_s", default.leeway_s),
            "client_id": self._optional_text(section, "client_id"),
            "client_secret": self.hidden(section, "client_secret"),
            "scopes": texts("scopes", default.scopes),
        }
        resource_server_id = self._optional_text(section, "resource_server_id")
        if not resource_server_id and section not in self._document:
            return None
        if not resource_server_id:
            raise self._error(section, "resource_server_id", "is missing")
        if not (values["issuer"] or values["jwks_url"] or values["signing_keys"]):
            raise self._error(
                section, "issuer", "is missing, and jwks_url and signing_keys are, too: give one"
            )
        if values["client_id"] and not values["issuer"]:
            raise self._error(section, "issuer", "is missing, and client_id needs it")
        if "openid" not in values["scopes"]:
            raise self._error(section, "scopes", "must have 'openid' among them")
        if unknown := [each for each in values["algorithms"] if each not in TOKEN_ALGORITHMS]:
            known = ", ".join(TOKEN_ALGORITHMS)
            raise self._error(section, "algorithms", f"{unknown[0]!r} is not one of {known}")
        values["scope_prefix"] = values["scope_prefix"] or f"{resource_server_id}."
        return OAuth2(resource_server_id, **values)

    def tracing(self, section: str) -> Tracing | None:
        default = Tracing("")
        values: dict[str, Any] = {
            "headers": self._pairs(section, "headers"),
            "ca": self._optional_file(section, "ca"),
            "ratio": self._ratio(section, "ratio", default.ratio),
            "spans_per_s_max": self.size(section, "spans_per_s_max", default.spans_per_s_max),
            "service_name": self.text(section, "service_name", default.service_name),
        }
        endpoint = self._optional_text(section, "endpoint")
        if endpoint is None and section not in self._document:
            return None
        if endpoint is None:
            raise self._error(section, "endpoint", "is missing")
        if _WEB_ADDRESS.fullmatch(endpoint) is None:
            raise self._error(section, "endpoint", f"{endpoint!r} must begin with http:// or https://")
        return Tracing(endpoint, **values)

    def _ratio(self, section: str, key: str, default: float) -> float:
        value = self._number(section, key, default)
        if not 0 <= value <= 1:
            raise self._error(section, key, "must be a number from 0 to 1")
        return float(value)

    def _optional_text(self, section: str, key: str) -> str | None:
        return None if self._find(section, key) is None else self.text(section, key)

    def _address(self, section: str, key: str) -> str | None:
        value = self._optional_text(section, key)
        if value is not None and not OAuth2.is_safe_for_keys(value):
            raise self._error(section, key, f"{value!r} must begin with https:// (http only for 127.0.0.1)")
        return value

    def _pairs(self, section: str, key: str) -> tuple[tuple[str, str], ...]:
        """Read a list of `NAME=VALUE`."""
        pairs = [text.partition("=") for text in self.texts(section, key, ())]
        for name, _, value in pairs:
            if not name.strip() or not value.strip():
                raise self._error(section, key, f"{name!r} must be NAME=VALUE")
        return tuple((name.strip(), value.strip()) for name, _, value in pairs)

    def nodes(self) -> tuple[NodeAddress, ...]:
        tables: Any = self._document.get("nodes", [])
        if not isinstance(tables, list) or not 1 <= len(tables) <= NODES_MAX:
            raise ConfigError(f"{self._path}: [[nodes]]: must be given 1 to {NODES_MAX} times")
        nodes = tuple(self._node(table, position) for position, table in enumerate(tables, 1))
        for attribute in ("name", *_PORTS):
            known = [node for node in nodes if getattr(node, attribute) is not None]
            values = {
                node.name if attribute == "name" else (node.host, getattr(node, attribute)) for node in known
            }
            if len(values) < len(known):
                where = "" if attribute == "name" else " at the same host"
                raise ConfigError(f"{self._path}: [[nodes]] {attribute}: two nodes have the same{where}")
        return nodes

    def _node(self, table: Any, position: int) -> NodeAddress:
        where = f"{self._path}: [[nodes]] number {position}"
        *expected, optional = [known.name for known in fields(NodeAddress)]
        if not isinstance(table, dict) or sorted(table.keys() - {optional}) != sorted(expected):
            raise ConfigError(f"{where}: must have the keys {', '.join(expected)}, may have {optional}")
        for key in ("name", "host"):
            if not isinstance(table[key], str) or not table[key]:
                raise ConfigError(f"{where}: {key}: must be a non-empty string")
        for key in (port for port in _PORTS if port in table):
            if type(table[key]) is not int or not 0 < table[key] <= PORT_MAX:
                raise ConfigError(f"{where}: {key}: must be a port number, 1 to {PORT_MAX}")
        return NodeAddress(**table)

    def _optional_file(self, section: str, key: str) -> Path | None:
        return None if self._find(section, key) is None else self._existing_file(section, key)

    def _existing_file(self, section: str, key: str) -> Path:
        path = self.path(section, key)
        if not path.is_file():
            raise self._error(section, key, f"{path} is not a file")
        return path

    # --- sources of values

    def refuse_unknown(self) -> None:
        """Raise for the first key in the file or the environment that was not looked up."""
        for section, table in self._document.items():
            if section == "nodes":
                continue
            if section not in self._known:
                raise ConfigError(f"{self._path}: [{section}]: there is no such section")
            for key in table:
                if key not in self._known[section]:
                    raise self._error(section, key, "there is no such key")
        known = {variable_of(section, key) for section, keys in self._known.items() for key in keys}
        sections = tuple(variable_of(section, "") for section in self._known)
        for variable in sorted(self._environ.keys() - known):
            is_of_others = _OF_KUBERNETES.fullmatch(variable) and not variable.startswith(sections)
            if variable.startswith(ENVIRONMENT_PREFIX) and not is_of_others:
                raise ConfigError(f"environment: {variable}: there is no such key")

    def _find(self, section: str, key: str) -> Any:
        self._known.setdefault(section, set()).add(key)
        table = self._document.get(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{self._path}: [{section}]: must be a section")
        return self._environ.get(variable_of(section, key), table.get(key))

    def _required(self, section: str, key: str, default: Any) -> Any:
        value = self._find(section, key)
        if value is None:
            value = default
        if value is None:
            raise self._error(section, key, "is missing")
        return value

    def _number(self, section: str, key: str, default: float) -> int | float:
        value = self._required(section, key, default)
        if self._in_environment(section, key):
            value = _number_in(value)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._error(section, key, "must be a number")
        return value

    def _in_environment(self, section: str, key: str) -> bool:
        return variable_of(section, key) in self._environ

    def _error(self, section: str, key: str, text: str) -> ConfigError:
        if self._in_environment(section, key):
            return ConfigError(f"environment: {variable_of(section, key)}: {text}")
        return ConfigError(f"{self._path}: [{section}] {key}: {text}")


def variable_of(section: str, key: str) -> str:
    """Return the environment variable of a key."""
    return f"{ENVIRONMENT_PREFIX}{section}_{key}".upper()


def _number_in(text: str) -> float | None:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return None


def _is_text_list(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) and item for item in value)
