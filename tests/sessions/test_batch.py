"""Work that would cost the nodes too much at once is divided into several batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest

from qq.machine.handlers.cost_estimate import BATCH_STEPS_MAX
from qq.machine.machine import QueueMachine
from qq.machine.protocol.codec import decode_commands, encode_batch
from qq.machine.protocol.commands import BindQueue, Command, DeclareQueue, DeleteQueue, Enqueue
from qq.sessions.lanes import Lane
from qq.sessions.pending_requests import OpenEnqueue
from qq.sessions.submissions import BATCHES_IN_FLIGHT_MAX, Submissions
from qq.stored.content import content_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.group.group import Group
    from cluster.runtime.ports import Runtime
    from qq.sessions.ports import Publisher


class Connection:
    vhost = "/"

    def __init__(self) -> None:
        self.lane = Lane()

    def count_uncommitted(self, size: int) -> None:
        pass


@dataclass(eq=False)
class Client:
    """A channel, with the interface that submissions use."""

    session: int = 1
    number: int = 1
    confirming: bool = True
    published: int = 0
    has_failed: bool = False
    confirmed: list[int] = field(default_factory=list)
    connection: Connection = field(default_factory=Connection)

    def confirm(self, published: int) -> None:
        self.confirmed.append(published)


class World:
    """A node whose batches the test applies."""

    def __init__(self, queues: int, *bindings: Callable[[str], Command]) -> None:
        self.now_s = 0.0
        self.machine = QueueMachine(content_of)
        self.batches: list[tuple[bytes, int]] = []
        self.client = Client()
        self._callbacks: list[Callable[[], None]] = []
        self.submissions = Submissions(
            "n1", cast("Group", self), self.machine, cast("Runtime", self), publish_timeout_s=0.0
        )
        self.submissions.applied(0)
        names = [f"q{number}" for number in range(queues)]
        declare = [DeclareQueue(1, 1, name, False, True, False, False, False, {}) for name in names]
        bind = [make(name) for name in names for make in bindings]
        self.machine.apply_batch("n1", 1, 0, 7, b"".join(encode_batch([*declare, *bind], [])))
        self.machine.end_entry(7)
        self.applied = 0

    can_read = False

    def propose(self, payload: Sequence[bytes], weight: int, *, may_wait: bool = False) -> int:
        self.batches.append((b"".join(payload), weight))
        return len(self.batches)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def monotonic(self) -> float:
        return self.now_s

    def call_later(self, _delay_s: float, _callback: Callable[[], None]) -> None:
        """Timers never fire: batches wait until earlier batches are applied."""

    def turn(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def apply(self) -> list[Command]:
        """Have the next batch applied."""
        payload, _ = self.batches[self.applied]
        self.applied += 1
        assert len(self.batches) - self.applied < BATCHES_IN_FLIGHT_MAX
        self.machine.apply_batch("n1", 1 + self.applied, 0, 7, payload)
        self.machine.end_entry(7)
        self.submissions.applied(self.applied)
        return decode_commands(payload)

    def publish(self, exchange: str, key: str, messages: list[bytes]) -> None:
        client = self.client
        run = OpenEnqueue(cast("Publisher", client), client.published + 1, exchange, key, False, None)
        client.published += len(messages)
        self.submissions.publish(run, messages, is_new=True)


def to_fanout(name: str) -> Command:
    return BindQueue(1, 1, name, "amq.fanout", "", {})


def test_messages_for_many_queues_are_split_into_batches() -> None:
    world = World(600, to_fanout)
    for number in range(20):
        world.publish("amq.fanout", str(number % 2), [b"x"])
    world.turn()
    published = 0
    while world.applied < len(world.batches):
        commands = world.apply()
        assert len(commands) * 600 * 4 <= BATCH_STEPS_MAX
        published += len(commands)
        assert world.client.confirmed[-1] == published
    assert published == 20
    ready = world.machine.vhosts["/"].queues["q7"].backlog.browse(0, 20)
    assert sum(each.count for each in ready) == 20
    assert [(each.index, each.slot) for each in ready] == sorted((each.index, each.slot) for each in ready)


def test_waiting_time_of_publishes_is_measured() -> None:
    world = World(1)
    times = world.submissions.queueing_times
    world.publish("", "q0", [b"x"] * 5)
    world.now_s = 0.003
    world.publish("", "q0", [b"x"])
    world.now_s = 0.004
    world.turn()
    assert sum(times.counts) == 2  # two runs, and not six messages
    assert times.total == pytest.approx(0.004 + 0.001)


def test_message_above_a_batch_limit_weighs_its_cost() -> None:
    world = World(5000, to_fanout)
    world.publish("", "q0", [b"x"])
    world.publish("amq.fanout", "", [b"x"])
    world.publish("", "q0", [b"x"])
    world.turn()
    world.apply()
    world.apply()
    world.apply()
    assert [weight for _, weight in world.batches] == [0, 22, 0]


def message(headers: bytes) -> bytes:
    """The stored form of an empty message with these headers, packed."""
    table = len(headers).to_bytes(4, "big") + headers
    payload = b"\x00\x3c\x00\x00" + bytes(8) + b"\x20\x00" + table
    return b"\x02\x00\x01" + len(payload).to_bytes(4, "big") + payload + b"\xce"


def test_content_routed_messages_are_counted_individually() -> None:
    world = World(500, lambda name: BindQueue(1, 1, name, "amq.headers", "", {"to": "all"}))
    all_of_them = message(b"\x02toS\x00\x00\x00\x03all")
    unroutable = message(b"\x02toS\x00\x00\x00\x03one")
    world.publish("amq.headers", "", [unroutable, all_of_them, unroutable, all_of_them, unroutable])
    world.turn()
    batches: list[list[tuple[int, int]]] = []
    while world.applied < len(world.batches):
        enqueued = [command for command in world.apply() if isinstance(command, Enqueue)]
        batches.append([(command.first_seq, command.count) for command in enqueued])
    assert world.machine.vhosts["/"].queues["q1"].ready == 2
    assert world.client.confirmed[-1] == 5
    assert batches == [[(1, 3)], [(4, 2)]]


def test_deletion_of_a_queue_costs_its_bindings() -> None:
    def binding(key: int) -> Callable[[str], Command]:
        return lambda name: BindQueue(1, 1, name, "amq.direct", str(key), {})

    world = World(2, *map(binding, range(300)))
    for name in ("q0", "q1"):
        world.submissions.add(DeleteQueue(1, 1, name, False, False))
    world.turn()
    while world.applied < len(world.batches):
        world.apply()
    assert [weight for _, weight in world.batches] == [3, 3]


def test_messages_that_cost_each_their_part_fill_batches() -> None:
    """A long run for a queue with a limit in octets once went one message at a time, because the whole run did not
    fit.
    """
    world = World(1)
    arguments = {"x-max-length-bytes": 10**9}
    world.submissions.add(DeclareQueue(1, 1, "limited", False, True, False, False, False, arguments))
    world.turn()
    world.apply()
    world.publish("", "limited", [b"x"] * 10_000)
    world.turn()
    while world.applied < len(world.batches):
        world.apply()
    assert world.client.confirmed[-1] == world.machine.vhosts["/"].queues["limited"].ready == 10_000
    assert len(world.batches) == 1 + 5


def test_new_keys_with_short_routes_share_batches() -> None:
    """Once each counted as the most expensive message, as soon as some hundred came in a pass of the loop."""
    world = World(1, lambda name: BindQueue(1, 1, name, "amq.topic", "orders.*.created", {}))
    for number in range(3000):
        world.publish("amq.topic", f"orders.{number}.created", [b"x"])
    world.turn()
    while world.applied < len(world.batches):
        world.apply()
    assert world.machine.vhosts["/"].queues["q0"].ready == 3000
    assert len(world.batches) < 30


def test_cached_long_route_counts_as_if_it_were_not_cached() -> None:
    pattern = ".".join(["#", "*"] * 60)
    world = World(1, *[partial(bound, key=f"{number}.{pattern}") for number in range(100)])
    keys = [f"{number}" + ".a" * 120 for number in range(30)]
    routes = [world.machine.vhosts["/"].route("amq.topic", key) for key in keys]
    assert all(map(len, routes))
    for key in keys:
        world.publish("amq.topic", key, [b"x"])
    world.turn()
    while world.applied < len(world.batches):
        world.apply()
    assert len(world.batches) == len(keys)
    assert min(weight for _, weight in world.batches) > 0


def test_a_long_way_counts_once_in_a_turn() -> None:
    pattern = ".".join(["#", "*"] * 60)
    world = World(1, *[partial(bound, key=f"{number}.{pattern}") for number in range(100)])
    for _ in range(50):
        world.publish("amq.topic", "1" + ".a" * 120, [b"x"])
    world.turn()
    while world.applied < len(world.batches):
        world.apply()
    assert len(world.batches) == 2


def bound(name: str, key: str) -> Command:
    return BindQueue(1, 1, name, "amq.topic", key, {})
