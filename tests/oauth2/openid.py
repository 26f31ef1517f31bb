"""An OpenID provider: its login page redirects at once, and it exchanges codes for tokens."""

from __future__ import annotations

import base64
import hashlib
import json
from email.message import Message
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from tests.oauth2.issuer import SERVICE, Issuer

CLIENT, SECRET = "qq-page", "a secret: 1&2"


class OpenIdProvider(Issuer):
    """Logs each browser in as ann, with these `scopes`; tests set its faults."""

    def __init__(self) -> None:
        super().__init__()
        self.scopes: tuple[str, ...] = ("tag:management", "read:%2F")
        self.claims: dict[str, Any] = {}
        """Further claims of the access token."""
        self.id_claims: dict[str, Any] = {}
        """Further claims of the ID token."""
        self.refuses = False
        self.wanted: list[dict[str, str]] = []
        """Query parameters of browsers that were sent here."""
        self._codes: dict[str, dict[str, str]] = {}

    def settings(self) -> dict[str, Any]:
        """Return the node's settings for this provider."""
        return {
            "resource_server_id": SERVICE,
            "issuer": self.url,
            "client_id": CLIENT,
            "client_secret": SECRET,
        }

    def _answer(self, path: str) -> tuple[int, bytes]:
        parts = urlsplit(path)
        if parts.path == "/.well-known/openid-configuration":
            names = {
                "jwks_uri": "keys",
                "authorization_endpoint": "authorize?kept=1",
                "token_endpoint": "token",
            }
            return 200, json.dumps(
                {"issuer": self.url} | {name: f"{self.url}/{end}" for name, end in names.items()}
            ).encode()
        if parts.path != "/authorize":
            return super()._answer(path)
        query = dict(parse_qsl(parts.query, strict_parsing=True))
        self.wanted.append(query)
        back = {"state": query["state"], "iss": self.url}
        if self.refuses:
            back["error"] = "access_denied"
        else:
            back["code"] = f"code-{len(self.wanted)}"
            self._codes[back["code"]] = query
        return 302, f"{query['redirect_uri']}?{urlencode(back)}".encode()

    def take(self, path: str, form: str, headers: Message) -> tuple[int, bytes]:
        given = dict(parse_qsl(form, strict_parsing=True))
        query = self._codes.pop(given.get("code", ""), None)
        secret = base64.b64encode(b"qq-page:a+secret%3A+1%262").decode()
        if path != "/token" or query is None or headers["Authorization"] != f"Basic {secret}":
            return 401, b"{}"
        digest = hashlib.sha256(given["code_verifier"].encode()).digest()
        is_right = (
            given["grant_type"] == "authorization_code"
            and given["client_id"] == query["client_id"] == CLIENT
            and given["redirect_uri"] == query["redirect_uri"]
            and query["code_challenge_method"] == "S256"
            and query["code_challenge"] == base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        )
        if not is_right:
            return 400, b"{}"
        access = {"iss": self.url} | self.claims
        identity = {"iss": self.url, "aud": CLIENT, "nonce": query["nonce"], "scope": None} | self.id_claims
        tokens = {
            "access_token": self.token(*self.scopes, **access),
            "id_token": self.token(**identity),
            "token_type": "Bearer",
        }
        return 200, json.dumps(tokens).encode()
