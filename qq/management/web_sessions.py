"""The web sessions of the cluster, as one node knows them.

A session ends when it is too old, when its user is gone or has another password, or the token of OAuth 2 with which it
began expires, and when somebody logs out. All but the last every node sees by itself, unless the user is made anew with
the same hash. Of logouts and deletions the nodes tell each other: at once, again each second for a while to those that
do not answer, and once a minute, so that a node that was away hears of it, too. It is in memory only: a session
that was ended is good again, for the rest of its time, if all nodes are started anew at once. (The browser has
forgotten it in any case.)

Invariant: what is remembered is bounded, and what one user does, however often, ends no session of another user.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

from qq.http.endpoints.tokens import ID_BYTES, Tokens, Vouched, WebSession
from qq.http.view import Unavailable, WebLogin
from qq.management.sessions import until_applied
from qq.scopes import Scopes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from qq.http.endpoints.tokens import OpenedToken
    from qq.http.view import LoggedIn
    from qq.machine.catalog.permissions import User
    from qq.management.others import OtherNodes
    from qq.sessions.broker import Broker

ENDED_MAX = 10_000
"""How many ended sessions are remembered: some MB. The user who has been quiet for longest makes room."""
ENDED_PER_USER_MAX = 100
"""How many of one user: when there are more, all that began before the first of them count as ended."""
TELL_INTERVAL_S = 60.0
"""How often other nodes are asked which sessions were ended."""
TELL_AGAIN_S = 1.0
"""How often those are told again that have not answered."""
UNTOLD_MAX = 100
"""How many ended sessions others are told of in this way; of more they hear within the interval above."""
ENDED, ENDED_NOW = "ended-sessions", "ended-session"
"""The topics that nodes ask each other about: what was ended, and that one is ended now."""
_VOUCHED = "\0"
"""What the name of a session's user begins with for whom a token vouches: that user is not the one in the cluster's
list who has the same name, and ends no sessions of that one."""
_ALL_BEFORE = b""
"""In the place of a session's id: it stands for all sessions of the user that did not begin later than it."""


class EndedSessions:
    """The sessions that were ended before their time."""

    def __init__(self) -> None:
        self._of_users: dict[str, dict[bytes, int]] = {}
        """When the sessions began that were ended, by their ids, for each user. Who ended one last is last."""
        self._count = 0

    def __contains__(self, session: WebSession) -> bool:
        ended = self._of_users.get(session.user, {})
        is_one = session.id != _ALL_BEFORE and session.id in ended
        return is_one or session.began_s <= ended.get(_ALL_BEFORE, -1)

    def add(self, session: WebSession) -> None:
        """Note that a session has ended."""
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
        """When a session of a user begins that is not among those that were ended all together."""
        return max(now_s, self._of_users.get(user, {}).get(_ALL_BEFORE, -1) + 1)

    def rows(self, after: Any) -> Iterator[tuple[list[Any], WebSession]]:
        """The ended sessions behind a user's name and a session's id, in the order of these."""
        user_after, number_after = after or ("", _ALL_BEFORE)
        for user in sorted(user for user in self._of_users if user >= user_after):
            for number, began_s in sorted(self._of_users.get(user, {}).items()):
                if after is None or [user, number] > [user_after, number_after]:
                    yield [user, number], WebSession(user, number, began_s)


class WebSessions:
    """The part of `qq.http.view.ManagementView` that knows web sessions."""

    def __init__(
        self, broker: Broker, others: OtherNodes, cluster: str, cluster_secrets: Callable[[], Sequence[bytes]]
    ) -> None:
        self._broker = broker
        self._others = others
        self._tokens = Tokens(cluster, cluster_secrets)
        self._ended = EndedSessions()
        self._untold: dict[WebSession, int] = {}
        """Sessions of which others may not know that they ended, and until when (seconds since 1970) they are told."""
        others.tell_rows(ENDED, self._ended.rows)
        others.tell(ENDED_NOW, self._told)

    def begin_session(self, user: str) -> WebLogin | None:
        """Begin a session of a user who has just logged in; None if the user is gone."""
        known = self._broker.machine.users.get(user)
        if known is None:
            return None
        session = WebSession(user, secrets.token_bytes(ID_BYTES), self._ended.begin(user, self._now_s()))
        return self._shown(session, known, self._tokens.seal(session, known))

    def begin_vouched_session(self, found: LoggedIn) -> WebLogin | None:
        """Begin a session of a user for whom a token vouches; None if it has expired, or says more than fits."""
        assert found.scopes is not None
        session = WebSession(_VOUCHED + found.user, secrets.token_bytes(ID_BYTES), self._now_s())
        vouched = Vouched(found.scopes.texts, int(found.expires_s))
        token = self._tokens.seal_vouched(session, vouched)
        if token is None or vouched.expires_s <= session.began_s:
            return None
        return self._shown_vouched(session, vouched, token)

    async def session(self, token: str, peer_host: str) -> WebLogin | None:
        """The session that a token is of, if it is good; also one that began at another node just now.

        Raises Unavailable if that cannot be known without the others.
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
            self._ended.add(opened.session)  # so that it is not looked for again
            return None
        if not self._broker.logins.may_come_from(user.name, peer_host):
            return None
        return self._shown(opened.session, user, token)

    def _vouched_session(
        self, session: WebSession, vouched: Vouched, token: str, peer_host: str
    ) -> WebLogin | None:
        """A session of somebody with a token of OAuth 2, if that has not expired and the node still takes such."""
        logins, shown = self._broker.logins, self._shown_vouched(session, vouched, token)
        is_over = self._now_s() >= shown.expires_s or logins.verifier is None
        return None if is_over or not logins.may_come_from(shown.user, peer_host) else shown

    async def end_session(self, token: str) -> None:
        """End a session here, and at the nodes that answer."""
        opened = self._tokens.open(token)
        if opened is not None:
            await self._end([opened.session])

    async def end_sessions_of(self, users: Iterable[str]) -> None:
        """End all sessions of these users, who are gone: one who is made anew is somebody else."""
        now_s = self._now_s()
        # As late as their newest session may have begun.
        await self._end([WebSession(user, _ALL_BEFORE, self._ended.begin(user, now_s)) for user in users])

    async def watch_sessions(self) -> None:
        """Hear which sessions were ended at other nodes, and tell them again if they did not hear, until cancelled."""
        while True:
            for rows in (await self._others.rows_of_all(ENDED)).values():
                for row in rows:
                    self._told(*row)
            for _ in range(max(1, int(TELL_INTERVAL_S / TELL_AGAIN_S))):
                await asyncio.sleep(min(TELL_INTERVAL_S, TELL_AGAIN_S))
                await self._tell()

    async def _end(self, sessions: Sequence[WebSession]) -> None:
        until_s = self._now_s() + int(TELL_INTERVAL_S)
        for session in sessions:
            self._ended.add(session)
            if len(self._untold) < UNTOLD_MAX:
                self._untold[session] = until_s
        await self._tell()

    async def _tell(self) -> None:
        """Tell the other nodes what they may not know."""
        await asyncio.gather(*map(self._tell_of, list(self._untold)))

    async def _tell_of(self, session: WebSession) -> None:
        told = await self._others.told_by_all(ENDED_NOW, *session)
        if None not in told.values() or self._now_s() >= self._untold.get(session, 0):
            self._untold.pop(session, None)

    def _told(self, user: str, number: bytes, began_s: int) -> bool:
        session = WebSession(user, number, began_s)
        if session not in self._ended:
            self._ended.add(session)
        return True

    def _user_of(self, opened: OpenedToken) -> User | None:
        user = self._broker.machine.users.get(opened.session.user)
        return user if user is not None and opened.fits(user) else None

    def _is_over(self, session: WebSession) -> bool:
        return self._now_s() >= self._expiry_s(session) or session in self._ended

    def _shown(self, session: WebSession, user: User, token: str) -> WebLogin:
        return WebLogin(token, user.name, user.tags, session.csrf_token, self._expiry_s(session))

    def _shown_vouched(self, session: WebSession, vouched: Vouched, token: str) -> WebLogin:
        scopes, user = Scopes(vouched.scopes), session.user.removeprefix(_VOUCHED)
        expires_s = min(self._expiry_s(session), vouched.expires_s)
        return WebLogin(token, user, scopes.tags, session.csrf_token, expires_s, scopes)

    def _expiry_s(self, session: WebSession) -> int:
        return session.began_s + int(self._broker.limits.http_session_s)

    def _now_s(self) -> int:
        return self._broker.runtime.wall_ms() // 1000
