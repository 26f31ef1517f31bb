"""Applications that work all the time, and fail over to the next node."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle, pairwise
from threading import Event, Thread
from typing import Self

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from tests.deploy.engine import PASSWORD

LOGIN = pika.PlainCredentials("app", PASSWORD)
QUEUE = {"durable": True, "arguments": {"x-queue-type": "quorum"}}


def connect(port: int) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1", port, credentials=LOGIN, socket_timeout=5, stack_timeout=5, heartbeat=5
        )
    )


def publish(channel: BlockingChannel, queue: str, body: bytes) -> None:
    """Return when it is confirmed, if the channel's publishes are."""
    channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2), mandatory=True)


def consumed(port: int, queue: str) -> set[bytes]:
    """Take all messages out of a queue."""
    connection = connect(port)
    channel = connection.channel()
    bodies = set()
    for method, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=3):
        if method is not None:
            bodies.add(body)
        elif channel.queue_declare(queue, passive=True).method.message_count == 0:
            break  # and not a busy machine that takes its time
    connection.close()
    return bodies


class _Application:
    """Works through the first of these ports that serves, as a context."""

    def __init__(self, ports: Sequence[int], queue: str) -> None:
        self._ports = ports
        self._queue = queue
        self._done = Event()
        self._thread = Thread(target=self._run, daemon=True)
        with connect(ports[0]) as connection:
            connection.channel().queue_declare(queue, **QUEUE)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        for port in cycle(self._ports):
            with suppress(AMQPError, OSError), connect(port) as connection:
                self._work(connection.channel())
            if self._done.wait(0.05):
                return

    def _work(self, channel: BlockingChannel) -> None:
        """Work until it is done or the connection is lost."""
        raise NotImplementedError


class Publisher(_Application):
    """Publishes messages in sequence."""

    def __init__(self, ports: Sequence[int], queue: str) -> None:
        super().__init__(ports, queue)
        self.confirmed: list[tuple[float, bytes]] = []
        """When, and which message."""

    def wait_for_confirms(self, count: int = 100, seconds: float = 60) -> None:
        """Wait for so many confirms more."""
        wanted = len(self.confirmed) + count
        deadline = time.monotonic() + seconds
        while len(self.confirmed) < wanted:
            assert time.monotonic() < deadline, f"{wanted - len(self.confirmed)} confirms lack"
            time.sleep(0.02)

    def longest_pause(self) -> float:
        """Return the longest time in seconds without a confirm."""
        return max(after - before for (before, _), (after, _) in pairwise(self.confirmed))

    def _work(self, channel: BlockingChannel) -> None:
        channel.confirm_delivery()
        while not self._done.wait(0.005):
            body = str(len(self.confirmed)).encode()
            publish(channel, self._queue, body)
            self.confirmed.append((time.monotonic(), body))


class Consumer(_Application):
    """Takes and acknowledges messages."""

    def __init__(self, ports: Sequence[int], queue: str) -> None:
        super().__init__(ports, queue)
        self.taken: set[bytes] = set()

    def _work(self, channel: BlockingChannel) -> None:
        for method, _, body in channel.consume(self._queue, inactivity_timeout=0.1):
            if method is not None:
                self.taken.add(body)
                channel.basic_ack(method.delivery_tag)
            if self._done.is_set():
                return
