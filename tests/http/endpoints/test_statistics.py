"""Statistics of virtual hosts, exchanges and the cluster, on a machine with samples by the test."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qq.http.documents import samples
from qq.machine.protocol.commands import PutVhost, SetPermissions
from qq.machine.queue.queue import Queue
from qq.management.reports.rows import Samples
from qq.management.statistics import queue_statistics
from qq.management.statistics.rates import QueueNumbers, numbers_of
from qq.management.statistics.totals import WATCHED_MAX, KeptSamples, VhostNumbers
from tests.http.fakes import MachineManagement
from tests.http.http_node import Node

MESSAGE = {"routing_key": "q", "properties": {}, "payload": "text", "payload_encoding": "string"}


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node[MachineManagement]:
    node = Node(MachineManagement())
    node.management.make(PutVhost("v", "", [], ""), SetPermissions("guest", "v", ".*", ".*", ".*"))
    node.clock_ms = 1_000_000  # type: ignore[attr-defined]
    monkeypatch.setattr(node.management.group, "time_ms", lambda: node.clock_ms)  # type: ignore[attr-defined]
    for vhost in ("%2F", "v"):
        for queue in ("q", "r"):
            assert node.api(f"queues/{vhost}/{queue}", "PUT").status == 201
            assert node.api(f"bindings/{vhost}/e/amq.fanout/q/{queue}", "POST", json={}).status == 201
    return node


def sample(node: Any) -> None:
    """Take a sample, and let five seconds pass."""
    asyncio.run(node.management.statistics.sample())
    asyncio.run(node.management.clients.sample())
    node.clock_ms += 5000


def publish(node: Any, vhost: str, exchange: str) -> None:
    answer = node.api(f"exchanges/{vhost}/{exchange}/publish", "POST", json=MESSAGE)
    assert answer.status == 200


def get(node: Any, vhost: str) -> None:
    body = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    assert node.api(f"queues/{vhost}/q/get", "POST", json=body).status == 200


def test_sample_counts_only_queues_that_changed(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[tuple[str, str]] = []

    def recorded(queue: Queue, now_ms: int) -> QueueNumbers:
        counted.append((queue.vhost, queue.name))
        return numbers_of(queue, now_ms)

    monkeypatch.setattr(queue_statistics, "numbers_of", recorded)
    machine = node.management.machine

    def counted_now() -> list[tuple[str, str]]:
        machine.end_entry(node.clock_ms)
        counted.clear()
        sample(node)
        return sorted(counted)

    everything = [(vhost, queue) for vhost in ("/", "v") for queue in ("q", "r")]
    assert counted_now() == everything
    assert counted_now() == []
    publish(node, "v", "amq.fanout")
    assert counted_now() == [("v", "q"), ("v", "r")]
    assert counted_now() == []
    get(node, "v")
    assert counted_now() == [("v", "q")]
    machine.adopt(machine.read(machine.freeze().dump()))
    assert counted_now() == everything


def test_field_of_a_queue_equals_its_path_in_the_document(node: Any) -> None:
    for _ in range(2):
        sample(node)
        publish(node, "v", "amq.fanout")
    rows = asyncio.run(node.management.queues.rows_by_name("v".__eq__))
    queue, _ = rows.things
    for path, find in rows.parts.items():
        first, *rest = path.split(".")
        value = rows.fields[first](queue)
        for part in rest:
            value = value[part]
        assert find(queue) == value, path
    assert rows.parts["message_stats.publish_details.rate"](queue) > 0


def test_exchange_shows_its_publish_rates(node: Any) -> None:
    assert "message_stats" not in node.api("exchanges/v/amq.fanout").json
    publish(node, "v", "amq.fanout")
    sample(node)
    for _ in range(9):
        publish(node, "v", "amq.fanout")
    publish(node, "v", "amq.default")
    publish(node, "v", "amq.topic")
    sample(node)
    exchange = node.api("exchanges/v/amq.fanout").json
    assert exchange["message_stats"] == {
        "publish_in": 10,
        "publish_in_details": {"rate": 0.9},
        "publish_out": 20,
        "publish_out_details": {"rate": 1.8},
    }
    assert exchange["incoming"] == exchange["outgoing"] == []
    assert node.api("exchanges/v/amq.topic").json["message_stats"]["publish_out"] == 0
    listed = {each["name"]: each.get("message_stats") for each in node.api("exchanges/v").json}
    assert listed["amq.headers"] is None
    assert (listed["amq.fanout"]["publish_in"], listed[""]["publish_out"]) == (10, 1)
    assert "message_stats" not in node.api("exchanges/v?disable_stats=true").json[0]


def test_a_virtual_host_and_the_whole_are_sums(node: Any) -> None:
    sample(node)
    publish(node, "v", "amq.fanout")
    publish(node, "%2F", "amq.fanout")
    publish(node, "%2F", "amq.topic")
    get(node, "v")
    sample(node)
    vhost = node.api("vhosts/v").json
    assert (vhost["messages"], vhost["messages_ready"], vhost["messages_unacknowledged"]) == (1, 1, 0)
    assert vhost["messages_details"] == {"rate": 0.1}
    stats = vhost["message_stats"]
    assert (stats["publish"], stats["get"], stats["ack"], stats["deliver_get"]) == (1, 1, 1, 1)
    assert stats["publish_details"] == {"rate": 0.1}
    overview = node.api("overview").json
    assert overview["queue_totals"]["messages"] == 3
    stats = overview["message_stats"]
    assert (stats["publish"], stats["publish_details"], stats["get"]) == (3, {"rate": 0.3}, 1)
    assert overview["churn_rates"]["queue_created"] == 4
    # The publications and the get were done in connections of their own.
    assert overview["churn_rates"]["connection_closed_details"]["rate"] > 0
    # A user of a single virtual host sees only its numbers.
    node.add_user("ann", "management", vhosts=("v",))
    assert node.api("overview", user="ann").json["message_stats"]["publish"] == 1
    assert "message_stats" not in node.api("overview?disable_stats=true").json


def test_statistics_of_a_deleted_queue_stay_in_the_totals(node: Any) -> None:
    publish(node, "v", "amq.fanout")
    get(node, "v")
    sample(node)
    assert node.api("queues/v/q", "DELETE").status == 204
    sample(node)
    vhost = node.api("vhosts/v").json
    assert (vhost["message_stats"]["get"], vhost["messages"]) == (1, 1)


def test_samples_are_kept_for_requested_objects(node: Any) -> None:
    wanted = "lengths_age=20&lengths_incr=5&msg_rates_age=10&msg_rates_incr=5"
    paths = ("queues/v/q", "vhosts/v", "exchanges/v/amq.fanout", "overview")
    publish(node, "v", "amq.fanout")
    for path in paths:
        assert node.api(f"{path}?{wanted}").status == 200
    for _ in range(4):
        publish(node, "v", "amq.fanout")
        sample(node)
    queue = node.api(f"queues/v/q?{wanted}").json
    shown = queue["messages_ready_details"]
    assert [each["sample"] for each in shown["samples"]] == [5, 5, 4, 3, 2]
    assert [each["timestamp"] for each in shown["samples"]] == list(range(1_020_000, 999_999, -5000))
    assert (shown["avg"], shown["avg_rate"], "rate" in shown) == (3.8, 0.15, True)
    shown = queue["message_stats"]["publish_details"]
    assert [each["sample"] for each in shown["samples"]] == [5, 5, 4]
    vhost = node.api(f"vhosts/v?{wanted}").json
    assert [each["sample"] for each in vhost["message_stats"]["publish_details"]["samples"]] == [5, 5, 4]
    overview = node.api(f"overview?{wanted}").json
    assert len(overview["queue_totals"]["messages_details"]["samples"]) == 5
    exchange = node.api(f"exchanges/v/amq.fanout?{wanted}").json
    assert exchange["message_stats"]["publish_out_details"]["samples"][0]["sample"] == 10
    assert "samples" not in node.api("queues/v/q?lengths_age=5").json["messages_details"]


def test_lists_return_samples_only_for_their_first_items(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "LISTED_MAX", 1)
    publish(node, "v", "amq.fanout")
    wanted = "lengths_age=1800&lengths_incr=30&msg_rates_age=1800&msg_rates_incr=30"
    first, *rest = node.api(f"queues/v?{wanted}&columns=name,messages_details").json
    # A new viewer gets the present numbers, at the last time that would have had a sample.
    assert first["messages_details"]["samples"] == [{"sample": 1, "timestamp": 990_000}]
    assert [list(each["messages_details"]) for each in rest] == [["rate"]]
    [vhost, *_] = node.api(f"vhosts?{wanted}&sort=messages&sort_reverse=true").json
    assert "samples" in vhost["message_stats"]["publish_details"]
    [exchange] = node.api(f"exchanges/v?{wanted}&page=1&name=fanout").json["items"]
    assert [each["sample"] for each in exchange["message_stats"]["publish_in_details"]["samples"]] == [1]
    assert node.api("queues?lengths_age=0&lengths_incr=5").status == 400


@pytest.mark.parametrize("wanted", ["lengths_age=0&lengths_incr=5", "msg_rates_age=5010&msg_rates_incr=10"])
def test_samples_that_cannot_be_are_refused(node: Any, wanted: str) -> None:
    for path in ("queues/v/q", "vhosts/v", "exchanges/v/amq.fanout", "overview"):
        answer = node.api(f"{path}?{wanted}")
        assert answer.status == 400
        assert answer.json["reason"].startswith("Invalid range parameters: age ")


def test_samples_take_bounded_memory() -> None:
    history = KeptSamples()
    for number in range(WATCHED_MAX + 5):
        history.details((str(number),), VhostNumbers(), Samples(5, 5), 0)
    assert history.watched_keys() == [(str(number),) for number in range(5, WATCHED_MAX + 5)]
    for time_ms in range(0, 10_000_000, 5000):
        history.record(("7",), VhostNumbers(), time_ms)
    shown = history.details(("7",), VhostNumbers(), Samples(5000, 10), 10_000_000)
    assert len(shown["publish"]["samples"]) == 61
