"""Hazards of membership changes, each of which was a bug in an implementation of Raft (thesis, chapter 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster.configuration.configuration import MembershipRefused, PeerAddress
from cluster.log.checkpoints import load_newest
from cluster.raft.messages import VoteRequest, encode
from cluster.state.group_state import GroupState
from cluster.storage.directory import GroupDirectory
from cluster.storage.identity import Owner
from tests.cluster.harness import Alarms, Growing, Member, id_of, remove, voters_of

if TYPE_CHECKING:
    from collections.abc import Iterable

GROUP = "groups/0"
STRANGER = PeerAddress("x", 1)
"""Where a member would be that is proposed and never committed."""


@pytest.fixture
def growing() -> Growing:
    growing = Growing()
    growing.start()
    return growing


def directory_of(node: Member) -> GroupDirectory:
    return GroupDirectory(node.disk, GROUP, Owner("test", node.name, 0))


class Parted:
    """Cuts all links between a node and its peers."""

    def __init__(self, growing: Growing, one: Member, followers: Iterable[Member]) -> None:
        self._network = growing.network
        names = [other.name for other in followers]
        self._cuts = [cut for name in names for cut in ((one.name, name), (name, one.name))]
        for cut in self._cuts:
            self._network.cut(*cut)

    def heal(self) -> None:
        for cut in self._cuts:
            self._network.heal(*cut)


def propose_unknown_member(leader: Member) -> None:
    """Let an isolated leader append a configuration that no other member will ever have."""
    leader.runtime.enter(
        lambda: (
            leader.group.reconfiguration.propose(lambda held: held.added("x", STRANGER, b"x" * 16)) and None
        )
    )
    assert "x" in leader.group.members.names


# Removal of the node that has the only copy above a majority of the old configuration


def test_member_with_the_only_copy_is_not_removed_too_early(growing: Growing) -> None:
    leader, (holder, behind) = growing.leader(), growing.followers()
    parted = Parted(growing, behind, (leader, holder))
    leader.set_alarms(1)
    growing.until(lambda: holder.group.engine.applied_index == leader.group.journal.last_index)
    index = leader.group.journal.last_index
    growing.pass_ms(3000)
    refusal = growing.outcome_of(leader, remove(holder))
    assert f"{behind.name} does not answer" in refusal, "2 of 2 would be needed, and one is away"
    with pytest.raises(MembershipRefused, match=f"{behind.name} does not answer"):
        leader.group.reconfiguration.propose(lambda held: held.without(holder.name, id_of(holder)))
    assert behind.group.journal.last_index < index
    parted.heal()
    growing.until(lambda: not leader.group.members.missed)
    growing.pass_ms(2000)  # until its status is known again
    assert growing.outcome_of(leader, remove(holder)) == ""
    assert behind.group.journal.last_index > index
    growing.stops(holder)
    leader.end()
    growing.pass_ms(3000)
    assert not behind.group.engine.is_leader, "1 of 2 is no majority"
    leader.start()
    growing.until(lambda: growing.agrees(leader.name + behind.name))
    growing.all_submit()
    growing.pass_ms(500)
    assert leader.group.dump() == behind.group.dump()


def test_uncommitted_removal_costs_no_entry_if_the_leader_dies(
    growing: Growing,
) -> None:
    """By the previous configuration, any holder of the entry is elected."""
    leader, (holder, behind) = growing.leader(), growing.followers()
    growing.network.lag(leader.name, behind.name, 0.3)
    leader.set_alarms(86_400_000)
    growing.until(lambda: holder.group.engine.applied_index == leader.group.journal.last_index)
    index = leader.group.journal.last_index
    assert behind.group.journal.last_index < index
    Parted(growing, leader, (holder, behind))
    leader.runtime.enter(lambda: leader.group.reconfiguration.propose(remove(holder).step) and None)
    assert holder.name not in voters_of(leader)
    leader.end()
    growing.pass_ms(5000)
    assert growing.leader() is holder
    assert voters_of(holder) == voters_of(behind) == ["a", "b", "c"]
    growing.all_submit()
    assert holder.machine.due[0] > 86_400_000
    assert holder.machine.due == behind.machine.due


# A snapshot with an older configuration than the log had


def test_snapshot_restores_the_older_committed_configuration(growing: Growing) -> None:
    growing = Growing()
    small = {"segment_entries": 8, "checkpoint_entries": 8, "retained_bytes": 1000}
    for member in growing.members:
        member.start(**small)
    growing.until(lambda: all(member.is_settled for member in growing.members))
    growing.pass_ms(500)
    old, followers = growing.leader(), growing.followers()
    committed = old.group.configurations.committed
    assert committed.cluster
    parted = Parted(growing, old, followers)
    propose_unknown_member(old)
    growing.pass_ms(5000)
    new = next(member for member in followers if member.group.engine.is_leader)
    for _ in range(60):
        new.set_alarms(1)
        growing.pass_ms(20)
    growing.pass_ms(3000)
    assert new.group.journal.first_index > old.group.journal.last_index
    assert old.group.configurations.newest.version == committed.version
    assert "x" in old.group.members.names
    parted.heal()
    growing.until(lambda: old.group.snapshots_installed)
    assert old.group.configurations.newest == committed
    assert old.group.members.names == new.group.members.names
    growing.pass_ms(2000)
    growing.all_submit()
    growing.until(lambda: len({member.group.dump() for member in growing.members}) == 1)


# A removed node with a higher term


def test_removed_node_with_a_higher_term_disturbs_no_member(growing: Growing) -> None:
    """It is told of its removal late, and asks for votes meanwhile, with a pre-vote and without."""
    growing.add_fourth()
    leader, removed = growing.leader(), growing.followers()[0]
    removed.end()
    assert growing.outcome_of(leader, remove(removed)) == ""
    growing.members.remove(removed)
    hard_state = directory_of(removed).hard_state
    stored = hard_state.load()
    assert stored is not None
    term = stored.term + 100
    hard_state.store(stored._replace(term=term, voted_for=None))
    for other in growing.members:
        growing.network.lag(other.name, removed.name, 2.5)
    terms = [other.group.engine.term for other in growing.members]
    removed.start()
    growing.pass_ms(1000)
    campaign = encode(VoteRequest(term + 1, 1_000_000, term + 1))
    for other in growing.members:
        removed.runtime.enter(lambda to=other.name: removed.group._links.send(to, 0, campaign))
    growing.pass_ms(1000)
    assert removed.group.engine.term >= term
    assert [other.group.engine.term for other in growing.members] == terms
    assert growing.leader() is leader
    growing.all_submit()
    growing.stops(removed)
    assert [other.group.engine.term for other in growing.members] == terms
    assert growing.leader() is leader


# A checkpoint with a configuration newer than its index


def test_checkpoint_has_the_configuration_committed_at_its_index(growing: Growing) -> None:
    """A configuration in the log counts after the checkpoint, also at the next start, and goes with its entry."""
    leader, followers = growing.leader(), growing.followers()
    committed = leader.group.configurations.committed
    parted = Parted(growing, leader, followers)
    propose_unknown_member(leader)
    index = leader.group.configurations.newest_index
    growing.until(lambda: leader.group.journal.synced_index >= index)
    leader.group.stop()
    leader.end()
    directory = directory_of(leader)
    checkpoint = load_newest(leader.disk, directory.log, directory.identity, index)
    assert checkpoint is not None
    assert checkpoint.index < index
    state = GroupState(Alarms())
    state.load(checkpoint.body)
    assert state.configuration == committed
    leader.start()
    assert leader.group.configurations.newest_index == index
    assert leader.group.configurations.committed == committed
    assert "x" in leader.group.members.names
    growing.pass_ms(3000)
    parted.heal()
    growing.until(lambda: growing.agrees("abc"))
    assert "x" not in leader.group.members.names
