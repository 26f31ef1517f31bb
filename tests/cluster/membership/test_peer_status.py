"""A node's view of its peers, and its own status."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.group.low_space import LowSpace
from cluster.log.hardstate import VoterStatus
from cluster.membership.alarms import Alarms
from cluster.membership.peer_status import Peers, member_status
from cluster.raft.messages import Alarm, Status
from tests.cluster.configurations import configurations_of, directory_of

STATUS = Status(*range(1, len(Status._fields) + 1))._replace(
    voter_status=VoterStatus.VOTER, alarm=Alarm(0), state=0, time_ms=1000, wall_ms=1700
)


DIRECTORIES: dict[str, bytes | None] = {name: directory_of(name) for name in "bcde"}


class Room:
    """In place of `FreeSpace`."""

    low = False

    def is_low(self, _now_s: float) -> bool:
        return self.low


@pytest.fixture
def peers() -> Peers:
    return Peers(DIRECTORIES, now_s=10.0)


def test_silent_peer_is_neither_a_voter_nor_in_alarm(peers: Peers) -> None:
    peers.record_status("b", STATUS)
    peers.record_status("c", STATUS._replace(voter_status=VoterStatus.LEARNER, alarm=Alarm.DISK))
    peers.record_status("d", STATUS._replace(voter_status=VoterStatus.BLANK, alarm=Alarm.DISK | Alarm.MEMORY))
    assert peers.voters() == ["b"]
    assert [peers.alarmed(alarm) for alarm in (Alarm.DISK, Alarm.MEMORY)] == [["c", "d"], ["d"]]


def test_silence_counts_from_the_last_frame_and_death_from_news(peers: Peers) -> None:
    assert (peers.silent_s("b", 12.0), peers.dead_s("b", 12.0)) == (2.0, None)
    peers.record_contact("b", 11.0)
    peers.died("b", 12.0)
    peers.died("b", 13.0)
    assert (peers.silent_s("b", 14.0), peers.dead_s("b", 14.0)) == (3.0, 2.0)
    peers.connected("b", 15.0)
    assert (peers.silent_s("b", 16.0), peers.dead_s("b", 16.0)) == (1.0, None)


def test_link_is_lost_from_its_end_until_the_next_link(peers: Peers) -> None:
    assert peers.lost_s("b", 12.0) is None
    peers.lost("b", 12.0)
    peers.lost("b", 13.0)
    assert peers.lost_s("b", 14.0) == 2.0
    peers.connected("b", 15.0)
    assert peers.lost_s("b", 16.0) is None


def test_status_is_forgotten_when_the_directory_changes(peers: Peers) -> None:
    for name in "bcd":
        peers.record_status(name, STATUS)
    peers.died("b", 11.0)
    peers.configure(DIRECTORIES | {"b": None, "c": b"another", "e": directory_of("e")}, now_s=12.0)
    assert [peers.status(name) for name in "bcde"] == [None, None, STATUS, None]
    assert (peers.silent_s("b", 13.0), peers.dead_s("b", 13.0)) == (3.0, 2.0)


def test_status_received_before_the_configuration_is_kept() -> None:
    peers = Peers(dict.fromkeys(DIRECTORIES), now_s=10.0)
    peers.record_status("b", STATUS)
    peers.configure(DIRECTORIES, now_s=11.0)
    assert peers.status("b") == STATUS


def test_status_of_a_member_is_shown() -> None:
    reported = member_status("b", STATUS, is_up=True, leads=False)
    assert (
        reported.name,
        reported.state,
        reported.voter_status,
        reported.alarm,
        reported.clock_offset_ms,
    ) == (
        "b",
        "follower",
        "voter",
        False,
        700,
    )
    assert member_status("b", STATUS._replace(time_ms=0), is_up=True, leads=False).clock_offset_ms is None
    assert reported.last_index == STATUS.last_index
    assert reported.disk_free_bytes == STATUS.disk_free_bytes
    assert member_status("b", STATUS._replace(state=1), is_up=True, leads=False).state == "candidate"
    assert member_status("b", STATUS._replace(state=1), is_up=True, leads=True).state == "leader"
    assert member_status("b", STATUS, is_up=False, leads=True).state == "down"
    assert set(member_status("b", None, is_up=True, leads=False)[2:]) == {None}


def test_publishers_wait_while_a_majority_lacks_space(peers: Peers) -> None:
    room = Room()
    alarms = Alarms(configurations_of("abcde"), peers, room)  # pyright: ignore[reportArgumentType]
    peers.record_status("b", STATUS._replace(alarm=Alarm.DISK))
    peers.record_status("c", STATUS._replace(alarm=Alarm.DISK | Alarm.MEMORY))
    assert not alarms.update(10.0)
    assert alarms.reason is None
    peers.record_status("d", STATUS._replace(alarm=Alarm.DISK))
    assert alarms.update(10.0)
    assert (alarms.active, alarms.reason, alarms.own(10.0)) == (Alarm.DISK, "low on disk", Alarm(0))
    alarms.low_on_memory = True
    assert alarms.update(10.0)
    assert (alarms.reason, alarms.own(10.0)) == ("low on memory & disk", Alarm.MEMORY)
    peers.record_status("d", STATUS)
    alarms.low_on_memory = False
    alarms.lacks_space = True
    assert (alarms.own(10.0), alarms.update(10.0), alarms.reason) == (Alarm.DISK, True, "low on disk")
    alarms.lacks_space = False
    assert alarms.update(10.0)
    room.low = True
    assert [alarms.update(10.0) for _ in range(2)] == [True, False]
    assert alarms.active == alarms.own(10.0) == Alarm.DISK


def test_node_without_space_for_a_snapshot_stays_low_on_disk(peers: Peers) -> None:
    """The part of the snapshot is removed when the rest does not fit; then there was enough space for a moment."""
    alarms = Alarms(configurations_of("abcde"), peers, Room())  # pyright: ignore[reportArgumentType]
    engine = SimpleNamespace(journal=SimpleNamespace(full=False, last_index=0))
    housekeeping, receiver = SimpleNamespace(awaits_entry=False), SimpleNamespace(lacks_space=True)
    runtime = SimpleNamespace(monotonic=lambda: 10.0)
    reported: list[str | None] = []
    replica: Any = SimpleNamespace(
        housekeeping=housekeeping, engine=engine, runtime=runtime, log_sync=None, fail_stop=None
    )
    parts: dict[str, Any] = {
        "leadership": None,
        "statuses": None,
        "receiver": receiver,
        "hooks": SimpleNamespace(alarm_changed=reported.append, propose_nothing=lambda: None),
    }
    low_space = LowSpace(replica, alarms=alarms, **parts)
    for lacks_space in (True, True, False):
        receiver.lacks_space = lacks_space
        low_space.check()
    assert reported == ["low on disk", None]
