"""Findings about queues over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from qq.diagnosis.queue_watch import (
    REPORTED_MAX,
    GroupFacts,
    HeldFacts,
    HeldWatch,
    QueueFacts,
    QueueWatch,
    SinkFacts,
    growing_sink,
    held_by_consumer,
    held_by_group,
    silent_sink,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.diagnosis.findings import Finding

PASS_MS = 5000
FACTS = QueueFacts(
    number=7,
    vhost="/",
    name="q",
    ready=0,
    unacked=0,
    consumers=1,
    dying=0,
    acknowledged=0,
    waited_ms=0,
    failed=0,
    refused=0,
    prefetch=0,
    taken=0,
    expires_to_exchange=False,
)


class Watched:
    """A queue that is looked at each five seconds."""

    def __init__(self, commit_s: float = 0.0) -> None:
        self.watch = QueueWatch()
        self.watch.commit_s = commit_s
        self.now_ms = 1_000_000
        self.began_ms = self.now_ms

    def check(self, *queues: QueueFacts) -> list[str]:
        """Look once; returns the codes."""
        for facts in queues:
            self.watch.check(facts, self.now_ms)
        self.watch.end_pass()
        self.now_ms += PASS_MS
        return [each.code for each in self.watch.findings]

    def be(self, passes: int = 20, **facts: int) -> list[str]:
        """Repeat these facts for a while; return the last findings."""
        return [self.check(FACTS._replace(**facts)) for _ in range(passes)][-1]

    @property
    def since_s(self) -> list[float | None]:
        return [
            None if each.since_ms is None else (each.since_ms - self.began_ms) / 1000
            for each in self.watch.findings
        ]

    @property
    def texts(self) -> list[str]:
        return [each.text for each in self.watch.findings]


def test_growing_queue_is_reported_after_a_minute_with_its_start() -> None:
    queue = Watched()
    queue.be(4, ready=500)
    for number in range(1, 12):
        assert queue.check(FACTS._replace(ready=500 + 500 * number)) == [], number
    assert queue.check(FACTS._replace(ready=6500)) == ["queue-grows"]
    assert queue.texts == ["it has 6,500 messages; 6,000 more than 1 minute ago"]
    assert queue.since_s == [15.0]  # the last time at which it had no more than 500
    assert queue.watch.findings[0].subject == "queue 'q' in vhost '/'"


def test_a_queue_that_falls_or_stays_grows_no_more() -> None:
    queue = Watched()
    for number in range(20):
        queue.check(FACTS._replace(ready=1000 * number))
    assert queue.check(FACTS._replace(ready=19_000)) == ["queue-grows"]
    assert queue.check(FACTS._replace(ready=17_000)) == []
    assert queue.be(20, ready=17_000) == []  # it begins anew from there
    still = Watched()
    for number in range(20):
        still.check(FACTS._replace(ready=1000 * number))
    assert still.be(59, ready=19_000) == ["queue-grows"]
    assert still.be(3, ready=19_000) == []


def test_unacked_messages_count_as_growth() -> None:
    queue = Watched()
    for number in range(13):
        codes = queue.check(FACTS._replace(ready=10, unacked=300 * number))
    assert codes == ["queue-grows"]
    assert queue.texts == [
        "it has 3,610 messages, 3,600 of them unacknowledged; 3,600 more than 1 minute ago"
    ]
    assert queue.be(1, ready=10) == []


def test_a_large_queue_that_grows_little_does_not_grow() -> None:
    queue = Watched()
    for number in range(100):
        codes = queue.check(FACTS._replace(ready=10**6 + 1000 * number))
    assert codes == []


def test_queue_without_consumers_is_reported_after_a_minute() -> None:
    queue = Watched()
    assert queue.be(12, ready=3, consumers=0) == []
    assert queue.be(1, ready=3, consumers=0) == ["no-consumers"]
    assert (queue.texts, queue.since_s) == (["3 messages wait in it, and it has no consumers"], [0.0])
    assert queue.be(1, ready=3, consumers=1) == []
    assert queue.be(20, ready=0, consumers=0) == []


def test_growing_queue_without_consumers_is_reported_once() -> None:
    queue = Watched()
    for number in range(14):
        codes = queue.check(FACTS._replace(ready=500 * (number + 1), consumers=0))
    assert codes == ["no-consumers"]
    assert queue.texts == [
        "7,000 messages wait in it, and it has no consumers; 6,500 more than 1.1 minutes ago"
    ]


def test_growing_queue_with_slow_consumers_is_reported_once() -> None:
    queue = Watched()
    for number in range(15):
        state = FACTS._replace(ready=500 * (number + 1), acknowledged=50 * number, unacked=100, prefetch=100)
        codes = queue.check(state._replace(waited_ms=PASS_MS * number))
    assert codes == ["consumers-slow"]
    assert queue.texts[0].endswith("; 7,000 more than 1.2 minutes ago")


def test_queue_that_keeps_dead_letters_needs_no_consumers() -> None:
    queue, kept = Watched(), {"consumers": 0, "keeps_dead_letters": 1}
    assert queue.be(12, ready=3, **kept) == []
    assert queue.be(1, ready=3, **kept) == ["dead-letters-wait"]
    assert queue.texts == ["3 messages wait in it, and other queues dead-letter to it"]
    for number in range(20):
        codes = queue.check(
            FACTS._replace(ready=1000 * number + 1, taken=number, consumers=0, keeps_dead_letters=True)
        )
    assert codes == []  # an operator reads them, and their growth is no fault of consumers
    assert queue.be(14, ready=20_000, taken=20, **kept) == ["dead-letters-wait"]


def test_queue_polled_with_get_needs_no_consumers() -> None:
    queue = Watched()
    for number in range(20):
        codes = queue.check(FACTS._replace(ready=3, consumers=0, taken=number))
    assert codes == []
    assert queue.be(13, ready=3, consumers=0, taken=19) == ["no-consumers"]


def test_queue_that_dead_letters_by_ttl_needs_no_consumers() -> None:
    waiting = {"ready": 3, "consumers": 0, "expires_to_exchange": True}
    assert Watched().be(20, **waiting) == []
    assert Watched().be(20, taken=1, **waiting) == ["no-consumers"]  # it has lost them


def slow(queue: Watched, per_pass: int, passes: int = 14, **facts: int) -> list[str]:
    """Messages wait all the time, and so many are acknowledged meanwhile."""
    for number in range(passes):
        state = FACTS._replace(ready=900, acknowledged=per_pass * number, waited_ms=PASS_MS * number, **facts)
        codes = queue.check(state)
    return codes


def test_slow_consumers_are_reported() -> None:
    queue = Watched()
    assert slow(queue, 50, consumers=2, unacked=200, prefetch=100) == ["consumers-slow"]
    assert queue.texts == [
        "900 messages wait, and 10.0 a second are acknowledged by 2 consumers; unacknowledged: 200"
    ]
    assert queue.since_s == [5.0]
    assert slow(Watched(), 0, unacked=100) == ["consumers-slow"]
    assert slow(Watched(), 0, lacks_credit=True) == []  # its consumers are reported instead
    assert slow(Watched(), 50, passes=13, unacked=100) == []  # not for a minute yet


def test_small_prefetch_is_reported() -> None:
    queue = Watched()
    assert slow(queue, 5000, unacked=1, prefetch=1) == ["prefetch-small"]
    assert queue.texts == ["900 messages wait; with a prefetch of 1, 1 consumer had each message for 1 ms"]
    # An acknowledgement is committed before the next delivery: a slow commit is not the consumer's fault.
    queue = Watched(commit_s=0.06)
    assert slow(queue, 30, unacked=1, prefetch=1) == ["prefetch-small"]
    text = "900 messages wait; with a prefetch of 1, 1 consumer had each message for 167 ms, and a commit takes 60 ms"
    assert queue.texts == [text]
    assert slow(Watched(commit_s=0.05), 30, unacked=1, prefetch=1) == ["consumers-slow"]
    assert slow(Watched(), 50, unacked=1, prefetch=1) == ["consumers-slow"]  # each takes 100 ms
    assert slow(Watched(), 50_000, unacked=20, prefetch=20) == ["consumers-slow"]
    assert slow(Watched(), 5000, unacked=1, prefetch=0) == ["consumers-slow"]


def test_consumers_that_keep_up_most_of_the_time() -> None:
    queue = Watched()
    for number in range(30):
        codes = queue.check(FACTS._replace(ready=900, waited_ms=PASS_MS * number * 8 // 10))
    assert codes == []


def test_dead_letters_are_reported_at_once_and_for_a_while() -> None:
    queue = Watched()
    assert queue.be(1, failed=2) == ["dead-letters"]  # the queue was empty before, and is now
    assert queue.texts == ["2 messages rejected, or delivered too often"]
    assert queue.watch.knows(7)
    assert queue.be(1, failed=3) == ["dead-letters"]
    assert (queue.texts, queue.since_s) == (["5 messages rejected, or delivered too often"], [0.0])
    assert queue.be(59) == ["dead-letters"]
    assert queue.be(1) == []
    assert not queue.watch.knows(7)
    assert queue.be(1, failed=1) == ["dead-letters"]
    assert queue.texts == ["1 message rejected, or delivered too often"]


def test_dead_letters_that_no_queue_takes() -> None:
    queue = Watched()
    assert queue.be(12, dying=4) == []
    assert queue.be(1, dying=4) == ["dead-letters-stuck"]
    assert queue.texts == ["4 dead letters from it fit in no queue"]
    assert queue.be(1) == []


def test_a_queue_that_refuses() -> None:
    queue = Watched()
    assert queue.be(1, ready=10, refused=1) == ["publishes-refused"]
    assert queue.be(11, ready=10) == ["publishes-refused"]
    assert queue.be(1, ready=10) == []


def test_largest_queues_are_reported_and_the_rest_is_counted() -> None:
    queue = Watched()
    queues = [FACTS._replace(number=n, name=f"q{n}", ready=n, consumers=0) for n in range(1, 1001)]
    for _ in range(14):
        queue.check(*queues)
    found = queue.watch.findings
    assert [each.subject for each in found[:2]] == ["queue 'q1000' in vhost '/'", "queue 'q999' in vhost '/'"]
    assert len(found) == REPORTED_MAX + 1
    assert (found[-1].subject, found[-1].text) == ("other queues", "the same holds for 990 more")
    # Queues of equal length are told, too.
    for _ in range(14):
        queue.check(*(each._replace(ready=5) for each in queues))
    assert len(queue.watch.findings) == REPORTED_MAX + 1


def test_deleted_queue_is_forgotten() -> None:
    queue = Watched()
    queue.be(20, ready=3, consumers=0)
    assert queue.check() == []
    assert not queue.watch.knows(7)


@pytest.mark.parametrize(("count", "found"), [(1, 1), (REPORTED_MAX, REPORTED_MAX), (500, REPORTED_MAX + 1)])
def test_consumers_that_hold_a_message_for_long(count: int, found: int) -> None:
    watch = HeldWatch("consumers", held_by_consumer)
    for number in range(count):
        watch.record(HeldFacts("/", "q", f"c{number}", "n2", 10_000 + number, 1_800_000, 4))
    watch.end_pass()
    assert len(watch.findings) == found
    first = watch.findings[0]
    assert (first.code, first.subject) == ("unacked-long", "consumer 'c0' of queue 'q' in vhost '/'")
    assert first.since_ms == 10_000
    assert first.text == (
        "at node n2 it has 4 unacknowledged messages, the oldest for more than half of the 30 minutes after which its "
        "channel is closed"
    )
    watch.end_pass()
    assert watch.findings == []


def test_silent_groups_with_leases_are_named_the_oldest_first() -> None:
    watch = HeldWatch("groups", held_by_group)
    for number in range(REPORTED_MAX + 2):
        watch.record(GroupFacts("v", "q", f"g{number}", "job", 9_000 - number, 2_700_000, 3, 1200))
    watch.end_pass()
    first, *_, last = watch.findings
    assert (first.code, first.since_ms, first.about) == ("group-silent", 8_989, ("queue", "v", "q"))
    assert first.subject == "group 'g11' of queue 'q' in vhost 'v'"
    assert first.text == (
        "its owner 'job' has sent no request for 45 minutes, and it has 1,200 messages in 3 open leases"
    )
    assert (last.subject, last.objects) == ("other groups", 2)


def test_queue_that_a_group_reads_needs_no_consumers() -> None:
    queue = Watched()
    assert queue.be(20, ready=9, consumers=0, is_leased=True) == []
    assert queue.be(20, ready=9, consumers=0) == ["no-consumers"]


@pytest.mark.parametrize(
    ("finding", "code", "text"),
    [
        (silent_sink, "sink-silent", "its user 'ann' has sent no request for 45 minutes, and it has "),
        (growing_sink, "sink-grows", "it has "),
    ],
)
def test_sinks_with_old_messages_are_named(
    finding: Callable[[SinkFacts], Finding], code: str, text: str
) -> None:
    watch = HeldWatch("sinks", finding)
    watch.record(SinkFacts("v", "s", "ann", 9_000, 2_700_000, 3, 1200))
    watch.end_pass()
    (only,) = watch.findings
    assert (only.code, only.since_ms, only.about) == (code, 9_000, ("sink", "v", "s"))
    assert only.subject == "sink 's' in vhost 'v'"
    assert only.text.startswith(f"{text}1,200 uncommitted messages in 3 attempts")
