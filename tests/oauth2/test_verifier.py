"""Valid tokens and their users; the keys come from a real server."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import RSAAlgorithm

from qq.config import OAuth2
from qq.errors import StartError
from qq.node import part_settings
from qq.oauth2 import keys, provider
from qq.oauth2.verifier import Verifier
from qq.scopes import TokenUser
from qq.sessions.login import InvalidToken
from tests.oauth2.issuer import RSA, SERVICE, Issuer, new_key, pem, token


@pytest.fixture
def issuer() -> Generator[Issuer]:
    with Issuer() as issuer:
        yield issuer


@pytest.fixture
def pem_file(tmp_path: Path) -> Path:
    path = tmp_path / "one.pem"
    path.write_bytes(pem(RSA))
    return path


def settings(**more: Any) -> OAuth2:
    return OAuth2(SERVICE, **{"scope_prefix": f"{SERVICE}.", **more})


def static(pem_file: Path, **more: Any) -> Verifier:
    return Verifier(settings(signing_keys=(("one", pem_file),), **more))


async def judged(verifier: Verifier, text: str) -> TokenUser | str:
    """Return the user of a token, or the reason of a refusal; keys are fetched if that may help, as for a login."""
    try:
        return verifier.verify(text.encode())
    except InvalidToken as invalid:
        fetched = asyncio.Event()
        if verifier.renew_keys(text.encode(), fetched.set):
            await fetched.wait()
            try:
                return verifier.verify(text.encode())
            except InvalidToken as again:
                return str(again)
        return str(invalid)


def judge(config: OAuth2, *texts: str) -> list[TokenUser | str]:
    async def judge_all() -> list[TokenUser | str]:
        verifier = Verifier(config)
        try:
            return [await judged(verifier, text) for text in texts]
        finally:
            await verifier.close()

    return asyncio.run(judge_all())


def good(verifier: Verifier, text: str) -> TokenUser:
    return verifier.verify(text.encode())


# --- loaded keys


def test_node_imports_oauth2_and_tracing_only_when_configured() -> None:
    extras = {"jwt", "qq.oauth2", "opentelemetry", "qq.tracing"}
    program = f"import sys, qq.node; sys.exit(bool({extras} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_missing_jwt_library_is_reported_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("qq.oauth2")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jwt", None)
    config: Any = SimpleNamespace(oauth2=settings(issuer="https://issuer"))
    with pytest.raises(StartError) as error:
        part_settings.verifier(config)
    assert str(error.value) == (
        "[oauth2] needs jwt: pip install 'qq-broker[oauth2]', or -r requirements/oauth2.txt"
    )


# --- claims


def test_a_token_vouches_for_its_user(pem_file: Path) -> None:
    user = good(static(pem_file), token("read:%2F/q", "tag:monitoring", lifetime_s=50))
    assert user.name == "ann"
    assert user.scopes.tags == {"monitoring"}
    assert user.scopes.permit("read", "/", "q")
    assert 49 < user.expires_s - time.time() < 52


@pytest.mark.parametrize("sub", [None, ""])
def test_user_of_a_token_without_a_name_is_unknown(pem_file: Path, sub: object) -> None:
    user = good(static(pem_file), token("read:%2F/q", sub=sub))
    assert user.name == "unknown"
    assert user.scopes.permit("read", "/", "q")


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"lifetime_s": -5}, "Signature has expired"),
        ({"exp": None}, 'Token is missing the "exp" claim'),
        ({"exp": "soon"}, "Expiration Time claim (exp) must be an integer."),
        ({"exp": float("inf")}, "claim (exp) must be an integer"),
        ({"aud": "other"}, "Audience doesn't match"),
        ({"aud": None}, 'Token is missing the "aud" claim'),
        ({"nbf": 9e9}, "The token is not yet valid (nbf)"),
        ({"number": "two"}, "its signing key is unknown"),
        ({"algorithm": "PS256"}, "its algorithm 'PS256' is not among"),
        ({"key": "s" * 32, "algorithm": "HS256"}, "its algorithm 'HS256' is not among"),
        ({"sub": "é" * 128}, "the user's name is longer than 255 bytes"),
        ({"scope": "rabbitmq.read:x " * 201}, "it has more than 200 scopes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_token_gives_its_reason(pem_file: Path, claims: dict[str, Any], why: str) -> None:
    text = token(**claims)
    with pytest.raises(InvalidToken) as invalid:
        good(static(pem_file), text)
    assert why in str(invalid.value)
    assert text not in str(invalid.value)


def test_malformed_or_foreign_token_is_invalid(pem_file: Path) -> None:
    for text in ("eyJ.x.y", "..", "", jwt.encode({"sub": "x"}, None, "none"), token(key=new_key())):
        with pytest.raises(InvalidToken):
            good(static(pem_file), text)
    assert not static(pem_file).is_token(b"a.b.c")
    assert static(pem_file).is_token(token().encode())


def test_token_may_have_a_huge_expiry(pem_file: Path) -> None:
    assert good(static(pem_file), token(exp=10**400)).expires_s > time.time() + 10**10


def test_altered_token_fails_its_signature_check(pem_file: Path) -> None:
    one, other = token("read:a").split("."), token("read:b").split(".")
    with pytest.raises(InvalidToken, match="Signature verification failed"):
        good(static(pem_file), ".".join((one[0], other[1], one[2])))


def test_settings_decide_which_claims_count(pem_file: Path) -> None:
    text = token("read:a", aud=["x", SERVICE], email="ann@example.org", client_id="app", sub=None)
    assert good(static(pem_file), text).name == "app"
    preferred = static(pem_file, preferred_username_claims=("nothing", "email"))
    assert good(preferred, text).name == "ann@example.org"
    assert good(static(pem_file, verify_aud=False), token(aud="other")).name == "ann"
    assert good(static(pem_file, verify_aud=False), token(aud=None)).name == "ann"
    assert good(static(pem_file, leeway_s=60), token(lifetime_s=-30)).expires_s > time.time()
    assert good(static(pem_file, algorithms=("PS256",)), token(algorithm="PS256")).name == "ann"
    issuer = static(pem_file, issuer="https://issuer")
    assert good(issuer, token(iss="https://issuer")).name == "ann"
    with pytest.raises(InvalidToken, match="Invalid issuer"):
        good(issuer, token(iss="https://other"))


def permitted(verifier: Verifier, text: str) -> list[str]:
    scopes = good(verifier, text).scopes
    return [vhost for vhost in "abcde" if scopes.permit("read", vhost, "q")]


def test_scopes_are_read_from_several_claims_and_aliases(pem_file: Path) -> None:
    more = {"roles": ["rabbitmq.read:b"], "extra": {SERVICE: "rabbitmq.read:c", "other": "rabbitmq.read:e"}}
    assert permitted(static(pem_file), token("read:a", **more)) == ["a"]
    keys_too = static(pem_file, additional_scopes_keys=("roles", "extra", "nothing"))
    assert permitted(keys_too, token("read:a", **more)) == ["a", "b", "c"]
    assert permitted(static(pem_file), token(scope=["rabbitmq.read:a", "rabbitmq.read:b", 7])) == ["a", "b"]
    assert permitted(static(pem_file), token(scope="read:a other.read:b rabbitmq.read:c")) == ["c"]
    assert permitted(static(pem_file, scope_prefix="api://"), token(scope="api://read:a")) == ["a"]
    aliases = static(pem_file, scope_aliases=(("dev", "rabbitmq.read:a rabbitmq.read:b"),))
    assert permitted(aliases, token(scope="dev")) == ["a", "b"]


# --- keys


def test_keys_are_fetched_once_and_again_for_an_unknown_key(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "ASK_AGAIN_S", 0.0)
    issuer.keys["two"] = new_key()
    first, second = issuer.token(), issuer.token(number="two")

    async def story() -> None:
        verifier = Verifier(settings(jwks_url=f"{issuer.url}/keys"))
        outcomes = [await judged(verifier, text) for text in (first, first, second)]
        assert all(isinstance(each, TokenUser) for each in outcomes)
        assert issuer.requested_paths == ["/keys"]
        issuer.keys = {"three": new_key()}
        assert isinstance(await judged(verifier, issuer.token(number="three")), TokenUser)
        assert issuer.requested_paths == ["/keys"] * 2
        # A withdrawn key is valid no longer.
        assert await judged(verifier, second) == "its signing key is unknown"
        await verifier.close()

    asyncio.run(story())


def test_unknown_keys_do_not_each_cost_a_request_to_the_issuer(issuer: Issuer) -> None:
    unknown = [issuer.token(number=f"unknown{count}") for count in range(20)]
    outcomes = judge(settings(jwks_url=f"{issuer.url}/keys"), issuer.token(), *unknown, issuer.token())
    assert isinstance(outcomes[0], TokenUser)
    assert isinstance(outcomes[-1], TokenUser)
    assert set(outcomes[1:-1]) == {"its signing key is unknown"}
    assert issuer.requested_paths == ["/keys"]


def test_old_keys_are_fetched_again(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "ASK_AGAIN_S", 0.0)
    monkeypatch.setattr(keys, "FRESH_S", 0.0)

    async def story() -> None:
        verifier = Verifier(settings(jwks_url=f"{issuer.url}/keys"))
        text = issuer.token()
        assert isinstance(await judged(verifier, text), TokenUser)
        issuer.answer = lambda _: (500, b"")
        assert isinstance(await judged(verifier, text), TokenUser)
        await asyncio.sleep(0.1)
        assert isinstance(await judged(verifier, text), TokenUser)
        issuer.keys, issuer.answer = {"two": new_key()}, issuer._answer
        for _ in range(100):
            if isinstance(await judged(verifier, text), str):
                break
            await asyncio.sleep(0.02)
        assert isinstance(await judged(verifier, text), str)
        await verifier.close()

    asyncio.run(story())


def test_issuer_is_reached_while_40_name_lookups_hang(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, answers = socket.getaddrinfo, threading.Event()

    def stalled(host: str, port: int, **how: Any) -> Any:
        if host.startswith("slow") and not how.get("flags", 0) & socket.AI_NUMERICHOST:
            answers.wait(20)
        return resolve(host, port, **how)

    async def story() -> None:
        # Further name lookups by the program's libraries.
        loop = asyncio.get_running_loop()
        waiting = [asyncio.create_task(loop.getaddrinfo(f"slow{number}", 1)) for number in range(40)]
        await asyncio.sleep(0.05)
        fetched = provider.Provider(settings()).get(f"{issuer.url}/keys".replace("127.0.0.1", "localhost"))
        assert await asyncio.wait_for(fetched, 3)
        answers.set()
        await asyncio.wait(waiting)

    monkeypatch.setattr(socket, "getaddrinfo", stalled)
    try:
        asyncio.run(story())
    finally:
        answers.set()


def test_keys_are_found_by_issuer_discovery(issuer: Issuer) -> None:
    [user] = judge(settings(issuer=issuer.url), issuer.token(iss=issuer.url))
    assert isinstance(user, TokenUser)
    assert issuer.requested_paths == ["/.well-known/openid-configuration", "/keys"]


def test_a_token_that_names_no_key(issuer: Issuer) -> None:
    config = settings(jwks_url=f"{issuer.url}/keys")
    [user] = judge(config, issuer.token(number=None))
    assert isinstance(user, TokenUser)
    issuer.keys["two"] = new_key()
    [refused] = judge(config, issuer.token(number=None))
    assert refused == "its signing key is unknown"
    [user] = judge(settings(jwks_url=f"{issuer.url}/keys", default_key="one"), issuer.token(number=None))
    assert isinstance(user, TokenUser)


ODD = st.sampled_from(
    [None, 1, -1, 1.5, True, "", "AQAB", "!", "\u00fc", [], {}, [1], {"a": 1}, "oct", "EC", "none", "P-521"]
)
FIELDS = st.sampled_from(["kty", "kid", "use", "alg", "crv", "n", "e", "d", "k", "x", "y", "key_ops"])


@given(st.lists(st.dictionaries(FIELDS, ODD, min_size=1, max_size=4) | ODD, max_size=3), ODD)
def test_good_keys_are_found_among_malformed_keys(further_keys: list[Any], odd: Any) -> None:
    """A background task fetches such a document: an exception in it ends the node."""
    good = json.loads(RSAAlgorithm.to_jwk(RSA.public_key()))
    changed = [good | each if isinstance(each, dict) else each for each in further_keys]
    assert "mine" in keys.keys_in({"keys": [*changed, good | {"kid": "mine"}, *further_keys]})
    assert isinstance(keys.keys_in({"keys": odd}), dict)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda _: (404, b""), "the answer is 404"),
        (lambda _: (302, b""), "the answer is 302"),
        (lambda _: (200, b"{"), "Expecting property name"),
        (lambda _: (200, b"[]"), "the answer is no JSON object"),
        (lambda _: (200, b"[" * 100_000), "nested"),
        (lambda _: (200, b'{"keys": 7}'), "holds no key"),
        (lambda _: (200, b"x" * (provider.DOCUMENT_BYTES_MAX + 1)), "larger than"),
    ],
)
def test_answer_without_keys_is_reported(
    issuer: Issuer,
    caplog: pytest.LogCaptureFixture,
    answer: Callable[[str], tuple[int, bytes]],
    why: str,
) -> None:
    issuer.answer = answer
    with caplog.at_level(logging.WARNING):
        [refused] = judge(settings(jwks_url=f"{issuer.url}/keys"), issuer.token())
    assert refused == "its signing key is unknown"
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"the keys of tokens cannot be fetched: {issuer.url}/keys: ")
    assert why in line
    assert "\n" not in line


@pytest.mark.parametrize("url", ['"http://elsewhere/keys"', "7"])
def test_keys_at_a_url_without_tls_are_not_fetched(issuer: Issuer, url: str) -> None:
    document = f'{{"issuer": "{issuer.url}", "jwks_uri": {url}}}'.encode()
    issuer.answer = lambda _: (200, document)
    [refused] = judge(settings(issuer=issuer.url), issuer.token(iss=issuer.url))
    assert refused == "its signing key is unknown"
    assert len(issuer.requested_paths) == 1


def test_unreachable_issuer_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with Issuer() as gone:
        pass
    with caplog.at_level(logging.WARNING):
        judge(settings(jwks_url=f"{gone.url}/keys"), gone.token())
    assert "the keys of tokens cannot be fetched" in caplog.text


@pytest.mark.parametrize(
    "content", [None, b"", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"]
)
def test_key_file_without_a_key_is_reported_in_a_single_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "key.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StartError, match=r"^\[oauth2\] signing_keys: .*key\.pem: ") as error:
        static(path)
    assert "\n" not in str(error.value)
