"""The public keys that verify tokens: keys from files, and keys that the issuer publishes.

Invariant: an unreachable issuer ends no connection, because fetched keys stay valid until newer keys arrive. The number
of requests to the issuer is bounded, however many tokens name unknown keys.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.serialization import load_pem_public_key
from cryptography.x509 import load_pem_x509_certificate
from jwt import PyJWK

from qq.errors import StartError
from qq.oauth2.provider import ProviderError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from qq.config import OAuth2
    from qq.oauth2.provider import Provider

log = logging.getLogger(__name__)

FRESH_S = 300.0
"""Seconds after which the next token causes a new fetch, so that a key that the issuer withdrew becomes invalid."""
ASK_AGAIN_S = 10.0
"""Minimum seconds between two attempts to fetch keys."""


class Keys:
    """Public keys by their ids."""

    def __init__(self, config: OAuth2, provider: Provider) -> None:
        """Read the key files. Raises StartError for a file without a key."""
        self._config = config
        self._provider = provider
        self._static = {name: _key_in(path) for name, path in config.signing_keys}
        self._fetched: dict[str, Any] = {}
        self._asked_s = self._fetched_s = -FRESH_S
        self._fetching: asyncio.Task[None] | None = None
        self._waiting: list[Callable[[], None]] = []

    def find(self, number: str | None) -> Any | None:
        """Return the key with this id, or None if it is unknown.

        Without an id, return the default key, or the only key that exists.
        """
        self._keep_fresh()
        keys = self._static | self._fetched
        number = number or self._config.default_key
        if number:
            return keys.get(number)
        return next(iter(keys.values())) if len(keys) == 1 else None

    def renew(self, renewed: Callable[[], None]) -> bool:
        """Start to fetch keys and call `renewed` at the end; return False if a fetch was tried a moment ago."""
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
        except ProviderError as error:
            log.warning("the keys of tokens cannot be fetched: %s; those that are known stay in use", error)
        finally:
            self._fetching = None
            waiting, self._waiting = self._waiting, []
            for renewed in waiting:
                renewed()

    async def _keys_of_issuer(self) -> dict[str, Any]:
        url = self._config.jwks_url or await self._provider.address("jwks_uri")
        found = keys_in(await self._provider.get(url))
        if not found:
            raise ProviderError(f"{url}: holds no key that can be used")
        return found


def keys_in(document: dict[str, Any]) -> dict[str, Any]:
    """Return the signature keys of a JWK set by their ids (RFC 7517). Unreadable keys are skipped."""
    listed, found = document.get("keys"), dict[str, Any]()
    for each in listed if isinstance(listed, list) else []:
        try:
            key = PyJWK.from_dict(each)
        except Exception as error:  # noqa: BLE001  # PyJWT passes on any error: KeyError, NotImplementedError
            log.info("a key of the token issuer cannot be used: %r", error)
            continue
        number = each.get("kid") or ""
        if isinstance(number, str) and key.public_key_use in (None, "sig"):
            found[number] = key.key
    return found


def _key_in(path: Path) -> Any:
    """Return the public key in a PEM file, or the key of the certificate in it. Raises StartError."""
    try:
        text = path.read_bytes()
        if b"BEGIN CERTIFICATE" in text:
            return load_pem_x509_certificate(text).public_key()
        return load_pem_public_key(text)
    except OSError as error:
        raise StartError(f"[oauth2] signing_keys: {path}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError) as error:
        raise StartError(f"[oauth2] signing_keys: {path}: holds no public key (PEM): {error}") from None
