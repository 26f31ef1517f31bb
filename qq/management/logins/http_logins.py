"""Logins over HTTP: a password or token in each request, or at the start of a session of the page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from qq.management.errors import NOT_CARRIED_OUT, LoginThrottled, Unavailable
from qq.management.reports.logins import LoggedIn
from qq.scopes import TokenUser
from qq.sessions.login import Login, LoginsBusy

if TYPE_CHECKING:
    from qq.machine.catalog.permissions import User
    from qq.sessions.broker import Broker
    from qq.sessions.login import Attempt, Outcome

TIMEOUT_S = 12.0
"""Seconds that a request waits for its login at most: longer than any login waits or has its answer delayed."""
WAIT_MAX_S = 5.0
"""Seconds of waiting above which a login is answered with 429 at once."""
SHARE = 4
"""A quarter of the connections may wait for logins; further logins are answered with 429."""


class HttpLogins:
    """Authenticates HTTP requests."""

    def __init__(self, broker: Broker, connections: int) -> None:
        """`connections` is the maximum number of HTTP connections."""
        self._broker = broker
        self._waiting_max = connections // SHARE
        self._waiting = 0
        """Number of logins that wait for other logins or for their delayed answer."""

    @property
    def takes_tokens(self) -> bool:
        """Return whether logins with OAuth 2 tokens are possible."""
        return self._broker.logins.verifier is not None

    async def authenticate(self, user: str, password: str, peer_host: str) -> LoggedIn | None:
        """Return the user, or None if the login fails. Raises LoginThrottled, Unavailable."""
        decided: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def answer(outcome: Outcome) -> None:
            if not decided.done():
                decided.set_result(outcome)

        login = Login(user, password.encode(), peer_host, protocol="http", mechanism="HTTP")
        try:
            attempt = self._broker.logins.attempt(login, answer)
        except LoginsBusy as busy:
            raise LoginThrottled(busy.wait_s) from None
        if attempt is not None:
            await self._wait_for(attempt, decided)
        outcome = decided.result()
        if isinstance(outcome, TokenUser):
            return LoggedIn(outcome.name, outcome.scopes.tags, outcome.scopes, outcome.expires_s)
        known = self._broker.machine.users.get(user)  # None if the user was deleted after the answer
        return LoggedIn(user, known.tags) if known is not None and outcome else None

    def account(self, user: str) -> User | None:
        """Return a user's account: it changes with the password and the tags, and is None for an unknown user."""
        return self._broker.machine.users.get(user)

    async def _wait_for(self, attempt: Attempt, decided: asyncio.Future[Outcome]) -> None:
        """Wait for a delayed answer.

        Raises LoginThrottled if too many wait or for too long; Unavailable after a timeout.
        """
        self._waiting += 1
        try:
            if self._waiting > self._waiting_max or attempt.wait_s > WAIT_MAX_S:
                raise LoginThrottled(attempt.wait_s)
            async with asyncio.timeout(TIMEOUT_S):
                await decided
        except TimeoutError:  # not a failed login, so the client may repeat it
            why = self._broker.why_undecided() or "the log does not go on"
            raise Unavailable(f"the login cannot be decided: {why}; {NOT_CARRIED_OUT}") from None
        finally:
            self._waiting -= 1
            attempt.cancel()
