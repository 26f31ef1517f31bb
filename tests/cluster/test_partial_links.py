"""Members that do not all reach each other."""

from __future__ import annotations

from itertools import permutations

import pytest
from test_group_timers import Member, Trio

from cluster.configuration import PeerAddress


@pytest.mark.parametrize("centre", "ace")
def test_the_only_one_that_reaches_a_majority_is_elected(centre: str) -> None:
    """The others had asked for pre-votes in vain, and refused it meanwhile, because it had to wait for its turn."""
    five = Trio("abcde")
    five.start()
    for one, other in permutations("abcde", 2):
        if centre not in (one, other):
            five.network.cut(one, other)
    [first] = [member for member in five.members if member.name == centre]
    five.until(lambda: all(member.group.leader == centre for member in five.members), within_ms=30_000)
    first.set_alarms(1)


def test_members_that_have_all_moved_find_each_other_by_one_that_knows_the_places() -> None:
    """Its log is behind, so one of the others leads, and is told to the third one that does not know where it is."""
    trio = Trio()
    first, second, third = trio.members
    trio.start()
    first.end()
    trio.pass_ms(2000)
    third.set_alarms(1)
    trio.until(lambda: second.group.journal.last_index == third.group.journal.last_index)
    for member in (second, third):
        member.end()
    for member in trio.members:
        member.address = PeerAddress(f"{member.name}.elsewhere", 1)
    places = {member.name: member.address for member in trio.members}
    first.start(places=places)
    second.start()
    third.start()

    def notes_all(member: Member) -> bool:
        members = member.group.configurations.committed.members
        return {each.name: each.address for each in members} == places

    trio.until(lambda: all(map(notes_all, trio.members)), within_ms=30_000)
