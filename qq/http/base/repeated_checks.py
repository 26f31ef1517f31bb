"""Health checks that clients repeat: the thread that accepts connections answers them (door.py).

The event loop answers a check the first time, because it checks the login. Then it repeats the check by itself, and the
thread answers equal requests with the newest result. So a busy event loop delays no health check that is requested
regularly.

The thread also does the TLS handshake with an address that checks over TLS: it cannot know earlier what a client wants.

Invariant: the thread answers only requests that equal a request that the event loop has admitted: the same address, the
same path and the same login, whose account has not changed since, and both or none over TLS. Of the login, only a
digest is kept.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

CHECKS_MAX = 32
"""Checks that are repeated. A further check takes the place of the check that was requested least recently."""
KEPT_S = 60.0
"""Seconds without a request after which a check is no longer repeated, or no longer expected over TLS."""


class CheckResult(NamedTuple):
    """The result of a health check."""

    status: int
    document: dict[str, Any]


class _RepeatedCheck:
    __slots__ = ("answer", "repeat", "requested_s")

    def __init__(self, repeat: Callable[[], CheckResult | None]) -> None:
        self.repeat = repeat
        self.requested_s = time.monotonic()
        """Monotonic time, in seconds, of the last request. The thread sets it."""
        self.answer = 0, b""
        """Status and body of the newest result."""

    def update(self) -> bool:
        """Repeat the check. Return whether the thread may answer it."""
        result = self.repeat()
        if result is None:
            return False
        self.answer = result.status, json.dumps(result.document).encode()
        return True


class RepeatedChecks:
    """The checks that are repeated. The thread calls `find`, `expect_tls` and `expects_tls` only."""

    def __init__(self) -> None:
        self._secret = os.urandom(hashlib.blake2b.MAX_KEY_SIZE)
        self._known: dict[bytes, _RepeatedCheck] = {}
        self._over_tls_s: dict[str, float] = {}
        """Monotonic times, in seconds, of the last check over TLS, by the client's address; the oldest come first."""

    def expect_tls(self, host: str) -> None:
        """Expect further checks over TLS from a client's address."""
        over_tls_s = self._over_tls_s
        over_tls_s.pop(host, None)
        over_tls_s[host] = time.monotonic()
        if len(over_tls_s) > CHECKS_MAX:
            over_tls_s.pop(next(iter(over_tls_s)), None)

    def expects_tls(self, host: str) -> bool:
        """Return whether the next connection over TLS from this address probably brings a check."""
        last_s = self._over_tls_s.get(host)
        return last_s is not None and time.monotonic() - last_s < KEPT_S

    def remember(
        self,
        host: str,
        target: str,
        authorization: str,
        repeat: Callable[[], CheckResult | None],
        *,
        has_tls: bool = False,
    ) -> None:
        """Repeat a check for a client at `host`, who asks over TLS or not.

        `repeat` returns the result, or None if the event loop must answer the next request.
        """
        known = _RepeatedCheck(repeat)
        if not known.update():
            return
        key = self._key(host, target, authorization, has_tls)
        if key not in self._known and len(self._known) >= CHECKS_MAX:
            del self._known[min(self._known, key=lambda key: self._known[key].requested_s)]
        self._known[key] = known

    def find(
        self, host: str, target: str, authorization: str, *, has_tls: bool = False
    ) -> tuple[int, bytes] | None:
        """Return status and body of the newest result; None if the event loop must answer."""
        known = self._known.get(self._key(host, target, authorization, has_tls))
        if known is None:
            return None
        known.requested_s = time.monotonic()
        return known.answer

    def update(self) -> None:
        """Repeat all checks. Forget those that are not requested any more."""
        oldest_s = time.monotonic() - KEPT_S
        for key, known in list(self._known.items()):
            if known.requested_s < oldest_s or not self._is_updated(known):
                del self._known[key]

    def _is_updated(self, known: _RepeatedCheck) -> bool:
        try:
            return known.update()
        except Exception:
            log.exception("a health check failed; the next request shows its error")
            return False

    def _key(self, host: str, target: str, authorization: str, has_tls: bool) -> bytes:
        text = f"{host}\n{target}\n{authorization}\n{has_tls}".encode(errors="surrogateescape")
        return hashlib.blake2b(text, key=self._secret, digest_size=32).digest()
