"""Quorum queues for programs that declare none."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pika

if TYPE_CHECKING:
    from collections.abc import Generator

    from qq.testing import ClusterNode

QUORUM = {"x-queue-type": "quorum"}


def declare_queue(node: ClusterNode, name: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        connection.channel().queue_declare(name, durable=True, arguments=QUORUM)


@contextmanager
def quorum_queue(node: ClusterNode, name: str) -> Generator[None]:
    declare_queue(node, name)
    try:
        yield
    finally:
        with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
            connection.channel().queue_delete(name)
