"""Rules about queues over time: growth, no consumers, slow consumers, dead letters, refused publishes.

A pass every few seconds checks all queues in turn. For each code it keeps the worst queues, and counts the rest.

Invariant: pure. Memory is bounded by the number of queues that have messages or have just lost some. A check of a queue
costs a microsecond or two. An empty queue without changes costs no check.
"""

from __future__ import annotations

from heapq import heappush, heapreplace
from math import inf
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from qq.diagnosis.findings import Finding, queue_subject
from qq.diagnosis.words import hours, ms, number, waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPORTED_MAX = 10
"""Queues reported for each code at most: those with the most messages."""
LASTS_MS = 60_000
"""Milliseconds that a state must last before it is reported."""
GROWN_MIN = 1000
"""Messages by which a queue must have grown to count as growing."""
GROWN_SHARE = 0.2
FALLEN_SHARE = 0.9
"""Share of its peak below which a queue no longer grows."""
STILL_MS = 300_000
"""Milliseconds without a new peak after which a queue no longer grows. Losses of a queue are reported for as long."""
BUSY_SHARE = 0.9
"""Share of the time that messages must have waited for consumers for these to be slow."""
TRAVEL_S = 0.01
TRAVEL_COMMITS = 3
"""A consumer mostly waits for messages to travel if it has each for less than this on average (seconds, or commits).
Its acknowledgement must be committed before the next message leaves.
"""
SMALL_PREFETCH = 10
SILENT_MS = 1_800_000
"""Milliseconds without a command after which a group is silent: it is reported if it holds leases, and it no longer
stands for consumers. It is the default of RabbitMQ's consumer_timeout. A sink with uncommitted messages is reported
after the same time, without a command or without a commit."""


class QueueFacts(NamedTuple):
    """Contents of a queue, and its recent events."""

    number: int
    vhost: str
    name: str
    ready: int
    unacked: int
    consumers: int
    dying: int
    """Dead-lettered messages that wait until a queue can take them."""
    acknowledged: int
    """Total number of acknowledged messages. `waited_ms` is a total, too."""
    waited_ms: int
    """Milliseconds that messages have waited for a consumer with free prefetch."""
    failed: int
    """Messages that were rejected or delivered too often since the last check."""
    refused: int
    """Publishes that were refused since the last check because the queue is full."""
    prefetch: int
    """Largest prefetch of the consumers that messages wait for; 0 for no limit."""
    taken: int
    """Number of messages delivered or fetched, as far as this node has seen."""
    expires_to_exchange: bool
    """Whether messages in the queue expire and then go to a dead-letter exchange."""
    is_leased: bool = False
    """Whether a group of the queue has sent a command within `SILENT_MS`: it stands for consumers."""
    keeps_dead_letters: bool = False
    """Whether the queue has no consumers, and other queues dead-letter messages to it for operators."""

    lacks_credit: bool = False
    """Whether all of its consumers hold no message, and have no credit of their clients: `CreditWatch` reports them."""

    @property
    def messages(self) -> int:
        return self.ready + self.unacked + self.dying


class HeldFacts(NamedTuple):
    """A consumer that has held a message without acknowledging it for long."""

    vhost: str
    queue: str
    tag: str
    node: str
    since_ms: int
    """When its oldest message was delivered, in milliseconds since 1970."""
    timeout_ms: int
    """Milliseconds that it may hold a message; 0 for no limit."""
    unacked: int


class GroupFacts(NamedTuple):
    """A group that holds leases, and has sent no command for long."""

    vhost: str
    queue: str
    group: str
    owner: str
    since_ms: int
    """When its last command was carried out, in milliseconds since 1970."""
    idle_ms: int
    leases: int
    messages: int


class SinkFacts(NamedTuple):
    """A sink with messages that its writer stored long ago and has not committed."""

    vhost: str
    sink: str
    user: str
    since_ms: int
    """When its last command was carried out, or when its oldest message was stored, in milliseconds since 1970."""
    lasts_ms: int
    """Milliseconds since then."""
    attempts: int
    messages: int


class CreditFacts(NamedTuple):
    """A consumer that has neither credit nor a message, although messages wait in its queue."""

    vhost: str
    queue: str
    tag: str
    node: str
    ready: int
    since_ms: int = 0
    """When its credit was first found missing, in milliseconds since 1970."""
    lasts_ms: int = 0
    """Milliseconds since then."""


Holder = TypeVar("Holder", HeldFacts, GroupFacts, SinkFacts, CreditFacts)


class HeldWatch(Generic[Holder]):
    """Finds holders of messages that have kept these for long: consumers, groups, or sinks."""

    def __init__(self, holders: str, finding: Callable[[Holder], Finding]) -> None:
        """`holders` is the plural noun for the holders, and `finding` makes the finding of a holder."""
        self._holders = holders
        self._finding = finding
        self._oldest: list[tuple[int, int, Holder]] = []
        self._count = 0
        self.findings: list[Finding] = []
        """Findings of the last complete pass."""

    def record(self, facts: Holder) -> None:
        """Add a holder that has kept messages for too long to the pass under way."""
        self._count += 1
        row = -facts.since_ms, -self._count, facts
        if len(self._oldest) < REPORTED_MAX:
            heappush(self._oldest, row)
        elif row > self._oldest[0]:
            heapreplace(self._oldest, row)

    def end_pass(self) -> None:
        self.findings = [self._finding(facts) for _, _, facts in sorted(self._oldest, reverse=True)]
        others = self._count - len(self._oldest)
        if others:
            text = f"the same holds for {others:,} more"
            code = self.findings[0].code
            self.findings.append(Finding(code, f"other {self._holders}", text, objects=others))
        self._oldest, self._count = [], 0


def held_by_consumer(facts: HeldFacts) -> Finding:
    subject = f"consumer '{facts.tag}' of {queue_subject(facts.vhost, facts.queue)}"
    held, left = number(facts.unacked, "unacknowledged message"), hours(facts.timeout_ms / 1000)
    text = (
        f"at node {facts.node} it has {held}, the oldest for more than half of the {left} after which its channel is "
        "closed"
    )
    return Finding("unacked-long", subject, text, facts.since_ms, ("queue", facts.vhost, facts.queue))


def held_by_group(facts: GroupFacts) -> Finding:
    subject = f"group '{facts.group}' of {queue_subject(facts.vhost, facts.queue)}"
    held = f"{number(facts.messages, 'message')} in {number(facts.leases, 'open lease')}"
    owner = f"its owner '{facts.owner}'" if facts.owner else "its owner"
    text = f"{owner} has sent no request for {hours(facts.idle_ms / 1000)}, and it has {held}"
    return Finding("group-silent", subject, text, facts.since_ms, ("queue", facts.vhost, facts.queue))


def silent_sink(facts: SinkFacts) -> Finding:
    lasts = hours(facts.lasts_ms / 1000)
    text = f"its user '{facts.user}' has sent no request for {lasts}, and it has {_staged(facts)}"
    return Finding("sink-silent", _sink_subject(facts), text, facts.since_ms, _place(facts))


def growing_sink(facts: SinkFacts) -> Finding:
    text = f"it has {_staged(facts)}, the oldest for {hours(facts.lasts_ms / 1000)}, and its writer goes on"
    return Finding("sink-grows", _sink_subject(facts), text, facts.since_ms, _place(facts))


def _staged(facts: SinkFacts) -> str:
    return f"{number(facts.messages, 'uncommitted message')} in {number(facts.attempts, 'attempt')}"


def _sink_subject(facts: SinkFacts) -> str:
    return f"sink '{facts.sink}' in vhost '{facts.vhost}'"


def _place(facts: SinkFacts) -> tuple[str, str, str]:
    return "sink", facts.vhost, facts.sink


class _History:
    """State of a queue that later passes need."""

    __slots__ = (
        "acknowledged",
        "checked_ms",
        "failed_since",
        "failed_until",
        "failed_window",
        "grows_from",
        "grows_since",
        "lone_since",
        "peak",
        "peak_ms",
        "refused_since",
        "refused_until",
        "slow_since",
        "stuck_since",
        "taken",
        "waited_ms",
    )

    def __init__(self, facts: QueueFacts, now_ms: int) -> None:
        self.checked_ms = now_ms
        self.acknowledged = facts.acknowledged
        self.taken = facts.taken
        self.waited_ms = facts.waited_ms
        self.grows_from = self.peak = facts.messages
        self.grows_since = self.peak_ms = now_ms
        self.lone_since = self.stuck_since = self.slow_since = 0
        """When the state began, in milliseconds since 1970; 0 while the queue is not in that state."""
        self.failed_since = self.failed_until = self.failed_window = 0
        self.refused_since = self.refused_until = 0

    @property
    def matters(self) -> bool:
        """Return whether the state must be kept even if the queue is empty."""
        return bool(self.failed_since or self.refused_since)


class QueueWatch:
    """Finds faults of queues, pass by pass."""

    def __init__(self) -> None:
        self._seen: dict[int, _History] = {}
        self._seen_now: dict[int, _History] = {}
        """Queues of the pass under way, by number."""
        self._worst: dict[str, list[tuple[int, int, Finding]]] = {}
        self._counts: dict[str, int] = {}
        self.commit_s = 0.0
        """Seconds that a recent commit took; 0 if unknown."""
        self.findings: list[Finding] = []
        """Findings of the last complete pass."""

    def knows(self, number: int) -> bool:
        """Return whether the queue with this number needs a check even if it is empty and unchanged."""
        return number in self._seen

    def check(self, facts: QueueFacts, now_ms: int) -> None:
        """Judge a queue. Call it once per queue and pass."""
        seen = self._seen.get(facts.number)
        if seen is None:
            seen = _History(facts, now_ms)
        for code, since_ms, text in _found(seen, facts, now_ms, self.commit_s):
            subject = queue_subject(facts.vhost, facts.name)
            self._add(facts, Finding(code, subject, text, since_ms, ("queue", facts.vhost, facts.name)))
        if facts.messages or seen.matters:
            self._seen_now[facts.number] = seen

    def end_pass(self) -> None:
        """End the pass and publish its findings.

        Queues without a check in the pass are empty or deleted; their state is dropped.
        """
        self._seen, self._seen_now = self._seen_now, {}
        found: list[Finding] = []
        for code, worst in self._worst.items():
            found += [finding for _, _, finding in sorted(worst, reverse=True)]
            others = self._counts[code] - len(worst)
            if others:
                text = f"the same holds for {others:,} more"
                found.append(Finding(code, "other queues", text, objects=others))
        self.findings = found
        self._worst, self._counts = {}, {}

    def _add(self, facts: QueueFacts, finding: Finding) -> None:
        code = finding.code
        self._counts[code] = self._counts.get(code, 0) + 1
        worst = self._worst.setdefault(code, [])
        row = facts.messages, -facts.number, finding
        if len(worst) < REPORTED_MAX:
            heappush(worst, row)
        elif row > worst[0]:
            heapreplace(worst, row)


def _found(seen: _History, facts: QueueFacts, now_ms: int, commit_s: float) -> Iterator[tuple[str, int, str]]:
    """Update the state of a queue; yield (code, begin in ms, text) of each finding."""
    growth = _growth(seen, facts, now_ms)
    explains_growth = facts.keeps_dead_letters
    for code, since_ms, text in _consumers(seen, facts, now_ms, commit_s):
        explains_growth |= code != "prefetch-small"
        yield code, since_ms, f"{text}; {growth}" if growth else text
    if growth and not explains_growth:
        held = f", {facts.unacked:,} of them unacknowledged" if facts.unacked else ""
        yield "queue-grows", seen.grows_since, f"it has {number(facts.messages, 'message')}{held}; {growth}"
    yield from _losses(seen, facts, now_ms)
    seen.checked_ms = now_ms
    seen.acknowledged = facts.acknowledged
    seen.taken = facts.taken
    seen.waited_ms = facts.waited_ms


def _growth(seen: _History, facts: QueueFacts, now_ms: int) -> str | None:
    """Return by how much the queue has grown; None if it does not grow."""
    messages = facts.messages
    if messages > seen.peak:
        seen.peak, seen.peak_ms = messages, now_ms
    elif (
        messages <= seen.grows_from or messages < FALLEN_SHARE * seen.peak or now_ms - seen.peak_ms > STILL_MS
    ):
        seen.grows_from = seen.peak = messages
        seen.grows_since = seen.peak_ms = now_ms
    grown = messages - seen.grows_from
    lasts_ms = now_ms - seen.grows_since
    is_growing = grown >= GROWN_MIN and grown >= GROWN_SHARE * seen.grows_from and lasts_ms >= LASTS_MS
    return f"{grown:,} more than {hours(lasts_ms / 1000)} ago" if is_growing else None


def _consumers(
    seen: _History, facts: QueueFacts, now_ms: int, commit_s: float
) -> Iterator[tuple[str, int, str]]:
    has_readers = facts.consumers > 0 or facts.is_leased
    is_lone = facts.ready > 0 and not has_readers and facts.taken == seen.taken and not _delays(facts)
    seen.lone_since = _since(seen.lone_since, now_ms, is_so=is_lone)
    if _lasts(seen.lone_since, now_ms) and facts.keeps_dead_letters:
        yield (
            "dead-letters-wait",
            seen.lone_since,
            f"{waiting(facts.ready)} in it, and other queues dead-letter to it",
        )
    elif _lasts(seen.lone_since, now_ms):
        yield "no-consumers", seen.lone_since, f"{waiting(facts.ready)} in it, and it has no consumers"
    elapsed_ms = now_ms - seen.checked_ms
    waited_ms = facts.waited_ms - seen.waited_ms
    is_busy = facts.consumers > 0 and not facts.lacks_credit
    is_slow = facts.ready > 0 and is_busy and 0 < BUSY_SHARE * elapsed_ms <= waited_ms
    seen.slow_since = _since(seen.slow_since, now_ms, is_so=is_slow)
    if _lasts(seen.slow_since, now_ms):
        per_s = max(facts.acknowledged - seen.acknowledged, 0) / elapsed_ms * 1000
        yield _slowness(facts, per_s, commit_s, seen.slow_since)


def _delays(facts: QueueFacts) -> bool:
    """Return whether messages only wait in the queue until they expire, as in a ladder of retries.

    If messages were ever taken from the queue, it has lost its consumers instead.
    """
    return facts.expires_to_exchange and not facts.taken


def _since(since_ms: int, now_ms: int, *, is_so: bool) -> int:
    """Return when a state began: `since_ms`, or now if it has just begun, or 0 if it does not hold."""
    return (since_ms or now_ms) if is_so else 0


def _lasts(since_ms: int, now_ms: int) -> bool:
    return since_ms > 0 and now_ms - since_ms >= LASTS_MS


def _slowness(facts: QueueFacts, per_s: float, commit_s: float, since_ms: int) -> tuple[str, int, str]:
    """Explain why waiting messages are not consumed. Little's law gives how long consumers hold a message."""
    whose, wait = number(facts.consumers, "consumer"), waiting(facts.ready)
    held_s = facts.unacked / per_s if per_s else inf
    if held_s < max(TRAVEL_S, TRAVEL_COMMITS * commit_s) and 0 < facts.prefetch <= SMALL_PREFETCH:
        commit = f", and a commit takes {ms(commit_s)}" if commit_s else ""
        text = (
            f"{wait}; with a prefetch of {facts.prefetch}, {whose} had each message for {ms(held_s)}{commit}"
        )
        return "prefetch-small", since_ms, text
    held = f"; unacknowledged: {facts.unacked:,}" if facts.unacked else ""
    text = f"{wait}, and {per_s:,.1f} a second are acknowledged by {whose}{held}"
    return "consumers-slow", since_ms, text


def _losses(seen: _History, facts: QueueFacts, now_ms: int) -> Iterator[tuple[str, int, str]]:
    seen.stuck_since = _since(seen.stuck_since, now_ms, is_so=facts.dying > 0)
    if _lasts(seen.stuck_since, now_ms):
        yield (
            "dead-letters-stuck",
            seen.stuck_since,
            f"{number(facts.dying, 'dead letter')} from it fit in no queue",
        )
    if facts.failed:
        seen.failed_since = seen.failed_since or now_ms
        seen.failed_until = now_ms + STILL_MS
        seen.failed_window += facts.failed
    elif now_ms >= seen.failed_until:
        seen.failed_since = seen.failed_window = 0
    if seen.failed_since:
        text = f"{number(seen.failed_window, 'message')} rejected, or delivered too often"
        yield "dead-letters", seen.failed_since, text
    if facts.refused:
        seen.refused_since = seen.refused_since or now_ms
        seen.refused_until = now_ms + LASTS_MS
    elif now_ms >= seen.refused_until:
        seen.refused_since = 0
    if seen.refused_since:
        yield "publishes-refused", seen.refused_since, "it is full, and rejects published messages"
