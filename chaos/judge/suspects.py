"""Judges deliveries that depend on which connections were alive: two_holders, leases, and redelivery without a reason.

A session of the broker is registered once and never comes back. So a connection that got a message published at some
time, or an answer to a request of that time, was alive all the time before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from chaos.judge.clients import FOREVER_NS, NEVER_NS
from chaos.judge.event import Event
from chaos.judge.findings import Cause, Findings
from chaos.judge.rules.deaths import TWICE
from chaos.judge.rules.leases import AT_A_CONSUMER, DELIVERED_AGAIN
from chaos.judge.rules.times import PATIENCE_NS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from chaos.judge.event import Packed
    from chaos.judge.streams import Knowledge

TWO_HOLDERS = Cause(
    "two_holders", "two live consumers", "a message that a consumer holds goes to no other consumer"
)
NO_REASON = Cause(
    "redelivery", "more than its deliveries", "a message comes again only if a delivery was returned"
)

_LEASED = {"leased": AT_A_CONSUMER, "committed": DELIVERED_AGAIN}


class Suspect(NamedTuple):
    kind: str
    """count: a delivery with a higher count than the deliveries before it; held: a second holder; twice: a dead letter
    at two consumers with the same count; leased, committed: a delivery of a message that was in a lease."""
    delivery: Packed
    since_ns: int
    """Of a count: when the message was published; of a holder: when the first holder got it; of a lease: when it was
    taken."""
    unexplained: int
    """Deliveries that no consumer has shown."""
    names: Sequence[str]
    """Of a count: the queues on the message's way; of a holder: both connections; of a lease: the connection, and what
    was observed."""


def judge(suspects: Iterable[Packed], known: Knowledge, findings: Findings) -> None:
    at = known.context.at
    for packed in suspects:
        suspect = Suspect._make(packed)
        row = Event._make(suspect.delivery)
        if suspect.kind in _LEASED:
            alive_ns = known.alive_ns.get(suspect.names[0], NEVER_NS)
            if alive_ns > suspect.since_ns:
                observed = f"{suspect.names[1]}; {suspect.names[0]} was alive at {at(alive_ns)}"
                findings.broken(_LEASED[suspect.kind], row, observed)
            continue
        if suspect.kind != "count":
            cause = TWO_HOLDERS if suspect.kind == "held" else TWICE
            alive_ns = min(known.alive_ns.get(name, NEVER_NS) for name in suspect.names)
            if alive_ns > row.time_ns:
                observed = (
                    f"delivered at {at(suspect.since_ns)} to {suspect.names[0]}, which did not return it, and at "
                    f"{at(row.time_ns)} to {suspect.names[1]}; both were alive at {at(alive_ns)}"
                )
                findings.broken(cause, row, observed)
            continue
        possible = sum(1 for _ in zip(range(suspect.unexplained), _unseen(suspect, row, known), strict=False))
        if possible < suspect.unexplained:
            observed = (
                f"redelivered with a count of {row.delivery_count or 0}; {suspect.unexplained} more than the "
                f"deliveries before, and {possible} consumers may have had it unseen"
            )
            findings.broken(NO_REASON, row, observed)


def _unseen(suspect: Suspect, row: Event, known: Knowledge) -> Iterator[str]:
    """Yield consumers and connections that may have got the message and returned it without showing it."""
    clients = known.context.clients
    for queue in suspect.names:
        consuming: set[str] = set()
        for consumer in clients.consuming[queue]:
            consuming.add(consumer[1] or "")
            requests = clients.consumers[consumer]
            if requests.requests_ns[0] > row.time_ns:
                continue
            # A client library returns what comes while its consumer is being cancelled.
            is_cancelled = (requests.cancelling_ns or FOREVER_NS) < row.time_ns and (
                requests.gone_ns or FOREVER_NS
            ) > suspect.since_ns
            if is_cancelled or _may_have_died(consumer[1] or "", suspect, row, known):
                yield consumer[0]
        for connection in clients.taking[queue]:
            if connection not in consuming and _may_have_died(connection, suspect, row, known):
                yield connection


def _may_have_died(connection: str, suspect: Suspect, row: Event, known: Knowledge) -> bool:
    """Return whether the connection may have been lost with the message: the cluster notices it late."""
    clients = known.context.clients
    return (
        clients.connected_ns.get(connection, NEVER_NS) < row.time_ns
        and clients.closed_ns.get(connection, FOREVER_NS) + PATIENCE_NS > suspect.since_ns
        and known.alive_ns.get(connection, NEVER_NS) < row.time_ns
    )
