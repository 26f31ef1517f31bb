"""A cluster behind proxies serves clients; partitions isolate nodes, and disk faults take effect."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
from contextlib import suppress
from itertools import permutations
from typing import TYPE_CHECKING

import pika
import pika.exceptions
import pytest

from chaos.live.cluster import HOST, SPARES, LiveCluster, LiveClusterError
from tests.chaos.live.clients import publish, taken

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from chaos.live.cluster import ProxyStream

pytestmark = [pytest.mark.xdist_group("live"), pytest.mark.timeout(120)]


def bodies(count: int) -> list[bytes]:
    return [b"message %d" % number for number in range(count)]


def links_of(cluster: LiveCluster, name: str) -> list[ProxyStream]:
    pairs = [pair for pair in permutations(cluster.names, 2) if name in pair]
    return [link for pair in pairs for link in cluster.links(*pair)]


async def until_followed(cluster: LiveCluster, former: str) -> str:
    async with asyncio.timeout(30):
        while (leader := await cluster.leader()) == former:
            pass
    return leader


async def assert_cut_off(cluster: LiveCluster, name: str) -> None:
    """Assert that the node knows no leader, or an outdated one, and serves no clients."""
    publishing = asyncio.create_task(
        asyncio.to_thread(publish, cluster.endpoints[name], "cut off", [b"lost"])
    )
    done, _ = await asyncio.wait([publishing], timeout=0.3)
    assert not done
    await cluster.relieve()
    await publishing


def test_clients_are_served_through_proxies(runner: asyncio.Runner, cluster: LiveCluster) -> None:
    async def check() -> None:
        for name in cluster.names:
            await asyncio.to_thread(publish, cluster.endpoints[name], "served", [name.encode()])
        assert await asyncio.to_thread(taken, cluster.direct["n1"], "served") == [b"n1", b"n2", b"n3"]
        links = [link for name in cluster.names for link in cluster.clients_of(name)]
        await cluster.hurt(links, "slow", "latency", latency=200)
        began_s = asyncio.get_running_loop().time()
        await asyncio.to_thread(publish, cluster.endpoints["n1"], "served", [])
        assert asyncio.get_running_loop().time() - began_s > 1.0  # some ways there and back
        await cluster.relieve("slow")
        assert cluster.toxiproxy.toxics() == []

    runner.run(check())


def test_follower_takes_over_when_the_leader_is_cut_off(runner: asyncio.Runner, cluster: LiveCluster) -> None:
    async def check() -> None:
        former = await cluster.leader()
        await cluster.hurt(links_of(cluster, former), "cut", "timeout", timeout=0)
        leader = await until_followed(cluster, former)
        await asyncio.to_thread(publish, cluster.endpoints[leader], "while cut", bodies(3))
        await assert_cut_off(cluster, former)
        await cluster.wait_caught_up()
        assert await asyncio.to_thread(taken, cluster.endpoints[former], "while cut") == bodies(3)

    runner.run(check())


def test_follower_takes_over_when_the_leader_cannot_send(
    runner: asyncio.Runner, cluster: LiveCluster
) -> None:
    async def check() -> None:
        former = await cluster.leader()
        unheard = [link for name in cluster.names if name != former for link in cluster.links(former, name)]
        await cluster.hurt(unheard, "cut", "timeout", timeout=0)
        await until_followed(cluster, former)
        await assert_cut_off(cluster, former)
        await cluster.wait_caught_up()

    runner.run(check())


def test_publishers_wait_while_the_disk_is_full(runner: asyncio.Runner, cluster: LiveCluster) -> None:
    async def until_alarmed(expected: bool) -> None:
        async with asyncio.timeout(30):
            while True:
                status = await cluster.status("n2")
                if status is not None and expected in [
                    node["alarm"] for node in status["nodes"] if node["name"] == "n2"
                ]:
                    return

    log, alarm = cluster.log("n2"), "publishers must wait"
    alarms_before = log.read_text().count(alarm)

    async def until_logged() -> None:
        """Wait for the alarm's log line: status requests show it at once, clients get it at the next heartbeat
        interval.
        """
        async with asyncio.timeout(30):
            while log.read_text().count(alarm) == alarms_before:  # noqa: ASYNC110 -- of another process
                await asyncio.sleep(0.01)

    async def check() -> None:
        cluster.set_faults("n2", disk_full=True)
        await until_alarmed(True)
        await until_logged()
        # A node without space blocks its own clients; the rest of the cluster serves as long as it is a majority.
        await asyncio.to_thread(publish, cluster.endpoints["n1"], "space", bodies(1))
        publishing = asyncio.create_task(
            asyncio.to_thread(publish, cluster.endpoints["n2"], "no space", bodies(3))
        )
        done, _ = await asyncio.wait([publishing], timeout=0.5)
        assert not done
        reason = "the node's disk is full: it goes on when there is space"
        async with asyncio.timeout(30):
            while await cluster.not_ready("n2") != reason:
                pass
        cluster.set_faults("n2", disk_full=False)
        await publishing
        await until_alarmed(False)
        assert await asyncio.to_thread(taken, cluster.endpoints["n2"], "no space") == bodies(3)

    try:
        runner.run(check())
    finally:
        cluster.set_faults("n2", disk_full=False)  # later tests share the cluster


def test_confirmed_messages_survive_when_all_nodes_lose_power(
    runner: asyncio.Runner, cluster: LiveCluster
) -> None:
    async def check() -> None:
        await asyncio.to_thread(publish, cluster.endpoints["n1"], "power", bodies(50))
        for name in cluster.names:
            await cluster.kill(name)
        for seed, name in enumerate(cluster.names):
            await cluster.lose_power(name, seed)
            await cluster.start(name)
        await cluster.wait_caught_up()
        assert await asyncio.to_thread(taken, cluster.endpoints["n1"], "power") == bodies(50)

    runner.run(check())


def test_removed_member_ends_and_joins_with_an_empty_directory(
    runner: asyncio.Runner, cluster: LiveCluster
) -> None:
    async def ids() -> dict[str, str]:
        shown = await cluster._get("n1", "/api/cluster/members")
        assert shown is not None
        return {member["name"]: member["id"] for member in shown[1]["members"]}

    async def check() -> None:
        await cluster.wait_caught_up()
        before = await ids()
        await asyncio.to_thread(publish, cluster.endpoints["n2"], "removed", bodies(3))
        assert await cluster.remove("n2")
        rest = await ids()
        assert rest == {name: before[name] for name in ("n1", "n3")}
        await cluster.join("n2")
        await cluster.wait_caught_up()
        after = await ids()
        assert after == rest | {"n2": after["n2"]}
        assert after["n2"] not in (before["n2"], None)
        assert await asyncio.to_thread(taken, cluster.endpoints["n2"], "removed") == bodies(3)
        # It is reached through proxies again.
        await cluster.hurt(links_of(cluster, "n2"), "cut", "timeout", timeout=0)
        await assert_cut_off(cluster, "n2")
        await cluster.wait_caught_up()
        assert cluster.crashes == []

    runner.run(check())


def test_node_that_does_not_stop_dumps_its_tasks_and_is_killed(
    runner: asyncio.Runner, cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.live.cluster._STOP_TIMEOUT_S", 0.0)

    async def check() -> None:
        await cluster.wait_caught_up()  # a node that was just started ends at once
        size = cluster.log("n3").stat().st_size
        # This client reads no goodbye, so the node waits for it.
        client = pika.BlockingConnection(pika.ConnectionParameters(HOST, cluster._addresses["n3"].amqp_port))
        with pytest.raises(LiveClusterError, match="n3 did not stop in 0 s"):
            await cluster.stop("n3")
        with suppress(pika.exceptions.AMQPError):
            client.close()
        alarm = cluster.log("n3").read_text(errors="replace")[size:]
        assert "Stack for <Task" in alarm
        await cluster.start("n3")
        await cluster.wait_caught_up()

    runner.run(check())


def test_ports_of_spare_nodes_are_reserved(cluster: LiveCluster) -> None:
    assert len(cluster.absent) == SPARES
    for name in cluster.absent:
        address = cluster._addresses[name]
        for port in (address.peer_port, address.amqp_port, address.http_port):
            with pytest.raises(OSError, match="in use"):
                socket.create_server((HOST, port))


def test_a_cluster_has_three_or_five_nodes(tmp_path: Path) -> None:
    with pytest.raises(LiveClusterError, match="3 or 5 nodes, not 4"):
        LiveCluster(tmp_path, 4)


def test_node_that_fails_to_start_is_named_with_its_log(tmp_path: Path) -> None:
    async def check() -> None:
        async with LiveCluster(tmp_path, limits={"no_such_limit": 1}):
            pass

    with pytest.raises(LiveClusterError) as caught:
        asyncio.run(check())
    first, *_, last = str(caught.value).splitlines()
    assert first.startswith("n1 is not running; the end of ")
    assert last.endswith("[limits] no_such_limit: there is no such key")


def test_nodes_end_with_their_starter(tmp_path: Path) -> None:
    starter = """
        import asyncio, pathlib, sys
        from chaos.live.cluster import LiveCluster

        async def start():
            cluster = LiveCluster(pathlib.Path(sys.argv[1]))
            cluster.wait_ready = lambda: asyncio.sleep(0)  # it is to end early, too
            async with cluster:
                print(*(process.pid for process in cluster._processes.values()), flush=True)
                await asyncio.sleep(60)

        asyncio.run(start())
    """
    command = [sys.executable, "-c", textwrap.dedent(starter), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        nodes = [os.pidfd_open(int(pid)) for pid in process.stdout.readline().split()]
        process.send_signal(signal.SIGKILL)
        assert len(nodes) == 3
        asyncio.run(all_ended(nodes))


async def all_ended(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, ended.set)  # readable when the process has ended
        await asyncio.wait_for(ended.wait(), 10)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
