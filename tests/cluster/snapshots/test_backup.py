"""A backup holds exactly the applied entries; a damaged or partial backup is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.configuration.configuration import ID_BYTES, OtherVersion, PeerAddress, Versions
from cluster.log.hardstate import VoterStatus
from cluster.runtime.asyncio_runtime import ReadOnlyDisk
from cluster.snapshots.backup import (
    CONTENTS,
    SUMS,
    BadBackup,
    Contents,
    check,
    examine,
    pack_contents,
    read_contents,
    sum_line,
    unpack_contents,
)
from cluster.snapshots.restore import NewCluster, recover, restore
from cluster.storage.identity import Owner
from tests.cluster.harness import Alarms, Member, Trio

if TYPE_CHECKING:
    from cluster.runtime.ports import Disk

ADDRESS = PeerAddress("host", 7)
GROUP = "groups/0"


class Named(Alarms):
    """A machine of a program that supports the version in which clusters get an id."""

    versions = (1, 2)


class Old(Alarms):
    """A machine of a program that cannot."""

    versions = (1, 1)


def describe(body: bytes) -> str:
    return f"{len(body)} bytes"


def taken(member: Member) -> Contents:
    """A backup of everything that the member has applied; its files stay."""
    found: list[Contents] = []
    least = member.group.engine.applied_index

    def request() -> None:
        contents = member.group.backups.take(least, "/data")
        if contents is not None:
            found.append(contents)

    def is_taken() -> bool:
        member.runtime.enter(request)
        return bool(found)

    member._trio.until(is_taken)
    assert found[0].index >= least
    return found[0]


def store(member: Member, contents: Contents, directory: Path) -> Path:
    """Put a backup into a directory."""
    directory.mkdir()
    files = {CONTENTS: pack_contents(contents)}
    files |= {name: member.disk.read_file(f"{GROUP}/log/{name}") for name, _ in contents.files}
    for name, data in files.items():
        (directory / name).write_bytes(data)
    write_sums(directory)
    return directory


def write_sums(directory: Path) -> None:
    contents = unpack_contents((directory / CONTENTS).read_bytes())
    names = [CONTENTS, *(name for name, _ in contents.files)]
    lines = [sum_line(sha256((directory / name).read_bytes()).hexdigest(), name) for name in names]
    (directory / SUMS).write_text("".join(lines))


def reading(directory: Path) -> Disk:
    return cast("Disk", ReadOnlyDisk(directory))


def checked(directory: Path) -> Contents:
    contents = read_contents(reading(directory))
    check(reading(directory), contents, describe)
    return contents


@pytest.fixture
def trio() -> Trio:
    trio = Trio()
    trio.start()
    for member in trio.members:
        member.set_alarms(1_000_000, 2_000_000)
    trio.pass_ms(500)
    return trio


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of three segments."""
    trio = Trio()
    leader = trio.start()
    directory = tmp_path_factory.mktemp("backup") / "backup"
    for _ in range(3):
        leader.set_alarms(1_000_000)
        contents = taken(leader)
    return store(leader, contents, directory)


# Giving


@pytest.mark.parametrize("number", [0, 1, 2])
def test_backup_of_any_node_holds_its_applied_entries(trio: Trio, number: int, tmp_path: Path) -> None:
    member = trio.members[number]
    contents = taken(member)
    assert (contents.cluster, contents.node) == ("test", member.name)
    held = member.group.configurations.committed
    assert (contents.cluster_id, contents.version) == (held.cluster, held.version)
    assert contents.directory == f"/data/{GROUP}/log"
    assert checked(store(member, contents, tmp_path / "backup")) == contents
    assert [found.problem for found in examine(reading(tmp_path / "backup"), contents, describe)] == [
        None
    ] * len(contents.files)


def test_next_backup_has_a_further_segment(trio: Trio) -> None:
    leader = trio.leader()
    first = taken(leader)
    leader.set_alarms(3_000_000)
    second = taken(leader)
    assert second.segments[: len(first.segments)] == first.segments
    assert len(second.segments) == len(first.segments) + 1


def test_backup_without_a_majority_excludes_unapplied_entries(trio: Trio) -> None:
    leader = trio.leader()
    for member in trio.members:
        if member is not leader:
            member.end()
    applied = leader.group.engine.applied_index
    leader.runtime.enter(lambda: leader.group.propose([b"\x91\x01"]) and None)
    trio.pass_ms(500)
    assert leader.group.journal.last_index > applied
    contents: list[Contents | None] = []
    for _ in range(3):
        leader.runtime.enter(lambda: contents.append(leader.group.backups.take(applied, "")))
        trio.pass_ms(100)
    assert contents == [None] * 3


def test_files_are_pinned_until_they_are_given_back(trio: Trio) -> None:
    leader = trio.leader()
    pinned = leader.group.housekeeping.pinned
    contents, again = taken(leader), taken(leader)
    assert set(pinned) == {name for name, _ in [*contents.files, *again.files]}
    for given_back in (contents, again):
        leader.group.backups.give_back(given_back)
    assert pinned == {}


# Damaged and partial backups


def test_contents_file_round_trips(backup: Path) -> None:
    data = (backup / CONTENTS).read_bytes()
    assert pack_contents(unpack_contents(data)) == data


def changed(backup: Path, directory: Path, change: Callable[[Path], object]) -> Path:
    shutil.copytree(backup, directory, dirs_exist_ok=True)
    change(directory)
    return directory


def refusal(directory: Path) -> str:
    with pytest.raises(BadBackup) as refused:
        checked(directory)
    return str(refused.value)


def test_cut_or_foreign_backup_is_refused(backup: Path, tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"this is not a backup: there is no {CONTENTS}"
    cut = changed(backup, tmp_path / "cut", lambda copy: (copy / SUMS).unlink())
    assert refusal(cut) == f"the backup is cut: {SUMS}, which comes last, is missing; make another one"
    name = unpack_contents((backup / CONTENTS).read_bytes()).segments[1].name
    lost = changed(backup, tmp_path / "lost", lambda copy: (copy / name).unlink())
    assert refusal(lost).startswith(f"{name}: the file is missing; make another backup")


def test_a_backup_of_a_later_format_is_refused_by_its_number(backup: Path, tmp_path: Path) -> None:
    def change(copy: Path) -> None:
        text = (copy / CONTENTS).read_text()
        (copy / CONTENTS).write_text(text.replace('"format": 1', '"format": 2'))

    assert refusal(changed(backup, tmp_path / "copy", change)).startswith(
        "the backup has format 2, which is "
    )


def test_damage_before_the_backup_is_found_despite_checksums(backup: Path, tmp_path: Path) -> None:
    name = unpack_contents((backup / CONTENTS).read_bytes()).segments[0].name

    def change(copy: Path) -> None:
        flip(copy / name, 200)
        write_sums(copy)

    refused = refusal(changed(backup, tmp_path / "copy", change))
    assert refused.startswith(f"{name}: it was damaged on node ")


def flip(file: Path, place: int, bit: int = 0) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1 << bit
    file.write_bytes(data)


@settings(max_examples=settings.default.max_examples * 3 // 2, deadline=None)
@given(data=st.data())
def test_flipped_bit_or_cut_of_a_backup_is_found(
    backup: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    names = sorted(file.name for file in backup.iterdir())
    sizes = [(backup / name).stat().st_size for name in names]
    place = data.draw(st.integers(0, sum(sizes) - 1))
    number = 0
    while place >= sizes[number]:
        place -= sizes[number]
        number += 1
    copy = tmp_path_factory.mktemp("copies") / "copy"
    shutil.copytree(backup, copy)
    if data.draw(st.booleans()):
        flip(copy / names[number], place, data.draw(st.integers(0, 7)))
    else:
        os.truncate(copy / names[number], place)
    refusal(copy)
    shutil.rmtree(copy)


# New clusters


def restored(backup: Path, member: Member, name: str | None = None) -> NewCluster:
    owner = Owner("test", name or member.name, 0)
    contents = checked(backup)
    return restore(reading(backup), contents, member.disk, GROUP, owner, ADDRESS, Named(), 1000, Random(5))


def alone_with(machine: Alarms, member: Member) -> None:
    """Start it and wait until it has taken part."""
    member.start(machine)
    member._trio.until(lambda: member.group.engine.is_leader and not member.group.pending_batches)


def test_restored_node_is_a_new_cluster_with_the_backup(trio: Trio, tmp_path: Path) -> None:
    leader = trio.leader()
    leader.set_alarms(5_000_000)
    backup = store(leader, taken(leader), tmp_path / "backup")
    due = list(leader.machine.due)
    for listed in (["a"], ["a", "b", "c"]):
        node = Trio(["a"], listed).members[0]
        new = restored(backup, node)
        machine = Named()
        alone_with(machine, node)
        assert machine.due == due
        newest = node.group.configurations.newest
        assert (newest.cluster, newest.version, newest.members) == (new.cluster_id, 2, (new.member,))
        assert new.member.id == node.group.members.id
        assert node.group.members.names == ("a",)
        node.set_alarms(7_000_000)
        origins = node.group._state.origins
        assert [name for name, _ in origins.living()] == ["a"], "what the others held is given up"


def named(trio: Trio) -> bytes:
    """Let the cluster have an id, at version 2; returns the id."""
    cluster = b"c" * ID_BYTES
    leader = trio.leader()
    index: list[int] = []
    leader.runtime.enter(
        lambda: index.append(
            leader.group.reconfiguration.propose(lambda held: replace(held, cluster=cluster, version=2))
        )
    )
    trio.until(lambda: leader.group.engine.applied_index >= index[0])
    return cluster


def test_restored_node_belongs_to_the_new_cluster_at_once(tmp_path: Path) -> None:
    trio = Trio()
    trio.start()
    old = named(trio)
    contents = taken(trio.leader())
    assert (contents.cluster_id, contents.version) == (old, 2)
    node = Trio(["a"]).members[0]
    new = restored(store(trio.leader(), contents, tmp_path / "backup"), node)
    node.start(Named())
    held = node.group.configurations
    assert held.committed is held.newest
    assert held.newest.cluster == new.cluster_id != old
    assert held.newest.version == 2
    journal = node.group.journal
    assert journal.first_index == contents.index + 2, (
        "no log that anybody is given has the old cluster's members"
    )
    assert journal.read(contents.index)


def test_terms_of_two_restores_of_a_backup_differ(backup: Path) -> None:
    terms = []
    for seed in range(3):
        node = Trio(["a"]).members[0]
        owner = Owner("test", "a", 0)
        contents = checked(backup)
        arguments = (reading(backup), contents, node.disk, GROUP, owner, ADDRESS, Named(), 1000, Random(seed))
        restore(*arguments)
        node.start(Named())
        terms.append(node.group.journal.last_term)
    assert len(set(terms)) == 3
    assert min(terms) > contents.term + 100


def test_each_restore_begins_a_new_cluster_with_new_directories(backup: Path) -> None:
    clusters = []
    for seed in range(2):
        node = Trio(["a"]).members[0]
        contents = checked(backup)
        owner = Owner("test", "a", 0)
        arguments = (reading(backup), contents, node.disk, GROUP, owner, ADDRESS, Named(), 1000, Random(seed))
        clusters.append(restore(*arguments))
    first, second = clusters
    assert first.cluster_id != second.cluster_id
    assert first.member.id != second.member.id


def test_first_node_of_a_restore_may_have_any_name(backup: Path) -> None:
    node = Trio(["z"]).members[0]
    restored(backup, node)
    alone_with(Named(), node)
    assert node.group.members.names == ("z",)
    node.set_alarms(1)


def test_program_without_cluster_ids_restores_no_file(backup: Path) -> None:
    node = Trio(["a"]).members[0]
    owner = Owner("test", "a", 0)
    with pytest.raises(OtherVersion, match="version 2 of the state, and this program can run 1"):
        restore(reading(backup), checked(backup), node.disk, GROUP, owner, ADDRESS, Old(), 1000, Random(5))
    assert node.disk.files() == {}


def stopped(member: Member, trio: Trio) -> list[int]:
    """End all nodes; return the due times that the member has applied."""
    due = list(member.machine.due)
    for other in trio.members:
        other.end()
    return due


def recovered(member: Member) -> NewCluster:
    return recover(member.disk, GROUP, Named(), 1000, Random(6))


def test_survivor_goes_on_by_itself_with_its_state(trio: Trio) -> None:
    survivor = trio.members[1]
    due = stopped(survivor, trio)
    new = recovered(survivor)
    machine = Named()
    alone_with(machine, survivor)
    assert machine.due == due
    newest = survivor.group.configurations.newest
    assert (newest.cluster, newest.version, newest.membership.members) == (new.cluster_id, 2, ("b",))
    survivor.set_alarms(9_000_000)
    assert [name for name, _ in survivor.group._state.origins.living()] == ["b"]


def test_repeated_recovery_changes_no_file(trio: Trio) -> None:
    survivor = trio.members[1]
    stopped(survivor, trio)
    assert recovered(survivor) == recovered(survivor)


@pytest.mark.slow
@pytest.mark.parametrize("power_loss", [False, True])
def test_interrupted_recovery_is_completed_by_the_next(power_loss: bool) -> None:
    steps, is_done = 0, False
    while not is_done:
        trio = Trio()
        survivor = trio.start()
        due = stopped(survivor, trio)
        ended: list[BaseException] = []
        survivor.disk.end_process_after(steps)
        try:
            recovered(survivor)
            is_done = True
        except BaseException as error:  # noqa: BLE001 - the simulated process ends
            ended.append(error)
        survivor.disk.spare_process()
        survivor.disk.crash(power_loss=power_loss)
        new = recovered(survivor)
        machine = Named()
        alone_with(machine, survivor)
        assert machine.due == due
        assert survivor.group.configurations.newest.cluster == new.cluster_id
        assert survivor.group.rejoin.voter_status is VoterStatus.VOTER
        steps += 1
    assert steps > 5


@pytest.mark.parametrize("machine", [Old, Named], ids=["without an id", "with an id"])
def test_directories_from_before_the_recovery_are_refused(machine: type[Alarms]) -> None:
    """They live on by themselves, as the majority that they are; neither hears the other."""
    trio = Trio()
    for member in trio.members:
        member.start(machine())
    trio.until(lambda: all(member.machine.entries for member in trio.members))
    trio.pass_ms(2_000)
    survivor, *peers = trio.members
    stopped(survivor, trio)
    recovered(survivor)
    for member in trio.members:
        member.start(Named())
    trio.pass_ms(10_000)
    assert survivor.group.engine.is_leader
    assert survivor.group.members.names == ("a",)
    assert [survivor.group._links.connected(other.name) for other in peers] == [False, False]
    survivor.set_alarms(9_000_000)
    assert sum(other.group.engine.is_leader for other in peers) == 1
    assert all(other.group.engine.term < 100 for other in peers)


def test_versions_of_the_new_member_are_those_of_the_program(backup: Path) -> None:
    assert restored(backup, Trio(["a"]).members[0]).member.versions == Versions(1, 2)
