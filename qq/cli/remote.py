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
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import aiohttp

from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Mapping

    from qq.cli.credentials import ClientLogin

_ANSWER_TIMEOUT_S = 15.0
"""How long to wait for an answer, in seconds: longer than a node takes for any request of these commands."""
_GRACE_S = 5.5
"""How many seconds behind the end of a command's time an answer is still waited for: a node takes 5 s to say that
leadership has not moved, and less for anything else that it was told not to wait for."""
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
_FOREIGN = "the answer is not that of a qq node"
_ARCHIVE = "application/x-tar"


class Answer(NamedTuple):
    status: int
    document: Any


class Remote:
    """A node that is asked over HTTP, as a user, by one command."""

    def __init__(self, url: str, login: ClientLogin, timeout_s: float | None = None) -> None:
        """`timeout_s` is for how many seconds from now the command tries; without it, it asks once for everything."""
        self.url = url
        self._login = login
        self._end_s = time.monotonic() + (timeout_s or 0.0)
        self._has_time = timeout_s is not None

    def get(self, path: str) -> Any:
        """Return the document at this path. Raises CommandError."""
        url = self._url_of(path)
        with _Wait("an answer").told():
            answer = asyncio.run(self._request("GET", url, None))
        return self._checked(url, answer, (HTTPStatus.OK,)).document

    def ask_until_done(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        expected: Collection[int] = (HTTPStatus.OK,),
        waiting_for: str,
        note: str = "",
    ) -> Answer:
        """Make a request that may be repeated, as long as the answer is that it is not done yet (503).

        If it is still so at the end of the command's time, that is an error unless it is expected. With a `note` the
        node that is asked may stop when it is done, so there are few requests: the note is added to the text if there
        was no answer. Raises CommandError.
        """
        url, wait = self._url_of(path), _Wait(waiting_for, f"{self.url} has not answered yet")
        longest_s = _LAST_REQUEST_S if note else _REQUEST_S
        try:
            with wait.told():
                answer = asyncio.run(self._repeat(method, url, body, wait, longest_s))
        except CommandError as error:
            raise CommandError(f"{error}{note}") from None
        return self._checked(url, answer, expected)

    async def _repeat(self, method: str, url: str, body: Any, wait: _Wait, longest_s: float) -> Answer:
        while True:
            wait_s = max(_REQUEST_S, min(longest_s, self._left_s))
            answer = await self._request(method, url, body, {"wait": f"{wait_s:.3g}"})
            if answer.status != HTTPStatus.SERVICE_UNAVAILABLE or self._left_s <= 0:
                return answer
            wait.reason = _reason_of(answer) or ""
            await asyncio.sleep(min(_PAUSE_S, max(0.0, self._left_s)))

    @property
    def _left_s(self) -> float:
        return self._end_s - time.monotonic()

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
        """Open the archive at this path as a stream, which may be long.

        Raises CommandError, also if it ends too early.
        """
        url = self._url_of(path)
        with _Wait("the answer to begin").told():
            stream = self._begun(url)
        with stream:
            try:
                yield stream
            except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
                raise _is_broken_off(url, error) from None

    def _begun(self, url: str) -> http.client.HTTPResponse:
        """Wait until the answer begins. Raises CommandError."""
        login = base64.b64encode(":".join(self._login).encode()).decode()
        request = urllib.request.Request(url, headers={"Authorization": f"Basic {login}"})  # noqa: S310
        try:
            answer = _opener().open(request, timeout=_STREAM_TIMEOUT_S)
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
        if answer.headers.get_content_type() != _ARCHIVE:
            answer.close()
            raise self.is_foreign()
        return answer

    def is_foreign(self) -> CommandError:
        """Make the error for an answer that is not one of a node of qq."""
        return CommandError(f"{self.url}: {_FOREIGN}")

    async def _request(
        self, method: str, url: str, body: Any, query: Mapping[str, str] = MappingProxyType({})
    ) -> Answer:
        user, password = self._login
        headers = {"Authorization": aiohttp.encode_basic_auth(user, password, "utf-8")}
        timeout_s = _ANSWER_TIMEOUT_S
        if self._has_time:
            timeout_s = min(timeout_s, max(0.0, self._left_s) + _GRACE_S)
        try:
            async with (
                aiohttp.ClientSession(
                    timeout=aiohttp.ClientTimeout(total=timeout_s), headers=headers
                ) as session,
                session.request(method, url, params=query, json=body, allow_redirects=False) as response,
            ):
                is_json = response.status == HTTPStatus.OK or response.content_type == "application/json"
                return Answer(response.status, await response.json() if is_json else None)
        except TimeoutError:
            raise _is_silent(url, timeout_s) from None
        except (aiohttp.ClientResponseError, json.JSONDecodeError, UnicodeDecodeError):
            raise self.is_foreign() from None
        except aiohttp.ClientError as error:
            raise CommandError(f"{url}: {error}") from None

    def _refusal(self, url: str, answer: Answer) -> str:
        reason = _reason_of(answer)
        if answer.status == HTTPStatus.UNAUTHORIZED and reason in (None, _LOGIN_REFUSED):
            return f"{url}: login of {self._login.user!r} was refused"
        return f"{url}: {reason or f'HTTP status {answer.status}: {_FOREIGN}'}"


def _is_silent(url: str, timeout_s: float) -> CommandError:
    return CommandError(f"{url}: no answer within {timeout_s:.2g} s")


def _is_broken_off(url: str, error: Exception) -> CommandError:
    return CommandError(f"{url}: the answer was broken off: try again ({error!r})")


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

    @contextmanager
    def told(self) -> Generator[None]:
        """Tell the operator during the block what is waited for."""
        is_over = threading.Event()

        def tell() -> None:
            while not is_over.wait(self._began_s + self._notice_s - time.monotonic()):
                self._tell()

        telling = threading.Thread(target=tell, daemon=True)
        telling.start()
        try:
            yield
        finally:
            is_over.set()
            telling.join()

    def _tell(self) -> None:
        why = f": {self.reason}" if self.reason else ""
        print(f"waiting for {self._what} ({self._notice_s:g} s){why}", file=sys.stderr, flush=True)
        self._notice_s += _NOTICE_S if self._notice_s < _LONG_S else _LONG_S
