"""Leases of a run: when each was certainly taken, and when it may have ended.

Invariant: in a history a group never uses the number of a lease again, and each lease is read before it ends. So the
messages of a lease are known, and a lease is known by queue, group and number.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from chaos.judge.clients import FOREVER_NS, NEVER_NS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from chaos.judge.event import Event

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

    wanted_ns: int = FOREVER_NS
    """The first request that may have taken it, or that read it."""
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
    def failed_ns(self) -> int:
        """When it was refused; `FOREVER_NS` if it was not."""
        return self.end.time_ns if self.end is not None and self.end.type == "fail" else FOREVER_NS

    @property
    def ended_ns(self) -> int:
        """When it had certainly been carried out."""
        return self.end.time_ns if self.end is not None and self.end.type == "ok" else FOREVER_NS

    @property
    def fence(self) -> int:
        return self.invoke.fence or 0

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
    """The leases of a run, from the rows of `event.OF_LEASES`.

    A refusal follows from the state after the request. If the group was taken over in between, the request may have
    been carried out before.
    """

    def __init__(self, rows: Iterable[Event]) -> None:
        self.requests = list(_requests(sorted(rows, key=lambda row: row.time_ns)))
        """In the order of time."""
        self.stale = list(_stale(self.requests))
        """Each request with the fence of a former owner, and the request by which the owner at that time came."""
        self._spans: dict[LeaseId, Span] = defaultdict(Span)
        void = {stale for stale, _ in self.stale if stale.has_failed}
        read_ns = _last_reads(self.requests)
        commits: dict[GroupId, list[Request]] = defaultdict(list)
        closes: dict[GroupId, list[Request]] = defaultdict(list)
        for request in self.requests:
            if request in void or request.failed_ns < read_ns.get(request.lease, NEVER_NS):
                continue
            match request.op:
                case "take_lease" | "read_lease" if request.end is not None and request.end.messages:
                    span = self._spans[request.lease]
                    span.wanted_ns = min(span.wanted_ns, request.invoke.time_ns)
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
                span = self._spans[lease]
                for close in closes[group]:
                    if close.ended_ns > span.wanted_ns:
                        _release(span, close)
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


def _last_reads(requests: Iterable[Request]) -> dict[LeaseId, int]:
    """Return when each lease was read last: until then it was open."""
    return {
        request.lease: request.invoke.time_ns
        for request in requests
        if request.op == "read_lease" and request.ended_ns < FOREVER_NS
    }


def _stale(requests: Sequence[Request]) -> Iterator[tuple[Request, Request]]:
    """Yield each request whose fence was stale before it was sent, with the request that opened the group anew."""
    opens = sorted(
        (request for request in requests if request.op == "open_group" and request.ended_ns < FOREVER_NS),
        key=attrgetter("ended_ns"),
    )
    closes: dict[GroupId, list[Request]] = defaultdict(list)
    for request in requests:
        if request.op == "close_group" and not request.has_failed:
            closes[request.group].append(request)
    waiting = iter(opens)
    following = next(waiting, None)
    owners: dict[GroupId, Request] = {}
    for request in requests:
        while following is not None and following.ended_ns < request.invoke.time_ns:
            known = owners.get(following.group)
            if (
                known is None
                or following.fence > known.fence
                or _may_be_closed(known, following.ended_ns, closes[following.group])
            ):
                owners[following.group] = following
            following = next(waiting, None)
        owner = owners.get(request.group)
        if owner is None or request.invoke.fence is None or request.fence >= owner.fence:
            continue
        until_ns = FOREVER_NS if request.end is None else request.end.time_ns
        if not _may_be_closed(owner, until_ns, closes[request.group]):
            yield request, owner


def _may_be_closed(owner: Request, until_ns: int, closes: Iterable[Request]) -> bool:
    """Return whether the group may have ended since it was opened: then a new group may have a lower fence."""
    return any(close.invoke.time_ns < until_ns and close.ended_ns > owner.invoke.time_ns for close in closes)


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
