"""Links of AMQP 1.0 go on while leaders die, a majority is missing, and a node is under maintenance."""

from __future__ import annotations

import re
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pika
import pytest

from qq.amqp10.performatives import AcceptedState, CloseFrame, DispositionFrame, FlowFrame, SenderSettleMode
from qq.testing import ClusterNode, LocalCluster
from tests.amqp10_server.lone_broker10 import ManagementClient
from tests.amqp10_server.messages import body_of
from tests.amqp10_server.socket_client import SocketClient, data
from tests.stories.commands import run_command

pytestmark = [pytest.mark.xdist_group("amqp10-links"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def running() -> Generator[LocalCluster]:
    with LocalCluster(nodes=3) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: LocalCluster) -> Generator[LocalCluster]:
    yield running
    running.restore()


@pytest.fixture
def queue(request: pytest.FixtureRequest, cluster: LocalCluster) -> str:
    name = re.sub(r"\W", "-", request.node.name)[:80]
    with pika.BlockingConnection(pika.URLParameters(cluster.leader().url)) as connection:
        connection.channel().queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
    return name


class Publisher:
    """A link that publishes unsettled messages while it has credit, and counts what is accepted."""

    def __init__(self, client: SocketClient, queue: str) -> None:
        self._client = client
        flow = client.attach_sender(f"/queues/{queue}")
        self.credit = flow.link_credit or 0
        self.sent = self.accepted = 0

    def send(self, count: int) -> None:
        """Send so many messages, and wait for credit as often as it is used up."""
        for _ in range(count):
            while not self.credit:
                self._take(self._client.receive().performative)
            self._client.transfer(self.sent, data(b"%d" % self.sent))
            self.sent += 1
            self.credit -= 1

    def finish(self) -> None:
        """Wait until all messages are accepted."""
        while self.accepted < self.sent:
            self._take(self._client.receive().performative)

    def _take(self, frame: Any) -> None:
        if isinstance(frame, DispositionFrame):
            assert isinstance(frame.state, AcceptedState)
            last = frame.first if frame.last is None else frame.last
            assert frame.first == self.accepted  # each once, in their order
            self.accepted = last + 1
        elif isinstance(frame, FlowFrame) and frame.link_credit is not None:
            self.credit = (frame.delivery_count or 0) + frame.link_credit - self.sent


def connected(node: ClusterNode) -> SocketClient:
    client = SocketClient(node.amqp_port)
    client.open()
    client.begin()
    return client


def test_link_publishes_on_when_the_leader_dies(cluster: LocalCluster, queue: str) -> None:
    with connected(cluster.followers()[0]) as client:
        publisher = Publisher(client, queue)
        publisher.send(100)
        cluster.leader().kill()
        publisher.send(1900)
        publisher.finish()
        assert publisher.accepted == 2000


@pytest.mark.parametrize("credit", [1, 3])
def test_link_consumes_on_when_the_leader_dies(cluster: LocalCluster, queue: str, credit: int) -> None:
    with connected(cluster.followers()[0]) as client:
        publisher = Publisher(client, queue)
        publisher.send(60)
        publisher.finish()
        client.attach_receiver(queue, snd_settle_mode=SenderSettleMode.SETTLED)
        found: list[int] = []
        while len(found) < 60:
            client.credit(credit, delivery_count=len(found))
            found += [int(body_of(client.message()[1])) for _ in range(credit)]
            if len(found) == 3:
                cluster.leader().kill()
        assert found == list(range(60))


def test_credit_runs_out_until_a_majority_is_back(cluster: LocalCluster, queue: str) -> None:
    node = cluster.nodes[0]
    with connected(node) as client:
        publisher = Publisher(client, queue)
        publisher.send(1)
        publisher.finish()
        given = publisher.credit
        for other in cluster.nodes[1:]:
            other.kill()
        publisher.send(given)
        client._socket.settimeout(2)
        with pytest.raises(TimeoutError):  # neither an outcome nor more credit
            publisher.send(5 * given)
        assert publisher.accepted == 1
        client._socket.settimeout(30)
        for other in cluster.nodes[1:]:
            other.start()
        publisher.send(10)
        publisher.finish()


def test_connection_is_closed_when_its_node_is_drained(cluster: LocalCluster) -> None:
    node = cluster.followers()[0]
    other = next(each for each in cluster.nodes if each is not node)
    with ThreadPoolExecutor() as threads, connected(node) as client, connected(other) as neighbour:
        drained = threads.submit(run_command, other, "drain", node.name)
        error = client.until(CloseFrame).error
        client.send(CloseFrame())
        assert error is not None
        assert error.condition == "amqp:internal-error"
        text = f"Connection forced: node {node.name} was put into maintenance mode"
        assert (error.description or "").startswith(text)
        assert drained.result().returncode == 0
        neighbour.end()
        neighbour.begin()
        assert run_command(other, "revive", node.name).returncode == 0


def test_queue_names_leader_and_all_members(cluster: LocalCluster, queue: str) -> None:
    stopped = cluster.leader()
    names = sorted(node.name for node in cluster.nodes)
    stopped.stop()
    leader = cluster.leader()
    with ManagementClient(leader.amqp_port) as client:
        client.manage()
        described = client.request("GET", f"/queues/{queue}").body
    assert (described["leader"], sorted(described["replicas"].elements)) == (leader.name, names)
