"""Links on which clients consume: credit, drains, windows, the order of transfers and flows."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from qq.amqp10.performatives import (
    AcceptedState,
    AttachFrame,
    DetachFrame,
    DispositionFrame,
    FlowFrame,
    OpenFrame,
    ReceiverSettleMode,
    SenderSettleMode,
    SourceTerminus,
    TargetTerminus,
    TransferFrame,
)
from qq.amqp10.sending_link import CreditSet, Settled
from qq.amqp10.session import WindowOpened
from qq.amqp10.values import Symbol
from tests.amqp10.amqp10_client import Client10
from tests.amqp10.amqp10_wire import flat, frame, read_all, reader_of_frames


def consuming(window: int = 1000, **fields: Any) -> tuple[Client10, Any]:
    client = Client10(**{name: fields.pop(name) for name in ("open_frame",) if name in fields})
    client.begin(window=window)
    return client, client.attach_receiver(**fields)


def deliver(link: Any, first: int, count: int) -> None:
    link.deliver(first, b"h", [b"%d" % key for key in range(first, first + count)])


def test_accepted_link_has_the_terms_of_the_client() -> None:
    client = Client10()
    client.begin()
    link = client.request_receiver(rcv_settle_mode=ReceiverSettleMode.SECOND, max_message_size=99)
    source = SourceTerminus("/q", outcomes=("amqp:accepted:list",))
    assert link.accept(source, {Symbol("p"): "q"}) == []
    (attach,) = client.read()
    assert attach == AttachFrame(
        "r",
        0,
        role=False,
        snd_settle_mode=SenderSettleMode.UNSETTLED,
        rcv_settle_mode=ReceiverSettleMode.SECOND,
        source=source,
        target=TargetTerminus(),
        initial_delivery_count=0,
        max_message_size=99,
        properties={Symbol("p"): "q"},
    )


def test_credit_is_set_by_each_flow() -> None:
    client, link = consuming()

    def credit(**flow: Any) -> int:
        assert client.flow(handle=0, **flow) == [CreditSet(link, False, False)]
        return link.credit

    assert credit(link_credit=5) == 5
    deliver(link, 0, 3)
    assert credit(delivery_count=0, link_credit=5) == 2
    assert credit(delivery_count=3, link_credit=5) == 5
    assert credit(delivery_count=0, link_credit=1) == 0
    assert credit(delivery_count=3, link_credit=2**32 - 1) == 2**32 - 1
    assert client.flow(handle=0, echo=True) == [CreditSet(link, False, True)]
    assert link.credit == 2**32 - 1


def test_drain_takes_the_credit_behind_its_deliveries() -> None:
    client, link = consuming()
    assert client.flow(handle=0, delivery_count=0, link_credit=10, drain=True) == [
        CreditSet(link, True, False)
    ]
    deliver(link, 0, 4)
    link.drained(0)
    *transfers, flow = client.read()
    assert [each.delivery_id for each in transfers] == [0, 1, 2, 3]
    assert (flow.delivery_count, flow.link_credit, flow.available, flow.drain) == (10, 0, 0, True)
    assert flow.next_outgoing_id == 4


def test_state_waits_for_the_transfers_before_it() -> None:
    client, link = consuming(window=2)
    client.flow(handle=0, window=2, delivery_count=0, link_credit=10)
    deliver(link, 0, 4)
    link.send_state(7)
    link.drained(0)
    link.send_state(3, {Symbol("rabbitmq:active"): True})
    assert [type(each) for each in client.read()] == [TransferFrame] * 2
    (opened,) = client.flow(window=2, next_incoming_id=2)
    assert isinstance(opened, WindowOpened)
    *transfers, flow = client.read()
    assert [each.delivery_id for each in transfers] == [2, 3]
    assert (flow.delivery_count, flow.available, flow.drain) == (10, 3, True)
    assert flow.properties == {Symbol("rabbitmq:active"): True}


def test_states_that_wait_take_no_memory() -> None:
    client, link = consuming(window=0)
    client.flow(handle=0, window=0, delivery_count=0, link_credit=10)
    deliver(link, 0, 1)
    for available in range(1000):
        client.flow(handle=0, window=0, delivery_count=0, link_credit=10, echo=True)
        link.send_state(available)
    assert client.read() == []
    client.flow(window=5)
    assert [type(each) for each in client.read()] == [TransferFrame, FlowFrame]


@pytest.mark.parametrize("seed", range(20))
def test_large_messages_wait_in_order_for_windows_of_any_size(seed: int) -> None:
    rnd = Random(seed)
    opened = frame(OpenFrame("c", max_frame_size=512))
    client, link = consuming(window=rnd.randrange(3), open_frame=opened)
    other = client.attach_receiver(handle=1, name="t")
    messages = [rnd.randbytes(rnd.choice([0, 5, 400, 1000, 3000])) for _ in range(30)]
    at = 0
    while at < len(messages):
        count = rnd.randrange(1, 5)
        bodies = messages[at : at + count]
        rnd.choice([link, other]).deliver(at, b"", bodies)
        at += count
    sent, got, current = 0, list[bytes](), b""
    for _ in range(1000):
        for each, payload in payloads(client):
            sent += 1
            assert (each.delivery_id is None) == bool(current or each.delivery_tag is None)
            if each.delivery_id is not None:
                assert each.delivery_id == len(got)
            current += payload
            if not each.more:
                got.append(current)
                current = b""
        if len(got) == len(messages):
            break
        room = rnd.randrange(4)
        client.flow(window=room, next_incoming_id=sent)
    assert got == messages
    assert link.unsettled_count + other.unsettled_count == len(messages)


def payloads(client: Client10) -> list[tuple[Any, bytes]]:
    octets = b"".join(client.server.out)
    client.server.out.clear()
    return [(each.performative, each.payload) for each in flat(read_all(reader_of_frames(), [octets]))]


def test_flow_and_detach_ahead_of_the_answer_are_events_of_it() -> None:
    client = Client10()
    client.begin()
    link = client.request_receiver()
    assert client.flow(handle=0, link_credit=3) == []
    assert client.flow(handle=0, link_credit=4, echo=True) == []
    assert client.send(DetachFrame(0)) == []
    credit, detach = link.accept()
    assert (credit, link.credit) == (CreditSet(link, False, True), 4)
    assert (detach.link, detach.is_closed) == (link, False)


def test_settled_link_holds_no_deliveries() -> None:
    client, link = consuming(snd_settle_mode=SenderSettleMode.SETTLED)
    deliver(link, 0, 5)
    assert [each.settled for each in client.read()] == [True] * 5
    assert link.unsettled_count == 0


def test_settlements_name_the_link_of_each_delivery() -> None:
    client, link = consuming()
    other = client.attach_receiver(handle=1, name="t")
    for number in range(3):
        deliver(link, 10 * number, 2)
        deliver(other, 20 * number, 1)
    client.read()
    events = client.send(DispositionFrame(True, 1, 6, settled=True, state=AcceptedState()))
    assert [(event.link, event.first_key, event.count) for event in events] == [
        (link, 1, 1),
        (other, 0, 1),
        (link, 10, 2),
        (other, 20, 1),
        (link, 20, 1),
    ]


def test_detached_link_drops_its_deliveries() -> None:
    client, link = consuming(window=3)
    other = client.attach_receiver(handle=1, name="t")
    session = client.server.sessions[0]
    deliver(link, 0, 2)
    deliver(other, 0, 1)
    deliver(link, 2, 5)
    deliver(other, 1, 2)
    link.detach()
    assert session.deliveries.unsettled_count == 1
    deliver(link, 9, 1)
    link.send_state(1)
    assert [type(each) for each in client.read()] == [TransferFrame] * 3 + [DetachFrame]
    client.flow(window=9, next_incoming_id=3)
    assert [each.delivery_id for each in client.read()] == [3, 4]
    events = client.send(DispositionFrame(True, 0, 9, settled=True, state=AcceptedState()))
    assert events == [Settled(other, AcceptedState(), 0, 1), Settled(other, AcceptedState(), 1, 2)]
    assert session.deliveries.unsettled_count == 0


def test_deliveries_of_ended_links_take_no_memory() -> None:
    client, link = consuming(handle=1)
    deliver(link, 0, 3)
    session = client.server.sessions[0]
    for number in range(300):
        passing = client.attach_receiver(handle=0, name=str(number))
        passing.deliver(0, b"", [b"x"] * 3)
        client.send(DetachFrame(0))
        passing.detached()
    assert session.deliveries.unsettled_count == 3
    assert len(session.deliveries._unsettled) <= 9
    client.read()
    events = client.send(DispositionFrame(True, 0, 2000, settled=True, state=AcceptedState()))
    assert events == [Settled(link, AcceptedState(), 0, 3)]
