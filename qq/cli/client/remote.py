"""Sends HTTP requests to a node for an operator's command.

Invariant: every answer of a node, or of a foreign server on its port, becomes an `Answer` or a CommandError. A change
is sent to a single node only, after this node is known to answer.
"""

from __future__ import annotations

import json
import ssl
import time
from contextlib import ExitStack, contextmanager
from functools import cached_property
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse, IncompleteRead, RemoteDisconnected
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from qq.cli.client.api import ARCHIVE, DONE, JSON
from qq.cli.client.http_client import ConnectError, send
from qq.cli.command_line.values import HTTP_PORT
from qq.cli.terminal.progress import Wait
from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Mapping, Sequence

    from qq.cli.client.http_client import ClientLogin

_ANSWER_TIMEOUT_S = 15.0
"""Seconds to wait for an answer: longer than a node takes for any usual request."""
_LONG_TIMEOUT_S = 600.0
"""Seconds to wait for an answer to a long request, such as thousands of changes."""
_PROBE_TIMEOUT_S = 2.0
"""Seconds that each of several nodes has to say whether it serves clients."""
_GRACE_S = 5.5
"""Seconds that a command still waits for an answer after its own time has ended: a node takes 5 s to report that
leadership has not moved, and less for other requests."""
_STREAM_TIMEOUT_S = 60.0
"""Seconds that a stream may bring no bytes: longer than a node takes to begin a stream."""
_PAUSE_S = 0.5
"""Seconds between repetitions of a request."""
_REQUEST_S = 0.5
"""Seconds that a node waits for a change before it answers with the reason; then the request is repeated."""
_LAST_REQUEST_S = 10.0
"""Seconds that the node waits at most when the request may stop it, so that no further request could be answered."""
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF_WHILE_READING")
"""OpenSSL's reasons when a port answers with something else than TLS."""
_LOGIN_REFUSED = "login was refused"
_NOTHING_THERE = "Not Found"
_FOREIGN = "the answer is not that of a qq node"
_READ_BYTES = 64 * 1024
_NO_QUERY: Mapping[str, str] = MappingProxyType({})


class Answer(NamedTuple):
    status: int
    document: Any


class _Stream:
    """An answer read part by part; only data still missing counts as a wait."""

    def __init__(self, url: str, answer: HTTPResponse, wait: Wait) -> None:
        self._url = url
        self._answer = answer
        self._wait = wait

    def read(self, size: int) -> bytes:
        """Return the next bytes. Raises CommandError if the answer ends too early."""
        try:
            with self._wait.restarted():
                return self._answer.read1(size)
        except TimeoutError:
            raise CommandError(
                f"{self._url}: the answer was broken off: nothing has come for {_STREAM_TIMEOUT_S:g} s: try again, or "
                "ask another node"
            ) from None
        except (HTTPException, ConnectionError) as error:
            raise _broken_off(self._url, error) from None


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
        with Wait("a node that answers").reported():
            return self._choose()

    def _choose(self) -> str:
        not_ready: list[str] = []
        errors: list[str] = []
        for url in self._urls:
            try:
                health = self._request("GET", url, "/healthz", timeout_s=_PROBE_TIMEOUT_S)
            except CommandError as error:
                errors.append(str(error))
                continue
            if health.status == HTTPStatus.OK:
                return url
            not_ready.append(url)
        if not not_ready:
            raise CommandError(f"no node answers: {'; '.join(errors)}")
        return not_ready[0]

    def why_not_ready(self) -> str | None:
        """Return why the node serves no clients, as it says at once; `None` if it serves, or does not answer."""
        try:
            with Wait("an answer").reported():
                health = self._request("GET", self.url, "/healthz", timeout_s=_PROBE_TIMEOUT_S)
        except CommandError:
            return None
        return None if health.status == HTTPStatus.OK else reason_of(health)

    def wait_ready(self) -> str | None:
        """Return when the node serves clients, or why it does not at the end of the command's time."""
        wait = Wait("the node to serve clients")
        with wait.reported():
            while True:
                try:
                    health = self._request("GET", self.url, "/healthz", timeout_s=_PROBE_TIMEOUT_S)
                except CommandError as error:
                    wait.reason = str(error)
                else:
                    if health.status == HTTPStatus.OK:
                        return None
                    wait.reason = reason_of(health) or self._refusal(self.url_of("/healthz"), health)
                if self._left_s <= 0:
                    return wait.reason
                time.sleep(min(_PAUSE_S, self._left_s))

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
        with (wait or Wait("an answer")).reported():
            answer = self._request(method, base, path, body, query, headers, timeout_s)
        if missing and answer.status == HTTPStatus.NOT_FOUND:
            raise CommandError(f"there is no {missing}")
        return self._check(path, answer, expected, kind)

    def repeat_until_done(
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
            with wait.reported():
                answer = self._repeat(method, path, body, query, wait, longest_s)
        except CommandError as error:
            raise CommandError(f"{error}{note}") from None
        return self._check(path, answer, expected)

    def _repeat(
        self, method: str, path: str, body: Any, query: Mapping[str, str], wait: Wait, longest_s: float
    ) -> Answer:
        while True:
            wait_s = max(_REQUEST_S, min(longest_s, self._left_s))
            query = {**query, "wait": f"{wait_s:.3g}"}
            answer = self._request(method, self.url, path, body, query)
            if answer.status != HTTPStatus.SERVICE_UNAVAILABLE or self._left_s <= 0:
                return answer
            wait.reason = reason_of(answer) or ""
            time.sleep(min(_PAUSE_S, max(0.0, self._left_s)))

    @property
    def _left_s(self) -> float:
        return self._end_s - time.monotonic()

    def url_of(self, path: str) -> str:
        """Return the URL of a path, as errors show it."""
        return self.url.rstrip("/") + path

    def _check(self, path: str, answer: Answer, expected: Collection[int], kind: type = dict) -> Answer:
        if answer.status not in expected:
            raise CommandError(self._refusal(self.url_of(path), answer))
        if answer.status == HTTPStatus.OK and not isinstance(answer.document, kind):
            raise self.foreign_answer()
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
        with ExitStack() as opened:
            with Wait("the answer to begin").reported(), _errors_explained(self.url, path, _STREAM_TIMEOUT_S):
                response = opened.enter_context(
                    send("GET", self.url, path, self._login, _STREAM_TIMEOUT_S, query=query, tls=self._tls)
                )
                if response.status != HTTPStatus.OK:
                    raise CommandError(self._refusal(url, Answer(response.status, _error_document(response))))
            if response.headers.get_content_type() != content_type:
                raise self.foreign_answer()
            wait = Wait(f"more of the answer of {self.url}", has_bar=True)
            with wait.reported():
                yield cast("BinaryIO", _Stream(url, response, wait))

    def foreign_answer(self) -> CommandError:
        """Make the error for an answer of a server that is no qq node."""
        return _foreign_answer(self.url)

    def _request(
        self,
        method: str,
        base: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] = _NO_QUERY,
        more_headers: Mapping[str, str] = _NO_QUERY,
        timeout_s: float | None = None,
    ) -> Answer:
        headers = {"Content-Type": JSON, **more_headers}
        timeout_s = timeout_s or self._answer_timeout_s
        with (
            _errors_explained(base, path, timeout_s),
            send(
                method,
                base,
                path,
                self._login,
                timeout_s,
                query=query,
                headers=headers,
                body=_encoded(body),
                tls=self._tls,
            ) as response,
        ):
            content = _read(response, timeout_s)
        is_json = response.headers.get_content_type() == JSON
        if not is_json and response.status != HTTPStatus.OK:
            return Answer(response.status, None)
        try:
            return Answer(response.status, json.loads(content if is_json else b""))
        except ValueError:
            raise _foreign_answer(base) from None

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
        if answer.status == HTTPStatus.PERMANENT_REDIRECT:
            return f"{url}: the port speaks TLS: use https:// in place of http://"
        if answer.status == HTTPStatus.NOT_FOUND and reason == _NOTHING_THERE:
            return f"{url}: {reason}: a virtual host, a user or an object of this path is missing"
        return f"{url}: {reason or f'HTTP status {answer.status}: {_FOREIGN}'}"


def _encoded(body: Any) -> bytes | None:
    """Encode the body of a request as JSON; bytes are JSON already."""
    return body if body is None or isinstance(body, bytes) else json.dumps(body).encode()


@contextmanager
def _errors_explained(base: str, path: str, timeout_s: float) -> Generator[None]:
    """Raise a CommandError in place of an error of the connection."""
    url = base.rstrip("/") + path
    try:
        yield
    except ConnectError as error:
        raise CommandError(f"{url}: {error}; start the node, or name another node with --url") from None
    except TimeoutError:
        raise CommandError(
            f"{url}: no answer within {timeout_s:.2g} s; look at the node, or name another node with --url"
        ) from None
    except ssl.SSLCertVerificationError as error:
        raise CommandError(
            f"{url}: the certificate of the node is not accepted: {error.verify_message}"
        ) from None
    except ssl.SSLError as error:
        hint = (
            "does not speak TLS: use http:// in place of https://"
            if error.reason in _NO_TLS
            else error.reason
        )
        raise CommandError(f"{url}: the port {hint}") from None
    except (RemoteDisconnected, ConnectionResetError) as error:
        raise CommandError(
            f"{url}: the connection was lost before the answer ({error}); is it the HTTP port of a node, by default "
            f"{HTTP_PORT}? Ports for AMQP, for other nodes and for TLS end such a connection"
        ) from None
    except (OSError, IncompleteRead) as error:
        raise CommandError(f"{url}: the connection was lost before the answer ({error})") from None
    except HTTPException:
        raise _foreign_answer(base) from None


def _read(response: HTTPResponse, timeout_s: float) -> bytes:
    """Read the body. Raises TimeoutError if it takes longer than `timeout_s`, also without a long pause."""
    end_s = time.monotonic() + timeout_s
    parts: list[bytes] = []
    while part := response.read1(_READ_BYTES):
        if time.monotonic() > end_s:
            raise TimeoutError
        parts.append(part)
    if response.length:
        raise IncompleteRead(b"".join(parts), response.length)
    return b"".join(parts)


def _error_document(response: HTTPResponse) -> Any:
    try:
        return json.loads(response.read())
    except ValueError:
        return None


def _foreign_answer(base: str) -> CommandError:
    return CommandError(f"{base}: {_FOREIGN}")


def _broken_off(url: str, error: Exception) -> CommandError:
    return CommandError(f"{url}: the answer was broken off: try again ({error!r})")


def reason_of(answer: Answer) -> str | None:
    """Return the reason that the answer gives for a refusal, with its explanation if it has one, or `None`."""
    if not isinstance(answer.document, dict):
        return None
    document = cast("dict[str, Any]", answer.document)
    reason, explanation = document.get("reason"), document.get("explanation")
    if not isinstance(reason, str):
        return None
    text = f"{explanation} ({reason.strip()})" if isinstance(explanation, str) else reason
    return " ".join(text.split())
