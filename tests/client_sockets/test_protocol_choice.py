"""The choice of a connection's protocol by its first octets, with a second protocol that echoes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from pamqp import commands

from qq.client_sockets.protocol_choice import ServedProtocol
from qq.client_sockets.shared import Arrival
from qq.config import ClientTls
from tests.harness.certificates import Authority
from tests.harness.lone_broker import LoneBroker, wait_until
from tests.harness.raw_client import HEADER, RawClient
from tests.harness.stopwatch import Stopwatch

SASL = b"ECHO\x03\x01\x00\x00"
BARE = b"ECHO\x00\x01\x00\x00"
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Echo(asyncio.Protocol):
    """A second protocol: it answers with the octets that it gets, its own header included."""

    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival
        self.handshake_s = 0.0
        self.transport: Any = None

    def begin(self, transport: Any, handshake_s: float) -> None:
        self.transport = transport
        self.handshake_s = handshake_s

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.arrival.slot.release()


class TwoProtocols:
    """A broker whose ports serve AMQP 0-9-1 and the protocol that echoes."""

    def __init__(self, broker: LoneBroker) -> None:
        self.broker = broker
        self.echoes: list[Echo] = []
        other_versions = re.compile(rb"ECHO\0[\x02-\x09]")
        broker.served.append(ServedProtocol("Echo", (SASL, BARE), other_versions, self.make))

    def make(self, arrival: Arrival) -> Any:
        echo = Echo(arrival)
        self.echoes.append(echo)
        return echo

    def connect(self, **options: Any) -> RawClient:
        return RawClient(self.broker.amqp_port, handshake=False, **options)


@pytest.fixture(params=LOOPS)
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    return LOOPS[request.param]


@pytest.fixture
def two(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> Generator[TwoProtocols]:
    with LoneBroker(new_loop=new_loop, proxies=["127.0.0.3"]) as broker:
        yield TwoProtocols(broker)


def receive(client: RawClient, size: int) -> bytes:
    received = b""
    while len(received) < size:
        received += client.socket.recv(size - len(received))
    return received


def assert_works(client: RawClient) -> None:
    """Log in with AMQP 0-9-1, behind the header."""
    client.expect(commands.Connection.Start)
    client.send(0, client.start_ok())
    client.expect(commands.Connection.Tune)


@pytest.mark.parametrize("header", [SASL, BARE])
def test_header_chooses_the_protocol(two: TwoProtocols, header: bytes) -> None:
    with two.connect() as client, two.connect() as amqp:
        client.write(header + b"all at once")
        assert receive(client, 19) == header + b"all at once"
        client.write(b"more")
        assert receive(client, 4) == b"more"
        amqp.write(HEADER)
        assert_works(amqp)
    assert [echo.arrival.peer.host for echo in two.echoes] == ["127.0.0.1"]


def test_header_may_come_octet_by_octet(two: TwoProtocols) -> None:
    with two.connect() as client, two.connect() as amqp:
        for octet in range(8):
            client.write(SASL[octet : octet + 1])
            amqp.write(HEADER[octet : octet + 1])
            two.broker.pass_some_time()
        assert receive(client, 8) == SASL
        assert_works(amqp)


def test_header_behind_a_proxys_header_chooses(two: TwoProtocols) -> None:
    with two.connect(source="127.0.0.3") as client:
        client.write(b"PROXY TCP4 198.51.100.7 192.0.2.1 40000 5672\r\n" + BARE)
        assert receive(client, 8) == BARE
        [echo] = two.echoes
        assert echo.arrival.peer == ("198.51.100.7", 40_000, "127.0.0.3")
    wait_until(lambda: two.broker.slots.unauthenticated == 0, "the end of the connection")


def test_header_inside_of_tls_chooses(
    new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "ca")
    with LoneBroker(new_loop=new_loop, tls=ClientTls(*authority.issue("server"))) as broker:
        two = TwoProtocols(broker)
        context = authority.context()
        with (
            RawClient(broker.amqps_port, handshake=False, tls=context) as client,
            RawClient(broker.amqps_port, handshake=False, tls=context) as amqp,
        ):
            client.write(SASL[:5])
            client.write(SASL[5:] + b"x" * 100_000)
            assert receive(client, 100_008) == SASL + b"x" * 100_000
            amqp.write(HEADER)
            assert_works(amqp)
        [echo] = two.echoes
        assert echo.arrival.certificate_name is not None


@pytest.mark.parametrize(
    ("octets", "answer"),
    [
        (b"AMQP\0\0\x09\0", HEADER),
        (b"AMQP\0\0\x0a\0", HEADER),
        (b"AMQP\0\0\xff\xff", HEADER),
        (b"ECHO\0\x02\0\0", SASL),
        (b"AMQP\0\0\x08\0", SASL),
        (b"AMQP\x01\x01\x08\0", SASL),
        (b"AMQP\x01\x01\x09\x01", SASL),
        (b"AMQP\x02\x01\0\0", SASL),
        (b"GET / HTTP/1.1\r\n\r\n", SASL),
        (b"\x16\x03\x01\2\0\1\0\1\xfc\3", SASL),
        (bytes(8), SASL),
    ],
)
def test_unknown_header_is_answered_as_by_rabbitmq(
    two: TwoProtocols, caplog: pytest.LogCaptureFixture, octets: bytes, answer: bytes
) -> None:
    """RabbitMQ 4.0.5 answers each of them like this, if the second protocol is AMQP 1.0."""
    with two.connect() as client:
        client.write(octets)
        assert receive(client, 8) == answer
        with contextlib.suppress(ConnectionError):
            assert client.socket.recv(100) == b""
    wait_until(lambda: two.broker.slots.unauthenticated == 0, "the end of the connection")
    assert two.echoes == []
    [line] = [record.getMessage() for record in caplog.records if "not AMQP" in record.getMessage()]
    assert re.match(r"connection from 127\.0\.0\.1:\d+: not AMQP 0-9-1 or Echo(, but TLS)?: b", line)


@pytest.mark.parametrize("begun", [b"", b"AMQP", SASL[:7]])
def test_unfinished_header_is_dropped_in_time(
    new_loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture, begun: bytes
) -> None:
    with LoneBroker(new_loop=new_loop, handshake_timeout_s=0.3) as broker:
        two = TwoProtocols(broker)
        with Stopwatch() as watch, two.connect() as client:
            client.write(begun)
            with contextlib.suppress(ConnectionError):
                assert client.socket.recv(100) == b""
        assert 0.25 < watch.seconds < 2 * watch.slowness
        wait_until(lambda: broker.slots.unauthenticated == 0, "the end of the connection")
    assert "no handshake in time" in caplog.text


def test_time_of_the_header_counts_in_the_handshake() -> None:
    with LoneBroker(handshake_timeout_s=30.0) as broker:
        two = TwoProtocols(broker)
        with two.connect() as client:
            client.write(SASL[:4])
            time.sleep(0.2)
            client.write(SASL[4:])
            assert receive(client, 8) == SASL
        [echo] = two.echoes
        assert 0 < echo.handshake_s < 29.9


def test_client_that_hangs_up_in_its_header_frees_its_slot(two: TwoProtocols) -> None:
    with two.connect() as client:
        client.write(SASL[:3])
        wait_until(lambda: two.broker.slots.unauthenticated == 1, "the arrival")
        client.socket.shutdown(socket.SHUT_WR)
        assert client.socket.recv(100) == b""
    wait_until(lambda: two.broker.slots.unauthenticated == 0, "the end of the connection")
