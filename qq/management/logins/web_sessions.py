"""Web sessions of the cluster: login to the page, checks of session tokens, logouts.

A session ends at its maximum age, after a logout, when its user is deleted or gets a new password, or when its OAuth 2
token expires. Each node sees all but logouts by itself, unless the user is recreated with the same hash. So nodes send
logouts and deletions to each other: at once, again every second for a while to nodes that do not answer, and once a
minute. So a node that was away learns of them, too. Logouts are kept in memory only: if all nodes restart at once, an
ended session is valid again for the rest of its time. (The browser has forgotten it in any case.)

Invariant: memory is bounded, and the acts of a user, however many, end no session of a different user.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

from qq.management.changes.request_session import until_applied
from qq.management.errors import Unavailable
from qq.management.logins.session_tokens import ID_BYTES, Tokens, Vouched, WebSession
from qq.management.reports.logins import WebLogin
from qq.scopes import Scopes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from qq.machine.catalog.permissions import User
    from qq.management.logins.session_tokens import OpenedToken
    from qq.management.node_queries import NodeQueries
    from qq.management.reports.logins import LoggedIn
    from qq.sessions.broker import Broker

ENDED_MAX = 10_000
"""Ended sessions kept at most: some MB. The user that was quiet for longest is forgotten first."""
ENDED_PER_USER_MAX = 100
"""Ended sessions of a user kept at most. With more, all sessions that began before the oldest of them count as ended.
"""
EXCHANGE_INTERVAL_S = 60.0
"""Seconds between questions to the other nodes about ended sessions."""
RESEND_S = 1.0
"""Seconds until an ended session is sent again to nodes that have not answered."""
UNSENT_MAX = 100
"""Ended sessions sent to the nodes actively at most. Nodes learn of the rest when they next ask for ended sessions."""
ENDED, ENDED_NOW = "ended-sessions", "ended-session"
"""Topics of questions between nodes: all ended sessions, and a session that has just ended."""
_VOUCHED = "\0"
"""Prefix of the user name in sessions that a token vouches for. Such a user differs from the cluster's own user with
the same name, so it cannot end that user's sessions.
"""
_ALL_BEFORE = b""
"""In place of a session id: all sessions of the user that began at this time or earlier."""


class EndedSessions:
    """Sessions that were ended before they expired."""

    def __init__(self) -> None:
        self._of_users: dict[str, dict[bytes, int]] = {}
        """User -> session id -> begin of the ended session, in seconds. The user with the newest logout is last."""
        self._count = 0

    def __contains__(self, session: WebSession) -> bool:
        ended = self._of_users.get(session.user, {})
        is_one = session.id != _ALL_BEFORE and session.id in ended
        return is_one or session.began_s <= ended.get(_ALL_BEFORE, -1)

    def add(self, session: WebSession) -> None:
        """Record that a session has ended."""
        user, number, began_s = session
        ended = self._of_users.pop(user, {})
        self._count -= len(ended)
        ended[number] = max(began_s, ended.get(number, -1))
        if len(ended) > ENDED_PER_USER_MAX:
            first = next(number for number in ended if number != _ALL_BEFORE)
            ended[_ALL_BEFORE] = max(ended.pop(first), ended.get(_ALL_BEFORE, -1))
        self._of_users[user] = ended
        self._count += len(ended)
        if self._count > ENDED_MAX:
            quiet = next(iter(self._of_users))
            self._count -= len(self._of_users.pop(quiet))

    def begin(self, user: str, now_s: int) -> int:
        """Return the begin for a new session of a user: now, or later if sessions up to now were all ended."""
        return max(now_s, self._of_users.get(user, {}).get(_ALL_BEFORE, -1) + 1)

    def rows(self, after: Any) -> Iterator[tuple[list[Any], WebSession]]:
        """Yield the ended sessions after a user name and session id, in the order of these."""
        user_after, number_after = after or ("", _ALL_BEFORE)
        for user in sorted(user for user in self._of_users if user >= user_after):
            for number, began_s in sorted(self._of_users.get(user, {}).items()):
                if after is None or [user, number] > [user_after, number_after]:
                    yield [user, number], WebSession(user, number, began_s)


class WebSessions:
    """Begins, finds and ends web sessions."""

    def __init__(
        self,
        broker: Broker,
        queries: NodeQueries,
        cluster: str,
        cluster_secrets: Callable[[], Sequence[bytes]],
    ) -> None:
        self._broker = broker
        self._queries = queries
        self._tokens = Tokens(cluster, cluster_secrets)
        self._ended = EndedSessions()
        self._unsent: dict[WebSession, int] = {}
        """Ended sessions that other nodes may not know of -> end of sending them, in seconds since 1970."""
        queries.answer_rows(ENDED, self._ended.rows)
        queries.answer(ENDED_NOW, self._ended_elsewhere)

    def begin(self, user: str) -> WebLogin | None:
        """Begin a session of a user who has just logged in; return None if the user was deleted."""
        known = self._broker.machine.users.get(user)
        if known is None:
            return None
        session = WebSession(user, secrets.token_bytes(ID_BYTES), self._ended.begin(user, self._now_s()))
        return self._login(session, known, self._tokens.seal(session, known))

    def begin_vouched(self, found: LoggedIn) -> WebLogin | None:
        """Begin a session of a user that an OAuth 2 token vouches for; return None if it expired or is too large."""
        assert found.scopes is not None
        session = WebSession(_VOUCHED + found.user, secrets.token_bytes(ID_BYTES), self._now_s())
        vouched = Vouched(found.scopes.texts, int(found.expires_s))
        token = self._tokens.seal_vouched(session, vouched)
        if token is None or vouched.expires_s <= session.began_s:
            return None
        return self._vouched_login(session, vouched, token)

    async def find(self, token: str, peer_host: str) -> WebLogin | None:
        """Return the session of a token if it is valid, also if it has just begun at another node.

        Raises Unavailable if this node cannot know that without the other nodes.
        """
        opened = self._tokens.open(token)
        if opened is None or self._is_over(opened.session):
            return None
        if opened.vouched is not None:
            return self._vouched_session(opened.session, opened.vouched, token, peer_host)
        user = self._user_of(opened)
        if user is None:
            unseen_before = self._broker.submissions.times_unseen
            await until_applied(self._broker, [], lambda: None)
            user = self._user_of(opened)
            if user is None and self._broker.submissions.times_unseen != unseen_before:
                raise Unavailable(
                    "the node was away from its cluster: it does not know whose session this is"
                )
        if user is None:
            self._ended.add(opened.session)  # avoids another read of the log for it
            return None
        if not self._broker.logins.may_come_from(user.name, peer_host):
            return None
        return self._login(opened.session, user, token)

    def _vouched_session(
        self, session: WebSession, vouched: Vouched, token: str, peer_host: str
    ) -> WebLogin | None:
        """Return a session of an OAuth 2 token, or None if it expired or this node no longer accepts tokens."""
        logins, login = self._broker.logins, self._vouched_login(session, vouched, token)
        is_over = self._now_s() >= login.expires_s or logins.verifier is None
        return None if is_over or not logins.may_come_from(login.user, peer_host) else login

    async def end(self, token: str) -> None:
        """End a session, at this node and at the nodes that answer."""
        opened = self._tokens.open(token)
        if opened is not None:
            await self._end([opened.session])

    async def end_of_users(self, users: Iterable[str]) -> None:
        """End all sessions of deleted users, because a user recreated with the same name is a different user."""
        now_s = self._now_s()
        # No session of the user can have begun later than this.
        await self._end([WebSession(user, _ALL_BEFORE, self._ended.begin(user, now_s)) for user in users])

    async def watch(self) -> None:
        """Ask other nodes for ended sessions, and send them those that they may not know. Runs until cancelled."""
        while True:
            for rows in (await self._queries.rows_of_all(ENDED)).values():
                for row in rows:
                    self._ended_elsewhere(*row)
            for _ in range(max(1, int(EXCHANGE_INTERVAL_S / RESEND_S))):
                await asyncio.sleep(min(EXCHANGE_INTERVAL_S, RESEND_S))
                await self._send_unsent()

    async def _end(self, sessions: Sequence[WebSession]) -> None:
        until_s = self._now_s() + int(EXCHANGE_INTERVAL_S)
        for session in sessions:
            self._ended.add(session)
            if len(self._unsent) < UNSENT_MAX:
                self._unsent[session] = until_s
        await self._send_unsent()

    async def _send_unsent(self) -> None:
        """Send the other nodes the ended sessions that they may not know of."""
        await asyncio.gather(*map(self._send_to_others, list(self._unsent)))

    async def _send_to_others(self, session: WebSession) -> None:
        answers = await self._queries.query_all(ENDED_NOW, *session)
        if None not in answers.values() or self._now_s() >= self._unsent.get(session, 0):
            self._unsent.pop(session, None)

    def _ended_elsewhere(self, user: str, number: bytes, began_s: int) -> bool:
        session = WebSession(user, number, began_s)
        if session not in self._ended:
            self._ended.add(session)
        return True

    def _user_of(self, opened: OpenedToken) -> User | None:
        user = self._broker.machine.users.get(opened.session.user)
        return user if user is not None and opened.fits(user) else None

    def _is_over(self, session: WebSession) -> bool:
        return self._now_s() >= self._expiry_s(session) or session in self._ended

    def _login(self, session: WebSession, user: User, token: str) -> WebLogin:
        return WebLogin(token, user.name, user.tags, session.csrf_token, self._expiry_s(session))

    def _vouched_login(self, session: WebSession, vouched: Vouched, token: str) -> WebLogin:
        scopes, user = Scopes(vouched.scopes), session.user.removeprefix(_VOUCHED)
        expires_s = min(self._expiry_s(session), vouched.expires_s)
        return WebLogin(token, user, scopes.tags, session.csrf_token, expires_s, scopes)

    def _expiry_s(self, session: WebSession) -> int:
        return session.began_s + int(self._broker.limits.http_session_s)

    def _now_s(self) -> int:
        return self._broker.runtime.wall_ms() // 1000
