"""HTTPS requests to the issuer of tokens, and its discovery document.

Invariant: requests use TLS, and the size of an answer and the wait for it are bounded.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from time import monotonic
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from cluster.net.resolver import Resolver
from qq.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from qq.config import OAuth2

FRESH_S = 300.0
"""Seconds that a discovery document is used before it is fetched again."""
RETRY_S = 1.0
"""Seconds until an issuer that failed to answer is asked again."""
FETCH_TIMEOUT_S = 5.0
DOCUMENT_BYTES_MAX = 256 * 1024
_DISCOVERY = "/.well-known/openid-configuration"


class ProviderError(Exception):
    """The issuer did not give a valid answer; the text has the reason."""


class _Resolver(AbstractResolver):
    """Resolves the issuer's host name without the event loop's thread pool.

    All lookups of the process would share its few threads.
    """

    def __init__(self) -> None:
        self._names = Resolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        addresses = await self._names.resolve(host, port)
        return [
            ResolveResult(
                hostname=host,
                host=address[0],
                port=port,
                family=found,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for found, address in addresses.found
            if family in (found, socket.AF_UNSPEC)
        ]

    async def close(self) -> None:
        """Ignored: all requests share this resolver, and each closes a connector of its own."""


class Provider:
    """Client for the documents of the issuer of tokens."""

    def __init__(self, config: OAuth2) -> None:
        """Load the certificate authority. Raises StartError if it cannot be used."""
        self._config = config
        self._tls = _context(config.ca)
        self._discovered: dict[str, Any] = {}
        self._fresh_until_s = 0.0
        self._failure: ProviderError | None = None
        """The error of the last discovery; None if it succeeded."""
        self._discovering = asyncio.Lock()
        self._resolver = _Resolver()

    async def address(self, name: str) -> str:
        """Return an address from the issuer's discovery document (OpenID Connect Discovery 1.0).

        Raises ProviderError.
        """
        async with self._discovering:
            if monotonic() >= self._fresh_until_s:
                await self._refresh()
        if self._failure is not None:
            raise self._failure
        found = self._discovered.get(name)
        if not isinstance(found, str) or not self._config.is_safe_for_keys(found):
            raise ProviderError(f"{self._discovery_url}: {name} is no https address: {found!r}")
        return found

    async def _refresh(self) -> None:
        """Fetch the discovery document or remember the error. All callers share a request, so the issuer gets few."""
        try:
            self._discovered, self._failure = await self._discover(), None
            self._fresh_until_s = monotonic() + FRESH_S
        except ProviderError as failure:
            self._failure = failure
            self._fresh_until_s = monotonic() + RETRY_S

    @property
    def methods(self) -> Any:
        """Methods of client authentication that the issuer supports, or None if its document does not say."""
        return self._discovered.get("token_endpoint_auth_methods_supported")

    async def _discover(self) -> dict[str, Any]:
        issuer, url = self._config.issuer, self._discovery_url
        document = await self.get(url)
        if document.get("issuer") != issuer:
            raise ProviderError(f"{url}: is the document of another issuer, {document.get('issuer')!r}")
        return document

    @property
    def _discovery_url(self) -> str:
        return (self._config.issuer or "").rstrip("/") + _DISCOVERY

    async def get(self, url: str) -> dict[str, Any]:
        """Return the JSON object at a URL. Raises ProviderError."""
        return await self._request("GET", url)

    async def post(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> dict[str, Any]:
        """Post a form and return the JSON object in the answer. Raises ProviderError."""
        return await self._request("POST", url, data=form, headers=headers)

    async def _request(self, method: str, url: str, **content: Any) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(FETCH_TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(resolver=self._resolver), timeout=timeout
                ) as client,
                client.request(method, url, ssl=self._tls, allow_redirects=False, **content) as answer,
            ):
                if answer.status != 200:
                    raise ProviderError(f"{url}: the answer is {answer.status}")
                return _object_in(await _bounded(answer))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise ProviderError(f"{url}: {error or type(error).__name__}") from None


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


def _context(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise StartError(f"[oauth2] ca: {ca}: {error}") from None
