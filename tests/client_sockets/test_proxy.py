"""The PROXY protocol: the header by itself, and in front of AMQP and AMQP over TLS on real sockets."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
from collections.abc import Generator, Iterator
from dataclasses import replace
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from qq.client_sockets.proxy import V1_BYTES_MAX, V2_BODY_BYTES_MAX, ProxyError, ProxyHeader, Source
from tests.harness.lone_broker import LoneBroker
from tests.harness.raw_client import HEADER, RawClient

Conn = commands.Connection
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
FOUR = socket.inet_aton("198.51.100.7") + socket.inet_aton("192.0.2.1") + struct.pack(">HH", 40_000, 5672)
SIX = ip_address("2001:db8::7").packed + ip_address("2001:db8:1::1").packed + struct.pack(">HH", 40_000, 5672)


def v2(command: int = 0x21, family: int = 0x11, body: bytes = FOUR) -> bytes:
    return SIGNATURE + struct.pack(">BBH", command, family, len(body)) + body


GOOD: list[tuple[bytes, Source | None]] = [
    (b"PROXY TCP4 198.51.100.7 192.0.2.1 40000 5672\r\n", Source("198.51.100.7", 40_000)),
    (b"PROXY TCP6 2001:db8::7 2001:DB8:1::1 40000 5672\r\n", Source("2001:db8::7", 40_000)),
    (b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n", Source("255.255.255.255", 65_535)),
    (
        b"PROXY TCP6 " + b" ".join([b":".join([b"ffff"] * 8)] * 2) + b" 65535 65535\r\n",
        Source(":".join(["ffff"] * 8), 65_535),
    ),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN " + b" ".join([b":".join([b"ffff"] * 8)] * 2) + b" 65535 65535\r\n", None),
    (v2(), Source("198.51.100.7", 40_000)),
    (v2(family=0x21, body=SIX), Source("2001:db8::7", 40_000)),
    (v2(body=FOUR + b"\x04\0\x08" + bytes(8)), Source("198.51.100.7", 40_000)),
    (v2(body=FOUR + bytes(V2_BODY_BYTES_MAX - len(FOUR))), Source("198.51.100.7", 40_000)),
    (v2(command=0x20), None),
    (v2(command=0x20, family=0, body=b""), None),
    (v2(command=0x20, family=0x99, body=b"x"), None),
    (v2(family=0, body=b""), None),
    (v2(family=0x31, body=bytes(216)), None),
]
BAD = [
    HEADER,
    b"GET / HTTP/1.1\r\n",
    b"\x16\x03\x01\x02\x00",
    b"PROXY\r\n",
    b"proxy TCP4 198.51.100.7 192.0.2.1 40000 5672\r\n",
    b"PROXY TCP5 198.51.100.7 192.0.2.1 40000 5672\r\n",
    b"PROXY TCP4 2001:db8::7 2001:db8:1::1 40000 5672\r\n",
    b"PROXY TCP4 198.51.100.7 2001:db8:1::1 40000 5672\r\n",
    b"PROXY TCP6 198.51.100.7 192.0.2.1 40000 5672\r\n",
    b"PROXY TCP6 fe80::1%eth0 2001:db8:1::1 40000 5672\r\n",
    b"PROXY TCP4 198.51.100.7 192.0.2.1 40000\r\n",
    b"PROXY TCP4 198.51.100.7 192.0.2.1 40000 5672 \r\n",
    b"PROXY TCP4  198.51.100.7 192.0.2.1 40000 5672\r\n",
    b"PROXY TCP4 198.51.100.7 192.0.2.1 65536 5672\r\n",
    b"PROXY TCP4 198.51.100.7 192.0.2.1 -1 5672\r\n",
    b"PROXY TCP4 198.51.100.7 192.0.2.1 40000 5672x\r\n",
    b"PROXY TCP4 198.51.100.7 192.0.2.1 4\xb2 5672\r\n",
    b"PROXY TCP4 0198.51.100.7 192.0.2.1 40000 5672\r\n",
    b"PROXY UNKNOWN " + b"x" * V1_BYTES_MAX,
    b"PROXY " + b"\r" * V1_BYTES_MAX,
    v2(command=0x11),
    v2(command=0x22),
    v2(family=0x12),
    v2(family=0x22, body=SIX),
    v2(family=0x41),
    v2(body=FOUR[:-1]),
    v2(family=0x21),
    v2(body=bytes(V2_BODY_BYTES_MAX + 1)),
    SIGNATURE[:-1] + b"\r" + bytes(20),
]


def read(stream: bytes, sizes: Iterator[int] | None = None) -> tuple[Source | None, bytes]:
    """Return the source in a header, and the bytes behind it; the header reads as many bytes as it wants, or smaller
    pieces.
    """
    header, at = ProxyHeader(), 0
    while header.wanted:
        size = header.wanted if sizes is None else min(next(sizes), header.wanted)
        piece = stream[at : at + size]
        if not piece:
            raise EOFError
        at += len(piece)
        header.receive(piece)
    return header.source, stream[at:]


@pytest.mark.parametrize(("header", "source"), GOOD)
def test_proxy_header_gives_the_source_and_takes_no_byte_more(header: bytes, source: Source | None) -> None:
    assert read(header + HEADER) == (source, HEADER)
    assert read(header + HEADER, iter(lambda: 1, 0)) == (source, HEADER)
    for end in range(1, len(header)) if len(header) < 300 else (1, 12, 15, 16, 17, len(header) - 1):
        with pytest.raises(EOFError):
            read(header[:end])


@pytest.mark.parametrize("stream", BAD)
def test_invalid_proxy_header_is_refused(stream: bytes) -> None:
    with pytest.raises(ProxyError):
        read(stream)
    with pytest.raises(ProxyError):
        read(stream, iter(lambda: 1, 0))


@given(
    st.sampled_from([header for header, _ in GOOD]),
    st.lists(st.tuples(st.integers(0, 250), st.integers(0, 255)), max_size=4),
    st.integers(0, 20),
    st.integers(1, 20),
)
def test_any_proxy_header_is_read_or_refused(
    header: bytes, damage: list[tuple[int, int]], cut: int, size: int
) -> None:
    damaged = bytearray(header + HEADER)
    for at, octet in damage:
        damaged[at % len(damaged)] = octet
    stream = bytes(damaged[cut:] if cut > 15 else damaged)
    outcomes: list[object] = []
    for sizes in (None, iter(lambda: size, 0)):
        try:
            source, rest = read(stream, sizes)
            assert len(stream) - len(rest) <= len(SIGNATURE) + 4 + V2_BODY_BYTES_MAX
            if source is not None:
                assert ip_address(source.host)
                assert 0 <= source.port <= 65_535
            outcomes.append((source, rest))
        except (ProxyError, EOFError) as error:
            outcomes.append(type(error))
    assert outcomes[0] == outcomes[1]


# On sockets


@pytest.fixture
def broker() -> Generator[LoneBroker]:
    with LoneBroker(proxies=["127.0.0.2/32"], handshake_timeout_s=5.0) as broker:
        broker.add_user("anna", "secret")
        yield broker


def connect(broker: LoneBroker, header: bytes, source: str = "127.0.0.2") -> RawClient:
    client = RawClient(broker.amqp_port, handshake=False, source=source)
    client.write(header)
    return client


def log_in(client: RawClient, user: str = "anna", password: str = "secret") -> None:
    client.write(HEADER)
    client.expect(Conn.Start)
    client.send(0, client.start_ok(f"\0{user}\0{password}"))
    client.expect(Conn.Tune)
    client.send(0, Conn.TuneOk(2047, 131_072, 0), Conn.Open("/"))
    client.expect(Conn.OpenOk)


@pytest.mark.parametrize(("header", "source"), GOOD)
def test_a_client_behind_a_proxy_is_known_by_its_own_address(
    broker: LoneBroker, header: bytes, source: Source | None
) -> None:
    with connect(broker, header) as client:
        log_in(client)
        [connection] = broker.broker.connections.values()
        own = client.socket.getsockname()
        assert (connection.peer_host, connection.peer_port) == (source or own)
        assert connection.name.startswith(f"{connection.peer_host}:{connection.peer_port} -> 127.0.0.1:")


@pytest.mark.parametrize("header", [GOOD[0][0], GOOD[1][0], GOOD[4][0], v2(), v2(command=0x20)])
def test_a_header_may_come_in_any_two_pieces(broker: LoneBroker, header: bytes) -> None:
    for end in range(1, len(header) + 1):
        with connect(broker, header[:end]) as client:
            broker.pass_some_time()
            client.write(header[end:])
            log_in(client)


@pytest.mark.parametrize("stream", [HEADER, b"PROXY TCP4 nonsense\r\n", v2(family=0x12), b""])
def test_proxy_without_a_valid_header_is_dropped(
    broker: LoneBroker, caplog: pytest.LogCaptureFixture, stream: bytes
) -> None:
    with connect(broker, stream) as client:
        client.socket.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            assert client.socket.recv(100) == b""
    broker.pass_some_time()
    assert (broker.slots.unauthenticated, broker.slots.authenticated) == (0, 0)
    [line] = [record.getMessage() for record in caplog.records]
    assert re.match(r"a connection from 127\.0\.0\.2:\d+ is dropped: ", line)


def test_missing_proxy_header_times_out() -> None:
    with (
        LoneBroker(proxies=["127.0.0.0/8"], handshake_timeout_s=0.3) as broker,
        connect(broker, b"PROXY TCP4 198.51", "127.0.0.1") as client,
        contextlib.suppress(ConnectionError),
    ):
        assert client.socket.recv(100) == b""


@pytest.mark.parametrize("header", [GOOD[0][0], v2()])
def test_proxy_header_of_an_untrusted_host_is_refused(
    broker: LoneBroker, caplog: pytest.LogCaptureFixture, header: bytes
) -> None:
    with connect(broker, header, "127.0.0.1") as client:
        assert client.socket.recv(100) == HEADER
        client.expect_end()
    assert re.search(r"from 127\.0\.0\.1:\d+: not AMQP 0-9-1, but the PROXY protocol: ", caplog.text)


def test_loopback_address_from_a_proxy_is_the_proxys_own() -> None:
    """The proxy is at 127.0.0.2, which is this machine: guest may come through it, and from elsewhere may not."""
    with LoneBroker(proxies=["127.0.0.2"]) as broker:
        with connect(broker, b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n") as client:
            log_in(client, "guest", "guest")
        with connect(broker, GOOD[0][0]) as client:
            client.write(HEADER)
            client.expect(Conn.Start)
            client.send(0, client.start_ok("\0guest\0guest"))
            text = (
                "Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
            )
            client.expect_close(403, f"ACCESS_REFUSED - {text}")


def test_failed_login_by_proxy_counts_for_the_client_address(broker: LoneBroker) -> None:
    with connect(broker, GOOD[0][0]) as client:
        client.write(HEADER)
        client.expect(Conn.Start)
        client.send(0, client.start_ok("\0anna\0wrong"))
        client.receive()
    assert ("198.51.100.7", "anna") in broker.broker.logins._records
    assert not any(address == "127.0.0.2" for address, _ in broker.broker.logins._records)


def test_unauthenticated_clients_by_proxy_count_by_their_address(broker: LoneBroker) -> None:
    broker.slots.limits = replace(broker.slots.limits, unauthenticated_max=8)
    with contextlib.ExitStack() as stack:
        lone = stack.enter_context(connect(broker, b"PROXY TCP4 203.0.113.1 192.0.2.1 1 2\r\n"))
        lone.write(HEADER)
        lone.expect(Conn.Start)
        for number in range(20):
            flood = stack.enter_context(connect(broker, GOOD[0][0]))
            if number < 6:
                flood.write(HEADER)
                flood.expect(Conn.Start)
            else:
                flood.expect_end()
        lone.send(0, lone.start_ok("\0anna\0secret"))
        lone.expect(Conn.Tune)
        assert (broker.slots.unauthenticated, broker.slots.authenticated) == (6, 1)
