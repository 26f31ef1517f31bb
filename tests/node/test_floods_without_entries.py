"""Floods of direct replies, polls and passive declarations, which need no entry, delay no clients of other users."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from pamqp import commands

from chaos.fuzz.floods import HEAVY, WAIT_CPU_S, Flood, LightClient, flooding, plan, prepare
from chaos.fuzz.legal import publish
from qq.testing import LocalCluster
from tests.harness.raw_client import RawClient, marshal
from tests.harness.raw_client import publish as publish_request

if TYPE_CHECKING:
    from collections.abc import Generator

    from qq.testing import ClusterNode

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

Basic, Queue = commands.Basic, commands.Queue

FLOOD_S = 3.0
CONNECTIONS = 4
CPU_MAX_S = 3 * WAIT_CPU_S
"""Seconds of the processor of the light client's node for a request: the node works on while the leader answers."""
GROWTH_MAX_KIB = 200 * 1024
"""Memory of the replies that may wait at a node, and twice as much for all else."""
REPLY_TO = "amq.rabbitmq.reply-to"
QUEUE = "polled"
REQUEST = bytes((2, 0, len(REPLY_TO))) + REPLY_TO.encode()
"""Properties with the address."""
POLLS = {
    "gets": marshal(1, Basic.Get(queue=QUEUE, no_ack=True)),
    "passive declares": marshal(1, Queue.Declare(queue=QUEUE, passive=True)),
    "forged addresses": publish("", f"{REPLY_TO}.{'x' * 22}"),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[LocalCluster]:
    with LocalCluster(3, tmp_path_factory.mktemp("cluster")) as cluster:
        prepare(cluster.leader())
        cluster.wait_caught_up()
        yield cluster


class Nodes(NamedTuple):
    leader: ClusterNode
    here: ClusterNode
    """The light client's node."""
    there: ClusterNode


@pytest.fixture
def nodes(cluster: LocalCluster) -> Nodes:
    return Nodes(cluster.leader(), *cluster.followers())


def memory_kib(node: ClusterNode) -> int:
    [line] = [
        line for line in Path(f"/proc/{node.pid}/status").read_text().splitlines() if line.startswith("VmRSS")
    ]
    return int(line.split()[1])


def assert_light_client_is_served(light_at: ClusterNode, flooded: ClusterNode, frame: bytes) -> None:
    before_kib = memory_kib(light_at)
    light = LightClient(light_at)
    with flooding(flooded, plan(Flood([frame]), CONNECTIONS)):
        waited = light.wait(FLOOD_S)
    waited = light.wait(1.0, waited)
    light.close()
    growth_kib = memory_kib(light_at) - before_kib
    print(f"{waited.cpu_s * 1000:.0f} ms of the processor, {growth_kib // 1024} MiB")
    assert waited.cpu_s < CPU_MAX_S
    assert growth_kib < GROWTH_MAX_KIB


@contextmanager
def requester(node: ClusterNode, responder: ClusterNode, *, reads: bool) -> Generator[str]:
    """Consume replies at a node, and yield the address as a responder gets it."""
    with ExitStack() as stack:
        client = stack.enter_context(RawClient(node.amqp_port, user=HEAVY, vhost=HEAVY))
        client.open_channel(1)
        client.call(1, Queue.Declare(queue="requests"), Queue.DeclareOk)
        client.call(1, Basic.Consume(queue=REPLY_TO, consumer_tag="mine", no_ack=True), Basic.ConsumeOk)
        client.write(publish_request(1, "requests", b"request", properties=REQUEST))
        client.call(1, Queue.Declare(queue="requests", passive=True), Queue.DeclareOk)
        with RawClient(responder.amqp_port, user=HEAVY, vhost=HEAVY) as other:
            other.open_channel(1)
            other.send(1, Basic.Get(queue="requests", no_ack=True))
            _, header, _ = other.expect_message()
        if reads:
            thread = threading.Thread(target=read_all, args=(client,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(client.socket.shutdown, 2)
        yield header.properties.reply_to


def read_all(client: RawClient) -> None:
    with suppress(OSError):
        while client.socket.recv(1024 * 1024):
            pass


@pytest.mark.parametrize("reads", [True, False], ids=["read", "unread"])
def test_flood_of_replies_does_not_delay_other_users(nodes: Nodes, reads: bool) -> None:
    with requester(nodes.here, nodes.there, reads=reads) as address:
        assert_light_client_is_served(nodes.here, nodes.there, publish("", address, bytes(20)))


@pytest.mark.parametrize("kind", POLLS)
@pytest.mark.parametrize("place", ["here", "leader"])
def test_flood_of_polls_does_not_delay_other_users(nodes: Nodes, kind: str, place: str) -> None:
    with RawClient(nodes.there.amqp_port, user=HEAVY, vhost=HEAVY) as client:
        client.open_channel(1)
        client.call(1, Queue.Declare(queue=QUEUE), Queue.DeclareOk)
    assert_light_client_is_served(getattr(nodes, place), nodes.here, POLLS[kind])
