"""Findings about consumers without credit."""

from __future__ import annotations

from qq.diagnosis.credit_watch import CreditWatch
from qq.diagnosis.queue_watch import REPORTED_MAX, CreditFacts

FACTS = CreditFacts("/", "orders", "worker", "n2", ready=7)
BEGAN_MS = 1_000_000
PASS_MS = 5000


def passes(watch: CreditWatch, count: int, delivered: int = 0, at_ms: int = BEGAN_MS) -> int:
    """Check a consumer in passes; return the time after them."""
    for _ in range(count):
        watch.check(("n2", 5), delivered, FACTS, at_ms)
        watch.end_pass()
        at_ms += PASS_MS
    return at_ms


def test_consumer_without_credit_is_reported_after_a_minute() -> None:
    watch = CreditWatch()
    at_ms = passes(watch, 12)
    assert watch.findings == []
    passes(watch, 1, at_ms=at_ms)
    [finding] = watch.findings
    assert (finding.code, finding.since_ms) == ("no-credit", BEGAN_MS)
    assert finding.subject == "consumer 'worker' of queue 'orders' in vhost '/'"
    assert finding.text == "at node n2 it has had no credit for 1 minute; 7 messages wait"
    assert finding.about == ("queue", "/", "orders")


def test_delivery_begins_the_minute_without_credit_anew() -> None:
    watch = CreditWatch()
    at_ms = passes(watch, 12)
    at_ms = passes(watch, 12, delivered=3, at_ms=at_ms)
    assert watch.findings == []
    passes(watch, 1, delivered=3, at_ms=at_ms)
    assert len(watch.findings) == 1


def test_credit_between_ends_the_finding() -> None:
    watch = CreditWatch()
    at_ms = passes(watch, 13)
    watch.end_pass()  # the consumer has credit in this pass
    assert watch.findings == []
    passes(watch, 1, at_ms=at_ms + PASS_MS)
    assert watch.findings == []


def test_few_consumers_without_credit_are_named() -> None:
    watch, count = CreditWatch(), REPORTED_MAX + 15
    for at_ms in (BEGAN_MS, BEGAN_MS + 61_000):
        for number in range(count):
            watch.check(("n2", number), 0, FACTS, at_ms)
        watch.end_pass()
    assert len(watch.findings) == REPORTED_MAX + 1
    assert watch.findings[-1].objects == 15
