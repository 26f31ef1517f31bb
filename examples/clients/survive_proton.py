"""Publish 2,000 numbered messages and consume them over AMQP 1.0 with Qpid Proton, on nodes that may be killed.

python survive_proton.py [HOST:PORT...]      each node; by default the nodes of `qq up`
"""

from __future__ import annotations

import random
import sys
import time
from contextlib import suppress
from threading import Thread

from proton import ConnectionException, LinkException, Message, Timeout
from proton.utils import BlockingConnection, SendException

QUEUE, MESSAGES = "survive-proton", 2000
nodes = sys.argv[1:] or ["127.0.0.1:5672", "127.0.0.1:5673", "127.0.0.1:5674"]
LOST = (ConnectionException, LinkException, SendException, Timeout, OSError)


def connect() -> BlockingConnection:
    """Return a connection to any node. Try until a node answers."""
    while True:
        for node in random.sample(nodes, len(nodes)):
            try:
                # Notice a host that is gone: after 10 s without a frame, and after 5 s while connecting.
                return BlockingConnection(f"amqp://guest:guest@{node}", timeout=5, heartbeat=10)
            except LOST as error:
                print("cannot connect:", error)
        time.sleep(1)


def publish() -> None:
    """Publish all messages, each until it is accepted."""
    number = 1
    while number <= MESSAGES:
        connection = connect()
        try:
            sender = connection.create_sender(f"/queues/{QUEUE}")
            while number <= MESSAGES:
                sender.send(
                    Message(body=str(number), durable=True)
                )  # returns when a majority has the message
                number += 1
        except LOST as error:
            # Whether this message is stored is unknown, so it is published again: it may come twice.
            print(f"publisher: {error!r} at message {number}")
        close(connection)
    print(MESSAGES, "messages are confirmed")


def consume() -> None:
    """Consume until each message has come."""
    seen: set[str] = set()
    while len(seen) < MESSAGES:
        connection = connect()
        try:
            receiver = connection.create_receiver(f"/queues/{QUEUE}", credit=100)
            while len(seen) < MESSAGES:
                try:
                    message = receiver.receive(timeout=1)
                except Timeout:
                    continue  # no message is there
                seen.add(message.body)  # the work: doing it twice does no harm
                receiver.accept()
        except LOST as error:
            print(f"consumer: {error!r} after {len(seen)} messages")
        close(connection)
    print(len(seen), "messages are consumed")


def close(connection: BlockingConnection) -> None:
    """Close a connection, which may be broken."""
    with suppress(LOST):
        connection.close()


publisher = Thread(target=publish)
publisher.start()
consume()
publisher.join()
