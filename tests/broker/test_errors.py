"""Each mistake of a client gets the code and the text that RabbitMQ has for it, and nobody else notices."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands
from raw_client import HEADER, RawClient, frame_bytes, marshal, publish

from qq.testing import ClusterNode

Basic, Chan, Conn = commands.Basic, commands.Channel, commands.Connection
Exchange, Queue = commands.Exchange, commands.Queue
QUORUM = {"x-queue-type": "quorum"}
HERE = "in vhost '/'"


def unchecked(kind: type[Any], **fields: Any) -> Any:
    """A method that pamqp would refuse to make."""
    method = kind.__new__(kind)
    for name, value in fields.items():
        setattr(method, name, value)
    return method


def quorum(**fields: Any) -> Any:
    return Queue.Declare(queue="e-q", arguments=QUORUM, **fields)


CHANNEL_ERRORS: list[tuple[list[Any], int, str]] = [
    ([commands.Tx.Commit()], 406, "PRECONDITION_FAILED - channel is not transactional"),
    ([commands.Tx.Rollback()], 406, "PRECONDITION_FAILED - channel is not transactional"),
    ([Queue.Declare(queue="e-no", passive=True)], 404, f"NOT_FOUND - no queue 'e-no' {HERE}"),
    ([Queue.Purge(queue="e-no")], 404, f"NOT_FOUND - no queue 'e-no' {HERE}"),
    ([Basic.Consume(queue="e-no")], 404, f"NOT_FOUND - no queue 'e-no' {HERE}"),
    ([Basic.Get(queue="e-no")], 404, f"NOT_FOUND - no queue 'e-no' {HERE}"),
    ([Queue.Bind(queue="e-no", exchange="amq.direct")], 404, f"NOT_FOUND - no queue 'e-no' {HERE}"),
    ([Basic.Get(queue="")], 404, "NOT_FOUND - no previously declared queue"),
    ([Exchange.Declare(exchange="e-no", passive=True)], 404, f"NOT_FOUND - no exchange 'e-no' {HERE}"),
    ([Exchange.Bind(destination="e-no", source="amq.direct")], 404, f"NOT_FOUND - no exchange 'e-no' {HERE}"),
    (
        [Queue.Declare(queue="e-c"), Queue.Bind(queue="e-c", exchange="e-no")],
        404,
        f"NOT_FOUND - no exchange 'e-no' {HERE}",
    ),
    ([publish(1, "k", b"m", exchange="e-no")], 404, f"NOT_FOUND - no exchange 'e-no' {HERE}"),
    (
        [publish(1, "k", b"m", exchange="amq.rabbitmq.trace")],
        403,
        f"ACCESS_REFUSED - cannot publish to internal exchange 'amq.rabbitmq.trace' {HERE}",
    ),
    (
        [Queue.Declare(queue="e-c"), Queue.Bind(queue="e-c", exchange="", routing_key="k")],
        403,
        "ACCESS_REFUSED - operation not permitted on the default exchange",
    ),
    (
        [Queue.Declare(queue="amq.x")],
        403,
        "ACCESS_REFUSED - queue name 'amq.x' contains reserved prefix 'amq.*'",
    ),
    (
        [Exchange.Declare(exchange="e-x", exchange_type="nope")],
        406,
        "PRECONDITION_FAILED - unknown exchange type 'nope'",
    ),
    ([quorum()], 406, f"PRECONDITION_FAILED - invalid property 'non-durable' for queue 'e-q' {HERE}"),
    (
        [quorum(durable=True, auto_delete=True)],
        406,
        f"PRECONDITION_FAILED - invalid property 'auto-delete' for queue 'e-q' {HERE}",
    ),
    (
        [quorum(durable=True, exclusive=True)],
        406,
        f"PRECONDITION_FAILED - invalid property 'exclusive-owner' for queue 'e-q' {HERE}",
    ),
    (
        [Queue.Declare(queue="", durable=True, arguments=QUORUM)],
        406,
        "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_quorum_queue",
    ),
    (
        [Queue.Declare(queue="e-q", durable=True, arguments=QUORUM | {"x-queue-mode": "lazy"})],
        406,
        (
            f"PRECONDITION_FAILED - invalid arg 'x-queue-mode' for queue 'e-q' {HERE} "
            "of queue type rabbit_quorum_queue"
        ),
    ),
    (
        [Queue.Declare(queue="e-c"), Queue.Declare(queue="e-c", durable=True)],
        406,
        (
            f"PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'e-c' {HERE}: "
            "received 'true' but current is 'false'"
        ),
    ),
    ([Basic.Ack(1)], 406, "PRECONDITION_FAILED - unknown delivery tag 1"),
    ([Basic.Ack(0)], 406, "PRECONDITION_FAILED - unknown delivery tag 0"),
    ([Basic.Ack(5, multiple=True)], 406, "PRECONDITION_FAILED - unknown delivery tag 5"),
    ([Basic.Nack(7)], 406, "PRECONDITION_FAILED - unknown delivery tag 7"),
    ([Basic.Reject(2**62)], 406, f"PRECONDITION_FAILED - unknown delivery tag {2**62}"),
]

CONNECTION_ERRORS: list[tuple[list[Any], int, str]] = [
    ([Basic.Qos(prefetch_size=9)], 540, "NOT_IMPLEMENTED - prefetch_size!=0 (9)"),
    ([unchecked(Basic.Recover, requeue=False)], 540, "NOT_IMPLEMENTED - requeue=false"),
    ([Chan.Flow(active=False)], 540, "NOT_IMPLEMENTED - active=false"),
    (
        [Queue.Declare(queue="e-c"), *[Basic.Consume(queue="e-c", consumer_tag="t")] * 2],
        530,
        "NOT_ALLOWED - attempt to reuse consumer tag 't'",
    ),
    (
        [publish(1, "k", b"m").replace(b"\1k\0\xce", b"\1k\2\xce")],
        540,
        "NOT_IMPLEMENTED - immediate=true",
    ),
    ([Chan.Open()], 504, "CHANNEL_ERROR - second 'channel.open' seen"),
    ([Chan.CloseOk()], 503, "COMMAND_INVALID - unexpected channel.close-ok"),
    ([marshal(9, Queue.Declare(queue="e-c"))], 504, "CHANNEL_ERROR - expected 'channel.open'"),
    ([publish(9, "k", b"m")], 504, "CHANNEL_ERROR - expected 'channel.open'"),
    ([marshal(9, Basic.Ack(1))], 504, "CHANNEL_ERROR - expected 'channel.open'"),
    (
        [marshal(3000, Chan.Open())],
        530,
        "NOT_ALLOWED - number of channels opened (2047) has reached the negotiated channel_max (2047)",
    ),
    ([Basic.Deliver("t", 1, False, "", "")], 503, "COMMAND_INVALID - unimplemented method"),
    ([frame_bytes(1, 1, b"\1\2\3\4")], 503, "COMMAND_INVALID - unimplemented method"),
    ([frame_bytes(1, 1, b"\0")], 502, "SYNTAX_ERROR - a method frame has less than four octets"),
    (
        [frame_bytes(1, 1, b"\0\x32\0\x0a\0\0\xff")],
        502,
        "SYNTAX_ERROR - cannot decode queue.declare: a short string runs over the end",
    ),
    (
        [frame_bytes(2, 1, b"\0\x3c" + bytes(12))],
        505,
        "UNEXPECTED_FRAME - expected method frame, got non method frame instead",
    ),
    (
        [publish(1, "k", b"m")[:-9], marshal(1, Basic.Ack(1))],
        505,
        "UNEXPECTED_FRAME - expected content body, got non content body frame instead",
    ),
    ([frame_bytes(8, 1, b"")], 505, "UNEXPECTED_FRAME - type 8, all octets = <<>>"),
    ([b"\x07" + bytes(20)], 501, "FRAME_ERROR - type 7, all octets = <<>>: unknown_frame"),
    (
        [b"\1\0\1\0\0\0\4\0\1\2\3\4"],
        501,
        "FRAME_ERROR - type 1, all octets = <<0,1,2,3>>: {invalid_frame_end_marker,4}",
    ),
    (
        [b"\3\0\1\x7f\0\0\0"],
        501,
        f"FRAME_ERROR - type 3, all octets = <<>>: {{frame_too_large,{0x7F000000},131064}}",
    ),
]


def ids(errors: list[tuple[list[Any], int, str]]) -> list[str]:
    return [f"{number}-{text[:60]}" for number, (_, _, text) in enumerate(errors)]


def send_all(raw: RawClient, frames: list[Any]) -> None:
    raw.write(b"".join(frame if isinstance(frame, bytes) else marshal(1, frame) for frame in frames))


@pytest.mark.parametrize(("frames", "code", "text"), CHANNEL_ERRORS, ids=ids(CHANNEL_ERRORS))
def test_an_error_closes_the_channel_and_nothing_else(
    node: ClusterNode, raw: RawClient, frames: list[Any], code: int, text: str
) -> None:
    raw.open_channel(2)
    send_all(raw, frames)
    raw.expect_close(code, text, channel=1)
    raw.send(1, Queue.Declare(queue="ignored-until-close-ok"), Chan.CloseOk())
    raw.open_channel(1)
    for channel in (1, 2):
        raw.call(channel, Basic.Qos(prefetch_count=1), Basic.QosOk)
    raw.close()


@pytest.mark.parametrize(("frames", "code", "text"), CONNECTION_ERRORS, ids=ids(CONNECTION_ERRORS))
def test_an_error_closes_the_connection_and_no_other(
    node: ClusterNode, raw: RawClient, frames: list[Any], code: int, text: str
) -> None:
    with RawClient(node.amqp_port) as other:
        other.open_channel(1)
        send_all(raw, frames)
        raw.expect_close(code, text)
        if code != 501:
            raw.send(0, Conn.CloseOk())
            raw.expect_end()
        other.call(1, Basic.Qos(prefetch_count=1), Basic.QosOk)
        other.close()


@pytest.mark.parametrize(
    "again",
    [Basic.Ack(2), Basic.Ack(2, multiple=True), Basic.Nack(2), Basic.Reject(2)],
    ids=["ack", "ack-multiple", "nack", "reject"],
)
def test_a_message_is_acknowledged_once(raw: RawClient, queue: str, again: Any) -> None:
    raw.call(1, Queue.Declare(queue=queue), Queue.DeclareOk)
    raw.write(publish(1, queue, b"m") * 3)
    raw.call(1, Basic.Consume(queue=queue), Basic.ConsumeOk)
    for _ in range(3):
        raw.expect_message()
    raw.send(1, Basic.Ack(2), again)
    raw.expect_close(406, "PRECONDITION_FAILED - unknown delivery tag 2", channel=1)


def test_all_outstanding_may_be_nothing(raw: RawClient) -> None:
    raw.send(1, Basic.Ack(0, multiple=True), Basic.Nack(0, multiple=True))
    raw.call(1, Basic.Qos(prefetch_count=1), Basic.QosOk)


def test_cancelling_what_is_not_there_is_answered(raw: RawClient) -> None:
    assert raw.call(1, Basic.Cancel("nobody"), Basic.CancelOk).consumer_tag == "nobody"


def test_deletion_may_ask_for_an_empty_or_unused_queue(raw: RawClient, queue: str) -> None:
    raw.call(1, Queue.Declare(queue=queue), Queue.DeclareOk)
    raw.write(publish(1, queue, b"m"))
    raw.send(1, Queue.Delete(queue=queue, if_empty=True))
    raw.expect_close(406, f"PRECONDITION_FAILED - queue '{queue}' {HERE} not empty", channel=1)


def test_a_publish_error_comes_in_the_middle_of_a_stream(raw: RawClient, queue: str) -> None:
    """What was published before the mistake counts; what comes behind it does not."""
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


def test_a_return_comes_before_its_confirm(raw: RawClient) -> None:
    raw.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    raw.write(publish(1, "nowhere", b"body", exchange="amq.direct", mandatory=True))
    method, _, body = raw.expect_message()
    assert (method.reply_code, method.reply_text, body) == (312, "NO_ROUTE", b"body")
    assert raw.expect(Basic.Ack).delivery_tag == 1


def test_methods_that_want_no_answer_get_none(raw: RawClient, queue: str) -> None:
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


def test_a_refused_login_is_told_to_a_client_that_understands(node: ClusterNode) -> None:
    with RawClient(node.amqp_port, handshake=False) as client:
        client.write(HEADER)
        client.expect(Conn.Start)
        client.send(0, client.start_ok("\0guest\0wrong"))
        text = "Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
        client.expect_close(403, f"ACCESS_REFUSED - {text}")


def test_another_protocol_gets_the_header_of_ours_and_the_end(node: ClusterNode) -> None:
    for start in (b"GET / HTTP/1.1\r\n\r\n", b"AMQP\0\1\0\0", b"\x16\x03\x01\x02\0"):
        with RawClient(node.amqp_port, handshake=False) as client:
            client.write(start)
            client.socket.settimeout(2)
            assert client.socket.recv(100) == HEADER
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


def test_a_close_that_is_sent_with_a_mistake_is_answered(raw: RawClient) -> None:
    raw.send(1, Basic.Ack(99), Chan.Close(200, "bye", 0, 0))
    raw.expect(Chan.CloseOk)
    raw.open_channel(1)


def test_both_sides_may_close_the_connection_at_once(raw: RawClient) -> None:
    raw.send(1, Chan.Flow(active=False))
    raw.send(0, Conn.Close(200, "bye", 0, 0))
    got = {type(raw.receive()[1])}
    assert got <= {Conn.Close, Conn.CloseOk}
    raw.send(0, Conn.CloseOk())
    raw.expect_end()


def test_a_closed_connection_returns_what_it_held(node: ClusterNode, raw: RawClient, queue: str) -> None:
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
                holder.socket.shutdown(1)  # half-closed: it will say nothing more
                holder.expect_end()
            ready = 0
            for _ in range(100):
                ready = raw.call(1, Queue.Declare(queue=queue, passive=True), Queue.DeclareOk).message_count
                if ready == 4:
                    break
            assert ready == 4
