"""Lines of the log about a client name its address, its port and the name that it has given its connection."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator

import pytest
from pamqp import commands

from qq.client_sockets.shared import LOG_LINES_PER_S
from tests.harness.lone_broker import LoneBroker
from tests.harness.raw_client import HEADER, RawClient

Connection, Queue = commands.Connection, commands.Queue
NAME = "worker-7"


@pytest.fixture
def broker() -> Generator[LoneBroker]:
    with LoneBroker() as broker:
        yield broker


def named(broker: LoneBroker, name: object, password: str = "guest") -> RawClient:
    """A client that has sent its name and its password."""
    client = RawClient(broker.amqp_port, handshake=False)
    client.write(HEADER)
    client.expect(Connection.Start)
    client.send(0, client.start_ok(f"\0guest\0{password}", connection_name=name))
    return client


def opened(broker: LoneBroker, name: object = NAME) -> RawClient:
    client = named(broker, name)
    client.expect(Connection.Tune)
    client.send(0, Connection.TuneOk(2047, 131_072, 0), Connection.Open("/"))
    client.expect(Connection.OpenOk)
    client.open_channel(1)
    return client


def fail_channel(client: RawClient, number: int = 1) -> None:
    client.send(number, Queue.Declare(queue="missing", passive=True))
    client.expect(commands.Channel.Close, number)


def refuse_login(broker: LoneBroker) -> RawClient:
    client = named(broker, NAME, "wrong")
    client.expect(Connection.Close)
    return client


def fail(broker: LoneBroker) -> RawClient:
    client = opened(broker)
    client.send(1, commands.Channel.Open())
    client.expect(Connection.Close)
    return client


def refuse_declaration(broker: LoneBroker) -> RawClient:
    client = opened(broker)
    fail_channel(client)
    return client


CASES = {"login": refuse_login, "error": fail, "channel": refuse_declaration, "opened": opened}


@pytest.mark.parametrize("case", CASES)
def test_each_line_names_the_client(broker: LoneBroker, caplog: pytest.LogCaptureFixture, case: str) -> None:
    provoke: Callable[[LoneBroker], RawClient] = CASES[case]
    with caplog.at_level(logging.INFO), provoke(broker) as client:
        port = client.socket.getsockname()[1]
    lines = [record.getMessage() for record in caplog.records]
    assert lines
    assert [line for line in lines if f"(127.0.0.1:{port} '{NAME}')" not in line] == []


def test_name_of_a_client_is_escaped_and_cut(broker: LoneBroker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), opened(broker, "a'\n\x1b[31m" + "x" * 3_000):
        pass
    (line, *_) = [record.getMessage() for record in caplog.records]
    assert r"""\n\x1b[31mxxx""" in line
    assert len(line) < 250
    assert line.isprintable()


@pytest.mark.parametrize("name", [7, {"a": "b"}, ""])
def test_name_that_is_no_text_is_left_out(
    broker: LoneBroker, caplog: pytest.LogCaptureFixture, name: object
) -> None:
    with caplog.at_level(logging.INFO), opened(broker, name) as client:
        port = client.socket.getsockname()[1]
    assert f"(127.0.0.1:{port})" in caplog.text


def test_errors_of_channels_are_logged_at_a_bounded_rate(
    broker: LoneBroker, caplog: pytest.LogCaptureFixture
) -> None:
    errors = 6 * LOG_LINES_PER_S
    with opened(broker) as client:
        for number in range(2, 2 + errors):
            client.open_channel(number)
        for number in range(2, 2 + errors):
            client.send(number, Queue.Declare(queue="missing", passive=True))
        for number in range(2, 2 + errors):
            client.expect(commands.Channel.Close, number)
    assert 0 < caplog.text.count("NOT_FOUND") < errors
