"""Login to the page with the login page of an issuer: a real node, a real provider, and the behaviour of a browser."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from http.client import HTTPConnection
from http.cookies import SimpleCookie
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest

from qq.testing import ClusterNode, LocalCluster
from tests.oauth2.issuer import new_key
from tests.oauth2.openid import CLIENT, OpenIdProvider

LOGIN, CALLBACK = "/api/oauth2/login", "/api/oauth2/callback"


@pytest.fixture(scope="module")
def shared() -> Generator[OpenIdProvider]:
    with OpenIdProvider() as provider:
        yield provider


@pytest.fixture
def provider(shared: OpenIdProvider) -> OpenIdProvider:
    shared.scopes = ("tag:management", "read:%2F")
    shared.claims, shared.id_claims, shared.refuses = {}, {}, False
    return shared


@pytest.fixture(scope="module")
def cluster(shared: OpenIdProvider) -> Generator[LocalCluster]:
    scopes = ["openid", "profile", "rabbitmq.tag:management"]
    with LocalCluster(nodes=3, settings={"oauth2": shared.settings() | {"scopes": scopes}}) as cluster:
        yield cluster


@pytest.fixture
def node(cluster: LocalCluster) -> ClusterNode:
    return cluster.nodes[0]


class Response(NamedTuple):
    status: int
    place: str
    """Where the browser is sent."""
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Browser:
    """Keeps cookies, and goes where it is sent when it is told to."""

    def __init__(self, node: ClusterNode) -> None:
        self.port = node.http_port
        self.cookies: dict[str, str] = {}
        self.attributes: dict[str, Any] = {}
        self.seen: list[str] = []
        """All that the node has answered, headers included, and all addresses."""

    def request(self, path: str, method: str = "GET", port: int = 0, **headers: str) -> Response:
        return self.go(f"http://127.0.0.1:{self.port}{path}", method, port, **headers)

    def go(self, url: str, method: str = "GET", port: int = 0, **headers: str) -> Response:
        """Request an address; with `port` a second node answers, as behind a load balancer."""
        parts = urlsplit(url)
        is_node = parts.port == self.port
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        sent = {"Host": parts.netloc} | ({"Cookie": cookies} if is_node and cookies else {})
        connection = HTTPConnection("127.0.0.1", port or parts.port, timeout=10)
        try:
            connection.request(method, f"{parts.path}?{parts.query}", headers=sent | headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            for each in answer.headers.get_all("Set-Cookie") or []:
                for name, morsel in SimpleCookie(each).items():
                    self.attributes[name] = morsel
                    self.cookies[name] = morsel.value
                    if morsel["max-age"] == "0":
                        del self.cookies[name]
            if is_node:
                self.seen.append(f"{url} {answer.headers} {text}")
            return Response(answer.status, answer.headers.get("Location") or "", text)
        finally:
            connection.close()

    def come_back(self) -> str:
        """Go to the provider, and return the address of its redirect."""
        response = self.request(LOGIN)
        assert response.status == 303
        back = self.go(response.place)
        assert back.status == 302
        return back.place

    def log_in(self) -> str:
        """Log in; returns where the browser is at the end."""
        response = self.go(self.come_back())
        assert response.status == 303
        return response.place


def test_user_logs_in_at_the_issuers_page_and_logs_out(node: ClusterNode, provider: OpenIdProvider) -> None:
    browser = Browser(node)
    shown = {"oauth_enabled": True, "oauth_client_id": CLIENT, "oauth_provider_url": provider.url}
    assert browser.request("/api/auth").json == shown
    back = browser.come_back()
    query = provider.wanted[-1]
    assert query["kept"] == "1"
    assert (query["response_type"], query["client_id"]) == ("code", CLIENT)
    assert query["scope"] == "openid profile rabbitmq.tag:management"
    assert query["redirect_uri"] == f"http://127.0.0.1:{node.http_port}{CALLBACK}"
    assert len({query["state"], query["nonce"], query["code_challenge"]}) == 3
    [(name, morsel)] = browser.attributes.items()
    assert name == cookie_of(query["state"], node)
    assert (morsel["httponly"], morsel["samesite"], morsel["max-age"]) == (True, "Lax", "600")
    response = browser.go(back)
    assert (response.status, response.place) == (303, "/")
    assert list(browser.cookies) == [f"qq-session-{node.http_port}"]
    session = browser.attributes[f"qq-session-{node.http_port}"]
    assert (session["httponly"], session["samesite"]) == (True, "Strict")
    shown = browser.request("/api/session").json
    assert (shown["name"], shown["tags"]) == ("ann", ["management"])
    assert abs(shown["expiry"] - time.time() - 600) < 5
    assert browser.request("/api/whoami").json["name"] == "ann"
    assert [each["name"] for each in browser.request("/api/vhosts").json] == ["/"]
    assert browser.request("/api/users").status == 401
    assert browser.request("/api/queues/%2F/q", "PUT").status == 403  # no CSRF token
    csrf = {"X-CSRF-Token": shown["csrf_token"]}
    assert browser.request("/api/queues/%2F/q", "PUT", **csrf).status == 401  # no permission
    kept = dict(browser.cookies)
    assert browser.request("/api/session", "DELETE", **csrf).status == 204
    browser.cookies = kept
    assert browser.request("/api/session").status == 401
    # No token was in any address, cookie or answer.
    assert not any("eyJ" in text for text in browser.seen)


def cookie_of(state: str, node: ClusterNode) -> str:
    """The name of the cookie of a round."""
    return f"qq-login-{state[:8]}-{node.http_port}"


def test_user_logs_in_in_two_tabs_at_once(node: ClusterNode, provider: OpenIdProvider) -> None:
    browser = Browser(node)
    one, other = browser.come_back(), browser.come_back()
    # A foreign page that sends the browser there does not end a pending login either.
    assert browser.request(f"{CALLBACK}?code=x&state=y").place == "/?login=refused"
    for tab in (one, other):
        assert browser.go(tab).place == "/"
        assert browser.request("/api/whoami").json["name"] == "ann"
    assert list(browser.cookies) == [f"qq-session-{node.http_port}"]


def test_browser_keeps_its_last_8_begun_logins(node: ClusterNode, provider: OpenIdProvider) -> None:
    browser = Browser(node)
    begun = [browser.come_back() for _ in range(10)]
    assert len(browser.cookies) == 8
    assert browser.go(begun[1]).place == "/?login=refused"
    assert browser.go(begun[2]).place == "/"


def test_session_and_login_are_valid_at_all_nodes(cluster: LocalCluster, provider: OpenIdProvider) -> None:
    first, second, _ = cluster.nodes
    browser = Browser(first)
    back = browser.come_back()
    assert browser.go(back, port=second.http_port).place == "/"
    assert browser.request("/api/whoami").json["name"] == "ann"
    csrf = {"X-CSRF-Token": browser.request("/api/session").json["csrf_token"]}
    kept = dict(browser.cookies)
    assert browser.request("/api/session", "DELETE", **csrf).status == 204
    browser.cookies = kept
    assert browser.request("/api/session", port=second.http_port).status == 401


def refusal(node: ClusterNode, browser: Browser, url: str) -> str:
    """Why a browser that comes back is not logged in."""
    log_end = node.log.stat().st_size
    response = browser.go(url)
    assert (response.status, response.place) == (303, "/?login=refused")
    line = node.log_since(log_end)
    assert "eyJ" not in line
    assert "code-" not in line
    return line.partition("is refused: ")[2].strip()


def test_callback_without_a_begun_login_is_refused(node: ClusterNode, provider: OpenIdProvider) -> None:
    """An attacker has a victim's browser go to the address with the attacker's code, or the other way round."""
    attacker, victim = Browser(node), Browser(node)
    back = attacker.come_back()
    assert "(state)" in refusal(node, victim, back)
    victim.come_back()
    assert "(state)" in refusal(node, victim, back)
    assert "(state)" in refusal(
        node, Browser(node), f"http://127.0.0.1:{node.http_port}{CALLBACK}?code=x&state="
    )
    for seed in ("", "x" * 43, "\xff" * 43):
        forged = Browser(node)
        forged.cookies[cookie_of(parse_qs(urlsplit(back).query)["state"][0], node)] = seed
        assert "(state)" in refusal(node, forged, back)


def test_code_is_valid_only_in_its_own_login(node: ClusterNode, provider: OpenIdProvider) -> None:
    browser, other = Browser(node), Browser(node)
    mine, theirs = browser.come_back(), other.come_back()
    code = parse_qs(urlsplit(theirs).query)["code"][0]
    own = parse_qs(urlsplit(mine).query)["code"][0]
    assert "the answer is 400" in refusal(node, browser, mine.replace(own, code))  # PKCE
    again = Browser(node)
    back = again.come_back()
    kept = dict(again.cookies)
    assert again.go(back).place == "/"
    again.cookies = kept
    assert "the answer is 401" in refusal(node, again, back)


def test_code_of_a_different_issuer_is_refused(node: ClusterNode, provider: OpenIdProvider) -> None:
    browser = Browser(node)
    back = browser.come_back().partition("&iss=")[0]
    assert "another issuer" in refusal(node, browser, f"{back}&iss=http%3A%2F%2Fevil")


def test_the_issuer_refuses(node: ClusterNode, provider: OpenIdProvider) -> None:
    provider.refuses = True
    browser = Browser(node)
    assert "the issuer says 'access_denied'" in refusal(node, browser, browser.come_back())
    assert browser.cookies == {}


@pytest.mark.parametrize(
    ("id_claims", "reason"),
    [
        ({"nonce": "other"}, "its nonce is not that of this login"),
        ({"nonce": None}, "its nonce is not that of this login"),
        ({"nonce": 7}, "its nonce is not that of this login"),
        ({"aud": "other"}, "Audience doesn't match"),
        ({"aud": [CLIENT, "other"]}, "it was issued to another client"),
        ({"iss": "http://evil"}, "Invalid issuer"),
        ({"lifetime_s": -9}, "Signature has expired"),
        ({"key": new_key(), "algorithm": "ES256"}, "key"),
    ],
)
def test_invalid_id_token_is_refused(
    node: ClusterNode, provider: OpenIdProvider, id_claims: dict[str, Any], reason: str
) -> None:
    provider.id_claims = id_claims
    browser = Browser(node)
    assert reason in refusal(node, browser, browser.come_back())


@pytest.mark.parametrize(
    ("scopes", "claims", "reason"),
    [
        (("read:%2F",), {}, "Not management user"),
        (("tag:management",), {"aud": "other"}, "login was refused"),
        (("tag:management",), {"iss": "http://evil"}, "login was refused"),
        (
            ("tag:management", *(f"read:%2F/{number:050}" for number in range(100))),
            {},
            "says too much for the cookie",
        ),
    ],
)
def test_an_access_token_that_opens_no_session(
    node: ClusterNode, provider: OpenIdProvider, scopes: tuple[str, ...], claims: dict[str, Any], reason: str
) -> None:
    provider.scopes, provider.claims = scopes, claims
    browser = Browser(node)
    assert reason in refusal(node, browser, browser.come_back())


def test_token_user_is_not_the_password_user_of_the_same_name(
    node: ClusterNode, provider: OpenIdProvider
) -> None:
    provider.claims = {"sub": "guest"}
    browser = Browser(node)
    assert browser.log_in() == "/"
    shown = browser.request("/api/session").json
    assert (shown["name"], shown["tags"]) == ("guest", ["management"])
    assert browser.request("/api/users").status == 401


def test_an_issuer_that_does_not_answer(node: ClusterNode, provider: OpenIdProvider) -> None:
    browser = Browser(node)
    back = browser.come_back()
    provider.answer = lambda _: (500, b"")
    take, provider.take = provider.take, lambda *_: (500, b"")  # type: ignore[method-assign]
    assert "the answer is 500" in refusal(node, browser, back)
    provider.answer, provider.take = provider._answer, take  # type: ignore[method-assign]
