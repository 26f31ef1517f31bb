"""Logins over HTTP: with a password or a token in each request, and to begin a session of the page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from qq.http.view import NOT_CARRIED_OUT, LoggedIn, LoginThrottled, Unavailable
from qq.scopes import TokenUser
from qq.sessions.login import Login, LoginsBusy

if TYPE_CHECKING:
    from qq.sessions.broker import Broker
    from qq.sessions.login import Attempt, Outcome

TIMEOUT_S = 12.0
"""How long a request waits for its login: longer than any login waits and its answer is held back."""
WAIT_MAX_S = 5.0
"""A login that would wait for longer is answered with 429."""
SHARE = 4
"""One in so many connections may wait for a login; when more would, they are answered with 429, too."""


class HttpLogins:
    """Decides who requests are from."""

    def __init__(self, broker: Broker, connections: int) -> None:
        """There may be so many `connections` over HTTP."""
        self._broker = broker
        self._waiting_max = connections // SHARE
        self._waiting = 0
        """Logins that wait, for others or for their answer."""

    async def authenticate(self, user: str, password: str, peer_host: str) -> LoggedIn | None:
        """Who this is; None if it is nobody. Raises LoginThrottled, Unavailable."""
        decided: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def answer(outcome: Outcome) -> None:
            if not decided.done():
                decided.set_result(outcome)

        login = Login(user, password.encode(), peer_host, protocol="http")
        try:
            attempt = self._broker.logins.attempt(login, answer)
        except LoginsBusy as busy:
            raise LoginThrottled(busy.wait_s) from None
        if attempt is not None:
            await self._wait_for(attempt, decided)
        outcome = decided.result()
        if isinstance(outcome, TokenUser):
            return LoggedIn(outcome.name, outcome.scopes.tags, outcome.scopes, outcome.expires_s)
        known = self._broker.machine.users.get(user)  # who may have been deleted since the answer
        return LoggedIn(user, known.tags) if known is not None and outcome else None

    async def _wait_for(self, attempt: Attempt, decided: asyncio.Future[Outcome]) -> None:
        """Wait for an answer that is held back, if few wait, and not for long. Raises LoginThrottled, Unavailable."""
        self._waiting += 1
        try:
            if self._waiting > self._waiting_max or attempt.wait_s > WAIT_MAX_S:
                raise LoginThrottled(attempt.wait_s)
            async with asyncio.timeout(TIMEOUT_S):
                await decided
        except TimeoutError:  # nobody is refused for good
            why = self._broker.why_undecided() or "the log does not go on"
            raise Unavailable(f"the login cannot be decided: {why}; {NOT_CARRIED_OUT}") from None
        finally:
            self._waiting -= 1
            attempt.cancel()
