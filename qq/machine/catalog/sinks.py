"""Sinks: messages that are stored first, and become visible together, as an epoch.

A writer such as a job of Spark has many tasks that write at the same time. Each task stores its messages as an
*attempt*, step by step. Then the writer commits the *epoch* with an attempt of each task. The commit publishes the
messages of these attempts, all or none, and drops all other attempts. An epoch that was committed before is ignored, so
a writer may repeat an epoch, also while an earlier run of the writer still lives: the first commit counts.

Bodies stay in the log. A sink keeps a run for consecutive messages of a step, some hundred bytes.

Invariant: runs and totals of an attempt never change once its step is stored. Each message of a committed attempt
enters each of its queues once, unless the queue is deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from qq.machine.protocol.refusals import Refused, access_refused, not_found, precondition_failed
from qq.ranges import Range

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

SINKS_MAX = 10_000
"""Sinks of a virtual host."""
ATTEMPTS_MAX = 20_000
"""Attempts of a sink that are not committed. The names of so many fit into a command."""
RUNS_MAX = 100_000
"""Runs of a sink that are not committed. Messages with the same route and properties in a step share a run."""
STALE_MS = 600_000
"""Milliseconds without a step after which an attempt is dropped if its sink has no room for a new step: its task or its
driver has died, and its epoch is tried again and again."""

QueueRef = tuple[str, int]
"""Name and number of a queue."""


class StagedRun(NamedTuple):
    """Consecutive messages with the same queues and properties."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here
    slot: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    size: int
    queues: Sequence[QueueRef]
    """The queues that the messages will enter."""
    exchange: str
    priority: int
    ttl_ms: int
    delay_ms: int

    @property
    def messages(self) -> Range:
        return Range(self.index, self.slot, self.count, 0, self.size)

    @classmethod
    def read(cls, written: Sequence[object]) -> StagedRun:
        run = cls(*written)  # pyright: ignore[reportArgumentType]
        return run._replace(queues=tuple([(name, number) for name, number in run.queues]))


class FrozenAttempt(NamedTuple):
    """An attempt at a moment."""

    name: str
    epoch: int
    used_ms: int
    steps: int
    refusal: tuple[int, str] | None
    runs: Sequence[StagedRun]


class FrozenSink(NamedTuple):
    """A sink at a moment."""

    vhost: str
    name: str
    user: str
    expires_ms: int
    used_ms: int
    first_free: int
    attempts: Sequence[FrozenAttempt]


@dataclass(slots=True, eq=False)
class StagedAttempt:
    """The messages that a task has stored for an epoch."""

    name: str
    epoch: int
    used_ms: int
    """Time without outages, in ms, of the last step."""
    steps: int = 0
    """The number of stored steps."""
    refusal: tuple[int, str] | None = None
    """The reply code and the text with which a step was refused; then the attempt has no messages."""
    runs: list[StagedRun] = field(default_factory=list)
    totals: dict[QueueRef, tuple[int, int]] = field(default_factory=dict)
    """Number and bytes of the messages for each queue."""
    messages: int = 0
    size: int = 0

    def add(self, runs: Iterable[StagedRun]) -> None:
        """Add the messages of a step."""
        for run in runs:
            self.runs.append(run)
            self.messages += run.count
            self.size += run.size
            for queue in run.queues:
                count, size = self.totals.get(queue, (0, 0))
                self.totals[queue] = count + run.count, size + run.size

    def clear(self) -> list[StagedRun]:
        """Remove all messages, and return their runs."""
        runs, self.runs, self.totals, self.messages, self.size = self.runs, [], {}, 0, 0
        return runs

    def check(self) -> None:
        """Raise Refused if a step was refused."""
        if self.refusal is not None:
            raise Refused(*self.refusal)

    def freeze(self) -> FrozenAttempt:
        return FrozenAttempt(self.name, self.epoch, self.used_ms, self.steps, self.refusal, tuple(self.runs))


@dataclass(slots=True, eq=False)
class Sink:
    """A sink of a virtual host."""

    vhost: str
    name: str
    user: str
    """The user that opened the sink, and that alone may use it."""
    expires_ms: int
    used_ms: int = 0
    """Time without outages, in ms, of the last command of the user."""
    first_free: int = 0
    """The lowest epoch that may be committed."""
    attempts: dict[str, StagedAttempt] = field(default_factory=dict)
    """The attempts that are not committed, by name."""
    runs: int = 0
    """Number of runs in these attempts; `messages` and `size` are totals, too."""
    messages: int = 0
    size: int = 0

    @property
    def label(self) -> str:
        return the_sink(self.name, self.vhost)

    def expires_at_ms(self) -> int | None:
        """Return the time (without outages) at which the idle sink ends, or None for never."""
        return self.used_ms + self.expires_ms if self.expires_ms else None

    def check_user(self, user: str) -> None:
        """Raise Refused unless the sink belongs to this user."""
        if user != self.user:
            raise access_refused(f"{self.label} belongs to user '{self.user}'")

    def store(self, attempt: StagedAttempt, runs: Collection[StagedRun]) -> None:
        """Add messages to an attempt, which may be new."""
        self._count(attempt, -1)
        self.attempts[attempt.name] = attempt
        attempt.add(runs)
        self._count(attempt, 1)

    def refuse(self, attempt: StagedAttempt, refused: Refused) -> list[StagedRun]:
        """Record that a step of an attempt was refused. Remove the messages of the attempt, and return their runs."""
        self._count(attempt, -1)
        self.attempts[attempt.name] = attempt
        attempt.refusal = refused.code, refused.text
        return attempt.clear()

    def take(self, name: str) -> list[StagedRun]:
        """Remove an attempt, and return its runs."""
        attempt = self.attempts.pop(name)
        self._count(attempt, -1)
        return attempt.runs

    def _count(self, attempt: StagedAttempt, times: int) -> None:
        self.runs += times * len(attempt.runs)
        self.messages += times * attempt.messages
        self.size += times * attempt.size

    def oldest_index(self) -> int | None:
        """Return the log index of the oldest message that is not committed, or None without any."""
        return next((attempt.runs[0].index for attempt in self.attempts.values() if attempt.runs), None)

    def stale_attempts(self, available_ms: int) -> list[str]:
        """Return the attempts that had no step for a long time."""
        return [name for name, each in self.attempts.items() if each.used_ms + STALE_MS <= available_ms]

    def check_attempts(
        self, names: Sequence[str], steps: Sequence[int], epoch: int
    ) -> dict[QueueRef, tuple[int, int]]:
        """Return number and bytes of the messages of these attempts for each queue. Raise Refused."""
        if len(names) != len(steps) or len(set(names)) != len(names):
            raise precondition_failed(f"an attempt at epoch {epoch} of {self.label} is named twice")
        totals: dict[QueueRef, tuple[int, int]] = {}
        for name, count in zip(names, steps, strict=True):
            attempt = self.attempts.get(name)
            if attempt is None or attempt.epoch != epoch:
                raise precondition_failed(f"attempt '{name}' at epoch {epoch} of {self.label} is not stored")
            attempt.check()
            if attempt.steps != count:
                raise precondition_failed(
                    f"attempt '{name}' at epoch {epoch} of {self.label} has {attempt.steps} steps, not {count}"
                )
            for queue, (more, size) in attempt.totals.items():
                before, size_before = totals.get(queue, (0, 0))
                totals[queue] = before + more, size_before + size
        return totals

    def freeze(self) -> FrozenSink:
        attempts = tuple([attempt.freeze() for attempt in self.attempts.values()])
        return FrozenSink(
            self.vhost, self.name, self.user, self.expires_ms, self.used_ms, self.first_free, attempts
        )

    @classmethod
    def restore(cls, frozen: FrozenSink) -> Sink:
        """Build a sink from a dump."""
        sink = cls(*frozen[:6])
        for name, epoch, used_ms, steps, refusal, runs in frozen.attempts:
            sink.store(StagedAttempt(name, epoch, used_ms, steps, refusal), runs)
        return sink


def the_sink(name: str, vhost: str) -> str:
    return f"sink '{name}' in vhost '{vhost}'"


def no_sink(name: str, vhost: str) -> Refused:
    return not_found(the_sink(name, vhost))
