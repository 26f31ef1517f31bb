"""The keys with which tokens are signed: from files, and those that their issuer publishes.

Lives here: fetching them, keeping them, and when to fetch them again. Not here: what is signed (verifier.py).

Law: an issuer that does not answer ends nobody's connection: what was fetched stays good until there is
something newer. However many tokens name keys that nobody knows, the issuer is asked once in a while.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from time import monotonic
from typing import TYPE_CHECKING, Any

import aiohttp
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from cryptography.x509 import load_pem_x509_certificate
from jwt import PyJWKSet
from jwt.exceptions import PyJWTError

from qq.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from qq.config import OAuth2

log = logging.getLogger(__name__)

FRESH_S = 300.0
"""After how long keys are fetched again, when a token comes: one that its issuer has withdrawn is good no longer."""
ASK_AGAIN_S = 10.0
"""How long, at least, between two attempts to fetch keys."""
FETCH_TIMEOUT_S = 5.0
DOCUMENT_BYTES_MAX = 256 * 1024
_DISCOVERY = "/.well-known/openid-configuration"


class KeysError(Exception):
    """The keys cannot be fetched now, for this reason."""


class Keys:
    """The keys by their ids."""

    def __init__(self, config: OAuth2) -> None:
        """Raise StartError for files that hold no key."""
        self._config = config
        self._static = {name: _key_in(path) for name, path in config.signing_keys}
        self._fetched: dict[str, Any] = {}
        self._asked_s = self._fetched_s = -FRESH_S
        self._tls = _context(config.ca)
        self._fetching: asyncio.Task[None] | None = None
        self._waiting: list[Callable[[], None]] = []

    def find(self, number: str | None) -> Any | None:
        """The key of this id; without one, the default key, or the only one that there is. None: nobody knows it."""
        self._keep_fresh()
        keys = self._static | self._fetched
        number = number or self._config.default_key
        if number:
            return keys.get(number)
        return next(iter(keys.values())) if len(keys) == 1 else None

    def renew(self, renewed: Callable[[], None]) -> bool:
        """Have keys fetched, and `renewed` called then; return False if that was done a moment ago."""
        if not (self._config.jwks_url or self._config.issuer):
            return False
        if self._fetching is None:
            if monotonic() - self._asked_s < ASK_AGAIN_S:
                return False
            self._begin()
        self._waiting.append(renewed)
        return True

    async def close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)

    def _keep_fresh(self) -> None:
        now_s = monotonic()
        is_due = self._fetched and now_s - self._fetched_s > FRESH_S and now_s - self._asked_s > ASK_AGAIN_S
        if is_due and self._fetching is None:
            self._begin()

    def _begin(self) -> None:
        self._asked_s = monotonic()
        self._fetching = asyncio.get_running_loop().create_task(self._fetch())

    async def _fetch(self) -> None:
        try:
            self._fetched = await self._keys_of_issuer()
            self._fetched_s = monotonic()
        except KeysError as error:
            log.warning("the keys of tokens cannot be fetched: %s; those that are known stay in use", error)
        finally:
            self._fetching = None
            waiting, self._waiting = self._waiting, []
            for renewed in waiting:
                renewed()

    async def _keys_of_issuer(self) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(FETCH_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as client:
            url = self._config.jwks_url or await self._discovered(client)
            document = await self._document(client, url)
        try:
            found = PyJWKSet.from_dict(document).keys
        except (PyJWTError, AttributeError, TypeError, ValueError) as error:
            raise KeysError(f"{url}: {error}") from None
        return {key.key_id or "": key.key for key in found if key.public_key_use in (None, "sig")}

    async def _discovered(self, client: aiohttp.ClientSession) -> str:
        """The address of the keys, as the issuer tells it (OpenID Connect Discovery 1.0)."""
        issuer = self._config.issuer or ""
        url = issuer.rstrip("/") + _DISCOVERY
        document = await self._document(client, url)
        if document.get("issuer") != issuer:
            raise KeysError(f"{url}: is the document of another issuer, {document.get('issuer')!r}")
        found = document.get("jwks_uri")
        if not isinstance(found, str) or not self._config.may_ask(found):
            raise KeysError(f"{url}: jwks_uri is no https address: {found!r}")
        return found

    async def _document(self, client: aiohttp.ClientSession, url: str) -> dict[str, Any]:
        try:
            async with client.get(url, ssl=self._tls, allow_redirects=False) as answer:
                if answer.status != 200:
                    raise KeysError(f"{url}: the answer is {answer.status}")
                document = _object_in(await _bounded(answer))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise KeysError(f"{url}: {error or type(error).__name__}") from None
        return document


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    raw = b""
    async for part in answer.content.iter_any():
        raw += part
        if len(raw) > DOCUMENT_BYTES_MAX:
            raise ValueError(f"the answer is larger than {DOCUMENT_BYTES_MAX} bytes")
    return raw


def _object_in(raw: bytes) -> dict[str, Any]:
    try:
        document = json.loads(raw)
    except RecursionError:
        raise ValueError("the answer is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("the answer is no JSON object")  # noqa: TRY004
    return document


def _key_in(path: Path) -> Any:
    """The public key in a PEM file, or that of a certificate in it. Raises StartError."""
    try:
        text = path.read_bytes()
        if b"BEGIN CERTIFICATE" in text:
            return load_pem_x509_certificate(text).public_key()
        return load_pem_public_key(text)
    except OSError as error:
        raise StartError(f"[oauth2] signing_keys: {path}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError) as error:
        raise StartError(f"[oauth2] signing_keys: {path}: holds no public key (PEM): {error}") from None


def _context(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise StartError(f"[oauth2] ca: {ca}: {error}") from None
