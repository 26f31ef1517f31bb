"""The fate of spans for any answer at the address of a collector."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from itertools import repeat
from pathlib import Path
from threading import Thread
from time import sleep

import pytest
import trustme
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult

from qq.config import Tracing
from qq.metrics.counters import SpanCounts
from qq.tracing import exporting
from qq.tracing.exporting import CountingExporter

Answer = Callable[[socket.socket], None]
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def read_request(client: socket.socket) -> None:
    """Read a request to its end: closing a socket with unread octets resets the connection, and the answer is lost."""
    head, _, body = client.recv(1 << 20).partition(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", head, re.IGNORECASE)
    missing = int(length[1]) - len(body) if length else 0
    while missing > 0 and (octets := client.recv(missing)):
        missing -= len(octets)


@contextmanager
def answering(answer: Answer, tls: ssl.SSLContext | None = None) -> Generator[str]:
    """Serve HTTP with `answer` after each request, and yield the URL."""

    def serve() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client, suppress(OSError):
                spoken = client if tls is None else tls.wrap_socket(client, server_side=True)
                read_request(spoken)
                answer(spoken)
                spoken.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=serve)
        thread.start()
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def response(head: str, *parts: bytes) -> Answer:
    def answer(client: socket.socket) -> None:
        client.sendall(f"HTTP/1.1 {head}\r\n\r\n".encode() + b"".join(parts))

    return answer


def never_ends(
    part: bytes, pause_s: float, before: bytes = OK + b"Content-Length: 9999999\r\n\r\n"
) -> Answer:
    def answer(client: socket.socket) -> None:
        client.sendall(before)
        for each in repeat(part):
            client.sendall(each)
            sleep(pause_s)

    return answer


@pytest.fixture
def spans() -> list[ReadableSpan]:
    span = TracerProvider(shutdown_on_exit=False).get_tracer("test").start_span("publish q")
    span.end()
    assert isinstance(span, ReadableSpan)
    return [span]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (response("200 OK\r\nContent-Length: 0"), ""),
        (response("200 OK\r\nContent-Length: 2", b"{}"), ""),
        (response("200 OK\r\nTransfer-Encoding: chunked", b"2\r\n{}\r\n0\r\n\r\n"), ""),
        (
            response("301 Moved\r\nLocation: https://127.0.0.1:1/\r\nContent-Length: 0"),
            "what is there is elsewhere",
        ),
        (response("401 Unauthorized\r\nContent-Length: 0"), "status 401"),
        (response("nonsense"), "ConnectionError"),
        (never_ends(b"x" * 65536, 0), "its answer does not end"),
        (never_ends(b"x", 0.02), "its answer does not end"),
        (never_ends(b"x", 0.02, before=b"HTTP/1.1 200 "), "its answer does not end"),
        (never_ends(b"x", 0.02, before=OK + b"X-Long: "), "its answer does not end"),
        (never_ends(b"HTTP/1.1 100 Continue\r\n\r\n", 0, before=b""), "its answer does not end"),
        (never_ends(b"x", 0.02, before=OK + b"\r\n"), "its answer does not end"),
        (never_ends(b"0", 0.02, before=CHUNKED), "its answer does not end"),
        (never_ends(b"X: y\r\n", 0, before=CHUNKED + b"0\r\n"), "its answer does not end"),
    ],
    ids=[
        "empty",
        "short",
        "chunked",
        "moved",
        "refused",
        "nonsense",
        "flood",
        "drip",
        "status drips",
        "head drips",
        "continued",
        "until closed",
        "chunk's size drips",
        "trailers",
    ],
)
def test_export_succeeds_only_with_a_complete_2xx_answer(
    spans: list[ReadableSpan],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    answer: Answer,
    why: str,
) -> None:
    monkeypatch.setattr(exporting, "TIMEOUT_S", 0.5)
    counts = SpanCounts()
    with answering(answer) as url:
        exporter = CountingExporter(Tracing(endpoint=url), counts)
        result = exporter.export(spans)
        exporter.shutdown()
    is_success = result is SpanExportResult.SUCCESS
    assert (is_success, counts.exported, counts.failed) == (not why, int(not why), int(bool(why)))
    logged = [record.getMessage() for record in caplog.records]
    assert logged == ([f"traces cannot be sent to {url}/v1/traces, and are dropped ({why})"] if why else [])


def test_configured_ca_overrides_requests_ca_bundle(
    spans: list[ReadableSpan], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority, file = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "another.pem"))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "another.pem"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    with answering(response("200 OK\r\nContent-Length: 0"), tls) as url:
        exporter = CountingExporter(Tracing(endpoint=url, ca=file), SpanCounts())
        assert exporter.export(spans) is SpanExportResult.SUCCESS
        exporter.shutdown()
