"""Judges transactions: a committed transaction takes effect as a whole, an uncommitted transaction not at all.

Invariant: a message that was published more than once, or in more than a single transaction, is no proof.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from chaos.judge.event import FIELDS, Event
from chaos.judge.findings import Cause, Findings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.judge.context import Context
    from chaos.judge.event import Packed

MISSING = Cause("tx_atomic", "part missing", "all messages of a committed transaction arrive")
LEAKED = Cause("tx_atomic", "part of no commit", "no message of an uncommitted transaction is delivered")
TAKEN_BACK = Cause(
    "tx_atomic",
    "acknowledgement undone",
    "a message acknowledged in a committed transaction does not come back",
)
TAKEN = Cause(
    "tx_atomic",
    "acknowledgement of no commit",
    "a message acknowledged only in a void transaction comes back",
)


class Part(NamedTuple):
    """A publish or acknowledgement in a transaction, and the fate of its message."""

    request: Packed
    outcome: str
    seen: bool
    """Whether the message was delivered anywhere."""
    missing: bool
    """Whether it must have been delivered, and was not."""
    delivery: Packed | None
    """Its first delivery from its queue."""
    deliveries: Sequence[tuple[int, Packed]]
    """Of an acknowledgement: all deliveries, and when their consumers were requested."""
    gone: bool
    """Of an acknowledgement: whether the message disappeared without another settlement."""


_TX = FIELDS.index("tx")


def judge(parts: list[Packed], context: Context, findings: Findings) -> None:
    """Judge the transactions of a bucket, which has all their parts."""
    made = sorted(map(Part._make, parts), key=lambda part: (part.request[_TX], part.request[0]))
    for _, group in groupby(made, key=lambda part: part.request[_TX]):
        findings.checked["tx_atomic"] += 1
        _judge(list(group), context, findings)


_OP = FIELDS.index("op")


def _judge(parts: Sequence[Part], context: Context, findings: Findings) -> None:
    published = [part for part in parts if part.request[_OP] == "publish"]
    acknowledged = [part for part in parts if part.request[_OP] == "ack"]
    outcomes = {part.outcome for part in parts}
    outcome = outcomes.pop() if len(outcomes) == 1 else "unknown"
    seen = [part for part in published if part.seen]
    if outcome == "fail":
        for part in seen:
            if part.delivery is not None:
                delivery = Event._make(part.delivery)
                findings.broken(
                    LEAKED, delivery, f"not committed, and delivered at {context.at(delivery.time_ns)}"
                )
        return
    happened_ns = None
    if outcome == "ok":
        happened_ns = max(part.request[0] for part in parts)
    elif deliveries := [part.delivery[0] for part in seen if part.delivery is not None]:
        happened_ns = min(deliveries)
    missing = [part for part in published if part.missing]
    if outcome == "ok" or seen:
        for part in missing:
            observed = f"{len(seen)} of {len(published)} messages arrived; this is missing"
            findings.broken(MISSING, Event._make(part.request), observed)
    elif missing:
        for part in acknowledged:
            if part.gone:
                observed = "no message of its transaction arrived, and the message is gone"
                findings.broken(TAKEN, Event._make(part.request), observed)
    if happened_ns is not None:
        for part in acknowledged:
            back = [packed for requested_ns, packed in part.deliveries if requested_ns > happened_ns]
            for packed in back[:1]:
                row = Event._make(packed)
                observed = f"committed by {context.at(happened_ns)}, delivered at {context.at(row.time_ns)}"
                findings.broken(TAKEN_BACK, row, observed)
