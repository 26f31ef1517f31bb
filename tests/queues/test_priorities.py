"""Priorities of messages, as consumers meet them."""

from __future__ import annotations

import pytest

from tests.queues.clients import Taker, bodies_of, close, declare, drain, publish
from tests.queues.leader_changes import KILLED_IF_LONG
from tests.queues.world import World


@KILLED_IF_LONG
def test_two_high_priority_messages_precede_each_normal_message(world: World, queue: str) -> None:
    publisher, consumer = world.channel(1), world.channel(2)
    declare(publisher, queue)
    publish(publisher, queue, ["n1", "n2", "n3", "n4"], priority=4)
    world.change_leader()
    publish(publisher, queue, ["h1", "h2", "h3", "h4"], priority=5)
    taken = bodies_of(drain(consumer, queue))
    assert taken == [b"h1", b"h2", b"n1", b"h3", b"h4", b"n2", b"n3", b"n4"]


def test_normal_message_never_overtakes_an_older_high_message(world: World, queue: str) -> None:
    publisher, consumer = world.channel(1), world.channel(0)
    declare(publisher, queue)
    publish(publisher, queue, ["h1", "h2", "h3", "h4"], priority=9)
    world.change_leader()
    publish(publisher, queue, ["n1", "n2"])
    assert bodies_of(drain(consumer, queue)) == [b"h1", b"h2", b"h3", b"h4", b"n1", b"n2"]


@pytest.mark.parametrize("absent_is", [0, 4])
def test_priorities_up_to_4_and_absent_priority_are_equal(world: World, queue: str, absent_is: int) -> None:
    publisher = world.channel(1)
    declare(publisher, queue)
    publish(publisher, queue, ["1"], priority=absent_is)
    publish(publisher, queue, ["2"])
    world.change_leader()
    publish(publisher, queue, ["3"], priority=3)
    assert bodies_of(drain(publisher, queue)) == [b"1", b"2", b"3"]


def test_returned_messages_precede_higher_priorities(world: World, queue: str) -> None:
    publisher, holder, consumer = world.channel(1), world.channel(2), world.channel(0)
    declare(publisher, queue)
    publish(publisher, queue, ["low"], priority=1)
    holder.basic_qos(prefetch_count=1)
    Taker(holder, queue).wait(1)
    publish(publisher, queue, ["high"], priority=9)
    world.change_leader()
    close(holder)
    assert bodies_of(drain(consumer, queue)) == [b"low", b"high"]


@pytest.mark.parametrize("by", ["argument", "policy"])
def test_strict_priorities_are_thirty_two_levels(world: World, queue: str, by: str) -> None:
    publisher, consumer = world.channel(1), world.channel(2)
    declare(publisher, queue, {"x-priority-mode": "strict"} if by == "argument" else {})
    if by == "policy":
        world.policy(queue, {"priority-mode": "strict"})
    for priority in (1, 200, 31, 7, 30):
        publish(publisher, queue, [str(priority)], priority=priority)
    world.change_leader()
    publish(publisher, queue, ["absent"])
    publish(publisher, queue, ["5"], priority=5)
    assert bodies_of(drain(consumer, queue)) == [b"200", b"31", b"30", b"7", b"5", b"absent", b"1"]


def test_priority_policy_reorders_messages_already_in_the_queue(world: World, queue: str) -> None:
    publisher = world.channel(1)
    declare(publisher, queue)
    publish(publisher, queue, ["n"] * 4)
    publish(publisher, queue, ["h"] * 4, priority=5)
    world.change_leader()
    world.policy(queue, {"priority-mode": "strict"})
    assert bodies_of(drain(publisher, queue)) == [b"h"] * 4 + [b"n"] * 4


def test_classic_queue_has_its_declared_priority_levels(world: World, queue: str) -> None:
    publisher, consumer = world.channel(1), world.channel(2)
    publisher.queue_declare(queue, durable=True, arguments={"x-max-priority": 5})
    for priority in (0, 9, 5, 3):
        publish(publisher, queue, [str(priority)], priority=priority)
    world.change_leader()
    publish(publisher, queue, ["absent"])
    assert bodies_of(drain(consumer, queue)) == [b"9", b"5", b"3", b"0", b"absent"]
