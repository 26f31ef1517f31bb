"""Which stuck dead letters a leader looks at, when again, and how it reads them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, cast

import pytest
from pamqp import frame, header
from pamqp.commands import Basic

from qq.machine.machine import Room
from qq.machine.protocol import commands as c
from qq.machine.queue.queue import UNROUTED
from qq.machine.queue.stuck_lines import Target
from qq.ranges import Range
from qq.sessions import stuck_dead_letters
from qq.sessions.dead_letters import DeadLetters
from qq.sessions.entries import Messages
from qq.sessions.lanes import Lane
from qq.sessions.stuck_dead_letters import StuckDeadLetters
from tests.machine.machine_driver import Driver, declare, publish

LEVEL = {
    "x_queue_type": "quorum",
    "x_message_ttl": 1,
    "x_dead_letter_exchange": "amq.direct",
    "x_dead_letter_strategy": "at-least-once",
    "x_overflow": "reject-publish",
}
FULL = {"x_max_length": 1, "x_overflow": "reject-publish"}

Looked = list[tuple[str, str, int, bool]]
"""Queue, target, number of messages, and whether they are tried in any case."""


class World:
    def __init__(self, *levels: str, targets: int) -> None:
        self.driver = Driver()
        self.driver.machine.raise_to(11)
        self.levels = levels
        self.targets = [f"full {number}" for number in range(targets)]
        self.driver.apply(
            *(declare(level, **LEVEL) for level in levels),
            *(declare(target, **FULL) for target in self.targets),
            *(bind(target) for target in self.targets),
            *(c.BindQueue(1, 1, level, "amq.fanout", "", {}) for level in levels),
        )
        self.stuck = StuckDeadLetters(self.driver.machine)

    def die(self, *keys: str, count: int = 1) -> None:
        self.driver.apply(*(publish(count, key, exchange="amq.fanout") for key in keys))
        self.driver.time_ms += 2
        self.driver.lead()

    def examine(self) -> Looked:
        examined_messages: Looked = []
        for queue, target, pending, count_max, is_certain in self.stuck.candidates():
            count = 0
            for command in self.driver.log.dead_letters_of(pending):
                part = command._replace(count=min(command.count, count_max - count))
                count += part.count
                if not is_certain:
                    self.stuck.examined(queue, part)
                if count == count_max:
                    break
            examined_messages.append((queue.name, target, count, is_certain))
        return examined_messages


def bind(name: str) -> c.BindQueue:
    return c.BindQueue(1, 1, name, "amq.direct", name, {})


def test_full_target_is_skipped_for_a_target_with_room() -> None:
    world = World("level", targets=2)
    world.die("full 0", "full 1", count=4)
    world.examine()
    assert world.examine() == []
    world.driver.apply(c.PurgeQueue(1, 1, "full 1"))
    assert world.examine() == [("level", "full 1", 1, True)]


def test_pass_looks_at_each_stuck_message_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck_dead_letters, "EXAMINED_MAX", 10)
    world = World("one", "two", targets=1)
    world.die("gone", "full 0", count=16)
    passes = [world.examine() for _ in range(8)]
    assert all(sum(count for _, _, count, _ in examine) <= 10 for examine in passes)
    examined = [
        (level, target) for examine in passes for level, target, count, _ in examine for _ in range(count)
    ]
    lines = {("one", UNROUTED): 16, ("two", UNROUTED): 16, ("one", "full 0"): 15, ("two", "full 0"): 16}
    assert {line: examined.count(line) for line in lines} == lines
    assert passes[-1] == []


@pytest.mark.parametrize(
    "command",
    [
        bind("level"),
        declare("new"),
        c.DeleteQueue(1, 1, "full 0", False, False),
        c.PutPolicy("/", "p", False, "^level$", "queues", 0, {"dead-letter-routing-key": "x"}),
    ],
    ids=["binding", "queue", "deletion", "policy"],
)
def test_change_of_routes_or_settings_begins_a_pass(command: c.Command) -> None:
    world = World("level", targets=1)
    world.die("gone", "full 0", count=3)
    world.examine()
    assert world.examine() == []
    world.driver.apply(command)
    assert sum(count for _, _, count, _ in world.examine()) == 5
    assert world.examine() == []


def test_look_covers_a_bounded_number_of_lines_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck_dead_letters, "LINES_MAX", 2)
    world = World("level", targets=5)
    world.die(*world.targets, count=2)
    while world.examine():
        pass
    world.driver.apply(*(c.PurgeQueue(1, 1, target) for target in world.targets))
    passes = [world.examine() for _ in range(3)]
    assert [len(examine) for examine in passes] == [2, 2, 2]
    assert {target for examine in passes for _, target, _, _ in examine} == set(world.targets)


def test_new_leader_examines_all_stuck_messages() -> None:
    world = World("level", targets=0)
    world.die("gone", count=3)
    world.examine()
    world.stuck.forget()
    assert world.examine() == [("level", UNROUTED, 3, False)]


@pytest.mark.parametrize("full", [{"x_max_length": 1}, {"x_max_length_bytes": 1}], ids=["messages", "bytes"])
def test_idle_look_is_bounded_with_many_queues(monkeypatch: pytest.MonkeyPatch, full: dict[str, int]) -> None:
    for name in ("TARGETS_MAX", "LINES_MAX", "QUEUES_MAX"):
        monkeypatch.setattr(stuck_dead_letters, name, 10)
    world = World(*(f"level {number}" for number in range(30)), targets=30)
    world.driver.apply(
        *(c.DeleteQueue(1, 1, target, False, False) for target in world.targets),
        *(declare(target, **full, x_overflow="reject-publish") for target in world.targets),
        *(bind(target) for target in world.targets),
    )
    world.die(*world.targets, count=2)
    while sum(len(world.examine()) for _ in range(10)):
        pass
    machine = cast("Any", CountingMachine(world.driver.machine))
    world.stuck._machine = machine
    for _ in range(10):
        assert world.examine() == []
    assert 0 < machine.count <= 10 * (10 + 10 + 10)


class CountingMachine:
    """A machine that counts the targets and lines that are looked at."""

    def __init__(self, machine: Any) -> None:
        self._machine = machine
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        self.count += name in ("room_for_stuck", "stuck_dead_letters", "vhosts")
        return getattr(self._machine, name)


def test_target_that_refuses_all_is_tried_less_and_less_often() -> None:
    world = World("level", targets=1)
    world.die("full 0", count=3)
    world.examine()
    world.driver.apply(c.PurgeQueue(1, 1, "full 0"))
    target = Target("/", "full 0")
    tried: list[int] = []
    for number in range(200):
        world.stuck.round = number
        if world.examine():
            tried.append(number)
            world.stuck.tried(target, moved=False)
    assert tried == [0, 1, 3, 7, 15, 31, 63, 113, 163]
    world.driver.apply(c.PutPolicy("/", "p", False, "^full", "queues", 0, {"max-length": 0}))
    assert world.examine() == []
    world.driver.apply(c.DeletePolicy("/", "p", False))
    assert len(world.examine()) == 1


def test_room_in_bytes_is_shared_by_the_lines_of_a_target() -> None:
    room = Room(1, 9, 250)
    assert room.fits(100) == 3
    room.take(3, 100)
    assert (room.fits(100), room.fits(50), room.fits(0)) == (0, 1, 7)
    assert Room(0, 9, -1).fits(0) == 0
    assert Room(0, 9, None).fits(1000) == 9


class Node:
    """Entries on a disk with a cache of a few entries, and submissions that are applied later."""

    def __init__(self, driver: Driver, cached_max: int) -> None:
        self.driver = driver
        self.cached_max = cached_max
        self.cached: OrderedDict[int, None] = OrderedDict()
        self.reads = 0
        self.soon: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []
        self._step: list[c.Command] = []
        self.dead_letters = DeadLetters(driver.machine, *[cast("Any", self)] * 3)

    def messages(self, part: Range, *, frames_max: int) -> list[Messages] | None:
        assert frames_max == 0
        if part.index not in self.cached:
            return None
        published = self.driver.log.published[part.index, part.slot]
        stored = frame.marshal(header.ContentHeader(0, 0, Basic.Properties()), 1)
        return [Messages(published.exchange, published.routing_key, 1, [stored] * part.count)]

    def load(self, indexes: list[int], done: Callable[[], None]) -> None:
        def read() -> None:
            self.keep(indexes[0])
            done()

        self.reads += 1
        self.soon.append(read)

    def keep(self, index: int) -> None:
        self.cached[index] = None
        self.cached.move_to_end(index)
        while len(self.cached) > self.cached_max:
            self.cached.popitem(last=False)

    def cost_of(self, _command: c.Command) -> int:
        return 100

    def add(self, command: c.Command, _lane: Lane) -> None:
        self._step.append(command)

    def read_barrier(self, callback: Callable[[], None], _lane: Lane) -> None:
        def apply() -> None:
            step, self._step = self._step, []
            self.driver.apply(*step)
            callback()

        self.soon.append(apply)

    def call_later(self, _delay_s: float, callback: Callable[[], None]) -> None:
        self.later.append(callback)

    def go_on(self) -> None:
        """Let the next thing happen."""
        waiting = self.soon or self.later
        if waiting:
            waiting.pop(0)()


def many_stuck(count: int) -> tuple[World, Node]:
    """Return a world with a stuck dead letter in each of the queues, outside memory."""
    world = World(*(f"level {number}" for number in range(count)), targets=1)
    world.driver.apply(*(c.UnbindQueue(1, 1, level, "amq.fanout", "", {}) for level in world.levels))
    world.driver.apply(publish(1, "full 0", exchange="amq.direct"))
    for level in world.levels:
        world.driver.apply(c.BindQueue(1, 1, level, "amq.fanout", "", {}))
        world.driver.apply(publish(1, "full 0", exchange="amq.fanout"))
        world.driver.apply(c.UnbindQueue(1, 1, level, "amq.fanout", "", {}))
    world.driver.time_ms += 2
    world.driver.lead()
    return world, Node(world.driver, cached_max=2)


def test_stuck_dead_letters_move_when_memory_holds_few_entries() -> None:
    world, node = many_stuck(5)
    assert len(world.driver.machine.stuck_lines.queues) == 5
    node.dead_letters.set_leading(True)
    for _ in range(200):
        node.go_on()  # the passes
    node.reads = 0
    world.driver.apply(c.DeleteQueue(1, 1, "full 0", False, False), declare("full 0"), bind("full 0"))
    for _ in range(200):
        node.go_on()
    assert not world.driver.machine.stuck_lines.queues
    assert node.reads <= 10


def test_dead_letters_move_while_stuck_letters_are_read() -> None:
    world, node = many_stuck(5)
    machine = world.driver.machine
    node.dead_letters.set_leading(True)
    for _ in range(200):
        node.go_on()
    world.driver.apply(c.DeleteQueue(1, 1, "full 0", False, False), declare("full 0"), bind("full 0"))
    while not node.soon:
        node.go_on()
    assert node.reads
    waiting, node.soon = node.soon, []  # the disk is slow
    world.driver.apply(declare("there"), bind("there"), c.BindQueue(1, 1, "level 0", "amq.fanout", "", {}))
    world.driver.apply(publish(1, "there", exchange="amq.fanout"))
    node.keep(world.driver.index)
    world.driver.time_ms += 2
    world.driver.apply()
    node.dead_letters.submit_step()
    node.go_on()
    assert machine.vhosts["/"].queues["there"].ready == 1
    node.soon += waiting
    for _ in range(200):
        node.go_on()
    assert not machine.stuck_lines.queues


def test_queues_take_turns_when_their_entries_must_be_read() -> None:
    world = World("long", "short", targets=0)
    driver = world.driver
    driver.apply(declare("there"), bind("there"), c.UnbindQueue(1, 1, "short", "amq.fanout", "", {}))
    for _ in range(9):
        driver.apply(publish(1, "there", exchange="amq.fanout"))
    driver.apply(c.BindQueue(1, 1, "short", "amq.fanout", "", {}))
    driver.apply(c.UnbindQueue(1, 1, "long", "amq.fanout", "", {}))
    driver.apply(publish(1, "there", exchange="amq.fanout"))
    driver.time_ms += 2
    driver.apply()
    node = Node(driver, cached_max=2)
    node.dead_letters.set_leading(True)
    queues = driver.machine.vhosts["/"].queues
    while queues["short"].dead_count and (node.soon or node.later):
        node.go_on()
    assert queues["long"].dead_count >= 5
    while queues["long"].dead_count and node.soon:
        node.go_on()
    assert queues["there"].ready == 10
