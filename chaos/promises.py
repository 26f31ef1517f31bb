"""The promises to clients, and the rules that follow from the life of a message in a queue."""

from __future__ import annotations

from typing import Protocol

PROMISES = {
    "lost": "every confirmed message arrives, if its queue was emptied and no client removed the message",
    "phantom": "only published messages arrive",
    "routing": "a message arrives in the queues that it was published to, and in no other queue",
    "causality": "confirms and deliveries follow the publish",
    "resurrected": "purged and deleted messages do not come back",
    "unmarked_duplicate": "a message that arrives again is marked redelivered",
    "dedup_duplicate": "a message with a publisher id arrives once, however often it is published",
    "acknowledged": "a message does not come again on the connection that acknowledged it",
    "two_holders": "a message is at one live consumer at a time",
    "redelivery": "the mark redelivered and the delivery count agree with the deliveries",
    "cancelled": "a consumer gets messages only from its request to its end",
    "order": "the messages of a publisher are delivered in the order in which they were published",
    "delivery_limit": "no message comes back more often than its queue allows",
    "ttl": "a message is delivered as long as it lives, and not later",
    "delay": "a delayed message is not delivered before its time",
    "max_length": "a queue has no more ready messages than its length",
    "priority_ratio": "while both wait, two messages of high priority are delivered for each of normal priority",
    "priority_order": "no message of normal priority is delivered before an older one of high priority",
    "single_active": "a queue with a single active consumer serves one consumer at a time",
    "tx_atomic": "all operations of a committed transaction happen, and no operation of any other transaction",
    "dead_letter": "a dead letter arrives exactly once",
    "x_death": "the headers of a dead letter tell its way, and why it died",
    "lease_repeatable": "a lease has the same messages in the same order whenever it is read",
    "lease_holders": "a message is in one lease at a time, and at no consumer meanwhile",
    "lease_committed": "the messages of a committed lease do not come back",
    "lease_fenced": "a reader whose group was taken over changes no lease of it",
    "lease_settled": "a lease lasts until its commit or release, and released messages arrive",
    "liveness": "after the faults, a message waits no longer than a minute for a consumer that is there",
}
"""Each promise in a sentence."""


class Facts(Protocol):
    """The life of a message in a queue, as its clients have seen it."""

    invokes: int
    """Attempts to publish it there; attempts in neither `oks` nor `fails` have an unknown outcome."""
    oks: int
    """Confirmed attempts."""
    fails: int
    """Attempts that certainly failed."""
    attempt: int
    """Number of the last attempt, as its publisher counts."""
    dedup: int
    """1 if the broker deduplicates the message, else 0."""
    deliveries: int
    unmarked: int
    """Number of first deliveries: neither redelivered nor of a dead letter."""
    dead_arrivals: int
    """Deliveries as a dead letter."""
    acks: int
    rejects: int


def may_be_there(message: Facts) -> bool:
    """Return whether some attempt to publish the message may have succeeded."""
    return message.invokes > message.fails


def copies(message: Facts) -> int:
    """Return how many messages of an id may exist: as many as attempts may have succeeded, or 1 with deduplication."""
    return 1 if message.dedup else message.invokes - message.fails


def is_plain(message: Facts) -> bool:
    """Return whether the message was published once and confirmed: only then is its place in the order known."""
    return message.invokes == 1 and message.oks == 1 and message.attempt == 1


def is_owed(message: Facts) -> bool:
    """Return whether the message certainly was in the queue: it was confirmed, or came as a dead letter."""
    return message.oks > 0 or message.dead_arrivals > 0


def has_disappeared(message: Facts, *, must_be_settled: bool, is_limited: bool) -> bool:
    """Return whether a message disappeared from a drained queue: never seen, or seen and never settled.

    The second case counts where consumers acknowledge (`must_be_settled`) and a returning message never dies
    (`is_limited`). An acknowledgement that was sent may have arrived.
    """
    return message.deliveries == 0 or (must_be_settled and not is_limited and is_unsettled(message))


def is_unsettled(message: Facts) -> bool:
    """Return whether the message was delivered and no consumer has settled it for good."""
    return message.deliveries > 0 and message.acks == 0 and message.rejects == 0


def is_new_too_often(message: Facts) -> bool:
    """Return whether the message has more first deliveries than copies.

    An attempt of unknown outcome may have left a copy.
    """
    return may_be_there(message) and message.unmarked > copies(message)


def may_prove_late(message: Facts) -> bool:
    """Return whether the message has a single copy with a single first delivery, and further deliveries to compare."""
    return may_be_there(message) and copies(message) == 1 and message.unmarked == 1 and message.deliveries > 1


class Arrival(Protocol):
    """A delivery of a message."""

    @property
    def time_ns(self) -> int: ...

    @property
    def connection(self) -> str: ...

    @property
    def connected_ns(self) -> int:
        """When the connection of the consumer was requested."""
        ...


def was_sent_before(other: Arrival, first: Arrival) -> bool:
    """Return whether the delivery `first`, marked as first, was certainly sent after the delivery `other`.

    Deliveries on different connections may be seen in a different order than they were sent. So their times are proof
    only on a single connection, or if the later connection did not exist yet when the earlier delivery was seen.
    """
    is_same = other.connection == first.connection
    return other.time_ns < first.connected_ns or (is_same and other.time_ns < first.time_ns)


def is_comparable(message: Facts) -> bool:
    """Return whether the delivery has a place in the order.

    Returned messages come first, and repeated publishes may be late.
    """
    return is_plain(message) and message.unmarked == 1


def is_overtaken(sequence: int, confirmed_ns: int, *, sequence_before: int, invoked_before_ns: int) -> bool:
    """Return whether the consumer has already seen a message that must be behind this message.

    Such a message was published later on the same channel, or after this message was confirmed. The consumer's highest
    earlier number on that channel, and its latest earlier publish of all, show whether it has seen any.
    """
    return sequence_before > sequence or invoked_before_ns > confirmed_ns
