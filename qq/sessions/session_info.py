"""Data about a node's own connections and sessions, for operators.

Invariant: counting costs time for each read, write or batch of messages, but not for each message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Traffic(NamedTuple):
    """Octets and calls on a connection's socket."""

    octets_in: int = 0
    reads: int = 0
    octets_out: int = 0
    writes: int = 0
    octets_waiting: int = 0
    """Octets that are written and that the client has not taken yet."""


class TlsFacts(NamedTuple):
    """The TLS parameters of a connection."""

    version: str
    """The protocol version in OpenSSL's spelling: "TLSv1.3"."""
    cipher: str
    subject: str | None = None
    """`subject`, `issuer` and `validity` describe the client's certificate; None if the client has presented no
    certificate."""
    issuer: str | None = None
    validity: str | None = None
    """The period of validity: two times in RFC 3339, with " - " between."""


class ClosedWindows(NamedTuple):
    """Sessions of an AMQP 1.0 client whose deliveries wait, because it keeps their windows closed."""

    sessions: int = 0
    sent: int = 0
    """Transfers that were sent in these sessions, ever."""


class ConnectionFacts(NamedTuple):
    """A connection, as its node sees it. A protocol fills in the fields that it knows."""

    host: str = ""
    """`host` and `port` are the node's address that the client has connected to."""
    port: int = 0
    connected_at_ms: int = 0
    auth_mechanism: str = ""
    frame_max: int = 0
    channel_max: int = 0
    timeout_s: int = 0
    """The heartbeat interval in seconds; 0 for none."""
    is_blocked: bool = False
    """Whether the client must wait because of an alarm, a limit of publishing, or other clients' messages."""
    traffic: Traffic = Traffic()
    tls: TlsFacts | None = None
    container_id: str = ""
    """The name that an AMQP 1.0 client gives itself."""
    sessions: int | None = None
    """The number of sessions of an AMQP 1.0 client, and of their links; None for AMQP 0-9-1."""
    links: int | None = None
    closed_windows: ClosedWindows = ClosedWindows()


@dataclass(slots=True)
class SessionCounts:
    """Messages of a session, counted by kind."""

    published: int = 0
    confirmed: int = 0
    returned: int = 0
    delivered: int = 0
    """Deliveries to consumers that acknowledge. Deliveries without acknowledgement are in `delivered_no_ack`."""
    delivered_no_ack: int = 0
    got: int = 0
    got_no_ack: int = 0
    get_empty: int = 0
    redelivered: int = 0
    acknowledged: int = 0


class LinkFacts(NamedTuple):
    """A link of AMQP 1.0."""

    link_name: str
    link_role: str
    """"sender" if the client publishes, "receiver" if it consumes."""
    link_address: str
    """The address of a queue or an exchange; empty if each message has its own."""
    link_credit: int
    """Messages that may be sent on the link until there is more credit."""
    link_session: int
    """The channel number of the link's session."""


class IncomingLink(NamedTuple):
    """A link of AMQP 1.0 on which a client publishes, or sends requests to the management node."""

    handle: int
    link_name: str
    target_address: str | None
    """None if each message has an address."""
    snd_settle_mode: str
    max_message_size: int
    """Octets."""
    delivery_count: int
    credit: int
    unconfirmed_messages: int


class OutgoingLink(NamedTuple):
    """A link of AMQP 1.0 on which a client consumes, or receives answers of the management node."""

    handle: int
    link_name: str
    source_address: str
    queue_name: str
    """Empty if the messages come from no queue."""
    send_settled: bool
    max_message_size: int | str
    """Octets, or "unlimited"."""
    delivery_count: int
    credit: int
    unsettled_deliveries: int


class LinkSessionFacts(NamedTuple):
    """A session of AMQP 1.0 with its links. Windows are numbers of transfers."""

    channel_number: int
    handle_max: int
    next_incoming_id: int
    incoming_window: int
    next_outgoing_id: int
    remote_incoming_window: int
    remote_outgoing_window: int
    outgoing_unsettled_deliveries: int
    incoming_links: Sequence[IncomingLink]
    outgoing_links: Sequence[OutgoingLink]


class SessionFacts(NamedTuple):
    """A session, as its node sees it."""

    number: int
    """The session's number in its connection: the channel number, or a number of a link of AMQP 1.0."""
    confirming: bool = False
    transactional: bool = False
    consumers: int = 0
    unacknowledged: int = 0
    unconfirmed: int = 0
    uncommitted: int = 0
    """Messages in the open transaction; `uncommitted_acks` are its acknowledgements."""
    uncommitted_acks: int = 0
    prefetch: int = 0
    prefetch_of_all: int = 0
    """The prefetch limit of all consumers of the session together, in messages; 0 for none."""
    counts: SessionCounts = SessionCounts()  # a default that is never counted in
    link: LinkFacts | None = None
    """The link of AMQP 1.0 that the session is for."""
