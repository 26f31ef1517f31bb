"""Links on which clients publish: credit, settling, parts, modes, errors."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from qq.amqp10.conditions import Condition
from qq.amqp10.connection import Settings10
from qq.amqp10.link import DetachRequested, LinkFault, LinkState
from qq.amqp10.performatives import (
    AcceptedState,
    AttachFrame,
    Coordinator,
    DetachFrame,
    DispositionFrame,
    ErrorReply,
    FlowFrame,
    ReceiverSettleMode,
    RejectedState,
    ReleasedState,
    SenderSettleMode,
    SourceTerminus,
    TargetTerminus,
    TransferFrame,
)
from qq.amqp10.receiving_link import Deliveries, ReceivingLimits
from qq.amqp10.session import SessionFault, SessionLimits
from tests.amqp10.amqp10_client import Client10
from tests.amqp10.amqp10_wire import frame

CREDIT = 10
SMALL = Settings10(session=SessionLimits(3, 100, ReceivingLimits(CREDIT, 1000, 131072)))


def client() -> Client10:
    return Client10(SMALL)


def transfers(ids: range | list[int], **fields: Any) -> bytes:
    return b"".join(
        frame(
            TransferFrame(0, number % 2**32, b"%04d" % (number % 10000), 0, **fields), payload=b"m%d" % number
        )
        for number in ids
    )


def ranges(replies: list[Any]) -> list[tuple[int, int]]:
    assert all(isinstance(reply, DispositionFrame) for reply in replies)
    return [(reply.first, reply.first if reply.last is None else reply.last) for reply in replies]


def received(events: list[Any]) -> list[tuple[int, bytes, bytes]]:
    assert all(isinstance(event, Deliveries) for event in events)
    return [
        delivery for event in events for delivery in zip(event.ids, event.tags, event.messages, strict=True)
    ]


def test_accepted_link_has_the_terms_of_the_client_and_credit() -> None:
    sender = client()
    sender.begin()
    link = sender.request_sender(
        snd_settle_mode=SenderSettleMode.UNSETTLED, rcv_settle_mode=ReceiverSettleMode.SECOND
    )
    sender.read()
    assert link.accept() == []
    attach, flow = sender.read()
    assert attach == AttachFrame(
        "s",
        0,
        role=True,
        snd_settle_mode=SenderSettleMode.UNSETTLED,
        source=SourceTerminus(),
        target=TargetTerminus("/q"),
        max_message_size=1000,
    )
    assert flow == FlowFrame(0, 100, 0, 2**32 - 1, 0, 0, CREDIT)


def test_refused_link_attaches_without_terminus_and_detaches() -> None:
    sender = client()
    sender.begin()
    link = sender.request_sender(target=Coordinator())
    sender.read()
    error = ErrorReply("amqp:not-implemented")
    link.refuse(error)
    attach, detach = sender.read()
    assert (attach.role, attach.target, attach.source) == (True, None, SourceTerminus())
    assert detach == DetachFrame(0, True, error)
    assert link.accept() == []
    assert sender.send(DetachFrame(0)) == []
    assert link.state is LinkState.DETACHED
    sender.attach_sender()


@pytest.mark.parametrize("first", [0, 2**32 - 7])
def test_deliveries_are_settled_in_order_by_ranges(first: int) -> None:
    sender = client()
    sender.begin()
    link = sender.attach_sender()
    ids = [first + number for number in range(8)]
    assert [one[0] for one in received(sender.send_octets(transfers(ids)))] == [
        number % 2**32 for number in ids
    ]
    assert link.unsettled_count == 8
    sender.read()
    link.settle(2, AcceptedState())
    link.settle(1, RejectedState(ErrorReply("amqp:resource-limit-exceeded")))
    link.settle(5, ReleasedState())
    replies = sender.read()
    assert [type(one.state) for one in replies] == [AcceptedState, RejectedState, ReleasedState]
    offsets = [tuple((number - first) % 2**32 for number in ends) for ends in ranges(replies)]
    assert offsets == [(0, 1), (2, 2), (3, 7)]
    assert link.unsettled_count == 0


def test_settled_deliveries_get_no_outcome() -> None:
    sender = client()
    sender.begin()
    link = sender.attach_sender()
    events = sender.send_octets(transfers([0, 1]) + transfers([2], settled=True) + transfers([3]))
    assert [event.is_settled for event in events] == [False, False, True, False]
    sender.read()
    link.settle(4, AcceptedState())
    assert ranges(sender.read()) == [(0, 1), (3, 3)]


def test_deliveries_of_several_links_have_outcomes_of_their_own() -> None:
    sender = client()
    sender.begin()
    first, second = sender.attach_sender(), sender.attach_sender(handle=1, name="t")
    for number in range(6):
        sender.send(TransferFrame(number % 2, number, b"%d" % number), payload=b"x")
    sender.read()
    second.settle(3, AcceptedState())
    assert ranges(sender.read()) == [(1, 1), (3, 3), (5, 5)]
    assert (first.unsettled_count, second.unsettled_count) == (3, 0)


def test_credit_waits_for_the_queues() -> None:
    sender = client()
    sender.begin()
    link = sender.attach_sender()
    sender.send_octets(transfers(range(5)))
    assert [flow.link_credit for flow in sender.read()] == [CREDIT]
    sender.send_octets(transfers(range(5, 15)))
    assert sender.read() == []
    link.settle(5, AcceptedState())
    assert ranges(sender.read()) == [(0, 4)]
    link.settle(1, AcceptedState())
    _, flow = sender.read()
    assert (flow.delivery_count, flow.link_credit) == (15, CREDIT)


def test_delivery_beyond_the_credit_is_a_fault_of_the_link() -> None:
    sender = client()
    sender.begin()
    link = sender.attach_sender()
    events = sender.send_octets(transfers(range(CREDIT + 20)))
    fault = events.pop()
    assert isinstance(fault, LinkFault)
    assert fault.error.condition is Condition.TRANSFER_LIMIT_EXCEEDED
    assert len(received(events)) >= CREDIT
    assert sender.send_octets(transfers([90])) == []
    link.detach(ErrorReply(fault.error.condition.value))
    assert sender.read()[-1].error.condition == "amqp:link:transfer-limit-exceeded"
    assert sender.send(DetachFrame(0, True)) == []
    assert link.state is LinkState.DETACHED


def test_delivery_before_the_attach_is_answered_is_a_fault() -> None:
    sender = client()
    sender.begin()
    link = sender.request_sender()
    assert sender.send_octets(transfers([0])) == []
    (fault,) = link.accept()
    assert fault.error.condition is Condition.TRANSFER_LIMIT_EXCEEDED


def test_detach_ahead_of_the_answer_is_answered_behind_it() -> None:
    sender = client()
    sender.begin()
    link = sender.request_sender()
    assert sender.send(DetachFrame(0, True)) == []
    sender.read()
    (event,) = link.accept()
    assert event == DetachRequested(link, True, None)
    link.detached()
    link.detached()
    attach, _, detach = sender.read()
    assert isinstance(attach, AttachFrame)
    assert detach == DetachFrame(0, True)


@pytest.mark.parametrize("seed", range(20))
def test_parts_are_joined_on_interleaved_links(seed: int) -> None:
    rnd = Random(seed)
    sender = client()
    sender.begin()
    links = [sender.attach_sender(handle=handle, name=str(handle)) for handle in range(3)]
    messages = {number: rnd.randbytes(rnd.randrange(400)) for number in range(9)}
    waiting = {handle: [number for number in messages if number % 3 == handle] for handle in range(3)}
    left: dict[int, bytes] = {}
    got: dict[int, bytes] = {}
    octets = b""
    while waiting:
        handle = rnd.choice(list(waiting))
        number = waiting[handle][0]
        is_first = number not in left
        rest = left.setdefault(number, messages[number])
        size = rnd.randrange(200)
        part, left[number] = rest[:size], rest[size:]
        more = bool(left[number]) or rnd.random() < 0.2
        transfer = TransferFrame(handle, more=more)
        if is_first or rnd.random() < 0.5:
            transfer = transfer._replace(delivery_id=number, delivery_tag=b"%d" % number)
        octets += frame(transfer, payload=part)
        if not more:
            waiting[handle].pop(0)
            if not waiting[handle]:
                del waiting[handle]
    for event in sender.send_octets(octets):
        for number, tag, message in zip(event.ids, event.tags, event.messages, strict=True):
            assert tag == b"%d" % number
            assert event.link is links[number % 3]
            got[number] = message
    assert got == messages
    assert sender.server.partial_bytes == 0


def test_settled_in_any_part_settles_the_delivery() -> None:
    sender = client()
    sender.begin()
    sender.attach_sender()
    assert sender.send(TransferFrame(0, 0, b"t", more=True), payload=b"a") == []
    assert sender.server.held_bytes == 1
    assert sender.send(TransferFrame(0, settled=True, more=True)) == []
    (event,) = sender.send(TransferFrame(0), payload=b"b")
    assert (event.is_settled, received([event])) == (True, [(0, b"t", b"ab")])


def test_aborted_delivery_is_dropped_and_takes_credit() -> None:
    sender = client()
    sender.begin()
    link = sender.attach_sender()
    sender.send(TransferFrame(0, 0, b"t", more=True), payload=b"x" * 900)
    assert sender.send(TransferFrame(0, 0, b"t", aborted=True)) == []
    assert (sender.server.partial_bytes, link.unsettled_count) == (0, 0)
    assert len(received(sender.send_octets(transfers(range(1, 5))))) == 4
    flow = sender.read()[-1]
    assert (flow.delivery_count, flow.link_credit) == (5, CREDIT)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (TransferFrame(0, None, b"t"), None),
        (TransferFrame(0, 0, None), None),
        (TransferFrame(0, 0, b"t", more=True), TransferFrame(0, 1)),
        (TransferFrame(0, 0, b"t", more=True), TransferFrame(0, delivery_tag=b"u")),
    ],
)
def test_parts_that_disagree_are_a_fault_of_the_link(
    first: TransferFrame, second: TransferFrame | None
) -> None:
    sender = client()
    sender.begin()
    sender.attach_sender()
    events = sender.send(first, payload=b"x")
    if second is not None:
        assert events == []
        events = sender.send(second)
    (fault,) = events
    assert isinstance(fault, LinkFault)
    assert fault.error.condition is Condition.INVALID_FIELD


@pytest.mark.parametrize("mode", SenderSettleMode)
@pytest.mark.parametrize("settled", [True, False, None])
def test_transfers_follow_the_settle_mode(mode: SenderSettleMode, settled: bool | None) -> None:
    sender = client()
    sender.begin()
    sender.attach_sender(snd_settle_mode=mode)
    (event,) = sender.send(TransferFrame(0, 0, b"t", settled=settled), payload=b"x")
    is_legal = mode is SenderSettleMode.MIXED or bool(settled) == (mode is SenderSettleMode.SETTLED)
    assert isinstance(event, Deliveries if is_legal else LinkFault)
    if not is_legal:
        assert event.error.condition is Condition.INVALID_FIELD


def test_settling_second_is_not_implemented() -> None:
    sender = client()
    sender.begin()
    sender.attach_sender()
    (fault,) = sender.send(TransferFrame(0, 0, b"t", rcv_settle_mode=ReceiverSettleMode.SECOND), payload=b"x")
    assert fault.error.condition is Condition.NOT_IMPLEMENTED


@pytest.mark.parametrize("parts", [1, 4])
def test_message_that_is_too_large_ends_the_session(parts: int) -> None:
    sender = client()
    session = sender.begin()
    sender.attach_sender()
    events = []
    for part in range(parts):
        transfer = TransferFrame(0, 0, b"t", more=part < parts - 1)
        assert events == []
        events = sender.send(transfer, payload=b"x" * (1000 // parts + (part == parts - 1)))
    (fault,) = events
    assert isinstance(fault, SessionFault)
    assert fault.error.condition is Condition.MESSAGE_SIZE_EXCEEDED
    session.end(ErrorReply(fault.error.condition.value))
    assert sender.server.partial_bytes == 0


def test_parts_without_end_take_no_memory() -> None:
    sender = client()
    session = sender.begin()
    sender.attach_sender()
    sender.send(TransferFrame(0, 0, b"t", more=True), payload=b"x")
    empty = frame(TransferFrame(0, more=True)) * 40
    for _ in range(20):
        assert sender.send_octets(empty) == []
    assert sender.server.held_bytes == 1
    assert session.partial_bytes == 1


def test_echo_is_answered_with_the_credit() -> None:
    sender = client()
    sender.begin()
    sender.attach_sender()
    assert sender.flow(handle=0, delivery_count=0, echo=True) == []
    assert [flow.link_credit for flow in sender.read()] == [CREDIT]
    assert sender.flow(handle=0, delivery_count=0) == []
    assert sender.read() == []
