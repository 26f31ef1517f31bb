"""Prometheus' text of metrics that there is one of for each queue, in slices.

Three laws. Nobody has to log in for it, so one answer is made at a time, for all who have asked for it by then, and
before the next one the node has time for others. Who does not read, or has left, keeps nobody waiting: an answer is
sent when the next one may be made. And most queues of very many are as they were: no text is made of what has not
changed since it was told last.
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
from qq.http.base.slices import SLICE_S, next_slice

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence

    from qq.http.view import ObjectRow, ObjectRows, ObjectTable

PER_OBJECT = ("queue_coarse_metrics", "queue_metrics", "queue_delivery_metrics", "queue_exchange_metrics")
"""The families that RabbitMQ's `/metrics/per-object` shows, as far as there are any here."""
PAUSE_SHARE = 4
"""Between two answers there is this many times the processor time that one took: a flood takes a fifth of a core."""
SENT_AT_ONCE = 256 * 1024
"""How many octets are sent at once: to copy them takes a tenth of a millisecond."""
SENDING_MAX = 4
"""How many answers may be on their way, each to however many have asked for it: what is not read yet is in memory."""
ANSWERS_KEPT = 2
"""Of how many different requests the text is kept: those that came last."""
KEPT_BYTES_MAX = 48 * 1024 * 1024
"""How much text is kept of each: that of some 50,000 queues. What is beyond it is made each time."""
KEPT_S = 120.0
"""For how long text is kept that nobody asks for: longer than anybody waits between two scrapes."""

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class _Answer:
    """What all are answered who ask for the same before it is made."""

    def __init__(self) -> None:
        self.awaited_by: list[web.Request] = []
        self.making: asyncio.Task[list[bytes]]
        """What ends with the text, in the parts in which it is sent; with none if nobody waits for it any more."""
        self.read_by: list[web.Request] = []
        """To whom it is on its way."""


class ObjectExposition:
    """Answers with metrics of single objects, one answer after the other."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._next_s = 0.0
        self._awaited: dict[str, _Answer] = {}
        """The answers that are not begun yet, by what is asked for."""
        self._sending: deque[_Answer] = deque()
        """The answers that are on their way, in the order in which they were begun."""
        self._kept: dict[Hashable, KeptTexts] = {}
        """What was told last, by what was asked for; the newest is last."""
        self._forgetting: asyncio.TimerHandle | None = None

    async def write(
        self, request: web.Request, tables: Iterator[ObjectTable], prefix: str, infos: Callable[[], str]
    ) -> web.StreamResponse:
        """Answer with these tables, whose metrics' names begin with `prefix`, and with `infos()` behind them."""
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
        # With its length, a response is written as it is: one that is cut into chunks would be copied for each reader.
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
            del self._awaited[asked]  # whoever asks from now on wants to know how it is then
            if all(map(has_left, answer.awaited_by)):
                return []
            pieces = await self._made(_lines(tables, prefix, self._texts(asked)))
            return list(_parts([*pieces, infos().encode()]))

    async def _made(self, lines: Iterator[bytes]) -> list[bytes]:
        """Make the text, in slices; it is some thousands of pieces."""
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
        """Note that an answer is sent, for which the one that was begun first is given up if there are too many."""
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
                with suppress(ValueError):  # it was given up
                    self._sending.remove(answer)

    def _texts(self, asked: str) -> KeptTexts:
        """What is kept of the last answer to what is asked for. Who asks in many ways has little of it."""
        texts = self._kept.pop(asked, None) or KeptTexts()
        self._kept[asked] = texts
        while len(self._kept) > ANSWERS_KEPT:
            del self._kept[next(iter(self._kept))]
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = asyncio.get_running_loop().call_later(KEPT_S, self._kept.clear)
        return texts


class KeptTexts:
    """The text of rows as it was when it was told last, and by what is seen whether it is still the same."""

    def __init__(self) -> None:
        self._before: dict[Hashable, tuple[Any, list[bytes]]] = {}
        self._now: dict[Hashable, tuple[Any, list[bytes]]] = {}
        self._room = KEPT_BYTES_MAX

    def begin(self) -> None:
        """Begin to tell again: what is not told this time is forgotten with the next."""
        self._before, self._now = self._now, {}
        self._room = KEPT_BYTES_MAX

    def of(self, rows: ObjectRows, make: Callable[[ObjectRows], list[bytes]]) -> list[bytes]:
        """The text of some rows, for each metric."""
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
    """The lines of a metric whose value is always 1."""
    name = f"rabbitmq_{name}"
    head = f"# HELP {name} {text}\n# TYPE {name} gauge\n"
    return f"{head}{name}{{{_labels(labels.keys(), labels.values())}}} 1\n"


def _add_slice(lines: Iterator[bytes], pieces: list[bytes]) -> bool:
    """Add the next lines, as many as can be made in the time of a slice; return whether these were the last ones."""
    until_s = monotonic() + SLICE_S
    for piece in lines:
        pieces.append(piece)
        if monotonic() >= until_s:
            return False
    return True


def _parts(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces of a text, as many together as are sent at once."""
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
    """The lines of a table. All lines of one metric have to come together, so the text of all rows is made first."""
    names = [f"{prefix}{name}" for name, _, _ in table.metrics]

    def make(rows: ObjectRows) -> list[bytes]:
        return _row_lines(names, table.labels, rows.make())

    parts: list[list[bytes]] = []
    for rows in table.parts:
        parts.append(texts.of(rows, make))
        yield b""
    for place, (name, (_, kind, text)) in enumerate(zip(names, table.metrics, strict=True)):
        # The name of a counter's family is without "_total" only in OpenMetrics.
        yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n".encode()
        for lines in parts:
            yield lines[place]


def _row_lines(names: Sequence[str], labels: Sequence[str], rows: Iterable[ObjectRow]) -> list[bytes]:
    """The lines of some rows, for each metric."""
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
