"""The undamaged conversations of AMQP 1.0 clients, frame by frame.

Invariant: a node serves an undamaged conversation to its end, and ends neither a link, nor a session, nor the
connection with an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chaos.fuzz.conversations import PAUSE, QUEUE, Conversation
from qq.amqp10.composites import encode_composite
from qq.amqp10.connection import AMQP_HEADER, SASL_HEADER
from qq.amqp10.encoding import HEARTBEAT, encode_frame, encode_sasl
from qq.amqp10.performatives import (
    AcceptedState,
    AttachFrame,
    BeginFrame,
    CloseFrame,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    FlowFrame,
    ModifiedState,
    OpenFrame,
    RejectedState,
    ReleasedState,
    SaslInit,
    SenderSettleMode,
    SourceTerminus,
    TargetTerminus,
    TransferFrame,
)
from qq.amqp10.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    SEQUENCE,
    VALUE,
    MessageHeader,
    MessageProperties,
    encode_section,
)
from qq.amqp10.values import (
    Array,
    Char,
    Decimal64,
    Described,
    Float,
    Int,
    Long,
    Symbol,
    Timestamp,
    UInt,
    ULong,
    Uuid,
    Value,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

FRAME_MAX, SMALL_FRAME_MAX = 131_072, 512
"""The largest frames of clients, in octets."""
MANAGED = "fuzz-managed"
"""The queue that the management node declares and deletes."""
ADDRESS = f"/queues/{QUEUE}"
_WINDOW = 1000
PAIRED: dict[Value, Value] = {Symbol("paired"): True}
"""Properties of links to the management node."""
_NESTED: dict[Value, Value] = {
    Symbol("list"): [Int(1), 2.5, Float(0.5), None, True, b"x", {"k": [Long(-5)]}],
    Symbol("time"): Timestamp(5),
    Symbol("array"): Array(0xA1, ["a", "b"]),
    Symbol("id"): Uuid(bytes(16)),
    Symbol("odd"): [Char(97), Decimal64(bytes(8)), Described(ULong(5), "x")],
}


def message10(body: bytes, number: int = 0) -> bytes:
    """Return a message with all sections."""
    annotations: dict[Value, Value] = {
        Symbol("x-cc"): [QUEUE],
        Symbol("x-delay"): UInt(1),
        Symbol("x-publisher-id"): "fuzz",
        Symbol("x-publish-seq"): ULong(1 + number),
        Symbol("x-nested"): _NESTED,
    }
    properties = MessageProperties(
        "id", b"guest", ADDRESS, "subject", "/queues/re%2Fply", ULong(7), "a/b", "gzip", 2**40, 5, "g", 7, "r"
    )
    return b"".join(
        (
            encode_composite(MessageHeader(durable=True, priority=7, ttl=60_000)),
            encode_section(DELIVERY_ANNOTATIONS, {Symbol("x-d"): UInt(1)}),
            encode_section(MESSAGE_ANNOTATIONS, annotations),
            encode_composite(properties),
            encode_section(APPLICATION_PROPERTIES, {"text": "ü", "number": Int(-5), "yes": True}),
            body,
            encode_section(FOOTER, {Symbol("x-f"): None}),
        )
    )


def data(body: bytes) -> bytes:
    return encode_section(DATA, body)


def transfer(number: int, message: bytes, handle: int = 0, channel: int = 0, **fields: Any) -> bytes:
    """Return the transfer of a message, or of a part of it."""
    frame = TransferFrame(handle, number, number.to_bytes(4), 0, **fields)
    return framed(encode_composite(frame) + message, channel)


def framed(body: bytes, channel: int = 0) -> bytes:
    """Return a frame with a performative, and with the part of a message behind it."""
    return (8 + len(body)).to_bytes(4) + b"\2\0" + channel.to_bytes(2) + body


def sender(address: str | None, handle: int = 0, channel: int = 0) -> bytes:
    """Return the attach of a link to publish."""
    attach = AttachFrame(
        f"sender-{handle}",
        handle,
        False,
        source=SourceTerminus(),
        target=TargetTerminus(address),
        initial_delivery_count=0,
    )
    return encode_frame(channel, attach)


def receiver(handle: int = 1, channel: int = 0, mode: SenderSettleMode = SenderSettleMode.UNSETTLED) -> bytes:
    """Return the attach of a link to consume."""
    attach = AttachFrame(
        f"receiver-{handle}",
        handle,
        True,
        mode,
        source=SourceTerminus(ADDRESS, filter={Symbol("f"): Described(Symbol("f"), "x")}),
        target=TargetTerminus("client"),
        properties={Symbol("rabbitmq:priority"): Int(5)},
    )
    return encode_frame(channel, attach)


def flow(credit: int, handle: int = 1, channel: int = 0, **fields: Any) -> bytes:
    return encode_frame(channel, FlowFrame(0, _WINDOW, 0, _WINDOW, handle, 0, credit, **fields))


def _on(*frames: DispositionFrame | DetachFrame | EndFrame | CloseFrame) -> list[bytes]:
    return [encode_frame(0, frame) for frame in frames]


def conversations10() -> list[Conversation]:
    """Return all conversations. The queue must exist."""
    bodies = {
        "publish 1.0": _publish(),
        "anonymous 1.0": _anonymous(),
        "exchange 1.0": _exchange(),
        "consume 1.0": _consume(),
        "settled 1.0": _settled(),
        "manage 1.0": _manage(),
        "dynamic 1.0": _dynamic(),
        "sessions 1.0": _sessions(),
    }
    openings = {"": opening10(FRAME_MAX), ", small frames": opening10(SMALL_FRAME_MAX)}
    return [
        Conversation(name + kind, [*opening, *body], len(opening), is_amqp10=True)
        for name, body in bodies.items()
        for kind, opening in openings.items()
    ]


def opening10(frame_max: int = FRAME_MAX, user: str = "guest", vhost: str = "/") -> list[bytes]:
    """Return the frames of a client that opens a connection and begins a session without waiting."""
    response = f"\0{user}\0{user}".encode()
    return [
        SASL_HEADER,
        encode_sasl(SaslInit("PLAIN", response)),
        AMQP_HEADER,
        encode_frame(0, OpenFrame("fuzz", f"vhost:{vhost}", frame_max, idle_time_out=60_000)),
        encode_frame(0, BeginFrame(None, 0, _WINDOW, _WINDOW)),
    ]


def _publish() -> list[bytes]:
    parts = message10(data(bytes(1500)), 1)
    return [
        sender(ADDRESS),
        PAUSE,
        transfer(0, message10(data(b"all"))),
        transfer(1, data(b"plain"), settled=True),
        HEARTBEAT,
        transfer(2, encode_section(VALUE, "value")),
        transfer(3, encode_section(SEQUENCE, [Int(5)]) * 3),
        transfer(4, parts[:500], more=True),
        transfer(4, parts[500:1000], more=True),
        transfer(4, parts[1000:]),
        transfer(5, b"part", more=True),
        transfer(5, b"", aborted=True),
        transfer(6, data(b"a") * 5),
        PAUSE,
        *_on(DetachFrame(0, closed=True), CloseFrame()),
    ]


def _anonymous() -> list[bytes]:
    to_queue = encode_composite(MessageProperties(to=ADDRESS)) + data(b"to")
    to_exchange = encode_composite(MessageProperties(Uuid(bytes(16)), to="/exchanges/amq.topic/a.b"))
    return [
        sender(None),
        PAUSE,
        transfer(0, to_queue),
        transfer(1, to_exchange + data(b"topic"), settled=True),
        PAUSE,
        *_on(EndFrame(), CloseFrame()),
    ]


def _exchange() -> list[bytes]:
    return [
        sender("/exchanges/amq.headers/k"),
        PAUSE,
        transfer(0, encode_section(APPLICATION_PROPERTIES, {"text": "ü", "n": Float(1.5)}) + data(b"h")),
        transfer(1, message10(encode_section(VALUE, None), 2)),
        PAUSE,
        *_on(DetachFrame(0, closed=True)),
    ]


def _consume() -> list[bytes]:
    modified: dict[Value, Value] = {Symbol("x-m"): _NESTED}
    return [
        sender(ADDRESS),
        receiver(),
        PAUSE,
        *(transfer(number, data(b"%d" % number)) for number in range(5)),
        flow(5),
        PAUSE,
        *_on(
            DispositionFrame(True, 0, 1, settled=True, state=AcceptedState()),
            DispositionFrame(True, 2, settled=True, state=ModifiedState(True, False, modified)),
            DispositionFrame(True, 3, settled=False, state=RejectedState()),
            DispositionFrame(True, 4, 90, settled=True, state=ReleasedState()),
        ),
        flow(9, echo=True),
        flow(9, drain=True, echo=True),
        PAUSE,
        *_on(DetachFrame(1, closed=True), DetachFrame(0), EndFrame(), CloseFrame()),
    ]


def _settled() -> list[bytes]:
    return [
        sender(ADDRESS),
        receiver(3, mode=SenderSettleMode.SETTLED),
        PAUSE,
        transfer(0, message10(data(bytes(300)), 3)[:400], more=True),
        transfer(0, message10(data(bytes(300)), 3)[400:]),
        PAUSE,
        flow(3, handle=3, drain=True),
        PAUSE,
        *_on(DetachFrame(3)),
    ]


def _manage() -> list[bytes]:
    attaches = [
        AttachFrame(
            "management",
            int(role),
            role,
            SenderSettleMode.SETTLED,
            source=SourceTerminus("/management" if role else "client"),
            target=TargetTerminus("client" if role else "/management"),
            initial_delivery_count=None if role else 0,
            properties=PAIRED,
        )
        for role in (False, True)
    ]
    requests: Sequence[tuple[str, str, Value]] = (
        ("PUT", f"/queues/{MANAGED}", {"durable": True, "arguments": {"x-queue-type": "quorum"}}),
        ("GET", f"/queues/{MANAGED}", None),
        (
            "POST",
            "/bindings",
            {"source": "amq.topic", "destination_queue": MANAGED, "binding_key": "a.#", "arguments": {}},
        ),
        ("GET", f"/bindings?src=amq.topic&dstq={MANAGED}&key=a.%23", None),
        ("DELETE", f"/queues/{MANAGED}/messages", None),
        ("PUT", "/exchanges/fuzz-x", {"type": "topic", "arguments": {"a": [Timestamp(5), _NESTED]}}),
        ("DELETE", "/exchanges/fuzz-x", None),
        ("PUT", "/auth/tokens", b"token"),
        ("DELETE", f"/queues/{MANAGED}", None),
    )
    sent = [
        transfer(number, managed_request(number, *request), settled=True)
        for number, request in enumerate(requests)
    ]
    frames = [encode_frame(0, attach) for attach in attaches]
    return [*frames, flow(50), PAUSE, *sent[:8], PAUSE, *sent[8:], PAUSE, *_on(EndFrame(), CloseFrame())]


def managed_request(number: int, method: str, path: str, body: Value) -> bytes:
    """Return a request to the management node."""
    properties = MessageProperties(f"id-{number}", to=path, subject=method, reply_to="$me")
    return encode_composite(properties) + encode_section(VALUE, body)


def _dynamic() -> list[bytes]:
    termini = (
        (SenderSettleMode.UNSETTLED, SourceTerminus(dynamic=True, capabilities=("temporary-queue",))),
        (
            SenderSettleMode.SETTLED,
            SourceTerminus(
                dynamic=True, expiry_policy="link-detach", capabilities=("rabbitmq:volatile-queue",)
            ),
        ),
    )
    attaches = [
        AttachFrame(f"dynamic-{handle}", handle, True, mode, source=source, target=TargetTerminus())
        for handle, (mode, source) in enumerate(termini, 1)
    ]
    frames = [encode_frame(0, attach) for attach in attaches]
    return [*frames, flow(5), flow(5, handle=2), PAUSE, *_on(DetachFrame(1, closed=True), CloseFrame())]


def _sessions() -> list[bytes]:
    """Return a conversation in several sessions; a channel number is used twice."""
    begin = BeginFrame(None, 2**32 - 2, 1, 2**32 - 1, 255)
    one, two = ([transfer(number, data(b"x"), 0, channel) for number in range(3)] for channel in (1, 2))
    return [
        *(encode_frame(channel, begin) for channel in (1, 2, 3)),
        encode_frame(3, EndFrame()),
        PAUSE,
        encode_frame(3, begin),
        *(sender(ADDRESS, 0, channel) for channel in (1, 2)),
        receiver(9, 3),
        PAUSE,
        *(frame for pair in zip(one, two, strict=True) for frame in pair),
        flow(2, 9, 3),
        PAUSE,
        *(encode_frame(channel, EndFrame()) for channel in (1, 3, 2)),
        encode_frame(0, CloseFrame()),
    ]
