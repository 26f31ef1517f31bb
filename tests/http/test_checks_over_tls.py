"""Health checks over TLS: after the first, a thread answers them, and hands over all other requests."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPSConnection
from typing import Any, NamedTuple

import pytest
import uvloop
from prometheus_client import CollectorRegistry, Counter

from qq.config import ClientTls
from qq.http.app import build_app
from qq.http.app import serve as serve_http
from qq.http.base.door import TLS_REQUEST_S, Door
from qq.http.base.listener import HttpLimits, listen
from qq.tls import contexts
from qq.tls.handshakes import TLS_HANDSHAKE, TlsHandshakes
from tests.harness.certificates import Authority
from tests.http.fakes import FakeView, MachineManagement
from tests.http.http_node import GUEST, login

HERE = "127.0.0.1"
CHECK = "/api/health/checks/virtual-hosts"
METRICS = 1000
"""Metrics of the node, so that its answer is large."""


class Node(NamedTuple):
    """A node on the event loop of the test."""

    port: int
    context: ssl.SSLContext
    door: Door
    management: MachineManagement

    def connect(self) -> HTTPSConnection:
        return HTTPSConnection(HERE, self.port, timeout=5, context=self.context)

    def get(self, path: str = "/livez", headers: dict[str, str] | None = None) -> int:
        """Return the status of an answer. A test calls it on another thread, because it blocks."""
        with closing(self.connect()) as connection:
            connection.request("GET", path, headers=headers or {})
            response = connection.getresponse()
            response.read()
            return response.status


Story = Callable[[Node], Awaitable[None]]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, authority: Authority) -> Callable[[Story], None]:
    context = contexts.for_clients(ClientTls(*authority.issue("server"))).current
    registry = CollectorRegistry()
    for number in range(METRICS):
        Counter(f"metric_{number}", "", registry=registry)

    async def serve(story: Story) -> None:
        unhandled: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        listeners = await listen(HERE, 0)
        handshakes = TlsHandshakes(lambda: context, 10)
        door = Door(listeners, asyncio.get_running_loop(), handshakes)
        door.open()
        door.health.update(None)
        management = MachineManagement()
        limits = HttpLimits()
        app = build_app(FakeView(), management, registry, limits, door.repeated)
        server = await serve_http(app, listeners, limits, door, handshakes)
        try:
            await story(Node(server.port, authority.context(), door, management))
        finally:
            door.close()
            await server.cleanup()
        assert unhandled == []

    def run(story: Story) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(serve(story))

    return run


def test_checks_over_tls_are_answered_while_the_loop_is_busy(run: Callable[[Story], None]) -> None:
    async def story(node: Node) -> None:
        for path in ("/livez", "/healthz"):
            assert await asyncio.to_thread(node.get, path) == 200
        assert await asyncio.to_thread(node.get, CHECK, GUEST) == 200
        for path, headers in (("/livez", None), ("/healthz", None), (CHECK, GUEST)):
            assert node.get(path, headers) == 200
        node.door.health.update("it stops")
        assert node.get("/healthz") == 503

    run(story)


def test_check_over_tls_is_known_only_over_tls(run: Callable[[Story], None]) -> None:
    async def story(node: Node) -> None:
        assert await asyncio.to_thread(node.get, CHECK, GUEST) == 200
        assert node.door.repeated.find(HERE, CHECK, GUEST["Authorization"]) is None

        def get_plain() -> int:
            with closing(HTTPConnection(HERE, node.port, timeout=5)) as connection:
                connection.request("GET", CHECK, headers=GUEST)
                return connection.getresponse().status

        assert await asyncio.to_thread(get_plain) == 308

    run(story)


def test_other_requests_of_a_checking_address_are_handed_over(run: Callable[[Story], None]) -> None:
    """Large answers and bodies, several requests over a connection, and a wrong login."""

    async def story(node: Node) -> None:
        assert await asyncio.to_thread(node.get) == 200

        def use() -> None:
            with closing(node.connect()) as connection:
                for _ in range(3):
                    connection.request("GET", "/metrics")
                    response = connection.getresponse()
                    assert (response.status, len(response.read()) > 50 * METRICS) == (200, True)
                connection.request("PUT", "/api/vhosts/x", bytes(200_000), GUEST)
                assert connection.getresponse().status == 413
            assert node.get(CHECK, login("nobody")) == 401

        await asyncio.to_thread(use)
        assert node.get() == 200

    run(story)


@pytest.mark.parametrize(
    "first", [TLS_HANDSHAKE, TLS_HANDSHAKE + b"\x03\x01\x00\x01x", TLS_HANDSHAKE + b"garbage"]
)
def test_broken_handshakes_delay_no_check(run: Callable[[Story], None], first: bytes) -> None:
    async def story(node: Node) -> None:
        assert await asyncio.to_thread(node.get) == 200
        clients = [socket.create_connection((HERE, node.port), 5) for _ in range(10)]
        for client in clients:
            client.sendall(first)
        began_s = time.monotonic()
        assert node.get() == 200
        assert time.monotonic() - began_s < TLS_REQUEST_S
        for client in clients:
            client.close()

    run(story)


def test_slow_handshake_of_a_checking_address_is_completed(run: Callable[[Story], None]) -> None:
    """The thread hands over the half of a handshake."""

    async def story(node: Node) -> None:
        assert await asyncio.to_thread(node.get) == 200

        def get_slowly() -> bytes:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = node.context.wrap_bio(incoming, outgoing, server_hostname="localhost")
            with socket.create_connection((HERE, node.port), 5) as sock:
                while True:
                    try:
                        client.do_handshake()
                        break
                    except ssl.SSLWantReadError:
                        sock.sendall(outgoing.read())
                        time.sleep(1.2 * TLS_REQUEST_S)
                        incoming.write(sock.recv(65536))
                client.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                sock.sendall(outgoing.read())
                while True:
                    incoming.write(sock.recv(65536))
                    with suppress(ssl.SSLWantReadError):  # session tickets come first
                        return client.read(100)

        assert (await asyncio.to_thread(get_slowly)).startswith(b"HTTP/1.1 200 ")

    run(story)
