"""Virtual time, randomness and processes.

Invariant: a run is a pure function of the seed. Each user of randomness asks for a generator of its own by purpose, so
that an additional draw changes no other generator. No code iterates over a set.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from hashlib import blake2b
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING

from chaos.sim.world.disk import ProcessEnds

if TYPE_CHECKING:
    from collections.abc import Callable

EPOCH_MS = 1_700_000_000_000
TICK_S = 1e-6
"""Seconds that a process's clock advances at each reading, and the shortest wait.

A real process's clock advances while it works, so a deadline may pass between two readings.
"""


class Event:
    """A scheduled callback; also the `Timer` of the runtime port."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class SimulatedWorld:
    """Time and randomness of a simulation."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_s = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Event]] = []
        self._count = 0
        self._trace = blake2b(digest_size=16)

    def random(self, purpose: str) -> Random:
        """Return the generator for a purpose."""
        return Random(f"{self.seed}/{purpose}")

    def after(self, delay_s: float, callback: Callable[[], None]) -> Event:
        return self.at(self.now_s + delay_s, callback)

    def at(self, time_s: float, callback: Callable[[], None]) -> Event:
        """Schedule a callback. Events of the same instant run in the order in which they were scheduled."""
        event = Event(callback)
        self._count += 1
        heappush(self._heap, (time_s, self._count, event))
        return event

    def run_until(self, time_s: float, stop: Callable[[], bool] | None = None) -> None:
        """Run all events up to `time_s`, or until `stop()`."""
        heap = self._heap
        while heap and heap[0][0] <= time_s:
            self.now_s, _, event = heappop(heap)
            if event.callback is not None:
                self.events += 1
                event.callback()
                if stop is not None and stop():
                    return
        self.now_s = time_s

    def trace(self, data: bytes) -> None:
        """Add an event to the fingerprint of the run."""
        self._trace.update(b"%.9f " % self.now_s)
        self._trace.update(data)

    def fingerprint(self) -> str:
        """Return the hash of all traced events; it is equal for two runs of a seed if and only if they are the same."""
        return self._trace.hexdigest()


class WorldClock:
    """The true time, for histories."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world

    def now_ns(self) -> int:
        return EPOCH_MS * 1_000_000 + int(self._world.now_s * 1e9)


class WallClock:
    """A node's wall clock: wrong, and changed now and then."""

    def __init__(self, world: SimulatedWorld, skew_ms: int) -> None:
        self._world = world
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._world.now_s * 1000) + self.skew_ms


class SimulatedRuntime:
    """The `Runtime` port of a single process start. After the process has ended, its callbacks do nothing.

    `happened` is called after each step of the process, `failed` when it stops itself, `ended` when its disk ends it in
    the middle of an operation.
    """

    def __init__(
        self,
        world: SimulatedWorld,
        wall: WallClock,
        random: Random,
        happened: Callable[[], None],
        failed: Callable[[BaseException], None],
        ended: Callable[[], None],
    ) -> None:
        self.random = random
        self.alive = True
        self.paused = False
        self._world = world
        self._began_s = world.now_s
        self._seen_s = 0.0
        """Seconds that the process read at its last look at the clock."""
        self._stalled_until_s = 0.0
        self._wall = wall
        self._happened = happened
        self._failed = failed
        self._ended = ended
        self._deferred: deque[Callable[[], None]] = deque()

    # The port

    def monotonic(self) -> float:
        """Return the seconds since the process began, so that the value has no meaning in other processes."""
        now_s = max(self._world.now_s, self._stalled_until_s)
        self._seen_s = seen_s = max(self._seen_s + TICK_S, now_s - self._began_s)
        return seen_s

    def wall_ms(self) -> int:
        return self._wall.now_ms()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._world.after(0.0, partial(self.enter, callback))

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Event:
        wait_s = TICK_S if 0 < delay_s < TICK_S else delay_s
        return self._world.after(wait_s, partial(self.enter, callback))

    def fail(self, error: BaseException) -> None:
        if self.alive:
            self.alive = False
            self._failed(error)

    # Called by the world

    def enter(self, callback: Callable[[], None]) -> None:
        """Run a callback in the process: at once, after its pause or stall, or never if it has ended."""
        if not self.alive:
            return
        if self.paused:
            self._deferred.append(callback)
            return
        if self.behind_s > 0.0:
            self._world.at(self._stalled_until_s, partial(self.enter, callback))
            return
        try:
            callback()
        except ProcessEnds:
            self._ended()
            return
        except Exception as error:  # noqa: BLE001 - any exception that leaves the node is what the simulation looks for
            self.fail(error)
        self._happened()

    def stall(self, seconds: float) -> None:
        """Let the process wait in the middle of a step; later callbacks run after the wait."""
        self._stalled_until_s = max(self._world.now_s, self._stalled_until_s) + seconds

    @property
    def behind_s(self) -> float:
        """Seconds until the process continues after its stall."""
        return max(0.0, self._stalled_until_s - self._world.now_s)

    def pause(self) -> None:
        """Pause as SIGSTOP does: bytes, timers and completions queue up."""
        self.paused = True

    def go_on(self) -> None:
        """Continue as SIGCONT does: all queued callbacks run at once, in order."""
        self.paused = False
        while self._deferred and not self.paused:
            self.enter(self._deferred.popleft())
