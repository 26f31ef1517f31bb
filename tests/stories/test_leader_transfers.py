"""Leadership that operators move while clients are at work, and asking before a node is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.request import urlopen

import pika
import pytest
from prometheus_client.parser import text_string_to_metric_families

from qq.testing import ClusterNode, LocalCluster
from tests.stories.commands import run_command
from tests.stories.load import COMMAND_POLL_S, loaded, poll

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.xdist_group("members"), pytest.mark.timeout(120)]

PAUSE_MAX_S = 2.0
"""Measured: 0.07 s, and up to 0.6 s on a machine with ten times more to do than it can."""


def qq(node: ClusterNode, *arguments: str) -> tuple[int, str]:
    """Run a command through this node; return its exit status and output."""
    end = run_command(node, *arguments)
    return end.returncode, (end.stdout + end.stderr).strip()


def is_safe(node: ClusterNode) -> bool:
    """Whether a node may be stopped, as it says itself."""
    return qq(node, "check", "safe-to-stop")[0] == 0


def test_leadership_moves_around_under_load(tmp_path: Path) -> None:
    """Whichever node is asked. Each client keeps its connection, and no message is lost or comes twice."""
    with LocalCluster(3, tmp_path) as cluster, loaded(cluster) as load:
        nodes = cluster.nodes
        load.fault_begins()
        for number in range(4):
            via, target = nodes[number * 2 % 3], nodes[number % 3]
            assert qq(via, "leader", "transfer", "--to", target.name) == (0, f"{target.name} leads")
            assert qq(target, "leader", "show") == (0, target.name)
        load.until_all_work()
        load.assert_waited_less_than(PAUSE_MAX_S)


def shown(node: ClusterNode, family: str, path: str = "metrics") -> float:
    """Return the sum of a metric at a node, over all labels."""
    with urlopen(f"http://127.0.0.1:{node.http_port}/{path}", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        [found] = [each for each in families if each.name == family]
    return sum(each.value for each in found.samples if each.name == f"{family}_total")


def test_message_is_counted_only_at_the_node_that_received_it(tmp_path: Path) -> None:
    """The sum over all nodes counts each message once, also when a node leads again."""
    with LocalCluster(3, tmp_path) as cluster:
        first, second, _ = cluster.nodes
        for rounds, leader in enumerate((first, second, first), start=1):
            assert qq(leader, "leader", "transfer", "--to", leader.name)[0] == 0
            for number, node in enumerate(cluster.nodes, start=1):
                with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
                    channel = connection.channel()
                    channel.confirm_delivery()
                    channel.queue_declare("q", durable=True)
                    for _ in range(number):
                        channel.basic_publish("", "q", b"")
                        channel.basic_publish("", "nowhere", b"")
            for number, node in enumerate(cluster.nodes, start=1):
                for family in ("routed", "unroutable_dropped"):
                    assert shown(node, f"rabbitmq_global_messages_{family}") == number * rounds, (
                        node,
                        family,
                    )


def test_messages_replayed_from_the_log_are_not_counted_again(tmp_path: Path) -> None:
    """A counter that starts with replayed messages would give a wrong rate, and a wrong chart."""
    with LocalCluster(1, tmp_path) as cluster:
        [node] = cluster.nodes

        def counted() -> list[float]:
            names = ("routed", "unroutable_dropped", "dead_lettered_rejected")
            of_queues = "rabbitmq_detailed_queue_messages_published"
            return [
                *(shown(node, f"rabbitmq_global_messages_{name}") for name in names),
                shown(node, of_queues, "metrics/detailed?family=queue_exchange_metrics"),
            ]

        def publish() -> None:
            with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
                channel = connection.channel()
                channel.queue_declare("q", durable=True, arguments={"x-dead-letter-exchange": "amq.fanout"})
                for _ in range(3):
                    channel.basic_publish("", "q", b"")
                    channel.basic_publish("", "nowhere", b"")
                    method, *_ = channel.basic_get("q")
                    channel.basic_reject(method.delivery_tag, requeue=False)
            poll(lambda: counted() == [3, 3, 3, 3], lambda: f"{counted()} are counted")

        publish()
        node.kill()
        node.start()
        node.wait_ready()
        assert counted() == [0, 0, 0, 0]
        publish()


def test_check_safe_to_stop_keeps_a_majority(tmp_path: Path) -> None:
    with LocalCluster(3, tmp_path) as cluster:
        leader, first, second = cluster.leader(), *cluster.followers()
        assert qq(first, "check", "safe-to-stop")[0] == 0
        log_line = "it leads, and hands over before it stops"
        assert log_line in qq(first, "check", "safe-to-stop", "--node", leader.name)[1]
        first.kill()
        poll(lambda: not is_safe(second), lambda: f"{first.name} is not missed", COMMAND_POLL_S)
        status, text = qq(second, "check", "safe-to-stop", "--node", leader.name)
        flaw = f"{first.name} does not answer (start it, or look at its network)"
        few = f"{second.name} would be no majority of 3 voters"
        assert (status, text) == (1, f"do not stop {leader.name}: {few}; {flaw}")
        status, text = qq(second, "leader", "transfer", "--to", first.name)
        assert status == 1
        assert f"{leader.name} leads on: {first.name} does not answer" in text
        assert cluster.leader() is leader
        first.start()
        cluster.wait_caught_up()
        poll(lambda: is_safe(second), lambda: f"{first.name} is missed", COMMAND_POLL_S)
