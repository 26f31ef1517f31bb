"""How a node proves to the issuer which client it is, as far as the provider of the other tests does not want it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from qq.config import OAuth2
from qq.http.base.node_view import LoginRefused, LoginRound
from qq.oauth2.code_flow import CodeFlow

if TYPE_CHECKING:
    from collections.abc import Mapping

ROUND = LoginRound("http://n1/api/oauth2/callback", "state", "nonce", "verifier")
BASIC = {"Authorization": "Basic cGFnZTphJTNBYg=="}
"""The client `page` with the secret `a:b`, whose colon is escaped."""


class Issuer:
    """Takes a code, and returns no token for it."""

    def __init__(self, methods: Any) -> None:
        self.methods = methods
        self.taken: list[tuple[Mapping[str, str], Mapping[str, str]]] = []

    async def address(self, name: str) -> str:
        return f"https://issuer/{name}"

    async def post(self, _url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> dict[str, Any]:
        self.taken.append((form, headers))
        return {}


@pytest.mark.parametrize(
    ("secret", "methods", "in_form", "headers"),
    [
        (None, None, None, {}),
        (None, ["client_secret_post"], None, {}),
        ("a:b", None, None, BASIC),
        ("a:b", "client_secret_post", None, BASIC),
        ("a:b", ["client_secret_post", "client_secret_basic"], None, BASIC),
        ("a:b", ["client_secret_post"], "a:b", {}),
    ],
)
def test_client_secret_is_sent_as_the_issuer_accepts_it(
    secret: str | None, methods: Any, in_form: str | None, headers: dict[str, str]
) -> None:
    issuer = Issuer(methods)
    config = OAuth2("qq", issuer="https://issuer", client_secret=secret)
    flow = CodeFlow(config, "page", cast("Any", SimpleNamespace(provider=issuer)))
    with pytest.raises(LoginRefused, match="no access_token"):
        asyncio.run(flow.redeem("code", ROUND))
    [(form, sent)] = issuer.taken
    assert (form.get("client_secret"), sent) == (in_form, headers)
    assert (form["client_id"], form["code"], form["code_verifier"]) == ("page", "code", "verifier")
