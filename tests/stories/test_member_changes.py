"""Members that operators add, remove, replace and put under maintenance while clients are at work."""

from __future__ import annotations

import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pika.exceptions
import pytest

from qq.cli.local.local_requests import reason_not_ready
from qq.machine.protocol.versions import VERSIONS
from qq.testing import ClusterNode, LocalCluster
from tests.stories.clients import pika_connection
from tests.stories.commands import run_command, run_qq
from tests.stories.disk import NodeFiles
from tests.stories.load import COMMAND_POLL_S, loaded, poll

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.xdist_group("members"), pytest.mark.timeout(180)]

PAUSE_MAX_S = 3.0


def qq(node: ClusterNode, *arguments: str) -> tuple[int, str, str]:
    """Run a command through this node; return its exit status, output and errors."""
    end = run_command(node, *arguments)
    url = f"http://127.0.0.1:{node.http_port}"
    return end.returncode, end.stdout.strip(), end.stderr.strip().replace(url, "URL")


def done(node: ClusterNode, *arguments: str) -> str:
    """Run a command that must succeed, and return its output."""
    status, output, errors = qq(node, *arguments)
    assert status == 0, errors
    return output


def members(node: ClusterNode) -> dict[str, dict[str, Any]]:
    shown = json.loads(done(node, "member", "list", "--json"))
    return {member["name"]: member for member in shown["members"]}


def roles(node: ClusterNode) -> dict[str, str]:
    return {name: member["role"] for name, member in members(node).items()}


def address(node: ClusterNode) -> str:
    return f"127.0.0.1:{node.amqp_port + 20_000}"


def exit_status(node: ClusterNode) -> int | None:
    poll(lambda: not node.running, lambda: f"{node.name} goes on")
    assert node._process is not None
    return node._process.poll()


def until_down(via: ClusterNode, name: str) -> None:
    poll(lambda: members(via)[name]["state"] == "down", lambda: f"{name} counts as up", COMMAND_POLL_S)


def until_members_are_in_the_log(cluster: LocalCluster) -> None:
    """A new cluster sees to that in its first second, and then they can be changed."""
    while cluster.status()["version"] < VERSIONS[1]:
        time.sleep(0.02)


def test_a_cluster_grows_and_shrinks_while_clients_are_at_work(tmp_path: Path) -> None:
    """From three members to five and back to three, of which two are new; the leader is removed too."""
    with LocalCluster(3, tmp_path) as cluster, loaded(cluster) as load:
        first, second, third = cluster.nodes
        load.fault_begins()
        for via in (first, second):
            node = cluster.add_node()
            assert done(via, "member", "add", node.name, address(node)) == f"{node.name} votes"
            assert done(third, "member", "add", node.name, address(node)) == f"{node.name} votes"
        assert roles(third) == dict.fromkeys(["n1", "n2", "n3", "n4", "n5"], "voter")
        load.until_all_work()
        for node, via in ((cluster.leader(), third), (first, third), (second, third)):
            if node not in cluster.nodes or len(cluster.nodes) == 3:
                continue
            via = next(each for each in cluster.nodes if each is not node)
            with load.killed_meanwhile(node):
                assert done(via, "member", "remove", node.name).startswith(f"{node.name} is no member")
                assert exit_status(node) == os.EX_CONFIG
                cluster.forget_node(node)
            assert done(via, "member", "remove", node.name).startswith(f"{node.name} is no member")
            load.until_all_work()
        assert len(members(cluster.nodes[0])) == 3
        load.assert_waited_less_than(PAUSE_MAX_S)


def test_member_remove_removes_exactly_the_named_node(tmp_path: Path) -> None:
    with LocalCluster(3, tmp_path) as cluster:
        while cluster.status()["version"] < VERSIONS[1]:  # the new cluster has no members in its log yet
            time.sleep(0.02)
        leader, follower, last = cluster.leader(), *cluster.followers()
        assert done(leader, "member", "remove", leader.name).startswith(f"{leader.name} is no member")
        assert exit_status(leader) == os.EX_CONFIG
        leader.start()
        assert exit_status(leader) == os.EX_CONFIG
        assert "was removed from the cluster" in leader.log_since()
        data_dir = NodeFiles(leader).root
        for arguments, text in [
            (
                ["inspect", str(data_dir)],
                "the directory was removed from its cluster, and can be no member again",
            ),
            (["recover", "--unsafe-from", str(data_dir)], "and more: this node was removed from its cluster"),
        ]:
            end = run_qq(*arguments)
            assert (end.returncode, text in end.stdout) == (1, True), end
        cluster.forget_node(leader)
        status, _, errors = qq(follower, "member", "remove", follower.name)
        assert (status, "add another one first" in errors) == (1, True)
        assert roles(last) == {follower.name: "voter", last.name: "voter"}


def test_invalid_member_change_is_refused_without_effect(tmp_path: Path) -> None:
    with LocalCluster(3, tmp_path) as cluster:
        until_members_are_in_the_log(cluster)
        first, second, third = cluster.nodes
        before = members(first)
        for arguments, text in [
            (["member", "add", "n1", "127.0.0.1:9"], "there is a member 'n1' at 127.0.0.1:"),
            (
                ["member", "add", "n9", address(first)],
                "and nothing is changed: a node that is not 'n9' listens there",
            ),
            (
                ["member", "add", "n9", "127.0.0.1:9", "--timeout", "0"],
                "(nobody listens), and nothing is",
            ),
            (["member", "add", "n/9", "127.0.0.1:9"], "must be 1 to 64 of"),
            (["member", "remove", "n9"], "there is no member 'n9'; the members are n1, n2, n3"),
            (["member", "replace", "n2"], "node 'n2' is up and has its data directory: if it had lost"),
            (["member", "promote", "n9"], "there is no member 'n9'; the members are n1, n2, n3"),
            (["drain", "n9"], "there is no member 'n9'; the members are n1, n2, n3"),
        ]:
            status, output, errors = qq(second, *arguments)
            assert (status, output) == (1, ""), arguments
            *waiting, error = errors.splitlines()
            assert text in error
            assert all(line.startswith("waiting for ") for line in waiting)
        third.kill()
        until_down(first, "n3")
        for arguments in (["promote", "n3"], ["add", "n3", address(third)]):
            began_s = time.monotonic()
            status, _, errors = qq(second, "member", *arguments, "--timeout", "2")
            assert (
                status,
                errors.splitlines()[-1].endswith("n3 does not answer (start it, or look at its network)"),
            ) == (1, True)
            assert "waiting for n3 to vote (1 s): n3 does not answer" in errors
            assert time.monotonic() - began_s < 5.0
        status, _, errors = qq(second, "member", "remove", "n2")
        assert (status, "n1 would be no majority of n1, n3; n3 does not answer" in errors) == (1, True)
        assert done(first, "drain", "n1", "--timeout", "20").startswith("n1 is under maintenance")
        status, _, errors = qq(first, "drain", "n2")
        assert (status, "n2 goes on serving: nobody else can: n1 is under maint" in errors) == (1, True)
        assert done(first, "revive", "n1") == "n1 is under maintenance no more"
        third.start()
        cluster.wait_caught_up()
        after = members(first)
        assert {name: (row["id"], row["role"]) for name, row in after.items()} == {
            name: (row["id"], row["role"]) for name, row in before.items()
        }


def test_a_lost_disk_is_replaced_by_command_if_that_is_wanted(tmp_path: Path) -> None:
    settings = {"cluster": {"replace_emptied": False}}
    with LocalCluster(3, tmp_path, settings) as cluster, loaded(cluster) as load:
        first, _, third = cluster.nodes
        before = members(first)["n3"]["id"]
        load.kill(third)
        until_down(first, "n3")
        shutil.rmtree(NodeFiles(third).root)
        third.start()
        status, _, errors = qq(first, "member", "promote", "n3", "--timeout", "3")
        assert (status, "another data directory than the member's is up under the name n3" in errors) == (
            1,
            True,
        )
        load.kill(third)
        # It may count as up for a moment.
        replace = ("member", "replace", "n3", "--no-wait")
        poll(lambda: qq(first, *replace)[0] == 0, lambda: str(qq(first, *replace)), COMMAND_POLL_S)
        assert "n3 is awaited" in done(first, *replace)
        assert roles(first)["n3"] == "awaited"
        third.start()
        # By now it may vote, and a voter is not replaced.
        assert done(first, "member", "promote", "n3") == "n3 votes"
        assert members(first)["n3"]["id"] != before
        cluster.wait_caught_up()
        load.until_all_work()


def test_drained_node_loses_leadership_and_clients(tmp_path: Path) -> None:
    settings = {"limits": {"drain_grace_s": 1}}
    with LocalCluster(3, tmp_path, settings) as cluster, loaded(cluster) as load:
        leader, other, _ = cluster.leader(), *cluster.followers()
        with load.killed_meanwhile(leader):
            for _ in range(2):
                text = f"{leader.name} is under maintenance: it leads nothing and has no clients"
                assert done(other, "drain", leader.name) == text
        assert cluster.leader() is not leader
        assert "under maintenance" in str(reason_not_ready(leader.http_port))
        assert members(other)[leader.name]["drained"]
        with pytest.raises(pika.exceptions.AMQPConnectionError):  # its port is closed
            pika_connection(leader)
        status, _, errors = qq(other, "leader", "transfer", "--to", leader.name)
        assert (status, "is under maintenance" in errors) == (1, True)
        load.until_all_work()
        leader.stop()
        leader.start()
        poll(
            lambda: "under maintenance" in str(reason_not_ready(leader.http_port)),
            lambda: str(reason_not_ready(leader.http_port)),
        )
        for _ in range(2):
            assert done(other, "revive", leader.name) == f"{leader.name} is under maintenance no more"
        leader.wait_ready()
        load.until_all_work()


@pytest.mark.long
def test_drained_nodes_lead_when_no_other_node_is_left(tmp_path: Path) -> None:
    with LocalCluster(3, tmp_path, {"limits": {"drain_grace_s": 0.1}}) as cluster:
        first, second, third = cluster.nodes
        with ThreadPoolExecutor() as commands:
            ends = list(commands.map(lambda node: qq(node, "drain", node.name), cluster.nodes))
        assert sorted(status for status, _, _ in ends) == [0, 0, 1]
        [(_, _, refused)] = [end for end in ends if end[0]]
        assert "goes on serving: nobody else can: " in refused
        [last] = [node for node in cluster.nodes if not members(first)[node.name]["drained"]]
        for command in (["member", "remove", last.name], ["check", "safe-to-stop", "--node", last.name]):
            status, output, errors = qq(first, *command)
            assert (status, "under maintenance nobody serves clients" in output + errors) == (1, True)
        if last is not third:
            done(first, "revive", third.name)
            done(first, "drain", last.name)
        assert cluster.leader() is third
        third.kill()
        assert cluster.leader() in (first, second)
        third.start()
        third.wait_ready()
        poll(lambda: cluster.leader() is third, lambda: f"{cluster.leader().name} leads on")
        for node in (second, third):
            node.kill()
        both = (
            "the node is under maintenance; `qq revive n1` ends it; no leader is known: no majority: n2, n3 do not "
            "answer"
        )
        poll(
            lambda: str(reason_not_ready(first.http_port)).startswith(both),
            lambda: str(reason_not_ready(first.http_port)),
        )


def test_an_upgrade_is_finished_by_command_if_that_is_wanted(tmp_path: Path) -> None:
    with LocalCluster(3, tmp_path, {"cluster": {"finish_upgrades": False}}) as cluster:
        first, second, third = cluster.nodes
        assert cluster.status()["version"] == VERSIONS[0]
        assert set(roles(first).values()) == {"voter"}
        status, _, errors = qq(first, "drain", "n3")
        assert (status, "before the upgrade to this release is finished: `qq upgrade finish`" in errors) == (
            1,
            True,
        )
        third.kill()
        status, _, errors = qq(first, "member", "replace", "n3")
        assert (status, "before the upgrade to this release is finished" in errors) == (1, True)
        status, _, errors = qq(first, "upgrade", "finish")
        assert (status, "node 'n3' has not told yet which data directory it has" in errors) == (1, True)
        third.start()
        cluster.wait_caught_up()
        for node in (first, second):
            text = f"the cluster runs version {VERSIONS[1]} of the state"
            assert done(node, "upgrade", "finish") == text
        assert done(third, "drain", "--timeout", "30").startswith("n3 is under maintenance")
