"""Members that do not all reach each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations
from random import Random

import pytest

from cluster.configuration.configuration import PeerAddress
from cluster.runtime.ports import pack
from tests.cluster.harness import Member, Trio, ignore

NAMES = "abcde"
PAIRS = ["".join(pair) for pair in combinations(NAMES, 2)]
TRIES = 60


@pytest.mark.parametrize("links", ["ab ac ad ae", "ae be ce de", "be cd de"])
def test_member_that_reaches_a_majority_is_elected(links: str) -> None:
    """Once members without a majority requested pre-votes in vain, and refused this member, which had to wait."""
    check_elects(links.split())


@pytest.mark.long
def test_member_with_a_majority_is_elected_over_random_links() -> None:
    chance = Random(1)
    for _ in range(TRIES):
        links = [pair for pair in PAIRS if chance.random() < 0.4]
        if any(len(reached(name, links)) >= 3 for name in NAMES):
            check_elects(links)


def reached(name: str, links: Sequence[str]) -> set[str]:
    return {name}.union(*(pair for pair in links if name in pair))


def check_elects(links: Sequence[str]) -> None:
    five = Trio(NAMES)
    five.start()
    for one, other in {*PAIRS} - {*links}:
        five.network.cut(one, other)
        five.network.cut(other, one)
    five.pass_ms(8000)  # dead links last so long
    able = [member for member in five.members if len(reached(member.name, links)) >= 3]

    def leads(member: Member) -> bool:
        engine = member.group.engine
        return engine.is_leader and engine.commit_index == engine.journal.last_index

    five.until(lambda: any(map(leads, able)), within_ms=10_000)


def test_leader_follows_the_center_of_a_star_of_links() -> None:
    five = Trio(NAMES)
    leader = five.start()
    for center in "abacadaeb":
        rays = [cut for cut in permutations(NAMES, 2) if center not in cut]
        for ray in rays:
            five.network.cut(*ray)
        five.pass_ms(2000)
        reached = max(member.group.journal.last_index for member in five.members)
        leader = next(member for member in five.members if member.name == center)
        leader.runtime.enter(lambda leader=leader: ignore(leader.group.propose([pack([1])])))
        five.until(
            lambda leader=leader, reached=reached: leader.group.engine.commit_index > reached, within_ms=8000
        )
        for ray in rays:
            five.network.heal(*ray)


def test_moved_members_are_found_through_a_member_that_knows() -> None:
    """Its log is behind, so a peer leads, and reports the address to the third member."""
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

    def has_all_configurations(member: Member) -> bool:
        members = member.group.configurations.committed.members
        return {each.name: each.address for each in members} == places

    trio.until(lambda: all(map(has_all_configurations, trio.members)), within_ms=30_000)
