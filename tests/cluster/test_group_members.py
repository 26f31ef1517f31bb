"""Members that come and go while a group works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from test_group_timers import Member, Trio

from cluster.configuration import Configuration, MembershipRefused, PeerAddress, Versions
from cluster.group import NotNow
from cluster.log.hardstate import Standing

Step = Callable[[Configuration], Configuration]


class Growing(Trio):
    """Three members, and a fourth node that wants to be one."""

    def __init__(self) -> None:
        super().__init__(["a", "b", "c", "d"], listed=["a", "b", "c"])
        *self.members, self.fourth = self.members

    def change(self, step: Step) -> int:
        """Have the leader take a step as soon as it may; returns the index of the entry."""
        taken: list[int] = []

        def ask() -> None:
            try:
                taken.append(self.leader().group.change_configuration(step))
            except NotNow:
                return

        def is_taken() -> bool:
            if not taken:
                self.leader().runtime.enter(ask)
            return bool(taken)

        self.until(is_taken)
        self.until(lambda: self.leader().group.engine.applied_index >= taken[0])
        return taken[0]

    def add_fourth(self) -> None:
        self.fourth.start()
        self.change(joining(self.fourth))
        self.until(lambda: voters_by_standing(self.fourth) and caught_up(self.fourth, self.leader()))
        self.members.append(self.fourth)

    def all_submit(self) -> None:
        """Every member has a batch applied."""
        for member in self.members:
            if member.runtime.alive:
                member.set_alarms(1)


def joining(node: Member) -> Step:
    return lambda held: held.joined(
        node.name, node.group.member_id, PeerAddress(node.name, 1), Versions(1, 1)
    )


def voters_by_standing(node: Member) -> bool:
    return node.group.recovery.standing is Standing.VOTER


def caught_up(node: Member, leader: Member) -> bool:
    return node.group.engine.applied_index == leader.group.engine.applied_index > 1


def voters_of(node: Member) -> list[str]:
    return sorted(node.group.configurations.membership.voters)


@pytest.fixture
def growing() -> Growing:
    growing = Growing()
    growing.start()
    growing.change(lambda held: replace(held, cluster=b"c" * 16))
    return growing


def test_a_node_that_joins_is_given_the_log_and_votes_when_it_is_promoted(growing: Growing) -> None:
    growing.add_fourth()
    growing.all_submit()
    assert [voters_of(member) for member in growing.members] == [["a", "b", "c"]] * 4
    growing.change(lambda held: held.promoted("d"))
    growing.pass_ms(500)
    assert [voters_of(member) for member in growing.members] == [["a", "b", "c", "d"]] * 4
    assert len({member.group.dump() for member in growing.members}) == 1
    growing.leader().end()
    growing.pass_ms(3000)
    growing.all_submit()


def test_a_dead_member_is_removed_and_two_of_the_others_are_a_majority(growing: Growing) -> None:
    growing.add_fourth()
    growing.change(lambda held: held.promoted("d"))
    gone = growing.leader()
    gone.end()
    growing.pass_ms(3000)
    growing.change(lambda held: held.without(gone.name))
    growing.pass_ms(500)
    left = [member for member in growing.members if member is not gone]
    assert [voters_of(member) for member in left] == [[member.name for member in left]] * 3
    assert [gone.name in member.group.peers for member in left] == [False] * 3
    next(member for member in left if member is not growing.leader()).end()
    growing.all_submit()


def test_a_restart_finds_the_members_in_the_log_and_in_the_checkpoint(growing: Growing) -> None:
    growing.add_fourth()
    growing.change(lambda held: held.promoted("d"))
    growing.pass_ms(500)
    for with_checkpoint in (False, True):
        for member in growing.members:
            if with_checkpoint:
                member.group.stop()
            member.end()
        for member in growing.members:
            member.start()
            assert voters_of(member) == ["a", "b", "c", "d"]
        growing.pass_ms(5000)
        growing.all_submit()


def test_changes_come_one_after_the_other(growing: Growing) -> None:
    growing.fourth.start()
    leader = growing.leader()

    def twice() -> None:
        leader.group.change_configuration(joining(growing.fourth))
        with pytest.raises(NotNow, match="not committed yet"):
            leader.group.change_configuration(lambda held: held.promoted("d"))

    leader.runtime.enter(twice)
    growing.pass_ms(500)
    follower = next(member for member in growing.members if member is not leader)
    with pytest.raises(NotNow, match="does not lead"):
        follower.group.change_configuration(lambda held: held.promoted("d"))


def test_a_step_that_may_not_be_taken_leaves_everything_as_it_is(growing: Growing) -> None:
    group = growing.leader().group
    last_index = group.journal.last_index
    with pytest.raises(MembershipRefused, match="no member 'x'"):
        group.change_configuration(lambda held: held.without("x"))
    assert group.journal.last_index == last_index
    newest_index = group.configurations.newest_index
    again = group.change_configuration(lambda held: held.drained("a", is_drained=False))
    assert again == newest_index, "it was so already"


def test_what_a_removed_member_held_is_given_up_and_its_batches_count_no_more(growing: Growing) -> None:
    growing.add_fourth()
    growing.fourth.set_alarms(1)
    growing.change(lambda held: held.without("d"))
    growing.pass_ms(500)
    origin = growing.leader().group._state.origins.get("d")
    assert origin is not None
    assert origin.expelled
    entries = growing.fourth.machine.entries
    growing.fourth.group.submit([])
    growing.pass_ms(3000)
    assert growing.fourth.machine.entries == entries
