"""What is promised to clients, and the rules of it that are told from the life of one message in one queue.

Invariant: a rule is made of comparisons, arithmetic, `&` and `|`, and of nothing else. So the facts may be numbers, and
the rule tells of one message; or columns of Spark, and the same rule tells of all.
"""

from __future__ import annotations

from typing import Any, Protocol

PROMISES = {
    "lost": "every message that was confirmed arrives, if its queue was emptied and nobody removed it",
    "phantom": "only what was published arrives",
    "resurrected": "what was purged or deleted does not come back",
    "unmarked_duplicate": "what arrives again is marked redelivered",
    "dedup_duplicate": "what is published with a publisher id arrives once, however often it is published",
    "order": "the messages of a publisher are delivered in the order in which they were published",
    "delivery_limit": "no message comes back more often than its queue allows",
    "priority_ratio": "while both wait, two messages of high priority are delivered for each normal one",
    "single_active": "a queue with a single active consumer serves one consumer at a time",
    "tx_atomic": "of a transaction that was committed everything happens, of any other nothing",
    "dead_letter": "a dead letter arrives exactly once",
}
"""What each promise says, in a sentence."""

Fact = Any
"""A number or truth value, or a column of such."""


class Facts(Protocol):
    """The life of a message in one queue, as its clients have seen it."""

    invokes: Fact
    """Attempts to publish it there. Those that are neither among `oks` nor `fails` have an unknown outcome."""
    oks: Fact
    """Attempts that were confirmed."""
    fails: Fact
    """Attempts that certainly failed."""
    attempt: Fact
    """Number of the last attempt, as its publisher counts."""
    dedup: Fact
    """1 if the broker was told to deduplicate the message, else 0."""
    confirmed_ns: Fact
    sequence: Fact
    """The number of the message among those of its publisher."""
    deliveries: Fact
    unmarked: Fact
    """How many first deliveries there were: neither redelivered nor of a dead letter."""
    dead_arrivals: Fact
    """Deliveries as a dead letter."""
    acks: Fact
    rejects: Fact


def may_be_there(message: Facts) -> Fact:
    """Whether the message was published and not every attempt has certainly failed."""
    return message.invokes > message.fails


def copies(message: Facts) -> Fact:
    """How many messages of an id there may be: one for each attempt that may have succeeded, or one at all."""
    return message.dedup + (1 - message.dedup) * (message.invokes - message.fails)


def is_plain(message: Facts) -> Fact:
    """Whether the message was published once and confirmed: only then is its place in the order known."""
    return (message.invokes == 1) & (message.oks == 1) & (message.attempt == 1)


def is_owed(message: Facts) -> Fact:
    """Whether the message certainly was in the queue: it was confirmed, or came as a dead letter."""
    return (message.oks > 0) | (message.dead_arrivals > 0)


def is_gone(message: Facts, must_be_settled: Fact, is_limited: Fact) -> Fact:
    """Whether it is gone, though its queue was emptied: never seen, or seen and taken by nobody for good.

    The latter means something where consumers acknowledge (`must_be_settled`) and nothing dies of coming back too often
    (`is_limited`). An acknowledgement that was sent may have arrived.
    """
    return (message.deliveries == 0) | (
        must_be_settled & (is_limited == False) & is_unsettled(message)  # noqa: E712 -- columns have no `not`
    )


def is_unsettled(message: Facts) -> Fact:
    """Whether the message was delivered and no consumer has settled it for good."""
    return (message.deliveries > 0) & (message.acks == 0) & (message.rejects == 0)


def is_phantom(message: Facts) -> Fact:
    """Whether the message was delivered, though nobody published it there or each publish of it certainly failed."""
    return (message.deliveries > 0) & (message.invokes == message.fails)


def is_new_too_often(message: Facts) -> Fact:
    """Whether the message has more first deliveries than copies: an attempt of unknown outcome may have left a copy."""
    return may_be_there(message) & (message.unmarked > copies(message))


def may_prove_late(message: Facts) -> Fact:
    """Whether the message has one copy with one first delivery, and there are others to compare it with."""
    return may_be_there(message) & (copies(message) == 1) & (message.unmarked == 1) & (message.deliveries > 1)


class Arrival(Protocol):
    """A delivery of a message."""

    time_ns: Fact
    connection: Fact
    connected_ns: Fact
    """When the connection of the consumer was asked for."""


def was_sent_before(other: Arrival, first: Arrival) -> Fact:
    """Whether what says that it is the first delivery was certainly sent after another one.

    Deliveries on different connections may be seen in another order than they were sent. So their times prove something
    only on one connection, or if the connection of one did not exist yet when the other was seen.
    """
    is_same = other.connection == first.connection
    return (other.time_ns < first.connected_ns) | (is_same & (other.time_ns < first.time_ns))


def is_comparable(message: Facts) -> Fact:
    """Whether the delivery has a place in the order: returned messages come first, repeated ones may come late."""
    return is_plain(message) & (message.unmarked == 1)


def is_overtaken(message: Facts, sequence_before: Fact, invoked_before_ns: Fact) -> Fact:
    """Whether its consumer has seen before what must be behind it.

    That was published later on the same channel, or after this one was confirmed: of what the consumer has seen before,
    the highest number on that channel, and the latest publish of all, tell whether there is any.
    """
    return (sequence_before > message.sequence) | (invoked_before_ns > message.confirmed_ns)
