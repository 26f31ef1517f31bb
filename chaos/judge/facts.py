"""Deliveries with their places in time and order, from the lives of the messages, for the judgements of streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from chaos.judge.event import Event

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chaos.judge.event import Packed

HIGH = 5
"""The lowest priority that is high."""


class Fact(NamedTuple):
    """A first delivery of a message, with the times and the place of the message's publish."""

    delivery: Packed
    publisher: str
    priority: int
    channel: tuple[str, int]
    sequence: int
    invoked_ns: int
    confirmed_ns: int
    expires_ns: int
    requested_ns: int
    instant: int
    """Number of its consumer's request among the instants of the queue."""
    is_placed: bool
    """Whether the message has a place in the order, see `promises.is_comparable`."""


class Placed(NamedTuple):
    """A fact with its delivery as an event."""

    row: Event
    fact: Fact

    @property
    def is_high(self) -> bool:
        return self.fact.priority >= HIGH


def placed(facts: Iterable[Packed]) -> list[Placed]:
    """Return facts in the order of the deliveries, as clients saw them."""
    made = [Placed(Event._make(fact[0]), Fact._make(fact)) for fact in facts]
    made.sort(key=lambda each: (each.row.time_ns, each.row.call))
    return made
