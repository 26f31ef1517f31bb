"""Health checks that the accepting thread answers, and connections that it hands over."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any

import pytest

from qq.http.base import door as door_module
from qq.http.base.door import FULL_S, HANG_S, PLACES, READING, STATE_AGE_MAX_S, Door, HealthAnswers
from qq.http.base.listener import listen
from qq.http.base.repeated_checks import CheckResult

HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
Taken = list[tuple[socket.socket, Any]]


class World:
    def __init__(self, door: Door, port: int) -> None:
        self.door = door
        self.port = port
        self.taken: Taken = []
        door.begin(lambda sock, address, _: self.taken.append((sock, address)))

    def connect(self, source: str = HERE) -> socket.socket:
        return socket.create_connection((HERE, self.port), 10, (source, 0))

    def get(self, path: str, method: str = "GET", login: str = "") -> tuple[int, bytes]:
        with closing(HTTPConnection(HERE, self.port, timeout=5)) as connection:
            connection.request(method, path, headers={"Authorization": login} if login else {})
            response = connection.getresponse()
            assert response.headers["Content-Length"] != "0"
            return response.status, response.read()

    async def until_taken(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.taken) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


def run(story: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        listeners = await listen(HERE, 0)
        door = Door(listeners, asyncio.get_running_loop())
        door.open()
        world = World(door, listeners[0].getsockname()[1])
        try:
            await story(world)
        finally:
            door.close()
            for sock in [*listeners, *(sock for sock, _ in world.taken)]:
                sock.close()

    asyncio.run(main())


@contextmanager
def busy_loop(world: World) -> Generator[None]:
    """Run the block on the event loop, so that no other task runs."""
    yield
    assert world.taken == []


def test_health_checks_are_answered_while_the_loop_is_busy() -> None:
    async def story(world: World) -> None:
        with busy_loop(world):
            assert world.get("/livez") == (200, b'{"status": "ok"}')
            assert world.get("/healthz") == (503, b'{"status": "failed", "reason": "%b"}' % READING.encode())
            world.door.health.update(None)
            assert world.get("/healthz?verbose") == (200, b'{"status": "ok"}')
            assert world.get("/healthz", "HEAD") == (200, b"")

    run(story)


CHECK = "/api/health/checks/alarms"


def test_repeated_checks_are_answered_while_the_loop_is_busy() -> None:
    async def story(world: World) -> None:
        results = [CheckResult(503, {"status": "failed"}), CheckResult(200, {"status": "ok"})]
        world.door.repeated.remember(HERE, CHECK, "Basic eDp5", results.pop)
        with busy_loop(world):
            assert world.get(CHECK, login="Basic eDp5") == (200, b'{"status": "ok"}')
            assert world.get(CHECK, "HEAD", login="Basic eDp5") == (200, b"")
            world.door.repeated.update()
            assert world.get(CHECK, login="Basic eDp5") == (503, b'{"status": "failed"}')
            world.door.health._age_s = STATE_AGE_MAX_S + 1
            status, body = world.get(CHECK, login="Basic eDp5")
            assert (status, b"has not run" in body) == (503, True)

    run(story)


@pytest.mark.parametrize(
    "request_text",
    [
        f"GET {CHECK} HTTP/1.1\r\n",
        f"GET {CHECK} HTTP/1.1\r\nAuthorization: Basic eDp6\r\n",
        f"GET {CHECK}?x HTTP/1.1\r\nAuthorization: Basic eDp5\r\n",
        f"POST {CHECK} HTTP/1.1\r\nAuthorization: Basic eDp5\r\n",
        f"GET {CHECK} HTTP/1.1\r\nAuthorization: Basic eDp5\r\nAuthorization: Basic eDp5\r\n",
        f"GET {CHECK} HTTP/1.1\r\nAuthorization: Basic eDp5\r\nCookie: x=y\r\n",
        f"GET {CHECK} HTTP/1.1\r\nAuthorization: Basic eDp5\r\nContent-Length: 0\r\n",
        f"GET {CHECK} HTTP/1.1\r\nAuthorization: Basic eDp5\r\n folded\r\n",
    ],
)
def test_other_checks_go_to_the_event_loop(request_text: str) -> None:
    async def story(world: World) -> None:
        world.door.repeated.remember(HERE, CHECK, "Basic eDp5", lambda: CheckResult(200, {}))
        with world.connect() as client:
            client.sendall(f"{request_text}\r\n".encode())
            await world.until_taken(1)

    run(story)


def test_request_with_many_colons_takes_no_time() -> None:
    async def story(world: World) -> None:
        with world.connect() as client:
            client.sendall(f"GET {CHECK} HTTP/1.1\r\n".encode() + b"a::::::::::\r\n" * 250 + b"\x01\r\n\r\n")
            await world.until_taken(1)

    run(story)


def test_health_checks_are_answered_while_many_clients_wait() -> None:
    async def story(world: World) -> None:
        with world.connect(ELSEWHERE) as kept:
            kept.sendall(b"GET /api/overview HTTP/1.1\r\n")
            flood = [world.connect() for _ in range(3 * PLACES)]
            for client in flood:
                client.sendall(b"GET /api/overview HTTP/1.1\r\n")
            with busy_loop(world):
                time.sleep(2 * FULL_S)  # noqa: ASYNC251  # the loop is busy
                began_s = time.monotonic()
                assert world.get("/livez")[0] == 200
                assert time.monotonic() - began_s < 3
            await world.until_taken(PLACES)
            await asyncio.sleep(0.1)
            assert len(world.taken) <= 2 * PLACES + 1
            assert [address[0] for _, address in world.taken].count(ELSEWHERE) == 1
            for client in flood:
                client.close()

    run(story)


@pytest.mark.parametrize(
    "first",
    [
        b"GET /api/overview HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\n",
        b"GET /livezz",
        b"\x16\x03",
        b"",
    ],
)
def test_all_other_connections_go_to_the_event_loop(first: bytes) -> None:
    async def story(world: World) -> None:
        with world.connect() as client:
            client.sendall(first)
            await world.until_taken(1)
            sock, address = world.taken[0]
            assert address == client.getsockname()
            if first:
                assert sock.recv(100) == first[:100]

    run(story)


def test_connection_that_ends_without_a_request_is_closed() -> None:
    async def story(world: World) -> None:
        with busy_loop(world), world.connect() as client:
            client.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b""

    run(story)


def test_hung_event_loop_fails_the_health_answers() -> None:
    health = HealthAnswers()
    health.update(None)
    health.grow_older(1)
    for path, most_s in ((b"healthz", STATE_AGE_MAX_S), (b"livez", HANG_S)):
        while health.answer(path)[0] == 200:
            health.grow_older(0.5)
        assert health._age_s == most_s + 0.5
    reason = json.loads(health.answer(b"livez")[1])["reason"]
    assert reason == f"the event loop has not run for {HANG_S + 0.5:.0f} s"
    health.update(None)
    health.grow_older(0.5)
    assert health.answer(b"livez")[0] == health.answer(b"healthz")[0] == 200


def test_pause_of_the_whole_process_counts_little() -> None:
    health = HealthAnswers()
    health.update(None)
    health.grow_older(1)
    health.grow_older(HANG_S * 10)
    assert health._age_s == door_module._STEP_MAX_S


def test_connection_handed_over_in_a_pass_is_not_touched_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An accept evicts the oldest silent connection, whose first bytes arrived in the same pass."""

    async def main() -> None:
        [listener, *_] = await listen(HERE, 0)
        door = Door([listener], asyncio.get_running_loop())
        with closing(listener), ExitStack() as clients:
            for _ in range(PLACES + 1):
                clients.enter_context(socket.create_connection(listener.getsockname()[:2], 10))
            for _ in range(PLACES):
                door._accept(listener, time.monotonic())
            oldest = next(iter(door._silent.values())).sock

            def both_ready(_timeout_s: float) -> list[tuple[SimpleNamespace, int]]:
                door._is_ending = True
                return [(SimpleNamespace(fileobj=each, fd=each.fileno()), 0) for each in (listener, oldest)]

            monkeypatch.setattr(door._selector, "select", both_ready)
            door._run()
            assert [accepted.sock for accepted in door._waiting] == [oldest]
            door._thread.start()  # ends at once
            door.close()

    asyncio.run(main())
    assert not caplog.records
