"""Divide the confirm time of a message that comes alone into its steps: a part of `make bench`.

A client publishes messages of 12 bytes, each after the confirm of its predecessor. The first run measures
the time of a confirm, and the CPU time and context switches of each node per message. In the second run the nodes
record their steps (nodes/noting.py): the table has the median microseconds from the client's write to each step. All
processes of a machine share a clock.

The floor (floor.c) comes first: the network hops and the sync alone, below which no confirm on this machine can be.

    python tests/benchmarks/budget.py [--messages 3000] [--follower] [--program DIRECTORY]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pika

import qq.testing
from qq.testing import ClusterNode, LocalCluster
from tests.benchmarks.bench import compiled

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
QUEUE = "alone"
BODY = b"x" * 12
WARM_UP = 500
STEP_SHARE_MIN = 0.5
"""A step that fewer of the messages have is not shown."""
LATER_THAN_CONFIRM_US = 3000
"""Microseconds after a publish in which steps of nodes count for its message, unless the next publish comes earlier."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    """CPU time and context switches of a process since its start."""

    user_s: float
    system_s: float
    switches: int
    """Voluntary context switches of all threads."""

    def since(self, before: Cost) -> Cost:
        return Cost(*(now - then for now, then in zip(self, before, strict=True)))


def cost(pid: int) -> Cost:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    switches = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in status.read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                switches += int(line.split()[1])
    return Cost(int(fields[11]) / TICKS_PER_S, int(fields[12]) / TICKS_PER_S, switches)


class Sent(NamedTuple):
    """When a message was sent and confirmed, on the clock that all processes have."""

    sent_ns: int
    confirmed_ns: int

    @property
    def us(self) -> float:
        return (self.confirmed_ns - self.sent_ns) / 1000


def publish(node: ClusterNode, count: int) -> list[Sent]:
    """Publish messages, each after the confirm of its predecessor, through a bare socket, because it costs little."""
    parameters = pika.URLParameters(node.url)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_purge(QUEUE)
    with closing(Publisher(node)) as publisher:
        for _ in range(WARM_UP):
            publisher.publish()
        return [publisher.publish() for _ in range(count)]


class Publisher:
    """A connection in confirm mode."""

    def __init__(self, node: ClusterNode) -> None:
        self._socket = socket.create_connection(("127.0.0.1", node.amqp_port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        commands = pika.spec
        start = commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US")
        self._request(b"AMQP\x00\x00\x09\x01")
        self._request(pika.frame.Method(0, start).marshal())
        tuned = pika.frame.Method(0, commands.Connection.TuneOk(2047, 131072, 0)).marshal()
        self._request(tuned + pika.frame.Method(0, commands.Connection.Open("/")).marshal())
        self._request(pika.frame.Method(1, commands.Channel.Open()).marshal())
        self._request(pika.frame.Method(1, commands.Confirm.Select()).marshal())
        method = pika.frame.Method(1, commands.Basic.Publish(routing_key=QUEUE)).marshal()
        header = pika.frame.Header(1, len(BODY), pika.BasicProperties(delivery_mode=2)).marshal()
        self._message = method + header + pika.frame.Body(1, BODY).marshal()

    def close(self) -> None:
        self._socket.close()

    def _request(self, data: bytes) -> None:
        self._socket.sendall(data)
        self._socket.recv(65536)

    def publish(self) -> Sent:
        sent_ns = time.monotonic_ns()
        self._socket.sendall(self._message)
        self._socket.recv(65536)
        return Sent(sent_ns, time.monotonic_ns())


@contextmanager
def cluster(directory: Path, *command: str) -> Iterator[LocalCluster]:
    """Three nodes, started by this command."""
    usual = qq.testing.SERVE_COMMAND
    qq.testing.SERVE_COMMAND = (sys.executable, "-P", *command, "serve")
    try:
        with LocalCluster(3, directory) as nodes:
            yield nodes
    finally:
        qq.testing.SERVE_COMMAND = usual


def placed(nodes: LocalCluster, *, follower: bool) -> tuple[ClusterNode, list[ClusterNode]]:
    """The node that is published to, and all with the leader first."""
    leader = nodes.leader()
    others = [node for node in nodes.nodes if node is not leader]
    return (others[0] if follower else leader), [leader, *others]


def floor(directory: Path, _program: Path, count: int, *, follower: bool) -> None:
    """Print the time of the hops and the sync. A further hop each way through a follower is not included."""
    command = [compiled("floor"), str(directory), str(count)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    (synced, synced_p99), (bare, bare_p99) = (line.split() for line in lines)
    print(
        f"floor: p50 {synced} us, p99 {synced_p99}; without fdatasync p50 {bare}, p99 {bare_p99}"
        f"{' (to the leader)' if follower else ''}\n"
    )


def costs(directory: Path, program: Path, count: int, *, follower: bool) -> None:
    with cluster(directory, str(program / "qq" / "__main__.py")) as nodes:
        at, ordered = placed(nodes, follower=follower)
        publish(at, WARM_UP)
        before = [cost(node.pid) for node in ordered]
        sent = publish(at, count)
        used = [cost(node.pid).since(then) for node, then in zip(ordered, before, strict=True)]
    taken = sorted(message.us for message in sent)
    print(
        f"confirm: p50 {taken[len(taken) // 2]:.0f} us, p90 {taken[len(taken) * 9 // 10]:.0f}, "
        f"p99 {taken[len(taken) * 99 // 100]:.0f}; {1e6 / statistics.mean(taken):.0f} messages/s\n"
    )
    print("| node | user us | system us | voluntary switches |\n|---|---|---|---|")
    published = count + WARM_UP
    for role, each in zip(("leader", "follower 1", "follower 2"), used, strict=True):
        user_us, system_us = each.user_s * 1e6 / published, each.system_s * 1e6 / published
        print(f"| {role} | {user_us:.0f} | {system_us:.0f} | {each.switches / published:.1f} |")
    total_us = sum(each.user_s + each.system_s for each in used) * 1e6 / published
    print(f"| all | {total_us:.0f} | | |\n")


def steps(directory: Path, program: Path, count: int, *, follower: bool) -> None:
    os.environ["BUDGET_DIR"] = str(directory)
    with cluster(directory, str(HERE / "nodes" / "noting.py"), str(program)) as nodes:
        at, ordered = placed(nodes, follower=follower)
        sent = publish(at, count)
        for node in ordered:
            os.kill(node.pid, signal.SIGUSR1)
        time.sleep(2)
        recorded = [json.loads((directory / f"{node.pid}.steps").read_text()) for node in ordered]
    rows: dict[tuple[str, str], list[float]] = defaultdict(list)
    ends = [message.sent_ns for message in sent[1:]] + [sent[-1].confirmed_ns]
    for role, node_steps in zip(("leader", "follower 1", "follower 2"), recorded, strict=True):
        position = 0
        for message, next_ns in zip(sent, ends, strict=True):
            end_ns = min(next_ns, message.sent_ns + LATER_THAN_CONFIRM_US * 1000)
            while position < len(node_steps) and node_steps[position][0] < message.sent_ns:
                position += 1
            times: dict[str, int] = defaultdict(int)
            while position < len(node_steps) and node_steps[position][0] < end_ns:
                at_ns, step = node_steps[position]
                times[step] += 1
                name = step if times[step] == 1 else f"{step} ({times[step]})"
                rows[role, name].append((at_ns - message.sent_ns) / 1000)
                position += 1
    print("| us since the client's write | node | step |\n|---|---|---|")
    shown = [
        (statistics.median(times), role, step)
        for (role, step), times in rows.items()
        if len(times) > STEP_SHARE_MIN * count
    ]
    shown.append((statistics.median(message.us for message in sent), "client", "has read the confirm"))
    for since_us, role, step in sorted(shown):
        print(f"| {since_us:.0f} | {role} | {step} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=3000)
    parser.add_argument("--follower", action="store_true", help="publish through a follower")
    parser.add_argument(
        "--program", type=Path, default=HERE.parents[1], help="the directory of another version"
    )
    arguments = parser.parse_args()
    for part in (floor, costs, steps):
        with tempfile.TemporaryDirectory() as directory:
            part(Path(directory), arguments.program, arguments.messages, follower=arguments.follower)


if __name__ == "__main__":
    main()
