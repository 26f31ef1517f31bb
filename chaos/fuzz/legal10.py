"""Legal but excessive requests of hostile clients of AMQP 1.0.

Invariant: an act is a function of its random numbers, and keeps to the credit and to the windows that the node gives.
Where it exceeds a limit of the node, the node must answer with an error.
"""

from __future__ import annotations

import struct
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from chaos.fuzz.conversations10 import FRAME_MAX, PAIRED, data, framed, managed_request
from qq.amqp10.encoding import encode_frame
from qq.amqp10.performatives import (
    AcceptedState,
    AttachFrame,
    BeginFrame,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    FlowFrame,
    ModifiedState,
    RejectedState,
    ReleasedState,
    SenderSettleMode,
    SourceTerminus,
    TargetTerminus,
)
from qq.amqp10.sections import APPLICATION_PROPERTIES, DATA, FOOTER, MESSAGE_ANNOTATIONS, SEQUENCE, VALUE
from qq.amqp10.values import Int, Symbol, UInt, Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from random import Random

ALL = 2**32 - 1
SESSIONS_MAX, HANDLES_MAX = 64, 256
"""Sessions of a connection, and links of a session, as the node allows them by default."""
IDS_MAX = 2**31 - 1
"""The largest span of delivery ids in a disposition."""
MANAGEMENT_HANDLES = 254, 255
_OUTCOMES = (
    AcceptedState(),
    RejectedState(),
    ReleasedState(),
    ModifiedState(True),
    ModifiedState(True, True),
)
_CODES = (0x40, 0x41, 0x42, 0x43, 0x44, 0x45)
"""Constructors of values without octets."""


class Message(NamedTuple):
    """A message, which the client sends when link and session have credit for it."""

    octets: bytes
    handle: int = 0
    channel: int = 0
    part: int = FRAME_MAX // 2
    """Octets of each transfer."""
    is_complete: bool = True
    """Whether the last transfer says that no more follow."""
    is_settled: bool = False


class Received(NamedTuple):
    """Stands where the client waits until the node has sent so many transfers."""

    transfers: int


Item10 = bytes | Message | Received
"""Frames of the client, or a step of it."""


class Amount(NamedTuple):
    """Random numbers, and a function that draws a number up to its argument (`Scale.most`)."""

    random: Random
    most: Any


def _begin(channel: int, window: int = 1000, first_id: int = 0) -> bytes:
    return encode_frame(channel, BeginFrame(None, first_id, window, ALL))


def sender10(address: str | None, handle: int = 0, channel: int = 0, first: int = 0) -> bytes:
    attach = AttachFrame(
        f"s{channel}-{handle}", handle, False, target=TargetTerminus(address), initial_delivery_count=first
    )
    return encode_frame(channel, attach)


def receiver10(address: str, handle: int = 1, channel: int = 0, *, settled: bool = False) -> bytes:
    mode = SenderSettleMode.SETTLED if settled else SenderSettleMode.UNSETTLED
    source = SourceTerminus(address)
    return encode_frame(channel, AttachFrame(f"r{channel}-{handle}", handle, True, mode, source=source))


def flow10(credit: int, handle: int | None = 1, channel: int = 0, window: int = ALL, **fields: Any) -> bytes:
    fields = {"next_incoming_id": None, **fields}
    return encode_frame(
        channel,
        FlowFrame(
            incoming_window=window,
            next_outgoing_id=0,
            outgoing_window=0,
            handle=handle,
            delivery_count=0,
            link_credit=credit,
            **fields,
        ),
    )


def settled10(first: int, last: int, state: Any, channel: int = 0, *, settled: bool = True) -> bytes:
    return encode_frame(channel, DispositionFrame(True, first, last, settled=settled, state=state))


def pair(channel: int, handles: tuple[int, int] = MANAGEMENT_HANDLES) -> list[bytes]:
    """Return the attaches of a pair of links to the management node."""
    termini: tuple[Any, Any] = (
        {"target": TargetTerminus("/management"), "source": SourceTerminus(), "initial_delivery_count": 0},
        {"source": SourceTerminus("/management"), "target": TargetTerminus()},
    )
    return [
        encode_frame(
            channel,
            AttachFrame(
                f"m{handles}",
                handle,
                bool(role),
                SenderSettleMode.SETTLED,
                properties=PAIRED,
                **termini[role],
            ),
        )
        for role, handle in enumerate(handles)
    ]


def _declared(name: str) -> list[Item10]:
    """Return the frames that declare a quorum queue, and the wait for the answer."""
    body: dict[Value, Value] = {
        "arguments": {"x-queue-type": "quorum", "x-max-length": UInt(100_000), "x-delivery-limit": Int(-1)}
    }
    request = managed_request(0, "PUT", f"/queues/{name}", body)
    requests, answers = MANAGEMENT_HANDLES
    return [
        *pair(0),
        flow10(100, answers, window=1000),
        Message(request, requests, is_settled=True),
        Received(1),
    ]


def nulls(count: int, code: int) -> bytes:
    """Return an array of values without octets."""
    return struct.pack(">BIIB", 0xF0, 5, count, code)


def list_of(count: int, items: bytes) -> bytes:
    return struct.pack(">BII", 0xD0, len(items) + 4, count) + items


def flow_with(properties: bytes) -> bytes:
    """Return a flow with encoded properties."""
    return framed(b"\x00\x53\x13" + list_of(11, b"\x43" * 4 + b"\x40" * 6 + properties))


def _map(items: Iterable[tuple[bytes, bytes]]) -> bytes:
    pairs = [key + value for key, value in items]
    octets = b"".join(pairs)
    return struct.pack(">BII", 0xD1, len(octets) + 4, 2 * len(pairs)) + octets


def _section(code: int, value: bytes) -> bytes:
    return b"\x00\x53" + bytes((code,)) + value


def _key(number: int) -> bytes:
    name = b"x-%d" % number
    return b"\xa3" + bytes((len(name),)) + name


def _value(amount: Amount) -> bytes:
    """Draw an encoded value that is many, deep or wide."""
    random = amount.random
    match random.choice(("nulls", "nulls", "deep", "wide", "described", "arrays")):
        case "nulls":
            return nulls(random.choice((0, 9_000, 10_000, 100_000, ALL)), random.choice(_CODES))
        case "deep":
            value = b"\x45"
            for _ in range(random.choice((1, 30, 31, 32, 33, 200))):
                value = list_of(1, value)
            return value
        case "wide":
            return _map((b"\x70" + number.to_bytes(4), b"\x40") for number in range(amount.most(10_000)))
        case "described":
            return b"\x00\x53\x01" * random.choice((1, 30, 33, 10_000)) + b"\x40"
        case _:
            return list_of(100, nulls(amount.most(200), 0x44) * 100)


def _values(amount: Amount, name: str) -> Iterator[Item10]:
    """Put values into each place of a message, and into properties of links and flows."""
    random = amount.random
    yield from _declared(name)
    yield sender10(f"/queues/{name}")
    yield receiver10(f"/queues/{name}")
    yield flow10(1000, next_incoming_id=0)
    for number in range(amount.most(300)):
        value, wide = _value(amount), _map([(_key(number), b"\x40"), (_key(-1), _value(amount))])
        sections = {
            MESSAGE_ANNOTATIONS: wide,
            APPLICATION_PROPERTIES: wide.replace(b"\xa3", b"\xa1"),
            SEQUENCE: list_of(1, value),
            VALUE: value,
            FOOTER: wide,
        }
        code = random.choice(list(sections))
        section = _section(code, sections[code])
        body = b"" if code in (SEQUENCE, VALUE) else data(b"x")
        yield Message(body + section if code == FOOTER else section + body)
        if random.random() < 0.1:
            yield flow_with(wide)


def _sections(amount: Amount, name: str) -> Iterator[Item10]:
    """Publish messages of very many sections, and of very many keys."""
    yield from _declared(name)
    yield sender10(f"/queues/{name}")
    yield receiver10(f"/queues/{name}")
    yield flow10(1000)
    for _ in range(amount.most(20)):
        count = amount.random.choice((100, 9_999, 10_000, 10_001, amount.most(1_000_000)))
        part = amount.random.choice((_section(DATA, b"\xa0\0"), _section(SEQUENCE, b"\x45")))
        yield Message(part * count)
        keys = _map((_key(number), b"\x40") for number in range(amount.most(100_000)))
        yield Message(_section(MESSAGE_ANNOTATIONS, keys) + data(b"x"))


def _handles(amount: Amount, name: str) -> Iterator[Item10]:
    """Attach a link at each handle of each session."""
    yield from _declared(name)
    address = f"/queues/{name}"
    for channel in range(1, min(SESSIONS_MAX, 1 + amount.most(SESSIONS_MAX))):
        yield _begin(channel)
        for handle in range(amount.most(HANDLES_MAX)):
            yield (sender10 if handle % 2 else receiver10)(address, handle, channel)
    for channel in range(1, SESSIONS_MAX):
        yield encode_frame(channel, EndFrame())


def _credit(amount: Amount, name: str) -> Iterator[Item10]:
    """Take messages with all credit, and settle all ids with each outcome."""
    count = amount.most(5_000)
    yield from _declared(name)
    yield sender10(f"/queues/{name}")
    yield from repeat(Message(data(b"x")), count)
    yield receiver10(f"/queues/{name}")
    yield flow10(ALL, next_incoming_id=None)
    yield Received(1 + min(count, 500))
    for _ in range(amount.most(300)):
        first = amount.random.choice((0, 1, 2**31, ALL))
        settled = amount.random.random() < 0.5
        yield settled10(first, (first + IDS_MAX) & ALL, amount.random.choice(_OUTCOMES), settled=settled)
        yield flow10(amount.random.choice((0, 1, ALL)))


def _drains(amount: Amount, name: str) -> Iterator[Item10]:
    """Drain links, and ask for their state, again and again."""
    yield from _declared(name)
    yield sender10(f"/queues/{name}")
    yield from repeat(Message(data(b"x")), amount.most(1_000))
    for handle in range(1, 1 + amount.most(20)):
        yield receiver10(f"/queues/{name}", handle, settled=handle % 2 == 0)
        credit = amount.random.choice((0, 1, ALL))
        yield from repeat(flow10(credit, handle, drain=True, echo=True), amount.most(2_000))


def _windows(amount: Amount, name: str) -> Iterator[Item10]:
    """Close and open windows of sessions while their messages wait."""
    random = amount.random
    yield from _declared(name)
    yield sender10(f"/queues/{name}")
    yield from repeat(Message(data(bytes(random.choice((1, 200_000)))), 0), amount.most(300))
    channels = range(1, 1 + amount.most(60))
    for channel in channels:
        yield _begin(channel, random.choice((0, ALL)), random.choice((0, ALL)))
        yield receiver10(f"/queues/{name}", 1, channel)
        yield flow10(ALL, 1, channel, window=0)
    for channel in channels:
        for window in random.choices((0, 1, ALL), k=amount.most(300)):
            yield flow10(random.choice((1, ALL)), 1, channel, window, echo=True)


def _annotations(amount: Amount, name: str) -> Iterator[Item10]:
    """Return a message again and again, with further annotations each time."""
    yield from _declared(name)
    yield sender10(f"/queues/{name}")
    yield Message(data(b"x"))
    yield receiver10(f"/queues/{name}")
    size = amount.most(4_000)
    for number in range(amount.most(300)):
        annotations: dict[Value, Value] = {Symbol(f"x-{number}"): "a" * size}
        yield _credit_for(number)
        yield Received(2 + number)
        yield settled10(1 + number, 1 + number, ModifiedState(True, False, annotations))


def _credit_for(delivered: int) -> bytes:
    """Return a flow with credit for a delivery behind those that came."""
    return encode_frame(0, FlowFrame(None, ALL, 0, 0, 1, delivered, 1))


def _parts(amount: Amount, name: str) -> Iterator[Item10]:
    """Send messages in tiny parts that never end, on several links."""
    random = amount.random
    yield from _declared(name)
    for handle in range(amount.most(100)):
        yield sender10(f"/queues/{name}", handle)
        octets = data(bytes(amount.most(100_000)))
        part = random.choice((1, 10, 1000))
        yield Message(octets[: part * 5_000], handle, part=part, is_complete=random.random() < 0.1)


def _links(amount: Amount, name: str) -> Iterator[Item10]:
    """Attach a link for each message, to publish and to consume."""
    yield from _declared(name)
    detach = [encode_frame(0, DetachFrame(handle, closed=True)) for handle in (0, 1)]
    for number in range(amount.most(1_000)):
        yield sender10(f"/queues/{name}")
        yield Message(data(b"%d" % number))
        yield detach[0]
        yield receiver10(f"/queues/{name}", settled=number % 2 > 0)
        yield flow10(1)
        yield detach[1]


def _management(amount: Amount, name: str) -> Iterator[Item10]:
    """Send requests in many sessions with closed windows, so that the answers wait; then open the windows."""
    channels = range(1, 1 + amount.most(60))
    numbers = range(amount.most(8))
    requests, answers = MANAGEMENT_HANDLES
    arguments: dict[Value, Value] = {"a" * amount.most(100): "v" * amount.most(100_000)}
    for channel in channels:
        yield _begin(channel, 0)
        yield from pair(channel)
        yield flow10(ALL, answers, channel, window=0)
        for number in numbers:
            kinds: tuple[tuple[str, str, Value], ...] = (
                ("PUT", f"/queues/{name}-{number}", {"arguments": arguments}),
                ("GET", f"/queues/{name}-{number}", None),
                ("DELETE", f"/queues/{name}-{number}", None),
                ("GET", f"/bindings?src=amq.topic&dstq={name}&key=k", None),
                ("POST", "/queues", [None] * amount.most(9_000)),
            )
            request = managed_request(number, *amount.random.choice(kinds))
            yield Message(request, requests, channel, is_settled=True)
    for channel in channels:
        yield flow10(ALL, answers, channel)
        yield encode_frame(channel, EndFrame())


def _ids(amount: Amount, name: str) -> Iterator[Item10]:
    """Begin sessions and links with ids that are about to wrap."""
    yield from _declared(name)
    channels = range(1, 1 + amount.most(10))
    for channel in channels:
        yield _begin(channel, 1000, ALL - amount.random.randrange(10))
        yield sender10(f"/queues/{name}", 0, channel, ALL - amount.random.randrange(10))
        yield receiver10(f"/queues/{name}", 1, channel)
        yield flow10(10, 1, channel, window=1000)
        yield from repeat(Message(data(b"x"), 0, channel), amount.most(1_000))
        yield settled10(0, 9, AcceptedState(), channel)
        yield settled10(ALL - 5, 5, ReleasedState(), channel)


def _dynamic(amount: Amount, name: str) -> Iterator[Item10]:
    """Attach links with temporary queues and to direct replies, and detach some."""
    del name
    for handle in range(amount.most(200)):
        capability = amount.random.choice(("temporary-queue", "rabbitmq:volatile-queue", "none"))
        source = SourceTerminus(dynamic=True, expiry_policy="link-detach", capabilities=(capability,))
        link = "é" * amount.most(10_000)
        attach = AttachFrame(link, handle, True, SenderSettleMode.SETTLED, source=source)
        yield encode_frame(0, attach)
        yield flow10(ALL, handle)
        if amount.random.random() < 0.5:
            yield encode_frame(0, DetachFrame(handle, closed=True))


KINDS10 = {
    "values 1.0": _values,
    "sections 1.0": _sections,
    "handles 1.0": _handles,
    "credit 1.0": _credit,
    "drains 1.0": _drains,
    "windows 1.0": _windows,
    "annotations 1.0": _annotations,
    "parts 1.0": _parts,
    "links 1.0": _links,
    "management 1.0": _management,
    "ids 1.0": _ids,
    "dynamic 1.0": _dynamic,
}


def items10(kind: str, amount: Amount, name: str) -> Iterable[Item10]:
    """Return the items of an act of this kind; objects of the act begin with `name`."""
    return chain(KINDS10[kind](amount, name.replace(" ", "-")))
