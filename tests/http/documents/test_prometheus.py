"""Metrics of single queues, exchanges and virtual hosts."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from qq.http.documents import prometheus
from qq.machine.protocol.codec import encode_batch
from qq.machine.protocol.commands import (
    DeclareQueue,
    DeleteQueue,
    Enqueue,
    OpenSink,
    PutVhost,
    StageMessages,
)
from qq.machine.queue.queue import Queue
from qq.management.objects import object_metrics, sorted_objects
from qq.management.objects.object_metrics import _QUEUE_FAMILIES
from qq.stored.properties import NO_PRIORITY, NO_TTL
from tests.http.fakes import MachineManagement
from tests.http.http_node import Client, Node, answer

Samples = dict[tuple[str, tuple[str, ...]], float]


@pytest.fixture
def node() -> Node[MachineManagement]:
    node = Node(MachineManagement())
    node.management.make(PutVhost("other", "", [], ""))
    declare(node, "orders")
    return node


def declare(node: Node[MachineManagement], name: str) -> None:
    node.management.make(DeclareQueue(0, 0, name, False, True, False, False, False, {}))


def scraped(node: Node[MachineManagement], path: str) -> Samples:
    answer = node.request(path)
    assert answer.status == 200
    families = list(text_string_to_metric_families(answer.text))
    assert all(family.documentation for family in families)  # promtool wants them
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_each_sink_is_a_sample_of_each_metric(node: Node[MachineManagement]) -> None:
    stage = StageMessages("/", "s", "guest", 0, "a", 0, 2, "", "orders", 1, [], NO_PRIORITY, NO_TTL, 0)
    node.management.make(OpenSink("/", "s", "guest", 0), OpenSink("other", "t", "guest", 0))
    node.management.keep(encode_batch([stage], [b"abc", b"de"]))
    shown = scraped(node, "/metrics/per-object")
    assert shown["rabbitmq_sink_messages_staged", ("/", "s")] == 2
    assert shown["rabbitmq_sink_bytes_staged", ("/", "s")] == 5
    assert shown["rabbitmq_sink_attempts", ("/", "s")] == 1
    assert shown["rabbitmq_sink_attempts", ("other", "t")] == 0
    some = scraped(node, "/metrics/detailed?family=sink_metrics&vhost=other")
    assert some["rabbitmq_detailed_sink_oldest_message_age_seconds", ("other", "t")] == 0
    assert ("rabbitmq_detailed_sink_attempts", ("/", "s")) not in some


def test_each_queue_is_a_sample_of_each_metric(node: Node[MachineManagement]) -> None:
    stored = [b"abc"] * 3
    node.management.keep(encode_batch([Enqueue(99, 0, len(stored), "", "orders", False, 1)], stored))
    shown = scraped(node, "/metrics/per-object")
    assert shown["rabbitmq_queue_messages_ready", ("/", "orders")] == 3
    assert shown["rabbitmq_queue_messages", ("/", "orders")] == 3
    assert shown["rabbitmq_queue_messages_ready_bytes", ("/", "orders")] == 9
    assert shown["rabbitmq_queue_messages_published_total", ("/", "orders")] == 3
    assert shown["rabbitmq_queue_consumers", ("/", "orders")] == 0
    assert shown["rabbitmq_identity_info", ("n1", "per-object")] == 1


def test_age_of_the_oldest_ready_message_is_exported(
    node: Node[MachineManagement], monkeypatch: pytest.MonkeyPatch
) -> None:
    management, clock_ms = node.management, [1_000_000]
    monkeypatch.setattr(management.group, "time_ms", lambda: clock_ms[0])
    declare(node, "empty")
    name = "rabbitmq_detailed_queue_oldest_message_age_seconds"
    management.keep(encode_batch([Enqueue(99, 0, 1, "", "orders", False, 1)], [b"abc"]))
    management.group.engine.applied_index = max(management.entries)
    asyncio.run(management.statistics.sample())
    clock_ms[0] += 90_500
    shown = scraped(node, "/metrics/detailed?family=queue_metrics")
    assert {labels: value for (each, labels), value in shown.items() if each == name} == {
        ("/", "orders"): 90.5
    }
    assert (
        scraped(node, "/metrics/per-object")["rabbitmq_queue_oldest_message_age_seconds", ("/", "orders")]
        == 90.5
    )
    management.group.engine.is_leader = False
    assert not any(each == name for each, _ in scraped(node, "/metrics/detailed?family=queue_metrics"))


def test_detailed_metrics_show_only_requested_families(node: Node[MachineManagement]) -> None:
    shown = scraped(node, "/metrics/detailed?family=queue_consumer_count&family=vhost_status&family=unknown")
    assert shown == {
        ("rabbitmq_detailed_queue_consumers", ("/", "orders")): 0,
        ("rabbitmq_cluster_vhost_status", ("/",)): 1,
        ("rabbitmq_cluster_vhost_status", ("other",)): 1,
        ("rabbitmq_identity_info", ("n1", "detailed")): 1,
    }
    assert len(scraped(node, "/metrics/detailed")) == 1


def test_virtual_hosts_can_be_chosen(node: Node[MachineManagement]) -> None:
    families = "family=queue_coarse_metrics&family=exchange_names&family=exchange_bindings"
    shown = scraped(node, f"/metrics/detailed?{families}&vhost=other")
    assert {labels[0] for name, labels in shown if name != "rabbitmq_identity_info"} == {"other"}
    assert ("rabbitmq_cluster_exchange_name", ("other", "amq.topic", "topic")) in shown
    assert shown["rabbitmq_cluster_exchange_bindings", ("other", "amq.topic", "topic")] == 0


@pytest.mark.parametrize("family", [*_QUEUE_FAMILIES, "vhost_status", "exchange_names", "exchange_bindings"])
def test_only_the_leader_exports_metrics_of_objects(node: Node[MachineManagement], family: str) -> None:
    assert len(scraped(node, f"/metrics/detailed?family={family}")) > 1
    node.management.group.engine.is_leader = False
    assert len(scraped(node, f"/metrics/detailed?family={family}")) == 1


@pytest.mark.parametrize("family", ["queue_coarse_metrics", "exchange_names"])
def test_a_slice_without_a_line_is_not_the_end(
    node: Node[MachineManagement], monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """Many rows take longer than a slice, and the first line comes behind all of them."""
    monkeypatch.setattr(prometheus, "SLICE_S", 0.0)
    monkeypatch.setattr(object_metrics, "ROWS_AT_ONCE", 2)
    for number in range(5):
        declare(node, f"q{number}")
    shown = scraped(node, f"/metrics/detailed?family={family}&family=vhost_status&vhost=/")
    name, count = {
        "queue_coarse_metrics": ("rabbitmq_detailed_queue_messages", 6),
        "exchange_names": ("rabbitmq_cluster_exchange_name", 7),
    }[family]
    assert sum(each == name for each, _ in shown) == count
    assert ("rabbitmq_cluster_vhost_status", ("/",)) in shown


def test_metrics_text_is_rebuilt_only_for_changed_queues(
    node: Node[MachineManagement], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of queues that come and go, those with neighbouring numbers are told anew, and not all behind them."""
    made: list[str] = []

    def depth(queue: Queue) -> tuple[float, ...]:
        made.append(queue.name)
        return queue.ready, queue.unacked, queue.ready + queue.unacked

    monkeypatch.setattr(sorted_objects, "BLOCK", 2)
    monkeypatch.setattr(object_metrics, "BLOCK", 2)
    family = object_metrics._QUEUE_FAMILIES["queue_coarse_metrics"]._replace(values=depth)
    monkeypatch.setitem(object_metrics._QUEUE_FAMILIES, "queue_coarse_metrics", family)
    management = node.management
    names = [f"q{number}" for number in range(8)]
    for name in names:
        declare(node, name)

    async def story(client: Client) -> None:
        async def scrape() -> tuple[dict[str, str], set[str]]:
            made.clear()
            shown = await answer(client, "/metrics/detailed?family=queue_coarse_metrics&vhost=/")
            ready = [line for line in shown.text.splitlines() if "_messages_ready{" in line]
            assert shown.text.endswith(" 1\n")
            return {line.split('"')[3]: line.split()[-1] for line in ready}, set(made)

        everything = {"orders", *names}
        management.machine.end_entry(0)
        assert await scrape() == (dict.fromkeys(everything, "0"), everything)
        assert (await scrape())[1] == set()
        stored = [b"abc"] * 2
        management.keep(encode_batch([Enqueue(99, 0, 2, "", "q4", False, 1)], stored))
        shown, again = await scrape()
        assert (shown["q4"], shown["q5"]) == ("2", "0")
        assert "q4" in again
        assert len(again) <= 2
        management.make(DeleteQueue(0, 0, "q1", False, False))
        management.machine.end_entry(0)
        shown, again = await scrape()
        assert shown.keys() == everything - {"q1"}
        assert len(again) <= 1
        declare(node, "q1")
        management.machine.end_entry(0)
        shown, again = await scrape()
        assert shown["q1"] == "0"
        assert len(again) <= 2
        assert (await scrape())[1] == set()

    node.run(story)


def test_kept_metrics_texts_are_bounded_and_expire(
    node: Node[MachineManagement], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "KEPT_BYTES_MAX", 1000)
    monkeypatch.setattr(prometheus, "KEPT_S", 0.05)
    monkeypatch.setattr(sorted_objects, "BLOCK", 1)
    monkeypatch.setattr(object_metrics, "BLOCK", 1)
    written: list[prometheus.KeptTexts] = []
    texts = prometheus.ObjectExposition._texts

    def recorded(self: prometheus.ObjectExposition, families: str) -> prometheus.KeptTexts:
        written.append(texts(self, families))
        assert len(self._kept) <= prometheus.ANSWERS_KEPT
        return written[-1]

    monkeypatch.setattr(prometheus.ObjectExposition, "_texts", recorded)
    for number in range(20):
        declare(node, f"q{number}")

    async def story(client: Client) -> None:
        for families in ("", "&a", "&b", "&a", ""):
            shown = await answer(client, f"/metrics/detailed?family=queue_coarse_metrics{families}")
            assert shown.text.count("_messages_ready{") == 21
            kept = sum(len(text) for _, made in written[-1]._now.values() for text in made)
            assert 0 < kept <= 1000
        await asyncio.sleep(0.1)
        await answer(client, "/metrics/detailed?family=queue_coarse_metrics")

    node.run(story)
    first, other, _, other_again, first_again, forgotten = written
    assert other is other_again
    assert first is not first_again
    assert forgotten is not first_again


def test_any_name_can_be_read_again(node: Node[MachineManagement]) -> None:
    names = ['a "quoted" one', "a \\ n", 'x{name="x"} 1', "\u00e9"]
    for name in names:
        declare(node, name)
    shown = scraped(node, "/metrics/per-object")
    assert [name for name in names if ("rabbitmq_queue_messages", ("/", name)) not in shown] == []


def test_repeated_scrapes_take_a_limited_share_of_the_processor(
    node: Node[MachineManagement], monkeypatch: pytest.MonkeyPatch
) -> None:
    used_s = iter(range(1000))
    monkeypatch.setattr(prometheus, "thread_time", lambda: next(used_s) * 0.01)

    async def story(client: object) -> float:
        began_s = time.monotonic()
        await asyncio.gather(*(client.get(f"/metrics/detailed?{number}") for number in range(3)))  # type: ignore[attr-defined]
        return time.monotonic() - began_s

    # Each answer counts as 10 ms of processor time here, so the pause before the next is four times as long.
    assert node.run(story) >= 2 * 0.01 * prometheus.PAUSE_SHARE


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests with a new answer, in order; each answer seems to have taken 50 ms."""
    made: list[str] = []
    texts = prometheus.ObjectExposition._texts

    def recorded(self: prometheus.ObjectExposition, families: str) -> prometheus.KeptTexts:
        made.append(families)
        return texts(self, families)

    monkeypatch.setattr(prometheus.ObjectExposition, "_texts", recorded)
    used_s = iter(range(1000))
    monkeypatch.setattr(prometheus, "thread_time", lambda: next(used_s) * 0.05)
    return made


@asynccontextmanager
async def waiting_for_their_turn(
    client: Client,
) -> AsyncGenerator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """Connections that request metrics of all objects just after a first scrape, and hang up at the end."""
    connections = [await asyncio.open_connection(client.host, client.port) for _ in range(20)]
    await answer(client, "/metrics/per-object?first")
    for _, writer in connections:
        writer.write(b"GET /metrics/per-object HTTP/1.1\r\nHost: q\r\n\r\n")
    await asyncio.sleep(0.05)
    yield connections
    for _, writer in connections:
        writer.transport.abort()


def test_metrics_are_not_rendered_for_disconnected_clients(
    node: Node[MachineManagement], made: list[str]
) -> None:
    """Connections are bounded, but a closed connection frees its slot at once; its answer was made."""

    async def story(client: Client) -> None:
        async with waiting_for_their_turn(client):
            pass
        await answer(client, "/metrics/per-object?last")

    node.run(story)
    assert made == ["/metrics/per-object?first", "/metrics/per-object?last"]


def test_waiting_scrapes_share_a_single_answer(node: Node[MachineManagement], made: list[str]) -> None:
    """As many scrapes as may be connected request at once without reading, and no other client waits for them."""

    async def story(client: Client) -> None:
        async with waiting_for_their_turn(client) as connections:
            shown = await answer(client, "/metrics/per-object")
            assert shown.text.endswith(" 1\n")
            for reader, _ in connections:
                head = await reader.readuntil(b"\r\n\r\n")
                assert f"content-length: {len(shown.text)}" in head.decode().lower()
                assert (await reader.readexactly(len(shown.text))).decode() == shown.text

    node.run(story)
    assert made == ["/metrics/per-object?first", "/metrics/per-object"]


def test_scraper_that_does_not_read_delays_no_further_scrape(node: Node[MachineManagement]) -> None:
    """Some silent scrapers hold their answers; the oldest is evicted when there are too many."""
    for number in range(1500):
        declare(node, f"{number:0>250}")  # larger than the kernel's buffer of a socket

    async def story(client: Client) -> None:
        loop = asyncio.get_running_loop()
        with ExitStack() as closing:
            idle = [closing.enter_context(socket.socket()) for _ in range(prometheus.SENDING_MAX)]
            for each in idle:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                each.setblocking(False)
                await loop.sock_connect(each, (client.host, client.port))
                await loop.sock_sendall(each, b"GET /metrics/per-object HTTP/1.1\r\nHost: q\r\n\r\n")
                assert await loop.sock_recv(each, 12) == b"HTTP/1.1 200"
            async with asyncio.timeout(10):
                shown = await answer(client, "/metrics/per-object")
                assert shown.text.endswith(" 1\n")
                assert shown.text.count("rabbitmq_queue_messages_ready{") == 1501
                read = 0
                while part := await loop.sock_recv(idle[0], 1024 * 1024):
                    read += len(part)
                assert read < len(shown.text)

    node.run(story)
