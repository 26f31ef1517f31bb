"""The order of service of a fair queue."""

from __future__ import annotations

import pytest

from cluster.runtime.fair_queue import FairQueue


class Member:
    def __init__(self, name: str, cost: float = 1, time: float = 0) -> None:
        self.name = name
        self.cost = cost
        self.is_waiting = False
        self.time = time


def serve(queue: FairQueue[Member], times: int) -> str:
    """Serve members that always want more, and return their names in the order of service."""
    served = ""
    for _ in range(times):
        first, member = queue.peek(), queue.next()
        assert first is member
        served += member.name
        member.time += member.cost
        queue.push(member)
    return served


def test_member_of_half_the_cost_is_served_twice_as_often() -> None:
    queue: FairQueue[Member] = FairQueue()
    for member in (Member("a", 2), Member("b", 1)):
        queue.enter(member)
    assert serve(queue, 6) == "abbabb"


def test_members_with_equal_times_are_served_by_arrival() -> None:
    queue: FairQueue[Member] = FairQueue()
    for name in "cab":
        queue.enter(Member(name))
    assert serve(queue, 6) == "cabcab"


@pytest.mark.parametrize(("ahead", "served"), [(0, "baba"), (3, "bbbb")])
def test_idle_member_returns_ahead_by_a_bounded_time(ahead: float, served: str) -> None:
    queue: FairQueue[Member] = FairQueue(ahead)
    queue.enter(Member("a"))
    serve(queue, 100)
    idle = Member("b")
    assert queue.enter(idle)
    assert idle.time == 99 - ahead
    assert serve(queue, 4) == served
    busy = Member("c", time=1000)
    assert not queue.enter(busy)
    assert busy.time == 1000


def test_member_is_charged_when_served_outside_the_queue() -> None:
    queue: FairQueue[Member] = FairQueue(5)
    member, idle = Member("a", time=100), Member("b")
    queue.charge_unqueued(member, 7)
    queue.charge_unqueued(idle, 7)
    assert (member.time, idle.time) == (107, 100 - 5 + 7)


def test_cleared_queue_returns_its_members() -> None:
    queue: FairQueue[Member] = FairQueue()
    members = [Member("a"), Member("b")]
    for member in members:
        queue.enter(member)
    assert queue
    assert queue.clear() == members
    assert not queue
    assert not any(member.is_waiting for member in members)
