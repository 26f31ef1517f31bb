"""A client of groups and leases over HTTP, which asks the next node of the cluster when a node fails.

Invariant: each request may be repeated, so a request ends with the answer of a node, or after `retry_s` seconds of
failures. Pauses for busy nodes do not count, because these answer, and say when to ask again. A read yields each row of
its part once and in order, also if nodes fail in the middle of the answer.
"""

from __future__ import annotations

import json
import random
import ssl
import time
from base64 import b64encode
from contextlib import closing, contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import quote, urlencode, urlsplit

from qq_spark.errors import QueueSourceError, Refusal

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence
    from types import TracebackType

    from qq_spark.arrow import RecordBatch

_ANSWER_S = 15.0
"""Seconds without an octet after which a node counts as failed."""
_PAUSE_S = 0.2
"""Seconds between two rounds of all nodes."""
ANY_GENERATION = 0
"""In a request, stands for the generation that the group has at the node."""
_RETRIED = frozenset((408, 429, 500, 502, 503, 504))
"""Statuses with which a request is repeated at the next node."""
_ARROW = "application/vnd.apache.arrow.stream"
_FENCES_TRIED = 20
_BUSY = (429, 503)
"""Statuses of a busy node, if the answer says when to ask again (`Retry-After`)."""
_BUSY_PAUSE_MAX_S = 10.0
_NO_OBJECT = 404
_NO_ARROW = 501
_FENCED = (409, 412)


class Access(NamedTuple):
    """How to reach a cluster."""

    urls: tuple[str, ...]
    """Addresses of the HTTP ports of the nodes, such as `http://10.0.0.1:15672`."""
    user: str = "guest"
    password: str = "guest"  # noqa: S105 - the user of a new cluster
    vhost: str = "/"
    ca_file: str | None = None
    """Certificates of the authorities that are trusted; `None` is those of the system."""
    retry_s: float = 120.0
    """Seconds for which a failed request is repeated."""


class Lease(NamedTuple):
    """An open lease."""

    number: int
    messages: int
    bytes: int
    taken_ms: int
    """When the lease was taken, in milliseconds since 1970."""


class Group(NamedTuple):
    """A group of a queue."""

    name: str
    queue: str
    queue_number: int
    """Number of the queue, which a new declaration changes."""
    generation: int
    """Number of the group, which changes when the group is ended and opened again."""
    fence: int
    owner: str
    committed: int
    """The highest committed lease; -1 without any."""
    last_lease: int
    """The highest lease that was ever taken; -1 without any."""
    leases: tuple[Lease, ...]
    """The open leases."""
    ready: int
    """Ready messages of the queue."""


class Parts(NamedTuple):
    """A part of a lease: its messages are divided into `of` parts."""

    part: int = 0
    of: int = 1


WHOLE = Parts()


class NodesClient:
    """Sends requests to the nodes of a cluster, and repeats a failed request at the next node."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._nodes = [_Node(url, access) for url in access.urls]
        self._next = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; a later request opens them again."""
        for node in self._nodes:
            node.close()

    # Requests

    def _request(self, method: str, path: str, body: Mapping[str, object] | bytes | None = None) -> Any:
        attempts = _Attempts(self._access)
        while True:
            try:
                with self._node().answer(method, path, body) as answer:
                    octets = answer.read()
            except Refusal as refusal:
                if method == "DELETE" and refusal.status == _NO_OBJECT and attempts.count:
                    return None  # an earlier attempt has removed it
                raise
            except (OSError, HTTPException) as error:
                self._failed(attempts, f"{method} {path}: {_reason(error)}", error)
                continue
            return json.loads(octets) if octets else None

    @contextmanager
    def _stream(self, path: str) -> Generator[HTTPResponse]:
        """Yield an answer. Afterwards, close its connection unless the answer was read to its end."""
        node = self._node()
        with node.answer("GET", path) as answer:
            try:
                yield answer
            finally:
                if not answer.isclosed():
                    node.close()

    def _node(self) -> _Node:
        return self._nodes[self._next % len(self._nodes)]

    def _failed(self, attempts: _Attempts, reason: str, error: Exception) -> None:
        """Go on with the next node. Raise QueueSourceError when the time for repetitions has passed."""
        node = self._node()
        is_limited = isinstance(error, _Later) and error.is_limited
        if not is_limited:
            node.close()
            self._next += 1
        pause_s = error.pause_s if isinstance(error, _Later) else 0.0
        attempts.failed(f"{node.name}: {reason}", pause_s, is_alone=is_limited)


class LeaseClient(NodesClient):
    """Opens groups of the queues of a virtual host, and takes, reads and commits leases.

    Changes of a group that this client has opened fail if the group was ended and opened again since.
    """

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self._generations: dict[tuple[str, str], int] = {}
        """Queue and group -> generation of the group that this client has opened."""

    # Queues and groups

    def queues(self) -> list[str]:
        """Return the names of the queues of the virtual host."""
        found = self._request(
            "GET", f"/api/queues/{quoted(self._access.vhost)}?disable_stats=true&columns=name"
        )
        return [queue["name"] for queue in found]

    def group(self, queue: str, group: str) -> Group | None:
        """Return a group, or `None` if the queue has no group of this name."""
        try:
            return _group(self._request("GET", self._path(queue, group)))
        except Refusal as refusal:
            if refusal.status != _NO_OBJECT:
                raise
            return None

    def open_group(
        self, queue: str, group: str, fence: int, owner: str, settings: Mapping[str, object] | None = None
    ) -> Group:
        """Open a group, or take it over with a higher fence."""
        body = {"fence": fence, "owner": owner, **(settings or {})}
        opened = _group(self._request("PUT", self._path(queue, group), body))
        self._generations[queue, group] = opened.generation
        return opened

    def take_over(
        self, queue: str, group: str, owner: str, settings: Mapping[str, object] | None = None
    ) -> Group:
        """Open a group with the next higher fence, which ends the rights of its owner until now."""
        tried = -1
        for _ in range(_FENCES_TRIED):
            found = self.group(queue, group)
            fence = max(tried, -1 if found is None else found.fence) + 1
            try:
                return self.open_group(queue, group, fence, owner, settings)
            except Refusal as refusal:
                now = self.group(queue, group)
                if refusal.status not in _FENCED or now is None or now.fence < fence:
                    raise
                tried = fence  # a concurrent owner was faster
        raise QueueSourceError(
            f"group '{group}' of queue '{queue}' is taken over again and again: does the query run more than once?"
        )

    def end_group(self, queue: str, group: str, fence: int, *, release: bool = False) -> None:
        """End a group; with `release`, its open leases return to the queue."""
        query = urlencode(self._place(queue, group, fence) | ({"release": "true"} if release else {}))
        self._request("DELETE", f"{self._path(queue, group)}?{query}")

    # Leases

    def take(
        self, queue: str, group: str, fence: int, number: int, max_messages: int, max_bytes: int
    ) -> Lease | None:
        """Take the next ready messages as a lease, or find this lease; return `None` if no message is ready."""
        body = {**self._place(queue, group, fence), "max_messages": max_messages, "max_bytes": max_bytes}
        found = self._request("PUT", self._path(queue, group, number), body)
        return None if found is None else _lease(found)

    def lease(self, queue: str, group: str, number: int) -> Lease:
        """Return an open lease."""
        query = urlencode({"generation": self._generation(queue, group)})
        return _lease(self._request("GET", f"{self._path(queue, group, number)}?{query}"))

    def commit(self, queue: str, group: str, fence: int, up_to: int) -> None:
        """Remove the messages of a lease, and of all open leases with lower numbers."""
        self._request(
            "POST", f"{self._path(queue, group)}/commit", {**self._place(queue, group, fence), "up_to": up_to}
        )

    def release(self, queue: str, group: str, fence: int, number: int) -> None:
        """Return the messages of a lease to their places in the queue."""
        query = urlencode(self._place(queue, group, fence))
        self._request("DELETE", f"{self._path(queue, group, number)}?{query}")

    def _place(self, queue: str, group: str, fence: int) -> dict[str, int]:
        """Return fence and generation of a group, which a change of it names."""
        return {"fence": fence, "generation": self._generation(queue, group)}

    def _generation(self, queue: str, group: str) -> int:
        """Return the generation that this client has opened, if it has opened the group."""
        return self._generations.get((queue, group), ANY_GENERATION)

    def read(
        self,
        queue: str,
        group: str,
        number: int,
        parts: Parts = WHOLE,
        columns: Sequence[str] | None = None,
        generation: int = ANY_GENERATION,
    ) -> Iterator[RecordBatch]:
        """Yield the messages of a part of a lease in order.

        `generation` is that of the group if another client has opened it. A node that lags may have an earlier group
        of this name, whose lease has the same number and other messages.
        """
        from pyarrow import ArrowException  # noqa: PLC0415 - only readers need pyarrow
        from pyarrow.ipc import open_stream  # noqa: PLC0415 - the same

        generation = generation or self._generation(queue, group)
        query = {"part": str(parts.part), "of": str(parts.of), "generation": str(generation)}
        if columns is not None:
            query["columns"] = ",".join(columns)
        path = f"{self._path(queue, group, number)}/messages?{urlencode(query)}"
        self._next = parts.part  # tasks that read in parallel begin at different nodes
        attempts, rows = _Attempts(self._access), 0
        without_arrow: set[str] = set()
        while True:
            try:
                known = rows
                with self._stream(path) as answer, open_stream(answer) as batches:
                    for batch in batches:
                        fresh = batch.slice(min(known, batch.num_rows))
                        known -= batch.num_rows - fresh.num_rows
                        if fresh.num_rows:
                            rows += fresh.num_rows
                            attempts = _Attempts(self._access)
                            yield fresh
                    answer.read()  # the end of the answer, so that its connection can be used again
                    return
            except Refusal as refusal:
                without_arrow.add(self._node().name)
                if refusal.status != _NO_ARROW or len(without_arrow) == len(self._nodes):
                    raise
                self._next += 1
            except (OSError, HTTPException, ArrowException) as error:
                self._failed(attempts, f"GET {path}: {_reason(error)}", error)

    def _path(self, queue: str, group: str, lease: int | None = None) -> str:
        path = f"/api/queues/{quoted(self._access.vhost)}/{quoted(queue)}/groups/{quoted(group)}"
        return path if lease is None else f"{path}/leases/{lease}"


class _Attempts:
    """The time and the pauses of a repeated request."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._end = time.monotonic() + access.retry_s
        self.count = 0
        """Attempts that failed."""

    def failed(self, reason: str, pause_s: float, *, is_alone: bool) -> None:
        """Count a failed attempt, and wait after a round of all nodes, or if no other node can help (`is_alone`).

        `pause_s` is the pause for a busy node.
        """
        self.count += 1
        if time.monotonic() > self._end and not pause_s:
            raise QueueSourceError(
                f"no node of {', '.join(self._access.urls)} answered in {self._access.retry_s:g} s: {reason}"
            )
        if is_alone or self.count % len(self._access.urls) == 0:
            pause_s *= random.uniform(0.5, 1.0)  # noqa: S311 - tasks that were refused together ask apart
            self._end += pause_s
            time.sleep(max(pause_s, _PAUSE_S))


class _Later(OSError):
    """A node cannot serve a request now."""

    def __init__(self, reason: str, pause_s: float, *, is_limited: bool) -> None:
        """`pause_s` is the pause that a busy node wants; 0 for a node that is not busy.

        `is_limited` is whether a limit of the whole cluster is used up. The node counts how far the request has come.
        """
        self.pause_s = pause_s
        self.is_limited = is_limited
        super().__init__(reason)


class _Node:
    """The HTTP port of a node, with a connection that is kept."""

    def __init__(self, url: str, access: Access) -> None:
        self.name = url
        split = urlsplit(url)
        token = b64encode(f"{access.user}:{access.password}".encode()).decode("ascii")
        self._user = access.user
        self._headers = {"Authorization": f"Basic {token}"}
        self._prefix = split.path.rstrip("/")
        host = split.hostname or ""
        if split.scheme == "https":
            context = ssl.create_default_context(cafile=access.ca_file)
            self._connection: HTTPConnection = HTTPSConnection(
                host, split.port or 15671, timeout=_ANSWER_S, context=context
            )
        else:
            self._connection = HTTPConnection(host, split.port or 15672, timeout=_ANSWER_S)

    def close(self) -> None:
        self._connection.close()

    def answer(
        self, method: str, path: str, body: Mapping[str, object] | bytes | None = None
    ) -> HTTPResponse:
        """Send a request, and return a good answer. Raise Refusal, OSError, HTTPException."""
        content, headers = None, self._headers
        if isinstance(body, bytes):
            content, headers = body, headers | {"Content-Type": _ARROW}
        elif body is not None:
            content, headers = json.dumps(body).encode(), headers | {"Content-Type": "application/json"}
        self._connection.request(method, self._prefix + path, content, headers)
        answer = self._connection.getresponse()
        if answer.status < 300:
            return answer
        with closing(answer):
            reason = _refusal_reason(answer.read(65536), answer)
        if answer.status in _RETRIED:
            pause_s, is_limited = _pause_s(answer), answer.status == HTTPStatus.TOO_MANY_REQUESTS
            raise _Later(f"{answer.status} {reason}", pause_s, is_limited=is_limited)
        if answer.status == 401:
            reason = f"the cluster refuses user '{self._user}': {reason}"
        elif answer.status == _NO_OBJECT and reason == "Not Found":
            reason = (
                f"{self.name} knows neither groups nor sinks: it runs an older release, or is no node of qq"
            )
        raise Refusal(answer.status, reason)


def _pause_s(answer: HTTPResponse) -> float:
    """Return the seconds after which a busy node wants to be asked again, or 0."""
    text = answer.headers.get("Retry-After", "")
    return min(float(text), _BUSY_PAUSE_MAX_S) if answer.status in _BUSY and text.isdigit() else 0.0


def _refusal_reason(octets: bytes, answer: HTTPResponse) -> str:
    try:
        document = json.loads(octets)
        return str(document["reason"])
    except (ValueError, KeyError, TypeError):
        return answer.reason


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def quoted(name: str) -> str:
    return quote(name, safe="")


def _group(document: dict[str, Any]) -> Group:
    committed, last = document["committed"], document["last_lease"]
    return Group(
        document["name"],
        document["queue"],
        document["queue_number"],
        document["generation"],
        document["fence"],
        document["owner"],
        -1 if committed is None else committed,
        -1 if last is None else last,
        tuple(_lease(lease) for lease in document["leases"]),
        document["lag"]["messages"] - document["messages_leased"],
    )


def _lease(document: dict[str, Any]) -> Lease:
    return Lease(document["lease"], document["messages"], document["bytes"], document["taken_at"])
