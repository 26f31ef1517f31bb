"""Herds of clients that come back at once over a slow link, and clients beside floods of strangers, on real sockets."""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import uvloop

from qq.config import ClientTls
from qq.testing import ClusterNode, LocalCluster
from tests.amqp_server.slow_link import (
    HEADER,
    Attempt,
    connect,
    herd,
    log_in,
    start_ok,
    unauthenticated_flood,
)
from tests.harness.certificates import Authority
from tests.harness.lone_broker import LoneBroker

# All need the same node.
pytestmark = [pytest.mark.xdist_group("herd"), pytest.mark.slow]

HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
PLACES = 100
ROUND_TRIP_S = 0.4
WITHIN_S = 20.0
"""Some 5 s on an idle machine."""
FLOOD = 2 * PLACES
CLIENTS = 15
"""Clients from a second address, for which the flood leaves a quarter of the slots."""


@pytest.fixture(scope="module", autouse=True)
def _many_files() -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def node() -> Generator[ClusterNode]:
    limits = {"strangers_max": PLACES, "http_connection_max": PLACES}
    with LocalCluster(nodes=1, settings={"limits": limits}) as cluster:
        yield cluster.nodes[0]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def tls_broker(authority: Authority, places: int) -> tuple[LoneBroker, ssl.SSLContext]:
    broker = LoneBroker(
        tls=ClientTls(*authority.issue("localhost")), new_loop=uvloop.new_event_loop, strangers_max=places
    )
    return broker, authority.context()


def log_in_at(node: ClusterNode) -> Attempt:
    return partial(log_in, node.amqp_port, ROUND_TRIP_S)


def begin_attempt(node: ClusterNode) -> Attempt:
    return partial(connect, node.http_port, ROUND_TRIP_S)


@pytest.mark.parametrize(
    ("clients", "attempt_at"), [(300, log_in_at), (500, begin_attempt)], ids=["AMQP", "HTTP"]
)
def test_many_clients_connect_at_once_over_a_slow_link(
    node: ClusterNode, clients: int, attempt_at: Callable[[ClusterNode], Attempt]
) -> None:
    _, failures = asyncio.run(herd(clients, attempt_at(node), WITHIN_S))
    assert failures > 0  # there was not a place for each client at once


def test_many_clients_connect_at_once_over_slow_tls(authority: Authority) -> None:
    broker, context = tls_broker(authority, PLACES)
    with broker:
        attempt = partial(log_in, broker.amqps_port, ROUND_TRIP_S, context=context)
        asyncio.run(herd(2 * PLACES, attempt, WITHIN_S))


@pytest.mark.long
@pytest.mark.parametrize("round_trip_s", [0.6, 1.0])
def test_two_thousand_clients_get_in_over_a_slow_link(round_trip_s: float) -> None:
    with LocalCluster(nodes=3) as cluster:
        node = cluster.nodes[0]
        asyncio.run(herd(2000, partial(log_in, node.amqp_port, round_trip_s), 60.0))
        asyncio.run(herd(2000, partial(connect, node.http_port, round_trip_s), 60.0))


@pytest.mark.long
def test_a_thousand_tls_clients_get_in_over_a_slow_link(authority: Authority) -> None:
    """They are fewer, and have more time: they share a process, and its TLS handshakes, with the node."""
    broker, context = tls_broker(authority, 2000)
    with broker:
        broker.slots.limits = replace(broker.slots.limits, total_max=4000)
        attempt = partial(log_in, broker.amqps_port, 0.6, context=context)
        asyncio.run(herd(1000, attempt, 90.0, attempt_s=30.0))


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(b"", id="silent"),
        pytest.param(HEADER[:5], id="half a header", marks=pytest.mark.long),
        pytest.param(HEADER, id="header", marks=pytest.mark.long),
        pytest.param(HEADER + start_ok("guest", "wrong"), id="wrong login"),
    ],
)
def test_clients_log_in_during_unauthenticated_floods(node: ClusterNode, first: bytes) -> None:
    async def story() -> int:
        async with unauthenticated_flood(FLOOD, node.amqp_port, HERE, first, pause_s=1.0):
            _, failures = await herd(CLIENTS, partial(log_in, node.amqp_port, 0.1, ELSEWHERE), WITHIN_S)
            await herd(CLIENTS, partial(log_in, node.amqp_port, 0.1, HERE), 2 * WITHIN_S)
        return failures

    assert asyncio.run(story()) == 0
    log = node.log.read_text()
    assert "connection from 127.0.0.1 refused: its address has 75 without a login" in log


def test_http_clients_log_in_during_unauthenticated_floods(node: ClusterNode) -> None:
    async def story() -> int:
        async with unauthenticated_flood(
            FLOOD, node.http_port, HERE, b"GET /livez HTTP/1.1\r\n", pause_s=1.0
        ):
            _, failures = await herd(CLIENTS, partial(connect, node.http_port, 0.1, ELSEWHERE), WITHIN_S)
            await herd(CLIENTS, partial(connect, node.http_port, 0.1, HERE), 2 * WITHIN_S)
        return failures

    assert asyncio.run(story()) == 0


def test_unauthenticated_tls_clients_get_only_their_share(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of a TLS record from an address, over and over; clients from a second address log in meanwhile."""
    caplog.set_level(logging.ERROR)
    broker, context = tls_broker(authority, PLACES)

    async def story() -> int:
        async with unauthenticated_flood(FLOOD, broker.amqps_port, HERE, b"\x16\x03\x01", pause_s=0.5):
            attempt = partial(log_in, broker.amqps_port, 0.1, ELSEWHERE, context)
            _, failures = await herd(CLIENTS, attempt, WITHIN_S)
        return failures

    with broker:
        assert asyncio.run(story()) == 0
