"""What ends a node that nobody has told to stop.

Invariant: after an error that no part expects there is better no node than a wrong one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any, NoReturn

from cluster.log.segment import CorruptJournal
from cluster.storage.fail_stop import ObsoleteLog, RemovedFromCluster
from qq.errors import StartError

log = logging.getLogger(__name__)


class RemovedError(StartError):
    """The node was removed from its cluster."""

    exit_status = (
        os.EX_CONFIG
    )  # as with a configuration: a start with the same directory ends in the same way


class Failure:
    """The first error after which the node cannot go on, once there is one."""

    def __init__(self, name: str) -> None:
        """`name` is the node's."""
        self._name = name
        self._first: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    @property
    def has_come(self) -> bool:
        """Whether there is one."""
        return self._first.done()

    def come(self, error: BaseException) -> None:
        """Note that the node cannot go on."""
        if not isinstance(error, CorruptJournal | ObsoleteLog):
            log.critical("cannot go on: %s", _named(error))
        if not self._first.done():
            self._first.set_result(error)

    def unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle, as the event loop's exception handler, what no part of the node expects."""
        text, error = context.get("message"), context.get("exception")
        if _is_of_a_connection(error, context.get("future")):
            log.info("a connection has failed for which nobody waits any more: %s", error)
            return
        rest = ", ".join(
            f"{key} {value!r}" for key, value in context.items() if key not in ("message", "exception")
        )
        log.critical("unexpected: %s (%s)", text or "nothing handles this error", rest, exc_info=error)
        self.come(error or RuntimeError(text or f"nothing handles: {rest}"))

    async def raised(self) -> NoReturn:
        """Wait for the failure and raise it: as StartError, but for what has the node started anew."""
        error = await asyncio.shield(self._first)  # who stops waiting does not take it away from the others
        if isinstance(error, CorruptJournal | ObsoleteLog):
            raise error
        if isinstance(error, RemovedFromCluster):
            raise RemovedError(f"node {self._name} stops: {error}") from error
        what = f"its disk failed: {error}" if isinstance(error, OSError) else _named(error)
        raise StartError(f"node {self._name} stops: {what}") from error


def _is_of_a_connection(error: BaseException | None, future: object) -> bool:
    """Whether an attempt to connect has failed that somebody has given up before.

    uvloop leaves futures behind that nobody looks at: of a name that is looked up, and of a TLS handshake, if the
    attempt is cancelled before the answer, or before the handshake begins. Nothing that replicates waits for the system
    with such a future: disks tell their errors to callbacks, and a task is one of ours.
    """
    is_left = isinstance(future, asyncio.Future) and not isinstance(future, asyncio.Task)
    return is_left and isinstance(error, OSError)


def _named(error: BaseException) -> str:
    """Say what an error is. Our errors do so in their text; Python's get their type: a KeyError's text is the key."""
    is_bare = type(error).__module__ == "builtins" and not isinstance(error, OSError)
    return f"{type(error).__name__}: {error}" if is_bare else str(error)
