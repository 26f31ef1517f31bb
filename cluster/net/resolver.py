"""The addresses that the names of hosts stand for.

A lookup cannot be ended, and takes half a minute where a name server does not answer. The event loop would have four
of them at a time, for all names and all who ask, and would wait for them when the process is to end. So each has a
thread of its own, which keeps nothing from ending, and all who ask for a name meanwhile wait for the same one.

Invariant: no name waits for another one's lookup, and there is one thread for each name at most. A name server is asked
once a second for a name that it does not know, however often somebody tries to reach that host. Peers, shovels and
logins have `HostNames` of their own: the names that some bring use up nothing that the others need.
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
"""A lookup that takes longer is slow: what an earlier one has found is good enough."""
_ANSWER_S = 4.0
"""How long to wait where nothing has been found yet. Who dials has a little longer in all, and is told why."""
UNKNOWN_S = 1.0
"""For so long a name that cannot be looked up is not looked up again. With the suffixes that are tried, as those of
Kubernetes, each lookup is ten questions."""
LOOKUPS_MAX = 64
"""How many lookups are under way at most; for one more name there is an error."""
REMEMBERED_MAX = 1000
"""Of how many names it is remembered where they were."""


class Addresses(NamedTuple):
    """Where a host is."""

    found: Found
    is_current: bool
    """Whether the name stands for them now; else it did when it could be looked up last."""


class HostNames:
    """Looks names up, and remembers what it has found. All calls are on one event loop."""

    def __init__(self) -> None:
        self._remembered: dict[tuple[str, int], Found] = {}
        self._lookups: dict[tuple[str, int], asyncio.Future[Found]] = {}
        self._unknown: dict[tuple[str, int], OSError] = {}
        """Why names cannot be looked up that were looked up lately."""

    async def look_up(self, host: str, port: int) -> Addresses:
        """Return where a host is, or was if it cannot be looked up. Raises OSError if that is not known."""
        try:
            # A literal address needs no lookup.
            return Addresses(_look_up(host, port, socket.AI_NUMERICHOST), is_current=True)
        except socket.gaierror:
            pass
        except ValueError as error:  # such as UnicodeError, for a name that no resolver would be asked for
            raise OSError(errno.EINVAL, f"{host!r} is no host name") from error
        remembered = self._remembered.get((host, port))
        try:
            lookup = self._lookup(host, port)
            async with asyncio.timeout(_ANSWER_S if remembered is None else _PATIENCE_S):
                return Addresses(await asyncio.shield(lookup), is_current=True)
        except OSError as error:  # also TimeoutError
            if remembered is not None:
                return Addresses(remembered, is_current=False)
            if isinstance(error, TimeoutError):
                raise TimeoutError(f"the name {host} is still being looked up") from None
            raise

    def _lookup(self, host: str, port: int) -> asyncio.Future[Found]:
        """The lookup of a name that is under way, or one that begins. Raises OSError."""
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
                lookup.exception()  # perhaps nobody waits for it any more

        def work() -> None:
            found: Found = []
            problem = None
            try:
                found = _look_up(host, port)
            except OSError as error:
                problem = error
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
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
