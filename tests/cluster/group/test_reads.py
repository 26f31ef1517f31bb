from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster.group.reads import PATIENCE_BEATS, Reads
from tests.cluster.harness import Trio

if TYPE_CHECKING:
    from tests.cluster.harness import Member

BEAT_MS = 250


class Read:
    """A read of a member, with the entries that the member had applied when the read was answered."""

    def __init__(self, member: Member) -> None:
        self.applied: list[int] = []
        self.failures = 0
        self._member = member
        member.runtime.enter(lambda: member.group.read(self._done, self._failed))

    def _done(self) -> None:
        self.applied.append(self._member.group.applied_index)

    def _failed(self) -> None:
        self.failures += 1

    @property
    def is_over(self) -> bool:
        return bool(self.applied or self.failures)


@pytest.fixture
def trio() -> Trio:
    trio = Trio()
    trio.start()
    trio.pass_ms(3_000)  # the newest version is agreed on
    return trio


def last_indexes(trio: Trio) -> list[int]:
    return [member.group.last_index for member in trio.members]


@pytest.mark.parametrize("is_leader", [True, False], ids=["leader", "follower"])
def test_read_is_answered_without_an_entry(trio: Trio, *, is_leader: bool) -> None:
    before = last_indexes(trio)
    read = Read(trio.leader() if is_leader else trio.followers()[0])
    trio.until(lambda: read.is_over, 100)
    assert read.applied == [max(before)]
    assert last_indexes(trio) == before


def test_reads_of_a_pass_share_a_request(trio: Trio) -> None:
    follower = trio.followers()[0]
    reads = [Read(follower) for _ in range(100)]
    number = follower.group._reads._last_number
    trio.until(lambda: all(read.is_over for read in reads))
    assert follower.group._reads._last_number <= number + 1


def test_read_sees_an_entry_that_is_committed_before(trio: Trio) -> None:
    trio.leader().set_alarms(60_000)
    index = trio.leader().group.applied_index
    read = Read(trio.followers()[0])
    trio.until(lambda: read.is_over, 100)
    assert read.applied >= [index]


def test_read_at_a_frozen_leader_waits_for_the_majority(trio: Trio) -> None:
    """The leader loses both links, a majority elects a new leader and goes on: the old leader answers no read."""
    leader, followers = trio.leader(), trio.followers()
    for follower in followers:
        trio.network.cut(leader.name, follower.name)
        trio.network.cut(follower.name, leader.name)
    read = Read(leader)
    trio.pass_ms(PATIENCE_BEATS * BEAT_MS * 3)
    assert read.applied == []
    assert read.failures == 1


def test_read_fails_when_the_leader_dies(trio: Trio) -> None:
    follower = trio.followers()[0]
    leader = trio.leader()
    leader.end()
    read = Read(follower)
    trio.until(lambda: read.is_over)
    assert (read.applied, read.failures) == ([], 1)


def test_reads_are_impossible_before_the_version_is_agreed_on() -> None:
    trio = Trio()
    for member in trio.members:
        member.start(raises_version=False)
    trio.until(lambda: all(member.group.leader for member in trio.members))
    read = Read(trio.followers()[0])
    trio.until(lambda: read.is_over)
    assert (read.applied, read.failures) == ([], 1)


def test_leader_without_a_majority_of_links_fails_reads(trio: Trio) -> None:
    leader = trio.leader()
    for follower in trio.followers():
        follower.end()
    read = Read(leader)
    trio.until(lambda: read.is_over, 4 * PATIENCE_BEATS * BEAT_MS)
    assert (read.applied, read.failures) == ([], 1)


def test_read_fails_when_its_index_is_lost_with_the_leader(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new leader answers with the end of its log, which may be lost before it is committed."""
    follower, leader = trio.followers()[0], trio.leader()
    monkeypatch.setattr(Reads, "_read_index", lambda reads: reads._journal.last_index + 1_000)
    read = Read(follower)
    trio.pass_ms(BEAT_MS)
    assert not read.is_over
    leader.end()
    trio.until(lambda: read.is_over)
    assert (read.applied, read.failures) == ([], 1)
