"""Shovels of a node: messages that arrive at the target, and the reported reason without an arrival."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import threading
import time
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest
import uvloop
from pamqp import commands

from qq.amqp.encoding import encode
from qq.amqp_server import in_process_clients
from qq.config import ClientTls
from qq.machine.protocol import commands as c
from qq.machine.protocol.versions import VERSIONS
from qq.machine.queue.moves import LEDGER, SHOVEL
from qq.shovels import carrier, run
from qq.shovels.carrier import ShovelCarrier
from qq.shovels.client import Closed
from qq.shovels.connecting import Connector, tls_context
from qq.shovels.report import Report
from qq.shovels.run import ShovelRun
from qq.shovels.uris import parse_uri
from tests.harness.certificates import Authority
from tests.harness.lone_broker import LoneBroker, drop, wait_until
from tests.wire.exchanges import HEADERS_OF_LATIN, LATIN, SELECT, consume
from tests.wire.exchanges import publish as publish_octets
from tests.wire.wire import HEADER, Peer, open_channel, open_vhost, part, short, start_ok, tune_ok

ACK = b"\0\x3c\0\x50"
"""The first octets of basic.ack."""
OWN = {"src-uri": "amqp://", "src-queue": "q", "dest-uri": "amqp://", "dest-queue": "to"}


class Carried:
    """A broker at a node that carries out shovels."""

    def __init__(self, broker: LoneBroker) -> None:
        self.broker = broker
        self.far = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}"
        self.carrier = ShovelCarrier(
            broker.machine,
            Connector(
                lambda vhost: in_process_clients.connect(broker.server, vhost, 2**16),
                lambda host: host != "forbidden",
                2**24,
                random.Random(1),
            ),
            leads=lambda: True,
            cluster=lambda: "blue",
            wall_ms=lambda: time.time_ns() // 1_000_000,
        )

    def put(self, **changes: Any) -> None:
        value = (
            OWN | {"dest-uri": self.far} | {key.replace("_", "-"): value for key, value in changes.items()}
        )
        text = json.dumps({key: each for key, each in value.items() if each is not None})
        self.broker.operate(c.PutParameter("/", SHOVEL, "s", text))

    def report(self) -> Report | None:
        return self.broker.call(self.carrier.reports).get(("/", "s"))

    def wait_for(self, state: str) -> Report:
        wait_until(lambda: (report := self.report()) is not None and report.state == state, state)
        report = self.report()
        assert report is not None
        return report

    def run(self) -> ShovelRun | None:
        """The run under way."""
        runner = self.carrier._runs.get(("/", "s"))
        return None if runner is None else runner._current

    def wait_for_run_after(self, run: ShovelRun | None) -> None:
        """Wait until a later run carries messages."""
        wait_until(lambda: self.run() not in (None, run), "another run")
        self.wait_for("running")

    async def change(self, command: c.Change) -> None:
        applied = asyncio.get_running_loop().create_future()
        self.broker.broker.submissions.add(command)
        self.broker.broker.submissions.read_barrier(partial(applied.set_result, None))
        await applied


@pytest.fixture
def broker() -> Generator[LoneBroker]:
    with LoneBroker(new_loop=uvloop.new_event_loop) as lone:  # as a node
        lone.call(lone.machine.raise_to, 8)
        yield lone


@pytest.fixture
def carried(broker: LoneBroker, monkeypatch: pytest.MonkeyPatch) -> Generator[Carried]:
    monkeypatch.setattr(carrier, "POLL_S", 0.02)
    monkeypatch.setattr(carrier, "START_AFTER_S", 0)
    monkeypatch.setattr(run, "REFUSED_PAUSE_S", 0.02)
    each = Carried(broker)

    async def begin() -> asyncio.Task[None]:
        return asyncio.create_task(each.carrier.run(each.change))

    task = broker.await_on_loop(begin())
    yield each

    async def end() -> None:
        task.cancel()
        await asyncio.wait([task])

    broker.await_on_loop(end())


@pytest.fixture
def channel(broker: LoneBroker) -> Generator[Any]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port))
    channel = connection.channel()
    for name in ("q", "to"):
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
    yield channel
    if connection.is_open:
        connection.close()


def publish(channel: Any, *bodies: bytes, exchange: str = "", key: str = "q", **properties: Any) -> None:
    for body in bodies:
        channel.basic_publish(exchange, key, body, pika.BasicProperties(**properties))


def arrived(channel: Any, count: int, queue: str = "to") -> list[tuple[Any, Any, bytes]]:
    found: list[tuple[Any, Any, bytes]] = []
    deadline_s = time.monotonic() + 10
    while len(found) < count:
        message = channel.basic_get(queue, auto_ack=True)
        if message[0] is not None:
            found.append(message)
        assert time.monotonic() < deadline_s, f"{len(found)} of {count} messages"
    return found


def bodies(messages: list[tuple[Any, Any, bytes]]) -> list[bytes]:
    return [body for _, _, body in messages]


def has_ended(carried: Carried) -> bool:
    return not carried.broker.machine.vhosts["/"].parameters and carried.report() is None


def test_messages_arrive_unchanged(carried: Carried, channel: Any) -> None:
    headers = {"h": [1, {"x": True}], "x-delivery-count": 7}
    publish(channel, b"a", headers=headers, priority=7, content_type="a/b", correlation_id="\xe9")
    publish(channel, b"", b"b" * 300_000)
    carried.put()
    first, second, third = arrived(channel, 3)
    assert (first[1].headers, first[1].priority, first[1].content_type) == ({"h": [1, {"x": True}]}, 7, "a/b")
    assert (first[2], second[2], third[2]) == (b"a", b"", b"b" * 300_000)
    assert (first[1].message_id, second[1].headers) == (None, None)
    wait_until(lambda: carried.wait_for("running").figures["forwarded"] == 3, "the count")
    wait_until(lambda: not channel.queue_declare("q", passive=True).method.message_count, "the last ack")


@pytest.mark.parametrize("ends", [("amqp://", "far"), ("far", "amqp://"), ("far", "far"), ("amqp://",) * 2])
def test_octets_that_are_not_utf8_arrive_unchanged(
    carried: Carried, channel: Any, ends: tuple[str, str]
) -> None:
    """In routing keys and names of headers, between queues of this cluster and of others."""
    carried.broker.call(carried.broker.machine.raise_to, VERSIONS[1])
    channel.queue_bind("q", "amq.fanout")
    channel.queue_bind("to", "amq.topic", "#")
    source, target = (carried.far if end == "far" else end for end in ends)
    carried.put(src_uri=source, dest_uri=target, dest_queue=None, dest_exchange="amq.topic")
    with Peer(carried.broker.amqp_port) as peer:
        for octets in (
            HEADER,
            start_ok("\0guest\0guest"),
            tune_ok() + open_vhost("/"),
            open_channel(),
            SELECT,
        ):
            peer.write(octets)
            peer.take(1, 10.0)
        peer.write(consume("to", no_ack=True))
        peer.take(1, 10.0)
        peer.write(publish_octets(LATIN, b"m", HEADERS_OF_LATIN, exchange="amq.fanout"))
        frames = [part(octets) for octets in peer.take(4, 10.0)]
    contents = [each.payload for each in frames if each is not None and each.payload[:4] != ACK]
    assert contents[0].endswith(short("amq.topic") + short(LATIN))
    assert contents[1].endswith(HEADERS_OF_LATIN)
    assert contents[2] == b"m"


def test_shovelled_messages_get_headers_and_properties(carried: Carried, channel: Any) -> None:
    publish(
        channel, b"a", headers={"x-shovelled": [{"shovel-name": "before"}], "h": 1}, type="old", app_id="kept"
    )
    properties = {"type": "new", "delivery_mode": 2}
    carried.put(dest_add_forward_headers=True, add_timestamp_header=True, publish_properties=properties)
    [(_, headers, _)] = arrived(channel, 1)
    assert (headers.type, headers.delivery_mode, headers.app_id, headers.headers["h"]) == (
        "new",
        2,
        "kept",
        1,
    )
    way, before = headers.headers["x-shovelled"]
    assert before == {"shovel-name": "before"}
    assert (way["shovelled-by"], way["shovel-name"], way["shovel-vhost"], way["src-queue"]) == (
        "blue",
        "s",
        "/",
        "q",
    )
    assert way["dest-uri"] == carried.far.replace("guest:guest@", "")
    assert abs(headers.headers["x-shovelled-timestamp"] - time.time()) < 60


def test_shovel_ends_may_be_exchanges(carried: Carried, channel: Any) -> None:
    channel.exchange_declare("from", "topic")
    channel.exchange_declare("into", "topic")
    channel.queue_bind("to", "into", "a.*")
    into = {"dest_queue": None, "dest_exchange": "into"}
    carried.put(src_queue=None, src_exchange="from", src_exchange_key="#", **into)
    carried.wait_for("running")
    publish(channel, b"a", exchange="from", key="a.x")
    [(method, properties, _)] = arrived(channel, 1)
    assert (method.exchange, method.routing_key, properties.headers) == ("into", "a.x", None)
    former = carried.run()
    carried.put(src_queue=None, src_exchange="from", src_exchange_key="#", dest_exchange_key="a.y", **into)
    carried.wait_for_run_after(former)
    publish(channel, b"b", exchange="from", key="other")
    assert arrived(channel, 1)[0][0].routing_key == "a.y"


@pytest.mark.parametrize("after", ["queue-length", 3])
@pytest.mark.parametrize("ack_mode", ["on-confirm", "on-publish"])
def test_shovel_with_delete_after_is_deleted(
    carried: Carried, channel: Any, after: Any, ack_mode: str
) -> None:
    publish(channel, b"1", b"2", b"3", *([b"4"] if after == 3 else []), message_id="m")
    channel.queue_declare("q", passive=True)
    carried.put(src_delete_after=after, ack_mode=ack_mode)
    assert bodies(arrived(channel, 3)) == [b"1", b"2", b"3"]
    wait_until(lambda: has_ended(carried), "the end of the shovel")
    if after == 3:
        assert bodies(arrived(channel, 1, "q")) == [b"4"]


def test_a_shovel_may_take_without_acknowledging(carried: Carried, channel: Any) -> None:
    publish(channel, b"1", b"2")
    carried.put(ack_mode="no-ack")
    assert bodies(arrived(channel, 2)) == [b"1", b"2"]


def test_message_that_the_target_refuses_is_sent_until_accepted(carried: Carried, channel: Any) -> None:
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    channel.queue_declare("full", durable=True, arguments=arguments)
    publish(channel, *(b"%d" % number for number in range(20)), message_id="m")
    carried.put(dest_queue="full")
    messages = arrived(channel, 20, "full")
    assert sorted(bodies(messages), key=int) == [b"%d" % number for number in range(20)]
    wait_until(lambda: not channel.queue_declare("q", passive=True).method.message_count, "the last ack")


def test_message_numbers_are_kept_until_the_shovel_is_deleted(carried: Carried, channel: Any) -> None:
    publish(channel, b"1", message_id="1")
    publish(channel, b"2", headers={"x-publisher-id": "mine", "x-publish-seq": 5})
    publish(channel, b"3")
    carried.put()
    headers = [properties.headers or {} for _, properties, _ in arrived(channel, 3)]
    assert [each.get("x-publish-seq") for each in headers] == [1, 2, None]
    assert headers[0]["x-publisher-id"] == headers[1]["x-publisher-id"] != "mine"
    parameters = carried.broker.machine.vhosts["/"].parameters
    assert (LEDGER, "s") in parameters
    carried.broker.operate(c.DeleteParameter("/", SHOVEL, "s"))
    wait_until(lambda: has_ended(carried), "the end of the shovel and its numbers")


def test_shovel_that_is_set_again_recognizes_its_messages(carried: Carried, channel: Any) -> None:
    channel.queue_declare("full", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    publish(channel, b"1", b"2", message_id="m")
    carried.put(dest_queue="full", reconnect_delay=0)
    wait_until(lambda: carried.wait_for("running").figures["forwarded"] >= 2, "the refusal")
    parameters = carried.broker.machine.vhosts["/"].parameters

    def publishers() -> set[str]:
        return {publisher for publisher, _, _ in json.loads(parameters[LEDGER, "s"])["runs"]}

    before = publishers()
    carried.far = carried.far.replace("guest:guest@", "")
    carried.put(dest_queue="full", src_prefetch_count=7)
    wait_until(lambda: (report := carried.report()) is not None and not report.figures, "the change")
    wait_until(lambda: carried.wait_for("running").figures["forwarded"] >= 1, "the next run")
    assert publishers() == before
    carried.put(dest_queue="to")
    assert bodies(arrived(channel, 1)) == [b"2"]
    assert not publishers() & before


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"src-queue": "none", "src-predeclared": True},
            "source: 404 NOT_FOUND - no queue 'none' in vhost '/'",
        ),
        (
            {"dest-uri": "amqp://guest:hidden@127.0.0.1:PORT"},
            "failed to connect to destination: amqp://127.0.0.1",
        ),
        ({"dest-uri": "amqp://127.0.0.1:1"}, "failed to connect to destination: amqp://127.0.0.1:1: "),
        (
            {"dest-uri": "amqps://127.0.0.1:PORT?cacertfile=/none"},
            "certificates or key cannot be read; the node's",
        ),
        ({"dest-uri": "amqps://Forbidden"}, "this host is not among those of [shovels] hosts"),
        ({"src-uri": "amqp:///none"}, "failed to connect to source: amqp:///none: "),
        ({"dest-queue": None, "dest-exchange": "none"}, "destination: 404 NOT_FOUND - no exchange 'none'"),
        ({"src-consumer-args": {"x": 1e308}}, "source: basic.consume cannot be written: "),
    ],
)
def test_stopped_shovel_gives_its_reason(
    carried: Carried, channel: Any, changes: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    publish(channel, b"a")
    port = str(carried.broker.amqp_port)
    carried.put(
        **{
            key: each.replace("PORT", port) if isinstance(each, str) else each
            for key, each in changes.items()
        }
    )
    report = carried.wait_for("terminated")
    assert reason in (report.reason or "")
    assert "hidden" not in (report.reason or "") + caplog.text


def test_shovel_above_the_limit_is_refused_with_the_reason(
    carried: Carried, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier, "RUNNING_MAX", 0)
    publish(channel, b"a")
    carried.put()
    assert "at most 0 shovels run at a time" in (carried.wait_for("terminated").reason or "")
    monkeypatch.setattr(carrier, "RUNNING_MAX", 1)
    assert bodies(arrived(channel, 1)) == [b"a"]


def test_shovel_starts_when_its_queue_is_declared(carried: Carried, channel: Any) -> None:
    carried.put(src_queue="later", src_predeclared=True, reconnect_delay=0.1)
    carried.wait_for("terminated")
    channel.queue_declare("later", durable=True)
    publish(channel, b"a", key="later")
    assert bodies(arrived(channel, 1)) == [b"a"]
    channel.queue_delete("later")
    assert "its queue is gone" in (carried.wait_for("terminated").reason or "")


def test_shovel_continues_after_its_connections_were_lost(carried: Carried, channel: Any) -> None:
    carried.put(reconnect_delay=0.1)
    carried.wait_for("running")

    def cut_off() -> None:
        for connection in list(carried.broker.broker.connections.values()):
            if connection.client_properties.get("product") == "qq shovel":
                drop(connection)

    for number in range(3):
        publish(channel, b"%d" % number, message_id=str(number))
        assert bodies(arrived(channel, 1)) == [b"%d" % number]
        former = carried.run()
        carried.broker.call(cut_off)
        carried.wait_for_run_after(former)
    publish(channel, b"end")
    assert bodies(arrived(channel, 1)) == [b"end"]  # no earlier message precedes it


def test_a_shovel_that_fails_while_it_is_stopped_is_over(carried: Carried, channel: Any) -> None:
    carried.put(reconnect_delay=0.1)
    carried.wait_for("running")
    former = carried.run()
    assert former is not None

    def fail_and_stop() -> None:
        former._done.set_exception(Closed("it fails"))
        assert carried.carrier.restart("/", "s")

    carried.broker.call(fail_and_stop)
    carried.wait_for_run_after(former)  # which waits until the runner before has ended
    publish(channel, b"a")
    assert bodies(arrived(channel, 1)) == [b"a"]


def test_no_message_is_lost_when_the_target_queue_is_deleted(carried: Carried, channel: Any) -> None:
    carried.put(reconnect_delay=0.1)
    carried.wait_for("running")
    channel.queue_delete("to")
    publish(channel, *(b"%d" % number for number in range(10)))
    reason = "destination: no queue takes a message: 312 NO_ROUTE"
    wait_until(lambda: (report := carried.report()) is not None and report.reason == reason, "the reason")
    wait_until(lambda: "to" in carried.broker.machine.vhosts["/"].queues, "the next run")
    assert sorted(bodies(arrived(channel, 10))) == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("ends", [{"ack_mode": "on-publish"}, {"src_queue": None, "src_exchange": "from"}])
def test_messages_with_a_foreign_publisher_id_are_not_dropped(
    carried: Carried, channel: Any, ends: dict[str, Any]
) -> None:
    channel.exchange_declare("from", "fanout")
    carried.put(**ends)
    carried.wait_for("running")
    headers = {"x-publisher-id": "mine", "x-publish-seq": 1}
    publish(channel, b"a", exchange="from" if "src_exchange" in ends else "", headers=headers)
    assert bodies(arrived(channel, 1)) == [b"a"]


def test_missing_queues_are_declared(carried: Carried, channel: Any) -> None:
    carried.put(src_queue="new", dest_queue="far", dest_queue_args={"x-max-length": 5})
    carried.wait_for("running")
    publish(channel, b"a", key="new")
    assert bodies(arrived(channel, 1, "far")) == [b"a"]
    assert carried.broker.machine.vhosts["/"].queues["far"].arguments["x-max-length"] == 5


def test_target_that_blocks_publishers_is_reported(carried: Carried, channel: Any) -> None:
    carried.put()
    carried.wait_for("running")
    publish(channel, b"a")
    arrived(channel, 1)  # connection.blocked goes only to publishers
    publish(channel, b"b")
    carried.broker.alarm("disk")
    wait_until(lambda: (report := carried.report()) is not None and report.state == "blocked", "blocked")
    carried.broker.alarm(None)
    carried.wait_for("running")
    assert bodies(arrived(channel, 1)) == [b"b"]


def test_a_slow_target_slows_its_source_down(
    carried: Carried, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier, "BUFFER_BYTES_MAX", 100_000)
    monkeypatch.setattr(carrier, "BUFFER_BYTES_MIN", 100_000)
    publish(channel, *(bytes(20_000) for _ in range(200)))
    channel.queue_declare("q", passive=True)
    carried.broker.alarm("disk")
    carried.put(src_prefetch_count=0)
    blocked = carried.wait_for("blocked").figures
    # As many may be pending as there is room for, and as many more as a read of the socket brought.
    assert blocked["forwarded"] + blocked["pending"] <= 10
    carried.broker.alarm(None)
    assert len(arrived(channel, 200)) == 200


def test_a_shovel_speaks_tls_and_logs_in_with_its_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, client = authority.issue("server"), authority.issue("guest")
    tls = ClientTls(server.cert, server.key, authority.file, cert_login_from="common_name")

    async def log_in(query: str) -> None:
        uri = parse_uri(f"amqps://127.0.0.1:{broker.amqps_port}?{query}")
        (await connector().connect([uri], "Shovel s")).abort()

    with LoneBroker(tls=tls) as broker:
        trusting = f"cacertfile={authority.file}"
        broker.await_on_loop(log_in(trusting))
        broker.await_on_loop(log_in("verify=verify_none"))
        broker.await_on_loop(
            log_in(f"{trusting}&certfile={client.cert}&keyfile={client.key}&auth_mechanism=external")
        )
        for query, reason in (
            ("", "its certificate is not good"),
            (f"{trusting}&server_name_indication=other", "not good"),
        ):
            with pytest.raises(Closed, match=reason):
                broker.await_on_loop(log_in(query))


def test_broker_is_reached_while_20_name_lookups_hang(
    broker: LoneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, answers = socket.getaddrinfo, threading.Event()

    def stalled(host: str, port: int, **how: Any) -> Any:
        if host.startswith("slow") and not how.get("flags", 0) & socket.AI_NUMERICHOST:
            answers.wait(20)
        return resolve("127.0.0.1" if host == "quick" else host, port, **how)

    async def log_in(host: str) -> None:
        uri = parse_uri(f"amqp://guest:guest@{host}:{broker.amqp_port}")
        (await connections.connect([uri], "Shovel s")).abort()

    async def story() -> None:
        waiting = [asyncio.create_task(log_in(f"slow{number}")) for number in range(20)]
        await asyncio.sleep(0.05)
        await asyncio.wait_for(log_in("quick"), 3)
        for task in waiting:
            task.cancel()

    connections = connector()
    monkeypatch.setattr(socket, "getaddrinfo", stalled)
    try:
        broker.await_on_loop(story())
    finally:
        answers.set()


@pytest.mark.parametrize("name", [".h", "\0", "a" * 64])
def test_invalid_tls_server_name_ends_only_the_shovel(broker: LoneBroker, name: str) -> None:
    uri = parse_uri(f"amqps://127.0.0.1:{broker.amqp_port}")
    assert uri.tls is not None
    uri = uri._replace(tls=uri.tls._replace(server_name=name))
    unhandled: list[dict[str, Any]] = []

    async def log_in() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        await connector().connect([uri], "Shovel s")

    with pytest.raises(Closed, match="its URI has an unusable part"):
        broker.await_on_loop(log_in())
    assert not unhandled


@pytest.mark.parametrize("key", ["cacertfile", "certfile"])
def test_files_that_never_end_are_not_read(tmp_path: Path, key: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for name in (pipe, "/dev/zero", "/proc/self/environ"):
        tls = parse_uri(f"amqps://h?{key}={name}").tls
        assert tls is not None
        with pytest.raises(Closed, match="cannot be read"):
            tls_context(tls)


async def _log_in_at_a_broker_of_small_frames() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        start = commands.Connection.Start(mechanisms="PLAIN", locales="en_US", server_properties={})
        writer.write(encode(0, start) + encode(0, commands.Connection.Tune(1, 9, 0)))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        await connector().connect([parse_uri(f"amqp://127.0.0.1:{port}")], "Shovel s")


def test_broker_with_a_tiny_frame_limit_is_left() -> None:
    with pytest.raises(Closed, match="frames of 9 octets"):
        asyncio.run(_log_in_at_a_broker_of_small_frames())


def _anywhere(_host: str) -> bool:
    return True


async def _own_end(_vhost: str) -> Any:
    raise AssertionError("it is another broker")


def connector() -> Connector:
    return Connector(_own_end, _anywhere, 2**24, random.Random(1))
