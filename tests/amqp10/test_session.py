"""Sessions: windows, handles, errors of the session, dispositions of clients."""

from __future__ import annotations

from typing import Any

import pytest

from qq.amqp10.conditions import Condition
from qq.amqp10.connection import Settings10
from qq.amqp10.performatives import (
    AcceptedState,
    AttachFrame,
    BeginFrame,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    FlowFrame,
    ModifiedState,
    ReceivedState,
    ReleasedState,
    SourceTerminus,
    TargetTerminus,
    TransferFrame,
)
from qq.amqp10.receiving_link import ReceivingLimits
from qq.amqp10.sending_link import Settled
from qq.amqp10.session import ANNOTATIONS_BYTES_MAX, SessionFault, SessionLimits
from qq.amqp10.values import Described, Symbol, ULong
from tests.amqp10.amqp10_client import Client10
from tests.amqp10.amqp10_wire import frame

WINDOW = 10
SMALL = Settings10(session=SessionLimits(3, WINDOW, ReceivingLimits(1000, 10**6, 131072)))


def transfer(number: int, **fields: Any) -> bytes:
    return frame(TransferFrame(0, number, b"%04d" % number, **fields), payload=b"x")


def receiver(name: str) -> AttachFrame:
    return AttachFrame(name, 1, role=True, source=SourceTerminus("/q"), target=TargetTerminus())


def fault(events: list[Any]) -> Condition:
    (event,) = events
    assert isinstance(event, SessionFault)
    return event.error.condition


@pytest.mark.parametrize("first", [0, 2**32 - 3])
def test_window_is_opened_anew_when_half_is_used(first: int) -> None:
    client = Client10(SMALL)
    client.send(BeginFrame(None, first, 1000, 1000))
    client.attach_sender()
    for number in range(20):
        client.send_octets(transfer(number))
        expected = [((first + number + 1) % 2**32, WINDOW)] if number % 5 == 4 else []
        assert [(flow.next_incoming_id, flow.incoming_window) for flow in client.read()] == expected


def test_closed_window_tolerates_transfers_under_way() -> None:
    client = Client10(SMALL)
    client.begin()
    client.attach_sender()
    client.server.close_windows()
    for number in range(WINDOW):
        assert len(client.send_octets(transfer(number))) == 1
    assert [flow.incoming_window for flow in client.read()] == [0]
    assert fault(client.send_octets(transfer(WINDOW))) is Condition.WINDOW_VIOLATION


def test_frames_behind_a_fault_are_dropped() -> None:
    client = Client10(SMALL)
    client.begin()
    begin = BeginFrame(None, 0, 1, 1)
    assert (
        fault(client.send_octets(frame(begin) + frame(AttachFrame("r", 0, role=True))))
        is Condition.ILLEGAL_STATE
    )


@pytest.mark.parametrize(
    ("sent", "condition"),
    [
        (TransferFrame(2, 0, b"t"), Condition.UNATTACHED_HANDLE),
        (FlowFrame(0, 1, 0, 1, 2), Condition.UNATTACHED_HANDLE),
        (DetachFrame(2), Condition.UNATTACHED_HANDLE),
        (TransferFrame(1, 0, b"t"), Condition.UNATTACHED_HANDLE),
        (AttachFrame("x", 1, role=True), Condition.HANDLE_IN_USE),
        (AttachFrame("x", 4, role=True), Condition.FRAMING_ERROR),
        (AttachFrame("x", 2, role=False), Condition.INVALID_FIELD),
        (FlowFrame(1, 1, 0, 1), Condition.INVALID_FIELD),
        (DispositionFrame(True, 0, state=Described(ULong(0x34), [b"t"])), Condition.INVALID_FIELD),
    ],
)
def test_broken_rule_is_a_fault_of_the_session(sent: Any, condition: Condition) -> None:
    client = Client10(SMALL)
    client.begin()
    client.attach_receiver(handle=1)
    assert fault(client.send(sent, payload=b"x" if isinstance(sent, TransferFrame) else b"")) is condition


def test_second_detach_is_a_fault() -> None:
    client = Client10(SMALL)
    client.begin()
    client.attach_receiver()
    assert len(client.send(DetachFrame(0))) == 1
    assert fault(client.send(DetachFrame(0))) is Condition.UNATTACHED_HANDLE


def test_handle_is_used_again_behind_a_detach() -> None:
    client = Client10(SMALL)
    session = client.begin()
    first = client.attach_receiver(handle=1)
    assert len(client.send(DetachFrame(1))) == 1
    assert client.send(receiver("second")) == client.flow(handle=1, link_credit=3) == []
    assert [link.name for link in session.links] == ["r", "second"]
    first.detached()
    (request,) = first.take_next_request()
    assert (request.link.name, first.take_next_request()) == ("second", [])
    (credit,) = request.link.accept()
    assert (credit.link, request.link.credit) == (request.link, 3)
    assert [type(each) for each in client.read()] == [DetachFrame, AttachFrame]
    assert session.links == [request.link]


def test_handle_is_used_again_before_its_attach_is_answered() -> None:
    client = Client10(SMALL)
    client.begin()
    first = client.request_receiver(handle=1)
    assert client.send(DetachFrame(1)) == client.send(receiver("second")) == []
    (detach,) = first.accept()
    assert (detach.link, first.take_next_request()) == (first, [])
    first.detached()
    assert [request.link.name for request in first.take_next_request()] == ["second"]


def test_next_link_ends_with_its_session() -> None:
    client = Client10(SMALL)
    client.begin()
    first = client.attach_receiver(handle=1)
    client.send(DetachFrame(1))
    client.send(receiver("second"))
    client.send(EndFrame())
    first.detached()
    assert first.take_next_request() == []


def test_links_that_wait_for_a_handle_are_bounded() -> None:
    client = Client10(SMALL)
    client.begin()
    client.attach_receiver(handle=1)
    for number in range(SMALL.session.handle_max + 1):
        client.send(DetachFrame(1))
        assert client.send(receiver(f"{number}")) == []
    client.send(DetachFrame(1))
    assert fault(client.send(receiver("last"))) is Condition.HANDLE_IN_USE


def test_echo_of_a_session_is_answered() -> None:
    client = Client10(SMALL)
    client.begin()
    client.flow(echo=True)
    assert client.read() == [FlowFrame(0, WINDOW, 0, 2**32 - 1)]
    client.flow()
    assert client.read() == []


def consuming(count: int = 10, **fields: Any) -> tuple[Client10, Any]:
    client = Client10()
    client.begin()
    link = client.attach_receiver(**fields)
    client.flow(handle=0, delivery_count=0, link_credit=1000)
    link.deliver(100, b"", [b"m"] * count)
    client.read()
    return client, link


@pytest.mark.parametrize(
    ("ranges", "settled"),
    [
        ([(0, 9)], [(100, 10)]),
        ([(number, number) for number in range(10)], [(100, 10)]),
        ([(9, 9), (0, 2), (3, 3), (2, 5)], [(109, 1), (100, 4), (104, 2)]),
        ([(5, 2**31), (0, 2**31 - 1)], [(105, 5), (100, 5)]),
        ([(5, 4), (10, 20), (2**32 - 5, 2**32 - 1)], []),
        ([(2**32 - 1, 0)], [(100, 1)]),
    ],
)
def test_dispositions_settle_ranges(ranges: list[tuple[int, int]], settled: list[tuple[int, int]]) -> None:
    client, link = consuming()
    octets = b"".join(
        frame(DispositionFrame(True, *ids, settled=True, state=AcceptedState())) for ids in ranges
    )
    events = client.send_octets(octets)
    keys = [key for event in events for key in range(event.first_key, event.first_key + event.count)]
    assert keys == [key for first, count in settled for key in range(first, first + count)]
    assert link.unsettled_count == 10 - len(keys)
    assert client.read() == []


def test_server_settles_an_outcome_when_the_shell_says_so() -> None:
    client, link = consuming()
    settled, request = client.send(DispositionFrame(True, 2, 4, state=AcceptedState()))
    assert settled == Settled(link, AcceptedState(), 102, 3)
    assert client.read() == []
    request.session.settle(request)
    assert client.read() == [DispositionFrame(False, 2, 4, True, AcceptedState())]
    assert len(client.send(EndFrame())) == 1
    request.session.settle(request)
    assert len(client.read()) == 1  # the client may wait for it until its end is answered
    request.session.ended()
    request.session.settle(request)
    assert client.read() == [EndFrame()]


def test_state_without_an_outcome_settles_no_delivery() -> None:
    client, link = consuming()
    assert client.send(DispositionFrame(True, 0, 9, state=ReceivedState(0, 0))) == []
    assert client.send(DispositionFrame(True, 0, 9)) == []
    assert client.send(DispositionFrame(False, 0, 9, settled=True, state=AcceptedState())) == []
    assert link.unsettled_count == 10
    (event,) = client.send(DispositionFrame(True, 0, 9, settled=True))
    assert event.state == ReleasedState()


@pytest.mark.parametrize(
    ("annotations", "is_legal"),
    [
        ({Symbol("x-a"): 1.5}, True),
        ({Symbol("a"): None}, False),
        ({ULong(1): None}, False),
        ({Symbol("x-a"): b"x" * (ANNOTATIONS_BYTES_MAX - 20)}, True),
        ({Symbol("x-a"): b"x" * ANNOTATIONS_BYTES_MAX}, False),
    ],
)
def test_annotations_of_modified_are_bounded(annotations: Any, is_legal: bool) -> None:
    client, _ = consuming()
    state = ModifiedState(delivery_failed=True, message_annotations=annotations)
    events = client.send(DispositionFrame(True, 0, settled=True, state=state))
    if is_legal:
        assert [event.state for event in events] == [state]
    else:
        assert fault(events) is Condition.INVALID_FIELD


def test_session_gets_no_link_when_names_of_its_links_are_long() -> None:
    client = Client10()
    client.begin()
    for handle in range(3):
        client.attach_receiver(handle=handle, name="n" * 100_000)
    [fault] = client.send(AttachFrame("l", 3, True, source=SourceTerminus("/q")))
    assert isinstance(fault, SessionFault)
    assert fault.error.condition is Condition.RESOURCE_LIMIT_EXCEEDED
    assert "LINKS_BYTES_MAX" in fault.error.description
