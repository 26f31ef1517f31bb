"""Runs a seed of legal harm: a cluster, hostile clients, and honest publishers that count their confirms.

Invariant: the bytes of each hostile client are a function of the seed and its number. Every node must live and log no
error of its own. Each message confirmed to an honest publisher must be in its queue at the end, once. No confirm and no
answer of /livez may take longer than `WAIT_MAX_S`. The node must answer hostile clients with errors of the protocol
before it hangs up on them. States of equal index must be equal on all nodes, and a node that starts from a state must
have that state.
"""

from __future__ import annotations

import http.client
import json
import re
import select
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import pamqp.frame
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.common import FieldTable

from chaos.fuzz.answers import INTERNAL_ERROR, HarmError
from chaos.fuzz.conversations import marshal
from chaos.fuzz.hostile10 import HostileClient10
from chaos.fuzz.legal import UNPRIVILEGED, USER, VHOSTS, Act, draw_act, opening, publish
from chaos.fuzz.operators import Request, operators_request
from chaos.fuzz.run import QUIET_S, TROUBLE
from cluster.log.checkpoints import checkpoint_name, list_checkpoints, read_checkpoint
from cluster.runtime.asyncio_runtime import ReadOnlyDisk
from cluster.state.group_state import GroupState
from cluster.storage.identity import Owner
from qq.cli.local_files import HOST, Settings
from qq.cli.local_files import USER as ADMINISTRATOR
from qq.machine.machine import QueueMachine
from qq.testing import ClusterError, ClusterNode, LocalCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

WAIT_MAX_S = 10.0
"""Seconds that an honest confirm or an answer of /livez may take; generous, for busy machines."""
PATIENCE_S = 60.0
"""Seconds to wait for a certain event, for hostile clients too."""
AT_A_TIME = 6
HONEST_BATCH = 20
HONEST_INTERVAL_S = 0.02
LIVEZ_INTERVAL_S = 0.2
RESTART_INTERVAL_S = 12.0
SETTINGS: Settings = {"limits": {"checkpoint_interval_s": 2.0}}
"""Short, so that a restarted node begins with a checkpoint instead of the log."""
SEND_BYTES = 256 * 1024
PROPERTIES = {"delivery_mode": 2}
_ERROR = re.compile(r"\b(ERROR|CRITICAL)\b")
_METHOD_FRAME, _FRAME_TYPES, _FRAME_START_BYTES, _FRAME_END = 1, (1, 2, 3, 8), 7, 0xCE
_OPEN_OK, _CLOSE, _CLOSE_OK = (bytes((0, 10, 0, number)) for number in (41, 50, 51))
_CHANNEL_CLOSE, _CHANNEL_CLOSE_OK = (bytes((0, 20, 0, number)) for number in (40, 41))
_BYE = (200, "bye", 0, 0)


class SiegeOutcome(NamedTuple):
    """The result of a seed."""

    seed: int
    acts: int
    confirmed: int
    """Messages confirmed to the honest publishers."""
    longest_confirm_s: float
    longest_livez_s: float
    compared: int
    """States of the same index that were found on more than a single node."""
    answers: Counter[str]
    """Number of answers to hostile clients, by closed object and reply code, or by HTTP status."""
    violation: str


def run_siege(
    seed: int,
    *,
    nodes: int,
    acts: int,
    until_s: float,
    factor: float = 1.0,
    only: str = "",
    restarts: bool = True,
) -> SiegeOutcome:
    """Let `acts` hostile clients act, or fewer after `until_s` on the monotonic clock; return the result."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="qq-siege-")))
        cluster = stack.enter_context(LocalCluster(nodes, directory, SETTINGS))
        siege = _Siege(cluster, seed, factor, only)
        violations: list[str] = []
        try:
            # Confirmed messages are counted even after an earlier step has failed.
            for step in (
                siege.prepare,
                partial(siege.lay, acts, until_s, restarts=restarts and nodes > 1),
                siege.count,
                partial(siege.compare, directory),
            ):
                try:
                    step()
                except (HarmError, OSError, ClusterError, http.client.HTTPException) as error:
                    violations.append(f"{error or type(error).__name__} ({siege.where()})")
        finally:
            siege.stop()
        return siege.outcome("; ".join(violations))


class _Siege:
    """The hostile and the honest clients, and their view of the nodes."""

    def __init__(self, cluster: LocalCluster, seed: int, factor: float, only: str) -> None:
        self.done = 0
        self._under_way: dict[int, str] = {}
        """Running acts by number; failed acts stay."""
        self._cluster = cluster
        # The last of several nodes is restarted now and then: clients that count connect to the remaining nodes.
        self._nodes = cluster.nodes[: max(1, len(cluster.nodes) - 1)]
        self._seed, self._factor, self._only = seed, factor, only
        self._random = Random(f"{seed}-restarts")
        self._answers: Counter[str] = Counter()
        self._publishers: list[HonestPublisher] = []
        self._pulses: list[Pulse] = []
        self._compared = 0

    def prepare(self) -> None:
        """Create the objects of the hostile clients, and start the honest publishers."""
        first = self._nodes[0]
        for user in (USER, UNPRIVILEGED):
            operators_request(first, _put(f"users/{user}", {"password": user, "tags": ""}))
        for vhost in VHOSTS:
            operators_request(first, _put(f"vhosts/{quote(vhost, safe='')}", {}))
            for user, pattern in ((USER, ".*"), (UNPRIVILEGED, "^$")):
                permissions = dict.fromkeys(("configure", "write", "read"), pattern)
                operators_request(first, _put(f"permissions/{quote(vhost, safe='')}/{user}", permissions))
        for number, node in enumerate(self._nodes * 2):
            self._publishers.append(HonestPublisher(node.amqp_port, f"honest-{number}"))
        self._pulses = [Pulse(node) for node in self._nodes]
        for one in (*self._publishers, *self._pulses):
            one.start()

    def lay(self, acts: int, until_s: float, *, restarts: bool) -> None:
        restart_s = time.monotonic() + RESTART_INTERVAL_S
        with ThreadPoolExecutor(AT_A_TIME) as pool, ThreadPoolExecutor(1) as operator:
            restarting = None
            while self.done < acts and (time.monotonic() < until_s or not self.done):
                numbers = range(self.done + 1, min(self.done + AT_A_TIME, acts) + 1)
                for answers in pool.map(self._act, numbers):
                    self._answers += answers
                self.done = numbers[-1]
                self.check()
                if restarts and time.monotonic() > restart_s and (restarting is None or restarting.done()):
                    if restarting is not None:
                        restarting.result()
                    restarting = operator.submit(self._restart)
                    restart_s = time.monotonic() + RESTART_INTERVAL_S
            if restarting is not None:
                restarting.result()

    def _restart(self) -> None:
        """Restart the last node, after a stop or a crash, and wait until it is ready."""
        node = self._cluster.nodes[-1]
        self._random.choice((node.stop, node.kill))()
        node.start()
        node.wait_ready()

    def _act(self, number: int) -> Counter[str]:
        random = Random(f"{self._seed}-{number}")
        act = draw_act(random, number, self._factor, self._only)
        self._under_way[number] = act.name
        answers: Counter[str] = Counter()
        node = random.choice(self._nodes)
        with ExitStack() as stack:
            frames = list(act.frames) if act.connections > 1 else act.frames
            for _ in range(act.connections):
                client = stack.enter_context(socket.create_connection((HOST, node.amqp_port), PATIENCE_S))
                hostile_client(client, act, frames, answers)
            for request in act.requests:
                answers[f"HTTP {operators_request(node, request)}"] += 1
        del self._under_way[number]
        return answers

    def check(self) -> None:
        """Check that the nodes and the honest clients are well. Raises HarmError."""
        for one in (*self._publishers, *self._pulses):
            one.check()
        for node in self._cluster.nodes:
            if not node.running and node in self._nodes:
                raise HarmError(f"{node.name} is gone: {_trouble(node) or 'it says nothing'}")
            if trouble := _trouble(node):
                raise HarmError(f"{node.name} logs {trouble}")

    def count(self) -> None:
        """Check that every confirmed message is in its queue, after the hostile clients have disconnected."""
        for publisher in self._publishers:
            publisher.finish()
        lost = [problem for publisher in self._publishers if (problem := publisher.collect())]
        if lost:
            raise HarmError("; ".join(lost))
        self.check()

    def compare(self, directory: Path) -> None:
        """Stop all nodes at once, gracefully, and check that their states are equal."""
        self._cluster.wait_caught_up()
        self.stop()
        with ThreadPoolExecutor(len(self._cluster.nodes)) as pool:
            list(pool.map(ClusterNode.stop, self._cluster.nodes))
        self._compared = compare_states([(node.name, directory / node.name) for node in self._cluster.nodes])

    def where(self) -> str:
        """Return the running acts and the errors in the nodes' logs."""
        logged = [
            f"{node.name} logs {trouble}" for node in self._cluster.nodes if (trouble := _trouble(node))
        ]
        ended = [f"{node.name} is gone" for node in self._nodes if not node.running]
        acts = ", ".join(f"{number} {name}" for number, name in sorted(self._under_way.items()))
        return "; ".join([f"behind act {self.done}, under way: {acts or 'none'}", *ended, *logged])

    def stop(self) -> None:
        for one in (*self._publishers, *self._pulses):
            one.stop()

    def outcome(self, violation: str) -> SiegeOutcome:
        return SiegeOutcome(
            self._seed,
            self.done,
            sum(publisher.confirmed for publisher in self._publishers),
            max((publisher.longest_s for publisher in self._publishers), default=0.0),
            max((pulse.longest_s for pulse in self._pulses), default=0.0),
            self._compared,
            self._answers,
            violation,
        )


class _Background:
    """A thread that repeats a task until it is stopped, and keeps its error."""

    longest_s = 0.0

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: Exception | None = None
        self.begun_s: float | None = None
        """Since when the task has waited for the pending answer; None if no answer is pending."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the task and wait for its end."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE_S)

    def check(self) -> None:
        """Raise HarmError if the task has failed or has waited for too long."""
        if self._error is not None:
            raise HarmError(f"{self}: {self._error or type(self._error).__name__}") from self._error
        begun_s = self.begun_s
        waited_s = max(self.longest_s, time.monotonic() - begun_s if begun_s else 0.0)
        if waited_s > WAIT_MAX_S:
            self.longest_s = waited_s
            raise HarmError(f"{self} has waited {waited_s:.1f} s")

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                begun_s = self.begun_s = time.monotonic()
                self.act()
                self.begun_s = None
                self.longest_s = max(self.longest_s, time.monotonic() - begun_s)
                self._stopped.wait(self.interval_s())
        except (HarmError, OSError, http.client.HTTPException) as error:
            self._error = error

    def act(self) -> None:
        raise NotImplementedError

    def interval_s(self) -> float:
        raise NotImplementedError


class Pulse(_Background):
    """A task that requests a node's /livez again and again."""

    def __init__(self, node: ClusterNode) -> None:
        super().__init__()
        self._node = node

    def __str__(self) -> str:
        return f"/livez of {self._node.name}"

    def act(self) -> None:
        connection = http.client.HTTPConnection(HOST, self._node.http_port, timeout=PATIENCE_S)
        try:
            connection.request("GET", "/livez")
            status = connection.getresponse().status
        finally:
            connection.close()
        if status != http.client.OK:
            raise HarmError(f"answers {status}")

    def interval_s(self) -> float:
        return LIVEZ_INTERVAL_S


class HonestPublisher(_Background):
    """Publishes numbers to a queue of its own, a batch at a time, and counts the confirms."""

    def __init__(self, port: int, queue: str) -> None:
        super().__init__()
        self.confirmed = 0
        self._port = port
        self._queue = queue
        self._client = _Client(port)
        self._client.open(ADMINISTRATOR, "/")
        arguments: FieldTable = {"x-queue-type": "quorum"}
        self._client.call(
            commands.Queue.Declare(queue=queue, durable=True, arguments=arguments), commands.Queue.DeclareOk
        )
        self._client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)

    def __str__(self) -> str:
        return f"the honest publisher to {self._queue}"

    def act(self) -> None:
        numbers = range(self.confirmed, self.confirmed + HONEST_BATCH)
        self._client.send(
            b"".join(publish("", self._queue, b"%d" % number, **PROPERTIES) for number in numbers)
        )
        while self.confirmed < numbers.stop:
            ack = self._client.expect(commands.Basic.Ack)
            self.confirmed = ack.delivery_tag if ack.multiple else self.confirmed + 1

    def interval_s(self) -> float:
        return HONEST_INTERVAL_S

    def finish(self) -> None:
        self.stop()
        self._client.close()

    def collect(self) -> str:
        """Check that each confirmed message is in the queue, once; return the violation, or ""."""
        client = _Client(self._port)
        client.open(ADMINISTRATOR, "/")
        client.call(commands.Basic.Consume(queue=self._queue, no_ack=True), commands.Basic.ConsumeOk)
        found: Counter[int] = Counter()
        with suppress(TimeoutError):
            while True:
                wait_s = WAIT_MAX_S if len(found) < self.confirmed else QUIET_S
                found[int(client.expect(ContentBody, wait_s).value)] += 1
        client.close()
        lost = [number for number in range(self.confirmed) if number not in found]
        twice = [number for number, times in found.items() if times > 1]
        if lost:
            return f"of {self.confirmed} messages confirmed to {self} {len(lost)} are lost, the first is {lost[0]}"
        return f"{len(twice)} messages of {self} came twice" if twice else ""


class _Client:
    """A healthy connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = bytearray()

    def open(self, user: str, vhost: str) -> None:
        self.send(b"".join(opening(user, vhost)))
        self.expect(commands.Connection.OpenOk)
        self.send(marshal(1, commands.Channel.Open()))
        self.expect(commands.Channel.OpenOk)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def call(self, frame: Any, answer: Any) -> Any:
        self.send(marshal(1, frame))
        return self.expect(answer)

    def close(self) -> None:
        self._socket.close()

    def expect(self, kind: Any, wait_s: float = PATIENCE_S) -> Any:
        """Return the next frame of this kind. Raises HarmError for an error of the node, TimeoutError after silence."""
        bad = (commands.Connection.Close, commands.Channel.Close, commands.Basic.Nack, commands.Basic.Return)
        while True:
            frame = self._next(wait_s)
            if isinstance(frame, kind):
                return frame
            if isinstance(frame, bad):
                raise HarmError(f"was told {frame.name} {getattr(frame, 'reply_text', '')}")

    def _next(self, wait_s: float) -> Any:
        while (taken := _take_frame(self._rest)) is None:
            self._socket.settimeout(wait_s)
            data = self._socket.recv(65_536)
            if not data:
                raise HarmError("was hung up on")
            self._rest += data
        return pamqp.frame.unmarshal(taken)[2]


def hostile_client(client: socket.socket, act: Act, frames: Iterable[bytes], answers: Counter[str]) -> None:
    """Send all frames of an act and read the answers. The socket stays open.

    An act with a single connection ends with the closing handshake. Raises HarmError for an illegal answer of the node.
    """
    if act.items10 is None:
        _HostileClient(client, answers).run(act, frames)
    else:
        HostileClient10(client, answers).run(act.user, act.vhost, act.items10, closes=act.connections == 1)


class _HostileClient:
    """A connection of a hostile client."""

    def __init__(self, client: socket.socket, answers: Counter[str]) -> None:
        self._socket = client
        self._answers = answers
        self._rest = bytearray()
        self._received: set[bytes] = set()
        """The methods that the node has sent, by their class and method numbers."""
        self._closed: set[int] = set()
        """The channels that are closed, by either side."""
        self._ended = False
        """Whether the connection has ended, so that it neither sends nor receives."""

    def run(self, act: Act, frames: Iterable[bytes]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # earlier answers are lost with the connection
            self._pump([b"".join(opening(act.user, act.vhost))], lambda: _OPEN_OK in self._received)
            self._pump(_pieces([marshal(1, commands.Channel.Open())], frames), lambda: True)
            if act.connections == 1:
                channels = set(range(1, act.channels + 1))
                # A channel's pending methods are dropped when the connection is closed.
                closes = [
                    marshal(channel, commands.Channel.Close(*_BYE)) for channel in channels - self._closed
                ]
                self._pump(closes, lambda: channels <= self._closed)
                self._pump(
                    [marshal(0, commands.Connection.Close(*_BYE))], lambda: _CLOSE_OK in self._received
                )

    def _pump(self, pieces: Iterable[bytes], done: Callable[[], bool]) -> None:
        """Write as much as the node accepts and read its answers, until all is written and `done` returns true.

        Ends early after a connection.close. Raises HarmError after a long silence.
        """
        client, data = self._socket, iter(pieces)
        client.setblocking(False)
        piece = memoryview(next(data, b""))
        while (piece or not done()) and not self._ended:
            readable, writable, _ = select.select([client], [client] if piece else [], [], PATIENCE_S)
            if not readable and not writable:
                raise HarmError(f"a hostile client has heard nothing for {PATIENCE_S:g} s")
            if readable:
                self._read(client.recv(SEND_BYTES))
            if writable:
                with suppress(BlockingIOError):
                    piece = piece[client.send(piece) :]
                if not piece:
                    piece = memoryview(next(data, b""))

    def _read(self, data: bytes) -> None:
        if not data:
            raise HarmError("a hostile client was hung up on without a word")
        self._rest += data
        while (frame := _take_frame(self._rest)) is not None:
            if frame[0] == _METHOD_FRAME:
                self._take_method(frame[_FRAME_START_BYTES : _FRAME_START_BYTES + 4], frame)

    def _take_method(self, kind: bytes, frame: bytes) -> None:
        self._received.add(kind)
        if kind in (_CHANNEL_CLOSE, _CHANNEL_CLOSE_OK):
            self._closed.add(int.from_bytes(frame[1:3], "big"))
        if kind in (_CHANNEL_CLOSE, _CLOSE):
            close: Any = pamqp.frame.unmarshal(frame)[2]
            self._ended = self._ended or kind == _CLOSE
            self._answers[f"{'connection' if kind == _CLOSE else 'channel'} {close.reply_code}"] += 1
            if close.reply_code == INTERNAL_ERROR:
                raise HarmError(f"a hostile client was told {close.reply_text}")


def _pieces(first: list[bytes], more: Iterable[bytes]) -> Iterator[bytes]:
    """Return the same bytes in pieces worth a system call."""
    gathered, size = first, 0
    for data in more:
        gathered.append(data)
        size += len(data)
        if size >= SEND_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
    yield b"".join(gathered)


def _take_frame(rest: bytearray) -> bytes | None:
    """Take a complete frame from the front, or return None. Raises HarmError if the bytes are not a frame."""
    if rest and rest[0] not in _FRAME_TYPES:
        raise HarmError(f"the node has sent {bytes(rest[:40])!r}")
    if len(rest) < _FRAME_START_BYTES:
        return None
    end = int.from_bytes(rest[3:_FRAME_START_BYTES], "big") + _FRAME_START_BYTES + 1
    if len(rest) < end:
        return None
    frame = bytes(rest[:end])
    del rest[:end]
    if frame[-1] != _FRAME_END:
        raise HarmError(f"the node has sent {frame[:40]!r}")
    return frame


def _put(path: str, body: Any) -> Request:
    return Request("PUT", f"/api/{path}", json.dumps(body).encode())


def _trouble(node: ClusterNode) -> str:
    """Return the first line of the node's log about an error of the node's own, or ""."""
    lines = node.log.read_text(errors="replace").splitlines()
    return next((line[:300] for line in lines if TROUBLE.search(line) or _ERROR.search(line)), "")


def compare_states(nodes: Sequence[tuple[str, Path]]) -> int:
    """Compare the checkpoints of equal index of stopped nodes; return how many were compared.

    Raises HarmError if two of them differ, or if a node that starts from a checkpoint would have a different state.
    """
    seen: dict[int, tuple[str, bytes]] = {}
    compared = 0
    for name, directory in nodes:
        disk: Any = ReadOnlyDisk(directory / "data" / "groups" / "0")
        for index in list_checkpoints(disk, "log"):
            identity = Owner("qq", name, 0).key()
            body = read_checkpoint(disk, f"log/{checkpoint_name(index)}", identity).body
            other, known = seen.setdefault(index, (name, body))
            if known != body:
                raise HarmError(f"{other} and {name} have different states at index {index}")
            compared += other != name
    for index, (name, body) in seen.items():
        state = GroupState(QueueMachine())
        state.load(body)
        if state.freeze().dump() != body:
            raise HarmError(f"a node that begins with the state of {name} at index {index} has another one")
    return compared
