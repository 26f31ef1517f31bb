"""The facts of a whole run that the rules about a single message need."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from chaos import promises
from chaos.judge.clients import FOREVER_NS, Clients

if TYPE_CHECKING:
    from chaos.judge.leases import Leases
    from chaos.judge.life import Fate, Life
    from chaos.judge.run import Run

NS = 1_000_000_000

Gap = tuple[int, int]
"""Time between two confirms, in ns."""
Gaps = dict[str, list[Gap]]
"""By node, in order."""


class Ending(NamedTuple):
    """The state that a queue's messages must have reached by the end of the run."""

    vanished_ns: int
    """A purge or delete may have taken any message published before, here or where its dead letters go."""
    must_be_settled: bool
    """False if some process consumes without acknowledgements, so that messages are settled when they are sent."""
    is_limited: bool
    """Whether a message that comes back too often dies."""
    has_target: bool


class Context:
    def __init__(self, run: Run, clients: Clients, leases: Leases, gaps: Gaps) -> None:
        self.run = run
        self.clients = clients
        self.leases = leases
        self.gaps = gaps
        """Periods without a confirm, by node."""
        self._endings: dict[str, Ending | None] = {}

    def at(self, time_ns: int) -> str:
        """Return a time in words: seconds since the run began."""
        return f"{(time_ns - self.run.started_ns) / NS:.3f} s"

    def ending(self, queue: str) -> Ending | None:
        """Return the ending of a queue if consumers must have seen all its messages by the end of the run, or None.

        The queue and all queues that its dead letters reach must be drained, and must not drop messages.
        """
        if queue not in self._endings:
            self._endings[queue] = self._ending(queue)
        return self._endings[queue]

    def _ending(self, queue: str) -> Ending | None:
        reach = self.run.reach(queue)
        for name in reach:
            settings = self.run.queue(name)
            drops = settings.max_length is not None or settings.message_ttl is not None
            if not settings.drained or (drops and settings.dead_letters_to is None):
                return None
        settings = self.run.queue(queue)
        return Ending(
            max(self.clients.vanished_ns.get(name, 0) for name in reach),
            queue not in self.clients.silent,
            settings.delivery_limit is not None,
            settings.dead_letters_to is not None,
        )

    def owed(self, life: Life, fate: Fate) -> Ending | None:
        """Return the queue's ending if it certainly held the message and consumers must have seen it, or None."""
        ending = self.traced(life, fate)
        return ending if ending is not None and promises.is_owed(fate) else None

    def traced(self, life: Life, fate: Fate) -> Ending | None:
        """Return the queue's ending if consumers must have seen the message, had the queue held it; or None."""
        ending = self.ending(fate.queue)
        if ending is None:
            return None
        if not ending.has_target and any(attempt.row.ttl_ms for attempt in fate.attempts.values()):
            return None
        invoked_ns = fate.invoked_ns
        if not fate.invokes:
            invoked = [each.invoked_ns for each in life.fates.values() if each.invokes]
            if not fate.dead_arrivals or not invoked:
                return None
            invoked_ns = min(invoked)
        return ending if invoked_ns > ending.vanished_ns and invoked_ns < FOREVER_NS else None
