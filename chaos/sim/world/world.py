"""Virtual time, randomness and process lives.

Invariant: a run is a pure function of the seed. Whoever needs randomness asks for a generator of their own by purpose,
so that one more draw in one place changes nothing elsewhere; nobody iterates over a set.
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
"""How far a process's clock goes on each time that it looks at it, and the shortest time that it may wait.

While a real process does something its clock goes on, too: what was not due yet may be due when it looks again.
"""


class Event:
    """Something that will happen; also the `Timer` of the runtime port."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class SimulatedWorld:
    """Time and chance of one simulation."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_s = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Event]] = []
        self._count = 0
        self._trace = blake2b(digest_size=16)

    def random(self, purpose: str) -> Random:
        """The generator for one purpose."""
        return Random(f"{self.seed}/{purpose}")

    def after(self, delay_s: float, callback: Callable[[], None]) -> Event:
        return self.at(self.now_s + delay_s, callback)

    def at(self, time_s: float, callback: Callable[[], None]) -> Event:
        """Events of the same instant happen in the order in which they were asked for."""
        event = Event(callback)
        self._count += 1
        heappush(self._heap, (time_s, self._count, event))
        return event

    def run_until(self, time_s: float, stop: Callable[[], bool] | None = None) -> None:
        """Let everything up to `time_s` happen, or until `stop()`."""
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
        """Take something that happened into the fingerprint of the run."""
        self._trace.update(b"%.9f " % self.now_s)
        self._trace.update(data)

    def fingerprint(self) -> str:
        """Two runs of one seed are the same run if and only if these are equal."""
        return self._trace.hexdigest()


class WorldClock:
    """The true time, for histories."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world

    def now_ns(self) -> int:
        return EPOCH_MS * 1_000_000 + int(self._world.now_s * 1e9)


class WallClock:
    """A node's idea of the time of day: wrong, and changed now and then."""

    def __init__(self, world: SimulatedWorld, skew_ms: int) -> None:
        self._world = world
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._world.now_s * 1000) + self.skew_ms


class SimulatedRuntime:
    """One life of one process: the `Runtime` port. Nothing of it happens after its end.

    `happened` is called after everything that the process did; `failed` when it stops itself; `ended` when its disk
    ends it in the middle of something.
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
        """What the process saw when it last looked at its clock."""
        self._stalled_until_s = 0.0
        self._wall = wall
        self._happened = happened
        self._failed = failed
        self._ended = ended
        self._deferred: deque[Callable[[], None]] = deque()

    # The port

    def monotonic(self) -> float:
        """Its zero is another one for each process, so that none of it means anything to others."""
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

    # The world's side

    def enter(self, callback: Callable[[], None]) -> None:
        """Let the process do something: at once, when it goes on after a pause, or never."""
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
        """Let the process wait for something, in the middle of what it does: what comes meanwhile comes after it."""
        self._stalled_until_s = max(self._world.now_s, self._stalled_until_s) + seconds

    @property
    def behind_s(self) -> float:
        """In how many seconds it comes to what follows in its program now."""
        return max(0.0, self._stalled_until_s - self._world.now_s)

    def pause(self) -> None:
        """SIGSTOP: bytes, timers and completions queue up."""
        self.paused = True

    def go_on(self) -> None:
        """SIGCONT: all that queued up is seen at once, in order."""
        self.paused = False
        while self._deferred and not self.paused:
            self.enter(self._deferred.popleft())
