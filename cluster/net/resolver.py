"""Resolve host names, with a thread for each name and a memory of earlier results.

A lookup cannot be cancelled, and takes half a minute when a name server does not answer. The event loop would run four
lookups at a time, for all callers together, and would wait for them when the process ends. So each name has a daemon
thread of its own, and all callers that ask for a name at the same time share its lookup.

Invariant: no name waits for the lookup of a different name, and each name has at most one thread. An unknown name is
looked up at most once a second, however often callers ask. Peers, shovels and logins each have their own `Resolver`,
so names given by clients cannot use up the lookups that peers need.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from contextlib import suppress
from typing import Any, NamedTuple

Found = list[tuple[socket.AddressFamily, Any]]

_PATIENCE_S = 0.3
"""Seconds. After a slower lookup, the caller gets the earlier result."""
_ANSWER_S = 4.0
"""Seconds to wait for a first result. Callers that dial have a slightly longer timeout, so they get the reason."""
UNKNOWN_S = 1.0
"""Pause in seconds before a failed lookup is repeated. With search suffixes, as in Kubernetes, each lookup is ten
queries."""
LOOKUPS_MAX = 64
"""Lookups in progress at most. A further name gets an error."""
REMEMBERED_MAX = 1000
"""Names whose last result is remembered, at most."""


class Addresses(NamedTuple):
    """The addresses of a host."""

    found: Found
    is_current: bool
    """Whether this is a new result. If False, it is the last known result, because the name cannot be looked up now."""


class Resolver:
    """Looks names up, and remembers the results. All calls are on the same event loop."""

    def __init__(self) -> None:
        self._remembered: dict[tuple[str, int], Found] = {}
        self._lookups: dict[tuple[str, int], asyncio.Future[Found]] = {}
        self._unknown: dict[tuple[str, int], OSError] = {}
        """Errors of names that failed lately."""

    async def resolve(self, host: str, port: int) -> Addresses:
        """Return the addresses of a host, or the last known addresses. Raises OSError if both are missing."""
        try:
            # A literal address needs no lookup.
            return Addresses(_look_up(host, port, socket.AI_NUMERICHOST), is_current=True)
        except socket.gaierror:
            pass
        except ValueError as error:  # such as UnicodeError, for a name that no resolver accepts
            raise OSError(errno.EINVAL, f"{host!r} is no host name") from error
        remembered = self._remembered.get((host, port))
        try:
            lookup = self._lookup(host, port)
            async with asyncio.timeout(_ANSWER_S if remembered is None else _PATIENCE_S):
                return Addresses(await asyncio.shield(lookup), is_current=True)
        except OSError as error:  # includes TimeoutError
            if remembered is not None:
                return Addresses(remembered, is_current=False)
            if isinstance(error, TimeoutError):
                raise TimeoutError(f"the name {host} is still being looked up") from None
            raise

    def _lookup(self, host: str, port: int) -> asyncio.Future[Found]:
        """Return the lookup of a name in progress, or begin it. Raises OSError."""
        name = host, port
        if name in self._unknown:
            raise self._unknown[name]
        lookup = self._lookups.get(name)
        if lookup is not None:
            return lookup
        if len(self._lookups) == LOOKUPS_MAX:
            raise OSError(errno.EAGAIN, f"{LOOKUPS_MAX} other names are still being looked up")
        loop = asyncio.get_running_loop()
        lookup = loop.create_future()

        def ended(found: Found, error: OSError | None) -> None:
            del self._lookups[name]
            if error is None:
                self._remembered.pop(name, None)
                self._remembered[name] = found
                if len(self._remembered) > REMEMBERED_MAX:
                    del self._remembered[next(iter(self._remembered))]
                lookup.set_result(found)
            else:
                self._unknown[name] = error
                loop.call_later(UNKNOWN_S, self._unknown.pop, name)
                lookup.set_exception(error)
                lookup.exception()  # avoids asyncio's warning if no caller waits any more

        def work() -> None:
            found: Found = []
            problem = None
            try:
                found = _look_up(host, port)
            except OSError as error:
                problem = error
            with suppress(RuntimeError):  # the loop is closed, so no caller waits
                loop.call_soon_threadsafe(ended, found, problem)

        try:
            threading.Thread(target=work, name="host-name", daemon=True).start()
        except RuntimeError as error:  # the process may have no more threads, for now
            raise OSError(errno.EAGAIN, f"no thread can be started to look up the name {host}") from error
        self._lookups[name] = lookup
        return lookup


def _look_up(host: str, port: int, flags: int = 0) -> Found:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, address) for family, _, _, _, address in found]
