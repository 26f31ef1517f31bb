"""A new cluster needs a moment until it has agreed on the version of the state that has groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pika

from qq_spark import Access, LeaseClient, Refusal

if TYPE_CHECKING:
    from qq.testing import LocalCluster

BAD_REQUEST = 400


def wait_for_groups(cluster: LocalCluster) -> None:
    """Wait until the nodes of a cluster carry out requests of groups."""
    node = cluster.nodes[0]
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("agreement")
        with LeaseClient(Access((f"http://127.0.0.1:{node.http_port}",))) as client:
            while True:
                try:
                    client.take_over("agreement", "g", "test")
                except Refusal as refusal:
                    if refusal.status != BAD_REQUEST:
                        raise
                else:
                    break
        channel.queue_delete("agreement")
