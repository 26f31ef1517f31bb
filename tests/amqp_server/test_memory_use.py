"""A client that takes more than its share is slowed down; the node stays small and serves further clients.

The limits are multiples of measured values: a node without limits would exceed them many times over.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pamqp import commands

from qq.testing import ClusterNode, LocalCluster
from tests.harness.raw_client import RawClient, marshal, publish

Basic, Queue = commands.Basic, commands.Queue
MIB = 1024 * 1024
BACKLOG = 400_000


@pytest.fixture(scope="module")
def small_node() -> Generator[ClusterNode]:
    """A node with the memory of a fresh start."""
    with LocalCluster(nodes=1) as cluster:
        yield cluster.nodes[0]


def rss_mib(node: ClusterNode) -> int:
    """The node's memory; Linux only, as is the figure."""
    status = Path(f"/proc/{node.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) // 1024


class Bystander:
    """A connection that works all the time; `slowest_s` is its longest wait for an answer."""

    def __init__(self, port: int) -> None:
        self.slowest_s = 0.0
        self._client = RawClient(port)
        self._client.open_channel(1)
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._work = self._pool.submit(self._run)

    def _run(self) -> None:
        client = self._client
        name = client.call(1, Queue.Declare(exclusive=True), Queue.DeclareOk).queue
        while not self._stop.wait(0.01):
            start_s = time.monotonic()
            client.write(publish(1, name, b"m") + marshal(1, Basic.Get(queue=name, no_ack=True)))
            client.expect_message()
            self.slowest_s = max(self.slowest_s, time.monotonic() - start_s)

    def finish(self) -> float:
        self._stop.set()
        self._work.result()
        self._pool.shutdown()
        with self._client as client:
            client.close()
        return self.slowest_s


@contextlib.contextmanager
def unharmed(node: ClusterNode, growth_mib: int, wait_s: float = 2.0) -> Generator[None]:
    """Assert that the node grows by less than `growth_mib`, a bystander waits less than `wait_s`, and the log stays
    clean.
    """
    before = rss_mib(node)
    bystander = Bystander(node.amqp_port)
    highest = before
    stop = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not stop.wait(0.02):
            highest = max(highest, rss_mib(node))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()
        slowest_s = bystander.finish()
    print(f"RSS {before} -> at most {highest} MiB; the bystander waited {slowest_s:.3f} s at most")
    assert highest - before < growth_mib
    assert slowest_s < wait_s
    assert "Traceback" not in node.log.read_text()


def stopped_at(client: RawClient, data: bytes, limit: int) -> int:
    taken = client.write_until_stopped(data, limit)
    assert taken < limit, "the broker took everything"
    return taken


def fill(client: RawClient, queue: str, body: bytes, count: int) -> None:
    """Leave `count` messages in a new queue."""
    client.call(1, Queue.Declare(queue=queue), Queue.DeclareOk)
    for at in range(0, count, 1000):
        client.write(publish(1, queue, body) * min(1000, count - at))
    assert client.call(1, Queue.Declare(queue=queue, passive=True), Queue.DeclareOk).message_count == count


def test_consumers_that_never_read_hold_little_of_a_backlog(small_node: ClusterNode, queue: str) -> None:
    with RawClient(small_node.amqp_port) as owner, contextlib.ExitStack() as clients:
        owner.open_channel(1)
        fill(owner, queue, bytes(MIB), 64)
        for _ in range(4):
            fill(owner, f"{queue}-small", bytes(1000), 20_000)
            owner.call(1, Queue.Delete(queue=f"{queue}-small"), Queue.DeleteOk)
        fill(owner, f"{queue}-small", bytes(1000), 200_000)
        with unharmed(small_node, 150):
            for number in range(16):
                client = clients.enter_context(RawClient(small_node.amqp_port))
                client.open_channel(1)
                source = queue if number % 2 else f"{queue}-small"
                client.send(1, Basic.Consume(queue=source, no_ack=number % 4 < 2))
            time.sleep(2)


def test_client_that_reads_no_answers_is_not_read(small_node: ClusterNode, queue: str) -> None:
    name = queue.ljust(255, "-")
    with RawClient(small_node.amqp_port) as client, unharmed(small_node, 40):
        channels = range(1, 501)
        for number in channels:
            client.open_channel(number)
        declare = marshal(1, Queue.Declare(queue=name, auto_delete=True))
        declares = b"".join(declare[:1] + number.to_bytes(2, "big") + declare[3:] for number in channels)
        taken = stopped_at(client, declares, 100 * MIB)
        answers = taken // len(declare) * len(marshal(1, Queue.DeclareOk(name, 0, 0)))
        while answers > 0:
            answers -= len(client.socket.recv(MIB))
        assert answers == 0


def test_answers_behind_deliveries_that_are_not_read_are_few(small_node: ClusterNode, queue: str) -> None:
    with RawClient(small_node.amqp_port) as owner, RawClient(small_node.amqp_port) as client:
        owner.open_channel(1)
        fill(owner, queue, bytes(MIB), 32)
        client.open_channel(1)
        client.send(1, Basic.Consume(queue=queue, no_ack=True))
        with unharmed(small_node, 40):
            declare = marshal(1, Queue.Declare(queue=queue, passive=True)) * 1000
            stopped_at(client, declare, 100 * MIB)


def test_publisher_that_reads_no_confirms_may_also_consume(small_node: ClusterNode, queue: str) -> None:
    with RawClient(small_node.amqp_port) as owner, RawClient(small_node.amqp_port) as client:
        owner.open_channel(1)
        fill(owner, queue, bytes(MIB), 32)
        owner.call(1, Queue.Declare(queue=f"{queue}-to"), Queue.DeclareOk)
        client.open_channel(1)
        client.send(1, commands.Confirm.Select(), Basic.Consume(queue=queue))
        with unharmed(small_node, 60):
            client.socket.settimeout(20)
            for _ in range(1000):
                client.socket.sendall(publish(1, f"{queue}-to", bytes(100)) * 100)
            declared = Queue.Declare(queue=f"{queue}-to", passive=True)
            while owner.call(1, declared, Queue.DeclareOk).message_count < 100_000:
                time.sleep(0.05)


def test_channels_of_a_connection_are_limited_to_channel_max(small_node: ClusterNode) -> None:
    with RawClient(small_node.amqp_port) as client, unharmed(small_node, 60):
        client.write(b"".join(marshal(number, commands.Channel.Open()) for number in range(1, 10_001)))
        limit = "number of channels opened (2047) has reached the negotiated channel_max (2047)"
        client.expect_close(530, f"NOT_ALLOWED - {limit}")
    with RawClient(small_node.amqp_port) as client, unharmed(small_node, 60):
        for number in range(1, 2048):
            client.open_channel(number)
        client.write(b"".join(publish(number, "nowhere", b"m") for number in range(1, 2048)))
        client.close()


def test_publishers_without_confirms_are_slowed_down(small_node: ClusterNode, queue: str) -> None:
    def flood(number: int) -> None:
        with RawClient(small_node.amqp_port) as client:
            client.open_channel(1)
            data = publish(1, queue, bytes(1000 * number)) * (200 // (number + 1) + 1)
            end_s = time.monotonic() + 2
            while time.monotonic() < end_s:
                client.write(data)
            client.call(1, Basic.Qos(prefetch_count=1), Basic.QosOk)

    with RawClient(small_node.amqp_port) as owner, unharmed(small_node, 250), ThreadPoolExecutor(4) as pool:
        owner.open_channel(1)
        owner.call(1, Queue.Declare(queue=queue), Queue.DeclareOk)
        list(pool.map(flood, range(4)))


def test_slow_consumer_of_a_large_backlog_takes_little_memory(small_node: ClusterNode, queue: str) -> None:
    """With acknowledgements and without."""
    passive = Queue.Declare(queue=queue, passive=True)
    with RawClient(small_node.amqp_port) as owner:
        owner.open_channel(1)
        fill(owner, queue, b"twelve bytes", BACKLOG)
        for no_ack in (False, True):
            with RawClient(small_node.amqp_port) as client:
                client.open_channel(1)
                with unharmed(small_node, 60):
                    client.call(1, Basic.Consume(queue=queue, no_ack=no_ack), Basic.ConsumeOk)
                    for _ in range(50):
                        assert client.socket.recv(8192)
                        time.sleep(0.02)
            if not no_ack:  # unacknowledged messages are requeued
                while owner.call(1, passive, Queue.DeclareOk).message_count < BACKLOG:
                    time.sleep(0.05)
        owner.call(1, Queue.Delete(queue=queue), Queue.DeleteOk)


def read_messages(client: RawClient, body: bytes, count: int) -> None:
    """Read `count` messages without keeping them."""
    rest = b""
    client.socket.settimeout(20)
    while count > 0:
        data = rest + client.socket.recv(MIB)
        count -= data.count(body)
        rest = data[1 - len(body) :]
    client.socket.settimeout(None)


@pytest.mark.long
def test_unacked_messages_on_2047_channels_take_little_memory(small_node: ClusterNode, queue: str) -> None:
    """Fifty on each of 2047 channels: about 100 bytes a message, since consecutive messages share a record."""
    body, count = b"twelve bytes", 100_000
    with RawClient(small_node.amqp_port) as owner:
        owner.open_channel(1)
        fill(owner, queue, body, count)
        passive = Queue.Declare(queue=queue, passive=True)
        with RawClient(small_node.amqp_port) as client, unharmed(small_node, 40, wait_s=4.0):
            client.write(b"".join(marshal(number, commands.Channel.Open()) for number in range(1, 2048)))
            for _ in range(2047):
                client.expect(commands.Channel.OpenOk)
            consume = Basic.Consume(queue=queue, nowait=True)
            client.write(b"".join(marshal(number, consume) for number in range(1, 2048)))
            read_messages(client, body, count)
            assert owner.call(1, passive, Queue.DeclareOk).message_count == 0
        while owner.call(1, passive, Queue.DeclareOk).message_count < count:
            time.sleep(0.05)
        owner.call(1, Queue.Delete(queue=queue), Queue.DeleteOk)


def test_publishers_without_a_majority_are_paused_unconfirmed(queue: str) -> None:
    """They go on by themselves when a majority is back."""
    node_limit_mib, clients_count = 128, 24
    with LocalCluster(nodes=3) as cluster, contextlib.ExitStack() as stack:
        *followers, node = cluster.nodes
        clients = [stack.enter_context(RawClient(node.amqp_port)) for _ in range(clients_count)]
        for client in clients:
            client.open_channel(1)
            client.call(1, Queue.Declare(queue=queue), Queue.DeclareOk)
            client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for other in followers:
            other.kill()
        before = rss_mib(node)
        message = publish(1, queue, bytes(1000))
        with ThreadPoolExecutor(clients_count) as pool:
            taken = list(pool.map(lambda client: stopped_at(client, message * 100, 64 * MIB), clients))
        after = rss_mib(node)
        print(f"RSS {before} -> {after} MiB with {sum(taken) / MIB:.0f} MiB published")
        assert after - before < 3 * node_limit_mib
        for client in clients:
            client.socket.settimeout(0.01)
            with pytest.raises(TimeoutError):
                client.socket.recv(100)
        followers[0].start()
        for client, size in zip(clients, taken, strict=True):
            client.socket.settimeout(30)
            rest = -size % len(message)
            client.write(message[len(message) - rest :])
            count = (size + rest) // len(message)
            while client.expect(Basic.Ack).delivery_tag < count:
                pass
        assert "Traceback" not in node.log.read_text()
