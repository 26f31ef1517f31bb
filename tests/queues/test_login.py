"""Users log in at every node as soon as they are created at any node."""

from __future__ import annotations

import pika
import pika.exceptions
import pytest

from qq.machine.protocol.commands import DEFAULT_VHOST, PutUser, SetPermissions
from qq.sessions.login import hash_password
from tests.queues.nodes_here import ClusterHere, NodeHere

SALT = b"salt"


def put_user(cluster: ClusterHere, node: NodeHere, name: str, password: str) -> None:
    user = PutUser(name, SALT, hash_password(SALT, password.encode()), [])
    cluster.operate(node, user, SetPermissions(name, DEFAULT_VHOST, ".*", ".*", ".*"))


def log_in(node: NodeHere, name: str, password: str) -> None:
    credentials = pika.PlainCredentials(name, password)
    port = node.config.address.amqp_port
    pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, credentials=credentials)).close()


def test_a_user_logs_in_at_once_through_a_node_that_is_behind(cluster_here: ClusterHere) -> None:
    leader = cluster_here.leader()
    behind = next(node for node in cluster_here.nodes if node is not leader)
    with cluster_here.lagging(behind):
        for password in ("old", "new"):
            put_user(cluster_here, leader, "anna", password)
            log_in(behind, "anna", password)


def test_a_wrong_password_is_refused_by_every_node(cluster_here: ClusterHere) -> None:
    for node in cluster_here.nodes:
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            log_in(node, "guest", "wrong")
