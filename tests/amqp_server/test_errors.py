"""Errors and allowed requests, the fate of requests before an error, and the ends of channels and connections.

The errors themselves are in test_protocol_errors.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from qq.testing import ClusterNode
from tests.harness.raw_client import HEADER, RawClient, marshal, publish

Basic, Chan, Conn = commands.Basic, commands.Channel, commands.Connection
Exchange, Queue = commands.Exchange, commands.Queue
HERE = "in vhost '/'"


def unchecked(kind: type[Any], **fields: Any) -> Any:
    """A method that pamqp would refuse to make."""
    method = kind.__new__(kind)
    for name, value in fields.items():
        setattr(method, name, value)
    return method


@pytest.mark.parametrize(
    "again",
    [Basic.Ack(2), Basic.Ack(2, multiple=True), Basic.Nack(2), Basic.Reject(2)],
    ids=["ack", "ack-multiple", "nack", "reject"],
)
def test_message_is_acknowledged_once(raw: RawClient, queue: str, again: Any) -> None:
    raw.call(1, Queue.Declare(queue=queue), Queue.DeclareOk)
    raw.write(publish(1, queue, b"m") * 3)
    raw.call(1, Basic.Consume(queue=queue), Basic.ConsumeOk)
    for _ in range(3):
        raw.expect_message()
    raw.send(1, Basic.Ack(2), again)
    raw.expect_close(406, "PRECONDITION_FAILED - unknown delivery tag 2", channel=1)


def test_acknowledging_all_of_no_messages_is_valid(raw: RawClient) -> None:
    raw.send(1, Basic.Ack(0, multiple=True), Basic.Nack(0, multiple=True))
    raw.call(1, Basic.Qos(prefetch_count=1), Basic.QosOk)


def test_cancel_of_an_unknown_consumer_is_answered(raw: RawClient) -> None:
    assert raw.call(1, Basic.Cancel("nobody"), Basic.CancelOk).consumer_tag == "nobody"


def test_a_publish_error_comes_in_the_middle_of_a_stream(raw: RawClient, queue: str) -> None:
    """Messages before the error are published, and messages after it are dropped."""
    raw.call(1, Queue.Declare(queue=queue), Queue.DeclareOk)
    raw.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    stream = (
        publish(1, queue, b"m") * 5 + publish(1, "k", b"m", exchange="e-no") + publish(1, queue, b"m") * 5
    )
    raw.write(stream)
    raw.expect_close(404, f"NOT_FOUND - no exchange 'e-no' {HERE}", channel=1)
    raw.send(1, Chan.CloseOk())
    raw.open_channel(1)
    assert raw.call(1, Queue.Declare(queue=queue, passive=True), Queue.DeclareOk).message_count == 5


def test_close_of_a_connection_comes_behind_its_methods(
    node: ClusterNode, raw: RawClient, queue: str
) -> None:
    """A client that does not wait for answers loses no request before connection.close."""
    declared = Queue.Declare(queue=queue, durable=True)
    raw.write(marshal(1, declared) + publish(1, queue, b"m") + marshal(0, Conn.Close(200, "bye", 0, 0)))
    raw.expect(Queue.DeclareOk, 1)
    raw.expect(Conn.CloseOk, 0)
    raw.part()
    with RawClient(node.amqp_port) as other:
        other.open_channel(1)
        other.call(1, Basic.Get(queue=queue), Basic.GetOk)


def test_a_return_comes_before_its_confirm(raw: RawClient) -> None:
    raw.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    raw.write(publish(1, "nowhere", b"body", exchange="amq.direct", mandatory=True))
    method, _, body = raw.expect_message()
    assert (method.reply_code, method.reply_text, body) == (312, "NO_ROUTE", b"body")
    assert raw.expect(Basic.Ack).delivery_tag == 1


def test_nowait_methods_get_no_answer(raw: RawClient, queue: str) -> None:
    raw.send(
        1,
        Queue.Declare(queue=queue, nowait=True),
        Exchange.Declare(exchange=queue, exchange_type="fanout", nowait=True),
        Queue.Bind(queue=queue, exchange=queue, nowait=True),
        commands.Confirm.Select(nowait=True),
        Basic.Consume(queue=queue, consumer_tag="t", nowait=True),
        Basic.Cancel("t", nowait=True),
        Queue.Purge(queue=queue, nowait=True),
        Exchange.Delete(exchange=queue, nowait=True),
        unchecked(Basic.RecoverAsync, requeue=True),
        Queue.Delete(queue=queue, nowait=True),
        Basic.Qos(prefetch_count=1),
    )
    raw.expect(Basic.QosOk)


def test_publishes_behind_a_declaration_find_the_queue(raw: RawClient, queue: str) -> None:
    raw.write(marshal(1, Queue.Declare(queue=queue)) + publish(1, queue, b"m") * 1000)
    raw.expect(Queue.DeclareOk)
    assert raw.call(1, Queue.Declare(queue=queue, passive=True), Queue.DeclareOk).message_count == 1000


# Ends of connections


def test_amqplain_opens_a_connection_too(node: ClusterNode) -> None:
    table = b"".join(
        bytes([len(name)]) + name + b"S" + len(value).to_bytes(4, "big") + value
        for name, value in ((b"LOGIN", b"guest"), (b"PASSWORD", b"guest"))
    )
    with RawClient(node.amqp_port, handshake=False) as client:
        client.write(HEADER)
        client.expect(Conn.Start)
        client.send(0, client.start_ok(table.decode("latin-1"), "AMQPLAIN"))
        client.expect(Conn.Tune)


def test_foreign_protocol_gets_an_amqp_header_and_is_closed(node: ClusterNode) -> None:
    for start in (b"GET / HTTP/1.1\r\n\r\n", b"AMQP\0\1\0\0", b"\x16\x03\x01\x02\0"):
        with RawClient(node.amqp_port, handshake=False) as client:
            client.write(start)
            client.socket.settimeout(2)
            assert client.socket.recv(100) == b"AMQP\3\1\0\0"  # of AMQP 1.0, as in RabbitMQ
            assert client.socket.recv(100) == b""


def test_a_client_may_close_at_every_step_of_the_handshake(node: ClusterNode) -> None:
    steps: list[Any] = [RawClient.start_ok(), Conn.TuneOk(10, 8192, 0), Conn.Open("/"), None]
    for step in range(len(steps)):
        with RawClient(node.amqp_port, handshake=False) as client:
            client.write(HEADER)
            client.expect(Conn.Start)
            for frame in steps[:step]:
                client.send(0, frame)
                client.receive() if not isinstance(frame, Conn.TuneOk) else None
            client.close()


def test_both_sides_may_close_a_channel_at_once(raw: RawClient) -> None:
    raw.send(1, Basic.Ack(99))
    raw.expect_close(406, "PRECONDITION_FAILED - unknown delivery tag 99", channel=1)
    raw.send(1, Chan.Close(200, "bye", 0, 0), Chan.CloseOk())
    raw.expect(Chan.CloseOk)
    raw.open_channel(1)


def test_close_sent_with_an_invalid_ack_is_answered(raw: RawClient) -> None:
    raw.send(1, Basic.Ack(99), Chan.Close(200, "bye", 0, 0))
    raw.expect_close(406, "PRECONDITION_FAILED - unknown delivery tag 99", channel=1)
    raw.expect(Chan.CloseOk)
    raw.send(1, Chan.CloseOk())
    raw.open_channel(1)


def test_both_sides_may_close_the_connection_at_once(raw: RawClient) -> None:
    raw.send(1, Chan.Flow(active=False))
    raw.send(0, Conn.Close(200, "bye", 0, 0))
    got = {type(raw.receive()[1])}
    assert got <= {Conn.Close, Conn.CloseOk}
    raw.send(0, Conn.CloseOk())
    raw.expect_end()


def test_methods_behind_a_connection_error_are_not_carried_out(
    node: ClusterNode, raw: RawClient, queue: str
) -> None:
    """Nor on a channel that is opened behind the mistake: connection.close is the last that the client hears."""
    raw.write(
        marshal(1, Basic.Qos(prefetch_size=1))
        + marshal(2, Chan.Open())
        + marshal(2, Chan.Flow(active=True))
        + marshal(2, Queue.Declare(queue=queue))
    )
    raw.expect_close(540, "NOT_IMPLEMENTED - prefetch_size!=0 (1)")
    raw.send(0, Conn.CloseOk())
    with pytest.raises(EOFError):
        raw.receive()
    with RawClient(node.amqp_port) as other:
        other.open_channel(1)
        other.send(1, Queue.Declare(queue=queue, passive=True))
        other.expect_close(404, f"NOT_FOUND - no queue '{queue}' {HERE}", channel=1)


def test_closed_connection_returns_its_unacked_messages(
    node: ClusterNode, raw: RawClient, queue: str
) -> None:
    raw.call(1, Queue.Declare(queue=queue), Queue.DeclareOk)
    raw.write(publish(1, queue, b"m") * 4)
    for ending in range(4):
        with RawClient(node.amqp_port) as holder:
            holder.open_channel(1)
            holder.call(1, Basic.Consume(queue=queue), Basic.ConsumeOk)
            for _ in range(4):
                holder.expect_message()
            if ending == 0:
                holder.call(1, Chan.Close(200, "", 0, 0), Chan.CloseOk)
            elif ending == 1:
                holder.close()
            elif ending == 2:
                holder.send(1, Chan.Flow(active=False))
                holder.expect(Conn.Close)
            else:
                holder.socket.shutdown(1)  # half-closed: the client sends no more
                holder.expect_end()
            ready = 0
            for _ in range(100):
                ready = raw.call(1, Queue.Declare(queue=queue, passive=True), Queue.DeclareOk).message_count
                if ready == 4:
                    break
            assert ready == 4
