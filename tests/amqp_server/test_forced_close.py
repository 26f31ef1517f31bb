"""Connections that the log closes, because an operator requested it at any node."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from pamqp import commands

from qq.machine.protocol.commands import CloseConnection, Command, Connect, DeleteUser, DeleteVhost
from tests.harness.lone_broker import NAME, LoneBroker
from tests.harness.raw_client import RawClient


@pytest.fixture
def broker() -> Generator[LoneBroker]:
    with LoneBroker() as broker:
        yield broker


@pytest.mark.parametrize("is_skipped", [False, True])
@pytest.mark.parametrize(
    ("deletion", "reason"),
    [
        (CloseConnection(NAME, 1, "they want it"), "they want it"),
        (DeleteVhost("/"), "vhost '/' is deleted"),
        (DeleteUser("guest"), "user 'guest' is deleted"),
    ],
)
def test_forced_close_gives_the_reason(
    broker: LoneBroker, deletion: Command, reason: str, is_skipped: bool
) -> None:
    with RawClient(broker.amqp_port) as client:
        [number] = broker.broker.connections

        def submit(*submitted: Command) -> None:
            for command in submitted:
                broker.call(broker.broker.submissions.add, command)
            broker.pass_some_time()

        if is_skipped:
            broker.skip()
        submit(deletion._replace(connection=number) if isinstance(deletion, CloseConnection) else deletion)
        if is_skipped:
            broker.resume()
        close = client.expect(commands.Connection.Close)
        assert (close.reply_code, close.reply_text) == (320, f"CONNECTION_FORCED - {reason}")
        assert (close.class_id, close.method_id) == (0, 0)


def test_closing_a_missing_connection_has_no_effect(broker: LoneBroker) -> None:
    with RawClient(broker.amqp_port) as client:
        broker.call(broker.broker.submissions.add, Connect(999, "/", "guest"))
        broker.call(broker.broker.submissions.add, CloseConnection(NAME, 999, "gone"))
        broker.pass_some_time()
        client.open_channel(1)
