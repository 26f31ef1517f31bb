"""The peers as this node knows them: the last status, the time of the last message, and the time of death of each.

Invariants: a peer without a status counts as no voter and without alarms. The status of a data directory never counts
for a new directory under the same name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from cluster.log.hardstate import VoterStatus
from cluster.raft.elections import Role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cluster.raft.messages import Alarm, Status


STATUS_INTERVAL_S = 1.0
"""Seconds between two reports of each node's status to its peers."""
SILENT_S = 3 * STATUS_INTERVAL_S
"""Seconds of silence after which the last status of a peer no longer counts."""


class MemberStatus(NamedTuple):
    """The status of a member for operators; a field is None if this node does not know it."""

    name: str
    state: str
    term: int | None
    last_index: int | None
    commit_index: int | None
    applied_index: int | None
    voter_status: str | None
    """"voter", "learner" or "blank"."""
    first_index: int | None
    checkpoint_index: int | None
    disk_bytes: int | None
    disk_free_bytes: int | None
    alarm: bool | None
    clock_offset_ms: int | None
    """Milliseconds that the node's wall clock is ahead of the cluster's time, by the node's own judgment."""
    disk_hangs: bool | None
    """Whether a sync of the node's disk hangs, so that the node acknowledges no entry."""
    misses: Sequence[str] | None
    """The other members that the node has no link with, or does not hear."""
    hears_leader: bool | None
    """Whether the node leads, or hears the leader."""
    rolled_back_ms: int | None
    """When the node learnt that its directory was put back as it was earlier, in ms since 1970; None if it was not."""


@dataclass(slots=True)
class KnownPeer:
    """The knowledge of this node about a peer."""

    heard_s: float
    """When a message of the peer last arrived, on the monotonic clock; at first, when this node started."""
    lost_since_s: float | None = None
    """When the last link with the peer ended; unset while there is a link, and before the first link."""
    dead_since_s: float | None = None
    """Since when the peer has been known to be dead, because its host refuses connections."""
    directory: bytes | None = None
    """The id of the member's data directory; None until the member has a directory and the log a configuration."""
    status: Status | None = None
    """The last status that this directory has reported since this node started, or None."""


class Peers:
    """The knowledge of this node about all its peers."""

    def __init__(self, directories: Mapping[str, bytes | None], now_s: float) -> None:
        """Begin with these peers: `directories` maps each name to the id of its data directory, or None."""
        self._peers: dict[str, KnownPeer] = {}
        self.configure(directories, now_s)

    def configure(self, directories: Mapping[str, bytes | None], now_s: float) -> None:
        """Keep the knowledge about these peers, and begin with the peers that are new.

        The times of silence and death belong to the name, and stay when another directory takes it: by them, the
        clients of the earlier directory are evicted.
        """
        self._peers = {name: self._peers.get(name) or KnownPeer(now_s) for name in directories}
        for name, peer in self._peers.items():
            if peer.directory not in (None, directories[name]):
                peer.status = None
            peer.directory = directories[name]

    def status(self, peer: str) -> Status | None:
        return self._peers[peer].status

    # Events

    def connected(self, peer: str, now_s: float) -> None:
        known = self._peers[peer]
        known.heard_s = now_s
        known.lost_since_s = known.dead_since_s = None

    def record_contact(self, peer: str, now_s: float) -> None:
        self._peers[peer].heard_s = now_s

    def record_status(self, peer: str, status: Status) -> None:
        self._peers[peer].status = status

    def lost(self, peer: str, now_s: float) -> None:
        """Record that the link with the peer has ended; a repeated call has no effect."""
        known = self._peers[peer]
        if known.lost_since_s is None:
            known.lost_since_s = now_s

    def died(self, peer: str, now_s: float) -> None:
        """Record that the peer's process is dead; a repeated call has no effect."""
        known = self._peers[peer]
        if known.dead_since_s is None:
            known.dead_since_s = now_s

    # Queries

    def silent_s(self, peer: str, now_s: float) -> float:
        return now_s - self._peers[peer].heard_s

    def is_silent(self, peer: str, now_s: float) -> bool:
        """Return whether the peer has been silent for so long that its last status no longer counts."""
        return self.silent_s(peer, now_s) >= SILENT_S

    def lost_s(self, peer: str, now_s: float) -> float | None:
        """Return for how many seconds the peer has had no link; None if it has a link, or never had a link."""
        since_s = self._peers[peer].lost_since_s
        return None if since_s is None else now_s - since_s

    def dead_s(self, peer: str, now_s: float) -> float | None:
        """Return for how many seconds the peer has been known to be dead, or None if it is not."""
        since_s = self._peers[peer].dead_since_s
        return None if since_s is None else now_s - since_s

    def alarmed(self, alarm: Alarm) -> list[str]:
        """Return the names of the peers that report this alarm."""
        return [name for name, status in self._statuses() if status.alarm & alarm]

    def voters(self) -> list[str]:
        return [name for name, status in self._statuses() if status.voter_status == VoterStatus.VOTER]

    def _statuses(self) -> list[tuple[str, Status]]:
        return [(name, peer.status) for name, peer in self._peers.items() if peer.status is not None]


def member_status(name: str, status: Status | None, *, is_up: bool, leads: bool) -> MemberStatus:
    """Return the status of a member for operators; `status` is its last report, or None without a report."""
    if not is_up:
        state = "down"
    elif leads:
        state = "leader"
    else:
        state = "candidate" if status is not None and status.state == Role.CANDIDATE else "follower"
    if status is None:
        return MemberStatus(name, state, *[None] * 15)
    voter_status = VoterStatus(status.voter_status).name.lower()
    offset_ms = status.wall_ms - status.time_ms if status.time_ms else None
    judged = (
        bool(status.alarm),
        offset_ms,
        bool(status.disk_hangs),
        status.misses,
        bool(status.hears_leader),
        status.rolled_back_ms or None,
    )
    return MemberStatus(name, state, *status[1:5], voter_status, *status[6:10], *judged)
