"""Judges the requests of readers: lease_repeatable and lease_fenced, and lease_settled for whole leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.judge.findings import Cause

if TYPE_CHECKING:
    from chaos.judge.context import Context
    from chaos.judge.event import Event
    from chaos.judge.findings import Findings
    from chaos.judge.leases import LeaseId

OTHER_MESSAGES = Cause(
    "lease_repeatable", "another list", "each read of a lease gives the same messages in the same order"
)
OTHER_NUMBER = Cause(
    "lease_repeatable", "another number of messages", "a read gives as many messages as were taken"
)
OPEN_AND_GONE = Cause(
    "lease_settled", "gone before its end", "a lease can be read until its commit or release"
)
BY_A_STALE_FENCE = Cause(
    "lease_fenced", "changed by a stale fence", "a request with the fence of a former owner is refused"
)


def judge(context: Context, findings: Findings) -> None:
    """Judge the requests of readers."""
    _judge_answers(context, findings)
    _judge_fences(context, findings)


def _judge_answers(context: Context, findings: Findings) -> None:
    """Find reads of a lease with different messages, and refused reads of an open lease."""
    at = context.at
    first: dict[LeaseId, Event] = {}
    taken: dict[LeaseId, int] = {}
    for request in context.leases.requests:
        end, lease = request.end, request.lease
        if end is None or request.op not in ("take_lease", "read_lease"):
            continue
        span = context.leases.span(lease)
        if end.type == "fail":
            if request.op == "read_lease" and span.taken_ns < request.invoke.time_ns:
                findings.checked["lease_settled"] += 1
                if end.time_ns < span.ends_ns:
                    observed = f"taken by {at(span.taken_ns)}, refused at {at(end.time_ns)}: {end.detail}"
                    findings.broken(OPEN_AND_GONE, end, f"{lease}, {observed}")
            continue
        if end.type != "ok" or not end.messages:
            continue
        findings.checked["lease_repeatable"] += 1
        number = taken.setdefault(lease, end.messages)
        if end.messages != number:
            observed = f"{lease} had {number} messages, and {end.messages} at {at(end.time_ns)}"
            findings.broken(OTHER_NUMBER, end, observed)
        elif request.op == "read_lease":
            before = first.setdefault(lease, end)
            if end.digest != before.digest:
                observed = f"{lease} had hash {before.digest} at {at(before.time_ns)}, and {end.digest} at "
                findings.broken(OTHER_MESSAGES, end, observed + at(end.time_ns))


def _judge_fences(context: Context, findings: Findings) -> None:
    """Find requests that were carried out for a former owner."""
    for request, owner in context.leases.stale:
        findings.checked["lease_fenced"] += 1
        if request.end is not None and request.end.type == "ok":
            observed = (
                f"{request.op} with fence {request.fence} at {context.at(request.invoke.time_ns)}; "
                f"{owner.invoke.process} has fence {owner.fence} since {context.at(owner.ended_ns)}"
            )
            findings.broken(BY_A_STALE_FENCE, request.end, observed)
