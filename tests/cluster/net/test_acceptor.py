"""Accepting connections, also when there are no files left."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import uvloop

from cluster.net import acceptor
from cluster.net.acceptor import accept_all, begin, listen_on, readable
from cluster.net.connection_slots import ConnectionSlots, SlotLimits
from cluster.net.keepalive import Keepalive
from cluster.net.log_throttle import ThrottledLog

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
log = logging.getLogger(__name__)


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    def run(story: Callable[[], Any]) -> None:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(story())

    return run


def test_without_files_a_listener_waits_and_goes_on(
    run: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    taken: list[socket.socket] = []

    def take(sock: socket.socket, _: Any) -> None:
        taken.append(sock)

    async def story() -> None:
        [listener] = await listen_on("127.0.0.1", 0, 8)
        serving = asyncio.create_task(accept_all(listener, take, ThrottledLog(log), "test"))
        client = socket.create_connection(listener.getsockname())
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        fillers = [socket.socket() for _ in range(10)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(filler.fileno() for filler in fillers), hard))
        try:
            await asyncio.sleep(0.5)
            assert taken == []
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        async with asyncio.timeout(5):
            while not taken:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not serving.done()
        serving.cancel()
        for sock in (client, listener, *taken, *fillers):
            sock.close()

    run(story)
    assert {record.getMessage() for record in caplog.records} == {
        "cannot accept a test connection: [Errno 24] Too many open files"
    }


def test_accepted_socket_has_no_delay(run: Callable[..., None]) -> None:
    async def story() -> None:
        [listener] = await listen_on("127.0.0.1", 0, 8)
        with listener, socket.create_connection(listener.getsockname()):
            await readable(listener)
            with listener.accept()[0] as accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    run(story)


def test_accepted_socket_has_the_keepalive_of_its_port(run: Callable[..., None]) -> None:
    async def accepted_options(keepalive: Keepalive | None) -> list[int]:
        [listener] = await listen_on("127.0.0.1", 0, 8, keepalive)
        with listener, socket.create_connection(listener.getsockname()):
            await readable(listener)
            with listener.accept()[0] as accepted:
                options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                is_on = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                return [is_on, *(accepted.getsockopt(socket.IPPROTO_TCP, option) for option in options)]

    async def story() -> None:
        assert await accepted_options(Keepalive(61, 11, 7)) == [1, 61, 11, 7]
        for without in (None, Keepalive(0, 11, 7)):
            assert (await accepted_options(without))[0] == 0

    run(story)


@pytest.mark.parametrize("passes", [0, 1, 2])
def test_evicted_connection_closes_its_socket_early(run: Callable[..., None], passes: int) -> None:
    async def story() -> None:
        ours, theirs = socket.socketpair()
        slots = ConnectionSlots(SlotLimits(1, fair_s=0.0))
        slot = slots.take("192.0.2.1")
        assert slot is not None
        begin(asyncio.get_running_loop().create_task(asyncio.sleep(60)), ours, slot)
        for _ in range(passes):
            await asyncio.sleep(0)
        assert slots.take("192.0.2.2") is not None
        await asyncio.sleep(0.01)
        assert theirs.recv(1) == b""
        assert not slot.is_taken
        assert slots.unauthenticated == 1
        theirs.close()

    run(story)


def test_kind_of_warning_writes_a_few_lines_a_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 100.0
    monkeypatch.setattr("cluster.net.log_throttle.time.monotonic", lambda: now_s)
    throttled_log = ThrottledLog(log, lines=2)
    for number in range(50):
        throttled_log.warning("kind", f"text {number}")
        throttled_log.warning("other", f"else {number}")
    now_s += 1
    throttled_log.warning("kind", "more")
    throttled_log.warning("kind", "and more")
    now_s += 1
    throttled_log.warning("kind", "and more")
    assert [record.getMessage() for record in caplog.records] == [
        "text 0",
        "else 0",
        "text 1",
        "else 1",
        "more (48 more since the last such line)",
        "and more",
        "and more",
    ]


def test_repeated_event_costs_a_log_line_per_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 100.0
    monkeypatch.setattr("cluster.net.log_throttle.time.monotonic", lambda: now_s)
    throttled_log = ThrottledLog(log, lines=2, spares_repeats=True)
    written_s: list[float] = []

    def go_on(seconds: int) -> None:
        nonlocal now_s
        for _ in range(seconds):
            for node in ("n1", "n2"):
                throttled_log.warning("kind", node)
            if any(record.getMessage().startswith("n1") for record in caplog.records):
                written_s.append(now_s)
            caplog.clear()
            now_s += 1

    go_on(200)
    assert [after - before for before, after in pairwise(written_s)] == [1, 2, 4, 8, 16, 32, 60, 60]
    now_s += 20
    begun = len(written_s)
    go_on(3)
    assert len(written_s) - begun == 2, "it has come again, and is written as the first time"


def test_cancellation_as_a_connection_arrives_raises_no_error() -> None:
    unexpected: list[dict[str, Any]] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unexpected.append(context))
        near, far = socket.socketpair()
        with near, far:
            near.setblocking(False)
            waiting = asyncio.create_task(readable(near))
            await asyncio.sleep(0)
            far.send(b"x")
            # It runs in the next pass, before the events of the selector.
            loop.call_soon(waiting.cancel)
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(story())
    assert unexpected == []


@pytest.mark.parametrize(
    ("host", "names"),
    [("::", ["127.0.0.1", "::1"]), ("0.0.0.0", ["127.0.0.1"]), ("::1", ["::1"])],
)
def test_listener_binds_every_address_of_its_host(
    run: Callable[..., None], host: str, names: list[str]
) -> None:
    run(lambda: check_listener(host, names))


@pytest.mark.parametrize(
    ("found", "names"),
    [(["127.0.0.1", "::1"], ["127.0.0.1", "::1"]), (["192.0.2.1", "127.0.0.1"], ["127.0.0.1"])],
)
def test_listener_binds_every_address_of_a_name(
    monkeypatch: pytest.MonkeyPatch, found: list[str], names: list[str]
) -> None:
    look_up = socket.getaddrinfo

    def resolve(_: str, *arguments: Any, **options: Any) -> Any:
        return [row for each in found for row in look_up(each, *arguments, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    asyncio.run(check_listener("a.name", names))


async def check_listener(host: str, names: list[str]) -> None:
    """Check that a listener on this host can be reached at exactly these addresses."""
    listeners = await listen_on(host, 0, 8)
    port = listeners[0].getsockname()[1]
    for family, name in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as client:
            assert (client.connect_ex((name, port)) == 0) == (name in names)
    for listener in listeners:
        listener.close()


def test_address_of_a_remote_machine_is_refused(run: Callable[..., None]) -> None:
    async def story() -> None:
        with pytest.raises(OSError, match="assign requested address"):
            await listen_on("192.0.2.1", 0, 8)

    run(story)


def hold_port(kind: str) -> tuple[int, list[socket.socket]]:
    """Return a port that cannot be bound, and the sockets that hold it: a listener, or an outgoing connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    if kind == "listener":
        return listener.getsockname()[1], [listener]
    outgoing = socket.create_connection(listener.getsockname())
    return outgoing.getsockname()[1], [listener, outgoing]


@pytest.mark.parametrize("kind", ["listener", "outgoing"])
def test_port_in_use_is_bound_once_it_is_free(
    kind: str, run: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        port, held = hold_port(kind)
        listening = asyncio.create_task(listen_on("127.0.0.1", port, 8))
        await asyncio.sleep(0.3)
        assert not listening.done()
        for each in held[::-1]:
            # A reset, so that the system does not keep the port.
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.close()
        for listener in await listening:
            assert listener.getsockname()[1] == port
            listener.close()

    run(story)
    holder = {"listener": "another process; trying again for 5 s", "outgoing": "trying again for 65 s"}[kind]
    [warning] = caplog.messages
    assert holder in warning


def test_port_that_stays_in_use_is_refused(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "ENDING_S", 0.3)
    monkeypatch.setattr(acceptor, "RETRY_S", 0.1)

    async def story() -> None:
        port, [listener] = hold_port("listener")
        with pytest.raises(OSError, match="in use"):
            await listen_on("127.0.0.1", port, 8)
        listener.close()

    run(story)
