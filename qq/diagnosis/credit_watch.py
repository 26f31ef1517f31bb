"""Finds consumers of AMQP 1.0 with neither credit nor a message, although messages wait in their queue.

A consumer that holds messages may be busy with them: then `QueueWatch` and `HeldWatch` judge it.

Invariant: pure. A check costs a microsecond. Memory is bounded by the number of consumers without credit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.diagnosis.findings import Finding, queue_subject
from qq.diagnosis.lasting import Lasting
from qq.diagnosis.queue_watch import LASTS_MS, CreditFacts, HeldWatch
from qq.diagnosis.words import hours, waiting

if TYPE_CHECKING:
    from collections.abc import Sequence


class CreditWatch:
    """Findings about consumers without credit, pass by pass."""

    def __init__(self) -> None:
        self._holders = HeldWatch("consumers", _without_credit)
        self._without_credit = Lasting[tuple[str, int]]()
        """Consumers without credit. The state is the number of their deliveries."""

    @property
    def findings(self) -> Sequence[Finding]:
        """Findings of the last complete pass."""
        return self._holders.findings

    def check(self, consumer: tuple[str, int], delivered: int, facts: CreditFacts, now_ms: int) -> None:
        """Record that a consumer has neither credit nor a message, and that messages wait in its queue.

        `delivered` are the messages that it was given, ever: a consumer that was given one had credit meanwhile.
        """
        since_ms = self._without_credit.since_ms(consumer, now_ms, delivered)
        if now_ms - since_ms >= LASTS_MS:
            self._holders.record(facts._replace(since_ms=since_ms, lasts_ms=now_ms - since_ms))

    def end_pass(self) -> None:
        """End the pass. Consumers without a check in it have credit, or no messages wait for them."""
        self._without_credit.end_pass()
        self._holders.end_pass()


def _without_credit(facts: CreditFacts) -> Finding:
    subject = f"consumer '{facts.tag}' of {queue_subject(facts.vhost, facts.queue)}"
    lasts = hours(facts.lasts_ms / 1000)
    text = f"at node {facts.node} it has had no credit for {lasts}; {waiting(facts.ready)}"
    return Finding("no-credit", subject, text, facts.since_ms, ("queue", facts.vhost, facts.queue))
