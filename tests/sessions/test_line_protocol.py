"""A second protocol is a package of its own on the same sessions, without changes elsewhere."""

from __future__ import annotations

import ast
import asyncio
import socket
from collections.abc import Generator
from pathlib import Path
from typing import Self

import pytest
from pamqp import commands

from tests.harness.lone_broker import LoneBroker
from tests.harness.raw_client import RawClient, publish
from tests.sessions import line_protocol

Basic, Confirm, Queue = commands.Basic, commands.Confirm, commands.Queue


@pytest.fixture
def broker() -> Generator[LoneBroker]:
    with LoneBroker() as broker:
        yield broker


class LineClient:
    def __init__(self, broker: LoneBroker) -> None:
        self._broker = broker
        self._server = broker.await_on_loop(line_protocol.listen(broker.broker))
        self._socket = socket.create_connection(self._server.sockets[0].getsockname())
        self._socket.settimeout(10)
        self._lines = self._socket.makefile("r", newline="\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        port = self._socket.getsockname()[1]
        self._lines.close()
        self._socket.close()
        self._broker.await_on_loop(self._close(port))

    async def _close(self, port: int) -> None:
        self._server.close()
        while any(there.peer_port == port for there in self._broker.broker.connections.values()):  # noqa: ASYNC110
            await asyncio.sleep(0)

    def send_lines(self, *lines: str) -> None:
        self._socket.sendall("".join(f"{line}\n" for line in lines).encode())

    def expect(self, *lines: str) -> None:
        assert [self.next().rstrip("\n") for _ in lines] == list(lines)

    def next(self) -> str:
        return self._lines.readline()

    def log_in(self) -> None:
        self.send_lines("HELLO guest guest")
        self.expect("WELCOME")


@pytest.fixture
def lines(broker: LoneBroker) -> Generator[LineClient]:
    with LineClient(broker) as client:
        client.log_in()
        yield client


def test_message_published_by_line_protocol_is_consumed_by_amqp(
    broker: LoneBroker, lines: LineClient
) -> None:
    lines.send_lines("DECLARE q", "PUBLISH q one message", "PUBLISH q another")
    lines.expect("DECLARED q", "CONFIRMED 2")
    with RawClient(broker.amqp_port) as amqp:
        amqp.open_channel(1)
        amqp.call(1, Basic.Consume(queue="q", consumer_tag="c"), Basic.ConsumeOk)
        assert [amqp.expect_message()[2] for _ in range(2)] == [b"one message", b"another"]
        amqp.send(1, Basic.Ack(2, multiple=True))
        amqp.call(1, Basic.Cancel("c"), Basic.CancelOk)
        lines.send_lines("CONSUME q 1")
        lines.expect("CONSUMING")
        amqp.write(publish(1, "q", b"back") + publish(1, "q", b"and forth"))
        lines.expect("MESSAGE 0 back")
        lines.send_lines("DONE 0")
        lines.expect("MESSAGE 1 and forth")


def test_messages_held_by_a_line_client_return_when_it_leaves(broker: LoneBroker, lines: LineClient) -> None:
    with LineClient(broker) as other:
        other.log_in()
        other.send_lines("DECLARE q", "PUBLISH q held")
        other.expect("DECLARED q", "CONFIRMED 1")
        other.send_lines("CONSUME q 10")
        other.expect("CONSUMING", "MESSAGE 0 held")
        lines.send_lines("CONSUME q 10")
        lines.expect("CONSUMING")
    lines.expect("MESSAGE 0 held")


def test_line_consumer_is_notified_of_a_deleted_queue(broker: LoneBroker, lines: LineClient) -> None:
    lines.send_lines("DECLARE q", "CONSUME q 10")
    lines.expect("DECLARED q", "CONSUMING")
    with RawClient(broker.amqp_port) as amqp:
        amqp.open_channel(1)
        amqp.call(1, Queue.Delete(queue="q"), Queue.DeleteOk)
    assert lines.next().startswith("CANCELLED ")


def test_refused_command_ends_a_line_session(lines: LineClient) -> None:
    lines.send_lines("CONSUME missing 1")
    assert lines.next() == "ERROR no queue 'missing' in vhost '/'\n"
    assert not lines.next()


def test_line_login_with_a_wrong_password_is_refused(broker: LoneBroker) -> None:
    with LineClient(broker) as client:
        client.send_lines("HELLO guest wrong")
        client.expect("ERROR who are you?")


def test_snapshot_delivers_missed_messages_to_a_line_client(broker: LoneBroker, lines: LineClient) -> None:
    lines.send_lines("DECLARE q", "CONSUME q 10")
    lines.expect("DECLARED q", "CONSUMING")
    broker.skip()
    lines.send_lines("PUBLISH q unseen")
    [queue] = broker.machine.queues()
    while not queue.unacked:
        broker.pass_some_time()
    broker.resume()
    lines.expect("MESSAGE 0 unseen", "REFUSED 1")


def test_line_protocol_imports_no_package_of_amqp() -> None:
    tree = ast.parse(Path(line_protocol.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    rooms = {".".join(name.split(".")[:2]) for name in imported if name.startswith(("qq.", "cluster"))}
    assert rooms == {"qq.machine", "qq.ranges", "qq.sessions", "qq.stored"}
