"""The workloads against a real cluster: without faults, and with a killed node.

Each run is a module's fixture, for all tests, which inspect its history.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import defaultdict
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import pytest

from chaos import history
from chaos.live.run import Options, run
from chaos.workloads import churn
from chaos.workloads.catalog import WORKLOADS
from chaos.workloads.churn import CLIENTS
from chaos.workloads.dead_letter import FIRST, FIRST_LIMIT, LAST, SECOND
from chaos.workloads.transport import Endpoint
from qq.testing import LocalCluster
from tests.chaos.history_checks import gaps, ids, lost, phantoms, unended, unmarked_duplicates

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path
    from typing import Any

    from chaos.history import Row

pytestmark = [pytest.mark.xdist_group("workloads"), pytest.mark.timeout(90)]

ENOUGH = 16
"""Operations of each kind in each workload, however slow the machine is."""
NAMES = 3
"""Of the queues of each client that comes and goes. Of 20, as in a run, the first would come again after 15 s."""
DELETIONS = CLIENTS * NAMES + 4
"""All, and some again."""
FROZEN_S = 0.2
"""Some forty messages are published in it, and no election has begun."""
DRAINED = [name for name in WORKLOADS if name != "churn"]


class Recorded(NamedTuple):
    rows: list[Row]
    meta: dict[str, Any]

    def of(self, workload: str) -> list[Row]:
        return [row for row in self.rows if row.get("workload") == workload]

    def deliveries(self, queue: str) -> list[Row]:
        return [row for row in self.rows if row["op"] == "deliver" and row["queue"] == queue]


@pytest.fixture(scope="module")
def cluster() -> Generator[LocalCluster]:
    with LocalCluster(3) as cluster:
        yield cluster


def _options(cluster: LocalCluster, out: Path) -> Options:
    endpoints = tuple(Endpoint(node.name, "127.0.0.1", node.amqp_port) for node in cluster.nodes)
    http = tuple(f"http://127.0.0.1:{node.http_port}" for node in cluster.nodes)
    return Options(rate=100, endpoints=endpoints, http=http, out=out, seed=1, peace_s=0.0, quiet_s=0.5)


def _recorded(directory: Path) -> Recorded:
    return Recorded(history.read(directory / "history"), json.loads((directory / "meta.json").read_text()))


@pytest.fixture(scope="module", autouse=True)
def few_names() -> Generator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(churn, "NAMES", NAMES)
        yield


@pytest.fixture(scope="module")
def peaceful(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    directory = tmp_path_factory.mktemp("peaceful")
    file = directory / "history" / "harness.jsonl"
    asyncio.run(run(_options(cluster, directory), lambda: asyncio.to_thread(_wait_for_all, file)))
    return _recorded(directory)


@pytest.fixture(scope="module")
def killed(cluster: LocalCluster, peaceful: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The same again on the same cluster, and n1 is killed and started again."""

    directory = tmp_path_factory.mktemp("killed")

    file = directory / "history" / "harness.jsonl"

    def kill_and_start() -> None:
        _wait_for_confirms(file, "confirm-pub-1", connections=1)
        # Messages published while the node is frozen have no confirm when it dies: a node may be so quick that a kill
        # alone meets it with nothing in flight.
        cluster.nodes[0].pause()
        time.sleep(FROZEN_S)
        cluster.nodes[0].kill()
        cluster.nodes[0].start()
        _wait_for_confirms(file, "confirm-pub-1", connections=2)
        _wait_for_all(file)

    asyncio.run(run(_options(cluster, directory), lambda: asyncio.to_thread(kill_and_start)))
    return _recorded(directory)


def _wait_for_confirms(file: Path, process: str, connections: int) -> None:
    """Wait until the flushed rows show confirms for the process on so many connections."""
    seen: set[str] = set()
    confirm = re.compile(rf'"process":"{process}",.*"type":"ok","op":"publish",.*"connection":"([^"]+)"')
    for lines in _flushed(file):
        seen.update(confirm.findall(lines))
        if len(seen) >= connections:
            break


def _wait_for_all(file: Path) -> None:
    """Wait until the flushed rows show enough operations of every workload: redeliveries count once."""
    done: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    row = re.compile(
        r'("process":"[^"]+","call":\d+),"type":"ok","op":"(\w+)","workload":"(\w+)"(?:.*"id":"([^"]+)")?'
    )
    enough = dict.fromkeys(product(("publish", "deliver"), WORKLOADS), ENOUGH)
    enough["deliver", "backlog"] = enough["deliver", "moved"] = 0
    enough["delete", "churn"] = DELETIONS
    enough["commit_leases", "leases"] = enough["release_lease", "leases"] = 1
    enough["deliver", "leases"] = ENOUGH // 4
    enough["tx_commit", "tx"] = ENOUGH // 2
    for lines in _flushed(file):
        for call, op, workload, message in row.findall(lines):
            done[op, workload].add(message or call)
        if all(len(done[operation]) >= count for operation, count in enough.items()):
            break


def _flushed(file: Path) -> Generator[str]:
    """The whole lines that have come since the last time, for ever."""
    rest = ""
    with file.open(encoding="utf-8") as rows:
        while True:
            time.sleep(0.2)
            lines, _, rest = (rest + rows.read()).rpartition("\n")
            yield lines


@pytest.fixture(params=["peaceful", pytest.param("killed", marks=pytest.mark.long)])
def recorded(request: pytest.FixtureRequest) -> Recorded:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_workload_publishes_and_receives_its_messages(recorded: Recorded, workload: str) -> None:
    rows = recorded.of(workload)
    assert len(ids(rows, "publish", "ok")) >= ENOUGH
    assert len(ids(rows, "deliver", "ok") | ids(rows, "leased", "ok")) >= ENOUGH
    assert phantoms(rows) == set()
    assert unmarked_duplicates(rows) == set()
    assert gaps(rows) == set()


@pytest.mark.parametrize("workload", DRAINED)
def test_confirmed_messages_are_complete_after_the_drain(recorded: Recorded, workload: str) -> None:
    assert lost(recorded.of(workload)) == set()


def test_calls_end_once_and_the_run_has_no_problems(recorded: Recorded) -> None:
    assert unended(recorded.rows) == set()
    assert recorded.meta["problems"] == []
    [drained] = [row for row in recorded.rows if row["op"] == "drain" and row["type"] == "ok"]
    assert drained["time_ns"] > recorded.meta["heal_ns"] > recorded.meta["started_ns"]


def test_publishers_and_consumers_run_on_every_node(peaceful: Recorded) -> None:
    rows = peaceful.of("confirm")
    for op in ("publish", "deliver"):
        assert {row["node"] for row in rows if row["op"] == op} == {"n1", "n2", "n3"}


def test_publishers_and_consumers_of_both_protocols_share_queues(peaceful: Recorded) -> None:
    protocol = {
        row["connection"]: row["detail"]
        for row in peaceful.rows
        if (row["op"], row["type"]) == ("connect", "ok")
    }
    published = {row["id"]: protocol[row["connection"]] for row in peaceful.rows if row["op"] == "publish"}
    pairs = {
        (published[row["id"]], protocol[row["connection"]])
        for row in peaceful.of("confirm")
        if row["op"] == "deliver"
    }
    assert pairs == set(product(("AMQP 0-9-1", "AMQP 1.0"), repeat=2))


def test_both_kinds_of_priority_are_in_the_queue_together(peaceful: Recorded) -> None:
    order = [row.get("priority", 0) > 4 for row in peaceful.deliveries("priority")]
    highs_before_each_normal = [2 * [True] + [False]]
    assert any(order[start : start + 3] in highs_before_each_normal for start in range(len(order) - 2))
    assert {True, False} == set(order)


def test_single_active_consumers_take_over_in_order(peaceful: Recorded) -> None:
    rows = [row for row in peaceful.deliveries("single-active") if row["process"].startswith("single")]
    assert len({row["process"] for row in rows}) > 1
    sequences = defaultdict(list)
    for row in rows:
        if not row["redelivered"]:
            sequences[row["publisher"]].append(row["sequence"])
    assert all(found == sorted(found) for found in sequences.values())


def test_rejected_and_overdelivered_messages_pass_down_the_chain(peaceful: Recorded) -> None:
    assert max(row["delivery_count"] for row in peaceful.deliveries(FIRST)) == FIRST_LIMIT
    # A rejected message comes redelivered, because the next quorum queue continues its count of failed deliveries.
    arrived = {row["id"]: row["deaths"][0]["reason"] for row in peaceful.deliveries(SECOND)}
    assert set(arrived.values()) == {"rejected", "delivery_limit"}
    assert ids(peaceful.of("dead_letter"), "reject", "ok") <= arrived.keys() | ids(
        peaceful.deliveries(LAST), "deliver", "ok"
    )
    assert {len(row["deaths"]) for row in peaceful.deliveries(LAST)} == {2}


def test_transactions_are_committed_and_rolled_back(peaceful: Recorded) -> None:
    rows = peaceful.of("tx")
    assert {row["queue"] for row in rows if row["op"] == "publish"} == {"tx-a", "tx-b"}
    assert len([row for row in rows if row["op"] == "tx_commit" and row["type"] == "ok"]) > 10
    rolled_back = {row["tx"] for row in rows if row["op"] == "tx_rollback" and row["type"] == "ok"}
    published = {row["id"] for row in rows if row["op"] == "publish" and row["tx"] in rolled_back}
    assert published == ids([row for row in rows if row.get("tx") in rolled_back], "publish", "fail")
    assert published & ids(rows, "deliver", "ok") == set()


@pytest.mark.parametrize("workload", ["churn", "tx"])
def test_get_is_recorded_with_its_delivery(peaceful: Recorded, workload: str) -> None:
    rows = peaceful.of(workload)
    for process in {row["process"] for row in rows if row["op"] == "get"}:
        invoked = [row for row in rows if row["process"] == process]
        gots = [row for row in invoked if row["op"] == "get" and row["type"] == "ok" and "detail" not in row]
        came = [row for row in invoked if row["op"] == "deliver"]
        assert [row["queue"] for row in gots] == [row["queue"] for row in came] != []


def test_backlog_is_consumed_in_the_drain_phase_only(peaceful: Recorded) -> None:
    assert {row["process"] for row in peaceful.deliveries("backlog")} == {"drain-backlog"}


def test_messages_without_a_move_are_consumed_in_the_drain(peaceful: Recorded) -> None:
    assert {row["process"] for row in peaceful.deliveries("moved-from")} == {"drain-moved-from"}


def test_readers_take_over_groups_and_commit_leases(peaceful: Recorded) -> None:
    rows = [row for row in peaceful.of("leases") if row.get("group") == "shared"]
    owners = {row["process"] for row in rows if row["op"] == "commit_leases" and row["type"] == "ok"}
    assert owners == {"leases-reader-1", "leases-reader-2"}
    fences = [row["fence"] for row in rows if row["op"] == "open_group" and row["type"] == "ok"]
    assert len(set(fences)) > 2
    assert ids(rows, "leased", "ok")


def test_queues_are_recreated_under_the_same_names(peaceful: Recorded) -> None:
    deleted = [row["queue"] for row in peaceful.of("churn") if row["op"] == "delete" and row["type"] == "ok"]
    assert len(deleted) > len(set(deleted)) == CLIENTS * NAMES


@pytest.mark.long
def test_lost_connection_leaves_publishes_unknown(killed: Recorded) -> None:
    cut = [row for row in killed.rows if row["op"] == "connect" and row["type"] == "info"]
    assert [row for row in cut if row["node"] != "n1"] == []
    assert len(cut) >= 5
    unknown = [row for row in killed.rows if row["op"] == "publish" and row["type"] == "unknown"]
    assert unknown
    assert {row["node"] for row in unknown} == {"n1"}
    # They connect to other nodes, unless n1 is back before they get to it.
    assert all(_connected_after(killed, lost_at) for lost_at in cut)


def _connected_after(recorded: Recorded, lost_at: Row) -> Row:
    return next(
        row
        for row in recorded.rows
        if row["process"] == lost_at["process"]
        and row["time_ns"] > lost_at["time_ns"]
        and (row["op"], row["type"]) == ("connect", "ok")
    )


@pytest.mark.long
def test_pinned_client_returns_to_its_node(killed: Recorded) -> None:
    rows = [row for row in killed.rows if row["process"] == "confirm-pub-1"]
    assert {row["node"] for row in rows} == {"n1"}
    connected = [row["connection"] for row in rows if row["op"] == "connect" and row["type"] == "ok"]
    assert len(connected) == 2
    assert any(
        row["connection"] == connected[1] for row in rows if row["op"] == "publish" and row["type"] == "ok"
    )


@pytest.mark.long
def test_only_deduplicated_messages_are_published_again(killed: Recorded) -> None:
    again = [row for row in killed.rows if row["op"] == "publish" and row.get("attempt", 1) > 1]
    assert {row["workload"] for row in again} <= {"dedup"}
    rows = killed.of("dedup")
    assert ids(rows, "publish", "invoke") == ids(rows, "publish", "ok") == ids(rows, "deliver", "ok")
    first = [row["id"] for row in rows if row["op"] == "deliver" and not row["redelivered"]]
    assert len(first) == len(set(first))


def test_foreign_cluster_reports_its_own_version(peaceful: Recorded) -> None:
    versions = peaceful.meta["versions"]
    assert re.fullmatch(r"RabbitMQ [\d.]+ \(the authors of qq\)", versions["cluster"])
    assert not {"qq", "commit", "toxiproxy"} & versions.keys()
    assert peaceful.meta["nemesis"] == []


@pytest.mark.long
def test_foreign_cluster_is_left_without_queues_of_the_run(
    cluster: LocalCluster, peaceful: Recorded, killed: Recorded
) -> None:
    assert peaceful.meta["queues"].keys() == killed.meta["queues"].keys()
    assert cluster.queues() == []
