"""The description of a run: its queues, their settings, and the ways of dead letters between them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue as meta.json describes it."""

    workload: str = ""
    kind: str = "classic"
    """quorum: a delivery has a count of the deliveries before it; classic: it has only a mark."""
    delivery_limit: int | None = None
    max_length: int | None = None
    message_ttl: int | None = None
    """ms."""
    dead_letters_to: str | None = None
    drained: bool = False
    """Whether it was consumed to its end, so that a missing message is lost."""
    single_active: bool = False
    priorities: bool = False
    dedup: bool = False


_KNOWN = {each.name for each in fields(Queue)}
UNKNOWN = Queue()
"""A queue that meta.json does not describe."""


@dataclass(frozen=True)
class Run:
    """A run as meta.json describes it."""

    started_ns: int
    ended_ns: int
    queues: Mapping[str, Queue]
    heal_ns: int | None = None
    """When all faults had ended; None if unknown."""
    problems: Sequence[str] = ()
    rows: int | None = None
    """Number of recorded rows; None if meta.json does not have it."""
    owes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The workloads of the run by the promise that they must give evidence for."""
    clock_skew_ms: int = 0
    """By how much the wall clocks of nodes differ; the cluster's time may be put forward by as much."""
    others: Queue = UNKNOWN
    """The settings of queues that are not in `queues`."""

    @classmethod
    def described(cls, meta: Mapping[str, Any]) -> Run:
        """Return the run of meta.json. Raises KeyError for a missing key."""
        started_ns, ended_ns = meta["started_ns"], meta["ended_ns"]
        queues = {
            name: Queue(**{key: value for key, value in settings.items() if key in _KNOWN})
            for name, settings in meta["queues"].items()
        }
        return cls(
            started_ns,
            ended_ns,
            queues,
            meta.get("heal_ns"),
            meta.get("problems", ()),
            meta.get("rows"),
            meta.get("owes", {}),
            meta.get("clock_skew_ms", 0),
        )

    def queue(self, name: str | None) -> Queue:
        return self.queues.get(name or "", self.others)

    def reach(self, name: str) -> tuple[str, ...]:
        """Return the queues that a message of the queue may reach: the queue, and its dead-letter targets in turn."""
        known = self._reach.get(name)
        if known is None:
            seen: list[str] = []
            target: str | None = name
            while target is not None and target not in seen:
                seen.append(target)
                target = self.queue(target).dead_letters_to
            known = self._reach[name] = tuple(seen)
        return known

    @cached_property
    def _reach(self) -> dict[str, tuple[str, ...]]:
        return {}

    def goes_round(self, name: str) -> bool:
        """Return whether the dead letters of the queue may come back to it, or to a queue on their way."""
        return self.queue(self.reach(name)[-1]).dead_letters_to is not None
