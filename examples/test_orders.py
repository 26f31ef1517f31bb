"""pytest: an application that goes on when the leader dies. `qq_cluster` comes with qq."""

import pika

from qq.testing import LocalCluster


def test_an_order_that_was_confirmed_survives_the_leader(qq_cluster: LocalCluster) -> None:
    leader, follower = qq_cluster.leader(), qq_cluster.followers()[0]
    with pika.BlockingConnection(pika.URLParameters(leader.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True, arguments={"x-queue-type": "quorum"})
        channel.confirm_delivery()
        channel.basic_publish("", "orders", b"one chair")

    leader.kill()

    with pika.BlockingConnection(pika.URLParameters(follower.url)) as connection:
        _, _, body = connection.channel().basic_get("orders", auto_ack=True)
    assert body == b"one chair"
