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
import urllib.error
import urllib.request
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import aiohttp

from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Collection, Generator

    from qq.cli.credentials import ClientLogin

_ANSWER_TIMEOUT_S = 15.0
"""Longer than a node takes for anything that it is asked here."""
_STREAM_TIMEOUT_S = 60.0
"""How long a stream may bring nothing: longer than a node takes until it begins."""
_NOTICE_S = 1.0
"""Who waits for longer than this is told so, and again each time that it is over."""
_LOGIN_REFUSED = "login was refused"


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
        return self.ask("GET", path).document

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        expected: Collection[int] = (HTTPStatus.OK,),
        waiting_for: str = "an answer",
    ) -> Answer:
        """Make a request. Raises CommandError, also if the status of the answer is none of those expected."""
        url = self.url.rstrip("/") + path
        answer = asyncio.run(_patiently(self._request(method, url, body), waiting_for))
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
        except (http.client.HTTPException, TimeoutError) as error:
            raise CommandError(f"{url}: the answer was broken off: try again ({error!r})") from None
        except urllib.error.URLError as error:
            raise CommandError(f"{url}: {error.reason}") from None
        except ValueError:
            raise CommandError(f"{url}: is not a URL") from None

    def is_foreign(self) -> CommandError:
        """Make the error of an answer that does not hold what a node's does."""
        return CommandError(f"{self.url}: the answer is not that of a qq node")

    async def _request(self, method: str, url: str, body: Any) -> Answer:
        user, password = self._login
        headers = {"Authorization": aiohttp.encode_basic_auth(user, password, "utf-8")}
        timeout = aiohttp.ClientTimeout(total=_ANSWER_TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
                session.request(method, url, json=body, allow_redirects=False) as response,
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
        document = answer.document
        reason = document.get("reason") if isinstance(document, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if answer.status == HTTPStatus.UNAUTHORIZED and reason in (None, _LOGIN_REFUSED):
            return f"{url}: login of {self._login.user!r} was refused"
        return f"{url}: {reason or f'HTTP status {answer.status}'}"


def _opener() -> urllib.request.OpenerDirector:
    """What follows no redirection and asks no proxy: only the node itself is told the password."""
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


async def _patiently(request: Any, waiting_for: str) -> Answer:
    task: asyncio.Future[Answer] = asyncio.ensure_future(request)
    noticed_s = 0.0
    while not (await asyncio.wait([task], timeout=_NOTICE_S))[0]:
        noticed_s += _NOTICE_S
        print(f"waiting for {waiting_for} ({noticed_s:g} s)", file=sys.stderr, flush=True)
    return task.result()
