"""Which stuck dead letters a leader looks at, and when again."""

from __future__ import annotations

import pytest

from qq.machine.protocol import commands as c
from qq.machine.queue.queue import UNROUTED
from qq.sessions import stuck_dead_letters
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
    world.examine()
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
