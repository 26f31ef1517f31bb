"""An event loop whose time is the world's: what is written with asyncio is simulated as it is.

Invariant: as in world.py, what is asked for first happens first; a run is a function of the seed.
"""

from __future__ import annotations

import asyncio
from asyncio.events import _set_running_loop  # exported for loops like this one
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from contextvars import Context

    from chaos.sim.world.world import SimulatedWorld

T = TypeVar("T")
ENDINGS_MAX = 10
"""How often a task may wait for something more while it is cancelled."""


class _Handle(asyncio.TimerHandle):
    """A callback that is run as asyncio runs its own: in its context, and what it raises goes to the loop's handler."""

    __slots__ = ()

    def run(self) -> None:
        self._run()


class SimulatedLoop(asyncio.AbstractEventLoop):
    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world
        self._last: deque[_Handle] | None = None
        """What has to be called yet, once the world has stopped."""

    def run(self, main: Coroutine[Any, Any, T], until_s: float) -> T:
        """Let the world go on until `main` is done, and give its result. Raises TimeoutError if it takes longer.

        Whatever else runs is cancelled then, and nothing of this loop happens any more.
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
        """A cancelled timer is left where it is."""

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
        """What nobody awaits is a mistake of the harness, unless it comes of the end."""
        if self._last is None:
            raise context.get("exception") or RuntimeError(context["message"])
