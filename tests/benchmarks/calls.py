"""Count the function calls of all nodes for a message that comes alone: a part of `make bench`.

A client publishes messages of 12 bytes, each after the confirm of its predecessor. The nodes are simulated
without faults, with the same seed each time. So the counts do not depend on the machine or its load: a single run of
each suffices to compare two versions of the program.

A call takes some 50 to 150 ns, and more on a machine whose caches are shared. System calls are not counted, since the
simulation makes none; budget.py has the times.

    python tests/benchmarks/calls.py [--messages 200] [--follower] [--consume | --worker | --get] [--functions 40]

With `--worker`, the client consumes a backlog with prefetch 1, and acknowledges each message. With `--get`, it gets and
acknowledges each message of the backlog.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
from collections import Counter
from typing import Any

import pamqp.frame
import pysyncobj
from pamqp import header
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel, Confirm, Connection, Queue

import cluster
import qq
from chaos.sim.run import Scene
from chaos.sim.workload.workload import Submitters
from chaos.sim.world import client_socket
from chaos.sim.world.brokers import Brokers
from chaos.sim.world.client_socket import ClientSide, ClientSocket
from chaos.sim.world.cluster import SimulationOptions
from chaos.sim.world.network import NetworkOptions
from cluster.raft.timing import Timing
from qq.config import NodeLimits

SEED = 1
QUEUE = "alone"
BODY = b"alone".ljust(12)
WARM_UP = 50
PATIENCE_S = 60.0
FRAME_OVERHEAD = 8
OPTIONS = SimulationOptions(
    queues=True,
    clients=True,
    network=NetworkOptions(delay_min_s=0.0001, delay_max_s=0.0002),
    timing=Timing(),
    disk_slowness=0.1,
    checkpoint_entries=1_000_000,
    checkpoint_bytes=2**30,
    checkpoint_interval_s=3600.0,
    segment_bytes=2**24,
    cache_bytes=2**24,
)
PACKAGES = {
    "cluster": cluster.__path__[0],
    "qq": qq.__path__[0],
    "pysyncobj": pysyncobj.__path__[0],
}


class LoneClient(ClientSide):
    """Publishes with a window of a single message."""

    def __init__(self) -> None:
        self.socket: ClientSocket
        self.confirmed = 0
        self.delivered = 0
        self.consumes = False
        self.backlog = 0
        """Number of messages to publish, one at a time, before the client consumes with prefetch 1. 0: no consuming."""
        self.gets = False
        self._buffer = b""
        content = header.ContentHeader(body_size=len(BODY), properties=Basic.Properties(delivery_mode=2))
        self._message = b"".join(
            pamqp.frame.marshal(frame, 1)
            for frame in (Basic.Publish(routing_key=QUEUE), content, ContentBody(BODY))
        )

    def lost(self) -> None:
        raise RuntimeError("the connection is lost")

    def received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= FRAME_OVERHEAD:
            size = FRAME_OVERHEAD + int.from_bytes(self._buffer[3:7], "big")
            if len(self._buffer) < size:
                return
            frame, self._buffer = self._buffer[:size], self._buffer[size:]
            self._take(pamqp.frame.unmarshal(frame)[2])

    def _send(self, number: int, *frames: Any) -> None:
        self.socket.send(b"".join(pamqp.frame.marshal(frame, number) for frame in frames))

    def _take(self, frame: Any) -> None:
        match frame:
            case Connection.Start():
                self._send(0, Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"))
            case Connection.Tune():
                self._send(0, Connection.TuneOk(frame.channel_max, frame.frame_max, 0), Connection.Open("/"))
            case Connection.OpenOk():
                self._send(1, Channel.Open())
            case Channel.OpenOk():
                arguments = {"x-queue-type": "quorum"}
                self._send(1, Queue.Declare(queue=QUEUE, durable=True, arguments=arguments))
            case Queue.DeclareOk():
                if self.consumes:
                    self._send(1, Basic.Qos(prefetch_count=100), Basic.Consume(queue=QUEUE, consumer_tag="c"))
                self._send(1, Confirm.Select())
            case Confirm.SelectOk():
                self.socket.send(self._message)
            case Basic.Ack():
                self.confirmed += 1
                if self.confirmed == self.backlog and self.gets:
                    self._send(1, Basic.Get(queue=QUEUE))
                elif self.confirmed == self.backlog:
                    self._send(1, Basic.Qos(prefetch_count=1), Basic.Consume(queue=QUEUE, consumer_tag="c"))
                else:
                    self.socket.send(self._message)
            case Basic.GetOk():
                self.delivered += 1
                self._send(1, Basic.Ack(frame.delivery_tag), Basic.Get(queue=QUEUE))
            case Basic.Deliver():
                self.delivered += 1
                self._send(1, Basic.Ack(frame.delivery_tag))


class Run(Scene):
    """Three nodes and a client."""

    def __init__(self) -> None:
        super().__init__(SEED, OPTIONS)
        # Without checks, because their calls would be counted.
        for step in ("observe", "applied", "confirmed"):
            setattr(self.checks, step, lambda *_: None)
        self.checks.happened_first = lambda *_: False
        submitters = Submitters(self.checks)
        self.brokers = Brokers(self.world, submitters.submit, NodeLimits())
        self.cluster.events.extend([submitters, self.brokers])
        self.client = LoneClient()

    def _check_files(self) -> None:
        pass

    def connect(self, *, to_leader: bool) -> None:
        self.start()
        self.world.run_until(PATIENCE_S, lambda: len(self.brokers.listening()) == len(self.cluster.nodes))
        leader = self.cluster.leader()
        node = next(node for node in self.brokers.listening() if (node is leader) is to_leader)
        socket = self.brokers.connect(node, self.client)
        if socket is None:
            raise RuntimeError(f"{node.name} does not take the client")
        self.client.socket = socket
        socket.send(b"AMQP\0\0\x09\x01")

    def complete(self, count: int) -> None:
        """Run until the client has done so many operations more: confirms, or deliveries of a backlog."""
        goal = self._completed() + count
        self.world.run_until(self.world.now_s + PATIENCE_S, lambda: self._completed() >= goal)
        if self._completed() < goal:
            raise RuntimeError(f"{self._completed()} of {goal} messages are confirmed or delivered")

    def _completed(self) -> int:
        return self.client.delivered if self.client.backlog else self.client.confirmed


def counted(profile: cProfile.Profile) -> Counter[tuple[str, str]]:
    """Return the calls of production functions, and of built-in functions by them, by place and name."""
    calls = Counter[tuple[str, str]]()
    stats: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for (file, line, name), (_, count, _, _, callers) in stats.items():
        if (place := _place(file)) is not None:
            calls[f"{place}:{line}", name] += count
        elif file == "~":
            for (caller, at, by), numbers in callers.items():
                if (place := _place(caller)) is not None:
                    calls[f"{place}:{at}", f"{name} in {by}"] += numbers[0]
    return calls


def _place(file: str) -> str | None:
    for package, root in PACKAGES.items():
        if file.startswith(root):
            return package + file[len(root) :]
    return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=200)
    parser.add_argument("--follower", action="store_true", help="the client is connected to a follower")
    parser.add_argument("--consume", action="store_true", help="the client consumes what it publishes, too")
    parser.add_argument("--functions", type=int, default=0, help="how many are listed, the most called first")
    parser.add_argument("--worker", action="store_true", help="the client consumes a backlog with prefetch 1")
    parser.add_argument("--get", action="store_true", help="the client gets and acknowledges a backlog")
    options = parser.parse_args()
    client_socket.DELAY_MAX_S = 0.0001
    run = Run()
    run.client.consumes = options.consume
    run.client.gets = options.get
    if options.worker or options.get:
        run.client.backlog = 2 * WARM_UP + options.messages
    run.connect(to_leader=not options.follower)
    run.complete(WARM_UP)
    profile = cProfile.Profile()
    profile.enable()
    run.complete(options.messages)
    profile.disable()
    calls = counted(profile)
    files = Counter[str]()
    for (place, _), count in calls.items():
        files[place.partition(":")[0]] += count
    print(f"{sum(calls.values()) / options.messages:.0f} calls for a message at three nodes")
    for table in (files.most_common(25), calls.most_common(options.functions)):
        print("\n| calls | where |\n| --- | --- |")
        for kind, count in table:
            print(f"| {count / options.messages:.2f} | {kind if isinstance(kind, str) else ' '.join(kind)} |")


if __name__ == "__main__":
    main()
