"""The promises to clients, and the rules that follow from the life of a message in a queue.

Invariant: a rule consists of comparisons, arithmetic, `&` and `|` only. So the facts may be numbers, and the rule
judges a single message; or columns of Spark, and the same rule judges all messages.
"""

from __future__ import annotations

from typing import Any, Protocol

PROMISES = {
    "lost": "every confirmed message arrives, if its queue was emptied and no client removed the message",
    "phantom": "only published messages arrive",
    "resurrected": "purged and deleted messages do not come back",
    "unmarked_duplicate": "a message that arrives again is marked redelivered",
    "dedup_duplicate": "a message with a publisher id arrives once, however often it is published",
    "order": "the messages of a publisher are delivered in the order in which they were published",
    "delivery_limit": "no message comes back more often than its queue allows",
    "priority_ratio": "while both wait, two messages of high priority are delivered for each of normal priority",
    "single_active": "a queue with a single active consumer serves one consumer at a time",
    "tx_atomic": "all operations of a committed transaction happen, and no operation of any other transaction",
    "dead_letter": "a dead letter arrives exactly once",
}
"""Each promise in a sentence."""

Fact = Any
"""A number or truth value, or a column of these."""


class Facts(Protocol):
    """The life of a message in a queue, as its clients have seen it."""

    invokes: Fact
    """Attempts to publish it there; attempts in neither `oks` nor `fails` have an unknown outcome."""
    oks: Fact
    """Confirmed attempts."""
    fails: Fact
    """Attempts that certainly failed."""
    attempt: Fact
    """Number of the last attempt, as its publisher counts."""
    dedup: Fact
    """1 if the broker deduplicates the message, else 0."""
    confirmed_ns: Fact
    sequence: Fact
    """The message's sequence number, counted by its publisher."""
    deliveries: Fact
    unmarked: Fact
    """Number of first deliveries: neither redelivered nor of a dead letter."""
    dead_arrivals: Fact
    """Deliveries as a dead letter."""
    acks: Fact
    rejects: Fact


def may_be_there(message: Facts) -> Fact:
    """Return whether some attempt to publish the message may have succeeded."""
    return message.invokes > message.fails


def copies(message: Facts) -> Fact:
    """Return how many messages of an id may exist: as many as attempts may have succeeded, or 1 with deduplication."""
    return message.dedup + (1 - message.dedup) * (message.invokes - message.fails)


def is_plain(message: Facts) -> Fact:
    """Return whether the message was published once and confirmed: only then is its place in the order known."""
    return (message.invokes == 1) & (message.oks == 1) & (message.attempt == 1)


def is_owed(message: Facts) -> Fact:
    """Return whether the message certainly was in the queue: it was confirmed, or came as a dead letter."""
    return (message.oks > 0) | (message.dead_arrivals > 0)


def has_disappeared(message: Facts, must_be_settled: Fact, is_limited: Fact) -> Fact:
    """Return whether a message disappeared from a drained queue: never seen, or seen and never settled.

    The second case counts where consumers acknowledge (`must_be_settled`) and a returning message never dies
    (`is_limited`). An acknowledgement that was sent may have arrived.
    """
    return (message.deliveries == 0) | (
        must_be_settled & (is_limited == False) & is_unsettled(message)  # noqa: E712 -- columns have no `not`
    )


def is_unsettled(message: Facts) -> Fact:
    """Return whether the message was delivered and no consumer has settled it for good."""
    return (message.deliveries > 0) & (message.acks == 0) & (message.rejects == 0)


def is_phantom(message: Facts) -> Fact:
    """Return whether the message was delivered without any publish there, or each publish certainly failed."""
    return (message.deliveries > 0) & (message.invokes == message.fails)


def is_new_too_often(message: Facts) -> Fact:
    """Return whether the message has more first deliveries than copies.

    An attempt of unknown outcome may have left a copy.
    """
    return may_be_there(message) & (message.unmarked > copies(message))


def may_prove_late(message: Facts) -> Fact:
    """Return whether the message has a single copy with a single first delivery, and further deliveries to compare."""
    return may_be_there(message) & (copies(message) == 1) & (message.unmarked == 1) & (message.deliveries > 1)


class Arrival(Protocol):
    """A delivery of a message."""

    time_ns: Fact
    connection: Fact
    connected_ns: Fact
    """When the connection of the consumer was requested."""


def was_sent_before(other: Arrival, first: Arrival) -> Fact:
    """Return whether the delivery `first`, marked as first, was certainly sent after the delivery `other`.

    Deliveries on different connections may be seen in a different order than they were sent. So their times are proof
    only on a single connection, or if the later connection did not exist yet when the earlier delivery was seen.
    """
    is_same = other.connection == first.connection
    return (other.time_ns < first.connected_ns) | (is_same & (other.time_ns < first.time_ns))


def is_comparable(message: Facts) -> Fact:
    """Return whether the delivery has a place in the order.

    Returned messages come first, and repeated publishes may be late.
    """
    return is_plain(message) & (message.unmarked == 1)


def is_overtaken(message: Facts, sequence_before: Fact, invoked_before_ns: Fact) -> Fact:
    """Return whether the consumer has already seen a message that must be behind this message.

    Such a message was published later on the same channel, or after this message was confirmed. The consumer's highest
    earlier number on that channel, and its latest earlier publish of all, show whether it has seen any.
    """
    return (sequence_before > message.sequence) | (invoked_before_ns > message.confirmed_ns)
