"""What two logs give, and cost, against one, on one node with two cores: a part of `make bench`.

It is the prototype of docs/explanation/several-logs.md. Each log is a process, with a state and a broker of its own.
One of them listens, and passes connections on to the processes that have other virtual hosts
(nodes/one_of_several.py). These run all the time, and are measured in turn:

    1        a node as it is, with two virtual hosts
    2        the second virtual host has a log of its own; the first one's listens
    0, 1, 2  each virtual host has a log of its own, and a third one, which has none, listens

1. What a process costs: start, memory, processor time while it does nothing; and what it takes to pass a connection on.
2. Throughput of two tenants, each with two publishers and two consumers.
3. How long a light client of the second tenant waits for each confirm, and a new client of it until it may begin, while
   the first tenant asks for something dear.

Load generators need the same two cores, so the gain is less than with cores of their own: the messages for each second
of the node's processor time say how much of it that hides. "Others" are cores that were busy with neither, such as
those of another program. There are no aims: it fails if a load does.

    python tests/benchmarks/several_logs.py [--only REGEX] [--seconds 5] [--repeat 3] [--queues 5000]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import socket
import statistics
import sys
import tempfile
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple, TypeVar

import pika
from bench import load
from budget import cost
from latency import Failure, flooded, good

import qq.testing
from qq.cli.asking import change
from qq.routing.exchanges import QUEUES_MAX
from qq.testing import ClusterNode, LocalCluster

HERE = Path(__file__).parent
FIRST, SECOND = "first", "second"
"""The virtual hosts, each of another tenant."""
MIB = 2**20
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SYNCED_BYTES = 4096
SYNCING_S = 1.0
IDLE_S = 5.0
OPENED = 200
OPENED_EVERY_S = 0.05
TRANSACTION = 1400
"""Messages of each transaction, of which each is a command of its own: 1500 are the most."""
TIMED_OUT_S = 30.0
COMMANDS = pika.spec
CLOSING = {"Connection.Close", "Channel.Close"}
Figures = TypeVar("Figures", bound=tuple[float, ...])


class Deployment(NamedTuple):
    """One node, with one log or several."""

    logs: str
    listening: ClusterNode
    """The process that clients connect to."""
    nodes: dict[str, ClusterNode]
    """The process of each virtual host."""

    @property
    def port(self) -> int:
        return self.listening.amqp_port

    @property
    def at(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def processes(self) -> list[ClusterNode]:
        return list(dict.fromkeys([self.listening, *self.nodes.values()]))

    @property
    def cpu_s(self) -> float:
        """Processor time of the node so far, in seconds."""
        used = [cost(process.pid) for process in self.processes]
        return sum(each.user_s + each.system_s for each in used)


# Processes


@contextmanager
def started(*options: str) -> Iterator[ClusterNode]:
    """A process with a log of its own; with options, one of several."""
    usual = qq.testing.SERVE_COMMAND
    if options:
        program = str(HERE / "nodes" / "one_of_several.py")
        qq.testing.SERVE_COMMAND = (sys.executable, "-P", program, *options, "serve")
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(LocalCluster(1))
        finally:
            qq.testing.SERVE_COMMAND = usual
        yield cluster.nodes[0]


@contextmanager
def deployed(logs: str, directory: Path, passed_on: Sequence[str] = ()) -> Iterator[Deployment]:
    """A node in which these virtual hosts have logs of their own, and one log has all others and listens."""
    with ExitStack() as stack:
        nodes: dict[str, ClusterNode] = {}
        options: list[str] = []
        for vhost in passed_on:
            path = f"{directory}/{len(passed_on)}-{vhost}"
            nodes[vhost] = stack.enter_context(started("--take", path))
            options += ["--pass", f"{vhost}={path}"]
        listening = stack.enter_context(started(*options))
        deployment = Deployment(logs, listening, {FIRST: listening, SECOND: listening} | nodes)
        for vhost, process in deployment.nodes.items():
            refused = change(process.http_port, "PUT", f"/api/vhosts/{vhost}")
            if refused is not None:
                raise Failure(refused)
        yield deployment


# Clients


class Client:
    """One connection, which costs next to no processor time."""

    def __init__(self, port: int) -> None:
        self.came: list[str] = []
        """The methods that came, by their names."""
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMED_OUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, data: bytes, answer: type[Any]) -> None:
        """Send, and read until the answer has come. Raises Failure if the connection or the channel ends."""
        self._socket.sendall(data)
        before = len(self.came)
        unread = b""
        while answer.NAME not in self.came[before:]:
            read = self._socket.recv(65_536)
            unread += read
            while (decoded := pika.frame.decode_frame(unread))[0]:
                unread = unread[decoded[0] :]
                if isinstance(decoded[1], pika.frame.Method):
                    self.came.append(decoded[1].method.NAME)
            if not read or CLOSING.intersection(self.came[before:]):
                raise Failure(f"no {answer.NAME}, but {', '.join(self.came[-1:]) or 'the end'}")

    def close(self) -> None:
        self._socket.close()


def method(channel: int, command: Any) -> bytes:
    return pika.frame.Method(channel, command).marshal()


def message(exchange: str, key: str) -> bytes:
    """A message of 12 bytes, to be published on channel 1."""
    publish = method(1, COMMANDS.Basic.Publish(exchange=exchange, routing_key=key))
    header = pika.frame.Header(1, 12, pika.BasicProperties(delivery_mode=2)).marshal()
    return publish + header + pika.frame.Body(1, bytes(12)).marshal()


def handshake(vhost: str) -> list[tuple[bytes, type[Any]]]:
    """What a client sends to open a channel in a virtual host, as soon as it may, and what it waits for."""
    login = COMMANDS.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US")
    tuned = method(0, COMMANDS.Connection.TuneOk(2047, 131_072, 0))
    opened = method(0, COMMANDS.Connection.Open(vhost)) + method(1, COMMANDS.Channel.Open())
    return [
        (b"AMQP\x00\x00\x09\x01", COMMANDS.Connection.Start),
        (method(0, login), COMMANDS.Connection.Tune),
        (tuned + opened, COMMANDS.Channel.OpenOk),
    ]


def opened(port: int, vhost: str) -> Client:
    """A client with one channel."""
    client = Client(port)
    for data, answer in handshake(vhost):
        client.ask(data, answer)
    return client


def opened_ms(port: int, vhost: str) -> float:
    """How long it takes to connect and to open a channel."""
    begun = time.perf_counter()
    with closing(opened(port, vhost)):
        return (time.perf_counter() - begun) * 1000


# What is dear: the first tenant's load, as long as the block runs


@contextmanager
def nothing(_deployment: Deployment, _queues: int) -> Iterator[None]:
    yield


@contextmanager
def fanout(deployment: Deployment, queues: int) -> Iterator[None]:
    """Each message goes to as many queues as one may reach; each queue keeps the last one."""
    define_bound_queues(deployment, queues)
    options = ["-v", FIRST, "-e", "amq.fanout", "-s", "12", "-w", "2"]
    with flooded([deployment.at], options):
        yield


def define_bound_queues(deployment: Deployment, queues: int) -> None:
    """Declare them over HTTP; those that are there stay."""
    names = [f"fanout-{number}" for number in range(queues)]
    arguments = {"x-queue-type": "quorum", "x-max-length": 1}
    bound = {"source": "amq.fanout", "destination_type": "queue", "routing_key": "", "arguments": {}}
    document = {
        "queues": [
            {"name": name, "durable": True, "auto_delete": False, "arguments": arguments} for name in names
        ],
        "bindings": [bound | {"destination": name} for name in names],
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{deployment.nodes[FIRST].http_port}/api/definitions/{FIRST}",
        json.dumps(document).encode(),
        {"Authorization": f"Basic {b64encode(b'guest:guest').decode()}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120):
        pass


@contextmanager
def transactions(deployment: Deployment, _queues: int) -> Iterator[None]:
    """One transaction after the other, of nearly as many commands as one may have."""
    queue = ["-v", FIRST, "-q", "tx", "--queues", "2", "--arg", "x-max-length=1"]
    good(load([deployment.at], *queue, "declare"))
    published = b"".join(message("", f"tx-{number % 2}") for number in range(TRANSACTION))
    committed = published + method(1, COMMANDS.Tx.Commit())
    is_over = Event()

    def commit() -> None:
        with closing(opened(deployment.port, FIRST)) as client:
            client.ask(method(1, COMMANDS.Tx.Select()), COMMANDS.Tx.SelectOk)
            while not is_over.is_set():
                client.ask(committed, COMMANDS.Tx.CommitOk)

    with ThreadPoolExecutor(1) as executor:
        committing = executor.submit(commit)
        try:
            time.sleep(1)
            yield
        finally:
            is_over.set()
            committing.result()


@contextmanager
def large_messages(deployment: Deployment, _queues: int) -> Iterator[None]:
    """One message of 16 MiB after the other, of which the queue keeps one."""
    queue = ["-v", FIRST, "-q", "large"]
    good(load([deployment.at], *queue, "--arg", "x-max-length=1", "declare"))
    with flooded([deployment.at], [*queue, "-s", str(16 * MIB), "-w", "1"]):
        yield


Dear = Callable[[Deployment, int], Any]
DEAR: dict[str, Dear] = {
    "nothing": nothing,
    "messages of 12 B to {queues:,} queues": fanout,
    f"transactions of {TRANSACTION:,} messages": transactions,
    "messages of 16 MiB": large_messages,
}


# Measurements


class Busy:
    """Which cores were busy since it was made: the node's, and those of others than the node and its load."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._begun_s = time.monotonic()
        self._before = self._used_s()

    def _used_s(self) -> tuple[float, float, float]:
        own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        load_s = sum(usage.ru_utime + usage.ru_stime for usage in own)
        return self._deployment.cpu_s, load_s, machine_busy_s()

    def cores(self) -> tuple[float, float, float]:
        """Of the node, of load generators that have ended, and of everything else on the machine."""
        seconds = time.monotonic() - self._begun_s
        used = [(now - then) / seconds for now, then in zip(self._used_s(), self._before, strict=True)]
        node, generators, machine = used
        return node, generators, max(0.0, machine - node - generators)


def machine_busy_s() -> float:
    """Processor time of all cores so far, in seconds, but for what they waited."""
    times = Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
    user, nice, system, _idle, _iowait, *rest = map(int, times)
    return (user + nice + system + sum(rest)) / TICKS_PER_S


class Syncs(NamedTuple):
    """Of 4 KiB each, appended to a file of each writer."""

    p50_ms: float
    p99_ms: float
    per_s: float


def syncs(directory: Path, writers: int) -> Syncs:
    def write(number: int) -> list[float]:
        took_ms: list[float] = []
        with (directory / f"synced-{number}").open("wb", buffering=0) as file:
            end_s = time.monotonic() + SYNCING_S
            while time.monotonic() < end_s:
                file.write(bytes(SYNCED_BYTES))
                begun_s = time.perf_counter()
                os.fdatasync(file.fileno())
                took_ms.append((time.perf_counter() - begun_s) * 1000)
        return took_ms

    with ThreadPoolExecutor(writers) as executor:
        took_ms = [each for took in executor.map(write, range(writers)) for each in took]
    cuts = statistics.quantiles(took_ms, n=100)
    return Syncs(cuts[49], cuts[98], len(took_ms) / SYNCING_S)


class Costs(NamedTuple):
    """Of a node whose logs are nearly empty and which nobody uses."""

    resident_mib: float
    shared_out_mib: float
    """Memory that several processes have together counts for each by its share (PSS)."""
    idle_percent: float
    """Of a core."""
    opened_ms: float
    """How long a client of the second virtual host takes to connect and to open a channel."""


def costs(deployment: Deployment) -> Costs:
    before_s = deployment.cpu_s
    time.sleep(IDLE_S)
    idle_s = deployment.cpu_s - before_s
    took_ms = [opened_ms(deployment.port, SECOND) for _ in range(OPENED)]
    resident, shared_out = zip(*(memory_mib(process.pid) for process in deployment.processes), strict=True)
    return Costs(sum(resident), sum(shared_out), idle_s / IDLE_S * 100, statistics.median(took_ms))


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident memory, and the share of it that counts for this process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    found = {line.split(":")[0]: line.split()[1] for line in lines[1:]}
    return int(found["Rss"]) / 1024, int(found["Pss"]) / 1024


def start_s(process: ClusterNode) -> float:
    """From the start of a process until it serves clients."""
    process.kill()
    begun_s = time.monotonic()
    process.start()
    process.wait_ready()
    return time.monotonic() - begun_s


class Throughput(NamedTuple):
    """Of both tenants together: published, confirmed, delivered and acknowledged."""

    per_s: float
    node_cores: float
    generator_cores: float
    other_cores: float

    @property
    def per_cpu_s(self) -> float:
        """Messages for a second of the node's processor time."""
        return self.per_s / self.node_cores


def throughput(size: int, seconds: float, deployment: Deployment) -> Throughput:
    options = ["-t", str(seconds), "--warmup", "1.5", "-s", str(size), "-P", "2", "-C", "2", "both"]
    tenants = [["-v", vhost, "-q", "load"] for vhost in (FIRST, SECOND)]
    for tenant in tenants:
        good(load([deployment.at], *tenant, "declare"))
    busy = Busy(deployment)
    with ThreadPoolExecutor(len(tenants)) as executor:
        running = [executor.submit(load, [deployment.at], *tenant, *options) for tenant in tenants]
        results = [good(each.result()) for each in running]
    cores = busy.cores()
    for tenant in tenants:
        good(load([deployment.at], *tenant, "delete"))
    return Throughput(sum(min(each["publish_rate"], each["consume_rate"]) for each in results), *cores)


class Waits(NamedTuple):
    """Of the second tenant's clients, in milliseconds."""

    p50: float
    p99: float
    """Of the confirms of a light client."""
    opened: float
    """The median of what new clients take to connect and to open a channel."""
    other_cores: float


def waits(dear: Dear, queues: int, seconds: float, deployment: Deployment) -> Waits:
    queue = ["-v", SECOND, "-q", "light"]
    timed = ["-t", str(seconds), "--warmup", "1", "-w", "1", "-s", "12"]
    good(load([deployment.at], *queue, "declare"))
    took_ms: list[float] = []
    busy = Busy(deployment)
    with dear(deployment, queues), ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(load, [deployment.at], *queue, *timed, "publish")
        while not waiting.done():
            took_ms.append(opened_ms(deployment.port, SECOND))
            time.sleep(OPENED_EVERY_S)
        confirms = good(waiting.result())["confirm_us"]
    *_, other_cores = busy.cores()
    good(load([deployment.at], *queue, "delete"))
    return Waits(confirms["p50"] / 1000, confirms["p99"] / 1000, statistics.median(took_ms), other_cores)


# Tables


def in_turn(
    measure: Callable[[Deployment], Figures], found: Sequence[Deployment], repeat: int
) -> list[Figures]:
    """The medians of each deployment, which are measured one after the other so many times."""
    runs = [[measure(deployment) for deployment in found] for _ in range(repeat)]
    return [
        type(each[0])(*map(statistics.median, zip(*each, strict=True))) for each in zip(*runs, strict=True)
    ]


def head(*titles: str) -> None:
    print(f"\n| {' | '.join(titles)} |\n{'|---' * len(titles)}|")


def row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def show_costs(found: Sequence[Deployment], directory: Path, repeat: int) -> None:
    head("4 KiB appended and synced", "p50 ms", "p99 ms", "1/s")
    for writers in (1, 2):
        each = syncs(directory, writers)
        row(f"{writers} at once", f"{each.p50_ms:.2f}", f"{each.p99_ms:.2f}", f"{each.per_s:,.0f}")
    starts = [start_s(found[0].nodes[FIRST]) for _ in range(repeat)]
    print(f"\nA process serves {statistics.median(starts):.2f} s after its start.")
    head(
        "logs",
        "resident MiB",
        "MiB, what is shared counted once",
        "idle, % of a core",
        "connect and open, ms",
    )
    for deployment, each in zip(found, in_turn(costs, found, repeat), strict=True):
        figures = (f"{each.resident_mib:.0f}", f"{each.shared_out_mib:.0f}", f"{each.idle_percent:.1f}")
        row(deployment.logs, *figures, f"{each.opened_ms:.2f}")


def show_throughput(found: Sequence[Deployment], sizes: Sequence[int], seconds: float, repeat: int) -> None:
    head("two tenants", "logs", "msg/s", "gain", "node", "load", "others", "msg per CPU s", "gain")
    for size in sizes:
        figures = in_turn(partial(throughput, size, seconds), found, repeat)
        one = figures[0]
        for (logs, *_), each in zip(found, figures, strict=True):
            cores = (f"{value:.2f}" for value in each[1:])
            gain = f"{each.per_s / one.per_s:.2f}"
            row(
                f"{size} B",
                logs,
                f"{each.per_s:,.0f}",
                gain,
                *cores,
                f"{each.per_cpu_s:,.0f}",
                f"{each.per_cpu_s / one.per_cpu_s:.2f}",
            )


def show_waits(found: Sequence[Deployment], only: str, queues: int, seconds: float, repeat: int) -> None:
    head("the first tenant's load", "logs", "confirm p50 ms", "p99 ms", "connect and open, ms", "others")
    for name, dear in DEAR.items():
        if not re.search(only, name):
            continue
        figures = in_turn(partial(waits, dear, queues, seconds), found, repeat)
        for (logs, *_), each in zip(found, figures, strict=True):
            row(name.format(queues=queues), logs, *(f"{value:.2f}" for value in each))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="regular expression: the loads beside which one waits")
    parser.add_argument("--sizes", type=int, nargs="*", default=[1024, 12], help="bytes of each message")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--queues", type=int, default=QUEUES_MAX, help="how many a dear message reaches")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}. Cores are cores that were busy.")
    with tempfile.TemporaryDirectory(prefix="qq-bench-") as directory:
        try:
            with (
                deployed("1", Path(directory)) as one,
                deployed("2", Path(directory), [SECOND]) as two,
                deployed("0, 1, 2", Path(directory), [FIRST, SECOND]) as three,
            ):
                found = [one, two, three]
                show_costs(found, Path(directory), options.repeat)
                show_throughput(found, options.sizes, options.seconds, options.repeat)
                show_waits(found, options.only, options.queues, options.seconds, options.repeat)
        except Failure as failure:
            print(f"failed: {failure}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
