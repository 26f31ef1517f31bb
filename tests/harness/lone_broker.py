"""A broker with real sockets and a real machine on a fake group, which applies submitted batches at once.

Tests raise rare events of a group: an alarm, an installed snapshot.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from ipaddress import ip_network
from math import inf
from types import TracebackType
from typing import Any, Self, TypeVar
from unittest.mock import patch

from cluster.log.entry import batches_of, make_batch, make_entry
from cluster.log.segment import EntryNotFound
from cluster.net.connection_slots import ConnectionSlots, SlotLimits
from cluster.state.apply import Confirmed, Evicted
from qq.amqp.connection import Settings
from qq.amqp_server.channel.channel import Channel
from qq.amqp_server.connection import served
from qq.amqp_server.server import AmqpServer
from qq.client_sockets.listener import ClientPort, Tls
from qq.client_sockets.partial_messages import PartialMessages
from qq.client_sockets.protocol_choice import ProtocolChooser
from qq.client_sockets.shared import ClientSockets, connection_log
from qq.client_sockets.turns import ProcessorTurns
from qq.config import ClientTls, NodeLimits
from qq.machine.machine import QueueMachine
from qq.machine.protocol.codec import encode_batch
from qq.machine.protocol.commands import DEFAULT_VHOST, Command, PutUser, SetPermissions
from qq.machine.protocol.versions import VERSIONS
from qq.sessions import submissions
from qq.sessions.broker import Broker, QueueReplica
from qq.sessions.login import hash_password
from qq.stored.content import content_of
from qq.tls import contexts as tls

T = TypeVar("T")
NAME = "n1"
SALT = b"salt"


def wait_until(condition: Callable[[], bool], event: str) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s, f"waited for {event}"
        time.sleep(0.01)


def drop(connection: Any) -> None:
    """Drop a client's socket at once, with its methods that are not carried out; on the broker's loop."""
    connection._end_all_sessions()
    connection._drop_input()
    connection._transport.abort()


class LoneGroup:
    """A fake group that keeps its entries.

    With `skipping` it applies batches without reporting them to the broker, like a snapshot. With `holding` it
    applies no batches.
    """

    def __init__(self, machine: QueueMachine, loop: asyncio.AbstractEventLoop) -> None:
        self.machine = machine
        self.pending_bytes = 0
        self.skipping = self.holding = False
        self.keeps_waiting_batches = False
        """Whether a batch that may wait is kept until the next batch."""
        self._kept: list[tuple[int, Any]] = []
        self.why: str | None = "no majority: n2, n3 do not answer"
        """Why a node that is `holding` commits nothing."""
        self.lost_reads: list[Callable[[], None]] | None = None
        """If it is a list: reads begin and stay unanswered. It keeps the functions that tell of their failure."""
        self.entries: dict[int, bytes] = {}
        self._loop = loop
        self.last_index = 1
        self._sequence = self._applied = 0
        self._held: list[tuple[int, Any]] = []
        self.failures: list[Exception] = []
        self.disk_failed = self.failures.append

    def why_undecided(self) -> str | None:
        return self.why if self.holding else None

    def undecided(self) -> list[str]:
        return []

    @property
    def can_read(self) -> bool:
        return self.lost_reads is not None or (not self.holding and not self.skipping)

    def read(self, done: Callable[[], None], failed: Callable[[], None]) -> None:
        """Call `done` soon, since a lone node has applied each entry that is committed."""
        if self.lost_reads is not None:
            self.lost_reads.append(failed)
        else:
            self._loop.call_soon(done)

    def send_message(self, peer: str, data: Sequence[Any]) -> bool:
        return False

    def receive_messages(self, receive: Callable[[str, bytes], None]) -> None:
        """A lone node gets no messages of peers."""

    def start(self, broker: Broker) -> None:
        self._broker = broker

    def propose(self, payload: Any, weight: int = 0, *, may_wait: bool = False) -> int:
        self._sequence += 1
        self._kept.append((self._sequence, payload))
        if not (may_wait and self.keeps_waiting_batches):
            for batch in self._kept:
                self._loop.call_soon(self._apply, *batch)
            self._kept.clear()
        return self._sequence

    def release(self) -> None:
        self.holding = False
        held, self._held = self._held, []
        for sequence, payload in held:
            self._apply(sequence, payload)

    def drop_held(self) -> None:
        self.holding = False
        self._held.clear()

    def _apply(self, sequence: int, payload: Any) -> None:
        if self.holding:
            self._held.append((sequence, payload))
            return
        self.last_index += 1
        self._applied = sequence
        entry = self.entries[self.last_index] = make_entry(0, [make_batch(NAME, 1, sequence, payload)])
        [batch] = batches_of(entry)
        effects: list[Any] = [
            *self.machine.apply_batch(
                NAME, self.last_index, 0, 0, memoryview(entry)[batch.start : batch.end]
            ),
            Confirmed(sequence),
            *self.machine.end_entry(0),
        ]
        if not self.skipping:
            self._broker.applied(self.last_index, effects)

    def resume(self) -> None:
        self.skipping = False
        self._broker.resumed(self._applied, self.machine.outstanding(NAME))

    # The entries, and the disk that would read those which are not in memory

    @property
    def applied_index(self) -> int:
        return self.last_index

    def payload(self, index: int) -> bytes | None:
        return self.entries.get(index)

    def read_job(self, indexes: Sequence[int], bytes_max: int) -> Callable[[], list[bytes]]:
        raise EntryNotFound(f"there is no entry {indexes[0]}")

    def submit_read(self, job: Callable[[], Any], done: Callable[[Any, None], None]) -> None:
        self._loop.call_soon(lambda: done(job(), None))


class _Runtime:
    """The part of the runtime that a broker uses."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.random = random.Random(1)
        self.call_soon = loop.call_soon
        self.call_later = loop.call_later
        self.monotonic = loop.time

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class LoneBroker:
    """Runs on a thread of its own; `call` does something on that thread."""

    def __init__(
        self,
        settings: Settings | None = None,
        tls: ClientTls | None = None,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
        new_group: type[LoneGroup] = LoneGroup,
        proxies: Sequence[str] = (),
        make_channel: Callable[[Broker, Any, int], Channel] = Channel,
        version: int = VERSIONS[1],
        partial_bytes: int = sys.maxsize,
        **limits: Any,
    ) -> None:
        self._settings = settings or Settings()
        self._tls = tls
        self._new_loop = new_loop
        self._new_group = new_group
        self._make_channel = make_channel
        self._version = version
        self._partial_bytes = partial_bytes
        self._proxies = [ip_network(network) for network in proxies]
        self._limits = NodeLimits(**limits)
        self._skipping = ExitStack()

    def __enter__(self) -> Self:
        self._loop = self._new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.amqp_port = self.await_on_loop(self._start())
        return self

    async def _start(self) -> int:
        self.machine = QueueMachine(content_of)
        self.machine.raise_to(self._version)
        guest = PutUser("guest", SALT, hash_password(SALT, b"guest"), [])
        may_do_all = SetPermissions("guest", DEFAULT_VHOST, ".*", ".*", ".*")
        self.machine.apply_batch(NAME, 1, 0, 0, b"".join(encode_batch([guest, may_do_all], [])))
        self.group = self._new_group(self.machine, self._loop)
        runtime: Any = _Runtime(self._loop)
        the_log = connection_log()
        limits = SlotLimits(self._limits.strangers_max or 512, 1000)
        self.slots = ConnectionSlots(limits, throttled_log=the_log)
        disk: Any = self.group
        replica = QueueReplica(NAME, self.machine, self.group, disk, runtime)
        self.broker = Broker(replica, ["guest"], self._limits)
        partial_messages = PartialMessages(runtime, self._partial_bytes, lambda: len(self.broker.connections))
        turns = ProcessorTurns(lambda callback, _: runtime.call_soon(callback), time.thread_time)
        sockets = ClientSockets(self.slots, the_log, partial_messages, turns, self._limits)
        self.server = AmqpServer(self.broker, self._settings, sockets, self._make_channel)
        self.served = [served(self.server)]
        """The protocols of the ports. A test may add one."""
        self.group.start(self.broker)
        self._begin()
        self._serving: list[asyncio.Task[None]] = []
        if self._tls is not None:
            self.certificates = tls.for_clients(self._tls)
            name_in = partial(tls.name_in, login_from=self._tls.cert_login_from)
            self.amqps_port = await self._listen(Tls(lambda: self.certificates.current, name_in))
        return await self._listen(None)

    def _begin(self) -> None:
        """Report the batch that a group submits by itself after each process start as applied."""
        self.broker.submissions.applied(0)

    async def _listen(self, speaks_tls: Tls | None) -> int:
        """As a node does it."""
        choose = partial(ProtocolChooser, self.broker.runtime, self.server.sockets, self.served)
        port = ClientPort(self.server.sockets, choose, speaks_tls, self._proxies)
        await port.listen("127.0.0.1", 0)
        self._serving.append(self._loop.create_task(port.serve()))
        return port.port

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._skipping.close()
        self.await_on_loop(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        assert self.group.failures == []

    async def _stop(self) -> None:
        await self.stop_listening()
        for connection in list(self.broker.connections.values()):
            drop(connection)
        while self.broker.connections:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def stop_listening(self) -> None:
        """As a node does it; on the broker's loop."""
        for serving in self._serving:
            serving.cancel()
        await asyncio.wait(self._serving)

    def await_on_loop(self, story: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(story, self._loop).result(10)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        answer: Future[T] = Future()

        def work() -> None:
            try:
                answer.set_result(function(*arguments))
            except BaseException as error:  # noqa: BLE001
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(work)
        return answer.result(10)

    def add_user(self, name: str, password: str | None) -> None:
        """Add a user with all permissions, known to this node without an entry of its own log."""
        hashed = hash_password(SALT, password.encode()) if password is not None else b""
        self.learn(PutUser(name, SALT, hashed, []), SetPermissions(name, DEFAULT_VHOST, ".*", ".*", ".*"))

    def operate(self, *commands: Command) -> None:
        """Submit commands through this node and wait until they are applied, like an operator."""
        applied = threading.Event()

        def submit() -> None:
            for command in commands:
                self.broker.submissions.add(command)
            self.broker.submissions.read_barrier(applied.set)

        self.call(submit)
        assert applied.wait(10)

    def learn(self, *commands: Command) -> None:
        """Apply commands that an operator submitted at a peer; they take effect here in a single batch."""
        batch = encode_batch(list(commands), [])
        self.call(self.machine.apply_batch, "n2", 1, 0, 0, b"".join(batch))

    def lose_messages(self, kept: int = 0) -> None:
        """Drop all entries of the log except `kept`."""
        self.group.entries = {index: entry for index, entry in self.group.entries.items() if index == kept}
        self.broker.entries._views.clear()

    def pass_some_time(self) -> None:
        """Let the loop run all callbacks, those that follow from them, and those that were put off for a moment."""
        deadline_s = time.monotonic() + 10
        for _ in range(5):
            while not self.call(self._has_run_everything):
                assert time.monotonic() < deadline_s
                time.sleep(0.001)

    def _has_run_everything(self) -> bool:
        submissions = self.broker.submissions
        return submissions._retry_s == inf and not submissions._flush_scheduled

    def alarm(self, reason: str | None) -> None:
        self.call(self.broker.alarm_changed, reason)

    def evict(self) -> None:
        """Evict the node: the cluster drops its pending batches, and the node begins a new incarnation."""
        self.group.drop_held()
        effects = self.machine.origin_down(NAME, 0, evicted=True)
        self.broker.applied(self.group.last_index, [*effects, Evicted()])
        self._begin()

    def skip(self) -> None:
        """Apply entries from now on without reporting them to the broker.

        Skipped batches stay in flight, and a busy machine may have many of them. A raised limit lets all batches be
        submitted.
        """
        self._skipping.enter_context(patch.object(submissions, "BATCHES_IN_FLIGHT_MAX", 100))
        self.group.skipping = True

    def resume(self) -> None:
        """Install the state with the skipped entries, and report entries again."""
        self._skipping.close()
        self.call(self.group.resume)
