"""A member that says nothing is not there, though there is a link with it: it is frozen, or nothing comes through."""

from __future__ import annotations

from test_group_members import Growing
from test_maintenance import growing

from cluster.peers import SILENT_S

__all__ = ["growing"]

SILENT_MS = int(SILENT_S * 1000) + 500


def test_a_frozen_member_is_shown_as_down_and_missed(growing: Growing) -> None:
    leader, frozen, third = growing.leader(), *growing.followers()
    frozen.runtime.pause()
    growing.pass_ms(SILENT_MS)
    for member in (leader, third):
        statuses = member.group.statuses
        assert [each.name for each in statuses.all() if each.state == "down"] == [frozen.name]
        assert statuses.own().misses == (frozen.name,)
    frozen.runtime.go_on()
    growing.pass_ms(SILENT_MS)
    assert not [each for each in leader.group.statuses.all() if each.state == "down" or each.misses]


def test_a_member_that_alone_hears_no_leader_says_who_hears_one(growing: Growing) -> None:
    leader, apart, third = growing.leader(), *growing.followers()
    growing.network.cut(leader.name, apart.name)
    growing.network.cut(apart.name, leader.name)
    growing.pass_ms(SILENT_MS)
    assert apart.group.why_undecided() == (
        f"no leader: this node hears none, and {third.name} hears one; {leader.name} cannot be heard (look at the "
        "network between the nodes)"
    )
    assert {each.name: each.hears_leader for each in apart.group.statuses.all() if each.state != "down"} == {
        apart.name: False,
        third.name: True,
    }
