"""Runs a seed of the fuzzer: a node, many clients with damaged conversations, and a healthy client.

Invariant: all sent bytes are a function of the seed. The node must live and log no error of its own. It must answer
only frames, hang up on clients that hung up, and serve the healthy client. Its memory must stay within a bound, and no
socket may remain.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from pamqp import commands, header
from pamqp.body import ContentBody

from chaos.fuzz.answers import Answers, Answers091, Answers10, Frames091, HarmError
from chaos.fuzz.conversations import PROTOCOL_HEADER, QUEUE, conversations, marshal, message
from chaos.fuzz.conversations10 import FRAME_MAX, SMALL_FRAME_MAX, conversations10, opening10
from chaos.fuzz.mutations import CHANGES_091, divided, mutate
from chaos.fuzz.mutations10 import CHANGES10
from chaos.fuzz.operators import Request, operators_request
from qq.amqp10.connection import SASL_HEADER
from qq.testing import LocalCluster

if TYPE_CHECKING:
    from types import TracebackType

    from pamqp.frame import FrameTypes

    from qq.testing import ClusterNode

F = TypeVar("F", bound="FrameTypes")

TROUBLE = re.compile(r"Traceback|CRITICAL|never retrieved|unexpected:", re.IGNORECASE)
"""Log lines that show an error of the node's own."""
CHECK_EVERY = 200
"""Clients between two checks of the node."""
GROWTH_MIB_MAX = 200
"""MiB that damaged clients may leave in a node: unfinished messages, queues with damaged names, the log."""
WAIT_S = 10.0
"""Seconds that the node may take to answer, to hang up, and to close the sockets of disconnected clients."""
AT_A_TIME = 16
"""Clients that send at the same time."""
QUIET_S = 0.2
"""Seconds of silence after which a listening client takes the node's answers as complete."""
PAUSE_S = 0.03
"""Seconds of silence after which a client goes on that waits for the node in the middle of its conversation."""
PAUSES_MAX = 10
"""Such pauses before the node has answered an attach, which perhaps it never does."""
LEFT_OPEN_MAX = 30
"""Clients, at a time, that stop in the middle and keep their connection open."""
BY_AND_BY = 0.1
"""Share of the clients that send in pieces."""
_GET = Request(
    "POST",
    f"/api/queues/%2F/{QUEUE}/get",
    b'{"count": 1000, "ackmode": "ack_requeue_false", "encoding": "auto"}',
)
_LINUX_FIGURES = Path("/proc")


class FuzzOutcome(NamedTuple):
    """The result of a seed."""

    seed: int
    clients: int
    growth_mib: int
    closes: Counter[str]
    """Number of closes by the node, by reply code and by connection or channel."""
    violation: str


def run_seed(seed: int, clients: int, until_s: float) -> FuzzOutcome:
    """Send `clients` damaged conversations, or fewer after `until_s` on the monotonic clock; return the result."""
    closes: Counter[str] = Counter()
    sent = growth_mib = 0
    violation = ""
    with LocalCluster(nodes=1) as cluster, _Watch(cluster.nodes[0]) as watch:
        try:
            while sent < clients and (time.monotonic() < until_s or not sent):
                numbers = range(sent + 1, min(sent + CHECK_EVERY, clients) + 1)
                closes += watch.send_all(seed, numbers)
                sent = numbers[-1]
                growth_mib = watch.check()
            watch.hang_up()
            watch.check_sockets()
        except (HarmError, OSError) as error:
            violation = f"up to client {sent + CHECK_EVERY}: {error or type(error).__name__}"
    return FuzzOutcome(seed, sent, growth_mib, closes, violation)


def served(port: int) -> Counter[str]:
    """Send every conversation undamaged, wait until it is served, and return the closes by the node."""
    closes: Counter[str] = Counter()
    for conversation in (*conversations(), *conversations10()):
        pieces = divided(conversation.frames)
        answers = _answers(pieces, closes)
        with _connect(port, 1) as client:
            for piece in pieces[:-1]:
                client.sendall(piece)
                _pause(client, answers)
            client.sendall(pieces[-1])
            _read_to_end(client, answers, quiet_s=0.3)
    return closes


def _answers(pieces: list[bytes], closes: Counter[str]) -> Answers:
    """Return a reader of the answers to a client that sends these pieces."""
    octets = b"".join(pieces[:1])
    if octets.startswith(PROTOCOL_HEADER) or not octets.startswith(SASL_HEADER):
        return Answers091(closes)
    is_small = octets.startswith(b"".join(opening10(SMALL_FRAME_MAX)))
    return Answers10(closes, SMALL_FRAME_MAX if is_small else FRAME_MAX)


class _Watch:
    """The clients of a seed, and their view of the node."""

    def __init__(self, node: ClusterNode) -> None:
        self._node = node
        self._conversations, self._conversations10 = conversations(), conversations10()
        self._left_open: list[socket.socket] = []
        self._pool = ThreadPoolExecutor(AT_A_TIME)

    def __enter__(self) -> Self:
        self._good = _GoodClient(self._node.amqp_port)
        self._good.round_trip()
        self._rss_mib, self._sockets = self._memory_mib(), self._open_sockets()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()
        self.hang_up()
        self._good.close()

    def send_all(self, seed: int, numbers: range) -> Counter[str]:
        """Send many damaged conversations, some at a time; return the closes by the node."""
        closes: Counter[str] = Counter()
        for one, stays in self._pool.map(partial(self._send, seed), numbers):
            closes += one
            if stays is not None:
                self._left_open.append(stays)
        for client in self._left_open[:-LEFT_OPEN_MAX]:
            client.close()
        del self._left_open[:-LEFT_OPEN_MAX]
        return closes

    def _send(self, seed: int, number: int) -> tuple[Counter[str], socket.socket | None]:
        """Send a damaged conversation; return the closes by the node, and the socket if it stays open."""
        random = Random(f"{seed}-{number}")
        is_amqp10 = random.random() < 1 / 2
        pieces = (
            mutate(random, self._conversations10, CHANGES10)
            if is_amqp10
            else mutate(random, self._conversations, CHANGES_091)
        )
        end = random.choice(("half-close", "listen", "listen", "reset", "stay"))
        closes: Counter[str] = Counter()
        with (
            contextlib.ExitStack() as stack,
            contextlib.suppress(ConnectionError),
        ):  # the node may hang up at any time
            client = stack.enter_context(_connect(self._node.amqp_port, number))
            answers = _answers(pieces, closes)
            for piece in pieces[:-1]:
                _write(random, client, piece)
                if _pause(client, answers):
                    return closes, None
            _write(random, client, b"".join(pieces[-1:]))
            if end == "stay":
                stack.pop_all()
                return closes, client
            self._end(client, end, answers)
        return closes, None

    @staticmethod
    def _end(client: socket.socket, end: str, answers: Answers) -> None:
        if end == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        if end == "listen" and _read_to_end(client, answers, QUIET_S):
            return
        client.shutdown(socket.SHUT_WR)
        if not _read_to_end(client, answers, WAIT_S):
            raise HarmError(f"the node does not hang up in {WAIT_S:g} s")

    def hang_up(self) -> None:
        while self._left_open:
            self._left_open.pop().close()

    def check(self) -> int:
        """Check the node, and return its memory growth in MiB. Raises HarmError."""
        if not self._node.running:
            raise HarmError("the node is gone")
        trouble = [line for line in self._node.log.read_text().splitlines() if TROUBLE.search(line)]
        if trouble:
            raise HarmError(f"the node logs {trouble[0]}")
        self._good.round_trip()
        # Messages of damaged clients, as HTTP shows them. The queue was perhaps deleted.
        operators_request(self._node, _GET)
        growth_mib = self._memory_mib() - self._rss_mib
        if growth_mib > GROWTH_MIB_MAX:
            raise HarmError(f"the node has grown by {growth_mib} MiB")
        return growth_mib

    def check_sockets(self) -> None:
        """Wait until all sockets of the clients are closed. Raises HarmError."""
        until_s = time.monotonic() + WAIT_S
        while (left := self._open_sockets() - self._sockets) > 0:
            if time.monotonic() > until_s:
                raise HarmError(f"{left} sockets are left")
            time.sleep(0.05)

    def _memory_mib(self) -> int:
        """Return the memory of the node's process in MiB on Linux, and 0 elsewhere."""
        status = _LINUX_FIGURES / str(self._node.pid) / "status"
        found = re.search(r"VmRSS:\s+(\d+) kB", status.read_text()) if status.exists() else None
        return int(found[1]) // 1024 if found else 0

    def _open_sockets(self) -> int:
        names: list[str] = []
        files = _LINUX_FIGURES / str(self._node.pid) / "fd"
        for file in files.iterdir() if files.exists() else ():
            with contextlib.suppress(FileNotFoundError):
                names.append(str(file.readlink()))
        return sum(name.startswith("socket:") for name in names)


class _GoodClient:
    """A healthy client with a queue of its own."""

    def __init__(self, port: int) -> None:
        self._socket = _connect(port, 0)
        self._frames = Frames091()
        [opening, *_] = conversations()
        declare = commands.Queue.Declare(queue="", exclusive=True)
        self._socket.sendall(
            b"".join((*opening.frames[: opening.opening], marshal(1, commands.Confirm.Select())))
        )
        self._expect(commands.Confirm.SelectOk)
        self._socket.sendall(marshal(1, declare))
        self._queue = str(self._expect(commands.Queue.DeclareOk).queue)
        self._count = 0

    def close(self) -> None:
        self._socket.close()

    def round_trip(self) -> None:
        """Publish a message, wait for its confirm, and get it."""
        self._count += 1
        body = b"%d" % self._count
        self._socket.sendall(b"".join(message(1, "", self._queue, body)))
        self._expect(commands.Basic.Ack)
        self._socket.sendall(marshal(1, commands.Basic.Get(queue=self._queue, no_ack=True)))
        if self._expect(ContentBody).value != body:
            raise HarmError("a client without fault has got another message")

    def _expect(self, kind: type[F]) -> F:
        passed = (commands.Connection.Start, commands.Connection.Tune, commands.Connection.OpenOk)
        passed += (commands.Channel.OpenOk, commands.Basic.GetOk, header.ContentHeader)
        while True:
            frame = self._frames.next()
            if frame is None:
                self._socket.settimeout(WAIT_S)
                data = self._socket.recv(65536)
                if not data:
                    raise HarmError("a client without fault was hung up on")
                self._frames.add(data)
            elif isinstance(frame, kind):
                return frame
            elif not isinstance(frame, passed):
                raise HarmError(f"a client without fault was told {frame!r}")


def _connect(port: int, number: int) -> socket.socket:
    """Open a socket from an address of its own, because a failed login delays all clients of its address."""
    source = (f"127.{1 + (number >> 16)}.{number >> 8 & 255}.{number & 255}", 0)
    client = socket.create_connection(("127.0.0.1", port), WAIT_S, source_address=source)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def _write(random: Random, client: socket.socket, data: bytes) -> None:
    size = random.choice((1, 7, 100)) if random.random() < BY_AND_BY else len(data) or 1
    for at in range(0, len(data), size):
        client.sendall(data[at : at + size])


def _pause(client: socket.socket, answers: Answers) -> bool:
    """Read until the node is silent, after its login if that takes long; return whether it has hung up."""
    for _ in range(PAUSES_MAX):
        if _read_to_end(client, answers, PAUSE_S):
            return True
        if not isinstance(answers, Answers10) or answers.has_links:
            break
    return False


def _read_to_end(client: socket.socket, answers: Answers, quiet_s: float) -> bool:
    """Read until the node hangs up or is silent for `quiet_s`; return whether it has hung up."""
    client.settimeout(quiet_s)
    try:
        while data := client.recv(65536):
            answers.add(data)
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    if answers.rest:
        raise HarmError(f"the node has ended in the middle of a frame: {answers.rest[:40]!r}")
    return True
