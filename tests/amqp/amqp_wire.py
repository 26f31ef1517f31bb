"""Helpers of the AMQP tests: frames of clients made by pamqp, and a simple reader."""

from __future__ import annotations

import struct
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from pamqp import body, commands, frame, header, heartbeat

from qq.amqp.connection import (
    ChannelCloseRequested,
    CloseRequested,
    Event,
    LoginAttempt,
    ServerConnection,
    Settings,
    VhostRequested,
)
from qq.amqp.framing import Acks, ChannelFault, Fault, FrameReader, Method, Publishes
from qq.stored import layout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pamqp import base

Basic, Channel, Connection, Queue = commands.Basic, commands.Channel, commands.Connection, commands.Queue
PROTOCOL_HEADER = b"AMQP\0\0\x09\x01"
HEARTBEAT = heartbeat.Heartbeat().marshal()


def method(channel: int, value: base.Frame) -> bytes:
    return frame.marshal(value, channel)


def raw(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def header_frame(channel: int, size: int, properties: commands.Basic.Properties | None = None) -> bytes:
    return frame.marshal(header.ContentHeader(0, size, properties or Basic.Properties()), channel)


def body_frames(channel: int, data: bytes, part: int = 4000) -> list[bytes]:
    return [
        frame.marshal(body.ContentBody(data[at : at + part]), channel) for at in range(0, len(data), part)
    ]


def message(
    channel: int, data: bytes, properties: commands.Basic.Properties | None = None, part: int = 4000
) -> bytes:
    return header_frame(channel, len(data), properties) + b"".join(body_frames(channel, data, part))


def publish(channel: int = 1, data: bytes = b"hello", key: str = "q", exchange: str = "") -> bytes:
    return method(channel, Basic.Publish(exchange=exchange, routing_key=key)) + message(channel, data)


def pieces(stream: bytes, cuts: list[int]) -> Iterable[bytes]:
    at = turn = 0
    while at < len(stream):
        size = cuts[turn % len(cuts)] if cuts else len(stream)
        yield stream[at : at + size]
        at, turn = at + size, turn + 1


def read_all(reader: FrameReader, data: bytes) -> list[Any]:
    """All events of these octets, over as many steps as they take."""
    events: list[Any] = [*reader.feed(data)]
    while reader.has_more:
        events += reader.feed(b"")
    return events


def fields(value: base.Frame) -> tuple[Any, ...]:
    return value.name, *((name, field) for name, field in value)


def flat(events: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return an item for each message, ack, method and fault; no item after the first fault."""
    items: list[tuple[Any, ...]] = []
    for event in events:
        match event:
            case Publishes(channel, payload, messages, flags):
                assert flags == reduce(or_, map(layout.flags, messages))
                items += [(channel, "publish", payload, one) for one in messages]
            case Acks(channel, acks):
                items += [(channel, "ack", *ack) for ack in acks]
            case Method(channel, value):
                items.append((channel, *fields(value)))
            case ChannelFault(channel, error):
                items.append((channel, "channel fault", error.text))
            case Fault(error):
                items.append((0, "fault", error.text, error.class_id, error.method_id))
                return items
            case _:
                items.append((0, type(event).__name__))
    return items


def dumb_read(stream: bytes) -> list[tuple[Any, ...]]:
    """Read a valid stream with pamqp alone, in the terms of `flat`."""
    items: list[tuple[Any, ...]] = []
    unfinished: dict[int, list[Any]] = {}
    while stream:
        size, channel, value = frame.unmarshal(stream)
        wire, stream = stream[:size], stream[size:]
        match value:
            case heartbeat.Heartbeat():
                items.append((0, "Heartbeat"))
            case commands.Basic.Publish():
                unfinished[channel] = [wire[7:-1], b"", -1]
            case commands.Basic.Ack():
                items.append((channel, "ack", value.delivery_tag, value.multiple))
            case header.ContentHeader():
                unfinished[channel][1:] = [wire, value.body_size]
            case body.ContentBody():
                unfinished[channel][1] += wire
                unfinished[channel][2] -= len(value.value)
            case _:
                items.append((channel, *fields(value)))
        if channel in unfinished and unfinished[channel][2] == 0:
            payload, content, _ = unfinished.pop(channel)
            items.append((channel, "publish", payload, content))
    return items


def data_to_send(server: ServerConnection) -> bytes:
    """Return the output of a connection for the socket, and clear it."""
    data = b"".join(server.out)
    server.out.clear()
    return data


class Client:
    """Drives a `ServerConnection` in place of the shell: accepts each request, and fails the faulty part."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.server = ServerConnection(settings or Settings())
        self.events: list[Event] = []

    def send(self, *data: bytes) -> list[base.Frame]:
        """Send and return the methods that the server answers with."""
        self._handle(self.server.receive(b"".join(data)))
        while self.server.has_more:
            self._handle(self.server.receive(b""))
        return self.received()

    def received(self) -> list[base.Frame]:
        data = data_to_send(self.server)
        answers: list[base.Frame] = []
        while data:
            size, channel, value = frame.unmarshal(data)
            data = data[size:]
            value.channel = channel  # type: ignore[attr-defined]
            answers.append(value)
        return answers

    def _handle(self, events: list[Event]) -> None:
        server = self.server
        for event in events:
            self.events.append(event)
            match event:
                case LoginAttempt():
                    self._handle(server.accept_login())
                case VhostRequested():
                    self._handle(server.accept_vhost())
                case ChannelCloseRequested(channel):
                    server.channel_closed(channel)
                case ChannelFault(channel, error):
                    server.fail_channel(channel, error)
                case CloseRequested():
                    server.closed()
                case Fault(error):
                    server.fail(error)
                case _:
                    pass

    def take(self) -> list[Event]:
        events, self.events = self.events, []
        return events


def start_ok(capabilities: dict[str, Any] | None = None, response: str = "\0guest\0guest") -> bytes:
    properties: dict[str, Any] = {"product": "test", "capabilities": capabilities or {}}
    return method(0, Connection.StartOk(properties, "PLAIN", response))


def tune_ok(channel_max: int = 2047, frame_max: int = 131072, heartbeat_s: int = 60) -> bytes:
    return method(0, Connection.TuneOk(channel_max, frame_max, heartbeat_s))


def open_vhost(vhost: str = "/") -> bytes:
    return method(0, Connection.Open(vhost))


def open_channel(channel: int = 1) -> bytes:
    return method(channel, Channel.Open())


def connected(
    settings: Settings | None = None,
    *,
    channels: Iterable[int] = (1,),
    capabilities: dict[str, Any] | None = None,
    **tuning: int,
) -> Client:
    """A client behind the handshake, with channels open."""
    client = Client(settings)
    client.send(PROTOCOL_HEADER, start_ok(capabilities), tune_ok(**tuning), open_vhost())
    client.send(*(open_channel(channel) for channel in channels))
    client.take()
    return client


def long_string(text: str | bytes) -> bytes:
    """A field value, with its type."""
    data = text.encode() if isinstance(text, str) else text
    return b"S" + struct.pack(">I", len(data)) + data


def long(number: int) -> bytes:
    return b"l" + struct.pack(">q", number)


def array(*values: bytes) -> bytes:
    data = b"".join(values)
    return b"A" + struct.pack(">I", len(data)) + data


def stored_message(
    headers: Iterable[tuple[str, bytes]] | None = None, body_size: int = 3, **properties: bytes | int
) -> bytes:
    """A message, octet by octet: headers in order, also those that pamqp cannot make, and some other properties."""
    flags, data = 0, b""
    for flag, name in (
        (0x8000, "content_type"),
        (0x2000, "headers"),
        (0x0800, "priority"),
        (0x0400, "correlation_id"),
        (0x0200, "reply_to"),
        (0x0100, "expiration"),
        (0x0040, "timestamp"),
        (0x0010, "user_id"),
        (0x0004, "cluster_id"),
    ):
        if name == "headers" and headers is not None:
            table = b"".join(bytes([len(key.encode())]) + key.encode() + value for key, value in headers)
            value = struct.pack(">I", len(table)) + table
        elif name == "timestamp" and name in properties:
            value = struct.pack(">Q", properties[name])
        elif isinstance(octet := properties.get(name), int):
            value = bytes([octet])
        elif isinstance(text := properties.get(name), bytes):
            value = bytes([len(text)]) + text
        else:
            continue
        flags |= flag
        data += value
    payload = struct.pack(">HHQH", 60, 0, body_size, flags) + data
    return raw(2, 1, payload) + (raw(3, 1, b"x" * body_size) if body_size else b"")
