"""Publish and consume for ever, on nodes that may be killed.

python survive.py [URL...]      the address of each node; by default the nodes of `qq up`
"""

import itertools
import random
import sys
import threading
import time

import pika
from pika.exceptions import AMQPError, NackError, UnroutableError

URLS = sys.argv[1:] or [f"amqp://guest:guest@127.0.0.1:{port}/" for port in (5672, 5673, 5674)]
QUEUE = "survive"

confirmed = 0  # messages that a majority has on disk
seen: set[int] = set()  # numbers of the messages that were consumed
again = 0  # messages that came twice


def connect() -> pika.BlockingConnection:
    """Connect to any node, in a random order so that clients spread over the nodes."""
    nodes = [pika.URLParameters(url) for url in random.sample(URLS, len(URLS))]
    for node in nodes:
        node.heartbeat = 10  # a host that died silently is noticed after some 20 s
    return pika.BlockingConnection(nodes)


def declare(channel: pika.adapters.blocking_connection.BlockingChannel) -> None:
    channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})


def publish() -> None:
    global confirmed
    numbers = itertools.count(1)
    number = next(numbers)
    while True:
        try:
            with connect() as connection:
                channel = connection.channel()
                declare(channel)
                channel.confirm_delivery()
                while True:
                    channel.basic_publish("", QUEUE, str(number).encode())
                    confirmed = number
                    number = next(numbers)
                    time.sleep(0.005)
        except (NackError, UnroutableError):
            continue  # it is not stored: publish it again
        except AMQPError as error:
            # Whether this number arrived is not known, so it is published again: it may come twice.
            print(f"publisher: connection lost ({type(error).__name__})", flush=True)
            time.sleep(0.1)


def consume() -> None:
    global again
    while True:
        try:
            with connect() as connection:
                channel = connection.channel()
                declare(channel)
                channel.basic_qos(prefetch_count=100)
                for method, _, body in channel.consume(QUEUE):
                    again += int(body) in seen
                    seen.add(int(body))
                    channel.basic_ack(method.delivery_tag)
            # The loop ends when the broker cancels the consumer.
            print(
                "consumer: cancelled, because its queue was deleted: declared and consumed again", flush=True
            )
        except AMQPError as error:
            print(f"consumer: connection lost ({type(error).__name__})", flush=True)
            time.sleep(0.1)


def main() -> None:
    channel = connect().channel()
    channel.queue_delete(QUEUE)  # of an earlier run
    channel.connection.close()
    for work in (publish, consume):
        threading.Thread(target=work, daemon=True).start()
    while True:
        until = confirmed
        # Messages confirmed a second ago have been consumed, unless the consumer is about to connect.
        time.sleep(1)
        lost = until - len(seen & set(range(1, until + 1)))
        print(
            f"confirmed {confirmed}, consumed {len(seen)}, not yet consumed {lost}, again {again}", flush=True
        )


if __name__ == "__main__":
    main()
