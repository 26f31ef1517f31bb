"""A collector of traces: a real server that is sent OTLP over HTTP, and keeps the spans."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from threading import Event, Thread
from types import TracebackType
from typing import Any, NamedTuple, Self

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Kept(NamedTuple):
    """A span, as the collector was sent it."""

    name: str
    trace: str
    id: str
    parent: str
    state: str
    kind: int
    facts: dict[str, Any]
    """Its attributes."""
    node: str
    events: list[str]
    is_error: bool
    seconds: float


class Collector:
    """Serves on a thread of its own while it is entered."""

    def __init__(self) -> None:
        self.spans: list[Kept] = []
        self.resource: dict[str, Any] = {}
        self.headers: list[dict[str, str]] = []
        """The headers of the requests."""
        self.status = 200
        self._ready = Event()
        self._thread = Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.router.add_post("/v1/traces", self._collect)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        await self._over.wait()
        await runner.cleanup()

    async def _collect(self, request: web.Request) -> web.Response:
        self.headers.append(dict(request.headers))
        sent = ExportTraceServiceRequest.FromString(await request.read())
        if self.status != 200:
            return web.Response(status=self.status)
        for of_resource in sent.resource_spans:
            self.resource = _facts(of_resource.resource.attributes)
            node = self.resource["service.instance.id"]
            for of_scope in of_resource.scope_spans:
                self.spans += [_kept(span, node) for span in of_scope.spans]
        answer = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type="application/x-protobuf")

    def wait(self, is_enough: Callable[[list[Kept]], bool]) -> list[Kept]:
        """The spans, once they are enough; they are forgotten."""
        deadline_s = time.monotonic() + 10
        while not is_enough(self.spans):
            assert time.monotonic() < deadline_s, self.spans
            time.sleep(0.02)
        spans, self.spans = self.spans, []
        return spans


def _kept(span: Any, node: str) -> Kept:
    return Kept(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.trace_state,
        span.kind,
        _facts(span.attributes),
        node,
        [event.name for event in span.events],
        span.status.code == 2,
        (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
    )


def _facts(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
