"""Claims of a data directory: its owner, its incarnation, and whether writes may be lost."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

import pytest

from chaos.sim.world.disk import ProcessEnds, SimulatedDisk
from cluster.configuration.configuration import OtherVersion, Versions
from cluster.log.mirrored_file import pack_twice
from cluster.log.segment import UnknownFormat
from cluster.runtime.ports import pack
from cluster.storage.identity import (
    FILE,
    MEMBER_FILE,
    START_FILES,
    Claim,
    DirectoryId,
    ForeignDirectory,
    Identity,
    OtherMembers,
    Owner,
    claim_directory,
    directory_id,
    mark_writes_lost,
    names_of,
    store_identity,
    unmark_writes_lost,
)

if TYPE_CHECKING:
    from collections.abc import Callable

OWNER = Owner("cluster", "a", 0)
MEMBERS = ("a", "b", "c")


def ignore(_delay_s: float, _callback: Callable[[], None]) -> None:
    """Drop the callback."""


def a_disk(seed: int = 1) -> SimulatedDisk:
    disk = SimulatedDisk(Random(seed), ignore)
    disk.make_directory("group")
    return disk


def claim(
    disk: SimulatedDisk,
    wall_ms: int = 0,
    owner: Owner = OWNER,
    version: int = 7,
    members: tuple[str, ...] = MEMBERS,
    leap: int = 0,
) -> Claim:
    return claim_directory(disk, "group", owner, Versions(version, version), members, wall_ms, leap)[1]


def test_incarnation_exceeds_the_last_and_the_clock() -> None:
    disk = a_disk()
    assert [claim(disk, wall_ms).incarnation for wall_ms in (100, 50, 200)] == [100, 101, 200]


def test_only_the_first_incarnation_leaps() -> None:
    disk = a_disk()
    assert [claim(disk, 100, leap=leap).incarnation for leap in (7, 9, 9)] == [107, 108, 109]


@pytest.mark.parametrize(
    "owner", [Owner("other", "a", 0), Owner("cluster", "b", 0), Owner("cluster", "a", 1)]
)
def test_directory_of_a_foreign_owner_is_refused(owner: Owner) -> None:
    disk = a_disk()
    claim(disk)
    with pytest.raises(ForeignDirectory, match="belongs to node 'a' of cluster 'cluster'"):
        claim(disk, owner=owner)


@pytest.mark.parametrize("version", [6, 8])
def test_directory_of_a_foreign_machine_version_is_refused(version: int) -> None:
    disk = a_disk()
    claim(disk, version=version)
    before = disk.read_file(f"group/{FILE}")
    with pytest.raises(OtherVersion) as caught:
        claim(disk)
    assert str(caught.value) == (
        f"group: the log is at version {version} of the state, and this program can run 7: start one that can"
    )
    assert disk.read_file(f"group/{FILE}") == before
    claim(disk, version=version)


@pytest.mark.parametrize("members", [("a",), ("b", "c", "d"), ("a", "b"), ("a", "b", "c", "d")])
def test_directory_of_a_cluster_of_different_members_is_refused(members: tuple[str, ...]) -> None:
    disk = a_disk()
    claim(disk)
    before = {path: disk.read_file(path) for path in disk.files()}
    with pytest.raises(OtherMembers) as caught:
        claim(disk, members=members)
    assert str(caught.value) == (
        f"group: the directory belongs to the cluster of a, b, c, and the configuration lists {', '.join(members)}; "
        "put the list back: members are changed with `qq member add` and `qq member remove`, once all nodes run this "
        "release"
    )
    assert {path: disk.read_file(path) for path in disk.files()} == before
    claim(disk)


@pytest.mark.parametrize("before", [MEMBERS, ("a", "b", "x"), ()])
@pytest.mark.parametrize("members", [MEMBERS, ()])
def test_directory_without_promises_belongs_to_no_list(
    before: tuple[str, ...], members: tuple[str, ...]
) -> None:
    disk = a_disk()
    claim(disk, members=before)
    for is_blank in (True, False):
        versions = Versions(7, 7)
        identity, _ = claim_directory(disk, "group", OWNER, versions, members, 0, 0, is_blank=is_blank)
        assert names_of(disk, "group", identity) == members
    if members:
        with pytest.raises(OtherMembers):
            claim(disk, members=("a", "b", "x"))


@pytest.mark.parametrize("before", [MEMBERS, ()])
def test_directory_that_knows_of_peers_begins_no_cluster(before: tuple[str, ...]) -> None:
    disk = a_disk()
    claim(disk, members=before)
    with suppress(OtherMembers):
        identity, _ = claim_directory(disk, "group", OWNER, Versions(7, 7), ("a",), 0, 0, is_blank=True)
        assert names_of(disk, "group", identity) == ()
    claim(disk, members=before)


def test_directory_with_members_in_its_log_needs_no_list() -> None:
    disk = a_disk()
    claim(disk)
    identity = Identity(OWNER, 8, ())
    store_identity(disk, "group", identity)
    found, _ = claim_directory(disk, "group", OWNER, Versions(7, 8), ("somebody",), 0, 0)
    assert found == identity
    with pytest.raises(OtherVersion, match="at version 8 of the state, and this program can run 7"):
        claim(disk)


@pytest.mark.parametrize("in_identity", [False, True])
def test_members_beside_the_log_are_found(in_identity: bool) -> None:
    """They are in the file `member`, or in the identity, where programs wrote them that were never released."""
    disk = a_disk()
    claim(disk)
    if in_identity:
        store_identity(disk, "group", Identity(OWNER, 8, (), MEMBERS))
    else:
        id_of(disk)
        store_identity(disk, "group", Identity(OWNER, 8, ()))
    identity, _ = claim_directory(disk, "group", OWNER, Versions(7, 8), MEMBERS, 0, 0)
    assert names_of(disk, "group", identity) == MEMBERS
    with pytest.raises(OtherMembers):
        claim_directory(disk, "group", OWNER, Versions(7, 8), ("somebody",), 0, 0)


def test_a_member_without_such_names_is_read() -> None:
    disk = a_disk()
    disk.replace_file(
        f"group/{MEMBER_FILE}", pack_twice(b"RMEM", 1, OWNER.key(), pack([b"m" * 16, b"c" * 16, True]))
    )
    known = directory_id(disk, "group", OWNER, 1, MEMBERS, is_new=False)
    assert known == DirectoryId(b"m" * 16, b"c" * 16, has_others=True)


# The id of the member


def id_of(disk: SimulatedDisk, incarnation: int = 1, *, is_new: bool = False) -> bytes:
    return directory_id(disk, "group", OWNER, incarnation, MEMBERS, is_new=is_new).member


def test_member_id_is_made_once_per_directory() -> None:
    disk = a_disk()
    assert id_of(disk, 1) == id_of(disk, 2) == id_of(a_disk(), 1)
    assert id_of(disk) != id_of(a_disk(), 2)
    assert (
        id_of(disk) != directory_id(a_disk(), "group", OWNER._replace(node="b"), 1, (), is_new=False).member
    )
    forgetful = id_of(disk, 3, is_new=True)
    assert id_of(disk, 4) == forgetful != id_of(a_disk())


@pytest.mark.parametrize("half", [0, 1])
def test_single_copy_of_the_id_is_enough_and_mends_the_second(half: int) -> None:
    disk = a_disk()
    known = id_of(disk)
    whole = disk.read_file(f"group/{MEMBER_FILE}")
    damaged = bytearray(whole)
    damaged[half * len(whole) // 2 + 5] ^= 1
    disk.replace_file(f"group/{MEMBER_FILE}", bytes(damaged))
    assert id_of(disk, 2) == known
    assert disk.read_file(f"group/{MEMBER_FILE}") == whole


def test_id_without_a_whole_copy_is_refused() -> None:
    disk = a_disk()
    id_of(disk)
    disk.replace_file(f"group/{MEMBER_FILE}", b"whatever")
    with pytest.raises(ForeignDirectory, match="nobody knows which member this is"):
        id_of(disk)


def test_a_directory_of_an_older_format_is_refused() -> None:
    disk = a_disk()
    for old in (2, 3):
        disk.replace_file(f"group/{FILE}", pack_twice(b"RIDY", old, b"", pack([*OWNER, 5, "session"])))
        with pytest.raises(OtherVersion, match=r"an earlier version .* this program can run 7"):
            claim(disk)
    disk.replace_file(f"group/{FILE}", pack_twice(b"RIDY", 1, b"", b""))
    with pytest.raises(UnknownFormat, match="format version 1"):
        claim(disk)


def test_single_damaged_copy_is_survived_and_two_are_refused() -> None:
    disk = a_disk()
    claim(disk, 100)
    for bit in range(0, 512 * 8, 7):
        disk.flip_bit(f"group/{FILE}", bit)
        assert claim(disk).incarnation > 100
        disk.flip_bit(f"group/{FILE}", bit)
    disk.flip_bit(f"group/{FILE}", 80)
    disk.flip_bit(f"group/{FILE}", 512 * 8 + 80)
    with pytest.raises(ForeignDirectory, match="is damaged"):
        claim(disk)


def test_writes_may_be_lost_until_the_log_was_opened() -> None:
    disk = a_disk()
    assert claim(disk).writes_lost  # a new directory has no history
    assert claim(disk).writes_lost
    unmark_writes_lost(disk, "group", OWNER)
    assert not claim(disk).writes_lost
    disk.crash(power_loss=False)
    assert not claim(disk).writes_lost
    disk.crash(power_loss=True)
    assert claim(disk).writes_lost
    disk.crash(power_loss=False)
    assert claim(disk).writes_lost
    unmark_writes_lost(disk, "group", OWNER)
    unmark_writes_lost(disk, "group", OWNER)
    assert not claim(disk).writes_lost
    mark_writes_lost(disk, "group", OWNER)
    disk.crash(power_loss=False)
    assert claim(disk).writes_lost


def test_directory_claimed_before_is_claimed_without_space() -> None:
    disk = a_disk()
    claim(disk, 100)
    disk.full = True
    unmark_writes_lost(disk, "group", OWNER)
    assert claim(disk) == Claim(101, writes_lost=False)
    mark_writes_lost(disk, "group", OWNER)
    assert claim(disk) == Claim(102, writes_lost=True)


def test_a_first_claim_that_found_no_space_is_made_later() -> None:
    disk = a_disk()
    disk.full = True
    with pytest.raises(OSError, match="No space"):
        claim(disk)
    disk.full = False
    claim(disk)


def test_count_of_starts_survives_the_damage_of_a_single_file() -> None:
    disk = a_disk()
    claim(disk, 100)
    unmark_writes_lost(disk, "group", OWNER)
    for file in START_FILES:
        for bit in range(0, 512 * 8, 7):
            disk.flip_bit(f"group/{file}", bit)
            assert not claim(disk).writes_lost
    for file in START_FILES:
        disk.flip_bit(f"group/{file}", 80)
    assert claim(disk, 700) == Claim(700, writes_lost=True)


def test_failed_sync_is_recorded_as_far_as_the_disk_allows() -> None:
    disk = a_disk()
    claim(disk)
    unmark_writes_lost(disk, "group", OWNER)
    disk.fail_next_sync()
    mark_writes_lost(disk, "group", OWNER)
    claim(disk)


def test_a_crash_within_a_claim_forgets_no_loss() -> None:
    for seed in range(40):
        for steps in range(10):
            disk = a_disk(seed)
            incarnation = claim(disk, 100).incarnation
            unmark_writes_lost(disk, "group", OWNER)
            disk.crash(power_loss=True)
            disk.end_process_after(steps)
            with suppress(ProcessEnds):
                incarnation = claim(disk).incarnation
            disk.spare_process()
            disk.crash(power_loss=False)
            again = claim(disk)
            assert again.writes_lost
            assert again.incarnation > incarnation
