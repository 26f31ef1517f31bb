"""Commands of groups and leases: limits, refusals, and work that is put off."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from qq.machine.handlers.leasing import check_close, check_commit, check_group, check_new_lease
from qq.machine.protocol import commands as c
from qq.machine.protocol.codec import InvalidCommand, check_command
from qq.machine.protocol.refusals import Refused
from qq.machine.protocol.work_meter import RANGES_AT_ONCE
from qq.machine.queue.leases import GROUPS_MAX, LEASE_RANGES_MAX, OPEN_LEASES_MAX
from tests.machine.likeness import differences
from tests.machine.machine_driver import (
    Driver,
    declare,
    leased_ranges,
    messages_of,
    publish,
    ready_messages,
    reloaded,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.machine.queue.queue import LeaseGroup, Queue

PLACE = ("/", "q", "g", 5)
ALL = 2**40


def opened(**settings: object) -> c.OpenGroup:
    return c.OpenGroup(*PLACE, "driver", "ann", "ready", False, 0)._replace(**settings)


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.machine.raise_to(12)
    driver.apply(declare("q", x_queue_type="quorum"), opened())
    return driver


def queue_of(driver: Driver) -> Queue:
    return driver.machine.vhosts["/"].queues["q"]


def group_of(driver: Driver) -> LeaseGroup:
    return queue_of(driver).groups["g"]


def singles(driver: Driver, count: int) -> None:
    """Publish messages in an entry each, so that each is a range of its own."""
    for _ in range(count):
        driver.index += 1
        queue_of(driver).enqueue(driver.index * 2, 0, 1, 9)


def test_groups_need_version_12() -> None:
    with pytest.raises(InvalidCommand, match=r"OpenGroup.* version 12 of the state"):
        check_command(opened(), 11)
    assert check_command(opened(), 12)


def test_lease_stays_the_same_when_it_is_taken_again(driver: Driver) -> None:
    driver.apply(publish(6))
    driver.apply(c.LeaseMessages(*PLACE, 0, 2, ALL))
    first = messages_of(list(group_of(driver).leases[0].ranges()))
    driver.apply(c.LeaseMessages(*PLACE, 0, 5, ALL))
    assert messages_of(list(group_of(driver).leases[0].ranges())) == first
    assert (queue_of(driver).ready, queue_of(driver).leased, queue_of(driver).messages) == (4, 2, 4)


@pytest.mark.parametrize("late", [0, 1, 2])
def test_take_repeated_after_the_release_takes_no_messages(driver: Driver, late: int) -> None:
    driver.apply(publish(6))
    driver.apply(*(c.LeaseMessages(*PLACE, number, 1, ALL) for number in (0, 1, 3)))
    driver.apply(*(c.ReleaseLease(*PLACE, number) for number in (0, 1)))
    take = c.LeaseMessages(*PLACE, late, 1, ALL)
    driver.apply(take)
    assert list(group_of(driver).leases) == [3]
    with pytest.raises(Refused, match=rf"lease {late} of .* is not open: .* has a number from 4 on"):
        driver.machine.groups.taken(take)
    driver.apply(c.CommitLeases(*PLACE, 3))
    assert queue_of(driver).ready == 5


@pytest.mark.parametrize(
    ("size", "taken"), [(0, 1), (1, 1), (100, 1), (101, 1), (200, 2), (350, 3), (10**6, 9)]
)
def test_lease_is_bounded_by_bytes_but_has_a_message(driver: Driver, size: int, taken: int) -> None:
    for _ in range(3):
        driver.apply(publish(3), messages=[b"x" * 100] * 3)
    driver.apply(c.LeaseMessages(*PLACE, 0, 100, size))
    assert group_of(driver).leases[0].messages == taken
    driver.apply(c.LeaseMessages(*PLACE, 1, 100, ALL))
    both = [
        messages
        for number in (0, 1)
        if number in group_of(driver).leases
        for messages in messages_of(list(group_of(driver).leases[number].ranges()))
    ]
    assert both == sorted(both)
    assert len(both) == 9
    assert queue_of(driver).leased_size == 900


def test_lease_cut_inside_of_returned_messages_keeps_their_order(driver: Driver) -> None:
    driver.apply(publish(4), messages=[b"x" * 100] * 4)
    driver.apply(publish(2), messages=[b"x" * 100] * 2)
    queue = queue_of(driver)
    for messages in queue.backlog.take(4):
        queue.backlog.give_back(messages.returned())
    expected = ready_messages(queue)
    driver.apply(c.LeaseMessages(*PLACE, 0, 100, 250), c.LeaseMessages(*PLACE, 1, 100, 250))
    taken = [messages_of(list(lease.ranges())) for lease in group_of(driver).leases.values()]
    assert taken == [expected[:2], expected[2:4]]
    assert ready_messages(queue) == expected[4:]


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        (lambda group: group.check_fence(4), 405, "fence 4 is stale: group 'g' .* open with fence 5, owner 'driver'"),
        (lambda group: group.check_fence(6), 405, "fence 6 was not used to open the group: group 'g'"),
        (lambda group: check_new_lease(group, 1), 406, "lease 1 of group 'g' of queue 'q' in vhost '/' was committed"),
        (lambda group: group.check_lease(3), 406, "lease 3 of group .* is not open"),
        (lambda group: check_close(group, c.CloseGroup(*PLACE, False)), 406, "group 'g' .* has 1 open lease: "),
    ],
)  # fmt: skip
def test_refusals_name_group_lease_and_fences(
    driver: Driver, change: Callable[[LeaseGroup], object], code: int, text: str
) -> None:
    driver.apply(publish(9))
    driver.apply(*(c.LeaseMessages(*PLACE, number, 1, ALL) for number in (0, 1, 3, 4)))
    driver.apply(c.ReleaseLease(*PLACE, 3), c.CommitLeases(*PLACE, 1))
    with pytest.raises(Refused, match=text) as caught:
        change(group_of(driver))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (c.CommitLeases("/", "q", "g", 5, 7), "no lease 7 of group 'g' of queue 'q' in vhost '/'"),
        (c.CommitLeases("/", "q", "h", 5, 0), "no group 'h' of queue 'q' in vhost '/'"),
        (c.CommitLeases("/", "r", "g", 5, 0), "no queue 'r' in vhost '/'"),
        (c.CommitLeases("w", "q", "g", 5, 0), "no queue 'q' in vhost 'w'"),
    ],
)
def test_commit_names_the_missing_object(driver: Driver, command: c.CommitLeases, text: str) -> None:
    with pytest.raises(Refused) as caught:
        check_commit(driver.machine.catalog, command)
    assert (caught.value.code, caught.value.text) == (404, text)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (c.ReleaseLease(*PLACE, 0), 406),
        (c.ReleaseLease(*PLACE, 1), 0),
        (c.ReleaseLease(*PLACE, 2), 404),
        (c.CommitLeases(*PLACE, 0), 0),
        (c.CommitLeases(*PLACE, 1), 406),
        (c.CommitLeases(*PLACE, 2), 404),
        (c.CloseGroup(*PLACE, False), 406),
        (c.CloseGroup(*PLACE, True), 0),
        (c.CloseGroup(*PLACE[:2], "h", 5, True), 0),
    ],
)
def test_outcome_of_an_end_is_in_the_state(driver: Driver, command: c.CommitLeases, code: int) -> None:
    driver.apply(publish(3), c.LeaseMessages(*PLACE, 0, 1, ALL), c.CommitLeases(*PLACE, 0))
    driver.apply(
        c.LeaseMessages(*PLACE, 1, 1, ALL), c.ReleaseLease(*PLACE, 1), c.LeaseMessages(*PLACE, 0, 1, ALL)
    )
    if isinstance(command, c.CloseGroup):
        driver.apply(c.LeaseMessages(*PLACE, 2, 1, ALL))
    for _ in range(2):
        driver.apply(command)
        expected: Any = pytest.raises(Refused) if code else nullcontext()
        with expected as caught:
            driver.machine.groups.check_ended(command)
        assert not code or caught.value.code == code


def test_commit_may_be_repeated(driver: Driver) -> None:
    driver.apply(publish(2), c.LeaseMessages(*PLACE, 0, 1, ALL), c.CommitLeases(*PLACE, 0))
    before = driver.machine.digest()
    driver.apply(c.CommitLeases(*PLACE, 0))
    assert driver.machine.digest() == before
    assert check_commit(driver.machine.catalog, c.CommitLeases(*PLACE, 0)) is group_of(driver)


def test_same_fence_is_refused_to_a_different_owner(driver: Driver) -> None:
    groups = driver.machine.groups
    with pytest.raises(Refused, match="is open with fence 5, owner 'driver' and other settings"):
        groups.check_open(opened(owner="another"))
    driver.apply(opened(owner="another"), opened(fence=4), opened(order="arrival"))
    assert (group_of(driver).owner, group_of(driver).settings.order) == ("driver", "ready")
    driver.apply(opened(owner="another", fence=6, order="arrival"))
    assert (group_of(driver).owner, group_of(driver).settings.order) == ("another", "arrival")
    with pytest.raises(Refused, match="fence 5 is stale"):
        check_group(driver.machine.catalog, c.CloseGroup(*PLACE, False))


def test_groups_and_leases_have_limits(driver: Driver) -> None:
    driver.apply(*(opened(group=f"g{number}") for number in range(GROUPS_MAX)))
    assert len(queue_of(driver).groups) == GROUPS_MAX
    with pytest.raises(Refused, match=f"has {GROUPS_MAX} groups, which is the limit"):
        driver.machine.groups.check_open(opened(group="more"))
    driver.apply(publish(OPEN_LEASES_MAX + 2))
    driver.apply(*(c.LeaseMessages(*PLACE, number, 1, ALL) for number in range(OPEN_LEASES_MAX + 1)))
    group = group_of(driver)
    assert len(group.leases) == OPEN_LEASES_MAX
    with pytest.raises(Refused, match=f"has {OPEN_LEASES_MAX} open leases, which is the limit"):
        check_new_lease(group, OPEN_LEASES_MAX)
    assert len(driver.machine.dump()) < 300 * OPEN_LEASES_MAX


def test_lease_of_consecutive_messages_takes_some_tens_of_bytes(driver: Driver) -> None:
    for _ in range(100):
        driver.apply(publish(1000))
    before = len(driver.machine.dump())
    driver.apply(c.LeaseMessages(*PLACE, 0, 100_000, ALL))
    assert group_of(driver).leases[0].messages == 100_000
    assert sum(len(chunk.data) for chunk in group_of(driver).leases[0].chunks) < 100
    assert len(driver.machine.dump()) < before + 100


def test_lease_of_single_ranges_is_limited_and_split(driver: Driver) -> None:
    singles(driver, LEASE_RANGES_MAX + 500)
    expected = ready_messages(queue_of(driver))
    driver.apply(c.LeaseMessages(*PLACE, 0, 10**6, ALL))
    queue = queue_of(driver)
    assert (queue.leased, queue.ready) == (LEASE_RANGES_MAX, 500)
    driver.apply(c.ReleaseLease(*PLACE, 0))
    assert 0 < queue.leased < LEASE_RANGES_MAX
    assert driver.machine.due_ms() == 0
    assert differences(driver.machine, reloaded(driver.machine)) == []
    entries = 1
    while queue.ended:
        before = queue.leased
        driver.apply()
        assert 0 < before - queue.leased <= 4 * RANGES_AT_ONCE
        entries += 1
    assert entries <= 4
    assert (queue.leased, queue.leased_size) == (0, 0)
    assert ready_messages(queue) == expected


def test_price_of_a_lease_follows_its_ranges(driver: Driver) -> None:
    lease = c.LeaseMessages(*PLACE, 0, 10**6, ALL)
    driver.apply(publish(100_000))
    cheap = driver.machine.costs.steps("n1", lease)
    singles(driver, 5_000)
    dear = driver.machine.costs.steps("n1", lease)
    assert cheap < 100
    assert 3 * 5_000 < dear < 4 * 5_000
    driver.apply(lease)
    assert driver.machine.costs.steps("n1", lease) < 100
    assert driver.machine.costs.steps("n1", c.ReleaseLease(*PLACE, 0)) > 3 * RANGES_AT_ONCE
    assert driver.machine.costs.steps("n1", c.CloseGroup(*PLACE, True)) > 3 * RANGES_AT_ONCE


def test_leased_messages_stay_in_the_log(driver: Driver) -> None:
    driver.apply(publish(3))
    index = driver.index
    driver.apply(c.LeaseMessages(*PLACE, 0, 2, ALL))
    driver.apply(c.PurgeQueue(1, 1, "q"))
    frozen = driver.machine.freeze()
    assert frozen.counts([index, index + 1]) == [2]
    assert dict(frozen.live(index, index + 1)) == {index: {0: [(0, 2)]}}
    assert len(messages_of(leased_ranges(queue_of(driver)))) == 2


def test_queue_with_a_group_does_not_expire(driver: Driver) -> None:
    driver.apply(declare("e", x_expires=1000), opened(queue="e", expires_ms=5000))
    driver.time_ms += 4_999
    driver.apply()
    assert "e" in driver.machine.vhosts["/"].queues
    driver.time_ms += 1
    driver.apply()
    assert not driver.machine.vhosts["/"].queues["e"].groups
    driver.time_ms += 1000
    driver.apply()
    assert "e" not in driver.machine.vhosts["/"].queues


def test_deleted_vhost_ends_its_groups(driver: Driver) -> None:
    driver.apply(c.PutVhost("v", "", [], ""))
    driver.apply(c.Connect(9, "v", "guest"), c.OpenChannel(9, 9))
    driver.apply(declare("q", session=9), opened(vhost="v", expires_ms=1000))
    driver.apply(c.DeleteVhost("v"))
    driver.time_ms += 2000
    driver.apply()
    assert differences(driver.machine, reloaded(driver.machine)) == []


@pytest.mark.parametrize(
    "late",
    [
        c.LeaseMessages(*PLACE, 0, 2, ALL),
        c.LeaseMessages(*PLACE, 1, 2, ALL),
        c.CommitLeases(*PLACE, 0),
        c.ReleaseLease(*PLACE, 0),
        c.CloseGroup(*PLACE, True),
    ],
    ids=["taken", "new", "commit", "release", "close"],
)
@pytest.mark.parametrize("fence", [5, 6])
def test_late_request_has_no_effect_in_a_reopened_group(driver: Driver, late: Any, fence: int) -> None:
    """A group that is ended and opened again begins with lease 0, perhaps with the fence of before."""
    driver.apply(publish(6))
    former = group_of(driver).generation
    driver.apply(c.LeaseMessages(*PLACE, 0, 1, ALL, former), c.CloseGroup(*PLACE, True, former))
    driver.apply(opened(fence=fence))
    driver.apply(c.LeaseMessages(*PLACE[:3], fence, 0, 3, ALL, group_of(driver).generation))
    group, dump = group_of(driver), driver.machine.dump()
    assert group.generation > former
    late = late._replace(generation=former, fence=fence)
    driver.apply(late)
    assert (group_of(driver), list(group.leases), group.first_free) == (group, [0], 0)
    assert reloaded(driver.machine).vhosts["/"].queues["q"].groups["g"].generation == group.generation
    assert driver.machine.dump() == dump
    if isinstance(late, c.CloseGroup):
        driver.machine.groups.check_ended(late)  # because that group has ended
        return
    with pytest.raises(
        Refused, match=f"generation {former} of group 'g' .* was ended: .* {group.generation}$"
    ):
        check_group(driver.machine.catalog, late)
