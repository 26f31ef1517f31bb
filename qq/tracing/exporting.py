"""Export of spans to the collector: OTLP over HTTP, in batches, on a thread of its own.

Invariant: the event loop only appends to a queue. While a collector is slow or down, spans that do not fit into the
queue are dropped.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from qq.tracing.collector_session import CollectorSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from qq.config import Tracing
    from qq.metrics.counters import SpanCounts

log = logging.getLogger(__name__)

QUEUED_MAX = 4096
"""Spans queued for the collector at most, some kilobytes each; further spans are dropped."""
BATCH_MAX = 512
"""Spans per request at most."""
DELAY_MS = 1000
"""Milliseconds that a span waits at most until its batch is sent."""
TIMEOUT_S = 5
"""Seconds that a request may take, including its retries."""
PATH = "/v1/traces"


class CountingExporter(SpanExporter):
    """Exports spans to the collector and counts how many succeed and fail."""

    def __init__(self, config: Tracing, counts: SpanCounts) -> None:
        self._endpoint = config.endpoint.rstrip("/") + PATH
        self._session = CollectorSession()
        self._exporter = OTLPSpanExporter(
            self._endpoint,
            certificate_file=None if config.ca is None else str(config.ca),
            headers=dict(config.headers),
            timeout=TIMEOUT_S,
            session=self._session,
        )
        self._counts = counts
        self._fails = False
        # It would log the same error for each batch and each retry.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans. Runs on the exporter's thread."""
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001  # no error may keep the next spans from being sent
            result, why = SpanExportResult.FAILURE, type(error).__name__
        else:
            why = self._session.why
        if result is SpanExportResult.SUCCESS:
            self._counts.exported += len(spans)
        else:
            self._counts.failed += len(spans)
        self._log_change(result is not SpanExportResult.SUCCESS, why)
        return result

    def _log_change(self, fails: bool, why: str) -> None:
        """Log when export begins to fail, and when it works again."""
        if fails and not self._fails:
            reason = f" ({why})" if why else ""
            log.warning("traces cannot be sent to %s, and are dropped%s", self._endpoint, reason)
        elif self._fails and not fails:
            log.info("traces are sent to %s again", self._endpoint)
        self._fails = fails

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
