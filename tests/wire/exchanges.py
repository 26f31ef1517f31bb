"""The exchanges whose octets RabbitMQ and a node must have in common.

Each exchange uses queue names of its own, because all exchanges of a run share a virtual host. Where answers can come
in different orders, the exchange has more steps.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from tests.wire.wire import (
    BODY,
    CLOSE,
    CONTENT_HEADER,
    HEADER,
    HEARTBEAT,
    METHOD,
    READABLE,
    READER,
    VHOST,
    Exchange,
    Other,
    Table,
    Wait,
    array,
    call,
    frame,
    long,
    open_channel,
    open_vhost,
    part,
    short,
    start_ok,
    table,
    tune_ok,
    u16,
    u32,
    u64,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.wire.wire import Step

QUORUM: Table = {"x-queue-type": "quorum"}
NO_NAME = short("")
CLOSE_OK = call("connection.close-ok", channel=0)
CHANNEL_CLOSE_OK = call("channel.close-ok")
CHANNEL_CLOSE = call("channel.close", u16(200), short("done"), u16(0), u16(0))


def bits(*flags: bool) -> bytes:
    return bytes([sum(flag << place for place, flag in enumerate(flags))])


def declare(
    queue: str | bytes,
    arguments: Table | None = None,
    *,
    passive: bool = False,
    durable: bool = False,
    exclusive: bool = False,
    auto_delete: bool = False,
    nowait: bool = False,
    channel: int = 1,
) -> bytes:
    flags = bits(passive, durable, exclusive, auto_delete, nowait)
    return call("queue.declare", u16(0), short(queue), flags, table(arguments), channel=channel)


def own(queue: str, arguments: Table | None = None) -> bytes:
    """Declare an exclusive classic queue."""
    return declare(queue, arguments, exclusive=True)


def quorum(queue: str | bytes, arguments: Table | None = None) -> bytes:
    return declare(queue, QUORUM | (arguments or {}), durable=True)


def bind(
    queue: str | bytes,
    exchange: str | bytes,
    key: str | bytes = "",
    arguments: Table | None = None,
    *,
    nowait: bool = False,
) -> bytes:
    names = short(queue) + short(exchange) + short(key)
    return call("queue.bind", u16(0), names, bits(nowait), table(arguments))


def unbind(queue: str, exchange: str, key: str | bytes = "", arguments: Table | None = None) -> bytes:
    return call("queue.unbind", u16(0), short(queue), short(exchange), short(key), table(arguments))


def purge(queue: str, *, nowait: bool = False) -> bytes:
    return call("queue.purge", u16(0), short(queue), bits(nowait))


def delete(queue: str, *, if_unused: bool = False, if_empty: bool = False, nowait: bool = False) -> bytes:
    return call("queue.delete", u16(0), short(queue), bits(if_unused, if_empty, nowait))


def declare_exchange(
    exchange: str | bytes,
    kind: str | bytes = "direct",
    arguments: Table | None = None,
    *,
    passive: bool = False,
    durable: bool = False,
    auto_delete: bool = False,
    internal: bool = False,
    nowait: bool = False,
) -> bytes:
    flags = bits(passive, durable, auto_delete, internal, nowait)
    return call("exchange.declare", u16(0), short(exchange), short(kind), flags, table(arguments))


def delete_exchange(exchange: str, *, if_unused: bool = False, nowait: bool = False) -> bytes:
    return call("exchange.delete", u16(0), short(exchange), bits(if_unused, nowait))


def bind_exchange(
    destination: str, source: str, key: str | bytes = "", *, undo: bool = False, nowait: bool = False
) -> bytes:
    names = short(destination) + short(source) + short(key)
    return call("exchange.unbind" if undo else "exchange.bind", u16(0), names, bits(nowait), table())


def qos(count: int, size: int = 0, *, of_all: bool = False) -> bytes:
    return call("basic.qos", u32(size), u16(count), bits(of_all))


def consume(
    queue: str,
    tag: str | bytes = "tag",
    arguments: Table | None = None,
    *,
    no_local: bool = False,
    no_ack: bool = False,
    exclusive: bool = False,
    nowait: bool = False,
    channel: int = 1,
) -> bytes:
    flags = bits(no_local, no_ack, exclusive, nowait)
    return call("basic.consume", u16(0), short(queue), short(tag), flags, table(arguments), channel=channel)


def cancel(tag: str, *, nowait: bool = False) -> bytes:
    return call("basic.cancel", short(tag), bits(nowait))


def get(queue: str | bytes, *, no_ack: bool = False, channel: int = 1) -> bytes:
    return call("basic.get", u16(0), short(queue), bits(no_ack), channel=channel)


def ack(tag: int, *, multiple: bool = False) -> bytes:
    return call("basic.ack", u64(tag), bits(multiple))


def nack(tag: int, *, multiple: bool = False, requeue: bool = True) -> bytes:
    return call("basic.nack", u64(tag), bits(multiple, requeue))


def reject(tag: int, *, requeue: bool = True) -> bytes:
    return call("basic.reject", u64(tag), bits(requeue))


def header(
    size: int, properties: bytes = b"\0\0", *, class_id: int = 60, weight: int = 0, channel: int = 1
) -> bytes:
    return frame(CONTENT_HEADER, channel, struct.pack(">HHQ", class_id, weight, size) + properties)


def method_of_publish(
    key: str | bytes, exchange: str | bytes = "", *, mandatory: bool = False, immediate: bool = False
) -> bytes:
    return call("basic.publish", u16(0), short(exchange), short(key), bits(mandatory, immediate))


def publish(
    key: str | bytes,
    body: bytes = b"m",
    properties: bytes = b"\0\0",
    *,
    exchange: str | bytes = "",
    mandatory: bool = False,
    immediate: bool = False,
) -> bytes:
    bodies = frame(BODY, 1, body) if body else b""
    method = method_of_publish(key, exchange, mandatory=mandatory, immediate=immediate)
    return method + header(len(body), properties) + bodies


def headers(fields: Table) -> bytes:
    """Properties that are nothing but headers."""
    return b"\x20\0" + table(fields)


SELECT = call("confirm.select", b"\0")
TX_SELECT, COMMIT, ROLLBACK = call("tx.select"), call("tx.commit"), call("tx.rollback")
RECOVER = call("basic.recover", b"\1")
ALL_PROPERTIES = (
    b"\xff\xfc"
    + short("text/plain")
    + short("utf-8")
    + table({"a": 1})
    + b"\2\5"  # delivery mode, priority
    + b"".join(map(short, ("correlation", "reply", "60000", "message")))
    + u64(1_700_000_000)
    + b"".join(map(short, ("type", "guest", "application", "cluster")))
)
ALL_FIELDS: Table = {
    "t": True,
    "b": b"b\xff",
    "B": b"B\xff",
    "s": b"s\xff\xfe",
    "u": b"u\xff\xfe",
    "I": -1,
    "i": b"i\xff\xff\xff\xfe",
    "l": b"l" + u64(2**40),
    "f": b"f\x3f\x80\0\0",
    "d": b"d\x3f\xf0\0\0\0\0\0\0",
    "D": b"D\2\0\0\1\x3a",
    "S": "text",
    "A": array(1, "two", True),
    "T": b"T" + u64(1_700_000_000),
    "F": {"inner": {"n": None}},
    "V": None,
    "x": b"x" + long(b"\0\xff"),
}

EXCHANGES: dict[str, Exchange] = {}


def exchange(
    name: str,
    *steps: Step,
    opened: bool = True,
    capabilities: Sequence[str] | None = None,
    **options: str | int,
) -> None:
    assert name not in EXCHANGES
    more = {} if capabilities is None else {"capabilities": capabilities}
    EXCHANGES[name] = Exchange(steps, opened=opened, **more, **options)  # pyright: ignore[reportArgumentType]


def greeting(name: str, *steps: Step) -> None:
    """An exchange that begins with the first octet."""
    exchange(name, *steps, opened=False)


def handshake(name: str, *steps: Step) -> None:
    """An exchange that begins behind connection.start."""
    exchange(name, *steps, opened=False, started=True)


# The handshake

TO_TUNE = (start_ok("\0guest\0guest"),)
TO_OPEN = (*TO_TUNE, tune_ok() + open_vhost())

greeting("protocol header of 0-9-1", HEADER)
greeting("protocol header of 0-9", b"AMQP\1\1\0\x09")
greeting("protocol header of 0-8", b"AMQP\1\1\x08\0")
greeting("protocol header of 0-9-0", b"AMQP\0\0\x09\0")
greeting("protocol header of 0-9-2", b"AMQP\0\0\x09\2")
greeting("protocol header of 0-10", b"AMQP\1\1\0\x0a")
greeting("protocol header of 1.0", b"AMQP\0\1\0\0")
greeting("protocol header of 1.0 with SASL", b"AMQP\3\1\0\0")
greeting("protocol header of 1.0 with TLS", b"AMQP\2\1\0\0")
greeting("request of HTTP in place of a header", b"GET / HTTP/1.1\r\n\r\n")
greeting("hello of TLS in place of a header", b"\x16\3\1\0\x05\1\0\0\1\0")
greeting("protocol header in pieces", b"AMQP", b"\0\0\x09", b"\1")
handshake("login with PLAIN", *TO_TUNE)
handshake(
    "login with AMQPLAIN",
    start_ok(table({"LOGIN": "guest", "PASSWORD": "guest"})[4:].decode("latin-1"), "AMQPLAIN"),
)
handshake("login with another locale", start_ok("\0guest\0guest", locale="de_DE"))
handshake("login without capabilities", start_ok("\0guest\0guest", capabilities=()))
handshake("unknown mechanism", start_ok("", "KERBEROS"), CLOSE_OK)
handshake("mechanism that is not offered", start_ok("", "EXTERNAL"), CLOSE_OK)
handshake("wrong password", start_ok("\0guest\0wrong"), CLOSE_OK)
handshake("unknown user", start_ok("\0nobody\0wrong"), CLOSE_OK)
handshake("malformed response of PLAIN", start_ok("guest guest"), CLOSE_OK)
handshake("malformed response of AMQPLAIN", start_ok("\5LOGIN", "AMQPLAIN"), CLOSE_OK)
handshake("response of AMQPLAIN without a password", start_ok("\5LOGINS\0\0\0\1a", "AMQPLAIN"), CLOSE_OK)
handshake("connection.open", *TO_OPEN, CLOSE)
handshake(
    "connection.open with a capability and insist",
    *TO_TUNE,
    tune_ok(),
    call("connection.open", short(VHOST), short("x"), b"\1", channel=0),
    CLOSE,
)
handshake("connection.open of a missing virtual host", *TO_TUNE, tune_ok() + open_vhost("nowhere"), CLOSE_OK)
handshake(
    "connection.open without permission",
    start_ok(f"\0{READER}\0{READER}"),
    tune_ok() + open_vhost("/"),
    CLOSE_OK,
)
handshake("frame_max too small", *TO_TUNE, tune_ok(frame_max=4095), CLOSE_OK)
handshake("frame_max too large", *TO_TUNE, tune_ok(frame_max=200_000), CLOSE_OK)
handshake("frame_max 0", *TO_TUNE, tune_ok(frame_max=0), CLOSE_OK)
handshake("channel_max too large", *TO_TUNE, tune_ok(channel_max=2048), CLOSE_OK)
handshake("channel_max 0", *TO_TUNE, tune_ok(channel_max=0), CLOSE_OK)
handshake("heartbeat of a large interval", *TO_TUNE, tune_ok(heartbeat=65535) + open_vhost(), CLOSE)
handshake("close before the login", CLOSE)
handshake("close before tuning", *TO_TUNE, CLOSE)
handshake("close before the virtual host", *TO_TUNE, tune_ok(), CLOSE)
handshake("close-ok before the login", CLOSE_OK)
handshake("connection.open before the login", open_vhost(), CLOSE_OK)
handshake("tune-ok before the login", tune_ok(), CLOSE_OK)
handshake("start-ok twice", *TO_TUNE, start_ok("\0guest\0guest"), CLOSE_OK)
handshake("channel.open before the login", open_channel(), CLOSE_OK)
handshake("channel.open before the virtual host", *TO_TUNE, tune_ok() + open_channel(), CLOSE_OK)
handshake("queue.declare on channel 0 before the login", declare("q", channel=0), CLOSE_OK)
handshake("unknown method before the login", frame(METHOD, 0, b"\1\2\3\4"), CLOSE_OK)
handshake("large frame before the login", b"\1\0\0" + u32(8193), CLOSE_OK)
handshake("content before the login", header(0), CLOSE_OK)
handshake("heartbeat before the login", frame(HEARTBEAT, 0, b"") + start_ok("\0guest\0guest"))

# The connection

exchange("heartbeats of the broker", Wait(1.2), heartbeat=1)
exchange("heartbeat of the client", frame(HEARTBEAT, 0, b""), qos(0))
exchange("heartbeat with a payload", frame(HEARTBEAT, 0, b"x"))
exchange("heartbeat on a channel", frame(HEARTBEAT, 1, b""), CLOSE_OK)
exchange(
    "connection.close with a code and a method",
    call("connection.close", u16(320), short("why"), u16(60), u16(40), channel=0),
    closes=True,
)
exchange(
    "connection.close with unanswered work",
    own("close-behind-work") + publish("close-behind-work") + CLOSE,
    closes=True,
)
exchange("connection.close-ok of an open connection", CLOSE_OK)
exchange(
    "connection.update-secret", call("connection.update-secret", long("guest"), short("renewed"), channel=0)
)
exchange("connection.secure-ok", call("connection.secure-ok", long("x"), channel=0), CLOSE_OK)
exchange("connection.start-ok of an open connection", start_ok("\0guest\0guest"), CLOSE_OK)
exchange("connection.open of an open connection", open_vhost(), CLOSE_OK)
exchange(
    "connection.start of a client",
    call("connection.start", b"\0\x09", table(), long("PLAIN"), long("en_US"), channel=0),
    CLOSE_OK,
)
exchange("connection.blocked of a client", call("connection.blocked", short("why"), channel=0), CLOSE_OK)
exchange(
    "connection.close on a channel",
    call("connection.close", u16(200), short("bye"), u16(0), u16(0)),
    CLOSE_OK,
)
exchange("connection.close-ok on a channel", call("connection.close-ok"), CLOSE_OK)
exchange("channel.open on channel 0", open_channel(0), CLOSE_OK)
exchange("queue.declare on channel 0", declare("q", channel=0), CLOSE_OK)
exchange(
    "basic.publish on channel 0",
    call("basic.publish", u16(0), short(""), short("k"), b"\0", channel=0),
    CLOSE_OK,
)
exchange("content on channel 0", header(0, channel=0), CLOSE_OK)
exchange("unknown class on channel 0", frame(METHOD, 0, b"\1\2\3\4"), CLOSE_OK)
exchange("unknown class on a channel", frame(METHOD, 1, b"\1\2\3\4"), CLOSE_OK)
exchange("unknown method of a class", frame(METHOD, 1, u16(50) + u16(99)), CLOSE_OK)
exchange("unknown class on a missing channel", frame(METHOD, 7, b"\1\2\3\4"), CLOSE_OK)
exchange("method frame without a method", frame(METHOD, 1, b"\0"), CLOSE_OK)
exchange("method frame of no octets", frame(METHOD, 1, b""), CLOSE_OK)
exchange("arguments that are cut off", frame(METHOD, 1, u16(50) + u16(10) + b"\0\0\xff"), CLOSE_OK)
exchange("arguments with octets behind them", call("basic.qos", u32(0), u16(1), b"\0", b"more"), CLOSE_OK)
exchange(
    "table of an unknown type",
    call("queue.declare", u16(0), short("q"), b"\0", long(short("k") + b"?x")),
    CLOSE_OK,
)

for _name in (
    "channel.open-ok",
    "basic.deliver",
    "basic.get-ok",
    "basic.get-empty",
    "basic.return",
    "queue.declare-ok",
    "exchange.declare-ok",
    "basic.consume-ok",
    "basic.qos-ok",
    "confirm.select-ok",
    "tx.select-ok",
    "access.request-ok",
    "channel.flow-ok",
    "basic.cancel-ok",
):
    _arguments = {
        "channel.open-ok": long(""),
        "basic.deliver": short("t") + u64(1) + b"\0" + short("") + short(""),
        "basic.get-ok": u64(1) + b"\0" + short("") + short("") + u32(0),
        "basic.get-empty": short(""),
        "basic.return": u16(312) + short("NO_ROUTE") + short("") + short(""),
        "queue.declare-ok": short("q") + u32(0) + u32(0),
        "basic.consume-ok": short("t"),
        "access.request-ok": u16(1),
        "channel.flow-ok": b"\1",
        "basic.cancel-ok": short("t"),
    }
    exchange(f"{_name} of a client", call(_name, _arguments.get(_name, b"")) + qos(1), CLOSE_OK)

# Frames

exchange("unknown kind of frame", frame(7, 1, b""), CLOSE_OK)
exchange("wrong end of a frame", b"\1\0\1\0\0\0\4\0\1\2\3\4", CLOSE_OK)
exchange("wrong end of a long frame", b"\3\0\1\0\0\0\x14" + bytes(20) + b"\xcd", CLOSE_OK)
exchange("frame above frame_max", b"\3\0\1" + u32(131_073), CLOSE_OK)
exchange(
    "frame as large as frame_max without its envelope",
    own("full-frames") + method_of_publish("full-frames") + header(131_072) + frame(BODY, 1, b"x" * 131_072),
    get("full-frames"),
)
exchange("frame above a small frame_max", b"\3\0\1" + u32(4097), CLOSE_OK, frame_max=4096)
exchange("content header without a method", header(0), CLOSE_OK)
exchange("body without a method", frame(BODY, 1, b"m"), CLOSE_OK)
exchange("content on a missing channel", header(0, channel=7), CLOSE_OK)
exchange("method in place of a content header", method_of_publish("k") * 2, CLOSE_OK)
exchange("body in place of a content header", method_of_publish("k") + frame(BODY, 1, b"m"), CLOSE_OK)
exchange("method in place of a body", method_of_publish("k") + header(4) + qos(1), CLOSE_OK)
exchange("second content header", method_of_publish("k") + header(4) + header(4), CLOSE_OK)
exchange("content header of another class", method_of_publish("k") + header(4, class_id=50), CLOSE_OK)
exchange("content header with a weight", method_of_publish("k") + header(4, weight=1), CLOSE_OK)
exchange(
    "content header that is cut off", method_of_publish("k") + frame(CONTENT_HEADER, 1, bytes(5)), CLOSE_OK
)
exchange(
    "properties that are cut off",
    method_of_publish("k") + header(1, b"\x80\0") + frame(BODY, 1, b"m"),
    CLOSE_OK,
)
exchange(
    "body above its announced size", method_of_publish("k") + header(4) + frame(BODY, 1, b"12345"), CLOSE_OK
)
exchange("message too large", method_of_publish("k") + header(2**24 + 1), CHANNEL_CLOSE_OK)
exchange("message too large in a long number", method_of_publish("k") + header(2**63), CHANNEL_CLOSE_OK)

# Channels

exchange("channel.open", open_channel(2))
exchange("channel.open with a name", call("channel.open", short("x" * 200), channel=2))
exchange("channel.open of the highest number", open_channel(2047))
exchange("channel.open above the highest number", open_channel(2048), CLOSE_OK)
exchange("channel.open above a low channel_max", open_channel(2), CLOSE_OK, channel_max=1)
exchange("second channel.open", open_channel(), CLOSE_OK)
exchange("channel.close", CHANNEL_CLOSE, open_channel())
exchange(
    "channel.close with a code and a method", call("channel.close", u16(406), short("why"), u16(60), u16(80))
)
exchange("channel.close-ok of an open channel", CHANNEL_CLOSE_OK, CLOSE_OK)
exchange("method on a channel after channel.close", CHANNEL_CLOSE, qos(1), CLOSE_OK)
exchange("method on a missing channel", call("basic.qos", u32(0), u16(1), b"\0", channel=7), CLOSE_OK)
exchange(
    "channel.close on a missing channel",
    call("channel.close", u16(200), short(""), u16(0), u16(0), channel=7),
    CLOSE_OK,
)
exchange(
    "basic.publish on a missing channel",
    call("basic.publish", u16(0), short(""), short("k"), b"\0", channel=7),
    CLOSE_OK,
)
exchange("basic.ack on a missing channel", call("basic.ack", u64(1), b"\0", channel=7), CLOSE_OK)
exchange("channel.flow active", call("channel.flow", b"\1"))
exchange("channel.flow inactive", call("channel.flow", b"\0"), CLOSE_OK)
exchange("access.request", call("access.request", short("/"), b"\x1f"))

_FAILED = declare("nowhere", passive=True)
exchange("channel closed by the broker and opened again", _FAILED, CHANNEL_CLOSE_OK + open_channel(), qos(1))
exchange(
    "methods before the close-ok of the client",
    _FAILED,
    qos(1) + declare("q") + publish("q"),
    CHANNEL_CLOSE_OK + open_channel(),
)
exchange(
    "channel.open before the close-ok of the client",
    _FAILED,
    open_channel(),
    CHANNEL_CLOSE_OK + open_channel(),
)
exchange("channel.close of both sides", _FAILED, CHANNEL_CLOSE, CHANNEL_CLOSE_OK + open_channel())
exchange("channel.close of both sides at once", _FAILED + CHANNEL_CLOSE, CHANNEL_CLOSE_OK + open_channel())
exchange("close-ok of the client twice", _FAILED, CHANNEL_CLOSE_OK, CHANNEL_CLOSE_OK, CLOSE_OK)
exchange("method after the close-ok of the client", _FAILED, CHANNEL_CLOSE_OK, qos(1), CLOSE_OK)
exchange("connection.close before the close-ok of the client", _FAILED)
exchange("second error before the close-ok of the client", _FAILED + _FAILED, CHANNEL_CLOSE_OK)
exchange("frames behind an error of the connection", open_channel() + qos(1) + declare("q"), qos(1), CLOSE_OK)
exchange("connection.close of both sides", open_channel(), CLOSE, CLOSE_OK)

# Exchanges

for _kind in ("direct", "fanout", "topic", "headers"):
    exchange(
        f"exchange.declare of type {_kind}",
        declare_exchange(f"kind-{_kind}", _kind),
        declare_exchange(f"kind-{_kind}", _kind, passive=True),
        delete_exchange(f"kind-{_kind}"),
    )
exchange(
    "exchange.declare without answers",
    declare_exchange("x-nowait", nowait=True) + declare_exchange("x-nowait", passive=True),
    delete_exchange("x-nowait", nowait=True) + declare_exchange("x-nowait", passive=True),
)
exchange("exchange.declare of a predeclared exchange", declare_exchange("amq.topic", "topic", durable=True))
exchange("exchange.declare of the default exchange", declare_exchange("", "direct", durable=True))
exchange("passive exchange.declare of the default exchange", declare_exchange("", "direct", passive=True))
exchange("exchange.declare of a reserved name", declare_exchange("amq.mine"))
exchange("passive exchange.declare of a missing exchange", declare_exchange("x-missing", passive=True))
exchange("passive exchange.declare of another type", declare_exchange("amq.direct", "fanout", passive=True))
exchange("exchange.declare of an unknown type", declare_exchange("x-unknown", "round-robin"), CLOSE_OK)
exchange("exchange.declare of an empty type", declare_exchange("x-untyped", ""), CLOSE_OK)
exchange("exchange.declare with another type", declare_exchange("amq.direct", "fanout", durable=True))
exchange("exchange.declare with another durable", declare_exchange("amq.direct", "direct"))
exchange(
    "exchange.declare with another auto_delete",
    declare_exchange("amq.direct", "direct", durable=True, auto_delete=True),
)
exchange(
    "exchange.declare with another internal",
    declare_exchange("amq.direct", "direct", durable=True, internal=True),
)
exchange(
    "exchange.declare with another alternate exchange",
    declare_exchange("x-alternate", arguments={"alternate-exchange": "amq.fanout"}),
    declare_exchange("x-alternate", arguments={"alternate-exchange": "amq.topic"}),
)
exchange(
    "exchange.declare without its alternate exchange",
    declare_exchange("x-alternate-2", arguments={"alternate-exchange": "amq.fanout"}),
    declare_exchange("x-alternate-2"),
)
exchange(
    "exchange.declare with a number as alternate exchange",
    declare_exchange("x-alternate-3", arguments={"alternate-exchange": 1}),
)
exchange("exchange.delete of a missing exchange", delete_exchange("x-missing"))
exchange("exchange.delete of a predeclared exchange", delete_exchange("amq.direct"))
exchange("exchange.delete of the default exchange", delete_exchange(""))
exchange(
    "exchange.delete of an exchange in use",
    declare_exchange("x-used", auto_delete=True) + own("x-uses") + bind("x-uses", "x-used"),
    delete_exchange("x-used", if_unused=True),
)
exchange(
    "exchange.delete of an unused exchange",
    declare_exchange("x-unused"),
    delete_exchange("x-unused", if_unused=True),
)
exchange(
    "exchange.bind and unbind",
    declare_exchange("x-source") + declare_exchange("x-target"),
    bind_exchange("x-target", "x-source", "k"),
    bind_exchange("x-target", "x-source", "k", undo=True),
    bind_exchange("x-target", "x-source", "k", undo=True),
    bind_exchange("x-target", "x-source", "k", nowait=True) + qos(1),
)
exchange("exchange.bind of a missing source", bind_exchange("amq.direct", "x-missing"))
exchange("exchange.bind of a missing destination", bind_exchange("x-missing", "amq.direct"))
exchange("exchange.bind of missing ends", bind_exchange("x-missing-1", "x-missing-2"))
exchange("exchange.bind of the default exchange", bind_exchange("amq.direct", ""))
exchange("exchange.bind to the default exchange", bind_exchange("", "amq.direct"))
exchange("exchange.unbind of a missing source", bind_exchange("amq.direct", "x-missing", undo=True))
exchange("exchange.unbind of a missing destination", bind_exchange("x-missing", "amq.direct", undo=True))
exchange(
    "name with a line break",
    declare_exchange("x-line\nbreak"),
    declare_exchange("x-line\nbreak", passive=True),
)

# Queues

exchange(
    "queue.declare of a classic queue",
    declare("q-classic", auto_delete=True),
    declare("q-classic", passive=True),
    declare("q-classic", auto_delete=True),
    delete("q-classic"),
)
exchange(
    "queue.declare of a quorum queue",
    quorum("q-quorum"),
    declare("q-quorum", passive=True),
    quorum("q-quorum"),
    delete("q-quorum"),
)
exchange("queue.declare of an exclusive queue", own("q-own"), own("q-own"), declare("q-own", passive=True))
exchange(
    "queue.declare without a name",
    own(""),
    declare("", passive=True),
    bind("", "amq.direct"),
    bind("", "amq.direct", "k"),
    get(""),
    purge(""),
    delete(""),
)
exchange(
    "queue.declare without answers",
    declare("q-nowait", exclusive=True, nowait=True) + declare("q-nowait", passive=True),
)
exchange(
    "passive queue.declare that counts",
    own("q-counts") + publish("q-counts") * 3,
    declare("q-counts", passive=True),
    qos(1),
    consume("q-counts"),
    declare("q-counts", passive=True),
)
exchange("passive queue.declare of a missing queue", declare("q-missing", passive=True), CHANNEL_CLOSE_OK)
exchange(
    "passive queue.declare of a missing queue without answers",
    declare("q-missing", passive=True, nowait=True),
    CHANNEL_CLOSE_OK,
)
exchange("passive queue.declare without a name", declare("", passive=True), CHANNEL_CLOSE_OK)
exchange("queue.declare of a reserved name", declare("amq.mine"))
exchange(
    "queue.declare of a locked queue",
    Other(own("q-locked")),
    own("q-locked"),
    CHANNEL_CLOSE_OK + open_channel(),
    declare("q-locked", passive=True),
    CHANNEL_CLOSE_OK + open_channel(),
    declare("q-locked"),
)
for _name, _use in {
    "get": get,
    "consume": consume,
    "bind": lambda queue: bind(queue, "amq.direct"),
    "unbind": lambda queue: unbind(queue, "amq.direct"),
    "purge": purge,
    "delete": delete,
}.items():
    exchange(f"{_name} of a locked queue", Other(own(f"q-locked-{_name}")), _use(f"q-locked-{_name}"))

for _name, _first, _second in (
    ("durable", declare("q-differs-1", auto_delete=True), declare("q-differs-1", durable=True)),
    ("auto_delete", own("q-differs-2"), declare("q-differs-2", exclusive=True, auto_delete=True)),
    ("exclusive", declare("q-differs-3", durable=True), declare("q-differs-3", durable=True, exclusive=True)),
    ("type", declare("q-differs-4", durable=True), quorum("q-differs-4")),
    ("number", own("q-differs-5", {"x-expires": 60_000}), own("q-differs-5", {"x-expires": 60_001})),
    (
        "text",
        own("q-differs-6", {"x-overflow": "drop-head"}),
        own("q-differs-6", {"x-overflow": "reject-publish"}),
    ),
    ("missing argument", own("q-differs-7", {"x-max-length": 5}), own("q-differs-7")),
    ("added argument", own("q-differs-8"), own("q-differs-8", {"x-message-ttl": 1000})),
    (
        "bool",
        own("q-differs-9", {"x-single-active-consumer": True}),
        own("q-differs-9", {"x-single-active-consumer": False}),
    ),
    (
        "dead-letter exchange",
        own("q-differs-10", {"x-dead-letter-exchange": "a"}),
        own("q-differs-10", {"x-dead-letter-exchange": "b"}),
    ),
    (
        "dead-letter routing key",
        own("q-differs-11", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a"}),
        own("q-differs-11", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"}),
    ),
    ("priority", own("q-differs-12", {"x-max-priority": 3}), own("q-differs-12", {"x-max-priority": 4})),
    (
        "kind of number",
        own("q-differs-13", {"x-expires": 60_000}),
        own("q-differs-13", {"x-expires": b"l" + u64(60_000)}),
    ),
    ("unknown argument", own("q-differs-14", {"x-mine": 1}), own("q-differs-14", {"x-mine": 2})),
    (
        "max length in bytes",
        own("q-differs-15", {"x-max-length-bytes": 100}),
        own("q-differs-15", {"x-max-length-bytes": 200}),
    ),
    (
        "delivery limit",
        quorum("q-differs-16", {"x-delivery-limit": 5}),
        quorum("q-differs-16", {"x-delivery-limit": 6}),
    ),
    (
        "dead-letter strategy",
        quorum("q-differs-17", {"x-dead-letter-strategy": "at-most-once"}),
        quorum("q-differs-17", {"x-dead-letter-strategy": "at-least-once"}),
    ),
    ("queue mode", own("q-differs-18", {"x-queue-mode": "lazy"}), own("q-differs-18")),
    (
        "queue version",
        own("q-differs-19", {"x-queue-version": 1}),
        own("q-differs-19", {"x-queue-version": 2}),
    ),
    (
        "initial group size",
        quorum("q-differs-20", {"x-quorum-initial-group-size": 1}),
        quorum("q-differs-20", {"x-quorum-initial-group-size": 3}),
    ),
):
    exchange(f"queue.declare with another {_name}", _first, _second)

INVALID: tuple[Table, ...] = (
    {"x-expires": 0},
    {"x-expires": "soon"},
    {"x-expires": -1},
    {"x-message-ttl": -1},
    {"x-message-ttl": "soon"},
    {"x-max-length": -1},
    {"x-max-length": True},
    {"x-max-length-bytes": -1},
    {"x-max-priority": -1},
    {"x-max-priority": 300},
    {"x-max-priority": "high"},
    {"x-overflow": "drop-tail"},
    {"x-overflow": 1},
    {"x-dead-letter-exchange": 1},
    {"x-dead-letter-routing-key": "k"},
    {"x-dead-letter-routing-key": 1},
    {"x-single-active-consumer": "true"},
    {"x-queue-mode": "busy"},
    {"x-queue-version": 3},
    {"x-queue-type": "heap"},
    {"x-queue-type": 1},
    {"x-queue-leader-locator": "nearby"},
    {"x-queue-master-locator": 1},
    {"x-consumer-timeout": -1},
    {"x-delivery-limit": 5},
    {"x-dead-letter-strategy": "at-least-once"},
    {"x-quorum-initial-group-size": 3},
    {"x-max-in-memory-length": 5},
    {"x-max-age": "1D"},
)
for _number, _invalid in enumerate(INVALID):
    [(_key, _value)] = _invalid.items()
    exchange(f"classic queue with {_key} {_value}", own(f"q-invalid-{_number}", _invalid))
INVALID_QUORUM: tuple[Table, ...] = (
    {"x-expires": 0},
    {"x-message-ttl": -1},
    {"x-max-length": -1},
    {"x-max-priority": 5},
    {"x-overflow": "reject-publish-dlx"},
    {"x-overflow": "drop-tail"},
    {"x-delivery-limit": "five"},
    {"x-dead-letter-strategy": "at-some-time"},
    {"x-single-active-consumer": 1},
    {"x-queue-mode": "lazy"},
    {"x-queue-version": 2},
    {"x-quorum-initial-group-size": 0},
    {"x-quorum-initial-group-size": "one"},
    {"x-queue-leader-locator": "nearby"},
    {"x-max-age": "1D"},
    {"x-stream-max-segment-size-bytes": 1000},
)
for _number, _invalid in enumerate(INVALID_QUORUM):
    [(_key, _value)] = _invalid.items()
    exchange(f"quorum queue with {_key} {_value}", quorum(f"q-invalid-quorum-{_number}", _invalid))
exchange("quorum queue that is not durable", declare("q-transient-quorum", QUORUM))
exchange(
    "quorum queue that is exclusive", declare("q-exclusive-quorum", QUORUM, durable=True, exclusive=True)
)
exchange(
    "quorum queue that deletes itself",
    declare("q-auto-delete-quorum", QUORUM, durable=True, auto_delete=True),
)

exchange(
    "queue.bind and unbind",
    own("q-bound"),
    bind("q-bound", "amq.topic", "a.*"),
    bind("q-bound", "amq.topic", "a.*"),
    unbind("q-bound", "amq.topic", "a.*"),
    unbind("q-bound", "amq.topic", "a.*"),
    bind("q-bound", "amq.topic", "b", nowait=True) + qos(1),
    bind("q-bound", "amq.topic", "c", {"x": "y"}),
)
exchange("queue.bind of a missing queue", bind("q-missing", "amq.direct"))
exchange("queue.bind to a missing exchange", own("q-unbound"), bind("q-unbound", "x-missing"))
exchange("queue.bind of missing ends", bind("q-missing", "x-missing"))
exchange("queue.bind to the default exchange", own("q-unbound-2"), bind("q-unbound-2", "", "k"))
exchange("queue.bind without a queue", bind("", "amq.direct"))
exchange(
    "queue.bind with a wrong x-match",
    own("q-unbound-3"),
    bind("q-unbound-3", "amq.headers", "", {"x-match": "some"}),
)
exchange(
    "queue.bind with a number as x-match",
    own("q-unbound-4"),
    bind("q-unbound-4", "amq.headers", "", {"x-match": 1}),
)
exchange("queue.unbind of a missing queue", unbind("q-missing", "amq.direct"))
exchange("queue.unbind from a missing exchange", own("q-unbound-5"), unbind("q-unbound-5", "x-missing"))
exchange(
    "queue.unbind from the default exchange", own("q-unbound-6"), unbind("q-unbound-6", "", "q-unbound-6")
)
exchange(
    "queue.purge",
    own("q-purged") + publish("q-purged") * 2,
    purge("q-purged"),
    purge("q-purged"),
    purge("q-purged", nowait=True) + qos(1),
)
exchange("queue.purge of a missing queue", purge("q-missing"))
exchange("queue.purge without a queue", purge(""))
exchange(
    "queue.delete",
    own("q-deleted") + publish("q-deleted"),
    delete("q-deleted"),
    delete("q-deleted"),
    delete("q-deleted", nowait=True) + qos(1),
)
exchange("queue.delete without a queue", delete(""))
exchange(
    "queue.delete of a queue with messages",
    own("q-full") + publish("q-full"),
    delete("q-full", if_empty=True),
)
exchange("queue.delete of a queue in use", own("q-used"), consume("q-used"), delete("q-used", if_unused=True))
exchange(
    "queue.delete of an empty and unused queue",
    own("q-empty"),
    delete("q-empty", if_empty=True, if_unused=True),
)

# Consumers

for _kind, _declare in (("classic", own), ("quorum", quorum)):
    _q = f"c-{_kind}"
    exchange(
        f"delivery of a {_kind} queue",
        _declare(f"{_q}-1"),
        consume(f"{_q}-1"),
        publish(f"{_q}-1"),
        ack(1),
        publish(f"{_q}-1", b""),
        publish(f"{_q}-1", b"x" * 300, ALL_PROPERTIES),
        ack(0, multiple=True),
    )
    exchange(
        f"redelivery of a {_kind} queue",
        _declare(f"{_q}-2"),
        publish(f"{_q}-2"),
        get(f"{_q}-2"),
        nack(1),
        get(f"{_q}-2"),
        reject(2),
        get(f"{_q}-2"),
        nack(3, multiple=True),
        consume(f"{_q}-2"),
        RECOVER,
        cancel("tag"),
    )
    exchange(
        f"redelivery of all properties of a {_kind} queue",
        _declare(f"{_q}-3"),
        publish(f"{_q}-3", b"m", ALL_PROPERTIES),
        get(f"{_q}-3"),
        nack(1),
        get(f"{_q}-3"),
        nack(2),
        get(f"{_q}-3"),
    )
    exchange(
        f"redelivery of headers of all types of a {_kind} queue",
        _declare(f"{_q}-4"),
        publish(f"{_q}-4", b"m", headers(ALL_FIELDS)),
        get(f"{_q}-4"),
        nack(1),
        get(f"{_q}-4"),
    )
    exchange(
        f"redelivery of an empty table of a {_kind} queue",
        _declare(f"{_q}-5"),
        publish(f"{_q}-5", b"m", headers({})),
        get(f"{_q}-5"),
        nack(1),
        get(f"{_q}-5"),
    )
    exchange(
        f"redelivery of a count of the client of a {_kind} queue",
        _declare(f"{_q}-6"),
        publish(f"{_q}-6", b"m", headers({"x-delivery-count": "mine", "z": 1})),
        get(f"{_q}-6"),
        nack(1),
        get(f"{_q}-6"),
    )
    exchange(
        f"redelivery after channel.close of a {_kind} queue",
        _declare(f"{_q}-7"),
        publish(f"{_q}-7"),
        get(f"{_q}-7"),
        CHANNEL_CLOSE,
        open_channel(),
        get(f"{_q}-7"),
    )
    exchange(
        f"basic.recover of a {_kind} queue",
        _declare(f"{_q}-8"),
        publish(f"{_q}-8"),
        get(f"{_q}-8"),
        RECOVER,
        get(f"{_q}-8"),
    )
    exchange(
        f"deletion of a {_kind} queue with a consumer",
        _declare(f"{_q}-9"),
        consume(f"{_q}-9"),
        delete(f"{_q}-9"),
    )
    exchange(
        f"deletion of a {_kind} queue with a consumer that is not told",
        _declare(f"{_q}-10"),
        consume(f"{_q}-10"),
        delete(f"{_q}-10"),
        capabilities=(),
    )
    exchange(
        f"basic.get of a {_kind} queue",
        _declare(f"{_q}-11"),
        get(f"{_q}-11"),
        publish(f"{_q}-11") * 2,
        get(f"{_q}-11"),
        get(f"{_q}-11", no_ack=True),
        get(f"{_q}-11", no_ack=True),
    )
    exchange(
        f"delivery without acknowledgements of a {_kind} queue",
        _declare(f"{_q}-12"),
        consume(f"{_q}-12", no_ack=True),
        publish(f"{_q}-12"),
        publish(f"{_q}-12"),
    )
    exchange(
        f"message of several frames of a {_kind} queue",
        _declare(f"{_q}-13"),
        method_of_publish(f"{_q}-13") + header(10) + frame(BODY, 1, b"abc") + frame(BODY, 1, b"defghij"),
        get(f"{_q}-13"),
    )
    exchange(
        f"message in small frames of a {_kind} queue",
        _declare(f"{_q}-14"),
        method_of_publish(f"{_q}-14")
        + header(10_000)
        + frame(BODY, 1, b"a" * 4088)
        + frame(BODY, 1, b"b" * 4088)
        + frame(BODY, 1, b"c" * 1824),
        get(f"{_q}-14"),
        frame_max=4096,
    )
    exchange(
        f"large message to a small frame_max of a {_kind} queue",
        declare(f"{_q}-15", {"x-queue-type": _kind}, durable=True),
        Other(SELECT),
        Other(publish(f"{_q}-15", b"x" * 10_000)),
        get(f"{_q}-15"),
        frame_max=4096,
    )
    exchange(
        f"content header above a small frame_max of a {_kind} queue",
        declare(f"{_q}-16", {"x-queue-type": _kind}, durable=True),
        Other(SELECT),
        Other(publish(f"{_q}-16", b"m", headers({"a": "x" * 5000}))),
        get(f"{_q}-16"),
        frame_max=4096,
    )
    exchange(
        f"names of a {_kind} queue",
        _declare(f"{_q}-17"),
        bind(f"{_q}-17", "amq.topic", "a.b.*"),
        publish("a.b.\u00fc", exchange="amq.topic"),
        get(f"{_q}-17"),
        consume(f"{_q}-17", "t\u00e4g"),
        nack(1),
    )
    exchange(
        f"priorities of consumers of a {_kind} queue",
        _declare(f"{_q}-18"),
        consume(f"{_q}-18", "low", {"x-priority": -1}),
        consume(f"{_q}-18", "high", {"x-priority": b"b\7"}),
        publish(f"{_q}-18"),
    )
    exchange(
        f"wrong priority of a consumer of a {_kind} queue",
        _declare(f"{_q}-19"),
        consume(f"{_q}-19", "t", {"x-priority": "high"}),
    )
    exchange(
        f"single active consumer of a {_kind} queue",
        _declare(f"{_q}-20", {"x-single-active-consumer": True}),
        consume(f"{_q}-20", "one"),
        consume(f"{_q}-20", "two"),
        publish(f"{_q}-20"),
        cancel("one"),
        publish(f"{_q}-20"),
        ack(1),
    )
    exchange(
        f"basic.get beside a single active consumer of a {_kind} queue",
        _declare(f"{_q}-21", {"x-single-active-consumer": True}),
        get(f"{_q}-21"),
    )
    exchange(
        f"exclusive consumer of a {_kind} queue",
        _declare(f"{_q}-22"),
        consume(f"{_q}-22", "one", exclusive=True),
        consume(f"{_q}-22", "two"),
    )
    exchange(
        f"exclusive consumer beside another of a {_kind} queue",
        _declare(f"{_q}-23"),
        consume(f"{_q}-23", "one"),
        consume(f"{_q}-23", "two", exclusive=True),
    )
    exchange(
        f"prefetch of all consumers of a {_kind} queue",
        _declare(f"{_q}-24"),
        qos(1, of_all=True),
        consume(f"{_q}-24"),
        publish(f"{_q}-24") * 2,
        ack(1),
    )

exchange("basic.qos", qos(10), qos(0))
exchange("basic.qos with a size", qos(1, 1000), CLOSE_OK)
exchange("basic.qos of all consumers", qos(10, of_all=True))
exchange("basic.consume without a tag", own("c-tags"), consume("c-tags", ""), publish("c-tags"))
exchange("basic.consume with a used tag", own("c-used"), consume("c-used"), consume("c-used"), CLOSE_OK)
exchange("basic.consume of a missing queue", consume("q-missing"))
exchange("basic.consume without a queue", consume(""))
exchange(
    "basic.consume without answers",
    own("c-nowait"),
    consume("c-nowait", nowait=True) + qos(1),
    publish("c-nowait"),
)
exchange(
    "basic.consume that wants nothing of its own",
    own("c-local"),
    consume("c-local", no_local=True),
    publish("c-local"),
)
exchange(
    "basic.cancel",
    own("c-cancel"),
    consume("c-cancel"),
    cancel("tag"),
    cancel("tag"),
    cancel("other"),
    consume("c-cancel"),
    cancel("tag", nowait=True) + qos(1),
)
exchange("basic.get of a missing queue", get("q-missing"))
exchange("basic.get without a queue", get(""))
exchange("basic.recover without requeueing", call("basic.recover", b"\0"), CLOSE_OK)
exchange(
    "basic.recover-async",
    own("c-async"),
    publish("c-async"),
    get("c-async"),
    call("basic.recover-async", b"\1") + get("c-async"),
)
exchange("basic.recover-async without requeueing", call("basic.recover-async", b"\0"), CLOSE_OK)
exchange("acknowledgement of an unknown tag", ack(1))
exchange("acknowledgement of tag 0", ack(0))
exchange("acknowledgement of all without any", ack(0, multiple=True) + qos(1))
exchange("acknowledgement up to an unknown tag", ack(7, multiple=True))
exchange("acknowledgement twice", own("c-twice"), publish("c-twice"), get("c-twice"), ack(1), ack(1))
exchange("basic.nack of an unknown tag", nack(1))
exchange("basic.reject of an unknown tag", reject(2**62))

# Publishing

exchange(
    "message that is returned",
    publish("nowhere", b"body", ALL_PROPERTIES, exchange="amq.direct", mandatory=True),
)
exchange("message without a body that is returned", publish("nowhere", b"", mandatory=True))
exchange(
    "message that is returned and confirmed", SELECT, publish("nowhere", mandatory=True, exchange="amq.topic")
)
exchange("immediate message", publish("k", immediate=True), CLOSE_OK)
exchange("message to a missing exchange", publish("k", exchange="x-missing"))
exchange("message to a missing exchange with confirms", SELECT, publish("k", exchange="x-missing"))
exchange(
    "message to an internal exchange",
    declare_exchange("x-internal", internal=True),
    publish("k", exchange="x-internal"),
)
exchange("message with a wrong expiration", publish("k", b"m", b"\1\0" + short("soon")))
exchange("message with a negative expiration", publish("k", b"m", b"\1\0" + short("-1")))
exchange("message with an empty expiration", publish("k", b"m", b"\1\0" + short("")))
exchange("message with a large expiration", publish("k", b"m", b"\1\0" + short("99999999999999")))
exchange("message of another user", publish("k", b"m", b"\0\x10" + short("anna")))
exchange("message with a text as CC", publish("k", b"m", headers({"CC": "k"})))
exchange("message with a number in CC", publish("k", b"m", headers({"CC": array(1)})))
exchange("message with a text as BCC", publish("k", b"m", headers({"BCC": "k"})))
exchange(
    "copies of a message",
    own("p-cc") + own("p-bcc"),
    publish("k", b"m", headers({"CC": array("p-cc"), "BCC": array("p-bcc"), "z": 1})),
    get("p-cc"),
    get("p-bcc"),
)
exchange("confirm.select", SELECT, SELECT, call("confirm.select", b"\1") + qos(1))
for _kind, _declare in (("classic", own), ("quorum", quorum)):
    exchange(
        f"confirms of a {_kind} queue",
        _declare(f"p-{_kind}"),
        SELECT,
        publish(f"p-{_kind}"),
        publish("nowhere"),
        publish(f"p-{_kind}"),
    )
    exchange(
        f"refusal of a full {_kind} queue",
        _declare(f"p-full-{_kind}", {"x-max-length": 1, "x-overflow": "reject-publish"}),
        SELECT,
        publish(f"p-full-{_kind}"),
        publish(f"p-full-{_kind}"),
        publish(f"p-full-{_kind}"),
    )
exchange("tx.select", TX_SELECT, TX_SELECT, COMMIT, ROLLBACK)
exchange(
    "transaction",
    TX_SELECT,
    own("p-tx"),
    publish("p-tx"),
    get("p-tx"),
    COMMIT,
    get("p-tx"),
    ack(1),
    ROLLBACK,
    ack(1),
    COMMIT,
)
exchange("transaction with a message that is returned", TX_SELECT, publish("nowhere", mandatory=True), COMMIT)
exchange("transaction with an error", TX_SELECT, publish("k", exchange="x-missing"), COMMIT)
exchange("tx.commit without a transaction", COMMIT)
exchange("tx.rollback without a transaction", ROLLBACK)
exchange("transactions beside confirms", SELECT, TX_SELECT)
exchange("confirms beside transactions", TX_SELECT, SELECT)

# Dead letters

MAKERS: dict[str, Callable[[str, Table], bytes]] = {"classic": own, "quorum": quorum}


def dead_lettering(queue: str, kind: str, arguments: Table | None = None) -> list[Step]:
    """Declare a queue, and consume from the queue that its dead letters get into."""
    dead = f"{queue}-dead"
    to: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    return [own(dead), consume(dead, "dead"), MAKERS[kind](queue, to | (arguments or {}))]


def rejected(queue: str, properties: bytes = b"\0\0") -> list[Step]:
    """Publish a message and reject it."""
    return [publish(queue, b"m", properties), get(queue), nack(1, requeue=False)]


for _kind, _make in MAKERS.items():
    _d = f"d-{_kind}"
    exchange(
        f"dead letter that was rejected from a {_kind} queue",
        *dead_lettering(f"{_d}-1", _kind),
        *rejected(f"{_d}-1"),
    )
    exchange(
        f"dead letter with all properties of a {_kind} queue",
        *dead_lettering(f"{_d}-2", _kind),
        *rejected(f"{_d}-2", ALL_PROPERTIES),
        nack(2),
    )
    exchange(
        f"dead letter that expired in a {_kind} queue",
        *dead_lettering(f"{_d}-3", _kind, {"x-message-ttl": 1}),
        publish(f"{_d}-3"),
    )
    exchange(
        f"dead letter that expired by itself in a {_kind} queue",
        *dead_lettering(f"{_d}-4", _kind),
        publish(f"{_d}-4", b"m", b"\x21\0" + table({"a": 1}) + short("1")),
    )
    exchange(
        f"dead letter that was dropped by a {_kind} queue",
        *dead_lettering(f"{_d}-5", _kind, {"x-max-length": 1}),
        publish(f"{_d}-5", b"one") + publish(f"{_d}-5", b"two"),
    )
    exchange(
        f"dead letter with headers of a {_kind} queue",
        *dead_lettering(f"{_d}-6", _kind),
        *rejected(f"{_d}-6", headers(ALL_FIELDS)),
    )
    exchange(
        f"dead letter of a {_kind} queue with an exchange and keys",
        own(f"{_d}-7-dead"),
        consume(f"{_d}-7-dead", "dead"),
        bind(f"{_d}-7-dead", "amq.topic", f"{_d}-7-key"),
        _make(f"{_d}-7", {"x-dead-letter-exchange": "amq.topic"}),
        bind(f"{_d}-7", "amq.direct", f"{_d}-7-key"),
        publish(
            f"{_d}-7-key",
            b"m",
            headers({"CC": array("more"), "BCC": array("hidden")}),
            exchange="amq.direct",
        ),
        get(f"{_d}-7"),
        nack(1, requeue=False),
    )
    exchange(
        f"dead letter of a {_kind} queue with a history of the client",
        *dead_lettering(f"{_d}-8", _kind),
        *rejected(f"{_d}-8", headers({"x-death": "mine", "x-first-death-queue": "mine"})),
    )
    exchange(
        f"dead letter of a redelivered message of a {_kind} queue",
        *dead_lettering(f"{_d}-9", _kind),
        publish(f"{_d}-9"),
        get(f"{_d}-9"),
        nack(1),
        get(f"{_d}-9"),
        nack(2, requeue=False),
    )
    exchange(
        f"dead letter that goes round with a {_kind} queue",
        _make(f"{_d}-10", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{_d}-10"}),
        consume(f"{_d}-10"),
        publish(f"{_d}-10"),
        nack(1, requeue=False),
        nack(2, requeue=False),
        ack(3),
    )
    exchange(
        f"dead letter of two queues with a {_kind} queue",
        *dead_lettering(f"{_d}-11-middle", "classic"),
        consume(f"{_d}-11-middle", "middle"),
        _make(f"{_d}-11", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{_d}-11-middle"}),
        *rejected(f"{_d}-11"),
        nack(2, requeue=False),
    )
exchange(
    "dead letter of a quorum queue at its delivery limit",
    *dead_lettering("d-limit", "quorum", {"x-delivery-limit": 1}),
    publish("d-limit"),
    get("d-limit"),
    nack(1),
    get("d-limit"),
    nack(2),
)
exchange(
    "dead letter of a quorum queue, at least once",
    *dead_lettering(
        "d-once", "quorum", {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    ),
    *rejected("d-once"),
)
exchange(
    "dead letter of a quorum queue that gets into another one",
    quorum("d-into-dead"),
    consume("d-into-dead", "dead"),
    quorum("d-into", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "d-into-dead"}),
    publish("d-into"),
    get("d-into"),
    nack(1),
    get("d-into"),
    nack(2, requeue=False),
    nack(3),
)
exchange(
    "message refused by a classic queue that dead-letters it",
    own("d-refused-dead"),
    own(
        "d-refused",
        {
            "x-max-length": 1,
            "x-overflow": "reject-publish-dlx",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "d-refused-dead",
        },
    ),
    SELECT,
    publish("d-refused"),
    publish("d-refused"),
    Wait(0.3),
    get("d-refused-dead"),
)

# Direct replies

REPLY_TO = "amq.rabbitmq.reply-to"


def reply(came: Sequence[bytes]) -> bytes:
    """Publish to the address in the property reply_to of the message that came."""
    parted = part(came[1])
    assert parted is not None
    address = parted.payload[15 : 15 + parted.payload[14]]
    return (
        call("basic.publish", u16(0), short(""), short(address), b"\0")
        + header(2, b"\x04\0" + short("c"))
        + frame(BODY, 1, b"ok")
    )


exchange(
    "direct reply",
    own("r-requests"),
    consume(REPLY_TO, "replies", no_ack=True),
    publish("r-requests", b"q", b"\2\0" + short(REPLY_TO)),
    get("r-requests", no_ack=True),
    reply,
)
exchange("direct reply without a consumer", publish("r-none", b"q", b"\2\0" + short(REPLY_TO)))
exchange("consumer of direct replies that acknowledges", consume(REPLY_TO))
exchange(
    "second consumer of direct replies",
    consume(REPLY_TO, "one", no_ack=True),
    consume(REPLY_TO, "two", no_ack=True),
)
exchange("queue.declare of direct replies", declare(REPLY_TO, passive=True))
exchange("basic.get of direct replies", get(REPLY_TO))
exchange("message to direct replies of nobody", publish(f"{REPLY_TO}.gone", mandatory=True))

# Permissions


def refused(name: str, *steps: Step) -> None:
    exchange(name, *steps, user=READER)


refused("queue.declare without permission", declare("q-forbidden"))
refused("passive queue.declare without permission", declare("q-missing", passive=True))
refused("exchange.declare without permission", declare_exchange("x-forbidden"))
refused("exchange.delete without permission", delete_exchange("amq.direct"))
refused("queue.delete without permission", delete("q-forbidden"))
refused("basic.consume without permission", consume("q-forbidden"))
refused("basic.get without permission", get("q-forbidden"))
refused("basic.publish without permission", publish("k", exchange="amq.direct"))
refused("basic.publish to the default exchange without permission", publish("k"))
refused("queue.bind without permission", bind("q-forbidden", "amq.direct"))
refused("queue.purge without permission", purge("q-forbidden"))
refused("basic.get of a missing queue with permission", get(READABLE))


# Octets that are not UTF-8

LATIN = b"caf\xe9"
"""Text in Latin-1: its last octet is not UTF-8."""
FIELD_OF_LATIN = short(LATIN) + b"t\1"
HEADERS_OF_LATIN = b"\x20\0" + long(FIELD_OF_LATIN)


def with_latin(arguments: Table) -> bytes:
    """A table with a field name that is not UTF-8."""
    return long(table(arguments)[4:] + FIELD_OF_LATIN)


def queue_declare(name: str | bytes, arguments: bytes, *, durable: bool = False) -> bytes:
    return call(
        "queue.declare", u16(0), short(name), bits(False, durable, not durable, False, False), arguments
    )


for _kind, _declare in (("classic", own), ("quorum", quorum)):
    exchange(
        f"routing key that is not UTF-8, {_kind} queue",
        SELECT,
        _declare(f"q-latin-{_kind}"),
        bind(f"q-latin-{_kind}", "amq.topic", b"#"),
        publish(b"caf\xe9.\xff", exchange="amq.topic"),
        get(f"q-latin-{_kind}"),
        nack(1),
        consume(f"q-latin-{_kind}"),
        delete(f"q-latin-{_kind}"),
    )
    exchange(
        f"headers whose names are not UTF-8, {_kind} queue",
        SELECT,
        _declare(f"q-latin-header-{_kind}"),
        publish(f"q-latin-header-{_kind}", b"m", HEADERS_OF_LATIN),
        get(f"q-latin-header-{_kind}"),
        nack(1),
        get(f"q-latin-header-{_kind}"),
        publish(f"q-latin-header-{_kind}", b"m", b"\x20\0" + long(b"\1nF" + long(FIELD_OF_LATIN))),
        ack(2),
        get(f"q-latin-header-{_kind}"),
        delete(f"q-latin-header-{_kind}"),
    )
    exchange(
        f"dead letters with octets that are not UTF-8, {_kind} queue",
        own(f"q-latin-dead-{_kind}"),
        bind(f"q-latin-dead-{_kind}", "amq.topic", "#"),
        _declare(
            f"q-latin-dying-{_kind}",
            {"x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": b"S" + long(LATIN)},
        ),
        _declare(f"q-latin-dying-key-{_kind}", {"x-dead-letter-exchange": "amq.topic"}),
        declare_exchange("x-latin-dying", "fanout", auto_delete=True),
        bind(f"q-latin-dying-key-{_kind}", "x-latin-dying"),
        publish(LATIN, b"m", HEADERS_OF_LATIN, exchange="x-latin-dying"),
        get(f"q-latin-dying-key-{_kind}"),
        reject(1, requeue=False),
        Wait(0.3),
        get(f"q-latin-dead-{_kind}"),
        publish(f"q-latin-dying-{_kind}", b"m", HEADERS_OF_LATIN),
        get(f"q-latin-dying-{_kind}"),
        reject(3, requeue=False),
        Wait(0.3),
        get(f"q-latin-dead-{_kind}"),
        delete(f"q-latin-dead-{_kind}"),
        delete(f"q-latin-dying-key-{_kind}"),
        delete(f"q-latin-dying-{_kind}"),
    )
exchange(
    "returned message with octets that are not UTF-8",
    publish(LATIN, b"m", HEADERS_OF_LATIN, exchange="amq.direct", mandatory=True),
)
exchange("queue.bind with a key that is not UTF-8", bind("q-latin-key", "amq.direct", LATIN), CLOSE_OK)
exchange("queue.unbind with a key that is not UTF-8", unbind("q-latin-key", "amq.direct", LATIN), CLOSE_OK)
exchange(
    "exchange.bind with a key that is not UTF-8", bind_exchange("amq.topic", "amq.direct", LATIN), CLOSE_OK
)
exchange(
    "headers exchange that matches a name which is not UTF-8",
    own("q-latin-headers"),
    call(
        "queue.bind",
        u16(0),
        short("q-latin-headers") + short("amq.headers") + NO_NAME,
        b"\0",
        with_latin({"x-match": "all"}),
    ),
    publish("", b"m", HEADERS_OF_LATIN, exchange="amq.headers"),
    publish("", b"m", headers({"caf": True}), exchange="amq.headers"),
    publish("", b"m", b"\x20\0" + long(short(b"caf\xe8") + b"t\1"), exchange="amq.headers"),
    call(
        "queue.unbind",
        u16(0),
        short("q-latin-headers") + short("amq.headers") + NO_NAME,
        with_latin({"x-match": "all"}),
    ),
    publish("", b"m", HEADERS_OF_LATIN, exchange="amq.headers"),
    purge("q-latin-headers"),
)
exchange(
    "headers exchange that matches a value which is not UTF-8",
    own("q-latin-value"),
    bind("q-latin-value", "amq.headers", "", {"x-match": "all", "k": b"S" + long(LATIN)}),
    publish("", b"m", headers({"k": b"S" + long(LATIN)}), exchange="amq.headers"),
    publish("", b"m", headers({"k": b"S" + long(b"caf\xe8")}), exchange="amq.headers"),
    publish("", b"m", headers({"k": b"x" + long(LATIN)}), exchange="amq.headers"),
    purge("q-latin-value"),
)
exchange(
    "CC and BCC that are not UTF-8",
    own("q-latin-copies"),
    bind("q-latin-copies", "amq.topic", "copy.*"),
    publish("k", b"m", headers({"CC": array(b"S" + long(b"copy." + LATIN))}), exchange="amq.topic"),
    publish("k", b"m", headers({"BCC": array(b"S" + long(b"copy." + LATIN))}), exchange="amq.topic"),
    get("q-latin-copies"),
    get("q-latin-copies"),
)
for _at, _name in enumerate(("content_type", "content_encoding")):
    exchange(
        f"property {_name} that is not UTF-8",
        own(f"q-latin-property-{_at}"),
        publish(f"q-latin-property-{_at}", b"m", u16(0x8000 >> _at) + short(LATIN)),
        get(f"q-latin-property-{_at}"),
    )
for _at, _name in enumerate(("correlation_id", "reply_to", "expiration", "message_id")):
    exchange(
        f"property {_name} that is not UTF-8",
        own(f"q-latin-property-{5 + _at}"),
        publish(f"q-latin-property-{5 + _at}", b"m", u16(0x8000 >> 5 + _at) + short(LATIN)),
        get(f"q-latin-property-{5 + _at}"),
    )
for _at, _name in enumerate(("type", "user_id", "app_id", "cluster_id")):
    exchange(
        f"property {_name} that is not UTF-8",
        own(f"q-latin-property-{10 + _at}"),
        publish(f"q-latin-property-{10 + _at}", b"m", u16(0x8000 >> 10 + _at) + short(LATIN)),
        get(f"q-latin-property-{10 + _at}"),
    )
exchange(
    "queue name that is not UTF-8", own(LATIN.decode("latin-1")), declare(LATIN, exclusive=True), CLOSE_OK
)
exchange("quorum queue name that is not UTF-8", quorum(LATIN), CLOSE_OK)
exchange("passive queue.declare that is not UTF-8", declare(LATIN, passive=True), CLOSE_OK)
exchange("basic.get of a queue that is not UTF-8", get(LATIN), CLOSE_OK)
exchange("queue.bind of a queue that is not UTF-8", bind(LATIN, "amq.direct"), CLOSE_OK)
exchange("exchange name that is not UTF-8", declare_exchange(LATIN, auto_delete=True), CLOSE_OK)
exchange("exchange type that is not UTF-8", declare_exchange("x-latin-type", LATIN), CLOSE_OK)
exchange("publish to an exchange that is not UTF-8", publish("k", exchange=LATIN))
exchange("publish to a queue that is not UTF-8", publish(LATIN, mandatory=True))
exchange(
    "queue.bind to an exchange that is not UTF-8", own("q-latin-to"), bind("q-latin-to", LATIN), CLOSE_OK
)
exchange("consumer tag that is not UTF-8", own("q-latin-tag"), consume("q-latin-tag", LATIN), CLOSE_OK)
exchange("basic.cancel of a tag that is not UTF-8", call("basic.cancel", short(LATIN), b"\0"), CLOSE_OK)
exchange(
    "argument of a classic queue whose name is not UTF-8",
    queue_declare("q-latin-argument", with_latin({})),
    queue_declare("q-latin-argument", with_latin({})),
)
exchange(
    "argument of a quorum queue whose name is not UTF-8",
    queue_declare("q-latin-argument-quorum", with_latin(QUORUM), durable=True),
    queue_declare("q-latin-argument-quorum", with_latin(QUORUM), durable=True),
    delete("q-latin-argument-quorum"),
)
exchange(
    "argument of an exchange whose name is not UTF-8",
    call(
        "exchange.declare",
        u16(0),
        short("x-latin-argument"),
        short("direct"),
        bits(False, False, True),
        with_latin({}),
    ),
    call(
        "exchange.declare",
        u16(0),
        short("x-latin-argument"),
        short("direct"),
        bits(False, False, True),
        with_latin({}),
    ),
    delete_exchange("x-latin-argument"),
)
exchange(
    "argument of a consumer whose name is not UTF-8",
    own("q-latin-consumer"),
    call("basic.consume", u16(0), short("q-latin-consumer"), short("tag"), b"\0", with_latin({})),
)
exchange(
    "channel.close with a text that is not UTF-8",
    call("channel.close", u16(200), short(LATIN), u16(0), u16(0)),
    CLOSE_OK,
)
exchange(
    "connection.close with a text that is not UTF-8",
    call("connection.close", u16(200), short(LATIN), u16(0), u16(0), channel=0),
    closes=True,
)
handshake(
    "connection.open of a virtual host that is not UTF-8",
    *TO_TUNE,
    tune_ok() + call("connection.open", short(LATIN), short(""), b"\0", channel=0),
    CLOSE_OK,
)
handshake(
    "client properties whose names are not UTF-8",
    call(
        "connection.start-ok",
        with_latin({}),
        short("PLAIN"),
        long("\0guest\0guest"),
        short("en_US"),
        channel=0,
    ),
)
handshake(
    "user that is not UTF-8",
    call(
        "connection.start-ok", table({}), short("PLAIN"), long(b"\0caf\xe9\0guest"), short("en_US"), channel=0
    ),
    CLOSE_OK,
)
