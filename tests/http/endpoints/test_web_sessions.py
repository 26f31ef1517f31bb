"""Web sessions: logging in with the page and out again, through a real server, and at several nodes."""

from __future__ import annotations

import asyncio
import time
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import pytest

from cluster.raft.messages import Query, QueryAnswer
from cluster.transport.queries import Queries
from qq.machine.catalog.permissions import SHA256, User
from qq.machine.protocol.commands import DeleteUser, PutUser
from qq.management.errors import Unavailable
from qq.management.logins import session_tokens, web_sessions
from qq.management.logins.session_tokens import TOKEN_LENGTH_MAX, Tokens, Vouched, WebSession
from qq.management.logins.web_sessions import ENDED_PER_USER_MAX, EndedSessions, WebSessions
from qq.management.node_queries import NodeQueries
from qq.management.reports.logins import LoggedIn, WebLogin
from qq.scopes import Scopes
from tests.http.fakes import PASSWORD, MachineManagement, is_loopback
from tests.http.http_node import GUEST, Answer, Node, answer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.http.http_node import Client

Machine = Node[MachineManagement]

FORM = {"username": "guest", "password": PASSWORD}
HOST = {"Host": "node:15672"}
PAGE = {"X-Requested-With": "qq-page"}
SECOND_ADMINISTRATOR = PutUser("second", b"salt", b"hash", ["administrator"])
"""Without a second administrator, the last administrator would keep its tag and its user."""


@pytest.fixture
def node() -> Machine:
    return Node(MachineManagement())


class Browser:
    """Keeps the cookie of a node, as a browser does."""

    def __init__(self, client: Client, headers: dict[str, str] = HOST) -> None:
        self._client = client
        self._headers = headers
        self.cookie: dict[str, str] = {}
        self.csrf: dict[str, str] = {}

    async def request(self, path: str, method: str = "GET", **options: Any) -> Answer:
        headers = self._headers | self.cookie | options.pop("headers", {})
        return await answer(self._client, path, method, headers=headers, **options)

    async def log_in(self, **options: Any) -> Answer:
        response = await self.request("/api/login", "POST", **(options or {"data": FORM}))
        assert response.status == 200
        [morsel] = SimpleCookie(response.headers["Set-Cookie"]).values()
        self.cookie = {"Cookie": f"{morsel.key}={morsel.value}"}
        self.csrf = {"X-CSRF-Token": response.json["csrf_token"]}
        return response

    async def status(self) -> int:
        return (await self.request("/api/session")).status


def browse(
    node: Machine, story: Callable[[Browser], Awaitable[None]], headers: dict[str, str] = HOST
) -> None:
    async def log_in_everywhere(client: Client) -> None:
        await story(Browser(client, headers))

    node.run(log_in_everywhere)


# --- logging in and out


@pytest.mark.parametrize("how", ["data", "json"])
def test_user_logs_in_and_out(node: Machine, how: str) -> None:
    async def story(browser: Browser) -> None:
        response = await browser.log_in(**{how: FORM})
        shown = response.json
        assert (shown["name"], shown["tags"]) == ("guest", ["administrator"])
        assert abs(shown["expiry"] - time.time() - 8 * 3600) < 5
        assert PASSWORD not in response.text + response.headers["Set-Cookie"]
        assert (await browser.request("/api/session")).json == shown
        assert (await browser.request("/api/whoami")).json["name"] == "guest"
        away = await browser.request("/api/session", "DELETE", headers=browser.csrf)
        assert away.status == 204
        assert "Max-Age=0" in away.headers["Set-Cookie"]
        # Also with a copy of the cookie.
        assert await browser.status() == 401
        assert (await browser.request("/api/whoami")).status == 401

    browse(node, story)


def test_failed_login_is_answered_with_its_reason(node: Machine) -> None:
    node.view.tags["ann"] = ["other"]

    async def story(browser: Browser) -> None:
        for status, options in (
            (401, {"data": FORM | {"password": "x"}}),
            (401, {"data": FORM | {"username": "ann"}}),
            (401, {"json": FORM | {"password": "x"}}),
            (401, {"data": {}}),
            (400, {"data": b"\xff"}),
            (400, {"data": b"a=1&" * 9}),
            (400, {"json": {"username": "guest"}}),
            (400, {"json": {"username": "guest", "password": ["x"]}}),
            (400, {"json": []}),
            (400, {"data": b'{"password": "\\ud800"}', "headers": {"Content-Type": "application/json"}}),
        ):
            response = await browser.request("/api/login", "POST", **options)
            assert (response.status, "Set-Cookie" in response.headers) == (status, False), options
        assert (await browser.request("/api/session")).json["reason"] == "there is no session: log in"
        # A logout without a login succeeds.
        assert (await browser.request("/api/login", "DELETE")).status == 204

    browse(node, story)


def test_the_cookie_is_for_the_browser_only_and_for_this_port(node: Machine) -> None:
    async def story(browser: Browser) -> None:
        cookie = (await browser.log_in()).headers["Set-Cookie"]
        assert cookie.startswith("qq-session-15672=")
        for attribute in ("HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=28"):
            assert attribute in cookie
        assert "Secure" not in cookie
        assert "Domain" not in cookie
        secure = await browser.request(
            "/api/login", "POST", data=FORM, headers={"X-Forwarded-Proto": "https"}
        )
        assert secure.headers["Set-Cookie"].startswith("__Host-qq-session-15672=")
        assert "Secure" in secure.headers["Set-Cookie"]
        for host, name in (
            ("node", "qq-session"),
            ("[::1]:7", "qq-session-7"),
            ("a:" + "1" * 6, "qq-session"),
        ):
            response = await browser.request("/api/login", "POST", data=FORM, headers={"Host": host})
            assert response.headers["Set-Cookie"].startswith(f"{name}=")

    browse(node, story)


def test_page_gets_no_basic_authentication_challenge(node: Machine) -> None:
    async def story(browser: Browser) -> None:
        for path in ("/api/cluster", "/api/session", "/api/nothing"):
            response = await browser.request(path, headers=PAGE)
            assert (response.status, "WWW-Authenticate" in response.headers) == (401, False)
            assert "WWW-Authenticate" in (await browser.request(path)).headers
        response = await browser.request("/api/login", "POST", data=FORM | {"password": "x"}, headers=PAGE)
        assert (response.status, "WWW-Authenticate" in response.headers) == (401, False)

    browse(node, story)


def test_password_precedes_the_session_except_for_the_page(node: Machine) -> None:
    node.add_user("ann", "monitoring")

    async def story(browser: Browser) -> None:
        await browser.log_in()
        ann = {"Authorization": "Basic " + "YW5uOmd1OsOpZXN0"}
        assert (await browser.request("/api/whoami", headers=ann)).json["name"] == "ann"
        assert (await browser.request("/api/whoami", headers=ann | PAGE)).json["name"] == "guest"
        # A script that keeps cookies needs no token for requests with a password.
        assert (await browser.request("/api/vhosts/v", "PUT", headers=GUEST)).status == 201

    browse(node, story)


# --- pages of other sites


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_a_change_needs_the_token_of_the_session(node: Machine, method: str) -> None:
    async def story(browser: Browser) -> None:
        await browser.log_in()
        for headers, reason in (
            ({}, "X-CSRF-Token is missing"),
            ({"X-CSRF-Token": ""}, "X-CSRF-Token is missing"),
            ({"X-CSRF-Token": "é"}, "X-CSRF-Token is not that of the session"),
            ({"X-CSRF-Token": "0" * 64}, "X-CSRF-Token is not that of the session"),
        ):
            response = await browser.request("/api/vhosts/v", method, headers=headers)
            assert (response.status, reason in response.json["reason"]) == (403, True)
        assert node.management.changes.applied == []
        assert (await browser.request("/api/vhosts/v", "PUT", headers=browser.csrf)).status == 201

    browse(node, story)


def test_logout_needs_the_token_of_the_session(node: Machine) -> None:
    async def story(browser: Browser) -> None:
        await browser.log_in()
        for path in ("/api/session", "/api/login"):
            assert (await browser.request(path, "DELETE")).status == 403
        assert await browser.status() == 200

    browse(node, story)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://node:15673"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_foreign_page_cannot_use_a_session(node: Machine, headers: dict[str, str]) -> None:
    async def story(browser: Browser) -> None:
        assert (await browser.request("/api/login", "POST", data=FORM, headers=headers)).status == 403
        await browser.log_in()
        response = await browser.request("/api/vhosts/v", "PUT", headers=browser.csrf | headers)
        assert (response.status, "another site" in response.json["reason"]) == (403, True)
        assert (await browser.request("/api/session", "DELETE", headers=browser.csrf | headers)).status == 403
        own = {"Origin": "http://node:15672", "Sec-Fetch-Site": "same-origin"}
        assert (await browser.request("/api/vhosts/v", "PUT", headers=browser.csrf | own)).status == 201

    browse(node, story)


# --- when a session ends


def test_a_session_ends_in_time(node: Machine) -> None:
    async def story(browser: Browser) -> None:
        response = await browser.log_in()
        for since, status in ((-1, 200), (0, 401)):
            now_ms = lambda since=since: (response.json["expiry"] + since) * 1000  # noqa: E731
            with patch.object(node.management.broker.runtime, "wall_ms", now_ms):
                assert await browser.status() == status

    browse(node, story)


@pytest.mark.parametrize(
    "commands",
    [
        [PutUser("guest", b"tlas", b"another", ["administrator"])],
        [DeleteUser("guest")],
        [DeleteUser("guest"), PutUser("guest", b"tlas", b"hash", ["administrator"])],
    ],
    ids=["password", "deleted", "made anew"],
)
def test_a_session_ends_with_its_password_and_its_user(node: Machine, commands: list[Any]) -> None:
    async def story(browser: Browser) -> None:
        await browser.log_in()
        node.management.make(SECOND_ADMINISTRATOR)
        node.management.make(*commands)
        before = node.management.group._sequence
        assert [await browser.status() for _ in range(3)] == [401] * 3
        # The log gets a single barrier: repeated requests do not keep it busy.
        assert node.management.group._sequence - before <= 1
        assert (await browser.request("/api/whoami")).status == 401

    browse(node, story)


def test_session_uses_the_current_tags_of_its_user(node: Machine) -> None:
    async def story(browser: Browser) -> None:
        await browser.log_in()
        user = node.management.machine.users["guest"]
        node.management.make(SECOND_ADMINISTRATOR)
        node.management.make(PutUser("guest", user.salt, user.hash, ["monitoring"]))
        assert (await browser.request("/api/session")).json["tags"] == ["monitoring"]
        assert (await browser.request("/api/vhosts/v", "PUT", headers=browser.csrf)).status == 401
        node.management.make(PutUser("guest", user.salt, user.hash, []))
        assert (await browser.request("/api/whoami")).status == 401

    browse(node, story)


def test_loopback_only_user_cannot_use_the_cookie_elsewhere(node: Machine) -> None:
    async def story(browser: Browser) -> None:
        await browser.log_in()
        assert is_loopback("127.0.0.1")
        token = browser.cookie["Cookie"].partition("=")[2]
        assert await node.management.sessions.find(token, "127.0.0.1") is not None
        assert await node.management.sessions.find(token, "192.0.2.7") is None

    browse(node, story)


@pytest.mark.parametrize(
    "cookie", ["", "x", "." * 700, "eA.eA", "é.é", "A" * 5000, "%00", "AAAA." + "A" * 86]
)
def test_malformed_cookie_is_no_session(node: Machine, cookie: str) -> None:
    async def story(browser: Browser) -> None:
        headers = {"Cookie": f"qq-session-15672={cookie}"}
        assert (await browser.request("/api/session", headers=headers)).status in (400, 401)
        assert (await browser.request("/api/whoami", headers=GUEST | headers)).status in (200, 400)

    browse(node, story)


# --- at several nodes


USER = User("é" * 127, b"salt", b"h" * 32, [], SHA256)
SESSION = WebSession(USER.name, b"i" * 16, 1_800_000_000)
OLD, NEW = b"o" * 16, b"n" * 16


def test_token_is_valid_with_a_shared_secret_during_a_rotation() -> None:
    rounds = [[OLD], [OLD, NEW], [NEW]]
    for one, other in ((0, 1), (1, 0), (1, 2), (2, 1)):
        sealed = Tokens("qq", lambda one=one: rounds[one]).seal(SESSION, USER)
        assert len(sealed) < session_tokens.TOKEN_LENGTH_MAX
        opened = Tokens("qq", lambda other=other: rounds[other]).open(sealed)
        assert opened is not None
        assert opened.session == SESSION
        assert opened.fits(USER)
        assert not opened.fits(USER._replace(hash=b"x" * 32))
    assert Tokens("qq", lambda: [NEW]).open(Tokens("qq", lambda: [OLD]).seal(SESSION, USER)) is None


def test_a_token_is_of_its_cluster_and_cannot_be_altered() -> None:
    mine = Tokens("qq", lambda: [OLD])
    sealed = mine.seal(SESSION, USER)
    assert Tokens("other", lambda: [OLD]).open(sealed) is None
    other = mine.seal(SESSION._replace(user="admin"), USER)
    payload, signature = sealed.split(".")
    assert mine.open(f"{other.split('.')[0]}.{signature}") is None
    assert mine.open(payload) is mine.open(f"{payload}.") is None
    # The part that vouches for the password does not get by without that for the session.
    taken = mine.open(f"{payload}.{signature[:43]}{'A' * 43}")
    assert taken is None or not taken.fits(USER)


def test_ended_sessions_are_bounded_and_stay_ended() -> None:
    ended = EndedSessions()
    other = WebSession("other", b"o" * 16, 5)
    ended.add(other)
    mine = [WebSession("me", number.to_bytes(16), number) for number in range(3 * ENDED_PER_USER_MAX)]
    for session in mine:
        ended.add(session)
    assert all(session in ended for session in [*mine, other])
    assert mine[-1]._replace(id=b"n" * 16) not in ended
    assert WebSession("other", b"n" * 16, 5) not in ended
    assert len(list(ended.rows(None))) <= ENDED_PER_USER_MAX + 2
    elsewhere = EndedSessions()
    for _, session in ended.rows(None):
        elsewhere.add(session)
    assert all(session in elsewhere for session in [*mine, other])


def test_ended_sessions_of_the_quietest_user_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_sessions, "ENDED_MAX", 3)
    ended = EndedSessions()
    sessions = [WebSession(f"u{number}", b"i" * 16, 1) for number in range(4)]
    for session in sessions:
        ended.add(session)
    assert [session in ended for session in sessions] == [False, True, True, True]


def test_rows_of_ended_sessions_continue_after_a_key() -> None:
    ended = EndedSessions()
    sessions = [WebSession(user, number * 16, 1) for user in "ab" for number in (b"1", b"2")]
    for session in reversed(sessions):
        ended.add(session)
    rows = list(ended.rows(None))
    assert [session for _, session in rows] == sessions
    for place, (key, _) in enumerate(rows):
        assert [session for _, session in ended.rows(key)] == sessions[place + 1 :]


class Cluster:
    """Two nodes; their queries arrive unless the link is cut."""

    def __init__(self) -> None:
        self.is_cut = False
        self.nodes = {name: MachineManagement() for name in "ab"}
        self._queries = {
            name: Queries(
                lambda _: not self.is_cut, lambda peer, message, name=name: self._send(name, peer, message)
            )
            for name in "ab"
        }
        for name, other in ("ab", "ba"):
            node = self.nodes[name]
            queries = NodeQueries(self._queries[name], lambda other=other: [other])
            node.sessions = WebSessions(node.broker, queries, "qq", lambda: [OLD])

    def _send(self, sender: str, receiver: str, message: Any) -> None:
        there = self._queries[receiver]
        if isinstance(message, Query):
            there.query_received(sender, message)
        elif isinstance(message, QueryAnswer):
            there.answer_received(sender, message)


def begun_where_both_know_the_user(one: MachineManagement, other: MachineManagement) -> WebLogin:
    """Return a session that has begun at one of two nodes."""
    user = one.machine.users["guest"]
    other.make(PutUser("guest", user.salt, user.hash, user.tags))
    session = one.sessions.begin("guest")
    assert session is not None
    return session


@pytest.mark.parametrize("is_cut", [False, True])
def test_session_is_valid_at_all_nodes_and_ends_at_all(is_cut: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_sessions, "EXCHANGE_INTERVAL_S", 0.01)

    async def story() -> None:
        cluster = Cluster()
        one, other = cluster.nodes.values()
        session = begun_where_both_know_the_user(one, other)
        assert await other.sessions.find(session.token, "::1") == session
        cluster.is_cut = is_cut
        await one.sessions.end(session.token)
        assert await one.sessions.find(session.token, "::1") is None
        if is_cut:  # it is heard of when there is a link again
            assert await other.sessions.find(session.token, "::1") is not None
            cluster.is_cut = False
            watching = asyncio.ensure_future(other.sessions.watch())
            await asyncio.sleep(0.05)
            watching.cancel()
        assert await other.sessions.find(session.token, "::1") is None

    asyncio.run(story())


def test_missed_logout_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_sessions, "RESEND_S", 0.01)

    async def story() -> None:
        cluster = Cluster()
        one, other = cluster.nodes.values()
        session = begun_where_both_know_the_user(one, other)
        cluster.is_cut = True
        watching = asyncio.ensure_future(one.sessions.watch())
        await one.sessions.end(session.token)
        await asyncio.sleep(0.05)
        assert await other.sessions.find(session.token, "::1") is not None
        cluster.is_cut = False
        await asyncio.sleep(0.05)
        watching.cancel()
        assert await other.sessions.find(session.token, "::1") is None
        assert not one.sessions._unsent

    asyncio.run(story())


def test_recreated_user_with_the_same_hash_has_no_session(node: Machine) -> None:
    async def story(browser: Browser) -> None:
        node.management.make(PutUser("ann", b"salt", b"hash", ["administrator"]))
        ann = node.management.machine.users["ann"]
        both = ("users/ann", "DELETE", None), ("users/bulk-delete", "POST", {"users": ["ann", "x"]})
        for path, method, body in both:
            before = node.management.sessions.begin("ann")
            assert before is not None
            assert (await browser.request(f"/api/{path}", method, headers=GUEST, json=body)).status == 204
            node.management.make(PutUser("ann", ann.salt, ann.hash, ann.tags))
            assert await node.management.sessions.find(before.token, "::1") is None
            after = node.management.sessions.begin("ann")
            assert after is not None
            assert await node.management.sessions.find(after.token, "::1") == after

    browse(node, story)


def test_session_of_a_user_just_created_at_a_peer_is_valid(node: Machine) -> None:
    async def story() -> None:
        elsewhere = MachineManagement()
        elsewhere.make(PutUser("ann", b"salt", b"h" * 32, ["monitoring"]))
        session = elsewhere.sessions.begin("ann")
        assert session is not None
        node.management.make_elsewhere(PutUser("ann", b"salt", b"h" * 32, ["monitoring"]))
        assert await node.management.sessions.find(session.token, "::1") == session

    asyncio.run(story())


def test_node_that_was_away_keeps_sessions_that_it_cannot_judge(node: Machine) -> None:
    """Unknown events may have happened while it was away."""

    async def story() -> None:
        elsewhere = MachineManagement()
        elsewhere.make(PutUser("ann", b"salt", b"h" * 32, ["monitoring"]))
        session = elsewhere.sessions.begin("ann")
        assert session is not None
        broker = node.management.broker
        broker.live = True
        search = asyncio.ensure_future(node.management.sessions.find(session.token, "::1"))
        await asyncio.sleep(0)
        broker.submissions.abandon()
        broker.submissions.applied(0)
        with pytest.raises(Unavailable):
            await search
        node.management.make(PutUser("ann", b"salt", b"h" * 32, ["monitoring"]))
        assert await node.management.sessions.find(session.token, "::1") == session

    asyncio.run(story())


# --- the issuer's login page


def test_a_node_without_an_issuer_is_logged_in_to_with_passwords(node: Machine) -> None:
    assert node.request("/api/auth").json == {"oauth_enabled": False}
    for path in ("/api/oauth2/login", "/api/oauth2/callback?code=x&state=y"):
        response = node.request(path)
        assert (response.status, "Set-Cookie" in response.headers) == (404, False)
        assert response.json["reason"].startswith("this node is logged in to with passwords")


def test_session_of_a_token_is_sealed_with_its_scopes(node: Machine) -> None:
    mine = Tokens("qq", lambda: [OLD])
    vouched = Vouched(["tag:management", "read:*"], 1_900_000_000)
    sealed = mine.seal_vouched(SESSION, vouched)
    assert sealed is not None
    opened = mine.open(sealed)
    assert opened is not None
    assert (opened.session, opened.vouched) == (SESSION, vouched)
    assert not opened.fits(USER)
    assert Tokens("qq", lambda: [NEW]).open(sealed) is None
    signature = sealed.split(".")[1]
    assert mine.open(f"{mine.seal(SESSION, USER).split('.')[0]}.{signature}") is None
    assert mine.seal_vouched(SESSION, Vouched(["x" * TOKEN_LENGTH_MAX], 1)) is None


def test_session_of_a_token_ends_with_the_token_or_the_verifier(
    node: Machine,
) -> None:
    management, now_s = node.management, 1_900_000_000
    runtime, logins = management.broker.runtime, management.broker.logins
    logins.verifier = cast("Any", "there is one")
    found = LoggedIn("ann", ["management"], Scopes(["tag:management"]), now_s + 600.9)

    def begun(at_s: int) -> WebLogin | None:
        with patch.object(runtime, "wall_ms", lambda: at_s * 1000):
            return management.sessions.begin_vouched(found)

    def is_good(token: str, at_s: int) -> bool:
        with patch.object(runtime, "wall_ms", lambda: at_s * 1000):
            return asyncio.run(management.sessions.find(token, "127.0.0.1")) is not None

    session = begun(now_s)
    assert session is not None
    assert (session.user, session.tags, session.expires_s) == ("ann", {"management"}, now_s + 600)
    assert is_good(session.token, now_s + 599)
    assert not is_good(session.token, now_s + 600)
    assert begun(now_s + 600) is None
    logins.verifier = None
    assert not is_good(session.token, now_s)
