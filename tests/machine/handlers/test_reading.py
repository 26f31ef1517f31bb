"""Commands that would change nothing are answered from the state as the log answers them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from qq.machine.protocol.commands import (
    BindExchange,
    BindQueue,
    DeclareExchange,
    DeclareQueue,
    DeleteQueue,
    Get,
    GetMessages,
    PutVhost,
    ReplyTo,
    UnbindQueue,
)
from qq.machine.protocol.effects import GetEmpty, QueueDeclared, Reply
from qq.machine.protocol.versions import VERSIONS
from tests.machine.machine_driver import Driver, consume, declare, publish

if TYPE_CHECKING:
    from qq.machine.protocol.commands import Method

NAME = "amq.rabbitmq.reply-to." + "x" * 22
MINE = DeclareQueue(1, 1, "mine", False, False, True, False, False, {})
EXCHANGE = DeclareExchange(1, "x", "topic", False, True, False, False, {})
TO_QUEUE = BindQueue(1, 1, "q", "x", "key", {"a": 1})
TO_EXCHANGE = BindExchange(1, "x", "amq.fanout", "key", {})
GET = Get(1, 1, 1, 7, "empty", False, 0)


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.machine.raise_to(VERSIONS[1])
    driver.apply(
        declare("q"),
        declare("empty"),
        declare("expiring", x_expires=60_000),
        MINE,
        EXCHANGE,
        TO_QUEUE,
        TO_EXCHANGE,
        ReplyTo(1, 5, NAME),
        publish(3),
    )
    driver.apply(consume(2, "empty", 1))
    return driver


@pytest.mark.parametrize(
    "command",
    [
        declare("q"),
        declare("q")._replace(passive=True, durable=False),
        declare("q\r\n"),
        MINE,
        MINE._replace(passive=True),
        declare(NAME),
        declare("amq.rabbitmq.reply-to"),
        EXCHANGE,
        EXCHANGE._replace(passive=True, type=""),
        EXCHANGE._replace(name="amq.direct", type="direct"),
        TO_QUEUE,
        TO_EXCHANGE,
        GET,
        GetMessages(*GET, 3),
    ],
)
def test_read_answers_as_the_log_does(driver: Driver, command: Method) -> None:
    before = driver.machine.dump()
    answer = driver.machine.reads.answer("n1", command)
    assert driver.machine.dump() == before
    [reply] = [effect for effect in driver.apply(command) if isinstance(effect, Reply)]
    assert answer == reply.result


@pytest.mark.parametrize(
    "command",
    [
        declare("new"),
        declare("new")._replace(passive=True),
        declare("q", x_max_length=5),
        declare("q")._replace(auto_delete=True),
        declare("q", session=2),
        declare("expiring"),
        declare("expiring")._replace(passive=True),
        MINE._replace(exclusive=False),
        MINE._replace(connection=2),
        declare("", session=1)._replace(passive=True),
        EXCHANGE._replace(name="y"),
        EXCHANGE._replace(type="fanout"),
        EXCHANGE._replace(name="", passive=True),
        TO_QUEUE._replace(routing_key="other"),
        TO_QUEUE._replace(queue="new"),
        TO_QUEUE._replace(queue="", routing_key=""),
        TO_QUEUE._replace(arguments={"a": 2}),
        TO_EXCHANGE._replace(routing_key="other"),
        UnbindQueue(*TO_QUEUE),
        DeleteQueue(1, 1, "new", False, False),
        GET._replace(queue="q"),
        GET._replace(queue=""),
        GET._replace(queue="expiring"),
    ],
)
def test_command_needs_an_entry(driver: Driver, command: Method) -> None:
    assert driver.machine.reads.answer("n1", command) is None


def test_read_of_a_failed_session_needs_an_entry(driver: Driver) -> None:
    driver.apply(declare("q", x_max_length=5))
    assert driver.machine.reads.answer("n1", declare("q")) is None


def test_read_counts_the_messages_and_consumers_of_now(driver: Driver) -> None:
    assert driver.machine.reads.answer("n1", declare("q")) == QueueDeclared("q", 3, 0)
    assert driver.machine.reads.answer("n1", declare("empty")) == QueueDeclared("empty", 0, 1)
    assert driver.machine.reads.answer("n1", GET) == GetEmpty()


def test_read_sees_only_the_virtual_host_of_its_session(driver: Driver) -> None:
    driver.apply(PutVhost("other", "", [], ""))
    assert driver.machine.reads.answer("n2", declare("q")) is None
