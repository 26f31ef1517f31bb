"""Frames of AMQP 1.0 for tests: written by hand, and read by a reader without fast paths."""

from __future__ import annotations

import struct
from random import Random
from typing import TYPE_CHECKING, Any

from qq.amqp10.composites import encode_composite, from_described
from qq.amqp10.framing import (
    Dispositions,
    FrameEvent,
    FrameReader10,
    FrameReceived,
    StreamStage,
    Transfers,
)
from qq.amqp10.values import Described, ValueReader
from tests.amqp10.amqp10_values import encode_anyhow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HEARTBEAT = b"\x00\x00\x00\x08\x02\x00\x00\x00"
FRAME_MAX = 131072


def raw_frame(
    body: bytes, channel: int = 0, stage: StreamStage = StreamStage.AMQP, extended: bytes = b""
) -> bytes:
    """Return a frame; its extended header has a multiple of 4 octets."""
    header = struct.pack(">IBBH", 8 + len(extended) + len(body), 2 + len(extended) // 4, stage, channel)
    return header + extended + body


def frame(
    performative: Any, channel: int = 0, payload: bytes = b"", stage: StreamStage = StreamStage.AMQP
) -> bytes:
    return raw_frame(encode_composite(performative) + payload, channel, stage)


def reader_of_frames(stage: StreamStage = StreamStage.AMQP) -> FrameReader10:
    reader = FrameReader10()
    reader.stage, reader.stepwise, reader.frame_max = stage, False, FRAME_MAX
    return reader


def read_all(reader: FrameReader10, pieces: Iterable[bytes]) -> list[FrameEvent]:
    events: list[FrameEvent] = []
    for piece in pieces:
        events += reader.feed(piece)
        while reader.has_more:
            events += reader.feed(b"")
    return events


def pieces_of(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def flat(events: Iterable[FrameEvent]) -> list[Any]:
    """Return the events with a frame for each transfer and disposition that a fast path has read."""
    frames: list[Any] = []
    for event in events:
        match event:
            case Transfers(channel, performative, ids, tags, messages):
                for delivery_id, tag, payload in zip(ids, tags, messages, strict=True):
                    transfer = performative._replace(delivery_id=delivery_id, delivery_tag=tag)
                    frames.append(FrameReceived(channel, transfer, payload))
            case Dispositions(channel, performative, ranges):
                for first, last in ranges:
                    changed = performative._replace(first=first, last=None if last == first else last)
                    frames.append(FrameReceived(channel, changed, b""))
            case FrameReceived(channel, performative, _) if getattr(performative, "last", None) is not None:
                same = performative.first == performative.last
                frames.append(
                    FrameReceived(channel, performative._replace(last=None), b"") if same else event
                )
            case _:
                frames.append(event)
    return frames


def dumb_read(data: bytes) -> list[FrameReceived]:
    """Read valid frames without any fast path."""
    frames: list[FrameReceived] = []
    while data:
        size, doff, _, channel = struct.unpack_from(">IBBH", data)
        body = data[4 * doff : size]
        values = ValueReader(body, 0, len(body))
        described = values.read()
        assert isinstance(described, Described)
        frames.append(FrameReceived(channel, from_described(described), body[values.at :]))
        data = data[size:]
    return frames


def frame_anyhow(performative: Any, channel: int, payload: bytes, rnd: Random, wide: float) -> bytes:
    """Return a frame in an encoding that a legal peer may choose: usual with probability 1 - `wide`."""
    if rnd.random() >= wide:
        return frame(performative, channel, payload)
    body = encode_composite(performative)
    described = ValueReader(body, 0, len(body)).read()
    assert isinstance(described, Described)
    if rnd.random() < 0.5:
        list32 = encode_anyhow(described.value, rnd)
        return raw_frame(body[:3] + list32 + payload, channel)
    extended = bytes(4 * rnd.randrange(3))
    return raw_frame(encode_anyhow(described, rnd) + payload, channel, extended=extended)
