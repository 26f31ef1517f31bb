"""Leases of a run: when each was certainly taken, and when it may have ended; and the promises about whole leases.

Invariant: in a history a group never uses the number of a lease again, and each lease is read before it ends. So the
messages of a lease are known, and a lease is known by queue, group and number.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from chaos.judge.clients import FOREVER_NS
from chaos.judge.findings import Cause

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from chaos.judge.context import Context
    from chaos.judge.event import Event
    from chaos.judge.findings import Findings

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

GroupId = tuple[str, str]
"""Queue and name."""


class LeaseId(NamedTuple):
    queue: str
    group: str
    number: int

    def __str__(self) -> str:
        return f"lease {self.number} of group {self.group}"


@dataclass(slots=True)
class Span:
    """The time of a lease, as far as it is certain."""

    taken_ns: int = FOREVER_NS
    """When it had been taken."""
    commit_ns: int = FOREVER_NS
    """The first request that may have committed it."""
    committed_ns: int = FOREVER_NS
    """The first answer to such a request."""
    release_ns: int = FOREVER_NS
    """The first request that may have released it."""
    released_ns: int = FOREVER_NS
    """The first answer to such a request."""

    @property
    def is_committed(self) -> bool:
        """Whether its messages were certainly committed."""
        return self.committed_ns < self.release_ns

    @property
    def is_released(self) -> bool:
        """Whether its messages certainly returned."""
        return self.released_ns < FOREVER_NS == self.commit_ns

    @property
    def ends_ns(self) -> int:
        """Until when it was certainly open."""
        return min(self.commit_ns, self.release_ns)


UNKNOWN = Span()
"""The span of a lease whose requests the history lacks."""


class Request(NamedTuple):
    """A request of a reader, and its answer if there was any."""

    invoke: Event
    end: Event | None

    @property
    def op(self) -> str:
        return self.invoke.op

    @property
    def has_failed(self) -> bool:
        return self.end is not None and self.end.type == "fail"

    @property
    def ended_ns(self) -> int:
        """When it had certainly been carried out."""
        return self.end.time_ns if self.end is not None and self.end.type == "ok" else FOREVER_NS

    @property
    def group(self) -> GroupId:
        return self.invoke.queue or "", self.invoke.group or ""

    @property
    def lease(self) -> LeaseId:
        return lease_of(self.invoke)


def lease_of(row: Event) -> LeaseId:
    """Return the lease of a request, or of a leased message."""
    return LeaseId(row.queue or "", row.group or "", row.lease or 0)


class Leases:
    """The leases of a run, from the rows of `event.OF_LEASES`."""

    def __init__(self, rows: Iterable[Event]) -> None:
        self.requests = list(_requests(sorted(rows, key=lambda row: row.time_ns)))
        """In the order of time."""
        self._spans: dict[LeaseId, Span] = defaultdict(Span)
        commits: dict[GroupId, list[Request]] = defaultdict(list)
        closes: dict[GroupId, list[Request]] = defaultdict(list)
        for request in self.requests:
            if request.has_failed:
                continue
            match request.op:
                case "take_lease" | "read_lease" if request.end is not None and request.end.messages:
                    span = self._spans[request.lease]
                    span.taken_ns = min(span.taken_ns, request.ended_ns)
                case "release_lease":
                    _release(self._spans[request.lease], request)
                case "commit_leases":
                    commits[request.group].append(request)
                case "close_group":
                    closes[request.group].append(request)
                case _:
                    pass
        by_group: dict[GroupId, list[LeaseId]] = defaultdict(list)
        for lease in sorted(self._spans, reverse=True):
            by_group[lease.queue, lease.group].append(lease)
        for group, leases in by_group.items():
            for lease in leases:
                for close in closes[group]:
                    _release(self._spans[lease], close)
            self._commit(leases, sorted(commits[group], key=lambda request: request.lease, reverse=True))

    def _commit(self, leases: Iterable[LeaseId], commits: Iterable[Request]) -> None:
        """Apply the commits of a group to its leases; both begin with the highest number."""
        waiting = iter(commits)
        following = next(waiting, None)
        commit_ns = committed_ns = FOREVER_NS
        for lease in leases:
            while following is not None and following.lease.number >= lease.number:
                commit_ns = min(commit_ns, following.invoke.time_ns)
                committed_ns = min(committed_ns, following.ended_ns)
                following = next(waiting, None)
            span = self._spans[lease]
            # A commit leaves out a lease that was released before.
            if commit_ns < span.released_ns:
                span.commit_ns, span.committed_ns = commit_ns, committed_ns

    def span(self, lease: LeaseId) -> Span:
        return self._spans.get(lease, UNKNOWN)


def _release(span: Span, request: Request) -> None:
    span.release_ns = min(span.release_ns, request.invoke.time_ns)
    span.released_ns = min(span.released_ns, request.ended_ns)


def _requests(rows: Iterable[Event]) -> Iterator[Request]:
    invokes: dict[tuple[str, int], Event] = {}
    ends: dict[tuple[str, int], Event] = {}
    for row in rows:
        (invokes if row.type == "invoke" else ends).setdefault((row.process, row.call), row)
    for key, invoke in invokes.items():
        yield Request(invoke, ends.get(key))


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
    """Find requests that were carried out for a former owner: a higher fence was in force before they were sent."""
    requests = context.leases.requests
    opens = sorted(
        (request for request in requests if request.op == "open_group" and request.ended_ns < FOREVER_NS),
        key=attrgetter("ended_ns"),
    )
    waiting = iter(opens)
    following = next(waiting, None)
    highest: dict[GroupId, Request] = {}
    for request in requests:
        while following is not None and following.ended_ns < request.invoke.time_ns:
            known = highest.get(following.group)
            if known is None or (following.invoke.fence or 0) > (known.invoke.fence or 0):
                highest[following.group] = following
            following = next(waiting, None)
        owner = highest.get(request.group)
        fence = request.invoke.fence
        if owner is None or fence is None or fence >= (owner.invoke.fence or 0):
            continue
        findings.checked["lease_fenced"] += 1
        if request.ended_ns < FOREVER_NS and request.end is not None:
            observed = (
                f"{request.op} with fence {fence} at {context.at(request.invoke.time_ns)}; {owner.invoke.process} "
                f"has fence {owner.invoke.fence} since {context.at(owner.ended_ns)}"
            )
            findings.broken(BY_A_STALE_FENCE, request.end, observed)
