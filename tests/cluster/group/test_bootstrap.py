"""The members of a node whose log has no configuration yet, has lost it, or has more than the files.

Nodes end at any moment of the first configuration's way into the log, lose files, or receive uncommitted
configurations.
"""

from __future__ import annotations

import msgpack
import pytest

from cluster.configuration.change_request import MemberChange, Verb
from cluster.log.hardstate import VoterStatus
from cluster.log.mirrored_file import pack_twice, read_twice
from cluster.runtime.ports import pack
from cluster.storage.identity import MEMBER_FILE, load_copies, load_member_copies, store_identity
from tests.cluster.harness import Growing, Member, Trio, id_of
from tests.harness.long_cases import cases

GROUP = "groups/0"
IDENTITY = f"{GROUP}/identity"


def end_after(nodes: list[Member], steps: tuple[int, ...]) -> None:
    """End each process after so many steps of its disk."""
    for node, step in zip(nodes, steps, strict=True):
        node.runtime._ended = lambda: None
        node.disk.end_process_after(step)


def crash(node: Member, *, power_loss: bool) -> None:
    """Crash the disk of a node whose process has ended."""
    node.runtime.alive = False
    node.disk.spare_process()
    node.disk.crash(power_loss=power_loss)


def start_again(trio: Trio, *, power_loss: bool) -> None:
    """Crash and restart all nodes."""
    for node in trio.members:
        crash(node, power_loss=power_loss)
        trio.network.process_ended(node.name, power_loss=power_loss)
    for node in trio.members:
        node.start()


def fields_for_release_0_1(node: Member) -> tuple[str, str, int, int, list[str]]:
    """Read an identity as release 0.1 does; raises ValueError where that would."""
    body = read_twice(node.disk, IDENTITY, b"RIDY", 4, b"")
    cluster, name, group, version, members = msgpack.unpackb(body)
    return cluster, name, group, version, members


def as_never_released(node: Member) -> bool:
    """Move the members' names from the file `member` into the identity; return False if they are not only there.

    Programs between the releases wrote such directories.
    """
    [identity, _] = load_copies(node.disk, GROUP)
    if MEMBER_FILE not in node.disk.list_directory(GROUP):
        return False
    [known, _] = load_member_copies(node.disk, GROUP, identity.owner.key())
    if identity.members or not known.before:
        return False
    store_identity(node.disk, GROUP, identity._replace(before=known.before))
    body = pack([known.member, known.cluster, known.has_others])
    member = pack_twice(b"RMEM", 1, identity.owner.key(), body)
    node.disk.replace_file(f"{GROUP}/{MEMBER_FILE}", member)
    return True


def has_leader(trio: Trio, within_s: float) -> bool:
    def is_led() -> bool:
        return any(node.group.engine.is_leader for node in trio.members)

    trio.world.run_until(trio.world.now_s + within_s, is_led)
    return is_led()


def crashed_alone(step: int, *, power_loss: bool) -> tuple[Trio, Member]:
    """Return a new cluster of a single node that has crashed at this step of its disk."""
    alone = Trio(["a"])
    [node] = alone.members
    node.start()
    end_after(alone.members, (step,))
    alone.world.run_until(alone.world.now_s + 2.0)
    crash(node, power_loss=power_loss)
    return alone, node


# Before it


@pytest.mark.parametrize("mistake", ["join", "another list"])
def test_node_with_a_corrected_list_begins_the_cluster(
    mistake: str,
) -> None:
    """It has promised no vote yet, so a corrected file is enough and its directory need not be emptied."""
    trio = Trio()
    *followers, wrong = trio.members
    for node in followers:
        node.start()
    if mistake == "join":
        wrong.start(joins=True)
    else:
        listed, trio.listed = trio.listed, ["a", "x"]
        wrong.start()
        trio.listed = listed
    trio.pass_ms(3000)
    assert {node.group.rejoin.voter_status for node in trio.members} == {VoterStatus.BLANK}
    wrong.end()
    wrong.start()
    trio.until(lambda: all(node.is_settled for node in trio.members))
    assert all(node.group.configurations.committed.membership.voters == set("abc") for node in trio.members)


# The first configuration's way into the log


@pytest.mark.slow
@pytest.mark.parametrize("power_loss", cases([False, True], bool))
def test_new_cluster_of_a_single_node_survives_a_crash(power_loss: bool) -> None:
    """Release 0.1 could read the owner of the directory, and the version of the log if it is a different one."""
    found = set()
    for step in range(60):
        alone, node = crashed_alone(step, power_loss=power_loss)
        if IDENTITY in node.disk.files():
            _, _, _, version, members = fields_for_release_0_1(node)
            found.add((version, *members))
        alone.network.process_ended("a", power_loss=power_loss)
        node.start()
        assert has_leader(alone, 30.0), step
    low, high = node.machine.versions
    assert found == {(low, "a"), (high,)}


@pytest.mark.slow
def test_files_of_programs_between_releases_are_read() -> None:
    made = 0
    for step in range(60):
        alone, node = crashed_alone(step, power_loss=True)
        made += as_never_released(node)
        alone.network.process_ended("a", power_loss=True)
        node.start()
        alone.world.run_until(alone.world.now_s + 30.0, lambda node=node: node.group.engine.is_leader)
        assert node.group.engine.is_leader, step
        alone.world.run_until(alone.world.now_s + 1.0)
        assert fields_for_release_0_1(node)
    assert made


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps", [(0, 0, 0), (1, 1, 1), (2, 2, 2), (3, 2, 1), (1, 3, 5), (6, 0, 4), (4, 4, 4), (5, 6, 5)]
)
def test_new_cluster_survives_a_blackout_at_its_configuration(
    steps: tuple[int, int, int],
) -> None:
    trio = Trio()
    for node in trio.members:
        node.start()
    trio.world.run_until(
        trio.world.now_s + 30.0,
        lambda: any(node.group.configurations.newest.cluster for node in trio.members),
    )
    end_after(trio.members, steps)
    trio.world.run_until(trio.world.now_s + 0.05)
    start_again(trio, power_loss=True)
    assert has_leader(trio, 60.0)


def test_snapshot_without_configuration_undoes_an_uncommitted() -> None:
    growing = Growing()
    small = {"raises_version": False, "segment_entries": 8, "checkpoint_entries": 8, "retained_bytes": 1000}
    for member in growing.members:
        member.start(**small)
    growing.until(lambda: all(member.machine.entries > 0 for member in growing.members))
    growing.pass_ms(500)
    old, followers = growing.leader(), growing.followers()
    cuts = [cut for other in followers for cut in ((old.name, other.name), (other.name, old.name))]
    for cut in cuts:
        growing.network.cut(*cut)
    finish = MemberChange(Verb.FINISH_UPGRADE, version=old.machine.versions[1])
    old.runtime.enter(lambda: old.group.reconfiguration.request(finish, print))
    assert old.group.configurations.newest.cluster
    growing.pass_ms(5000)
    new = next(member for member in followers if member.group.engine.is_leader)
    for _ in range(60):
        new.set_alarms(1)
        growing.pass_ms(20)
    growing.pass_ms(3000)
    assert new.group.journal.first_index > old.group.journal.last_index
    for cut in cuts:
        growing.network.heal(*cut)
    growing.until(lambda: old.group.snapshots_installed)
    caught_up = old.group.catch_up_times
    assert (sum(caught_up.counts), 0 < caught_up.total < 10) == (1, True)
    assert not old.group.configurations.newest.cluster


def test_node_that_lost_its_configuration_leads_on_its_links() -> None:
    """The directories of its peers are unknown, but their links are alive."""
    growing = Growing()
    for member in growing.members:
        member.start(raises_version=False)
    growing.until(lambda: all(member.machine.entries > 0 for member in growing.members))
    growing.pass_ms(500)
    old, followers = growing.leader(), growing.followers()
    links = dict(growing.network._links[old.name].current)
    for other in followers:
        growing.network.lag(old.name, other.name, 3.0)
    finish = MemberChange(Verb.FINISH_UPGRADE, version=old.machine.versions[1])
    old.runtime.enter(lambda: old.group.reconfiguration.request(finish, print))
    assert old.group.configurations.newest.cluster
    growing.until(lambda: not old.group.configurations.newest.cluster)
    for other in followers:
        growing.network.lag(old.name, other.name, 0.0)
    growing.pass_ms(4000)
    growing.lead_by(old.name)
    assert growing.network._links[old.name].current == links
    growing.all_submit()
    growing.pass_ms(2000)
    assert growing.leader() is old
    assert len({member.group.dump() for member in growing.members}) == 1


# Files that are lost


@pytest.mark.parametrize("stops_in_order", [False, True])
def test_without_its_identity_a_directory_goes_by_its_log(stops_in_order: bool) -> None:
    """The error for a damaged file says that it may be deleted."""
    growing = Growing()
    growing.start()
    growing.add_fourth()
    growing.pass_ms(500)
    one = growing.followers()[0]
    if stops_in_order:
        one.group.stop()
    one.end()
    one.disk.lose_file(IDENTITY)
    one.start()
    assert one.group.configurations.newest.cluster
    assert one.group.configurations.newest.membership.voters == set("abcd")
    growing.pass_ms(5000)


class Grown(Growing):
    """Three nodes that are in each other's files, and two more that have joined."""

    def __init__(self) -> None:
        Trio.__init__(self, list("abcde"), listed=list("abc"))
        *self.members, self.fourth, self.fifth = self.members

    def grow(self) -> None:
        self.start()
        for node, voters in ((self.fourth, "abcd"), (self.fifth, "abcde")):
            node.start(joins=True)
            self.members.append(node)
            self.until(lambda voters=voters: self.agrees(voters))
        self.pass_ms(500)


def test_a_lost_identity_does_not_make_two_majorities() -> None:
    grown = Grown()
    grown.grow()
    a = next(node for node in grown.members if node.name == "a")
    a.group.stop()
    a.end()
    a.disk.lose_file(IDENTITY)
    grown.pass_ms(3000)
    a.start()
    grown.pass_ms(3000)
    for one in "ab":
        for two in "cde":
            grown.network.cut(one, two)
            grown.network.cut(two, one)
    grown.pass_ms(10_000)
    [leader] = [node.name for node in grown.members if node.group.engine.is_leader]
    assert leader in "cde"


def test_first_node_of_a_cluster_is_repaired_from_later_members() -> None:
    """Its file lists no peers, but its directory has them."""
    growing = Growing("abc")
    growing.listed = ["a"]
    first, second, third = [*growing.members, growing.fourth]
    growing.members = [first]
    first.start()
    growing.until(lambda: first.is_settled)
    for node, voters in ((second, "ab"), (third, "abc")):
        node.start(joins=True)
        growing.members.append(node)
        growing.until(lambda voters=voters: growing.agrees(voters))
    growing.pass_ms(500)
    first.end()
    first.disk.lose_file(next(path for path in first.disk.files() if path.endswith("log/manifest")))
    growing.pass_ms(3000)
    first.start()
    growing.until(lambda: growing.agrees("abc") and first.group.rejoin.voter_status is VoterStatus.VOTER)


# Reported configurations


def test_node_with_an_undone_joining_searches_the_cluster_again() -> None:
    """It was told by a leader that could not commit it, and is started again."""
    growing = Growing()
    growing.start()
    leader, followers = growing.leader(), growing.followers()
    cuts = [
        cut
        for other in followers
        for one in (leader.name, "d")
        for cut in ((one, other.name), (other.name, one))
    ]
    for cut in cuts:
        growing.network.cut(*cut)
    growing.fourth.start(joins=True)
    growing.until(lambda: growing.fourth.group.rejoin.voter_status is VoterStatus.VOTER)
    growing.fourth.end()
    growing.pass_ms(4000)  # the rest elects a leader without this entry
    for cut in cuts:
        growing.network.heal(*cut)
    growing.pass_ms(4000)
    growing.fourth.start(joins=True)
    growing.members.append(growing.fourth)
    growing.until(lambda: growing.agrees("abcd"))


def test_node_removed_before_it_had_the_log_learns_it() -> None:
    growing = Growing()
    growing.start()
    joining = growing.fourth
    joining.start(joins=True)
    growing.until(
        lambda: (
            joining.group.rejoin.voter_status is VoterStatus.VOTER and joining.group.journal.last_index <= 1
        )
    )
    joining.end()
    growing.pass_ms(2000)
    assert growing.outcome_of(growing.leader(), MemberChange(Verb.REMOVE, "d", id_of(joining))) == ""
    joining.start(joins=True)
    growing.members.append(joining)
    growing.stops(joining)


def test_node_without_configuration_believes_a_reported() -> None:
    """An emptied node hears those of its file before these have applied anything: then the cluster seems unnamed."""
    grown = Grown()
    grown.grow()
    a, b, c, d, _ = grown.members
    grown.lead_by("d")
    assert grown.outcome_of(d, MemberChange(Verb.REMOVE, "c", id_of(c))) == ""
    grown.stops(c)
    for node in (a, b):
        node.end()
    c.disk.lose_everything()
    c.start()
    grown.members.append(c)
    grown.pass_ms(2000)
    for node in (a, b):
        node.start()
    grown.pass_ms(5000)
    grown.lead_by("de")
    grown.until(lambda: c.group.configurations.newest.cluster)
