"""The reader against a simple reader, the fast path against the slow path, and both against garbage."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamqp import commands, frame

from qq.amqp.framing import FRAME_MAX_UNTUNED, Fault, FrameReader, Heartbeat, Publishes, _Mode
from qq.stored.editing import content
from tests.amqp.amqp_wire import (
    HEARTBEAT,
    Basic,
    Queue,
    body_frames,
    dumb_read,
    flat,
    header_frame,
    method,
    pieces,
    publish,
    raw,
    read_all,
)

fuzz = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)

short = st.text(max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=30)
    | st.floats(allow_nan=False, width=32)
    | st.builds(
        lambda digits, scale: Decimal(digits).scaleb(-scale),
        st.integers(-(2**31), 2**31 - 1),
        st.integers(0, 9),
    )
    | st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
    | st.binary(max_size=20).map(bytearray)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(short, inner, max_size=3),
    max_leaves=8,
)
tables = st.dictionaries(short, values, max_size=5)
properties = st.builds(
    Basic.Properties,
    content_type=st.none() | short,
    headers=st.none() | tables,
    delivery_mode=st.sampled_from((None, 1, 2)),
    priority=st.none() | st.integers(0, 255),
    correlation_id=st.none() | short,
    expiration=st.none() | st.integers(0, 10**9).map(str),
    message_id=st.none() | short,
    timestamp=st.none() | st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1)),  # noqa: DTZ001
    message_type=st.none() | short,
    app_id=st.none() | short,
)


@st.composite
def publishes(draw: st.DrawFn, channel: int) -> list[bytes]:
    """Frames of some messages in a row, often of the same kind."""
    name = st.text(st.characters(max_codepoint=127, categories=("L", "N")), max_size=10)
    first = method(
        channel,
        Basic.Publish(exchange=draw(name), routing_key=draw(short), mandatory=draw(st.booleans())),
    )
    kind = draw(properties)
    part = draw(st.sampled_from((1, 7, 100, 8184)))
    frames: list[bytes] = []
    for data in draw(
        st.lists(
            st.binary(max_size=30) | st.just(b"same size") | st.just(b"SAME SIZE"), min_size=1, max_size=6
        )
    ):
        frames += [first, header_frame(channel, len(data), kind), *body_frames(channel, data, part)]
    return frames


def other_frames(channel: int) -> st.SearchStrategy[list[bytes]]:
    return (
        st.lists(
            st.builds(Basic.Ack, st.integers(0, 2**63 - 1), st.booleans())
            | st.builds(Basic.Nack, st.integers(0, 2**63 - 1), st.booleans(), st.booleans())
            | st.builds(
                Queue.Declare,
                queue=st.just("q"),
                durable=st.booleans(),
                nowait=st.booleans(),
                arguments=tables,
            )
            | st.builds(Basic.Qos, prefetch_count=st.integers(0, 65535))
            | st.just(commands.Confirm.Select()),
            min_size=1,
            max_size=5,
        )
    ).map(lambda frames: [method(channel, value) for value in frames])


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Frames of up to three channels, interleaved frame by frame or run by run, with heartbeats between."""
    queues: list[list[bytes]] = []
    for channel in draw(st.lists(st.integers(1, 65535), min_size=1, max_size=3, unique=True)):
        runs = draw(st.lists(publishes(channel) | other_frames(channel), max_size=4))
        queues.append([one for run in runs for one in run])
    queues.append([HEARTBEAT] * draw(st.integers(0, 2)))
    stride = draw(st.sampled_from((1, 2, 1000)))
    out: list[bytes] = []
    rnd = draw(st.randoms(use_true_random=False))
    while queues := [queue for queue in queues if queue]:
        queue = rnd.choice(queues)
        out += queue[:stride]
        del queue[:stride]
    return b"".join(out)


cuts = st.lists(st.integers(1, 200), max_size=8)


def read(reader: FrameReader, stream: bytes, sizes: list[int]) -> list[tuple[Any, ...]]:
    return flat(event for piece in pieces(stream, sizes) for event in read_all(reader, piece))


class SlowReader(FrameReader):
    """Declines every fast path."""

    def _read_publishes(self, _data: bytes, at: int, *_: Any) -> tuple[int, int]:
        work_end: int = _[2]
        return at, work_end


@fuzz
@given(streams(), cuts)
def test_reader_agrees_with_pamqp_for_any_cut_of_the_stream(stream: bytes, sizes: list[int]) -> None:
    assert read(FrameReader(), stream, sizes) == dumb_read(stream)


@fuzz
@given(streams())
def test_properties_and_bodies_are_read_like_in_pamqp(stream: bytes) -> None:
    for event in read_all(FrameReader(), stream):
        if isinstance(event, Publishes):
            for message in event.messages:
                size, _, header = frame.unmarshal(message)
                expected = header.properties
                if expected.timestamp is not None:
                    expected.timestamp = int(expected.timestamp.timestamp())  # it is shown as it was sent
                assert content(message).properties == expected
                rest = message[size:]
                body = b""
                while rest:
                    size, _, part = frame.unmarshal(rest)
                    body, rest = body + part.value, rest[size:]
                assert content(message).body == body


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    stream = bytearray(draw(streams()))
    for _ in range(draw(st.integers(1, 4))):
        if stream:
            at = draw(st.integers(0, len(stream) - 1))
            stream[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(stream)


frames_of_garbage = st.lists(
    st.builds(
        lambda kind, channel, index, rest: raw(kind, channel, index + rest),
        st.sampled_from((1, 1, 1, 2, 3, 8)),
        st.integers(0, 2),
        st.sampled_from(
            [
                b"",
                *(struct.pack(">HH", c, m) for c in (10, 20, 40, 50, 60, 85, 90) for m in range(10, 130, 10)),
            ]
        ),
        st.binary(max_size=30),
    ),
    max_size=20,
).map(b"".join)
garbage = damaged() | frames_of_garbage | st.binary(max_size=500)


@fuzz
@given(garbage, cuts)
def test_garbage_causes_at_most_a_single_fault_and_is_not_kept(stream: bytes, sizes: list[int]) -> None:
    reader = FrameReader(message_bytes_max=1000)
    events: list[Any] = []
    for piece in pieces(stream, sizes):
        events += read_all(reader, piece)
        assert reader.held_bytes <= FRAME_MAX_UNTUNED + len(stream)
        assert not (reader._mode is _Mode.BROKEN and reader.held_bytes)
    assert sum(isinstance(event, Fault) for event in events) <= 1


@fuzz
@given(garbage, cuts)
def test_the_fast_path_and_the_slow_path_agree_on_garbage(stream: bytes, sizes: list[int]) -> None:
    whole = read(FrameReader(message_bytes_max=50), stream, [])
    assert read(FrameReader(message_bytes_max=50), stream, sizes) == whole
    assert read(SlowReader(message_bytes_max=50), stream, []) == whole


def test_heartbeats_between_frames_of_a_message_are_allowed() -> None:
    first, header, body = method(1, Basic.Publish()), header_frame(1, 3), body_frames(1, b"abc")[0]
    events = FrameReader().feed(b"".join((first, HEARTBEAT, header, HEARTBEAT, body, publish())))
    assert [type(event) for event in events] == [Heartbeat, Heartbeat, Publishes, Publishes]
    assert events[2].messages == [header + body]
