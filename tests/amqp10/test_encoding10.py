"""The server's output is read by its own reader: deliveries in one frame and in several, outcomes, heartbeats."""

from __future__ import annotations

import pytest

from qq.amqp10.composites import encode_composite
from qq.amqp10.encoding import (
    ACCEPTED,
    HEARTBEAT,
    RELEASED,
    TRANSFER_OVERHEAD,
    Outgoing10,
    deliveries,
    encode_frame,
    encode_sasl,
    outcome_frame,
)
from qq.amqp10.framing import FRAME_MAX_MIN, FrameReceived, Heartbeat10, StreamStage
from qq.amqp10.performatives import (
    AcceptedState,
    CloseFrame,
    DispositionFrame,
    ReleasedState,
    SaslResponse,
    TransferFrame,
)
from tests.amqp10.amqp10_wire import flat, frame, read_all, reader_of_frames

HEAD = b"hea"


def sent(link: Outgoing10, first_id: int, messages: list[bytes]) -> list[FrameReceived]:
    """Send messages that begin with `HEAD`."""
    out: list[bytes] = []
    deliveries(link, first_id, HEAD, [message.removeprefix(HEAD) for message in messages], out)
    assert all(len(piece) <= link.frame_max for piece in out)
    frames = flat(read_all(reader_of_frames(), [b"".join(out)]))
    assert all(frame.channel == link.channel for frame in frames)
    return frames


@pytest.mark.parametrize("is_settled", [False, True])
def test_deliveries_have_ids_and_tags_that_wrap(is_settled: bool) -> None:
    messages = [HEAD + b"message %d" % i * i for i in range(1, 20)]
    frames = sent(Outgoing10(65535, 255, is_settled, 131072), 2**32 - 7, messages)
    assert [frame.payload for frame in frames] == messages
    for i, received in enumerate(frames):
        number = (2**32 - 7 + i) % 2**32
        tag = number.to_bytes(4, "big")
        assert received.performative == TransferFrame(255, number, tag, 0, is_settled)


@pytest.mark.parametrize("frame_max", [FRAME_MAX_MIN, 700])
def test_message_is_divided_when_it_exceeds_a_frame(frame_max: int) -> None:
    room = frame_max - TRANSFER_OVERHEAD
    for size in (3, room - 1, room, room + 1, 2 * room, 2 * room + 1, 10_000):
        messages = [(HEAD + octets)[:size] for octets in (bytes(range(256)) * 40, b"x" * size)]
        frames = sent(Outgoing10(1, 0, False, frame_max), 4, messages)
        assert len(frames) == 2 * max(1, -(-size // room))
        half = len(frames) // 2
        for number, message, parts in ((4, messages[0], frames[:half]), (5, messages[1], frames[half:])):
            assert b"".join(part.payload for part in parts) == message
            performatives = [part.performative for part in parts]
            assert [one.more for one in performatives] == [True] * (half - 1) + [False]
            assert performatives[0]._replace(more=False) == TransferFrame(
                0, number, number.to_bytes(4, "big"), 0, False
            )
            assert performatives[1:] == [TransferFrame(0, more=one.more) for one in performatives[1:]]


@pytest.mark.parametrize(("octets", "state"), [(ACCEPTED, AcceptedState()), (RELEASED, ReleasedState())])
def test_outcome_is_a_settled_disposition(octets: bytes, state: object) -> None:
    for first, last in ((0, 0), (3, 4), (2**32 - 1, 5)):
        (received,) = reader_of_frames().feed(outcome_frame(7, first, last, octets))
        assert received == FrameReceived(7, DispositionFrame(True, first, last, True, state), b"")


def test_frames_of_each_type_are_encoded() -> None:
    assert encode_frame(3, CloseFrame()) == frame(CloseFrame(), 3)
    assert encode_sasl(SaslResponse(b"r")) == frame(SaslResponse(b"r"), stage=StreamStage.SASL)
    assert reader_of_frames().feed(HEARTBEAT) == [Heartbeat10()]
    assert encode_composite(AcceptedState()) == ACCEPTED
