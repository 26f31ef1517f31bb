"""Shovels to a second cluster: no message is lost or doubled when the node that runs the shovel dies."""

from __future__ import annotations

import base64
import json
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pika
import pytest

from qq.testing import LocalCluster
from tests.stories.clients import pika_connection

if TYPE_CHECKING:
    from qq.testing import ClusterNode

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(90), pytest.mark.slow]

MESSAGES = 1500
PATIENCE_S = 60.0
CREDENTIALS = "Basic " + base64.b64encode(b"guest:guest").decode()


def api(node: ClusterNode, path: str, body: Any = None) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{node.http_port}/api/{path}",
        json.dumps(body).encode() if body else None,
        {"Authorization": CREDENTIALS},
        method="PUT" if body else "GET",
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def test_the_node_that_carries_out_a_shovel_is_killed() -> None:
    with LocalCluster(3) as source, LocalCluster(1) as target:
        leader, other = source.leader(), source.followers()[0]
        with pika_connection(other) as near, pika_connection(target.nodes[0]) as far:
            channel = near.channel()
            channel.queue_declare("q", durable=True)
            for number in range(MESSAGES):
                properties = pika.BasicProperties(message_id=str(number))
                channel.basic_publish("", "q", b"%d" % number + bytes(2000), properties)
            channel.queue_declare("q", passive=True)  # wait for the published messages
            arrived: list[int] = []
            drain = far.channel()
            drain.queue_declare("to", durable=True)
            drain.basic_consume(
                "to", lambda *message: arrived.append(int(message[3].rstrip(b"\0"))), auto_ack=True
            )

            def wait_for(count: int) -> None:
                deadline_s = time.monotonic() + PATIENCE_S
                while len(set(arrived)) < count and time.monotonic() < deadline_s:
                    far.process_data_events(0.02)

            value = {"src-uri": "amqp://", "src-queue": "q", "dest-uri": target.urls[0], "dest-queue": "to"}
            api(other, "parameters/shovel/%2F/s", {"value": value})
            wait_for(1)
            leader.kill()
            wait_for(MESSAGES)
            far.process_data_events(0.2)
            assert sorted(arrived) == list(range(MESSAGES)), api(other, "shovels")
            expected, states = [("running", source.leader().name)], []
            deadline_s = time.monotonic() + PATIENCE_S
            while states != expected and time.monotonic() < deadline_s:  # the successor connects anew first
                states = [(shown["state"], shown["node"]) for shown in api(other, "shovels")]
            assert states == expected
