"""Measure milliseconds per operation of clients with a single request at a time: a part of `make bench`.

Each pattern runs in turn on `qq up` and, with `--rival HOST:PORT,HOST:PORT,HOST:PORT`, on the cluster of a different
broker. Turn k starts at node k, so each node serves the client in its share of the turns. The figure of a pattern is
the median of its turns. With a rival, a pattern whose ratio to the rival's median is above its bound misses its aim.

    python tests/benchmarks/one_at_a_time.py [--only REGEX] [--messages 1000] [--turns 3] [--rival ...]
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import threading
import time
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pika

from tests.benchmarks.bench import cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

QUEUE = "one-at-a-time"
REQUESTS = "one-at-a-time-requests"
WORKERS = 8
SLOW_SHARE = 4
"""Divisor of the number of operations, for patterns whose operation takes several times as long as a delivery."""
SILENCE_S = 2.0
"""Seconds without a message after which a consumer has lost a message, and the run fails."""


class Pattern(NamedTuple):
    """The actions of a client, and the bound of their time."""

    name: str
    run: Callable[[Sequence[str], int], float]
    """Does the work for a number of operations at some nodes; returns the seconds it took."""
    bound: float
    """The greatest ratio of the time to the rival's."""
    share: int = 1
    """The number of operations is divided by this."""


@contextmanager
def channel_at(endpoint: str) -> Iterator[Any]:
    connection = connect(endpoint)
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


def connect(endpoint: str) -> Any:
    host, port = endpoint.rsplit(":", 1)
    return pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))


def declare(channel: Any, queue: str = QUEUE, kind: str = "quorum") -> None:
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})


def empty_queue(endpoint: str, queue: str = QUEUE, kind: str = "quorum") -> None:
    with channel_at(endpoint) as channel:
        channel.queue_delete(queue)
        declare(channel, queue, kind)


def fill(endpoint: str, messages: int, kind: str = "quorum") -> None:
    empty_queue(endpoint, kind=kind)
    with channel_at(endpoint) as channel:
        channel.tx_select()
        for number in range(messages):
            channel.basic_publish("", QUEUE, b"%d" % number, pika.BasicProperties(delivery_mode=2))
        channel.tx_commit()


@contextmanager
def timed() -> Iterator[list[float]]:
    took: list[float] = []
    began = time.perf_counter()
    yield took
    took.append(time.perf_counter() - began)


def consume(
    nodes: Sequence[str],
    messages: int,
    *,
    kind: str = "quorum",
    prefetch: int = 1,
    is_global: bool = False,
    together: int = 1,
) -> float:
    """Drain a backlog; a `multiple` acknowledgement covers `together` messages."""
    fill(nodes[0], messages, kind)
    with channel_at(nodes[0]) as channel:
        if prefetch:
            channel.basic_qos(prefetch_count=prefetch, global_qos=is_global)
        with timed() as took:
            deliveries = channel.consume(QUEUE, inactivity_timeout=SILENCE_S)
            for got, (method, _, _) in enumerate(deliveries, start=1):
                assert method is not None, f"message {got} of {messages} is missing"
                if got % together == 0:
                    channel.basic_ack(method.delivery_tag, multiple=together > 1)
                if got == messages:
                    break
            channel.cancel()
    return took[0]


def consume_side_by_side(nodes: Sequence[str], messages: int) -> float:
    """Drain a backlog with several workers, each with prefetch 1 and a connection of its own."""
    fill(nodes[0], messages)
    lock, done, left = threading.Lock(), threading.Event(), [messages]

    def work() -> None:
        with channel_at(nodes[0]) as channel:
            channel.basic_qos(prefetch_count=1)
            for method, _, _ in channel.consume(QUEUE, inactivity_timeout=0.2):
                if done.is_set():
                    break
                if method is None:
                    continue
                channel.basic_ack(method.delivery_tag)
                with lock:
                    left[0] -= 1
                    if not left[0]:
                        done.set()
            channel.cancel()

    workers = [threading.Thread(target=work) for _ in range(WORKERS)]
    with timed() as took:
        for worker in workers:
            worker.start()
        assert done.wait(60 + messages / 10), f"{left[0]} of {messages} messages are missing"
    for worker in workers:
        worker.join()
    return took[0]


def get(nodes: Sequence[str], messages: int, *, no_ack: bool) -> float:
    fill(nodes[0], messages)
    with channel_at(nodes[0]) as channel, timed() as took:
        for _ in range(messages):
            method, _, _ = channel.basic_get(QUEUE, auto_ack=no_ack)
            assert method is not None
            if not no_ack:
                channel.basic_ack(method.delivery_tag)
    return took[0]


def get_from_empty_queues(nodes: Sequence[str], polls: int) -> float:
    empty_queue(nodes[0])
    with channel_at(nodes[0]) as channel, timed() as took:
        for _ in range(polls):
            assert channel.basic_get(QUEUE)[0] is None
    return took[0]


def request(nodes: Sequence[str], requests: int, *, is_direct: bool) -> float:
    """Requests to a server at the last node; each reply comes before the next request."""
    empty_queue(nodes[-1], REQUESTS)
    stopped = threading.Event()

    def serve() -> None:
        with channel_at(nodes[-1]) as channel:
            channel.basic_qos(prefetch_count=1)
            for method, properties, body in channel.consume(REQUESTS, inactivity_timeout=0.2):
                if stopped.is_set():
                    break
                if method is not None:
                    answer = pika.BasicProperties(correlation_id=properties.correlation_id)
                    channel.basic_publish("", properties.reply_to, body, answer)
                    channel.basic_ack(method.delivery_tag)

    server = threading.Thread(target=serve)
    server.start()
    replies: list[bytes] = []
    with closing(connect(nodes[0])) as connection:
        channel = connection.channel()
        reply_to = "amq.rabbitmq.reply-to"
        if not is_direct:
            reply_to = channel.queue_declare("", exclusive=True).method.queue
        channel.basic_consume(reply_to, lambda *delivery: replies.append(delivery[3]), auto_ack=True)
        with timed() as took:
            for number in range(requests):
                request = pika.BasicProperties(reply_to=reply_to, correlation_id=str(number))
                channel.basic_publish("", REQUESTS, b"%d" % number, request)
                while len(replies) <= number:
                    connection.process_data_events(time_limit=SILENCE_S)
        stopped.set()
        server.join()
    return took[0]


def visit(nodes: Sequence[str], visits: int) -> float:
    """Connect, declare, publish a confirmed message and close, as a web request does."""
    empty_queue(nodes[0])
    with timed() as took:
        for number in range(visits):
            with channel_at(nodes[0]) as channel:
                declare(channel)
                channel.confirm_delivery()
                channel.basic_publish("", QUEUE, b"%d" % number)
    return took[0]


PATTERNS = [
    Pattern("worker, prefetch 1", consume, 1.3),
    Pattern("worker, prefetch 10, acknowledges all ten", partial(consume, prefetch=10, together=10), 1.3),
    Pattern("worker without a limit", partial(consume, prefetch=0), 1.0),
    Pattern(f"{WORKERS} workers, prefetch 1", consume_side_by_side, 0.7),
    Pattern("worker, prefetch 1, classic queue", partial(consume, kind="classic"), 5),
    Pattern("worker, channel limit 1, classic queue", partial(consume, kind="classic", is_global=True), 5),
    Pattern("basic.get and ack", partial(get, no_ack=False), 1.1),
    Pattern("basic.get without ack", partial(get, no_ack=True), 1.2),
    Pattern("basic.get of an empty queue", get_from_empty_queues, 0.6),
    Pattern("request, direct reply", partial(request, is_direct=True), 0.7, SLOW_SHARE),
    Pattern("request, exclusive reply queue", partial(request, is_direct=False), 1.2, SLOW_SHARE),
    Pattern("connect, declare, publish, close", visit, 0.9, SLOW_SHARE),
]


def measure(pattern: Pattern, brokers: dict[str, list[str]], operations: int, turns: int) -> bool:
    """Print a row; returns whether the pattern keeps its bound."""
    count = max(operations // pattern.share, 1)
    found: dict[str, list[float]] = {name: [] for name in brokers}
    for turn in range(turns):
        for name, nodes in brokers.items():
            at = turn % len(nodes)
            found[name].append(1000 * pattern.run([*nodes[at:], *nodes[:at]], count) / count)
    figures = [
        f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})" for times in found.values()
    ]
    row = f"| {pattern.name} | {' | '.join(figures)} |"
    if len(brokers) == 1:
        print(row, flush=True)
        return True
    ours, theirs = map(statistics.median, found.values())
    keeps = ours <= pattern.bound * theirs
    verdict = f"{ours / theirs:.2f} x, at most {pattern.bound}"
    print(f"{row} {verdict}{'' if keeps else ': MISSED'} |", flush=True)
    return keeps


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="one_at_a_time.py"
    )
    parser.add_argument("--only", default="", help="patterns whose name this regular expression finds")
    parser.add_argument("--messages", type=int, default=1000, help="operations of a turn")
    parser.add_argument("--turns", type=int, default=3, help="a multiple of the number of nodes")
    parser.add_argument("--rival", help="AMQP endpoints of another broker's nodes, with commas between")
    options = parser.parse_args()
    chosen = [pattern for pattern in PATTERNS if re.search(options.only, pattern.name)]
    with cluster(3) as (nodes, _):
        brokers = {"qq": nodes}
        if options.rival:
            brokers["rival"] = options.rival.split(",")
        print(f"\nOne at a time: ms per operation, median (range) of {options.turns} turns\n")
        print(f"| pattern | {' | '.join(brokers)} |{' ratio |' if options.rival else ''}")
        print("| --- " * (len(brokers) + 1 + bool(options.rival)) + "|", flush=True)
        keeps = [measure(pattern, brokers, options.messages, options.turns) for pattern in chosen]
    return 0 if all(keeps) else 1


if __name__ == "__main__":
    sys.exit(main())
