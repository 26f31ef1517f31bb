"""Rules that a node applies to itself: alarms, delays, resources that run out, clients, certificates.

Invariant: pure. Each node judges itself and sends its findings to the nodes that ask. So every node gives the same
answer.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from qq.diagnosis.findings import Finding
from qq.diagnosis.words import days, hours, ms, number, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SLOW_WRITE_S = 0.1
"""Threshold in seconds: the disk is slow if 1 % of the writes to the log take longer, as in
deploy/prometheus/alerts.yml.
"""
SLOW_WRITE_MEDIAN_S = 0.02
"""Threshold in seconds: the disk is slow if the median write to the log takes longer."""
LATE_LOOP_S = 0.2
"""Threshold in seconds: the node is busy if 1 % of the timers of its event loop are later."""
BUSY_CORE = 0.9
"""Threshold as a share of a core: the node is busy above it, because its event loop cannot use a second core."""
SAMPLES_MIN = 20
"""Minimum number of writes in a minute; a disk with fewer is not judged."""
FULL_SHARE = 0.8
"""Share of file descriptors or connections that counts as nearly used up."""
MEMORY_SHARE = 0.9
FULL_SOON_S = 4 * 3600
"""Seconds within which a disk that fills at the present rate counts as full soon."""
NEAR_LIMIT = 1.25
"""Multiple of the disk limit below which free space is short, because a single large file may use it up."""
FALLING_S = 300
"""Seconds over which free space must be measured before its trend is judged."""
ENDS_SOON_S = 30 * 86400
LOGINS_FAILED_PER_S = 1.0
REPORTED_MAX = 10
"""Clients, limits, shovels or certificates named at most, each."""


class Certificate(NamedTuple):
    """A certificate file, with the end of the certificate in it that ends first."""

    path: str
    ends_s: float | None
    """When it ends, in seconds since 1970; None if the file cannot be read."""
    flaw: str = ""
    """Reason why the file cannot be read."""


class SlowReader(NamedTuple):
    """A client that does not read the messages that are sent to it."""

    name: str
    octets: int
    since_ms: int
    sessions: int = 0
    """Sessions of AMQP 1.0 whose window the client keeps closed, although deliveries wait."""


class ThrottledPublisher(NamedTuple):
    """A channel or link that a limit of publishing holds up."""

    name: str
    connection: str
    limit_name: str
    limit: int
    since_ms: int


class HeldLimit(NamedTuple):
    """A publishing limit that makes publishers wait."""

    kind: str
    """Scope of the limit: "vhost", "user" or "connection"."""
    of: str
    name: str
    limit: int
    publishers: int


class IdleShovel(NamedTuple):
    """A shovel that moves no messages, with the reason."""

    vhost: str
    name: str
    reason: str


class NodeFacts(NamedTuple):
    """Facts that a node knows about itself. Times and rates are of the last minute."""

    name: str
    why_publishers_wait: str | None = None
    """Resource that publishers of this node wait for, in RabbitMQ's words; None if they do not wait."""
    writes: int = 0
    write_median_s: float = 0.0
    write_high_s: float = 0.0
    """Seconds that the slowest hundredth of writes to the log takes at least. `loop_high_s` is that of the loop's
    lateness.
    """
    loop_high_s: float = 0.0
    cores: float = 0.0
    """Cores that the process uses, as a fraction."""
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    disk_free_bytes: int = 0
    disk_free_limit_bytes: int = 0
    disk_change_per_s: float = 0.0
    """Change of the free space, in octets per second."""
    disk_watched_s: float = 0.0
    """Seconds over which that change was measured."""
    files: int = 0
    files_max: int = 0
    connections: int = 0
    connections_max: int = 0
    logins_failed_per_s: float = 0.0
    blocked: int = 0
    """Number of publishing connections that wait because of an alarm."""
    held: Sequence[HeldLimit] = ()
    throttled: Sequence[ThrottledPublisher] = ()
    """The publishers that a limit has held up for longest."""
    slow_readers: Sequence[SlowReader] = ()
    certificates: Sequence[Certificate] = ()
    idle_shovels: Sequence[IdleShovel] = ()
    """Idle shovels, reported by the leader only, because it carries out all shovels."""
    leader_changes: float = 0
    """Number of changes of the leader in the last ten minutes."""


LEADER_CHANGES_MAX = 5


def findings_of_node(facts: NodeFacts, now_s: float) -> Iterator[Finding]:
    """Yield the findings of a node about itself. `now_s` is in seconds since 1970."""
    node = f"node {facts.name}"
    yield from _alarms(facts, node)
    yield from _delays(facts, node)
    yield from _used_up(facts, node)
    yield from _clients(facts, node, now_s)
    yield from _certificates(facts, node, now_s)
    if facts.leader_changes > LEADER_CHANGES_MAX:
        text = (
            f"the leader has changed {facts.leader_changes:g} times in ten minutes, as this node has seen it"
        )
        yield Finding("leader-changes", node, text)


def _alarms(facts: NodeFacts, node: str) -> Iterator[Finding]:
    why = facts.why_publishers_wait or ""
    waiting = f"; connections that wait with publishing: {facts.blocked:,}" if facts.blocked else ""
    if "disk" in why:
        free, limit = size(facts.disk_free_bytes), size(facts.disk_free_limit_bytes)
        who = _who_is_short(is_here=facts.disk_free_bytes < facts.disk_free_limit_bytes)
        text = f"publishers wait: {who} low on disk ({free} free here, limit {limit})"
        yield Finding("disk-alarm", node, text + waiting)
    if "memory" in why:
        used, limit = size(facts.memory_bytes), size(facts.memory_limit_bytes)
        who = _who_is_short(is_here=facts.memory_bytes > facts.memory_limit_bytes)
        text = f"publishers wait: {who} short of memory ({used} of {limit} used here)"
        yield Finding("memory-alarm", node, text + waiting)


def _who_is_short(*, is_here: bool) -> str:
    return "this node is" if is_here else "too many other nodes are"


def _delays(facts: NodeFacts, node: str) -> Iterator[Finding]:
    median_s, high_s = facts.write_median_s, facts.write_high_s
    is_slow = high_s > SLOW_WRITE_S or median_s > SLOW_WRITE_MEDIAN_S
    if facts.writes >= SAMPLES_MIN and is_slow:
        text = (
            f"half of the writes to its log take up to {ms(median_s)}, and the slowest 1 % take {ms(high_s)}"
        )
        yield Finding("disk-slow", node, text)
    if facts.loop_high_s > LATE_LOOP_S or facts.cores > BUSY_CORE:
        text = (
            f"its event loop is late by {ms(facts.loop_high_s)} at times; it uses {facts.cores:.0%} of a core"
        )
        yield Finding("loop-busy", node, text)


def _used_up(facts: NodeFacts, node: str) -> Iterator[Finding]:
    free, limit, falls = facts.disk_free_bytes, facts.disk_free_limit_bytes, -facts.disk_change_per_s
    if "disk" not in (facts.why_publishers_wait or ""):
        is_falling = falls > 0 and facts.disk_watched_s >= FALLING_S
        left_s = max(free - limit, 0) / falls if is_falling else inf
        if left_s < FULL_SOON_S:
            text = (
                f"{size(free)} are free, and publishers wait in {hours(left_s)} if the disk goes on filling"
            )
            yield Finding("disk-full-soon", node, text)
        elif free < NEAR_LIMIT * limit:
            text = f"{size(free)} are free, and publishers wait when there are less than {size(limit)}"
            yield Finding("disk-full-soon", node, text)
    memory, most = facts.memory_bytes, facts.memory_limit_bytes
    if most and "memory" not in (facts.why_publishers_wait or "") and memory > MEMORY_SHARE * most:
        yield Finding(
            "memory-short-soon", node, f"{size(memory)} of memory are in use; the limit is {size(most)}"
        )
    if facts.files_max and facts.files > FULL_SHARE * facts.files_max:
        text = f"{facts.files:,} of {facts.files_max:,} file descriptors are in use"
        yield Finding("descriptors-short", node, text)
    if facts.connections_max and facts.connections > FULL_SHARE * facts.connections_max:
        text = f"{facts.connections:,} of {facts.connections_max:,} connections are open"
        yield Finding("connections-short", node, text)


def _clients(facts: NodeFacts, node: str, now_s: float) -> Iterator[Finding]:
    for each in facts.held[:REPORTED_MAX]:
        text = f"the limit {each.name} ({each.limit:,}) holds {number(each.publishers, 'publisher')} up at {node}"
        yield Finding("publishers-held", f"{each.kind} '{each.of}'", text)
    for each in facts.throttled[:REPORTED_MAX]:
        lasts = hours(max(now_s - each.since_ms / 1000, 0))
        text = f"the limit {each.limit_name} ({each.limit:,}) has held its messages up at {node} for {lasts}"
        subject = f"{each.name} of connection {each.connection}"
        yield Finding("publisher-throttled", subject, text, each.since_ms)
    for each in facts.slow_readers[:REPORTED_MAX]:
        text = f"it does not read {size(each.octets)} that wait for it at {node}"
        if each.sessions:
            closed = number(each.sessions, "session")
            text = f"deliveries wait at {node}, because it keeps the incoming window of {closed} closed"
        yield Finding("client-reads-slowly", f"connection {each.name}", text, each.since_ms)
    for each in facts.idle_shovels[:REPORTED_MAX]:
        subject = f"shovel '{each.name}' in vhost '{each.vhost}'"
        about = ("shovel", each.vhost, each.name)
        yield Finding("shovel-idle", subject, f"it moves no messages: {each.reason}", about=about)
    if facts.logins_failed_per_s > LOGINS_FAILED_PER_S:
        yield Finding("logins-fail", node, f"{facts.logins_failed_per_s:.1f} logins fail each second")


def _certificates(facts: NodeFacts, node: str, now_s: float) -> Iterator[Finding]:
    for path, ends_s, flaw in facts.certificates[:REPORTED_MAX]:
        if ends_s is None:
            yield Finding("certificate-unreadable", f"{path} of {node}", flaw)
        elif ends_s <= now_s:
            text = f"it ended {days(now_s - ends_s)} ago"
            yield Finding("certificate-ended", f"{path} of {node}", text)
        elif ends_s - now_s < ENDS_SOON_S:
            yield Finding("certificate-ends", f"{path} of {node}", f"it ends in {days(ends_s - now_s)}")
