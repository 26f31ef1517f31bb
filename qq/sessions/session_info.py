"""What a node knows of its own clients, for operators: data only.

Invariant: to count costs something for each read, write or batch of messages, and nothing for each message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Traffic(NamedTuple):
    """What has gone over a connection's socket."""

    octets_in: int = 0
    reads: int = 0
    octets_out: int = 0
    writes: int = 0
    octets_waiting: int = 0
    """How many octets the client has not taken yet."""


class TlsFacts(NamedTuple):
    """The TLS of a connection."""

    version: str
    """As OpenSSL writes it: "TLSv1.3"."""
    cipher: str
    subject: str | None = None
    """`subject`, `issuer` and `validity` are of the client's certificate; None if it has shown none."""
    issuer: str | None = None
    validity: str | None = None
    """From when to when, in RFC 3339, with " - " between."""


class ConnectionFacts(NamedTuple):
    """A connection, as its node sees it; a protocol tells what it has."""

    host: str = ""
    """`host` and `port` are the address that the client has connected to."""
    port: int = 0
    connected_at_ms: int = 0
    auth_mechanism: str = ""
    frame_max: int = 0
    channel_max: int = 0
    timeout_s: int = 0
    """The interval of heartbeats; 0 for none."""
    is_blocked: bool = False
    """Whether the client waits, as publishers must, because of a limit of publishing, or for others."""
    traffic: Traffic = Traffic()
    tls: TlsFacts | None = None


@dataclass(slots=True)
class SessionCounts:
    """How many messages went which way in a session."""

    published: int = 0
    confirmed: int = 0
    returned: int = 0
    delivered: int = 0
    """Delivered to consumers that acknowledge; those of others are in `delivered_no_ack`."""
    delivered_no_ack: int = 0
    got: int = 0
    got_no_ack: int = 0
    get_empty: int = 0
    redelivered: int = 0
    acknowledged: int = 0


class SessionFacts(NamedTuple):
    """A session, as its node sees it."""

    number: int
    """Its number in its connection: the channel's."""
    confirming: bool = False
    transactional: bool = False
    consumers: int = 0
    unacknowledged: int = 0
    unconfirmed: int = 0
    uncommitted: int = 0
    """Messages of a transaction; `uncommitted_acks` are its acknowledgements."""
    uncommitted_acks: int = 0
    prefetch: int = 0
    prefetch_of_all: int = 0
    """The limit of what all consumers of the session may hold together; 0 for none."""
    counts: SessionCounts = SessionCounts()  # nobody counts in this one
