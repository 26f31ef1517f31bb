"""Prometheus text with metrics of each queue, made in slices.

Three invariants:

- A single answer is made at a time, for all clients that have asked for it by then, because the requests need no login.
  A pause follows, in which the node does other work.
- A slow or disconnected client delays no other client: the next answer is made while the last is being sent.
- Text is made again only for rows that have changed since the last answer, because most of many queues are unchanged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import contextmanager, suppress
from time import monotonic, thread_time
from typing import TYPE_CHECKING, Any

from aiohttp import hdrs, web
from prometheus_client import CONTENT_TYPE_LATEST

from qq.http.base.error_responses import has_left
from qq.management.time_slices import SLICE_S, next_slice

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence

    from qq.management.reports.object_metrics import ObjectRow, ObjectRows, ObjectTable

PER_OBJECT = (
    "queue_coarse_metrics",
    "queue_metrics",
    "queue_delivery_metrics",
    "queue_exchange_metrics",
    "sink_metrics",
)
"""The families of RabbitMQ's `/metrics/per-object` that exist here, and those of sinks."""
PAUSE_SHARE = 4
"""Pause between two answers, as a multiple of the last answer's processor time: a flood takes a fifth of a core."""
SENT_AT_ONCE = 256 * 1024
"""Octets sent at a time: copying them takes a tenth of a millisecond."""
SENDING_MAX = 4
"""Answers being sent at most, each to any number of clients. Their unsent text is in memory."""
ANSWERS_KEPT = 2
"""Different requests whose text is kept: the most recent."""
KEPT_BYTES_MAX = 48 * 1024 * 1024
"""Bytes of text kept for each request: that of some 50,000 queues. Text beyond is made each time."""
KEPT_S = 120.0
"""Seconds that unused text is kept: longer than any usual interval between scrapes."""

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class _Answer:
    """An answer for all clients that make the same request before it is made."""

    def __init__(self) -> None:
        self.awaited_by: list[web.Request] = []
        self.making: asyncio.Task[list[bytes]]
        """Task that makes the text, as the parts in which it is sent; an empty list if all clients have disconnected.
        """
        self.read_by: list[web.Request] = []
        """Requests that it is being sent to."""


class ObjectExposition:
    """Answers requests with metrics of single objects, making the answers in turn."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._next_s = 0.0
        self._awaited: dict[str, _Answer] = {}
        """Answers that are not yet begun, by request path and query."""
        self._sending: deque[_Answer] = deque()
        """Answers being sent, in the order of their begin."""
        self._kept: dict[Hashable, KeptTexts] = {}
        """Text of the last answers, by request path and query; the newest is last."""
        self._forgetting: asyncio.TimerHandle | None = None

    async def write(
        self, request: web.Request, tables: Iterator[ObjectTable], prefix: str, infos: Callable[[], str]
    ) -> web.StreamResponse:
        """Answer with these tables, whose metrics have the `prefix`, followed by `infos()`."""
        response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_LATEST})
        if request.method == hdrs.METH_HEAD:
            await response.prepare(request)
            await response.write_eof()
            return response
        asked = request.path_qs
        answer = self._awaited.get(asked)
        if answer is None:
            answer = self._awaited[asked] = _Answer()
            answer.making = asyncio.create_task(self._make(answer, asked, tables, prefix, infos))
        answer.awaited_by.append(request)
        parts = await asyncio.shield(answer.making)
        if has_left(request):
            raise ConnectionResetError
        # With a length, a response is written as it is; a chunked response would be copied for each client.
        response.content_length = sum(map(len, parts))
        await response.prepare(request)
        with self._on_its_way(answer, request):
            for part in parts:
                await response.write(part)
                await asyncio.sleep(0)
            await response.write_eof()
        return response

    async def _make(
        self,
        answer: _Answer,
        asked: str,
        tables: Iterator[ObjectTable],
        prefix: str,
        infos: Callable[[], str],
    ) -> list[bytes]:
        async with self._turn:
            await asyncio.sleep(max(0.0, self._next_s - monotonic()))
            del self._awaited[asked]  # later requests need a newer state
            if all(map(has_left, answer.awaited_by)):
                return []
            pieces = await self._made(_lines(tables, prefix, self._texts(asked)))
            return list(_parts([*pieces, infos().encode()]))

    async def _made(self, lines: Iterator[bytes]) -> list[bytes]:
        """Make the text in slices; it has some thousands of pieces."""
        pieces: list[bytes] = []
        taken_s, is_over = 0.0, False
        try:
            while not is_over:
                began_s = thread_time()
                is_over = _add_slice(lines, pieces)
                taken_s += thread_time() - began_s
                await next_slice()
        finally:
            self._next_s = monotonic() + PAUSE_SHARE * taken_s
        return pieces

    @contextmanager
    def _on_its_way(self, answer: _Answer, request: web.Request) -> Generator[None]:
        """Count an answer as being sent until the end of the block. Above the limit, the oldest answer is aborted."""
        answer.read_by.append(request)
        if answer not in self._sending:
            self._sending.append(answer)
        if len(self._sending) > SENDING_MAX:
            for slow in self._sending.popleft().read_by:
                if slow.transport is not None:
                    slow.transport.abort()
        try:
            yield
        finally:
            answer.read_by.remove(request)
            if not answer.read_by:
                with suppress(ValueError):  # it was aborted
                    self._sending.remove(answer)

    def _texts(self, asked: str) -> KeptTexts:
        """Return the kept text of the last answer to a request. Only the most recent requests keep their text."""
        texts = self._kept.pop(asked, None) or KeptTexts()
        self._kept[asked] = texts
        while len(self._kept) > ANSWERS_KEPT:
            del self._kept[next(iter(self._kept))]
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = asyncio.get_running_loop().call_later(KEPT_S, self._kept.clear)
        return texts


class KeptTexts:
    """The text of rows from the last answer, with the state that shows whether a row has changed."""

    def __init__(self) -> None:
        self._before: dict[Hashable, tuple[Any, list[bytes]]] = {}
        self._now: dict[Hashable, tuple[Any, list[bytes]]] = {}
        self._room = KEPT_BYTES_MAX

    def begin(self) -> None:
        """Begin an answer. Text that this answer does not use is dropped with the next answer."""
        self._before, self._now = self._now, {}
        self._room = KEPT_BYTES_MAX

    def text(self, rows: ObjectRows, make: Callable[[ObjectRows], list[bytes]]) -> list[bytes]:
        """Return the text of some rows, for each metric."""
        if rows.state is None:
            return make(rows)
        known = self._before.get(rows.key)
        if known is None or known[0] != rows.state:
            known = rows.state, make(rows)
        self._room -= sum(map(len, known[1]))
        if self._room >= 0:
            self._now[rows.key] = known
        return known[1]


def info_lines(name: str, text: str, labels: Mapping[str, str]) -> str:
    """Return the lines of a metric whose value is always 1."""
    name = f"rabbitmq_{name}"
    head = f"# HELP {name} {text}\n# TYPE {name} gauge\n"
    return f"{head}{name}{{{_labels(labels.keys(), labels.values())}}} 1\n"


def _add_slice(lines: Iterator[bytes], pieces: list[bytes]) -> bool:
    """Add lines until the time of a slice is over; return whether all lines have been added."""
    until_s = monotonic() + SLICE_S
    for piece in lines:
        pieces.append(piece)
        if monotonic() >= until_s:
            return False
    return True


def _parts(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join the pieces of a text into parts that are sent at a time."""
    part: list[bytes] = []
    room = SENT_AT_ONCE
    for piece in pieces:
        part.append(piece)
        room -= len(piece)
        if room <= 0:
            yield b"".join(part)
            part, room = [], SENT_AT_ONCE
    if part:
        yield b"".join(part)


def _lines(tables: Iterator[ObjectTable], prefix: str, texts: KeptTexts) -> Iterator[bytes]:
    texts.begin()
    for table in tables:
        yield from _table_lines(table, "rabbitmq_cluster_" if table.is_of_cluster else prefix, texts)


def _table_lines(table: ObjectTable, prefix: str, texts: KeptTexts) -> Iterator[bytes]:
    """Yield the lines of a table. The lines of a metric must be together, so the text of all rows is made first."""
    names = [f"{prefix}{name}" for name, _, _ in table.metrics]

    def make(rows: ObjectRows) -> list[bytes]:
        return _row_lines(names, table.labels, rows.make())

    parts: list[list[bytes]] = []
    for rows in table.parts:
        parts.append(texts.text(rows, make))
        yield b""
    for place, (name, (_, kind, text)) in enumerate(zip(names, table.metrics, strict=True)):
        # Only OpenMetrics drops "_total" from the family name of a counter.
        yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n".encode()
        for lines in parts:
            yield lines[place]


def _row_lines(names: Sequence[str], labels: Sequence[str], rows: Iterable[ObjectRow]) -> list[bytes]:
    """Return the lines of some rows, for each metric."""
    lines: list[list[str]] = [[] for _ in names]
    for values, figures in rows:
        row = _labels(labels, values)
        for name, of_metric, figure in zip(names, lines, figures, strict=True):
            if figure is not None:
                of_metric.append(f"{name}{{{row}}} {figure}\n")
    return ["".join(of_metric).encode() for of_metric in lines]


def _labels(names: Iterable[str], values: Iterable[str]) -> str:
    return ",".join(
        f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True)
    )
