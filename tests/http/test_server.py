"""The HTTP port on real sockets: limits of unauthenticated connections in number and time, requests of users, and
refusals above the limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import uvloop
from prometheus_client import CollectorRegistry, Counter

from qq.client_sockets.turns import PASS_S, TURN_S
from qq.config import ClientTls
from qq.http.app import build_app
from qq.http.app import serve as serve_http
from qq.http.base.listener import HttpLimits, listen
from qq.http.server import (
    FIELDS_MAX,
    HEALTH_PATHS,
    READ_BYTES,
    SKIPPED_BYTES_MAX,
    SLICE_BYTES_MIN,
    HttpServer,
    _HttpConnection,
    _RequestTurn,
)
from qq.management.errors import LoginThrottled, Unavailable
from qq.management.reports.logins import LoggedIn
from qq.management.reports.queues import QueueStatus
from qq.tls import contexts
from qq.tls.handshakes import TLS_HANDSHAKE, TlsHandshakes
from tests.harness.certificates import Authority
from tests.http.fakes import FakeManagement, FakeQueues, FakeView, MachineManagement
from tests.http.http_node import GUEST, login

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
OVER_TLS = ["asyncio over TLS", "uvloop over TLS"]
over_tls_too = pytest.mark.parametrize("run", [*LOOPS, *OVER_TLS], indirect=True)
over_tls = pytest.mark.parametrize("run", OVER_TLS, indirect=True)
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
AUTHORIZATION = f"Authorization: {GUEST['Authorization']}\r\n"
TINY_CHUNKS = (
    b"POST /api/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 40_000
)
HALF = b"GET /livez HTTP/1.1\r\nHost: x\r\n"
KEEPING = "/metrics"
"""A path that needs no login, and whose connection is kept: over TLS, that of a health check is closed."""
Story = Callable[[HttpServer], Awaitable[None]]


class Client:
    """A connection with raw requests."""

    all: ClassVar[list[Client]] = []
    tls: ClassVar[ssl.SSLContext | None] = None
    """TLS of the next connections; None: plain HTTP."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.all.append(self)

    @classmethod
    async def connect(cls, server: HttpServer, source: str = HERE, limit: int = 2**16) -> Client:
        options: dict[str, Any] = {"ssl": cls.tls, "server_hostname": "localhost"} if cls.tls else {}
        return cls(
            *await asyncio.open_connection(HERE, server.port, local_addr=(source, 0), limit=limit, **options)
        )

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers in lower case, body."""
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        return int(first.split()[1]), headers, await self.reader.readexactly(int(headers["content-length"]))

    async def is_ended(self) -> bool:
        """Whether the node closes it without a word."""
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(), 10) == b""
        return True


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest, authority: Authority) -> Generator[Callable[..., None]]:
    """Run a story against a server; no error may reach the event loop's exception handler."""
    loop, _, over_tls = request.param.partition(" over ")
    context = contexts.for_clients(ClientTls(*authority.issue("server"))).current
    Client.tls = authority.context() if over_tls else None

    def run(
        story: Story,
        limits: HttpLimits | None = None,
        view: FakeView | None = None,
        management: Any = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        unhandled: list[dict[str, Any]] = []

        async def serve() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
            chosen = limits or HttpLimits()
            app = build_app(
                view or FakeView(), management or FakeManagement(), registry or CollectorRegistry(), chosen
            )
            handshakes = TlsHandshakes(lambda: context, chosen.header_timeout_s) if over_tls else None
            server = await serve_http(app, await listen(HERE, 0), chosen, handshakes=handshakes)
            try:
                await story(server)
            finally:
                for client in Client.all:
                    # A TLS client would wait until the server has read all sent data.
                    client.writer.transport.abort() if over_tls else client.writer.close()
                    with contextlib.suppress(ConnectionError):
                        await client.writer.wait_closed()
                Client.all.clear()
                await server.cleanup()
            # TLS closes a connection with a goodbye, which a client may delay for some seconds.
            await until(lambda: (server.slots.unauthenticated, server.slots.authenticated) == (0, 0))

        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(serve())
        assert unhandled == []

    yield run
    Client.tls = None


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def flood(server: HttpServer, count: int) -> list[Client]:
    clients: list[Client] = []
    for _ in range(count):
        client = await Client.connect(server)
        client.send(HALF)
        clients.append(client)
    return clients


async def request(client: Client, path: str = "/livez", more: str = "") -> int:
    client.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n{more}\r\n".encode())
    status, _, _ = await client.answer()
    return status


def test_unfinished_requests_are_bounded_and_whole_served(run: Callable[..., None]) -> None:
    async def story(server: HttpServer) -> None:
        clients = await flood(server, 300)
        assert server.slots.unauthenticated <= 8
        assert await clients[-2].is_ended()  # the last client has the quick slot
        assert await request(await Client.connect(server, ELSEWHERE)) == 200
        server.slots.limits = replace(server.slots.limits, fair_s=0.0)
        assert await request(await Client.connect(server)) == 200
        assert await clients[0].is_ended()
        assert await request(await Client.connect(server), "/api/cluster", AUTHORIZATION) == 200

    run(story, HttpLimits(connections=8))


def test_single_address_evicts_no_different_address(run: Callable[..., None]) -> None:
    async def story(server: HttpServer) -> None:
        kept = await Client.connect(server, ELSEWHERE)
        assert await request(kept) == 200
        await flood(server, 100)
        assert await request(kept) == 200

    run(story, HttpLimits(connections=4))


@over_tls_too
def test_request_header_must_arrive_within_its_time_limit(run: Callable[..., None]) -> None:
    async def story(server: HttpServer) -> None:
        silent, half, dripping = [await Client.connect(server) for _ in range(3)]
        again = await Client.connect(server)
        assert await request(again, KEEPING) == 200
        for client in (half, dripping, again):
            client.send(HALF)

        async def drip() -> None:
            with contextlib.suppress(ConnectionError):
                while not dripping.writer.is_closing():
                    dripping.send(b"x")
                    await asyncio.sleep(0.05)

        dropping = asyncio.create_task(drip())
        for client in (silent, half, dripping, again):
            assert await client.is_ended()
        dropping.cancel()

    run(story, HttpLimits(header_timeout_s=0.3))


@over_tls_too
def test_an_idle_connection_is_closed(run: Callable[..., None]) -> None:
    async def story(server: HttpServer) -> None:
        client = await Client.connect(server)
        assert await request(client, KEEPING) == 200
        assert await request(client, KEEPING) == 200
        assert await client.is_ended()

    run(story, HttpLimits(idle_timeout_s=0.3))


def put_policy(body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = f"PUT /api/policies/%2F/p HTTP/1.1\r\nHost: x\r\n{AUTHORIZATION}Content-Length: {size}\r\n\r\n"
    return head.encode() + body


def test_a_users_request_is_not_pushed_out(run: Callable[..., None]) -> None:
    async def story(server: HttpServer) -> None:
        user = await Client.connect(server)
        user.send(put_policy(b"{", 100))
        await until(lambda: server.slots.authenticated > 0)
        await flood(server, 50)
        user.send(b" " * 99)
        assert (await user.answer())[0] == 400
        assert server.slots.authenticated == 0

    run(story, HttpLimits(connections=4))


@over_tls_too
def test_request_body_must_arrive_within_its_time_limit(run: Callable[..., None]) -> None:
    async def story(server: HttpServer) -> None:
        for path in ("policies/%2F/p", "definitions"):
            user = await Client.connect(server)
            user.send(put_policy(b"{", 100).replace(b"policies/%2F/p", path.encode()))
            if path == "definitions":
                user.writer.close()
                user = await Client.connect(server)
                user.send(put_policy(b"{", 100).replace(b"PUT /api/policies/%2F/p", b"POST /api/definitions"))
            status, _, body = await user.answer()
            assert status == 408
            assert b"the body takes longer than 0.2 s (http_body_timeout_s)" in body

    run(story, HttpLimits(body_timeout_s=0.2))


def test_requests_above_the_limit_are_503(run: Callable[..., None]) -> None:
    async def story(server: HttpServer) -> None:
        first = await Client.connect(server)
        first.send(put_policy(b"{", 100))
        await until(lambda: server.slots.authenticated > 0)
        second = await Client.connect(server)
        second.send(put_policy(b"{}"))
        status, headers, body = await second.answer()
        assert (status, headers["retry-after"]) == (503, "1")
        assert b"1 requests are under way, 1 of 'guest' (http_request_max)" in body
        assert await request(second) == 200
        first.send(b" " * 99)
        assert (await first.answer())[0] == 400
        assert await request(second, "/api/cluster", AUTHORIZATION) == 200

    run(story, HttpLimits(requests=1))


def test_user_with_many_requests_leaves_slots_for_a_second_user(run: Callable[..., None]) -> None:
    view = FakeView()
    view.tags["eve"] = ["administrator"]
    eve = put_policy(b"{", 100).replace(
        GUEST["Authorization"].encode(), login("eve")["Authorization"].encode()
    )

    async def story(server: HttpServer) -> None:
        for count in range(1, 5):
            (await Client.connect(server)).send(eve)
            await until(lambda count=count: server.slots.authenticated == count)
        refused = await Client.connect(server)
        refused.send(eve)
        status, _, body = await refused.answer()
        assert status == 503
        assert b"4 requests are under way, 4 of 'eve' (http_request_max)" in body
        assert await request(await Client.connect(server), "/api/cluster", AUTHORIZATION) == 200

    run(story, HttpLimits(requests=8), view)


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (LoginThrottled(0.0), 429, "1"),
        (LoginThrottled(6.2), 429, "7"),
        (Unavailable("no majority"), 503, None),
    ],
)
def test_undecided_login_is_answered_with_429_or_503(
    run: Callable[..., None], error: Exception, status: int, retry_after: str | None
) -> None:
    class View(FakeView):
        async def authenticate(self, user: str, password: str, peer_host: str) -> LoggedIn | None:
            raise error

    async def story(server: HttpServer) -> None:
        client = await Client.connect(server)
        client.send(f"GET /api/whoami HTTP/1.1\r\nHost: x\r\n{AUTHORIZATION}\r\n".encode())
        answered, headers, _ = await client.answer()
        assert (answered, headers.get("retry-after")) == (status, retry_after)

    run(story, view=View())


@pytest.mark.parametrize(
    "fields",
    [b"A: " + b"x" * 9000 + b"\r\n", b"".join(b"A%d: x\r\n" % n for n in range(FIELDS_MAX + 1))],
    ids=["long", "many"],
)
def test_a_large_header_is_refused(run: Callable[..., None], fields: bytes) -> None:
    async def story(server: HttpServer) -> None:
        client = await Client.connect(server)
        client.send(b"GET /livez HTTP/1.1\r\n" + fields + b"\r\n")
        assert (await client.answer())[0] in (400, 431)

    run(story)


class ManyQueues(FakeQueues):
    def all(self, vhost: str | None) -> Iterator[QueueStatus]:
        [queue, *_] = list(super().all(vhost))
        for _ in range(20_000):
            yield queue


class Chatty(FakeManagement):
    """Management with a great many queues."""

    def __init__(self) -> None:
        super().__init__()
        self.queues = ManyQueues()


@over_tls_too
def test_client_that_does_not_read_its_answer_is_dropped(run: Callable[..., None]) -> None:
    async def story(server: HttpServer) -> None:
        client = await Client.connect(server, limit=1024)
        client.send(f"GET /api/queues HTTP/1.1\r\nHost: x\r\n{AUTHORIZATION}\r\n".encode())
        await until(lambda: server.slots.authenticated > 0)
        await until(lambda: server.slots.authenticated == 0)

    run(story, HttpLimits(idle_timeout_s=0.3), management=Chatty())


@contextlib.asynccontextmanager
async def longest_pass() -> AsyncIterator[list[float]]:
    """Measure the longest pass of the event loop in the block, in seconds of the processor."""
    found = [0.0]

    async def measure() -> None:
        while True:
            began_s = time.thread_time()
            await asyncio.sleep(0)
            found[0] = max(found[0], time.thread_time() - began_s)

    measuring = asyncio.create_task(measure())
    yield found
    measuring.cancel()


@over_tls_too
@pytest.mark.parametrize(
    "flood",
    [
        TINY_CHUNKS,
        TINY_CHUNKS.replace(b"/api/login", b"/api/queues"),
        b"GET /api/queues HTTP/1.1\r\nHost: x\r\n\r\n" * 5_000,
        b"OPTIONS / HTTP/1.1\r\nHost: x\r\n\r\n" * 5_000,
    ],
    ids=["tiny chunks", "tiny refused chunks", "unauthorized", "options"],
)
def test_flood_without_a_login_leaves_the_loop_free(run: Callable[..., None], flood: bytes) -> None:
    async def story(server: HttpServer) -> None:
        async with longest_pass() as longest:
            for _ in range(10):
                client = await Client.connect(server, ELSEWHERE)
                client.send(flood)
            await asyncio.sleep(1)
            client = await Client.connect(server)
            assert await asyncio.wait_for(request(client), 1) == 200
        assert longest[0] < (0.06 if Client.tls else 0.03)  # the clients encrypt on the same loop
        connections = [each for each in gc.get_objects() if isinstance(each, _HttpConnection)]
        assert connections
        assert max(len(each._unparsed) for each in connections) <= READ_BYTES

    run(story)


def test_costly_bytes_of_a_read_are_parsed_in_several_passes(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[float] = []

    def parse(*_: object) -> None:
        end_s = time.thread_time() + TURN_S
        while time.thread_time() < end_s:
            pass
        parsed.append(time.thread_time())

    async def story(server: HttpServer) -> None:
        client = await Client.connect(server)
        with monkeypatch.context() as patched:
            patched.setattr("aiohttp.web_protocol.RequestHandler.data_received", parse)
            async with longest_pass() as longest:
                client.send(bytes(READ_BYTES))
                await until(lambda: len(parsed) == READ_BYTES // SLICE_BYTES_MIN)
        assert longest[0] < 0.03
        assert parsed[-1] - parsed[0] < 2 * TURN_S * len(parsed)

    run(story)


def test_cancelled_request_leaves_its_turn_to_the_next(run: Callable[..., None]) -> None:
    async def story(server: HttpServer) -> None:
        client = await Client.connect(server)
        server.turns.charge(PASS_S)
        waits = [asyncio.create_task(request_turn(server)) for _ in range(3)]
        await asyncio.sleep(0)
        waits[0].cancel()
        await asyncio.wait_for(asyncio.gather(*waits[1:]), 5)
        assert await request(client) == 200

    run(story)


async def request_turn(server: HttpServer) -> None:
    turn = _RequestTurn(server.turns)
    server.turns.request(server.turns.new_place(turn, HERE))
    await turn.come


@over_tls_too
def test_connection_ends_when_its_header_is_too_large(run: Callable[..., None]) -> None:
    async def story(server: HttpServer) -> None:
        client = await Client.connect(server)
        fields = b"".join(b"x%d: %s\r\n" % (number, b"y" * 4_000) for number in range(FIELDS_MAX - 2))
        client.send(b"GET /livez HTTP/1.1\r\nHost: x\r\n" + fields)
        with contextlib.suppress(ConnectionError):  # the kernel drops the answer if data is unread
            assert (await client.answer())[0] == 431
        assert await client.is_ended()

    run(story, HttpLimits(header_timeout_s=60))


@over_tls_too
def test_body_of_a_refused_request_is_read_to_a_limit(run: Callable[..., None]) -> None:
    async def story(server: HttpServer) -> None:
        client = await Client.connect(server)
        head = b"PUT /api/queues/%2F/q HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n"
        client.send(head)
        status, _, _ = await client.answer()
        assert status == 401
        client.send(bytes(2 * SKIPPED_BYTES_MAX))
        assert await client.is_ended()

    run(story)


@over_tls_too
def test_large_body_of_a_user_arrives_whole(run: Callable[..., None]) -> None:
    async def story(server: HttpServer) -> None:
        body = b'{"users": [' + b" " * 8_000_000 + b"nothing"
        client = await Client.connect(server)
        client.send(put_policy(body).replace(b"PUT /api/policies/%2F/p", b"POST /api/definitions"))
        status, _, text = await client.answer()
        assert (status, b"not_json" in text or b"JSON" in text) == (400, True)
        chunks = (
            b"".join(b"1\r\n%c\r\n" % octet for octet in b'{"pattern": 1}' + b" " * 20_000) + b"0\r\n\r\n"
        )
        client.send(put_policy(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + chunks)
        status, _, _ = await client.answer()
        assert status == 400
        assert await request(client) == 200

    run(story)


def work(seconds: float) -> None:
    ends_s = time.thread_time() + seconds
    while time.thread_time() < ends_s:
        pass


@pytest.mark.parametrize(
    ("let_time_pass", "gathered"),
    [(work, 1), (time.sleep, 4)],
    ids=["the node is at work", "the machine does something else"],
)
def test_gathering_metrics_takes_a_small_share_of_the_processor(
    run: Callable[..., None], let_time_pass: Callable[[float], None], gathered: int
) -> None:
    times = 0

    class Slow(Counter):
        def collect(self) -> Any:
            nonlocal times
            times += 1
            let_time_pass(0.2)
            return super().collect()

    registry = CollectorRegistry()
    Slow("c", "c", registry=registry)
    times = 0

    async def story(server: HttpServer) -> None:
        client = await Client.connect(server)
        for _ in range(4):
            assert await request(client, "/metrics") == 200
            await asyncio.sleep(0.1)
        assert times == gathered

    run(story, registry=registry)


def test_error_in_the_http_parser_ends_only_its_connection(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    async def story(server: HttpServer) -> None:
        other = await Client.connect(server)
        assert await request(other) == 200
        client = await Client.connect(server)
        with monkeypatch.context() as patched:
            patched.setattr("aiohttp.web_protocol.RequestHandler.data_received", fail)
            client.send(HALF)
            assert await client.is_ended()
        assert await request(other) == 200

    run(story)
    assert "ZeroDivisionError" in caplog.text


def test_rubbish_leaves_no_line_in_the_log(
    run: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def story(server: HttpServer) -> None:
        for _ in range(20):
            client = await Client.connect(server)
            client.send(b"\x16\x03\x01 nonsense\r\n\r\n")
            assert (await client.answer())[0] == 400

    run(story, management=MachineManagement())
    assert caplog.records == []


async def exchange(sock: socket.socket, data: bytes) -> bytes:
    """Send `data` without TLS and return all that comes until the end."""
    reader, writer = await asyncio.open_connection(sock=sock)
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()


def connect(server: HttpServer, source: str = HERE) -> socket.socket:
    return socket.create_connection((HERE, server.port), 10, (source, 0))


@over_tls
def test_plain_requests_are_redirected_to_tls(run: Callable[..., None]) -> None:
    async def story(server: HttpServer) -> None:
        head = b"Host: n1:15672\r\nConnection: close\r\n"
        for first, location in (
            (b"GET /api/queues/%2F/a%20b?x=%2F HTTP/1.1", b"/api/queues/%2F/a%20b?x=%2F"),
            (b"PUT //evil.example/ HTTP/1.1", b"//evil.example/"),
            (b"GET http://evil.example/x HTTP/1.1", b"/x"),
        ):
            answer = await exchange(connect(server), first + b"\r\n" + head + b"\r\n")
            assert answer.startswith(b"HTTP/1.1 308 ")
            assert b"\r\nLocation: https://n1:15672" + location + b"\r\n" in answer
        answer = await exchange(connect(server), b"GET / HTTP/1.0\r\n\r\n")
        assert b"this port speaks TLS: use https" in answer
        for path in HEALTH_PATHS:
            answer = await exchange(connect(server), b"GET %b HTTP/1.1\r\n%b\r\n" % (path.encode(), head))
            assert b'{"status": ' in answer

    run(story)


@over_tls
def test_silent_clients_of_a_tls_port_are_bounded(run: Callable[..., None]) -> None:
    async def story(server: HttpServer) -> None:
        server.slots.limits = replace(server.slots.limits, fair_s=0.3)
        kept = await Client.connect(server, ELSEWHERE)
        assert await request(kept, KEEPING) == 200
        with contextlib.ExitStack() as sockets:
            flood = [sockets.enter_context(connect(server)) for _ in range(200)]
            for number, sock in enumerate(flood):
                if number % 2:
                    sock.sendall(TLS_HANDSHAKE)
            await asyncio.sleep(0.3)
            assert server.slots.unauthenticated <= 8
            assert await request(kept, KEEPING) == 200
            assert await request(await Client.connect(server, ELSEWHERE)) == 200
            await asyncio.sleep(1)
            assert server.slots.unauthenticated <= 2  # no silent client

    run(story, HttpLimits(connections=8, header_timeout_s=0.5))


@over_tls
def test_unread_data_of_a_tls_client_is_bounded(run: Callable[..., None]) -> None:
    async def story(server: HttpServer) -> None:
        client = await Client.connect(server)
        client.send(
            put_policy(b"{", 100_000_000).replace(b"PUT /api/policies/%2F/p", b"POST /api/definitions")
        )
        await until(lambda: server.slots.authenticated > 0)
        [connection] = [
            each for each in gc.get_objects() if isinstance(each, _HttpConnection) and each._server is server
        ]
        connection.pause_parsing()
        client.send(bytes(30_000_000))
        await asyncio.sleep(0.5)
        assert READ_BYTES < connection._transport.get_read_buffer_size() <= 5 * READ_BYTES
        client.writer.transport.abort()

    run(story)


@over_tls
def test_answers_that_a_tls_client_does_not_read_are_bounded(run: Callable[..., None]) -> None:
    async def story(server: HttpServer) -> None:
        client = await Client.connect(server, limit=1024)
        client.send(b"GET /api/queues HTTP/1.1\r\nHost: x\r\n\r\n" * 30_000)
        [connection] = [
            each for each in gc.get_objects() if isinstance(each, _HttpConnection) and each._server is server
        ]
        async with asyncio.timeout(60):  # refused requests take turns
            while connection._stalled is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert connection._transport.get_write_buffer_size() < 128 * 1024

    run(story)


@over_tls_too
def test_lost_connections_are_freed_before_a_collection(run: Callable[..., None]) -> None:
    """A flood of TLS connections would otherwise take 69 KB each until the next one."""

    def of(server: HttpServer) -> int:
        objects = gc.get_objects()
        return sum(isinstance(each, _HttpConnection) and each._server is server for each in objects)

    async def story(server: HttpServer) -> None:
        gc.disable()
        try:
            for _ in range(20):
                client = await Client.connect(server)
                assert await request(client, KEEPING) == 200
                client.writer.transport.abort()
            await until(lambda: server.slots.unauthenticated == 0)
            await asyncio.sleep(0.1)
            assert of(server) <= 1
        finally:
            gc.enable()

    run(story)


@over_tls
def test_failed_tls_handshake_is_logged(run: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    async def story(server: HttpServer) -> None:
        with contextlib.suppress(ConnectionError):
            await exchange(connect(server), TLS_HANDSHAKE + b" nonsense")
        await until(lambda: server.slots.unauthenticated == 0)

    run(story)
    [line] = caplog.messages
    assert line.startswith("the TLS handshake with 127.0.0.1:")
    assert "(HTTP) failed" in line
