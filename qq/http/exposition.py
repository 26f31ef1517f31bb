"""Prometheus' text of metrics that there is one of for each queue, in slices.

Lives here: the text (https://prometheus.io/docs/instrumenting/exposition_formats/), and how much of a node's time those
who ask may take. Not here: which figures there are (qq/management/figures.py), the node's own metrics (qq/metrics.py).

Law: nobody has to log in for it, so one answer is made at a time, and before the next one the node has time for others.
"""

from __future__ import annotations

import asyncio
from time import monotonic, thread_time
from typing import TYPE_CHECKING

from aiohttp import hdrs, web
from prometheus_client import CONTENT_TYPE_LATEST

from qq.http.slices import SLICE_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from qq.http.view import ObjectTable

PER_OBJECT = ("queue_coarse_metrics", "queue_metrics", "queue_delivery_metrics", "queue_exchange_metrics")
"""The families that RabbitMQ's `/metrics/per-object` shows, as far as there are any here."""
PAUSE_SHARE = 4
"""Between two answers there is this many times the processor time that one took: a flood takes a fifth of a core."""
ROWS_AT_ONCE = 50
"""How many rows are made before it is looked whether the slice is over."""

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class ObjectExposition:
    """Answers with metrics of single objects, one answer after the other."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._next_s = 0.0

    async def write(
        self, request: web.Request, tables: Iterator[ObjectTable], prefix: str, infos: str
    ) -> web.StreamResponse:
        """Answer with these tables, whose metrics' names begin with `prefix`, and with `infos` behind them."""
        async with self._turn:
            await asyncio.sleep(max(0.0, self._next_s - monotonic()))
            response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_LATEST})
            await response.prepare(request)
            if request.method == hdrs.METH_HEAD:
                await response.write_eof()
                return response
            taken_s = 0.0
            try:
                parts = _lines(tables, prefix)
                while True:
                    began_s = thread_time()
                    part = _slice(parts)
                    taken_s += thread_time() - began_s
                    if part is None:
                        break
                    if part:
                        await response.write(part.encode())
                    await asyncio.sleep(0)
            finally:
                self._next_s = monotonic() + PAUSE_SHARE * taken_s
            await response.write_eof(infos.encode())
            return response


def info_lines(name: str, text: str, labels: Mapping[str, str]) -> str:
    """The lines of a metric whose value is always 1."""
    name = f"rabbitmq_{name}"
    head = f"# HELP {name} {text}\n# TYPE {name} gauge\n"
    return f"{head}{name}{{{_labels(labels.keys(), labels.values())}}} 1\n"


def _slice(parts: Iterator[str]) -> str | None:
    """The next lines, as many as can be made in the time of a slice; None at the end.

    It may be empty before the end: the rows of a table are looked at before its first line is made.
    """
    until_s = monotonic() + SLICE_S
    made: list[str] = []
    for part in parts:
        made.append(part)
        if monotonic() >= until_s:
            break
    return "".join(made) if made else None


def _lines(tables: Iterator[ObjectTable], prefix: str) -> Iterator[str]:
    for table in tables:
        yield from _table_lines(table, "rabbitmq_cluster_" if table.is_of_cluster else prefix)


def _table_lines(table: ObjectTable, prefix: str) -> Iterator[str]:
    """The lines of a table. All lines of one metric have to come together, so the rows are kept."""
    labels: list[str] = []
    columns: list[list[float | None]] = [[] for _ in table.metrics]
    for number, (values, figures) in enumerate(table.rows):
        labels.append(_labels(table.labels, values))
        for column, figure in zip(columns, figures, strict=True):
            column.append(figure)
        if number % ROWS_AT_ONCE == 0:
            yield ""
    for (name, kind, text), column in zip(table.metrics, columns, strict=True):
        # The name of a counter's family is without "_total" only in OpenMetrics.
        yield f"# HELP {prefix}{name} {text}\n# TYPE {prefix}{name} {kind}\n"
        for start in range(0, len(labels), ROWS_AT_ONCE):
            some = zip(
                labels[start : start + ROWS_AT_ONCE], column[start : start + ROWS_AT_ONCE], strict=True
            )
            yield "".join(f"{prefix}{name}{{{row}}} {figure}\n" for row, figure in some if figure is not None)


def _labels(names: Iterable[str], values: Iterable[str]) -> str:
    return ",".join(
        f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True)
    )
