"""Asyncio event loops that run on the world's virtual time, so that asyncio code is simulated unchanged.

Invariant: as in world.py, callbacks run in the order of their scheduling; a run is a function of the seed.
"""

from __future__ import annotations

import asyncio
from asyncio.events import _set_running_loop  # exported for loops like this
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from contextvars import Context

    from chaos.sim.world.world import SimulatedRuntime, SimulatedWorld

T = TypeVar("T")
ENDINGS_MAX = 10
"""Rounds of cancellation at the end, at most, because a cancelled task may start to wait again."""


class _Handle(asyncio.TimerHandle):
    """A callback that runs as asyncio runs it: in its context, with its exceptions passed to the loop's handler."""

    __slots__ = ()

    def run(self) -> None:
        self._run()


class SimulatedLoop(asyncio.AbstractEventLoop):
    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world
        self._last: deque[_Handle] | None = None
        """Callbacks to run after the world has stopped; `None` until then."""

    def run(self, main: Coroutine[Any, Any, T], until_s: float) -> T:
        """Run the world until `main` is done, and return its result. Raises TimeoutError after `until_s`.

        Then cancels all remaining tasks, and the loop runs no further callbacks.
        """
        task = self.create_task(main)
        try:
            self._world.run_until(until_s, stop=task.done)
            if not task.done():
                raise TimeoutError(f"not done at {until_s:g} s")
            return task.result()
        finally:
            self._end()

    def _end(self) -> None:
        self._last = deque()
        for _ in range(ENDINGS_MAX):
            for task in asyncio.all_tasks(self):
                task.cancel()
            while self._last:
                self._call(self._last.popleft())

    # The loop

    def time(self) -> float:
        return self._world.now_s

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(self.time(), callback, args, self, context)
        if self._last is None:
            self._world.after(0.0, partial(self._run, handle))
        else:
            self._last.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = _Handle(when, callback, args, self, context)
        self._world.at(max(when, self.time()), partial(self._run, handle))
        return handle

    def _run(self, handle: _Handle) -> None:
        if self._last is None:
            self._call(handle)

    def _call(self, handle: _Handle) -> None:
        if handle.cancelled():
            return
        _set_running_loop(self)
        try:
            handle.run()
        finally:
            _set_running_loop(None)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave a cancelled timer in place; it does nothing when it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Raise an exception that no task awaited: it is a mistake of the harness, unless the run is ending."""
        if self._last is None:
            raise context.get("exception") or RuntimeError(context["message"])


class ProcessLoop(SimulatedLoop):
    """The event loop of a node's process: it waits while the process is paused, and ends with it."""

    def __init__(self, world: SimulatedWorld, runtime: SimulatedRuntime) -> None:
        super().__init__(world)
        self._runtime = runtime

    def time(self) -> float:
        return self._runtime.monotonic()

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_later(0.0, callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = _Handle(self.time() + delay, callback, args, self, context)
        self._runtime.call_later(delay, partial(self._call, handle))
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_later(max(when - self.time(), 0.0), callback, *args, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Raise an exception of a callback. A pending task without a process is no mistake."""
        if "exception" in context:
            raise context["exception"]
