"""The expiry of a client's login token.

Invariant: the wall clock may be set at any time, so a token's expiry is checked at least every EXPIRY_CHECK_S seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.runtime.ports import Runtime, Timer

EXPIRY_CHECK_S = 60.0
"""Seconds between checks of a token's expiry, at most."""


class TokenExpiry:
    """Calls `expired` when a token has expired, unless a newer token has replaced it."""

    __slots__ = ("_check", "_expired", "_expires_s", "_runtime", "is_renewing")

    def __init__(self, runtime: Runtime, expired: Callable[[], None]) -> None:
        self._runtime = runtime
        self._expired = expired
        self._expires_s = 0.0
        self._check: Timer | None = None
        self.is_renewing = False
        """Whether a newer token from the client waits for its issuer's keys."""

    def expire_at(self, expires_s: float) -> None:
        """Check the token until `expires_s`, in seconds since 1970."""
        self.stop()
        self._expires_s = expires_s
        left_s = expires_s - self._runtime.wall_ms() / 1000
        self._check = self._runtime.call_later(min(max(left_s, 0.0), EXPIRY_CHECK_S), self._check_expiry)

    def stop(self) -> None:
        """Stop the checks."""
        if self._check is not None:
            self._check.cancel()
            self._check = None

    def _check_expiry(self) -> None:
        if self._runtime.wall_ms() >= self._expires_s * 1000:
            self._expired()
        else:
            self.expire_at(self._expires_s)
