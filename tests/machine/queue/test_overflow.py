"""Full queues: messages for waiting consumers take no room, and a new limit is applied in portions."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from qq.machine.protocol import commands as c
from qq.machine.protocol.effects import Committed, Deliver, Failed, Rejected, Reply
from qq.machine.queue import queue as queue_module
from qq.machine.queue.queue import DUE_MAX, TRIM_MAX
from tests.machine.machine_driver import Driver, consume, declare, publish, ready_messages, reloaded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from qq.machine.protocol.effects import Effect

REJECTS: dict[str, Any] = {"x_overflow": "reject-publish"}
TO_BOTH = {"key": "", "exchange": "amq.fanout"}


def counts(effects: Sequence[Effect]) -> tuple[dict[int, int], int]:
    """How many messages each consumer was given, and how many publishes were refused."""
    given: dict[int, int] = {}
    refused = 0
    for effect in effects:
        if isinstance(effect, Deliver):
            count = sum(part.count for part in effect.ranges)
            given[effect.consumer] = given.get(effect.consumer, 0) + count
        elif isinstance(effect, Rejected):
            refused += effect.count
    return given, refused


def ready(driver: Driver, *names: str) -> list[int]:
    return [driver.machine.vhosts["/"].queues[name].ready for name in names]


def both(driver: Driver, *limits: int) -> None:
    """Two queues, q and r, that get the same messages."""
    driver.apply(
        *(declare(name, x_max_length=limit, **REJECTS) for name, limit in zip("qr", limits, strict=True)),
        *(c.BindQueue(1, 1, name, "amq.fanout", "", {}) for name in "qr"),
    )


# Messages for waiting consumers


@pytest.mark.parametrize("limit", [{"x_max_length": 2}, {"x_max_length_bytes": 2}])
def test_messages_for_consumers_with_credit_take_no_room(limit: dict[str, Any]) -> None:
    driver = Driver()
    driver.apply(declare("q", **REJECTS, **limit), consume(1, "q", 3), consume(2, "q", 4))
    assert counts(driver.apply(publish(10))) == ({1: 3, 2: 4}, 1)
    assert ready(driver, "q") == [2]


def test_consumer_without_credit_makes_no_room() -> None:
    driver = Driver()
    driver.apply(declare("q", x_max_length=0, **REJECTS), consume(1, "q", 3))
    assert counts(driver.apply(publish(2))) == ({1: 2}, 0)
    assert counts(driver.apply(publish(2))) == ({1: 1}, 1)
    assert counts(driver.apply(c.Settle(1, 0, 0), publish(2))) == ({1: 1}, 1)


def test_message_accepted_for_a_consumer_survives_its_cancel() -> None:
    driver = Driver()
    driver.apply(declare("q", x_max_length=1, **REJECTS), consume(1, "q", 5))
    effects = driver.apply(publish(5), c.Cancel(1, 1))
    assert counts(effects) == ({1: 5}, 0)
    assert driver.machine.vhosts["/"].queues["q"].unacked == 5


def test_ready_message_uses_the_credit_before_a_new_message() -> None:
    """The consumer's credit is for the message that came before."""
    driver = Driver()
    driver.apply(declare("q", x_max_length=1, **REJECTS))
    driver.apply(publish(1))
    effects = driver.apply(consume(1, "q", 2), publish(3))
    assert counts(effects) == ({1: 2}, 1)
    assert ready_messages(driver.machine.vhosts["/"].queues["q"]) == [(3, 1, 0)]


def test_delayed_message_needs_room_although_a_consumer_waits() -> None:
    driver = Driver()
    driver.apply(declare("q", x_max_length=1, **REJECTS), consume(1, "q", 5))
    assert counts(driver.apply(publish(3, delay_ms=100))) == ({}, 2)


def test_transaction_needs_room_although_a_consumer_waits() -> None:
    driver = Driver()
    driver.apply(declare("q", x_max_length=1, **REJECTS), consume(1, "q", 5))
    effects = driver.apply(c.Commit(2, 1), publish(2, session=2))
    assert [type(effect) for effect in effects] == [Failed]
    effects = driver.apply(c.Commit(3, 1), publish(1, session=3))
    assert effects[0] == Reply("n1", 3, Committed(), 1)
    assert counts(effects) == ({1: 1}, 0)


def test_the_limit_of_a_channel_counts_once_for_two_queues() -> None:
    driver = Driver()
    both(driver, 0, 0)
    driver.apply(c.Limit(2, 3), consume(1, "q", 9, session=2), consume(2, "r", 9, session=2))
    assert counts(driver.apply(publish(5, **TO_BOTH))) == ({}, 5)  # all is promised to the first queue
    assert counts(driver.apply(publish(2, **TO_BOTH))) == ({1: 1, 2: 1}, 1)
    assert counts(driver.apply(publish(5))) == ({1: 1}, 4)
    assert ready(driver, "q", "r") == [0, 0]


def test_messages_of_a_second_queue_use_the_channel_limit_first() -> None:
    driver = Driver()
    both(driver, 1, 2)
    driver.apply(c.Limit(2, 2), consume(1, "q", 9, session=2), publish(2, "r"))
    effects = driver.apply(consume(2, "r", 9, session=2), publish(4, **TO_BOTH))
    assert counts(effects) == ({2: 2}, 3)
    assert ready(driver, "q", "r") == [1, 1]


def test_dead_letters_find_room_where_consumers_wait() -> None:
    driver = Driver()
    to_q = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "q"}
    driver.apply(declare("q", x_max_length=0, **REJECTS), declare("s", **to_q), consume(1, "q", 3))
    driver.apply(publish(5, "s"), consume(2, "s", 9))
    driver.apply(c.Discard(2, 0, 4))
    assert counts(driver.lead()) == ({1: 3}, 0)
    assert ready(driver, "q") == [0]


# Trimming


@pytest.fixture
def few_at_a_time() -> Iterator[int]:
    with mock.patch.object(queue_module, "TRIM_MAX", 10):
        yield 10


def scattered(driver: Driver, count: int) -> None:
    """So many messages in q, each a range of its own."""
    for _ in range(count):
        driver.apply(publish(1))


def policy(driver: Driver, **definition: Any) -> list[Effect]:
    settings = {name.replace("_", "-"): value for name, value in definition.items()}
    return driver.apply(c.PutPolicy("/", "p", False, "^q$", "queues", 0, settings))


def lengths_of(driver: Driver) -> list[int]:
    """How many are ready after each entry that the machine asks for, on a node that is loaded each time."""
    lengths: list[int] = []
    while (due_ms := driver.machine.due_ms()) is not None and due_ms <= driver.time_ms:
        driver.machine = reloaded(driver.machine)
        driver.apply()
        lengths += ready(driver, "q")
        assert len(lengths) < 100
    return lengths


@pytest.mark.parametrize("limit", [{"max_length": 5}, {"max_length_bytes": 5}])
def test_a_new_limit_is_carried_out_in_several_entries(few_at_a_time: int, limit: dict[str, Any]) -> None:
    driver = Driver()
    driver.apply(declare("q"))
    scattered(driver, 32)
    policy(driver, **limit)
    assert ready(driver, "q") == [22]
    assert lengths_of(driver) == [12, 5]
    assert [index for index, *_ in ready_messages(driver.machine.vhosts["/"].queues["q"])] == list(
        range(29, 34)
    )


def test_a_long_range_is_dropped_at_once(few_at_a_time: int) -> None:
    driver = Driver()
    driver.apply(declare("q"))
    driver.apply(publish(5_000))
    policy(driver, max_length=4_950)
    assert ready(driver, "q") == [4_950]
    policy(driver, max_length=4_900)
    assert ready(driver, "q") == [4_900]


def test_messages_above_the_limit_are_dropped_in_the_same_entry(few_at_a_time: int) -> None:
    """However much it is: or a queue would grow without bounds."""
    driver = Driver()
    driver.apply(declare("q", x_max_length_bytes=300))
    for number in range(1, 5):
        sizes = [b"x" * (1 + (at + number) % 2) for at in range(500)]
        driver.apply(publish(500), messages=sizes)
        assert driver.machine.vhosts["/"].queues["q"].backlog.size <= 300


def test_messages_above_a_new_limit_are_ready_until_dropped(few_at_a_time: int) -> None:
    driver = Driver()
    driver.apply(declare("q"))
    scattered(driver, 32)
    policy(driver, max_length=5)
    assert counts(driver.apply(consume(1, "q", 3))) == ({1: 3}, 0)
    assert ready(driver, "q") == [9]


def test_delayed_messages_above_the_limit_are_not_due_early() -> None:
    driver = Driver()
    driver.apply(declare("q"))
    driver.apply(publish(1), publish(5, delay_ms=1_000))
    policy(driver, max_length=3)
    assert ready(driver, "q") == [0]
    assert driver.machine.due_ms() == driver.time_ms + 1_000
    driver.wait_until(driver.time_ms + 1_000)
    assert ready(driver, "q") == [3]


def test_limit_drops_no_more_while_many_dead_letters_wait(few_at_a_time: int) -> None:
    driver = Driver()
    driver.apply(declare("q"), declare("dead"))
    scattered(driver, 60)
    with mock.patch.object(queue_module, "DYING_MAX", 15):
        policy(driver, max_length=5, dead_letter_exchange="", dead_letter_routing_key="dead")
        assert lengths_of(driver) == [40]
        assert driver.machine.vhosts["/"].queues["q"].dead_count == 20
        driver.lead()
    assert ready(driver, "q", "dead") == [5, 55]
    assert [index for index, *_ in ready_messages(driver.machine.vhosts["/"].queues["dead"])] == list(
        range(2, 57)
    )


def test_the_bound_holds_for_the_greatest_number_of_due_messages() -> None:
    """Otherwise released messages could make a queue grow."""
    assert DUE_MAX <= TRIM_MAX


# Purge


def test_after_a_purge_dead_letters_are_tried_at_once() -> None:
    driver = Driver()
    least = {
        "x_queue_type": "quorum",
        "x_dead_letter_strategy": "at-least-once",
        "x_dead_letter_exchange": "",
    }
    key = {"x_dead_letter_routing_key": "dead"}
    driver.apply(declare("q", **REJECTS, **least, **key), consume(1, "q", 9))
    driver.apply(publish(1))
    driver.apply(c.Discard(1, 0, 0))
    driver.lead()  # in vain: there is no queue
    assert not driver.log.dead_letters(driver.machine)
    driver.apply(declare("dead"))
    driver.apply(publish(1), c.PurgeQueue(1, 1, "q"))
    driver.apply(c.Discard(1, 1, 1))
    driver.lead()
    assert ready(driver, "dead") == [1]


def test_drop_order_does_not_depend_on_the_portion_size(few_at_a_time: int) -> None:
    driver = Driver()
    driver.apply(declare("q", x_queue_type="quorum"))
    for number in range(40):
        driver.apply(publish(1, priority=9 if number % 3 else 1))
    policy(driver, max_length=8)
    lengths = [*ready(driver, "q"), *lengths_of(driver)]
    assert all(before - after <= few_at_a_time for before, after in pairwise([40, *lengths]))
    left = ready_messages(driver.machine.vhosts["/"].queues["q"])
    with mock.patch.object(queue_module, "TRIM_MAX", 1_000):
        other = Driver()
        other.apply(declare("q", x_queue_type="quorum"))
        for number in range(40):
            other.apply(publish(1, priority=9 if number % 3 else 1))
        policy(other, max_length=8)
    assert left == ready_messages(other.machine.vhosts["/"].queues["q"])
