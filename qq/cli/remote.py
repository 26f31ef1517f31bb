"""Asking a node over HTTP for an operator.

Lives here: a request, its errors in one line, and signs of life while it takes long. Not here: who logs in
(credentials.py), what an answer means (status.py, operations.py), nodes of a cluster on this machine (asking.py).

Law: whatever a node, or something else that listens there, makes of a request is an answer or a CommandError.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar

import aiohttp

from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Generator, Mapping

    from qq.cli.credentials import ClientLogin

_ANSWER_TIMEOUT_S = 15.0
"""How long to wait for an answer, in seconds: longer than a node takes for any request of these commands."""
_STREAM_TIMEOUT_S = 60.0
"""How long a stream may bring no bytes, in seconds: longer than a node takes until it begins one."""
_NOTICE_S = 1.0
"""After how many seconds of waiting the operator is told, and told again; after `_LONG_S` more rarely."""
_LONG_S = 10.0
_PAUSE_S = 0.5
"""How many seconds to wait before a request is repeated."""
_REQUEST_S = 0.5
"""How many seconds a request waits for its change, before it is told the reason and repeated."""
_LAST_REQUEST_S = 10.0
"""How many seconds the last request waits, if the node may be gone before another one."""
_LOGIN_REFUSED = "login was refused"


T = TypeVar("T")


class Answer(NamedTuple):
    status: int
    document: Any


class Remote:
    """A node that is asked over HTTP, as a user."""

    def __init__(self, url: str, login: ClientLogin) -> None:
        self.url = url
        self._login = login

    def get(self, path: str) -> Any:
        """Return the document at this path. Raises CommandError."""
        url = self._url_of(path)
        answer = asyncio.run(_Wait("an answer").until(self._request("GET", url, None)))
        return self._checked(url, answer, (HTTPStatus.OK,)).document

    def ask_until_done(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        expected: Collection[int] = (HTTPStatus.OK,),
        waiting_for: str,
        timeout_s: float,
        at_first: str = "",
        note: str = "",
    ) -> Answer:
        """Make a request that may be repeated, as long as the answer is that it is not done yet (503).

        If it is still so at the end, that is an error unless it is expected. Until the first answer has told why,
        `at_first` is given as the reason. With a `note` the node that is asked may stop when it is done, so there are
        few requests: the note is added to the text if there was no answer. Raises CommandError.
        """
        url, wait = self._url_of(path), _Wait(waiting_for, at_first)
        request_s = max(_REQUEST_S, min(_LAST_REQUEST_S, timeout_s)) if note else _REQUEST_S
        try:
            answer = asyncio.run(self._repeat(method, url, body, wait, timeout_s, request_s))
        except CommandError as error:
            raise CommandError(f"{error}{note}") from None
        return self._checked(url, answer, expected)

    async def _repeat(
        self, method: str, url: str, body: Any, wait: _Wait, timeout_s: float, request_s: float
    ) -> Answer:
        while True:
            answer = await wait.until(self._request(method, url, body, {"wait": f"{request_s:g}"}))
            left_s = timeout_s - wait.has_taken_s
            if answer.status != HTTPStatus.SERVICE_UNAVAILABLE or left_s <= 0:
                return answer
            wait.reason = _reason_of(answer) or ""
            await wait.until(asyncio.sleep(min(_PAUSE_S, left_s)))

    def _url_of(self, path: str) -> str:
        return self.url.rstrip("/") + path

    def _checked(self, url: str, answer: Answer, expected: Collection[int]) -> Answer:
        if answer.status not in expected:
            raise CommandError(self._refusal(url, answer))
        if not isinstance(answer.document, dict):
            raise self.is_foreign()
        return answer

    @contextmanager
    def download(self, path: str) -> Generator[BinaryIO]:
        """Open what is at this path as a stream, which may be long. Raises CommandError, also if it ends too early."""
        url = self.url.rstrip("/") + path
        login = base64.b64encode(":".join(self._login).encode()).decode()
        try:
            request = urllib.request.Request(url, headers={"Authorization": f"Basic {login}"})  # noqa: S310
            with _opener().open(request, timeout=_STREAM_TIMEOUT_S) as stream:
                yield stream
        except urllib.error.HTTPError as error:
            with error:
                raise CommandError(self._refusal(url, Answer(error.status or 0, _document(error)))) from None
        except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
            raise CommandError(f"{url}: the answer was broken off: try again ({error!r})") from None
        except urllib.error.URLError as error:
            raise CommandError(f"{url}: {error.reason}") from None
        except ValueError:
            raise CommandError(f"{url}: is not a URL") from None

    def is_foreign(self) -> CommandError:
        """Make the error for an answer that is not one of a node of qq."""
        return CommandError(f"{self.url}: the answer is not that of a qq node")

    async def _request(
        self, method: str, url: str, body: Any, query: Mapping[str, str] = MappingProxyType({})
    ) -> Answer:
        user, password = self._login
        headers = {"Authorization": aiohttp.encode_basic_auth(user, password, "utf-8")}
        timeout = aiohttp.ClientTimeout(total=_ANSWER_TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
                session.request(method, url, params=query, json=body, allow_redirects=False) as response,
            ):
                is_json = response.status == HTTPStatus.OK or response.content_type == "application/json"
                return Answer(response.status, await response.json() if is_json else None)
        except TimeoutError:
            raise CommandError(f"{url}: no answer within {_ANSWER_TIMEOUT_S:g} s") from None
        except aiohttp.InvalidURL:
            raise CommandError(f"{url}: is not a URL") from None
        except (aiohttp.ClientError, ValueError) as error:
            raise CommandError(f"{url}: {error}") from None

    def _refusal(self, url: str, answer: Answer) -> str:
        reason = _reason_of(answer)
        if answer.status == HTTPStatus.UNAUTHORIZED and reason in (None, _LOGIN_REFUSED):
            return f"{url}: login of {self._login.user!r} was refused"
        return f"{url}: {reason or f'HTTP status {answer.status}'}"


def _opener() -> urllib.request.OpenerDirector:
    """Make a client that follows no redirection and uses no proxy: only the node itself is told the password."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
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


def _reason_of(answer: Answer) -> str | None:
    """Why a request was not carried out, if the answer says so."""
    document = answer.document
    reason = document.get("reason") if isinstance(document, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return reason if isinstance(reason, str) else None


class _Wait:
    """A command's wait, during which it tells the operator what it waits for."""

    def __init__(self, what: str, reason: str = "") -> None:
        self.reason = reason
        """Why the wait is not over yet, as the node last said."""
        self._what = what
        self._began_s = time.monotonic()
        self._notice_s = _NOTICE_S
        """How many seconds after the start of the wait the operator is told next."""

    @property
    def has_taken_s(self) -> float:
        return time.monotonic() - self._began_s

    async def until(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`, and tell the operator meanwhile what is waited for."""
        task = asyncio.ensure_future(work)
        while not (await asyncio.wait([task], timeout=max(0.0, self._notice_s - self.has_taken_s)))[0]:
            if self.has_taken_s >= self._notice_s:
                self._tell()
        return task.result()

    def _tell(self) -> None:
        why = f": {self.reason}" if self.reason else ""
        print(f"waiting for {self._what} ({self._notice_s:g} s){why}", file=sys.stderr, flush=True)
        self._notice_s += _NOTICE_S if self._notice_s < _LONG_S else _LONG_S
