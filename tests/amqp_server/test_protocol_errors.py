"""The table of protocol errors: the error of the client, the closed channel or connection, and the text of the close.

Codes, texts and the method in the close are RabbitMQ's. Further errors: permissions (test_permissions.py), limits of
virtual hosts and users (test_vhosts.py), direct reply-to (test_reply_to.py), limits that an operator has set
(tests/queues/test_node_settings.py).
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import pytest
from pamqp import commands

from qq.testing import ClusterNode
from tests.harness.raw_client import HEADER, RawClient, frame_bytes, marshal, publish

Basic, Chan, Conn = commands.Basic, commands.Channel, commands.Connection
Exchange, Queue, Tx = commands.Exchange, commands.Queue, commands.Tx
QUORUM = {"x-queue-type": "quorum"}
HERE = "in vhost '/'"
QUORUM_ONLY = "of queue type rabbit_quorum_queue"
FRAME_MAX = 131_072
TAG_MAX = 2**62


class Mistake(NamedTuple):
    """Frames on channel 1, or bytes, sent in one piece; only the last frame is wrong."""

    sent: list[Any]
    code: int
    text: str
    method: tuple[int, int]
    """Class and method that the close blames; zeros if the bytes were no method at all."""


def unchecked(kind: type[Any], **fields: Any) -> Any:
    """A method that pamqp would refuse to make."""
    method = kind.__new__(kind)
    for name, value in fields.items():
        setattr(method, name, value)
    return method


def declared(queue: str, **fields: Any) -> Any:
    """A classic queue that goes with its connection."""
    return Queue.Declare(queue=queue, exclusive=True, **fields)


def quorum(arguments: dict[str, Any] | None = None, *, queue: str = "e-q", **fields: Any) -> Any:
    fields = {"durable": True} | fields
    return Queue.Declare(queue=queue, arguments=QUORUM | (arguments or {}), **fields)


def headers(*fields: bytes) -> bytes:
    """Return properties with only headers, each given with its type and value."""
    table = b"".join(fields)
    return b"\x20\0" + len(table).to_bytes(4, "big") + table


def content(channel: int, size: int, *, class_id: int = 60, weight: int = 0) -> bytes:
    return frame_bytes(2, channel, struct.pack(">HHQH", class_id, weight, size, 0))


BEGUN = marshal(1, Basic.Publish(routing_key="k"))
"""basic.publish, its content to come."""

# Frames and the order of frames: AMQP 0-9-1, 4.2.3 to 4.2.7

FRAMES: dict[str, Mistake] = {
    "unknown frame type": Mistake(
        [b"\x07" + bytes(20)], 501, "FRAME_ERROR - type 7, all octets = <<>>: unknown_frame", (0, 0)
    ),
    "wrong frame end": Mistake(
        [b"\1\0\1\0\0\0\4\0\1\2\3\4"],
        501,
        "FRAME_ERROR - type 1, all octets = <<0,1,2,3>>: {invalid_frame_end_marker,4}",
        (0, 0),
    ),
    "wrong end of a long frame": Mistake(
        [b"\3\0\1\0\0\0\x14" + bytes(20) + b"\xcd"],
        501,
        f"FRAME_ERROR - type 3, first 16 octets = <<{','.join('0' * 16)}>>: {{invalid_frame_end_marker,205}}",
        (0, 0),
    ),
    "frame too large": Mistake(
        [b"\3\0\1" + struct.pack(">I", FRAME_MAX + 1)],
        501,
        f"FRAME_ERROR - type 3, all octets = <<>>: {{frame_too_large,{FRAME_MAX + 1},{FRAME_MAX - 8}}}",
        (0, 0),
    ),
    "heartbeat with a payload": Mistake(
        [frame_bytes(8, 0, b"x")], 501, 'FRAME_ERROR - type 8, all octets = <<"x">>: unknown_frame', (0, 0)
    ),
    "heartbeat on a channel": Mistake(
        [frame_bytes(8, 1, b"")], 505, "UNEXPECTED_FRAME - type 8, all octets = <<>>", (0, 0)
    ),
    "content header without a method": Mistake(
        [content(1, 0)],
        505,
        "UNEXPECTED_FRAME - expected method frame, got non method frame instead",
        (0, 0),
    ),
    "content body without a method": Mistake(
        [frame_bytes(3, 1, b"body")],
        505,
        "UNEXPECTED_FRAME - expected method frame, got non method frame instead",
        (0, 0),
    ),
    "method in place of a content header": Mistake(
        [BEGUN, BEGUN],
        505,
        "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
        (60, 40),
    ),
    "body in place of a content header": Mistake(
        [BEGUN, frame_bytes(3, 1, b"body")],
        505,
        "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
        (60, 40),
    ),
    "second publish in place of a body": Mistake(
        [BEGUN, content(1, 4), BEGUN],
        505,
        "UNEXPECTED_FRAME - expected content body, got non content body frame instead",
        (60, 40),
    ),
    "second content header": Mistake(
        [BEGUN, content(1, 4), content(1, 4)],
        505,
        "UNEXPECTED_FRAME - expected content body, got non content body frame instead",
        (60, 40),
    ),
    "content header of another class": Mistake(
        [BEGUN, content(1, 4, class_id=50)],
        505,
        "UNEXPECTED_FRAME - expected content header for class 60, got one for class 50 instead",
        (60, 40),
    ),
    "weight of a content header": Mistake(
        [BEGUN, content(1, 4, weight=1)],
        505,
        "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
        (60, 40),
    ),
    "short content header": Mistake(
        [BEGUN, frame_bytes(2, 1, bytes(5))],
        501,
        "FRAME_ERROR - type 2, all octets = <<0,0,0,0,0>>: unknown_frame",
        (0, 0),
    ),
    "properties that cannot be read": Mistake(
        [BEGUN, frame_bytes(2, 1, struct.pack(">HHQH", 60, 0, 4, 0x8000))],
        502,
        "SYNTAX_ERROR - cannot decode the properties of the message",
        (60, 40),
    ),
    "body larger than announced": Mistake(
        [BEGUN, content(1, 4), frame_bytes(3, 1, b"12345")],
        501,
        "FRAME_ERROR - the body has 1 octets more than its content header says",
        (60, 40),
    ),
}

# Methods and channels: AMQP 0-9-1, 2.2.4 and 4.3, and the classes connection and channel

METHODS: dict[str, Mistake] = {
    "no method": Mistake(
        [frame_bytes(1, 1, b"\0")], 501, "FRAME_ERROR - type 1, all octets = <<0>>: unknown_frame", (0, 0)
    ),
    "unknown class": Mistake(
        [frame_bytes(1, 1, b"\1\2\3\4")], 503, "COMMAND_INVALID - unimplemented method", (258, 772)
    ),
    "a server's method": Mistake(
        [Basic.Deliver("t", 1, False, "", "")], 503, "COMMAND_INVALID - unimplemented method", (60, 60)
    ),
    "arguments that cannot be read": Mistake(
        [frame_bytes(1, 1, b"\0\x32\0\x0a\0\0\xff")],
        502,
        "SYNTAX_ERROR - cannot decode queue.declare: a short string runs over the end",
        (50, 10),
    ),
    "second open": Mistake([Chan.Open()], 504, "CHANNEL_ERROR - second 'channel.open' seen", (20, 10)),
    "close-ok of nothing": Mistake([Chan.CloseOk()], 503, "COMMAND_INVALID - unimplemented method", (20, 41)),
    "open on a channel that closes": Mistake(
        [Queue.Declare(queue="e-first"), Chan.Close(200, "", 0, 0), Chan.Open()],
        504,
        "CHANNEL_ERROR - second 'channel.open' seen",
        (20, 10),
    ),
    "method on an unopened channel": Mistake(
        [marshal(9, Queue.Declare(queue="e-c"))], 504, "CHANNEL_ERROR - expected 'channel.open'", (50, 10)
    ),
    "publish on an unopened channel": Mistake(
        [publish(9, "k", b"m")], 504, "CHANNEL_ERROR - expected 'channel.open'", (60, 40)
    ),
    "ack on an unopened channel": Mistake(
        [marshal(9, Basic.Ack(1))], 504, "CHANNEL_ERROR - expected 'channel.open'", (60, 80)
    ),
    "close of an unopened channel": Mistake(
        [marshal(9, Chan.Close(200, "", 0, 0))], 504, "CHANNEL_ERROR - expected 'channel.open'", (20, 40)
    ),
    "channel method on channel 0": Mistake(
        [marshal(0, Chan.Open())],
        504,
        "CHANNEL_ERROR - unexpected method in connection state running",
        (20, 10),
    ),
    "publish on channel 0": Mistake(
        [publish(0, "k", b"m")],
        504,
        "CHANNEL_ERROR - unexpected method in connection state running",
        (60, 40),
    ),
    "connection method on a channel": Mistake(
        [Conn.Close(200, "", 0, 0)], 503, "COMMAND_INVALID - unimplemented method", (10, 50)
    ),
    "handshake method on an open connection": Mistake(
        [marshal(0, Conn.TuneOk(10, 8192, 0))],
        504,
        "CHANNEL_ERROR - unexpected method in connection state running",
        (10, 31),
    ),
    "close-ok of an open connection": Mistake(
        [marshal(0, Conn.CloseOk())],
        504,
        "CHANNEL_ERROR - unexpected method in connection state running",
        (10, 51),
    ),
    "too many channels": Mistake(
        [marshal(number, Chan.Open()) for number in range(2, 2049)],
        530,
        "NOT_ALLOWED - number of channels opened (2047) has reached the negotiated channel_max (2047)",
        (0, 0),
    ),
}

# Methods that RabbitMQ does not implement, and consumers

REFUSED_METHODS: dict[str, Mistake] = {
    "flow stopped": Mistake([Chan.Flow(active=False)], 540, "NOT_IMPLEMENTED - active=false", (20, 20)),
    "prefetch in octets": Mistake(
        [Basic.Qos(prefetch_size=9)], 540, "NOT_IMPLEMENTED - prefetch_size!=0 (9)", (60, 10)
    ),
    "recover without requeue": Mistake(
        [unchecked(Basic.Recover, requeue=False)], 540, "NOT_IMPLEMENTED - requeue=false", (60, 110)
    ),
    "recover-async without requeue": Mistake(
        [unchecked(Basic.RecoverAsync, requeue=False)], 540, "NOT_IMPLEMENTED - requeue=false", (60, 100)
    ),
    "immediate": Mistake(
        [publish(1, "k", b"m").replace(b"\1k\0\xce", b"\1k\2\xce")],
        540,
        "NOT_IMPLEMENTED - immediate=true",
        (60, 40),
    ),
    "consumer tag twice": Mistake(
        [declared("e-tag"), *[Basic.Consume(queue="e-tag", consumer_tag="t")] * 2],
        530,
        "NOT_ALLOWED - attempt to reuse consumer tag 't'",
        (60, 20),
    ),
}

# Channel errors

NO_QUEUE = f"NOT_FOUND - no queue 'e-no' {HERE}"
NO_EXCHANGE = f"NOT_FOUND - no exchange 'e-no' {HERE}"
DEFAULT_EXCHANGE = "ACCESS_REFUSED - operation not permitted on the default exchange"

MISSING: dict[str, Mistake] = {
    "passive declaration": Mistake([Queue.Declare(queue="e-no", passive=True)], 404, NO_QUEUE, (50, 10)),
    "purge": Mistake([Queue.Purge(queue="e-no")], 404, NO_QUEUE, (50, 30)),
    "consume": Mistake([Basic.Consume(queue="e-no")], 404, NO_QUEUE, (60, 20)),
    "get": Mistake([Basic.Get(queue="e-no")], 404, NO_QUEUE, (60, 70)),
    "binding of no queue": Mistake(
        [Queue.Bind(queue="e-no", exchange="amq.direct")], 404, NO_QUEUE, (50, 20)
    ),
    "binding to no exchange": Mistake(
        [declared("e-bind"), Queue.Bind(queue="e-bind", exchange="e-no")], 404, NO_EXCHANGE, (50, 20)
    ),
    "queue without a name": Mistake(
        [Basic.Get(queue="")], 404, "NOT_FOUND - no previously declared queue", (60, 70)
    ),
    "passive declaration of an exchange": Mistake(
        [Exchange.Declare(exchange="e-no", passive=True)], 404, NO_EXCHANGE, (40, 10)
    ),
    "binding of no exchange": Mistake(
        [Exchange.Bind(destination="e-no", source="amq.direct")], 404, NO_EXCHANGE, (40, 30)
    ),
    "publish": Mistake([publish(1, "k", b"m", exchange="e-no")], 404, NO_EXCHANGE, (60, 40)),
}

DECLARATIONS: dict[str, Mistake] = {
    "reserved name": Mistake(
        [Queue.Declare(queue="amq.x")],
        403,
        "ACCESS_REFUSED - queue name 'amq.x' contains reserved prefix 'amq.*'",
        (50, 10),
    ),
    "reserved name of an exchange": Mistake(
        [Exchange.Declare(exchange="amq.x")],
        403,
        "ACCESS_REFUSED - exchange name 'amq.x' contains reserved prefix 'amq.*'",
        (40, 10),
    ),
    "not durable": Mistake(
        [quorum(durable=False)],
        406,
        f"PRECONDITION_FAILED - invalid property 'non-durable' for queue 'e-q' {HERE}",
        (50, 10),
    ),
    "auto-delete": Mistake(
        [quorum(auto_delete=True)],
        406,
        f"PRECONDITION_FAILED - invalid property 'auto-delete' for queue 'e-q' {HERE}",
        (50, 10),
    ),
    "exclusive": Mistake(
        [quorum(exclusive=True)],
        406,
        f"PRECONDITION_FAILED - invalid property 'exclusive-owner' for queue 'e-q' {HERE}",
        (50, 10),
    ),
    "named by the server": Mistake(
        [quorum(queue="")],
        406,
        "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_quorum_queue",
        (50, 10),
    ),
    "other flag": Mistake(
        [declared("e-flag"), declared("e-flag", auto_delete=True)],
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'auto_delete' for queue 'e-flag' {HERE}: "
        "received 'true' but current is 'false'",
        (50, 10),
    ),
    "other argument": Mistake(
        [declared("e-argument", arguments={"x-expires": 1000}), declared("e-argument")],
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'x-expires' for queue 'e-argument' {HERE}: "
        "received none but current is the value '1000' of type 'signedint'",
        (50, 10),
    ),
    "unknown type of exchange": Mistake(
        [Exchange.Declare(exchange="e-x", exchange_type="nope")],
        406,
        "PRECONDITION_FAILED - unknown exchange type 'nope'",
        (40, 10),
    ),
    "other type of exchange": Mistake(
        [Exchange.Declare(exchange="amq.direct", exchange_type="topic", durable=True)],
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'amq.direct' {HERE}: "
        "received 'topic' but current is 'direct'",
        (40, 10),
    ),
    "dead-letter exchange that is no name": Mistake(
        [quorum({"x-dead-letter-exchange": 1, "x-max-length": -1, "x-queue-type": "stream"})],
        406,
        "PRECONDITION_FAILED - invalid type 'signedint' for arg 'x-dead-letter-exchange' "
        f"in queue 'e-q' {HERE}",
        (50, 10),
    ),
    "dead-letter exchange of a classic queue that is no name": Mistake(
        [declared("e-q", arguments={"x-dead-letter-exchange": True})],
        406,
        f"PRECONDITION_FAILED - invalid type 'bool' for arg 'x-dead-letter-exchange' in queue 'e-q' {HERE}",
        (50, 10),
    ),
    "alternate exchange that is no name": Mistake(
        [Exchange.Declare(exchange="e-x", arguments={"alternate-exchange": 5})],
        406,
        "PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange' "
        f"in exchange 'e-x' {HERE}",
        (40, 10),
    ),
    "deletion of an exchange of the broker": Mistake(
        [Exchange.Delete(exchange="amq.topic")],
        403,
        f"ACCESS_REFUSED - deletion of system exchange 'amq.topic' {HERE} not allowed",
        (40, 20),
    ),
    "deletion of an exchange in use": Mistake(
        [
            Exchange.Declare(exchange="e-used", auto_delete=True),
            declared("e-uses"),
            Queue.Bind(queue="e-uses", exchange="e-used"),
            Exchange.Delete(exchange="e-used", if_unused=True),
        ],
        406,
        f"PRECONDITION_FAILED - exchange 'e-used' {HERE} in use",
        (40, 20),
    ),
    "binding to the default exchange": Mistake(
        [declared("e-bind"), Queue.Bind(queue="e-bind", exchange="", routing_key="k")],
        403,
        DEFAULT_EXCHANGE,
        (50, 20),
    ),
    "declaration of the default exchange": Mistake(
        [Exchange.Declare(exchange="")], 403, DEFAULT_EXCHANGE, (40, 10)
    ),
    "binding that a headers exchange cannot read": Mistake(
        [
            declared("e-bind"),
            Queue.Bind(queue="e-bind", exchange="amq.headers", arguments={"x-match": "some"}),
        ],
        406,
        'PRECONDITION_FAILED - Invalid x-match field value <<"some">>; expected all, any, '
        "all-with-x, or any-with-x",
        (50, 20),
    ),
    "deletion of a queue that is not empty": Mistake(
        [declared("e-full"), publish(1, "e-full", b"m"), Queue.Delete(queue="e-full", if_empty=True)],
        406,
        f"PRECONDITION_FAILED - queue 'e-full' {HERE} not empty",
        (50, 40),
    ),
    "deletion of a queue in use": Mistake(
        [declared("e-used"), Basic.Consume(queue="e-used"), Queue.Delete(queue="e-used", if_unused=True)],
        406,
        f"PRECONDITION_FAILED - queue 'e-used' {HERE} in use",
        (50, 40),
    ),
}

for _arguments, _wrong in (
    ({"x-expires": 0}, "{value_zero,0}"),
    ({"x-expires": -1}, "{value_negative,-1}"),
    ({"x-expires": "soon"}, '"expected integer, got longstr"'),
    ({"x-message-ttl": -1}, "{value_negative,-1}"),
    ({"x-message-ttl": 315_360_000_001}, "{value_too_large,315360000001}"),
    ({"x-max-length": -1}, "{value_negative,-1}"),
    ({"x-max-length": True}, '"expected integer, got bool"'),
    ({"x-max-length-bytes": -1}, "{value_negative,-1}"),
    ({"x-max-in-memory-length": -1}, "{value_negative,-1}"),
    ({"x-overflow": "drop-tail"}, "invalid_overflow"),
    ({"x-overflow": 1}, "{unacceptable_type,signedint}"),
    ({"x-dead-letter-routing-key": "k"}, "routing_key_but_no_dlx_defined"),
    ({"x-dead-letter-strategy": "at-some-time"}, "invalid_dlx_strategy"),
    ({"x-single-active-consumer": "true"}, "{unacceptable_type,longstr}"),
    ({"x-quorum-initial-group-size": 0}, "{value_zero,0}"),
    ({"x-queue-leader-locator": "nearby"}, "invalid_queue_locator_arg"),
    ({"x-return-position": "tail"}, "invalid_return_position"),
    ({"x-delivery-count-mode": "3.8"}, "invalid_delivery_count_mode"),
    ({"x-consumer-timeout-action": "wait"}, "invalid_consumer_timeout_action"),
    ({"x-queue-type": "stream"}, "\"unsupported queue type 'stream'\""),
    ({"x-max-priority": 5}, ""),
    ({"x-queue-mode": "lazy"}, ""),
    ({"x-queue-version": 2}, ""),
    ({"x-max-age": "1D"}, ""),
    ({"x-stream-max-segment-size-bytes": 1000}, ""),
    ({"x-queue-master-locator": "client-local"}, ""),
):
    [(_key, _value)] = _arguments.items()
    _why = f": {_wrong}" if _wrong else f" {QUORUM_ONLY}"
    DECLARATIONS[f"{_key}={_value}"] = Mistake(
        [quorum(_arguments)],
        406,
        f"PRECONDITION_FAILED - invalid arg '{_key}' for queue 'e-q' {HERE}{_why}",
        (50, 10),
    )

MESSAGES: dict[str, Mistake] = {
    "publish to an internal exchange": Mistake(
        [publish(1, "k", b"m", exchange="amq.rabbitmq.trace")],
        403,
        f"ACCESS_REFUSED - cannot publish to internal exchange 'amq.rabbitmq.trace' {HERE}",
        (60, 40),
    ),
    "message too large": Mistake(
        [BEGUN, content(1, 2**24 + 1)],
        406,
        "PRECONDITION_FAILED - message size 16777217 is larger than configured max size 16777216",
        (60, 40),
    ),
    "expiration": Mistake(
        [publish(1, "k", b"m", properties=b"\1\0\4soon")],
        406,
        "PRECONDITION_FAILED - invalid expiration 'soon': no_integer",
        (60, 40),
    ),
    "user of the message": Mistake(
        [publish(1, "k", b"m", properties=b"\0\x10\4anna")],
        406,
        "PRECONDITION_FAILED - user_id property set to 'anna' but authenticated user was 'guest'",
        (60, 40),
    ),
    "CC": Mistake(
        [publish(1, "k", b"m", properties=headers(b"\2CCS\0\0\0\1k"))],
        406,
        'PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"CC",longstr}',
        (60, 40),
    ),
    "commit without a transaction": Mistake(
        [Tx.Commit()], 406, "PRECONDITION_FAILED - channel is not transactional", (90, 20)
    ),
    "rollback without a transaction": Mistake(
        [Tx.Rollback()], 406, "PRECONDITION_FAILED - channel is not transactional", (90, 30)
    ),
    "transactions on a channel with confirms": Mistake(
        [commands.Confirm.Select(), Tx.Select()],
        406,
        "PRECONDITION_FAILED - cannot switch from confirm to tx mode",
        (90, 10),
    ),
    "confirms on a channel with transactions": Mistake(
        [Tx.Select(), commands.Confirm.Select()],
        406,
        "PRECONDITION_FAILED - cannot switch from tx to confirm mode",
        (85, 10),
    ),
    "ack of nothing": Mistake([Basic.Ack(1)], 406, "PRECONDITION_FAILED - unknown delivery tag 1", (60, 80)),
    "ack of tag 0": Mistake([Basic.Ack(0)], 406, "PRECONDITION_FAILED - unknown delivery tag 0", (60, 80)),
    "ack up to nothing": Mistake(
        [Basic.Ack(5, multiple=True)], 406, "PRECONDITION_FAILED - unknown delivery tag 5", (60, 80)
    ),
    "nack of nothing": Mistake(
        [Basic.Nack(7)], 406, "PRECONDITION_FAILED - unknown delivery tag 7", (60, 120)
    ),
    "reject of nothing": Mistake(
        [Basic.Reject(TAG_MAX)], 406, f"PRECONDITION_FAILED - unknown delivery tag {TAG_MAX}", (60, 90)
    ),
    "consumer beside an exclusive one": Mistake(
        [declared("e-mine"), Basic.Consume(queue="e-mine", exclusive=True), Basic.Consume(queue="e-mine")],
        403,
        f"ACCESS_REFUSED - queue 'e-mine' {HERE} in exclusive use",
        (60, 20),
    ),
    "get beside a single active consumer": Mistake(
        [
            quorum({"x-single-active-consumer": True}, queue="e-single"),
            Basic.Get(queue="e-single"),
        ],
        405,
        f"RESOURCE_LOCKED - cannot obtain access to locked queue 'e-single' {HERE}. basic.get operations are not "
        "supported by quorum queues with single active consumer",
        (60, 70),
    ),
    "argument of a consumer": Mistake(
        [declared("e-c"), Basic.Consume(queue="e-c", arguments={"x-priority": "high"})],
        406,
        f"PRECONDITION_FAILED - invalid arg 'x-priority' for queue 'e-c' {HERE}: \"expected integer, got longstr\"",
        (60, 20),
    ),
}

# The handshake: AMQP 0-9-1, 2.2.4


def introduced(mechanism: str, response: str) -> bytes:
    return marshal(0, RawClient.start_ok(response, mechanism))


def tuned(channel_max: int, frame_max: int) -> bytes:
    return marshal(0, Conn.TuneOk(channel_max, frame_max, 0))


RIGHT = introduced("PLAIN", "\0guest\0guest")
HANDSHAKE: dict[str, Mistake] = {
    "unknown mechanism": Mistake(
        [introduced("KERBEROS", "")],
        503,
        "COMMAND_INVALID - unknown authentication mechanism 'KERBEROS'",
        (10, 11),
    ),
    "mechanism for clients with certificates": Mistake(
        [introduced("EXTERNAL", "")],
        503,
        "COMMAND_INVALID - invalid authentication mechanism 'EXTERNAL'",
        (10, 11),
    ),
    "PLAIN response without parts": Mistake(
        [introduced("PLAIN", "guest guest")], 502, "SYNTAX_ERROR - response invalid", (10, 11)
    ),
    "PLAIN response with an authorization identity": Mistake(
        [introduced("PLAIN", "someone\0guest\0guest")], 502, "SYNTAX_ERROR - response invalid", (10, 11)
    ),
    "PLAIN response with too many parts": Mistake(
        [introduced("PLAIN", "\0guest\0guest\0")], 502, "SYNTAX_ERROR - response invalid", (10, 11)
    ),
    "AMQPLAIN response that is no table": Mistake(
        [introduced("AMQPLAIN", "\x05LOGIN")], 502, "SYNTAX_ERROR - response invalid", (10, 11)
    ),
    "AMQPLAIN response without a password": Mistake(
        [introduced("AMQPLAIN", "\x05LOGINS\0\0\0\x01a")],
        502,
        "SYNTAX_ERROR - AMQPLAIN auth info is missing LOGIN or PASSWORD field",
        (10, 11),
    ),
    "wrong password": Mistake(
        [introduced("PLAIN", "\0guest\0wrong")],
        403,
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. "
        "For details see the broker logfile.",
        (0, 0),
    ),
    "frame_max too small": Mistake(
        [RIGHT, tuned(2047, 4095)],
        530,
        "NOT_ALLOWED - negotiated frame_max = 4095 is lower than the minimum allowed value (4096)",
        (10, 30),
    ),
    "frame_max too large": Mistake(
        [RIGHT, tuned(2047, 200_000)],
        530,
        "NOT_ALLOWED - negotiated frame_max = 200000 is higher than the maximum allowed value (131072)",
        (10, 30),
    ),
    "no frame_max": Mistake(
        [RIGHT, tuned(2047, 0)],
        530,
        "NOT_ALLOWED - negotiated frame_max = 0 is higher than the maximum allowed value (131072)",
        (10, 30),
    ),
    "channel_max too large": Mistake(
        [RIGHT, tuned(2048, FRAME_MAX)],
        530,
        "NOT_ALLOWED - negotiated channel_max = 2048 is higher than the maximum allowed value (2047)",
        (10, 30),
    ),
    "no channel_max": Mistake(
        [RIGHT, tuned(0, FRAME_MAX)],
        530,
        "NOT_ALLOWED - negotiated channel_max = 0 (no limit) is higher than the maximum allowed value (2047)",
        (10, 30),
    ),
    "vhost that is not there": Mistake(
        [RIGHT, tuned(2047, FRAME_MAX), marshal(0, Conn.Open("elsewhere"))],
        530,
        "NOT_ALLOWED - vhost elsewhere not found",
        (10, 40),
    ),
    "method out of turn": Mistake(
        [marshal(0, Conn.Open("/"))],
        504,
        "CHANNEL_ERROR - unexpected method in connection state starting",
        (10, 40),
    ),
    "channel before the connection is open": Mistake(
        [RIGHT, tuned(2047, FRAME_MAX), marshal(1, Chan.Open())],
        505,
        "UNEXPECTED_FRAME - unexpected frame on channel 1 in connection state opening",
        (0, 0),
    ),
    "large frame before tuning": Mistake(
        [b"\1\0\0" + struct.pack(">I", 8193)],
        501,
        "FRAME_ERROR - type 1, all octets = <<>>: {frame_too_large,8193,8184}",
        (0, 0),
    ),
    "too much ahead of the answer": Mistake(
        [introduced("PLAIN", "\0guest\0wrong"), bytes(65_537)],
        506,
        "RESOURCE_ERROR - more than 65536 octets sent before the connection was open",
        (0, 0),
    ),
}


def every(*tables: dict[str, Mistake]) -> Any:
    mistakes = [pytest.param(mistake, id=name) for table in tables for name, mistake in table.items()]
    return pytest.mark.parametrize("mistake", mistakes)


def send_all(raw: RawClient, mistake: Mistake) -> None:
    raw.write(b"".join(part if isinstance(part, bytes) else marshal(1, part) for part in mistake.sent))


def expect_close(raw: RawClient, mistake: Mistake, channel: int = 0) -> None:
    close = raw.expect_close(mistake.code, mistake.text, channel=channel)
    assert (close.class_id, close.method_id) == mistake.method


def works(raw: RawClient, channel: int = 1) -> None:
    raw.call(channel, Basic.Qos(prefetch_count=1), Basic.QosOk)


@every(MISSING, DECLARATIONS, MESSAGES)
def test_channel_error_closes_only_its_channel(node: ClusterNode, raw: RawClient, mistake: Mistake) -> None:
    raw.open_channel(2)
    send_all(raw, mistake)
    expect_close(raw, mistake, channel=1)
    raw.send(1, Queue.Declare(queue="ignored-until-close-ok"), Chan.CloseOk())
    raw.open_channel(1)
    works(raw, 1)
    works(raw, 2)
    raw.close()


@every(FRAMES, METHODS, REFUSED_METHODS)
def test_connection_error_closes_only_its_connection(
    node: ClusterNode, raw: RawClient, mistake: Mistake
) -> None:
    with RawClient(node.amqp_port) as other:
        other.open_channel(1)
        send_all(raw, mistake)
        expect_close(raw, mistake)
        if (mistake.code, mistake.method) != (501, (0, 0)):  # otherwise no frame can be read
            raw.send(0, Conn.CloseOk())
            raw.expect_end()
        works(other)
        other.close()


@every(HANDSHAKE)
def test_handshake_error_ends_the_handshake(node: ClusterNode, mistake: Mistake) -> None:
    with RawClient(node.amqp_port, handshake=False) as client:
        client.write(HEADER)
        client.expect(Conn.Start)
        send_all(client, mistake)
        expect_close(client, mistake)
