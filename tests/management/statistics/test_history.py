"""Former values of numbers, for charts: stored and returned samples."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest

from qq.machine.protocol.commands import DeclareQueue
from qq.management.statistics import history
from qq.management.statistics.history import LEVELS, NumberHistories, NumberHistory, Shape
from tests.http.fakes import MachineManagement
from tests.http.http_node import Node

DAY_S = 86_400


class Numbers(NamedTuple):
    published: int
    ready: int


SHAPE = Shape(("published",), ("ready",))


def recorded(samples: int, *, step_s: int = 5, each: int = 10) -> NumberHistory:
    kept = NumberHistory(SHAPE)
    for number in range(samples):
        kept.record(number * step_s * 1000, Numbers(number * each, number))
    return kept


def test_history_returns_counts_as_rates_and_values_unchanged() -> None:
    matches = recorded(4).since(900, 15_000)
    assert matches == {"times": [5000, 10_000, 15_000], "published": [2, 2, 2], "ready": [1, 2, 3]}


def test_counter_reset_gives_no_negative_rate() -> None:
    kept = recorded(3)
    kept.record(15_000, Numbers(5, 0))
    assert kept.newest() == {"time": 15_000, "published": 0, "ready": 0}


def test_older_samples_are_returned_as_means_of_longer_steps() -> None:
    kept = recorded(8 * 720)  # eight hours
    minutes = kept.since(3600, 8 * 3_600_000)
    assert {b - a for a, b in zip(minutes["times"], minutes["times"][1:], strict=False)} == {60_000}
    assert len(minutes["times"]) == 60
    assert set(minutes["published"]) == {2}
    quarters = kept.since(7 * DAY_S, 8 * 3_600_000)
    assert len(quarters["times"]) == 32
    assert quarters["ready"][1] == pytest.approx(180 * 1.5, abs=1)


def test_a_history_of_any_length_takes_the_same_room() -> None:
    kept = recorded(9 * 96, step_s=900)  # nine days
    kept_rows = [len(samples._times) for samples in kept._levels]
    assert all(rows <= level.kept + history._SLACK for rows, level in zip(kept_rows, LEVELS, strict=True))
    assert len(kept.since(7 * DAY_S, 9 * DAY_S * 1000)["times"]) <= 7 * 96


def test_history_is_empty_before_two_samples() -> None:
    assert recorded(1).newest() == {}
    assert recorded(1).since(900, 0) == {"times": [], "published": [], "ready": []}


def test_history_forgets_the_objects_that_were_not_read_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "HISTORIES_MAX", 3)
    kept = NumberHistories({"queue": SHAPE})
    for name in "abc":
        kept.begin(("queue", "/", name))
    kept.begin_if_room(("queue", "/", "x"))
    kept.begin(("queue", "/", "a"))
    kept.begin(("queue", "/", "d"))
    assert [name for (_, _, name), _ in kept.all()] == ["c", "a", "d"]


# --- over HTTP


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node[MachineManagement]:
    node = Node(MachineManagement())
    node.management.make(DeclareQueue(0, 0, "a", False, True, False, False, False, {}))
    node.management.broker.live = True
    for time_ms in (0, 5000, 10_000):
        monkeypatch.setattr(node.management.group, "time_ms", lambda time_ms=time_ms: time_ms)
        asyncio.run(node.management.charts.sample())
    return node


def test_the_cluster_virtual_hosts_and_queues_have_a_history(node: Node[MachineManagement]) -> None:
    together = node.api("history").json
    assert together["times"] == [5000, 10_000]
    assert together["queues"] == [1, 1]
    assert together["memory_bytes"][0] > 10**6
    for query in ("vhost=%2F", "vhost=%2F&name=a"):
        assert node.api(f"history?{query}").json["messages_ready"] == [0, 0]
    assert node.management.charts.newest_sample(("queue", "/", "a"))["time"] == 10_000


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("age=604800", 200),
        ("age=604801", 400),
        ("age=x", 400),
        ("name=a", 400),
        ("vhost=%2F&name=b", 404),
        ("vhost=no", 404),
    ],
)
def test_a_wrong_history_is_refused(node: Node[MachineManagement], query: str, status: int) -> None:
    assert node.api(f"history?{query}").status == status


def test_a_history_shows_no_more_than_the_lists_do(node: Node[MachineManagement]) -> None:
    node.add_user("mia", "management", vhosts=("/",))
    node.add_user("nobody", "management")
    assert node.api("history", user="mia").status == 401
    assert node.api("history?vhost=%2F&name=a", user="mia").status == 200
    assert node.api("history?vhost=%2F&name=a", user="nobody").status == 404


def test_deleted_object_has_no_history(node: Node[MachineManagement]) -> None:
    node.management.machine.vhosts["/"].queues.pop("a")
    asyncio.run(node.management.charts.sample())
    assert ("queue", "/", "a") not in dict(node.management.charts._histories.all())


# --- permissions, and matches of policies


def test_may_returns_the_permissions_of_a_user(node: Node[MachineManagement]) -> None:
    node.add_user("mia", "management")
    all_of_it = {"configure": True, "read": True, "write": True}
    assert node.api("may?vhost=%2F&queue=a").json == all_of_it
    assert node.api("may?vhost=%2F&queue=a", user="mia").json == dict.fromkeys(all_of_it, False)
    assert node.api("may?vhost=%2F&exchange=amq.topic").json == {"configure": True, "write": True}
    assert node.api("may?vhost=%2F").json == {"declare": True}
    assert node.api("may?vhost=%2F", user="mia").json == {"declare": False}
    assert node.api("may").status == 400


def test_policy_matches_are_listed_and_counted(node: Node[MachineManagement]) -> None:
    names = [f"q{number}" for number in range(150)]
    node.management.make(*(DeclareQueue(0, 0, name, False, True, False, False, False, {}) for name in names))
    matches = node.api("policy-matches/%2F?pattern=^q1&apply-to=all").json
    assert (matches["queue_count"], matches["exchange_count"]) == (61, 0)
    assert {"kind": "queue", "name": "q1", "policy": None} in matches["items"]
    everything = node.api("policy-matches/%2F?pattern=").json
    assert (everything["queue_count"], len(everything["items"])) == (151, 100)
    assert node.api("policy-matches/%2F?pattern=Q").json["queue_count"] == 0
    exchanges = node.api("policy-matches/%2F?pattern=.*&apply-to=exchanges").json
    assert exchanges["queue_count"] == 0
    assert exchanges["exchange_count"] > 5


@pytest.mark.parametrize("query", ["pattern=(", f"pattern={'a' * 1025}", "pattern=a&apply-to=nothing"])
def test_invalid_policy_match_request_is_refused(node: Node[MachineManagement], query: str) -> None:
    assert node.api(f"policy-matches/%2F?{query}").status == 400
