import struct

import pytest

from qq.amqp.framing import (
    FRAME_MAX_UNTUNED,
    FRAMES_AS_THEY_COME,
    Acks,
    ChannelFault,
    Fault,
    FrameReader,
    Heartbeat,
    Method,
    Publishes,
    _Content,
    stored_bytes_max,
)
from qq.errors import ReplyCode
from qq.stored.editing import content
from qq.tables import TABLE_DEPTH_MAX
from tests.amqp.amqp_wire import (
    HEARTBEAT,
    Basic,
    Channel,
    Connection,
    Queue,
    body_frames,
    flat,
    header_frame,
    message,
    method,
    pieces,
    publish,
    raw,
    read_all,
)


def publish_payload(key: str = "q") -> bytes:
    return method(1, Basic.Publish(routing_key=key))[7:-1]


def fault_of(*data: bytes) -> tuple[int, str, int, int]:
    events = [event for one in data for event in read_all(FrameReader(), one)]
    assert isinstance(events[-1], Fault)
    error = events[-1].error
    return error.code, error.text, error.class_id, error.method_id


def test_equal_publishes_are_joined_into_an_event() -> None:
    same, other = publish(1, b"a") + publish(1, b"bb") + publish(1, b""), publish(1, b"c", key="other")
    assert FrameReader().feed(same + other + publish(2, b"d")) == [
        Publishes(1, publish_payload(), [message(1, b"a"), message(1, b"bb"), message(1, b"")], 0),
        Publishes(1, publish_payload("other"), [message(1, b"c")], 0),
        Publishes(2, publish_payload(), [message(2, b"d")], 0),
    ]


def test_consecutive_acks_of_a_channel_are_joined_into_an_event() -> None:
    acks = [method(1, Basic.Ack(1)), method(1, Basic.Ack(5, multiple=True)), method(2, Basic.Ack(7))]
    assert FrameReader().feed(b"".join(acks)) == [Acks(1, [(1, False), (5, True)]), Acks(2, [(7, False)])]


def test_unused_bits_of_an_ack_are_ignored() -> None:
    odd = struct.pack(">BHIHHQBB", 1, 1, 13, 60, 80, 2**64 - 1, 0xFE, 0xCE)
    assert FrameReader().feed(method(1, Basic.Ack(1)) + odd) == [Acks(1, [(1, False), (2**64 - 1, False)])]


def test_a_message_cut_anywhere_arrives_whole() -> None:
    stream = publish(1, b"x" * 50)
    for at in range(len(stream)):
        reader = FrameReader()
        events = reader.feed(stream[:at]) + reader.feed(stream[at:])
        assert events == [Publishes(1, publish_payload(), [message(1, b"x" * 50)], 0)]
        assert reader.held_bytes == 0


def test_a_large_message_is_not_read_again_with_every_piece() -> None:
    reader = FrameReader(131_072)
    data = bytes(3_000_000)
    stream = method(1, Basic.Publish(routing_key="q")) + message(1, data, part=131_064)
    fed = 0
    for piece in pieces(stream, [65_536]):
        fed += len(piece)
        events = reader.feed(piece)
        if fed < len(stream):
            assert events == []
            # Parsed frames are not in the rest any more; the rest is less than a frame.
            assert reader.held_bytes - reader.collected_bytes < 131_072
    assert events == [Publishes(1, publish_payload(), [message(1, data, part=131_064)], 0)]
    assert reader.held_bytes == 0


def test_messages_on_different_channels_may_interleave() -> None:
    first, second = (method(channel, Basic.Publish(routing_key="q")) for channel in (1, 2))
    parts = [body_frames(channel, b"abcdef", 3) for channel in (1, 2)]
    headers = [header_frame(channel, 6) for channel in (1, 2)]
    stream = [first, second, headers[1], headers[0], parts[0][0], parts[1][0], parts[1][1], parts[0][1]]
    assert FrameReader().feed(b"".join(stream)) == [
        Publishes(2, publish_payload(), [message(2, b"abcdef", part=3)], 0),
        Publishes(1, publish_payload(), [message(1, b"abcdef", part=3)], 0),
    ]


def test_lone_publish_does_not_delay_a_second_channels_frame() -> None:
    reader = FrameReader()
    stream = method(1, Basic.Publish(routing_key="q")) + method(2, Channel.Close(200, "bye", 0, 0))
    assert [type(event) for event in reader.feed(stream)] == [Method]
    assert reader.feed(header_frame(1, 0))[0].messages == [header_frame(1, 0)]


def test_empty_body_frames_are_left_out() -> None:
    header, body = header_frame(1, 3), body_frames(1, b"abc")[0]
    stream = [method(1, Basic.Publish()), header, raw(3, 1, b""), raw(3, 1, b""), body]
    assert FrameReader().feed(b"".join(stream))[0].messages == [header + body]


def test_a_heartbeat_is_an_event() -> None:
    assert FrameReader().feed(HEARTBEAT) == [Heartbeat()]


def test_oversized_message_closes_its_channel_unbuffered() -> None:
    reader = FrameReader(message_bytes_max=1000)
    events = reader.feed(publish(1, b"small") + method(1, Basic.Publish()) + header_frame(1, 1001))
    assert isinstance(events[1], ChannelFault)
    assert events[1].error.code == ReplyCode.PRECONDITION_FAILED
    text = "PRECONDITION_FAILED - message size 1001 is larger than configured max size 1000"
    assert events[1].error.text == text
    assert reader.feed(b"".join(body_frames(1, bytes(1001), 300)) + publish(1) + publish(2)) == [
        Publishes(2, publish_payload(), [message(2, b"hello")], 0)
    ]
    assert reader.held_bytes == 0
    assert [type(event) for event in reader.feed(method(1, Channel.CloseOk()))] == [Method]
    assert reader.feed(publish(1))[0].messages == [message(1, b"hello")]


def nested(depth: int) -> bytes:
    """Return nested tables of this depth."""
    data = b""
    for _ in range(depth - 1):
        data = b"\1aF" + struct.pack(">I", len(data)) + data
    return struct.pack(">I", len(data)) + data


def test_headers_nested_too_deeply_close_the_channel() -> None:
    def with_headers(table: bytes) -> bytes:
        header = struct.pack(">HHQH", 60, 0, 0, 1 << 13) + table
        return method(1, Basic.Publish(routing_key="q")) + raw(2, 1, header)

    reader = FrameReader()
    good, deep = (with_headers(nested(depth)) for depth in (TABLE_DEPTH_MAX, TABLE_DEPTH_MAX + 1))
    taken, fault, other = reader.feed(good + deep + good + publish(2))
    assert isinstance(fault, ChannelFault)
    assert fault.error.text == (
        "PRECONDITION_FAILED - headers of the message: a field table is nested deeper than 32 levels"
    )
    assert (taken.channel, fault.channel, other.channel) == (1, 1, 2)
    assert reader.feed(good) == []
    assert reader.held_bytes == 0


def test_method_arguments_nested_too_deeply_close_the_channel() -> None:
    reader = FrameReader()
    declare = b"\x00\x32\x00\x0a\0\0\1q\0" + nested(TABLE_DEPTH_MAX + 1)
    (event,) = reader.feed(raw(1, 1, declare) + publish(1))
    assert isinstance(event, ChannelFault)
    assert event.error.code == ReplyCode.PRECONDITION_FAILED
    assert [type(event) for event in reader.feed(raw(1, 2, declare[:-1]) + publish(2))] == [Fault]


def test_unfinished_messages_of_a_connection_have_a_limit() -> None:
    reader = FrameReader(131_072, message_bytes_max=300_000)
    begin = [
        method(channel, Basic.Publish())
        + header_frame(channel, 300_000)
        + raw(3, channel, bytes(100_000)) * 2
        for channel in range(1, 10)
    ]
    events = [event for one in begin for event in read_all(reader, one)]
    assert [event.error.code for event in events] == [ReplyCode.RESOURCE_ERROR]
    assert reader.collected_bytes == 0


def test_message_in_too_many_tiny_frames_is_refused() -> None:
    """Some of its frames are kept as they came, and each takes its time."""
    reader = FrameReader(131_072, message_bytes_max=800_000)
    wire_max = stored_bytes_max(800_000, 131_072)
    begin = method(1, Basic.Publish()) + header_frame(1, 800_000)
    (fault,) = (
        event for one in [begin, *body_frames(1, bytes(800_000), 4)] for event in read_all(reader, one)
    )
    assert isinstance(fault, ChannelFault)
    text = f"PRECONDITION_FAILED - a message in frames so small that it takes more than {wire_max} bytes"
    assert (fault.error.code, fault.error.text) == (ReplyCode.PRECONDITION_FAILED, text)
    assert reader.held_bytes == 0
    (published,) = (
        event
        for one in [
            method(2, Basic.Publish()) + header_frame(2, 800_000),
            *body_frames(2, bytes(800_000), 32),
        ]
        for event in read_all(reader, one)
    )
    assert isinstance(published, Publishes)
    assert 800_000 < len(published.messages[0]) < 810_000


@pytest.mark.parametrize("part", [1, 3, 4088, 32 * 1024 - 1])
def test_small_frames_of_a_large_message_are_joined(part: int) -> None:
    """To walk two million frames at each delivery held up the node for a second or two."""
    data = bytes(range(256)) * 2048
    begin = method(1, Basic.Publish(routing_key="q")) + header_frame(1, len(data))
    reader = FrameReader(131_072)
    sent = [begin, *body_frames(1, data, part)]
    (published,) = (event for one in pieces(b"".join(sent), [65_536]) for event in read_all(reader, one))
    assert isinstance(published, Publishes)
    (stored,) = published.messages
    assert content(stored).body == data
    assert stored[: len(header_frame(1, len(data)))] == header_frame(1, len(data))
    assert len(stored) <= len(data) + 8 * (FRAMES_AS_THEY_COME + 10)
    assert reader.held_bytes == 0


def test_few_or_large_body_frames_are_kept_unchanged() -> None:
    for count, part in ((FRAMES_AS_THEY_COME, 3), (2 * FRAMES_AS_THEY_COME, 32 * 1024)):
        stream = method(1, Basic.Publish(routing_key="q")) + message(1, bytes(count * part), part=part)
        reader = FrameReader(131_072, message_bytes_max=2 * len(stream))
        (published,) = (event for one in pieces(stream, [100]) for event in read_all(reader, one))
        assert published == Publishes(1, publish_payload(), [message(1, bytes(count * part), part=part)], 0)


def test_events_before_a_fault_are_delivered() -> None:
    events = FrameReader().feed(publish() + method(1, Basic.Ack(1)) + b"\x01\0\0\0\0\0\x00X")
    assert [type(event) for event in events] == [Publishes, Acks, Fault]


def test_reader_takes_only_close_and_close_ok_after_a_fault() -> None:
    reader = FrameReader()
    assert [type(event) for event in reader.feed(raw(3, 1, b"?"))] == [Fault]
    stream = publish() + raw(3, 1, b"?") + method(0, Connection.CloseOk())
    assert [one for piece in pieces(stream, [5]) for one in flat(reader.feed(piece))] == [
        (0, "Connection.CloseOk")
    ]


def test_reader_ignores_input_after_a_framing_error() -> None:
    reader = FrameReader()
    assert [type(event) for event in reader.feed(b"GET / HTTP/1.1\r\n")] == [Fault]
    assert reader.feed(method(0, Connection.CloseOk())) == []


def test_raised_frame_limit_allows_only_the_envelope_on_top() -> None:
    reader = FrameReader()
    reader.frame_max = 20_000
    assert reader.feed(raw(3, 1, bytes(20_000))[:7]) == []
    reader = FrameReader()
    reader.frame_max = 20_000
    assert [type(event) for event in reader.feed(raw(3, 1, bytes(20_001))[:7])] == [Fault]


def test_untuned_frames_slightly_above_the_limit_are_read() -> None:
    stream = method(1, Basic.Publish()) + message(1, bytes(20_000), part=FRAME_MAX_UNTUNED)
    assert [event.messages for event in FrameReader().feed(stream)] == [
        [message(1, bytes(20_000), part=FRAME_MAX_UNTUNED)]
    ]


def test_stepwise_reader_returns_a_single_event_per_call() -> None:
    reader = FrameReader()
    reader.stepwise = True
    assert [type(event) for event in reader.feed(HEARTBEAT + publish() + method(1, Basic.Ack(1)))] == [
        Heartbeat
    ]
    assert [type(event) for event in reader.feed(b"")] == [Publishes]
    assert [type(event) for event in reader.feed(b"")] == [Acks]
    assert reader.feed(b"") == []


PUBLISH = method(1, Basic.Publish())
FAULTS = {
    "frame too large, known from its header alone": (
        struct.pack(">BHI", 3, 1, FRAME_MAX_UNTUNED + 1),
        (501, "FRAME_ERROR - type 3, all octets = <<>>: {frame_too_large,8193,8184}", 0, 0),
    ),
    "unknown frame type, known from its header alone": (
        struct.pack(">BHI", 4, 1, 100),
        (501, "FRAME_ERROR - type 4, all octets = <<>>: unknown_frame", 0, 0),
    ),
    "wrong end octet": (
        raw(1, 1, b"\0\x3c\0\x50", b"A"),
        (501, "FRAME_ERROR - type 1, all octets = <<0,60,0,80>>: {invalid_frame_end_marker,65}", 0, 0),
    ),
    "wrong end octet of a long frame": (
        raw(3, 1, b"A" * 20, b"B"),
        (
            501,
            f'FRAME_ERROR - type 3, first 16 octets = <<"{"A" * 16}">>: {{invalid_frame_end_marker,66}}',
            0,
            0,
        ),
    ),
    "wrong end octet of a body": (
        PUBLISH + header_frame(1, 1) + raw(3, 1, b"x", b"y"),
        (501, 'FRAME_ERROR - type 3, all octets = <<"x">>: {invalid_frame_end_marker,121}', 0, 0),
    ),
    "heartbeat with a payload": (
        raw(8, 0, b"x"),
        (501, 'FRAME_ERROR - type 8, all octets = <<"x">>: unknown_frame', 0, 0),
    ),
    "heartbeat on a channel": (
        raw(8, 1, b""),
        (505, "UNEXPECTED_FRAME - type 8, all octets = <<>>", 0, 0),
    ),
    "header without a method": (
        header_frame(1, 0),
        (505, "UNEXPECTED_FRAME - expected method frame, got non method frame instead", 0, 0),
    ),
    "body without a method": (
        raw(3, 1, b"x"),
        (505, "UNEXPECTED_FRAME - expected method frame, got non method frame instead", 0, 0),
    ),
    "method instead of a header": (
        PUBLISH + method(1, Basic.Ack(1)),
        (
            505,
            "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
            60,
            40,
        ),
    ),
    "body instead of a header": (
        PUBLISH + raw(3, 1, b"x"),
        (
            505,
            "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
            60,
            40,
        ),
    ),
    "publish instead of a body": (
        PUBLISH + header_frame(1, 1) + PUBLISH,
        (505, "UNEXPECTED_FRAME - expected content body, got non content body frame instead", 60, 40),
    ),
    "header instead of a body": (
        PUBLISH + header_frame(1, 1) + header_frame(1, 1),
        (505, "UNEXPECTED_FRAME - expected content body, got non content body frame instead", 60, 40),
    ),
    "header of another class": (
        PUBLISH + raw(2, 1, struct.pack(">HHQH", 50, 0, 0, 0)),
        (
            505,
            "UNEXPECTED_FRAME - expected content header for class 60, got one for class 50 instead",
            60,
            40,
        ),
    ),
    "header with a weight": (
        PUBLISH + raw(2, 1, struct.pack(">HHQH", 60, 1, 0, 0)),
        (
            505,
            "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
            60,
            40,
        ),
    ),
    "header that is too short": (
        PUBLISH + raw(2, 1, struct.pack(">HHQ", 60, 0, 0)),
        (501, "FRAME_ERROR - type 2, all octets = <<0,60,0,0,0,0,0,0,0,0,0,0>>: unknown_frame", 0, 0),
    ),
    "garbage in the properties": (
        PUBLISH + raw(2, 1, struct.pack(">HHQH", 60, 0, 0, 0x8000)),
        (502, "SYNTAX_ERROR - cannot decode the properties of the message", 60, 40),
    ),
    "more body than announced": (
        PUBLISH + header_frame(1, 2) + raw(3, 1, b"xyz"),
        (501, "FRAME_ERROR - the body has 1 octets more than its content header says", 60, 40),
    ),
    "method without an index": (
        raw(1, 1, b"\0\x3c"),
        (501, "FRAME_ERROR - type 1, all octets = <<0,60>>: unknown_frame", 0, 0),
    ),
    "arguments that are cut": (
        raw(1, 1, b"\0\x3c\0\x50\0"),
        (502, "SYNTAX_ERROR - cannot decode basic.ack: ", 60, 80),
    ),
    "publish arguments that are cut": (
        raw(1, 1, b"\0\x3c\0\x28\0\0\x05"),
        (502, "SYNTAX_ERROR - cannot decode basic.publish: ", 60, 40),
    ),
    "unknown method": (
        raw(1, 1, struct.pack(">HH", 60, 999)),
        (503, "COMMAND_INVALID - unimplemented method", 60, 999),
    ),
    "method that only a server sends": (
        method(1, Basic.Deliver("c", 1, False, "", "q")),
        (503, "COMMAND_INVALID - unimplemented method", 60, 60),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_has_its_code_and_text(name: str) -> None:
    stream, (code, text, class_id, method_id) = FAULTS[name]
    fault = fault_of(stream)
    assert fault[0] == code
    assert fault[1].startswith(text) if text.endswith(": ") else fault[1] == text
    assert fault[2:] == (class_id, method_id)


@pytest.mark.parametrize("name", FAULTS)
def test_fault_after_publishes_is_the_same_byte_by_byte(name: str) -> None:
    stream, _ = FAULTS[name]
    reader = FrameReader()
    events = [event for piece in pieces(publish() * 3 + stream, [1]) for event in read_all(reader, piece)]
    assert [type(event) for event in events] == [Publishes] * 3 + [Fault]
    assert flat(FrameReader().feed(publish() * 3 + stream))[-1] == flat(events)[-1]


def test_the_end_octet_of_each_frame_of_a_message_is_checked() -> None:
    whole = publish(1, b"same")
    parts = body_frames(1, b"abcdef", 2)
    parts[1] = parts[1][:-1] + b"X"
    split = method(1, Basic.Publish(routing_key="q")) + header_frame(1, 6) + b"".join(parts)
    empty = publish(1, b"")[:-1] + b"X"
    header = method(1, Basic.Publish(routing_key="q")) + header_frame(1, 4)[:-1] + b"X" + raw(3, 1, b"same")
    for wrong in (whole[:-1] + b"X", split, empty, header):
        events = FrameReader().feed(whole * 2 + wrong)
        assert events[0].messages == [message(1, b"same")] * 2
        assert isinstance(events[1], Fault)
        assert "invalid_frame_end_marker" in events[1].error.text


def test_unfinished_message_is_held_in_a_single_buffer() -> None:
    # Body frames of a single octet: a list of frames would take 50 times the size of the body.
    assert isinstance(_Content(b"", 0).wire, bytearray)


# --- the work of a step


def first_step(stream: bytes) -> int:
    """Return the number of messages and methods in the first step of a reader."""
    events = FrameReader(131_072).feed(stream)
    return sum(len(event.messages) if isinstance(event, Publishes) else 1 for event in events)


def test_step_has_few_messages_with_different_frames() -> None:
    publish = method(1, Basic.Publish(routing_key="q"))
    properties = [Basic.Properties(expiration=f"{number:05}") for number in range(2000)]
    assert first_step(b"".join(publish + message(1, b"x", each) for each in properties)) <= 32
    assert first_step((publish + message(1, b"x", properties[0])) * 2000) > 500


def test_step_has_few_frames_with_large_tables() -> None:
    table = {f"key-{number}": number for number in range(500)}
    declare = Queue.Declare(queue="q", passive=True, arguments=table)
    assert first_step(method(1, declare) * 20) <= 2
    publish = method(1, Basic.Publish(routing_key="q"))
    properties = [Basic.Properties(headers=table | {"number": number}) for number in range(20)]
    assert first_step(b"".join(publish + message(1, b"", each) for each in properties)) <= 2
    assert first_step(method(1, Queue.Declare(queue="q")) * 100) > 10


@pytest.mark.parametrize("size", [12, 13])
def test_short_content_header_before_more_octets_is_a_fault(size: int) -> None:
    header = b"\0\x3c" + bytes(size - 2)
    begin = method(1, Basic.Publish(routing_key="q")) + raw(2, 1, header)
    code, text, *_ = fault_of(begin + HEARTBEAT * 3)
    assert (code, text.endswith("unknown_frame")) == (ReplyCode.FRAME_ERROR, True)
