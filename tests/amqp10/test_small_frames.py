"""A client that takes the smallest frames: errors are shortened for it, and links with long answers are refused."""

from __future__ import annotations

from typing import Any

import pytest

from qq.amqp10.conditions import Condition
from qq.amqp10.framing import FRAME_MAX_MIN
from qq.amqp10.link import LinkFault
from qq.amqp10.performatives import (
    AttachFrame,
    CloseFrame,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    ErrorReply,
    ModifiedState,
    OpenFrame,
    RejectedState,
    SourceTerminus,
    TargetTerminus,
)
from qq.amqp10.session import LinkRequested, SessionFault
from qq.amqp10.values import Symbol
from tests.amqp10.amqp10_client import Client10
from tests.amqp10.amqp10_wire import dumb_read, frame

LONG = ErrorReply("amqp:internal-error", "é" * 600, {Symbol("info"): "x" * 600})
SMALL_OPEN = frame(OpenFrame("c", max_frame_size=FRAME_MAX_MIN))


@pytest.fixture(name="client")
def client_fixture() -> Client10:
    client = Client10(open_frame=SMALL_OPEN)
    client.begin()
    return client


def read(client: Client10) -> list[Any]:
    """Return the performatives that the server has sent, each in a frame that the client takes."""
    octets = b"".join(client.server.out)
    at, sizes = 0, list[int]()
    while at < len(octets):
        sizes.append(int.from_bytes(octets[at : at + 4]))
        at += sizes[-1]
    assert max(sizes) <= FRAME_MAX_MIN
    client.server.out.clear()
    return [each.performative for each in dumb_read(octets)]


def is_shortened(error: ErrorReply | None) -> bool:
    return error is not None and error.condition == LONG.condition and str(error.description).endswith("é...")


def test_description_is_cut_when_link_session_or_connection_ends(client: Client10) -> None:
    link = client.attach_sender()
    session = client.begin(1)
    link.detach(LONG)
    session.end(LONG)
    client.server.fail(LONG)
    detach, end, close = read(client)
    assert (type(detach), type(end), type(close)) == (DetachFrame, EndFrame, CloseFrame)
    assert is_shortened(detach.error)
    assert is_shortened(end.error)
    assert is_shortened(close.error)


def test_short_frames_are_not_changed() -> None:
    client = Client10()
    client.begin()
    client.attach_sender().detach(LONG)
    assert read_any(client) == DetachFrame(0, True, LONG)


def read_any(client: Client10) -> Any:
    [performative] = client.read()
    return performative


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (LONG, ErrorReply(LONG.condition, "é" * 200)),
        (ErrorReply("x" * 600, "y"), None),
    ],
)
def test_outcome_is_shortened_when_its_error_is_long(
    client: Client10, error: ErrorReply, expected: ErrorReply | None
) -> None:
    link = client.attach_receiver()
    client.flow(handle=0, delivery_count=0, link_credit=2)
    link.deliver(0, b"", [b"1", b"2"])
    client.server.out.clear()
    answer_outcome(client, DispositionFrame(True, 0, state=RejectedState(error)))
    [answer] = read(client)
    assert isinstance(answer.state, RejectedState)
    assert (answer.state.error is None) == (expected is None)
    annotations = {Symbol("x-a"): "a" * 600}
    answer_outcome(client, DispositionFrame(True, 1, state=ModifiedState(True, False, annotations)))
    assert read(client) == [
        DispositionFrame(False, 1, 1, settled=True, state=ModifiedState(delivery_failed=True))
    ]


def answer_outcome(client: Client10, outcome: DispositionFrame) -> None:
    _, request = client.send(outcome)
    request.session.settle(request)


@pytest.mark.parametrize("role", [False, True])
def test_link_is_refused_when_the_answer_does_not_fit(client: Client10, role: bool) -> None:
    long = "/queues/" + "q" * 480
    attach = AttachFrame(
        "l",
        0,
        role,
        source=SourceTerminus(long if role else None),
        target=TargetTerminus(None if role else long),
        initial_delivery_count=0,
    )
    [requested] = client.send(attach)
    assert isinstance(requested, LinkRequested)
    [fault] = requested.link.accept()
    assert isinstance(fault, LinkFault)
    assert fault.error.condition is Condition.FRAME_SIZE_TOO_SMALL
    requested.link.detach(ErrorReply(fault.error.condition.value, fault.error.description))
    answer, detach = read(client)
    assert (answer.name, answer.role) == ("l", not role)
    assert detach.error.condition == "amqp:frame-size-too-small"


@pytest.mark.parametrize(("size", "is_taken"), [(448, True), (449, False)])
def test_session_ends_when_the_name_of_a_link_does_not_fit(
    client: Client10, size: int, is_taken: bool
) -> None:
    name = "n" * size
    attach = AttachFrame(name, 2**8 - 1, True, source=SourceTerminus("/queues/q"), target=TargetTerminus())
    [event] = client.send(attach)
    if is_taken:
        event.link.refuse(LONG)
        assert [type(each) for each in read(client)] == [AttachFrame, DetachFrame]
    else:
        assert isinstance(event, SessionFault)
        assert event.error.condition is Condition.FRAME_SIZE_TOO_SMALL
