"""A client of sinks over HTTP: it stores messages as attempts, and commits epochs.

Invariant: `stage` and `commit` may be repeated, at any node. `publish` may publish messages again when it is repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from qq_spark.client import NodesClient, quoted
from qq_spark.errors import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from qq_spark.arrow import RecordBatch

REQUEST_BYTES = 1024 * 1024
"""Bytes of the messages of a request."""
REQUEST_ROWS = 65_536
"""Messages of a request; a node refuses more."""
_NO_OBJECT = 404


class SinkClient(NodesClient):
    """Writes messages to sinks of a virtual host."""

    def open(self, sink: str, expires_ms: int) -> None:
        """Open a sink, unless it exists."""
        self._request("PUT", self._path(sink), {"expires_ms": expires_ms})

    def stage(
        self, sink: str, epoch: int, attempt: str, step: int, batch: RecordBatch, defaults: Mapping[str, str]
    ) -> int | None:
        """Store messages as the next steps of an attempt, and return the number of its steps.

        `defaults` are exchange and routing key of messages without them. Returns `None` if the epoch was committed
        before.
        """
        query = urlencode({"step": str(step), **defaults})
        path = f"{self._path(sink)}/epochs/{epoch}/attempts/{quoted(attempt)}?{query}"
        answer = self._request("POST", path, _octets(batch))
        return None if answer["committed"] else int(answer["steps"])

    def commit(self, sink: str, epoch: int, attempts: Mapping[str, int]) -> None:
        """Publish the messages of these attempts, unless the epoch was committed before."""
        self._request("POST", f"{self._path(sink)}/epochs/{epoch}", {"attempts": dict(attempts)})

    def end(self, sink: str) -> None:
        """End a sink, if it exists."""
        try:
            self._request("DELETE", self._path(sink))
        except Refusal as refusal:
            if refusal.status != _NO_OBJECT:
                raise

    def publish(self, batch: RecordBatch, defaults: Mapping[str, str]) -> None:
        """Publish messages at once."""
        self._request("POST", f"{self._path()}?{urlencode(defaults)}", _octets(batch))

    def _path(self, sink: str | None = None) -> str:
        path = f"/api/sinks/{quoted(self._access.vhost)}"
        return path if sink is None else f"{path}/{quoted(sink)}"


def pieces(batch: RecordBatch) -> Iterator[RecordBatch]:
    """Divide rows so that a request can hold each piece, or a piece is a single row."""
    rows, size = batch.num_rows, batch.nbytes
    if (size <= REQUEST_BYTES and rows <= REQUEST_ROWS) or rows <= 1:
        if rows:
            yield batch
        return
    each = min(max(rows * REQUEST_BYTES // size, 1), REQUEST_ROWS)
    for at in range(0, rows, each):
        part = batch.slice(at, each)
        if part.nbytes > 2 * REQUEST_BYTES and part.num_rows > 1:
            yield from pieces(part)  # rows of very different size
        else:
            yield part


def _octets(batch: RecordBatch) -> bytes:
    """Return rows as an Arrow stream."""
    import pyarrow as pa  # noqa: PLC0415 - only tasks need it

    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    return stream.getvalue().to_pybytes()
