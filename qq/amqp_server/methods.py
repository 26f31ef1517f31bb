"""Maps commands of the log to AMQP methods, for the error that closes a channel or connection.

Invariant: every command whose answer a client waits for, or that may fail its channel, has a method.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.errors import amqp_error
from qq.machine.protocol.commands import (
    NO_COMMAND,
    OPCODES,
    BindExchange,
    BindQueue,
    Cancel,
    Checkout,
    Commit,
    Connect,
    ConnectVouched,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Enqueue,
    Get,
    GetMessages,
    Limit,
    Method,
    OpenChannel,
    Publish,
    PurgeQueue,
    Recover,
    ReplyTo,
    UnbindExchange,
    UnbindQueue,
)

if TYPE_CHECKING:
    from qq.errors import ChannelError, ConnectionFault
    from qq.machine.protocol.effects import Failed

NO_METHOD = (0, 0)
PUBLISH, CONSUME = (60, 40), (60, 20)
GET = (60, 70)
ACK, NACK, REJECT = (60, 80), (60, 120), (60, 90)
RECOVER, RECOVER_ASYNC = (60, 110), (60, 100)
METHODS: dict[type[Method], tuple[int, int]] = {
    Enqueue: PUBLISH,
    Publish: PUBLISH,
    Commit: (90, 20),
    Limit: (60, 10),
    Checkout: CONSUME,
    ReplyTo: CONSUME,
    Cancel: (60, 30),
    Get: GET,
    GetMessages: GET,
    Recover: RECOVER,
    DeclareQueue: (50, 10),
    BindQueue: (50, 20),
    PurgeQueue: (50, 30),
    DeleteQueue: (50, 40),
    UnbindQueue: (50, 50),
    DeclareExchange: (40, 10),
    DeleteExchange: (40, 20),
    BindExchange: (40, 30),
    UnbindExchange: (40, 40),
    Connect: (10, 40),
    ConnectVouched: (10, 40),
    OpenChannel: (20, 10),
}
"""AMQP's class and method numbers for each command."""

_METHOD_OF = {OPCODES[kind]: method for kind, method in METHODS.items()} | {NO_COMMAND: NO_METHOD}


def error_of(failure: Failed) -> ChannelError | ConnectionFault:
    """Return the AMQP error for a command that the log has refused."""
    return amqp_error(failure.code, failure.text, *_METHOD_OF[failure.opcode])
