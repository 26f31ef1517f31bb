"""Sends HTTP requests to a node for an operator's command.

Invariant: every answer of a node, or of a foreign server on its port, becomes an `Answer` or a CommandError. A change
is sent to a single node only, after this node is known to answer.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import socket
import ssl
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from functools import cached_property
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast
from urllib.parse import quote, urlencode

import aiohttp
from yarl import URL

from qq.cli.progress import Wait
from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Mapping, Sequence

    from qq.cli.credentials import ClientLogin

_ANSWER_TIMEOUT_S = 15.0
"""Seconds to wait for an answer: longer than a node takes for any usual request."""
_LONG_TIMEOUT_S = 600.0
"""Seconds to wait for an answer to a long request, such as thousands of changes."""
_PROBE_TIMEOUT_S = 2.0
"""Seconds that each of several nodes has to say whether it serves clients."""
_GRACE_S = 5.5
"""Seconds after the end of a command's time that an answer is still awaited: a node takes 5 s to say that leadership
has not moved, and less for other requests that it must not wait for."""
_STREAM_TIMEOUT_S = 60.0
"""Seconds that a stream may bring no bytes: longer than a node takes to begin a stream."""
_PAUSE_S = 0.5
"""Seconds between repetitions of a request."""
_REQUEST_S = 0.5
"""Seconds that a node waits for a change before it answers with the reason; then the request is repeated."""
_LAST_REQUEST_S = 10.0
"""Seconds that the node waits at most when the request may stop it, so that no further request could be answered."""
_LOGIN_REFUSED = "login was refused"
_FOREIGN = "the answer is not that of a qq node"
ARCHIVE, JSON = "application/x-tar", "application/json"
"""Content types of streams."""
DONE = (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT)
_NO_QUERY: Mapping[str, str] = MappingProxyType({})


def path_of(*parts: str) -> str:
    """Make a path below /api from names, which may contain any characters."""
    return "/".join(["/api", *map(_segment, parts)])


def _segment(name: str) -> str:
    # Dots would be taken for path segments; to a node they are ordinary names.
    return {".": "%2E", "..": "%2E%2E"}.get(name, quote(name, safe=""))


class Answer(NamedTuple):
    status: int
    document: Any


class _Stream:
    """An answer read part by part; only data still missing counts as a wait."""

    def __init__(self, url: str, answer: http.client.HTTPResponse, wait: Wait) -> None:
        self._url = url
        self._answer = answer
        self._wait = wait

    def read(self, size: int) -> bytes:
        """Return the next bytes. Raises CommandError if the answer ends too early."""
        try:
            with self._wait.of_one():
                return self._answer.read1(size)
        except TimeoutError:
            raise CommandError(
                f"{self._url}: the answer was broken off: nothing has come for {_STREAM_TIMEOUT_S:g} s: try again, or "
                "ask another node"
            ) from None
        except (http.client.HTTPException, ConnectionError) as error:
            raise _is_broken_off(self._url, error) from None


class Remote:
    """A node that a single command asks over HTTP, as a user."""

    def __init__(
        self,
        urls: Sequence[str],
        login: ClientLogin,
        timeout_s: float | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`timeout_s` is the time of the command in seconds from now; without it, each request is sent once.

        Raises CommandError if the user name has a colon, which HTTP logins cannot contain (RFC 7617).
        """
        if ":" in login.user:
            raise CommandError(f"user {login.user!r}: with a colon in the name one can not log in over HTTP")
        self._urls = urls
        self._login = login
        self._end_s = time.monotonic() + (timeout_s or 0.0)
        self.has_time = timeout_s is not None
        """Whether the command has a timeout."""
        self._tls = tls

    @cached_property
    def url(self) -> str:
        """Return the URL of the first node that serves clients, or else that answers. Raises CommandError."""
        if len(self._urls) == 1:
            return self._urls[0]
        with Wait("a node that answers").told():
            return asyncio.run(self._choose())

    async def _choose(self) -> str:
        others: list[str] = []
        silent: list[str] = []
        for url in self._urls:
            try:
                health = await self._request("GET", url, "/healthz", timeout_s=_PROBE_TIMEOUT_S)
            except CommandError as error:
                silent.append(str(error))
                continue
            if health.status == HTTPStatus.OK:
                return url
            others.append(url)
        if not others:
            raise CommandError(f"no node answers: {'; '.join(silent)}")
        return others[0]

    def get(self, path: str, query: Mapping[str, str] = _NO_QUERY, wait: Wait | None = None) -> Any:
        """Return the JSON object at this path. Raises CommandError."""
        return self.send("GET", path, query=query, expected=(HTTPStatus.OK,), wait=wait).document

    def get_list(self, path: str) -> list[Any]:
        """Return the JSON list at this path. Raises CommandError."""
        return self.send("GET", path, expected=(HTTPStatus.OK,), kind=list).document

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] = _NO_QUERY,
        headers: Mapping[str, str] = _NO_QUERY,
        expected: Collection[int] = DONE,
        kind: type = dict,
        is_long: bool = False,
        wait: Wait | None = None,
        missing: str = "",
    ) -> Answer:
        """Send a request once. Raises CommandError unless status and type of the document are as expected.

        `wait` names the thing awaited, by default an answer. `missing` names the object that a 404 reports as missing.
        """
        base = self.url
        timeout_s = _LONG_TIMEOUT_S if is_long else None
        with (wait or Wait("an answer")).told():
            answer = asyncio.run(self._request(method, base, path, body, query, headers, timeout_s))
        if missing and answer.status == HTTPStatus.NOT_FOUND:
            raise CommandError(f"there is no {missing}")
        return self._checked(path, answer, expected, kind)

    def ask_until_done(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] = _NO_QUERY,
        expected: Collection[int] = (HTTPStatus.OK,),
        waiting_for: str,
        note: str = "",
    ) -> Answer:
        """Repeat a request while the answer is that it is not done yet (503). Raises CommandError.

        A 503 at the end of the command's time is an error too, unless it is expected. A `note` says that the asked node
        may stop when the request is done. Then requests are few and long, and the note is added to the text of an error
        without an answer.
        """
        wait = Wait(waiting_for, f"{self.url} has not answered yet")
        longest_s = _LAST_REQUEST_S if note else _REQUEST_S
        try:
            with wait.told():
                answer = asyncio.run(self._repeat(method, path, body, query, wait, longest_s))
        except CommandError as error:
            raise CommandError(f"{error}{note}") from None
        return self._checked(path, answer, expected)

    async def _repeat(
        self, method: str, path: str, body: Any, query: Mapping[str, str], wait: Wait, longest_s: float
    ) -> Answer:
        while True:
            wait_s = max(_REQUEST_S, min(longest_s, self._left_s))
            asked = {**query, "wait": f"{wait_s:.3g}"}
            answer = await self._request(method, self.url, path, body, asked)
            if answer.status != HTTPStatus.SERVICE_UNAVAILABLE or self._left_s <= 0:
                return answer
            wait.reason = reason_of(answer) or ""
            await asyncio.sleep(min(_PAUSE_S, max(0.0, self._left_s)))

    @property
    def _left_s(self) -> float:
        return self._end_s - time.monotonic()

    def url_of(self, path: str) -> str:
        """Return the URL of a path, as errors show it."""
        return self.url.rstrip("/") + path

    def _checked(self, path: str, answer: Answer, expected: Collection[int], kind: type = dict) -> Answer:
        if answer.status not in expected:
            raise CommandError(self._refusal(self.url_of(path), answer))
        if answer.status == HTTPStatus.OK and not isinstance(answer.document, kind):
            raise self.is_foreign()
        return answer

    @contextmanager
    def download(
        self, path: str, content_type: str = ARCHIVE, query: Mapping[str, str] = _NO_QUERY
    ) -> Generator[BinaryIO]:
        """Open the content at this path as a stream, for example an archive. Raises CommandError.

        Reading from the stream raises CommandError if the answer ends too early. Pauses of the stream are reported,
        except on a terminal, which should show a bar (`counted`).
        """
        url = self.url_of(path)
        with Wait("the answer to begin").told():
            stream = self._begun(url, query, content_type)
        wait = Wait(f"more of the answer of {self.url}", has_bar=True)
        with stream, wait.told():
            yield cast("BinaryIO", _Stream(url, stream, wait))

    def _begun(self, url: str, query: Mapping[str, str], content_type: str) -> http.client.HTTPResponse:
        """Wait until the answer begins. Raises CommandError."""
        login = base64.b64encode(":".join(self._login).encode()).decode()
        asked = f"{url}?{urlencode(query)}" if query else url
        request = urllib.request.Request(asked, headers={"Authorization": f"Basic {login}"})  # noqa: S310
        try:
            answer = _opener(self._tls).open(request, timeout=_STREAM_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            with error:
                raise CommandError(self._refusal(url, Answer(error.status or 0, _document(error)))) from None
        except urllib.error.URLError as error:
            raise CommandError(f"{url}: {error.reason}") from None
        except TimeoutError:
            raise _is_silent(url, _STREAM_TIMEOUT_S) from None
        except ConnectionError as error:
            raise _is_broken_off(url, error) from None
        except http.client.HTTPException:
            raise self.is_foreign() from None
        if answer.headers.get_content_type() != content_type:
            answer.close()
            raise self.is_foreign()
        return answer

    def is_foreign(self) -> CommandError:
        """Make the error for an answer of a server that is no qq node."""
        return CommandError(f"{self.url}: {_FOREIGN}")

    async def _request(
        self,
        method: str,
        base: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] = _NO_QUERY,
        more_headers: Mapping[str, str] = _NO_QUERY,
        timeout_s: float | None = None,
    ) -> Answer:
        url = base.rstrip("/") + path
        login = aiohttp.encode_basic_auth(*self._login, "utf-8")
        headers = {"Authorization": login, "Content-Type": JSON, **more_headers}
        timeout = aiohttp.ClientTimeout(total=timeout_s or self._answer_timeout_s)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
                session.request(
                    method,
                    _exact(base, path, query),
                    data=_encoded(body),
                    allow_redirects=False,
                    ssl=self._tls or True,
                ) as response,
            ):
                is_json = response.status == HTTPStatus.OK or response.content_type == JSON
                return Answer(response.status, await response.json() if is_json else None)
        except TimeoutError:
            raise _is_silent(url, timeout.total or 0.0) from None
        except (aiohttp.ClientResponseError, json.JSONDecodeError, UnicodeDecodeError):
            raise self.is_foreign() from None
        except aiohttp.ClientConnectorError as error:
            reason = _why_not_connected(error)
            raise CommandError(f"{url}: {reason}; start the node, or name another one with --url") from None
        except aiohttp.ClientError as error:
            raise CommandError(f"{url}: {error}") from None

    @property
    def _answer_timeout_s(self) -> float:
        if not self.has_time:
            return _ANSWER_TIMEOUT_S
        return min(_ANSWER_TIMEOUT_S, max(0.0, self._left_s) + _GRACE_S)

    def _refusal(self, url: str, answer: Answer) -> str:
        """Return the text of the error for a refused request."""
        reason = reason_of(answer)
        if answer.status == HTTPStatus.UNAUTHORIZED and reason in (None, _LOGIN_REFUSED):
            return f"{url}: login of {self._login.user!r} was refused"
        return f"{url}: {reason or f'HTTP status {answer.status}: {_FOREIGN}'}"


def _encoded(body: Any) -> bytes | None:
    """Encode the body of a request as JSON; bytes are JSON already."""
    return body if body is None or isinstance(body, bytes) else json.dumps(body).encode()


def _exact(base: str, path: str, query: Mapping[str, str]) -> URL:
    """Make a URL whose path is sent unchanged: otherwise names such as `..` would be resolved as path segments."""
    url = URL(base)
    whole = url.with_path(url.raw_path.rstrip("/") + path, encoded=True)
    return whole.with_query(query) if query else whole


def _why_not_connected(error: aiohttp.ClientConnectorError) -> str:
    """Return why connecting failed; aiohttp's own text mentions TLS even for plain connections."""
    reason = error.os_error
    if reason.errno is None or isinstance(reason, ssl.SSLError | socket.gaierror):
        return str(error)
    return f"cannot connect to {error.host}:{error.port} ({os.strerror(reason.errno)})"


def _is_silent(url: str, timeout_s: float) -> CommandError:
    return CommandError(
        f"{url}: no answer within {timeout_s:.2g} s; look at the node, or name another one with --url"
    )


def _is_broken_off(url: str, error: Exception) -> CommandError:
    return CommandError(f"{url}: the answer was broken off: try again ({error!r})")


def _opener(tls: ssl.SSLContext | None) -> urllib.request.OpenerDirector:
    """Make a client without redirects and proxies: only the node itself must receive the password."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=tls),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _document(answer: urllib.error.HTTPError) -> Any:
    try:
        return json.loads(answer.read())
    except ValueError:
        return None


def reason_of(answer: Answer) -> str | None:
    """Return the reason that the answer gives for a refusal, or `None`."""
    document = answer.document
    reason = document.get("reason") if isinstance(document, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return " ".join(reason.split()) if isinstance(reason, str) else None
