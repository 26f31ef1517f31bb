"""At-least-once dead letters that their targets refuse: their waiting lines, and the messages behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from qq.machine.protocol import commands as c
from qq.machine.protocol.effects import Deliver
from qq.machine.queue.queue import UNROUTED
from tests.machine.likeness import differences
from tests.machine.machine_driver import Driver, consume, declare, publish, reloaded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.machine.protocol.commands import DeadLetter
    from qq.machine.queue.queue import Queue

TTL_MS = 1
LEVEL = {
    "x_queue_type": "quorum",
    "x_message_ttl": TTL_MS,
    "x_dead_letter_exchange": "amq.topic",
    "x_dead_letter_strategy": "at-least-once",
    "x_overflow": "reject-publish",
}


@pytest.fixture
def driver() -> Driver:
    return at_version(11)


def at_version(version: int) -> Driver:
    """Messages of `level` expire at once, and go to `there` and `full` by their key; `gone` leads nowhere."""
    driver = Driver()
    driver.machine.raise_to(version)
    driver.apply(
        declare("level", **LEVEL),
        declare("there"),
        declare("full", x_max_length=1, x_overflow="reject-publish"),
        *(bind(name) for name in ("there", "full")),
        c.BindQueue(1, 1, "level", "amq.fanout", "", {}),
    )
    return driver


def bind(name: str, key: str = "") -> c.BindQueue:
    return c.BindQueue(1, 1, name, "amq.topic", key or name, {})


def die(driver: Driver, *keys: str, count: int = 1) -> None:
    """Let messages with these keys die in `level`, each in an entry of its own."""
    for key in keys:
        driver.apply(publish(count, key, exchange="amq.fanout"))
    driver.time_ms += 2 * TTL_MS
    driver.lead()


def queue(driver: Driver, name: str = "level") -> Queue:
    return driver.machine.vhosts["/"].queues[name]


def ready(driver: Driver, *names: str) -> list[int]:
    return [queue(driver, name).ready for name in names]


def lines(driver: Driver) -> dict[str, list[int]]:
    """The numbers of the messages in each line."""
    return {
        target: [
            number + place
            for number, dead in queue(driver).stuck_messages(target, 0, 10**6)
            for place in range(dead.range.count)
        ]
        for target in queue(driver).stuck
    }


@pytest.mark.parametrize(("version", "arrived"), [(10, 0), (11, 3)])
def test_stuck_dead_letter_blocks_no_message_since_version_11(version: int, arrived: int) -> None:
    driver = at_version(version)
    die(driver, "gone", "there", "there", "there")
    assert ready(driver, "there") == [arrived]
    assert queue(driver).dead_count == 4 - arrived


def test_stuck_dead_letters_move_on_when_the_version_is_raised() -> None:
    driver = at_version(10)
    die(driver, "gone", "full", "full", "there")
    assert (queue(driver).retry_ms > 0, ready(driver, "there", "full")) == (True, [0, 0])
    driver.machine = reloaded(driver.machine)
    driver.machine.raise_to(11)
    driver.wait_until(driver.time_ms + 5_000)
    assert ready(driver, "there", "full") == [1, 1]
    assert lines(driver) == {UNROUTED: [0], "full": [2]}


def test_ten_thousand_stuck_dead_letters_do_not_hold_the_next(driver: Driver) -> None:
    for _ in range(20):
        die(driver, "gone", "full", count=250)
    assert (len(lines(driver)[UNROUTED]), len(lines(driver)["full"])) == (5_000, 4_999)
    die(driver, "there")
    assert ready(driver, "there") == [1]
    assert driver.machine.due_ms() is None
    assert list(driver.machine.pending_dead_letters(10)) == []


def test_stuck_dead_letters_of_a_target_keep_their_order(driver: Driver) -> None:
    die(driver, "full", "full", "gone", "full")
    first = positions(driver, "full")
    driver.apply(bind("full", "gone"), c.PurgeQueue(1, 1, "full"), publish(1, "full", exchange="amq.fanout"))
    driver.time_ms += 2 * TTL_MS
    taken = [first]
    for _ in range(5):
        driver.lead()
        taken.append(positions(driver, "full"))
        driver.apply(c.PurgeQueue(1, 1, "full"))
    order = [place for places in taken for place in places]
    assert len(order) == 5
    assert order == sorted(order)
    assert lines(driver) == {}


def positions(driver: Driver, name: str) -> list[tuple[int, int]]:
    """Where the ready messages of a queue were published."""
    return [tuple(messages[:2]) for messages in queue(driver, name).backlog.browse(0, 10)]


def test_dead_letter_with_two_targets_waits_for_both(driver: Driver) -> None:
    driver.apply(bind("there", "full"), bind("there", "both"), bind("full", "both"))
    die(driver, "both", "both", "there")
    assert ready(driver, "there", "full") == [2, 1]
    assert lines(driver) == {"full": [1]}
    driver.apply(c.PurgeQueue(1, 1, "full"))
    driver.lead()
    assert ready(driver, "there", "full") == [3, 1]


def test_range_of_dead_letters_fills_a_target_in_part(driver: Driver) -> None:
    die(driver, "full", count=5)
    assert ready(driver, "full") == [1]
    assert lines(driver) == {"full": [1, 2, 3, 4]}
    driver.apply(c.DeleteQueue(1, 1, "full", False, False), declare("full"), bind("full"))
    driver.lead()
    assert (ready(driver, "full"), queue(driver).dead_count) == ([4], 0)


def test_repeated_commands_move_a_stuck_dead_letter_once(driver: Driver) -> None:
    die(driver, "gone", "gone", "there")
    driver.apply(bind("there", "gone"))
    commands: Sequence[DeadLetter] = driver.log.dead_letters(driver.machine)
    for _ in range(3):
        driver.apply(*commands, *commands)
    assert ready(driver, "there") == [3]
    assert (lines(driver), queue(driver).dead_size) == ({}, 0)


def test_waiting_consumer_takes_from_a_target_without_room(driver: Driver) -> None:
    driver.apply(declare("none", x_max_length=0, x_overflow="reject-publish"), bind("none"))
    die(driver, "none", "none", "none")
    assert lines(driver) == {"none": [0, 1, 2]}
    effects = driver.apply(consume(1, "none", 2)) + driver.lead()
    given = [effect for effect in effects if isinstance(effect, Deliver)]
    assert sum(messages.count for effect in given for messages in effect.ranges) == 2
    assert lines(driver) == {"none": [2]}


@pytest.mark.parametrize(
    "command",
    [
        c.PurgeQueue(1, 1, "level"),
        c.PutPolicy("/", "p", False, "^level$", "queues", 0, {"overflow": "drop-head"}),
    ],
    ids=["purge", "at-most-once"],
)
def test_stuck_dead_letters_go_with_a_purge_or_their_strategy(driver: Driver, command: Any) -> None:
    die(driver, "gone", "full", "full", count=3)
    driver.apply(command)
    driver.lead()
    assert (lines(driver), queue(driver).dead_count, queue(driver).dead_size) == ({}, 0, 0)
    assert not driver.machine.stuck_lines.queues
    assert not driver.machine.stuck_lines.targets
    die(driver, "there", "gone")
    assert ready(driver, "there") == [1]


def test_deleted_queue_is_not_listed_with_stuck_messages(driver: Driver) -> None:
    die(driver, "gone", "full", "full")
    driver.apply(c.DeleteQueue(1, 1, "level", False, False))
    assert not driver.machine.stuck_lines.queues
    assert not driver.machine.stuck_lines.targets


def test_loaded_state_has_the_same_stuck_dead_letters(driver: Driver) -> None:
    die(driver, "gone", "full", "full", "gone", count=2)
    loaded = reloaded(driver.machine)
    assert differences(driver.machine, loaded) == []
    assert loaded.dump() == driver.machine.dump()
    driver.machine = loaded
    driver.apply(bind("there", "gone"), c.PurgeQueue(1, 1, "full"))
    driver.lead()
    assert ready(driver, "there", "full") == [4, 1]
    assert lines(driver) == {"full": [4, 5]}


def test_unused_queue_with_stuck_dead_letters_stays(driver: Driver) -> None:
    driver.apply(c.PutPolicy("/", "p", False, "^level$", "queues", 0, {"expires": 1_000}))
    die(driver, "gone")
    driver.wait_until(driver.time_ms + 60_000)
    assert lines(driver) == {UNROUTED: [0]}
    driver.apply(bind("there", "gone"))
    driver.wait_until(driver.time_ms + 60_000)
    assert "level" not in driver.machine.vhosts["/"].queues
