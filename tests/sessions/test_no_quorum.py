"""A node that knows no leader: which clients are told so, and when."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import pytest
from pamqp import commands

from qq.sessions import no_quorum
from tests.harness.lone_broker import LoneBroker
from tests.harness.raw_client import HEADER, RawClient, marshal, publish

WHY = "CONNECTION_FORCED - no majority: n2, n3 do not answer; "
UNKNOWN = f"{WHY}what was asked for may still be carried out; try again, here or at another node"
TRY_AGAIN = f"{WHY}try again, here or at another node"
DECLARE = commands.Queue.Declare(queue="q", durable=True)


def lead(broker: LoneBroker, leader: str | None) -> None:
    """Report a leader to the node, or None: then no batch is applied."""
    broker.group.holding = leader is None
    broker.call(broker.broker.leader_changed, leader, 1)
    if leader is not None:
        broker.call(broker.group.release)


def connect_later(broker: LoneBroker) -> RawClient:
    client = RawClient(broker.amqp_port)
    client.open_channel(1)
    return client


def reason(client: RawClient) -> str:
    close = client.expect(commands.Connection.Close)
    assert close.reply_code == 320
    return close.reply_text


def test_waiting_clients_are_refused_and_idle_clients_are_not() -> None:
    with (
        LoneBroker(majority_timeout_ms=300) as broker,
        connect_later(broker) as declaring,
        connect_later(broker) as publishing,
        connect_later(broker) as idle,
    ):
        publishing.send(1, DECLARE)
        publishing.expect(commands.Queue.DeclareOk)
        lead(broker, None)
        began_s = time.monotonic()
        declaring.send(1, DECLARE)
        publishing.write(publish(1, "q", b"m"))
        assert reason(declaring) == reason(publishing) == UNKNOWN
        assert time.monotonic() - began_s > 0.25
        # A later client gets the error at its first request, or a moment later.
        with RawClient(broker.amqp_port) as waiting:
            waiting.send(1, commands.Channel.Open())
            waiting.expect(commands.Channel.OpenOk)
            assert reason(waiting) == TRY_AGAIN
        with RawClient(broker.amqp_port) as waits:
            assert reason(waits) == TRY_AGAIN
        with RawClient(broker.amqp_port) as leaves:
            leaves.send(0, commands.Connection.Close(200, "", 0, 0))
            leaves.expect(commands.Connection.CloseOk)
        assert broker.call(lambda: len(broker.broker.sessions)) == 1
        lead(broker, "n2")
        idle.send(1, DECLARE)
        # Requests of clients that got the error were carried out.
        assert idle.expect(commands.Queue.DeclareOk).message_count == 1
        RawClient(broker.amqp_port).socket.close()


Basic, Exchange, Queue = commands.Basic, commands.Exchange, commands.Queue
WAITING = {
    "get of an empty queue": Basic.Get(queue="q"),
    "get of a message": Basic.Get(queue="full"),
    "get of a missing queue": Basic.Get(queue="missing"),
    "consume": Basic.Consume(queue="q"),
    "recover": Basic.Recover(requeue=True),
    "qos": Basic.Qos(prefetch_count=5, global_=True),
    "declare of an existing queue": DECLARE,
    "declare of a missing queue": Queue.Declare(queue="missing", passive=True),
    "declare of other properties": Queue.Declare(queue="q", durable=False),
    "bind": Queue.Bind(queue="q", exchange="amq.fanout", routing_key=""),
    "bind of a missing exchange": Queue.Bind(queue="q", exchange="missing", routing_key=""),
    "purge": Queue.Purge(queue="q"),
    "delete": Queue.Delete(queue="q"),
    "declare of an exchange": Exchange.Declare(exchange="e"),
    "delete of a missing exchange": Exchange.Delete(exchange="missing"),
    "publish to a missing exchange": publish(1, "q", b"m", exchange="missing"),
}
"""Methods that wait for an entry, or for a read before an answer or a refusal."""


@pytest.mark.parametrize("fails", [True, False], ids=["failed", "unanswered"])
@pytest.mark.parametrize("method", WAITING.values(), ids=WAITING)
def test_each_method_that_waits_for_a_lost_leader_is_refused(method: Any, fails: bool) -> None:
    """The leader is lost after a read began, which has no entry, so the client has no uncommitted octets."""
    with LoneBroker(majority_timeout_ms=200) as broker, connect_later(broker) as client:
        for queue in ("q", "full"):
            client.call(1, Queue.Declare(queue=queue, durable=True), Queue.DeclareOk)
        client.write(publish(1, "full", b"m"))
        client.send(1, Basic.Qos(prefetch_count=9))
        client.expect(Basic.QosOk)
        broker.group.holding, broker.group.lost_reads = True, []
        client.write(method if isinstance(method, bytes) else marshal(1, method))
        lead(broker, None)
        time.sleep(0.1)
        for failed in broker.group.lost_reads if fails else ():
            broker.call(failed)
        assert reason(client) == UNKNOWN


def test_client_is_refused_when_its_pipelined_poll_is_unanswered() -> None:
    """The second poll had been held back behind the first, and then the client did not count as waiting."""
    with LoneBroker(majority_timeout_ms=200) as broker, connect_later(broker) as client:
        client.call(1, DECLARE, Queue.DeclareOk)
        read, reads = broker.group.read, list[Any]()

        def answer_first(*callbacks: Any) -> None:
            reads.append(callbacks)
            if len(reads) == 1:
                read(*callbacks)

        broker.group.read = answer_first  # type: ignore[method-assign]
        client.send(1, Basic.Get(queue="q"), Basic.Get(queue="q", no_ack=True))
        client.expect(Basic.GetEmpty)
        lead(broker, None)
        assert reason(client) == UNKNOWN
        assert len(reads) == 2


def test_consumer_that_holds_a_message_is_not_waiting() -> None:
    """The node keeps its credit for the next message until there is a batch; the client does not wait for that."""
    with LoneBroker(majority_timeout_ms=300) as broker, connect_later(broker) as client:
        client.call(1, DECLARE, commands.Queue.DeclareOk)
        client.call(1, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk)
        client.write(publish(1, "q", b"m"))
        method, _, _ = client.expect_message()
        lead(broker, None)
        time.sleep(0.6)
        lead(broker, "n2")
        client.send(1, commands.Basic.Ack(method.delivery_tag))
        client.call(1, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)


def test_election_does_not_refuse_clients() -> None:
    with LoneBroker(majority_timeout_ms=400) as broker, connect_later(broker) as client:
        for _ in range(3):
            lead(broker, None)
            client.send(1, DECLARE)
            time.sleep(0.25)
            lead(broker, "n2")
            client.expect(commands.Queue.DeclareOk)


def test_node_refuses_clients_when_no_batch_is_applied() -> None:
    """It hears a leader that does not hear it."""
    stuck = "the cluster has applied no request of this node for"
    with (
        LoneBroker(majority_timeout_ms=300) as broker,
        connect_later(broker) as declaring,
        connect_later(broker) as idle,
    ):
        broker.call(broker.broker.leader_changed, "n2", 1)
        idle.call(1, DECLARE, commands.Queue.DeclareOk)
        broker.group.holding, broker.group.why = True, None
        began_s = time.monotonic()
        declaring.send(1, DECLARE)
        assert stuck in reason(declaring)
        assert time.monotonic() - began_s > 0.25
        with RawClient(broker.amqp_port) as late:
            late.send(1, commands.Channel.Open())
            late.expect(commands.Channel.OpenOk)
            assert stuck in reason(late)
        assert stuck in str(broker.call(broker.broker.no_quorum.why_no_wait))
        broker.call(broker.group.release)
        assert broker.call(broker.broker.no_quorum.why_no_wait) is None
        idle.call(1, DECLARE, commands.Queue.DeclareOk)


def test_progress_of_batches_defers_the_refusal() -> None:
    with LoneBroker(majority_timeout_ms=400) as broker, connect_later(broker) as client:
        broker.call(broker.broker.leader_changed, "n2", 1)
        for _ in range(5):
            broker.group.holding = True
            client.send(1, DECLARE)
            time.sleep(0.25)
            broker.call(broker.group.release)
            client.expect(commands.Queue.DeclareOk)


def test_node_with_a_batch_pending_for_ten_seconds_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(no_quorum, "STUCK_S", 0.2)
    monkeypatch.setattr(no_quorum, "CHECK_S", 0.1)
    with LoneBroker(majority_timeout_ms=0) as broker, connect_later(broker) as client:
        broker.call(broker.broker.leader_changed, "n2", 1)
        why_stuck = broker.broker.no_quorum.why_stuck
        time.sleep(0.5)
        assert broker.call(why_stuck) is None
        broker.group.holding = True
        client.send(1, DECLARE)
        time.sleep(0.7)
        assert broker.call(why_stuck) == "no majority: n2, n3 do not answer"
        broker.call(broker.group.release)
        assert broker.call(why_stuck) is None
        client.expect(commands.Queue.DeclareOk)


@pytest.mark.parametrize("limits", [{"majority_timeout_ms": 0}, {}])
def test_majority_timeout_delays_the_refusal(limits: dict[str, Any]) -> None:
    with LoneBroker(**limits) as broker, connect_later(broker) as client:
        lead(broker, None)
        client.send(1, DECLARE)
        time.sleep(0.3)
        lead(broker, "n2")
        client.expect(commands.Queue.DeclareOk)


def test_many_clients_are_refused_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(no_quorum, "DISCONNECTED_AT_ONCE", 2)
    with LoneBroker(majority_timeout_ms=100) as broker, ExitStack() as stack:
        clients = [stack.enter_context(connect_later(broker)) for _ in range(7)]
        lead(broker, None)
        for client in clients:
            client.send(1, DECLARE)
        assert [reason(client) for client in clients] == [UNKNOWN] * 7


def test_undecided_handshake_ends_with_the_reason() -> None:
    with LoneBroker(handshake_timeout_s=0.3) as broker:
        lead(broker, None)
        with RawClient(broker.amqp_port, admitted=False) as client:
            client.expect(commands.Connection.OpenOk)
            client.send(1, commands.Channel.Open())
            client.expect(commands.Channel.OpenOk)
            assert reason(client) == TRY_AGAIN
        with RawClient(broker.amqp_port, handshake=False) as client:
            client.write(HEADER)
            client.send(0, client.start_ok("\0guest\0wrong"))
            client.expect(commands.Connection.Start)
            assert reason(client) == TRY_AGAIN
        lead(broker, "n2")
