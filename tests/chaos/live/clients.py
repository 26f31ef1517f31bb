"""Clients of a live cluster: confirmed messages, and the messages that remain in the end."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from itertools import count
from typing import Self

import pika
from pika.exceptions import AMQPError

PERSISTENT = pika.BasicProperties(delivery_mode=2)
QUORUM = {"x-queue-type": "quorum"}
ERRORS = (AMQPError, OSError, ValueError)
"""pika raises ValueError for a socket that is reset as soon as it is connected."""
_RETRY_S = 0.05
_INTERVAL_S = 0.03
"""Seconds between two messages: publishing at full speed would load the machine without further effect."""


def connect(url: str) -> pika.BlockingConnection:
    parameters = pika.URLParameters(url)
    parameters.heartbeat = 0
    parameters.socket_timeout = parameters.stack_timeout = parameters.blocked_connection_timeout = 5
    return pika.BlockingConnection(parameters)


def publish(url: str, queue: str, bodies: list[bytes]) -> None:
    """Publish until all messages are confirmed. Raises if a message is not."""
    connection = connect(url)
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(queue, durable=True, arguments=QUORUM)
        for body in bodies:
            channel.basic_publish("", queue, body, PERSISTENT, mandatory=True)
    finally:
        with suppress(*ERRORS):
            connection.close()


def taken(url: str, queue: str) -> list[bytes]:
    """Take everything out of a queue, in order."""
    connection = connect(url)
    try:
        channel = connection.channel()
        count = channel.queue_declare(queue, passive=True).method.message_count
        found: list[bytes] = []
        if not count:
            return found
        for method, _, body in channel.consume(queue, inactivity_timeout=30):
            assert method is not None, f"{len(found)} of {count} messages of {queue}"
            found.append(body)
            channel.basic_ack(method.delivery_tag)
            if len(found) == count:
                break
        return found
    finally:
        with suppress(*ERRORS):
            connection.close()


class Publisher:
    """Publishes numbers to a queue of its own through all nodes in turn, during any fault."""

    def __init__(self, urls: list[str], queue: str) -> None:
        self.confirmed: set[bytes] = set()
        self._urls = urls
        self._queue = queue
        self._numbers = count(1)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        publish(self._urls[0], self._queue, [])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    async def confirms_more(self) -> None:
        """Wait until something that was published from now on is confirmed."""
        before = len(self.confirmed)
        async with asyncio.timeout(30):
            while len(self.confirmed) <= before + 1:  # noqa: ASYNC110 -- another thread publishes
                await asyncio.sleep(_RETRY_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            for url in self._urls:
                with suppress(*ERRORS):
                    self._publish(url)
                if self._stopping.wait(_RETRY_S):
                    return

    def _publish(self, url: str) -> None:
        connection = connect(url)
        try:
            channel = connection.channel()
            channel.confirm_delivery()
            while not self._stopping.wait(_INTERVAL_S):
                body = b"%d" % next(self._numbers)  # never twice: the outcome of the last publish is unknown
                channel.basic_publish("", self._queue, body.ljust(200), PERSISTENT)
                self.confirmed.add(body)
        finally:
            with suppress(*ERRORS):
                connection.close()
