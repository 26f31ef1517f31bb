"""Frames: headers, limits, each cut of the stream, and a reader with fast paths beside a reader without."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.amqp10.composites import encode_composite
from qq.amqp10.conditions import Condition
from qq.amqp10.framing import (
    FRAME_MAX_UNTUNED,
    STEP_WORK,
    TEMPLATES_MAX,
    Dispositions,
    FrameFault,
    FrameReader10,
    FrameReceived,
    Heartbeat10,
    ProtocolHeader,
    StreamFault,
    StreamStage,
    Transfers,
)
from qq.amqp10.performatives import (
    AcceptedState,
    AttachFrame,
    BeginFrame,
    CloseFrame,
    DispositionFrame,
    FlowFrame,
    ModifiedState,
    OpenFrame,
    RejectedState,
    ReleasedState,
    SaslInit,
    SaslMechanisms,
    SaslResponse,
    TransferFrame,
)
from qq.amqp10.values import Symbol, Value
from tests.amqp10.amqp10_wire import (
    FRAME_MAX,
    HEARTBEAT,
    dumb_read,
    flat,
    frame,
    frame_anyhow,
    pieces_of,
    raw_frame,
    read_all,
    reader_of_frames,
)

SASL_HEADER, AMQP_HEADER = b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"


def test_handshake_is_read_a_step_at_a_time() -> None:
    init = SaslInit("PLAIN", b"\0u\0p")
    pipelined = SASL_HEADER + frame(init, stage=StreamStage.SASL) + AMQP_HEADER + frame(OpenFrame("c"))
    pipelined += frame(BeginFrame(None, 0, 1, 1))
    for size in (1, 7, 8, 9, len(pipelined)):
        reader = FrameReader10()
        events: list[Any] = []
        for piece in pieces_of(pipelined, size):
            feed = piece
            while feed or reader.has_more:
                step = reader.feed(feed)
                assert len(step) <= 1
                events += step
                feed = b""
                if step:
                    reader.stage = STAGES.get(len(events), StreamStage.AMQP)
                elif not reader.has_more:
                    break
        assert events == [
            ProtocolHeader(SASL_HEADER),
            FrameReceived(0, init, b""),
            ProtocolHeader(AMQP_HEADER),
            FrameReceived(0, OpenFrame("c"), b""),
            FrameReceived(0, BeginFrame(None, 0, 1, 1), b""),
        ]
        assert reader.held_bytes == 0


STAGES = {1: StreamStage.SASL, 2: StreamStage.PROTOCOL_HEADER}
"""The stage after so many events of a handshake."""


def test_empty_frame_is_a_heartbeat() -> None:
    extended = raw_frame(b"", 3, extended=bytes(8))
    assert reader_of_frames().feed(HEARTBEAT + extended) == [Heartbeat10(), Heartbeat10()]


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        ("00000007 02000000", "frame size (7 bytes) is less than 8"),
        ("00000000 02000000", "frame size (0 bytes) is less than 8"),
        ("00020001 02000000", "frame size (131073 bytes) > maximum frame size (131072 bytes)"),
        ("ffffffff 02000000", "frame size (4294967295 bytes) > maximum frame size (131072 bytes)"),
        ("00000008 01000000", "data offset 1 of a frame of 8 bytes"),
        ("00000008 03000000", "data offset 3 of a frame of 8 bytes"),
        ("00000008 02010000", "frame type 1 instead of 0"),
        ("00000008 02020000", "frame type 2 instead of 0"),
    ],
)
def test_stream_ends_at_a_bad_frame_header(octets: str, text: str) -> None:
    bad = bytes.fromhex(octets)
    for size in (1, 8, 100):
        reader = reader_of_frames()
        events = read_all(reader, pieces_of(HEARTBEAT + bad + HEARTBEAT, size))
        assert len(events) == 2
        fault = events[1]
        assert isinstance(fault, StreamFault)
        assert (fault.error.condition, fault.error.description) == (Condition.FRAMING_ERROR, text)
        assert reader.held_bytes == 0
        assert not reader.has_more


def test_frame_may_have_the_greatest_size() -> None:
    reader = reader_of_frames()
    reader.frame_max = FRAME_MAX_UNTUNED
    transfer = TransferFrame(0, 1, b"t")
    room = FRAME_MAX_UNTUNED - len(frame(transfer))
    for _ in range(2):
        (event,) = reader.feed(frame(transfer, payload=bytes(room)))
        assert not isinstance(event, StreamFault)
    (event,) = reader.feed(frame(transfer, payload=bytes(room + 1)))
    assert isinstance(event, StreamFault)


@pytest.mark.parametrize(
    ("stage", "data", "condition"),
    [
        (StreamStage.AMQP, b"\x00\x53\x99\x45", Condition.DECODE_ERROR),
        (StreamStage.AMQP, b"\x00\x53\x16\x45", Condition.INVALID_FIELD),
        (StreamStage.AMQP, b"\x00\x53\x24\x45", Condition.DECODE_ERROR),
        (StreamStage.AMQP, b"\x45", Condition.DECODE_ERROR),
        (StreamStage.AMQP, b"\x00\x53\x18\x45\x40", Condition.DECODE_ERROR),
        (StreamStage.AMQP, b"\x00\x53\x18\xc0\x09\x01", Condition.DECODE_ERROR),
        (StreamStage.AMQP, b"\x00\x53\x41\xc0\x04\x01\xa3\x01\x61", Condition.DECODE_ERROR),
        (StreamStage.SASL, b"\x00\x53\x18\x45", Condition.DECODE_ERROR),
        (StreamStage.SASL, b"\x00\x53\x40\x45", Condition.INVALID_FIELD),
        (StreamStage.SASL, b"", Condition.DECODE_ERROR),
    ],
)
def test_bad_performative_leaves_the_stream_intact(
    stage: StreamStage, data: bytes, condition: Condition
) -> None:
    good = frame(SaslResponse(b"r"), stage=stage) if stage is StreamStage.SASL else frame(CloseFrame())
    fault, event = reader_of_frames(stage).feed(raw_frame(data, 5, stage) + good)
    assert isinstance(fault, FrameFault)
    assert (fault.channel, fault.error.condition) == (5, condition)
    assert isinstance(event, FrameReceived)


def test_server_refuses_frames_of_servers() -> None:
    (fault,) = reader_of_frames(StreamStage.SASL).feed(
        frame(SaslMechanisms(("PLAIN",)), stage=StreamStage.SASL)
    )
    assert isinstance(fault, FrameFault)


def transfers(link: TransferFrame, count: int, channel: int = 1, payload: bytes = b"m") -> bytes:
    return b"".join(
        frame(
            link._replace(delivery_id=1000 + i, delivery_tag=i.to_bytes(4, "big")), channel, payload * (i % 5)
        )
        for i in range(count)
    )


def test_transfers_of_a_link_share_an_event() -> None:
    data = transfers(TransferFrame(0, settled=False), 100)
    first, others = reader_of_frames().feed(data)
    assert isinstance(first, FrameReceived)
    assert isinstance(others, Transfers)
    assert flat([first, others]) == dumb_read(data)
    assert others.ids == list(range(1001, 1100))


@pytest.mark.parametrize(
    ("change", "payload"),
    [
        ({}, b"xx"),
        ({"settled": True}, b"m"),
        ({"handle": 8}, b"m"),
        ({"message_format": 9}, b"m"),
        ({"delivery_tag": b"abc"}, b"mm"),
        ({"delivery_tag": b"abcde"}, b""),
        ({"more": True}, b""),
    ],
)
@pytest.mark.parametrize("place", [1, 2, 15, 16, 17, 31, 32, 64, 127, 128, 399])
def test_transfers_of_equal_size_are_read_exactly(change: dict[str, Any], payload: bytes, place: int) -> None:
    link = TransferFrame(7, 0, b"", 5, settled=False)
    each = [
        (link._replace(delivery_id=1000 + i, delivery_tag=b"%04d" % i), b"%c" % (97 + i % 26))
        for i in range(400)
    ]
    each[place] = each[place][0]._replace(**change), payload
    data = b"".join(frame(transfer, 1, octets) for transfer, octets in each)
    for size in (len(data), len(data) // 2 + 3, 900):
        assert flat(read_all(reader_of_frames(), pieces_of(data, size))) == dumb_read(data)


def test_tag_in_a_different_encoding_of_equal_size_is_exact() -> None:
    each = [frame(TransferFrame(7, 1000 + i, b"\x00\x00\x01a", 5, settled=False), 1) for i in range(20)]
    each[9] = each[9].replace(b"\xa0\x04", b"\xb0\x00")
    events = flat(read_all(reader_of_frames(), [b"".join(each)]))
    assert events == dumb_read(b"".join(each))
    assert {event.performative.delivery_tag for event in events} == {b"\x00\x00\x01a", b"a"}


def test_transfers_of_several_links_are_told_apart() -> None:
    each = [
        transfers(TransferFrame(handle, settled=settled), 30, channel)
        for channel, handle, settled in (
            (1, 0, True),
            (1, 1, True),
            (1, 255, False),
            (2, 0, False),
            (300, 300, True),
        )
    ]
    frames = [list(_frames(data)) for data in each]
    data = b"".join(b"".join(row) for row in zip(*frames, strict=True))
    events = read_all(reader_of_frames(), [data])
    assert flat(events) == dumb_read(data)
    assert sum(isinstance(event, FrameReceived) for event in events) == len(each)


def _frames(data: bytes) -> Any:
    while data:
        size = int.from_bytes(data[:4], "big")
        yield data[:size]
        data = data[size:]


def list32_frame(performative: Any, channel: int, payload: bytes = b"") -> bytes:
    """Return a frame with a list of 4-octet sizes, as go-amqp writes a list."""
    body = encode_composite(performative)
    assert body[3] == 0xC0
    return raw_frame(
        body[:3] + b"\xd0" + struct.pack(">II", body[4] + 3, body[5]) + body[6:] + payload, channel
    )


LINK = TransferFrame(300, 70_000, b"tag4", 7, settled=True)
SETTLED = DispositionFrame(True, 70_000, None, True, AcceptedState())
RANGE = SETTLED._replace(last=70_001)


@pytest.mark.parametrize("write", [frame, list32_frame])
@pytest.mark.parametrize(
    ("usual", "changes", "channel"),
    [
        (LINK, {}, 2),
        (LINK, {"handle": 301}, 1),
        (LINK._replace(handle=1), {"handle": 2}, 1),
        (LINK, {"delivery_id": 70}, 1),
        (LINK, {"delivery_tag": b"tag"}, 1),
        (LINK._replace(message_format=None, settled=None), {"delivery_tag": b"tag"}, 1),
        (LINK, {"message_format": 8}, 1),
        (LINK, {"settled": False}, 1),
        (LINK, {"batchable": True}, 1),
        (SETTLED, {}, 2),
        (SETTLED, {"role": False}, 1),
        (SETTLED, {"first": 70}, 1),
        (SETTLED, {"last": 70_001}, 1),
        (SETTLED, {"settled": False}, 1),
        (SETTLED, {"state": ReleasedState()}, 1),
        (RANGE, {}, 2),
        (RANGE, {"last": 71}, 1),
        (RANGE, {"first": 71}, 1),
        (RANGE, {"state": ReleasedState()}, 1),
    ],
)
def test_frame_that_differs_from_the_last_is_read_exactly(
    write: Any, usual: Any, changes: dict[str, Any], channel: int
) -> None:
    same, other = write(usual, 1), write(usual._replace(**changes), channel)
    data = same * 3 + other + same + other * 2 + same * 2
    events = read_all(reader_of_frames(), [data])
    assert flat(events) == flat(dumb_read(data))
    assert isinstance(events[1], Transfers | Dispositions)


@pytest.mark.parametrize("write", [frame, list32_frame])
def test_flows_of_any_shape_are_read_exactly(write: Any) -> None:
    credit = FlowFrame(70_000, 400, 70_001, 2**32 - 1, 5, 9, 100)
    flows = [
        credit,
        FlowFrame(None, 400, 0, 1),
        FlowFrame(0, 1, 2, 3),
        credit._replace(handle=0),
        credit._replace(delivery_count=70_000, link_credit=0),
        credit._replace(drain=True),
        credit._replace(echo=True),
        credit._replace(available=7, properties={Symbol("rabbitmq:active"): True}),
    ]
    changed = [
        flow._replace(incoming_window=399, next_outgoing_id=flow.next_outgoing_id + 1) for flow in flows
    ]
    rnd = Random(1)
    drawn = [(rnd.choice(flows + changed), rnd.randrange(2)) for _ in range(400)]
    data = b"".join(write(flow, channel) for flow, channel in drawn)
    assert read_all(reader_of_frames(), [data]) == [
        FrameReceived(channel, flow, b"") for flow, channel in drawn
    ]
    for cut in range(1, len(write(credit, 1))):
        assert len(read_all(reader_of_frames(), [write(credit, 1) * 2 + write(credit, 1)[:cut]])) == 2
    wrong = write(credit, 1).replace(b"\x52\x64", b"\x50\x64")
    assert isinstance(reader_of_frames().feed(write(credit, 1) * 2 + wrong)[2], FrameFault)


def test_octets_of_an_equal_frame_may_differ_in_size() -> None:
    """Ids of the constructors smalluint and ubyte take two octets each, and only the former is an id."""
    small = frame(DispositionFrame(True, 1, 5, True, AcceptedState()))
    boolean = small.replace(b"\x52\x05", b"\x50\x05")
    events = reader_of_frames().feed(small * 3 + boolean)
    assert [type(event) for event in events] == [FrameReceived, Dispositions, FrameFault]
    transfer = frame(LINK)
    symbol = transfer.replace(b"\xa0\x04tag4", b"\xa3\x04tag4")
    events = reader_of_frames().feed(transfer * 3 + symbol)
    assert [type(event) for event in events] == [FrameReceived, Transfers, FrameFault]


def test_links_with_lists_of_each_size_have_templates() -> None:
    links = [LINK._replace(handle=handle) for handle in (0, 1, 2, 255)]
    for write in (frame, list32_frame):
        data = b"".join(write(link, 1) for link in links) * 10
        events = read_all(reader_of_frames(), [data])
        assert sum(isinstance(event, FrameReceived) for event in events) == len(links)


@pytest.mark.parametrize("begin", ["005314c0", "005314d0", "005315c0", "005315d0"])
def test_extended_header_is_not_taken_for_a_performative(begin: str) -> None:
    for performative in (LINK, SETTLED, FlowFrame(None, 1, 0, 1)):
        data = raw_frame(encode_composite(performative), 1, extended=bytes.fromhex(begin) * 2)
        events = reader_of_frames().feed(frame(LINK, 1) + frame(SETTLED, 1) + data * 2)
        assert flat(events)[2:] == [FrameReceived(1, performative, b"")] * 2


@pytest.mark.parametrize(
    "change",
    [{"more": True}, {"aborted": True}, {"resume": True}, {"state": AcceptedState()}, {"delivery_id": None}],
)
def test_transfer_of_a_part_is_read_alone(change: dict[str, Any]) -> None:
    part = frame(TransferFrame(0, 1000, b"t")._replace(**change), payload=b"p")
    events = reader_of_frames().feed(part * 3)
    assert [type(event) for event in events] == [FrameReceived] * 3


def test_last_part_of_a_delivery_is_not_taken_for_a_delivery() -> None:
    """Proton repeats id and tag in each part."""
    whole, part = frame(LINK, 1, b"w"), frame(LINK._replace(more=True), 1, b"p")
    other = frame(LINK._replace(handle=1), 1)
    data = whole * 3 + part + other * 2 + part + other + whole + whole * 2
    events = reader_of_frames().feed(data)
    assert flat(events) == dumb_read(data)
    taken = [message for event in events if isinstance(event, Transfers) for message in event.messages]
    assert taken == [b"w", b"w", b"", b"w", b"w"]


def test_templates_of_a_connection_are_limited() -> None:
    reader = reader_of_frames()
    links = [TransferFrame(1, settled=True, message_format=n) for n in range(256)]
    for channel in range(3):
        for handle in range(TEMPLATES_MAX):
            read_all(reader, [transfers(links[0]._replace(handle=handle), 1, channel)])
    assert len(reader._transfers) == TEMPLATES_MAX
    for length in range(TEMPLATES_MAX + 9):
        flow = FlowFrame(None, 1, 2, 3, properties={Symbol("k"): "v" * length})
        assert reader.feed(frame(flow)) == [FrameReceived(0, flow, b"")]
    assert len(reader._flows) <= TEMPLATES_MAX


@pytest.mark.parametrize(
    "shape",
    [DispositionFrame(True, 0), DispositionFrame(True, 0, 5), DispositionFrame(True, 2**32 - 1, 0, True)],
)
def test_disposition_with_id_zero_is_read_alone(shape: DispositionFrame) -> None:
    events = reader_of_frames().feed(frame(shape) * 3)
    assert events == [FrameReceived(0, shape, b"")] * 3


@pytest.mark.parametrize("is_range", [False, True])
@pytest.mark.parametrize("first", [7, 70_000])
def test_dispositions_of_a_session_share_an_event(first: int, is_range: bool) -> None:
    frames = [
        DispositionFrame(True, first + 2 * i, first + 2 * i + 1 if is_range else None, True, AcceptedState())
        for i in range(50)
    ]
    data = b"".join(frame(one, 9) for one in frames)
    events = reader_of_frames().feed(data)
    assert [type(event) for event in events] == [FrameReceived, Dispositions]
    assert [event.performative for event in flat(events)] == frames
    assert {event.channel for event in flat(events)} == {9}


def test_dispositions_are_divided_when_the_outcome_differs() -> None:
    states = [AcceptedState(), AcceptedState(), ReleasedState(), ReleasedState(), RejectedState(), None]
    frames = [DispositionFrame(True, 50 + i, settled=True, state=state) for i, state in enumerate(states)]
    data = b"".join(frame(one) for one in frames)
    assert [event.performative for event in flat(reader_of_frames().feed(data))] == frames


def test_step_has_limited_work() -> None:
    reader = reader_of_frames()
    flows = frame(FlowFrame(None, 1, 0, 1)) * 1000
    assert 10 < len(reader.feed(flows)) < 20
    assert reader.has_more
    assert len(read_all(reader, [b""])) > 900
    reader = reader_of_frames()
    wide: dict[Value, Value] = {Symbol("x"): [[]] * 9_000}
    assert len(reader.feed(frame(FlowFrame(None, 1, 0, 1, properties=wide)) * 10)) < 5
    reader = reader_of_frames()
    first = len(flat(reader.feed(transfers(TransferFrame(0), 20_000, payload=b"p" * 10))))
    assert 1000 < first < STEP_WORK // 20


def test_reader_remembers_no_maps() -> None:
    reader = reader_of_frames()
    for size in range(1, 100):
        properties: dict[Value, Value] = {Symbol("x" * size): None}
        read_all(reader, [frame(FlowFrame(None, 1, 0, 1, properties=properties))])
    state = ModifiedState(message_annotations={Symbol("x-a"): None})
    read_all(reader, [frame(DispositionFrame(True, 0, state=state))])
    assert (reader._flows, reader._disposition) == ({}, None)
    small = DispositionFrame(True, 1, state=ModifiedState(delivery_failed=True))
    read_all(reader, [frame(FlowFrame(None, 1, 0, 1)), frame(small)])
    assert reader._flows
    assert reader._disposition


def test_octets_may_arrive_while_a_step_has_left_some() -> None:
    data = transfers(TransferFrame(0), 200, payload=b"p" * 1000)
    reader = reader_of_frames()
    events = reader.feed(data[:100_001])
    assert reader.has_more
    assert 0 < reader.held_bytes < 100_001
    events += read_all(reader, [data[100_001:]])
    assert flat(events) == dumb_read(data)


session = st.integers(0, 3)
ids = st.integers(0, 2**32 - 1) | st.integers(0, 300)


@st.composite
def runs(draw: st.DrawFn) -> list[Any]:
    """Similar frames in a row, each (performative, channel, payload)."""
    channel, first = draw(session), draw(ids)
    count = draw(st.integers(1, 12) | st.integers(30, 80))
    step = draw(st.integers(0, 3))
    numbers = [(first + i * step) & (2**32 - 1) for i in range(count)]
    state = draw(st.sampled_from((None, AcceptedState(), ReleasedState(), RejectedState())))
    payload = draw(st.binary(max_size=20))
    kind = draw(st.sampled_from(("transfer", "disposition", "other")))
    if kind == "transfer":
        link = TransferFrame(
            draw(st.sampled_from((0, 1, 255, 256, 70_000))),
            message_format=draw(st.sampled_from((None, 0, 7))),
            settled=draw(st.sampled_from((None, True, False))),
            more=draw(st.integers(0, 3)) == 0,
            aborted=draw(st.integers(0, 7)) == 0,
            state=state if draw(st.integers(0, 5)) == 0 else None,
        )
        width, differ = draw(st.integers(0, 32)), draw(st.booleans())
        return [
            (
                link._replace(delivery_id=n, delivery_tag=(n.to_bytes(4, "big") * 8)[:width]),
                channel,
                payload[n % 3 :] if differ else payload,
            )
            for n in numbers
        ]
    if kind == "disposition":
        length = draw(st.integers(0, 2))
        return [
            (
                DispositionFrame(
                    True, n, min(n + length, 2**32 - 1) if length else None, draw(st.booleans()), state
                ),
                channel,
                b"",
            )
            for n in numbers
        ]
    others = [
        FlowFrame(1, 2, 3, first, 5, 6, 7),
        FlowFrame(None, first, 3, 4, echo=True),
        AttachFrame("n", 1, role=False),
        BeginFrame(None, 1, 2, 3),
    ]
    return [(draw(st.sampled_from(others)), channel, b"") for _ in numbers]


streams = st.tuples(
    st.lists(runs(), min_size=1, max_size=5), st.randoms(use_true_random=False), st.sampled_from((0, 0.1, 1))
)


def _stream(drawn: tuple[list[list[Any]], Random, float]) -> bytes:
    rows, rnd, wide = drawn
    if rnd.random() < 0.5:  # interleave
        rows = [[run[i] for run in rows if i < len(run)] for i in range(12)]
    return b"".join(frame_anyhow(*one, rnd, wide) for run in rows for one in run)


@given(streams, st.integers(1, 200))
def test_fast_paths_and_a_simple_reader_agree(
    drawn: tuple[list[list[Any]], Random, float], size: int
) -> None:
    data = _stream(drawn)
    expected = flat(dumb_read(data))
    assert flat(read_all(reader_of_frames(), [data])) == expected
    reader = reader_of_frames()
    assert flat(read_all(reader, pieces_of(data, size))) == expected
    assert reader.held_bytes == 0


@given(streams)
def test_each_cut_of_a_stream_gives_the_same_frames(drawn: tuple[list[list[Any]], Random, float]) -> None:
    data = _stream(drawn)[:250]
    expected = flat(read_all(reader_of_frames(), [data]))
    for cut in range(len(data)):
        assert flat(read_all(reader_of_frames(), [data[:cut], data[cut:]])) == expected


@given(
    streams,
    st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(1, 99),
)
def test_damaged_stream_raises_no_exception(
    drawn: tuple[list[list[Any]], Random, float], damage: list[tuple[int, int]], size: int
) -> None:
    data = bytearray(_stream(drawn))
    for place, octet in damage:
        data[place % len(data)] = octet
    whole = read_all(reader_of_frames(), [bytes(data)])
    reader = reader_of_frames()
    pieces = read_all(reader, pieces_of(bytes(data), size))
    assert _comparable(pieces) == _comparable(whole)
    assert reader.held_bytes <= FRAME_MAX


def _comparable(events: list[Any]) -> list[Any]:
    return [
        str(event.error) if isinstance(event, FrameFault | StreamFault) else event for event in flat(events)
    ]
