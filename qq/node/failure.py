"""The errors after which a node must stop.

Invariant: after an unexpected error no node is better than a wrong node.
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
    """The cluster has removed this node."""

    exit_status = (
        os.EX_CONFIG
    )  # as after a configuration error: a start with the same directory ends in the same way


class Failure:
    """Keeps the first error after which the node cannot go on, and raises it in `raised`."""

    def __init__(self, name: str) -> None:
        """`name` is the name of the node."""
        self._name = name
        self._first: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    @property
    def has_come(self) -> bool:
        """Whether the node has failed."""
        return self._first.done()

    def come(self, error: BaseException) -> None:
        """Record an error after which the node cannot go on."""
        if not isinstance(error, CorruptJournal | ObsoleteLog):
            log.critical("cannot go on: %s", _named(error))
        if not self._first.done():
            self._first.set_result(error)

    def unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an exception that no part of the node expects, as the event loop's exception handler."""
        text, error = context.get("message"), context.get("exception")
        if _is_of_a_connection(error, context.get("future")):
            log.info("an abandoned connection has failed: %s", error)
            return
        rest = ", ".join(
            f"{key} {value!r}" for key, value in context.items() if key not in ("message", "exception")
        )
        log.critical("unexpected: %s (%s)", text or "nothing handles this error", rest, exc_info=error)
        self.come(error or RuntimeError(text or f"nothing handles: {rest}"))

    async def raised(self) -> NoReturn:
        """Wait for the failure and raise it: as StartError, except for errors after which the node is restarted."""
        error = await asyncio.shield(self._first)  # a cancelled waiter must not cancel it for the rest
        if isinstance(error, CorruptJournal | ObsoleteLog):
            raise error
        if isinstance(error, RemovedFromCluster):
            raise RemovedError(f"node {self._name} stops: {error}") from error
        what = f"its disk failed: {error}" if isinstance(error, OSError) else _named(error)
        raise StartError(f"node {self._name} stops: {what}") from error


def _is_of_a_connection(error: BaseException | None, future: object) -> bool:
    """Return whether this is the failure of an attempt to connect that its caller has abandoned before.

    uvloop leaves futures without a waiter behind: of a name lookup, and of a TLS handshake, if the attempt is cancelled
    before the answer or before the handshake begins. Replication never waits for the system with such a future: disks
    report their errors to callbacks, and a task belongs to the node's own code.
    """
    is_left = isinstance(future, asyncio.Future) and not isinstance(future, asyncio.Task)
    return is_left and isinstance(error, OSError)


def _named(error: BaseException) -> str:
    """Return the text of an error. Built-in errors get their type in front: a KeyError's text is only the key."""
    is_bare = type(error).__module__ == "builtins" and not isinstance(error, OSError)
    return f"{type(error).__name__}: {error}" if is_bare else str(error)
