"""A steady load on a cluster, the faults that a test adds to it, and the judgement at the end.

    with loaded(cluster) as load:
        load.until_all_work()
        load.kill(cluster.leader())
        load.until_all_work()

Every message goes to two queues through a fanout exchange: `shared` with a consumer on every node, and `ordered` with a
single one. At the end of the block the publishers stop, the queues drain, and the history is checked.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.harness.stopwatch import Stopwatch
from tests.stories.clients import (
    EXCHANGE,
    AioPikaConsumer,
    AioPikaPublisher,
    Client,
    Consumer,
    Deaths,
    PikaConsumer,
    PikaPublisher,
    Publisher,
    World,
    pika_connection,
)
from tests.stories.history import History, violations

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from qq.testing import ClusterNode, LocalCluster

PATIENCE_S = 45.0
RATE = 20
"""Messages a second over all publishers, each to two queues. A higher rate would take longer and find no more faults.
"""
POLL_S = 0.05
COMMAND_POLL_S = 0.3
"""Seconds between two equal commands: each is a process, which delays the awaited event."""
ENOUGH = 3
"""Confirms or deliveries that show that a client works."""
SHOWN = 20
SHARED, ORDERED = "shared", "ordered"


class Load:
    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.history = History()
        nodes = cluster.nodes
        self._world = World(nodes, self.history, Deaths(), interval_s=2 * len(nodes) / RATE)
        self.publishers: list[Publisher] = [
            kind(self._world, kind.__name__, node)
            for node in nodes
            for kind in (PikaPublisher, AioPikaPublisher)
        ]
        kinds = [PikaConsumer, AioPikaConsumer]
        self.consumers: list[Consumer] = [
            kinds[number % 2](self._world, SHARED, node) for number, node in enumerate(nodes)
        ]
        self.consumers.append(PikaConsumer(self._world, ORDERED, nodes[0]))
        self._fault_s = time.monotonic()
        self.watch = Stopwatch()

    @property
    def clients(self) -> list[Client]:
        return [*self.publishers, *self.consumers]

    # Faults

    def kill(self, *nodes: ClusterNode) -> None:
        """SIGKILL to all of them, then wait until they are gone."""
        for node in nodes:
            self._world.deaths.begin(node)
        self._fault_s = time.monotonic()
        for node in nodes:
            os.kill(node.pid, signal.SIGKILL)
        for node in nodes:
            poll(lambda node=node: not node.running, lambda node=node: f"{node.name} survives SIGKILL")
            self._world.deaths.end(node)

    @contextmanager
    def killed_meanwhile(self, node: ClusterNode) -> Generator[None]:
        """The node may drop its clients at any moment, because it finds its disk damaged or failing."""
        self._world.deaths.begin(node)
        self._fault_s = time.monotonic()
        yield
        self._world.deaths.end(node)

    def stop(self, node: ClusterNode) -> None:
        """End the process in good order: its clients are told, and leadership is handed over."""
        self._world.deaths.begin(node)
        self._fault_s = time.monotonic()
        node.stop()
        self._world.deaths.end(node)

    def fault_begins(self) -> None:
        """Record the time of an event that harms no client but may take a moment."""
        self._fault_s = time.monotonic()

    def pause(self, node: ClusterNode) -> None:
        self._fault_s = time.monotonic()
        node.pause()

    # Waiting

    def until(self, condition: Callable[[], bool], problem: Callable[[], str]) -> None:
        with self.history.changed:
            happened = self.history.changed.wait_for(
                lambda: condition() or bool(self.history.incidents), PATIENCE_S
            )
        assert not self.history.incidents, "\n".join(self.history.incidents)
        assert happened, problem()

    def until_all_work(self, besides: Sequence[ClusterNode] = ()) -> None:
        """Wait until each client has `ENOUGH` more confirms or deliveries, except those whose home is in `besides`."""
        done = self.history.done
        goals = {
            client.name: done[client.name] + ENOUGH for client in self.clients if client.home not in besides
        }

        def missing() -> set[str]:
            return {name for name, goal in goals.items() if done[name] < goal}

        self.until(lambda: not missing(), lambda: f"these clients do not go on: {missing()}")

    def longest_wait_s(self) -> float:
        """How long the slowest confirm since the last fault took: the pause that clients saw."""
        return self.history.longest_wait_s(self._fault_s)

    def assert_waited_less_than(self, seconds: float) -> None:
        """Assert that the pause of clients was shorter than `seconds`, which grow with the load on the machine."""
        longest_s, slowness = self.longest_wait_s(), self.watch.slowness
        print(
            f"the slowest confirm took {longest_s * 1000:.0f} ms; the machine is {slowness:.1f} times as slow as idle"
        )
        assert longest_s < seconds * slowness

    # The end

    def finish(self) -> None:
        """Stop the publishers, drain the queues, stop the consumers, and check the history."""
        _stop(self.publishers)
        poll(self.is_drained, lambda: f"the queues do not drain: {self.cluster.queues()}")
        _stop(self.consumers)
        found = violations(self.history, [SHARED, ORDERED], [ORDERED])
        assert not found, "\n".join([f"{len(found)} broken promises:", *found[:SHOWN]])
        assert self.is_drained(), "what was acknowledged came back"

    def is_drained(self) -> bool:
        """Whether all that was published has been acknowledged."""
        ours = [queue for queue in self.cluster.queues() if queue["name"] in (SHARED, ORDERED)]
        return all(queue["messages"] == 0 for queue in ours)

    def abandon(self) -> None:
        for client in self.clients:
            client.stopping.set()


@contextmanager
def loaded(cluster: LocalCluster) -> Generator[Load]:
    _declare(cluster.nodes[0])
    load = Load(cluster)
    for client in load.clients:
        client.start()
    try:
        with load.watch:
            load.until_all_work()
            yield load
            load.finish()
    finally:
        load.abandon()
    print(
        f"{len(load.history.confirms)} messages confirmed, {len(load.history.deliveries)} delivered; "
        f"longest wait since the last fault {load.longest_wait_s():.2f} s"
    )


def _declare(node: ClusterNode) -> None:
    with pika_connection(node) as connection:
        channel = connection.channel()
        channel.exchange_declare(EXCHANGE, "fanout", durable=True)
        for queue in (SHARED, ORDERED):
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
            channel.queue_bind(queue, EXCHANGE)


def _stop(clients: Sequence[Client]) -> None:
    for client in clients:
        client.stopping.set()
    for client in clients:
        client.join(PATIENCE_S)
        assert not client.is_alive(), f"{client.name} does not end: it waits for an answer"


def poll(condition: Callable[[], object], problem: Callable[[], str], every_s: float = POLL_S) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, problem()
        time.sleep(every_s)
