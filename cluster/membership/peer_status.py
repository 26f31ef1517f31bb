"""The other members as this node knows them: what each said last, when it was heard, since when it is known dead.

Invariants: what is not known counts for nothing: who has not said so is neither a voter nor short of anything. What a
data directory has said is known of no other one under its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from cluster.log.hardstate import Standing
from cluster.raft.elections import Role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cluster.raft.messages import Alarm, Status


STATUS_INTERVAL_S = 1.0
"""How often each node tells the others its status."""
SILENT_S = 3 * STATUS_INTERVAL_S
"""After how many seconds of silence the last status of a peer counts no more."""


class MemberStatus(NamedTuple):
    """One node as this node sees it; None where it does not know."""

    name: str
    state: str
    term: int | None
    last_index: int | None
    commit_index: int | None
    applied_index: int | None
    standing: str | None
    """"voter", "learner" or "blank"."""
    first_index: int | None
    checkpoint_index: int | None
    disk_bytes: int | None
    disk_free_bytes: int | None
    alarm: bool | None
    clock_offset_ms: int | None
    """How many milliseconds the node's wall clock is ahead of the cluster's time, as far as the node can judge that."""
    disk_hangs: bool | None
    """Whether the node's disk does not come to the end of a sync, so that it acknowledges nothing."""
    misses: Sequence[str] | None
    """The other members that the node has no link with, or does not hear."""
    hears_leader: bool | None
    """Whether the node leads, or hears the leader."""


@dataclass(slots=True)
class KnownPeer:
    """What this node knows of one other member."""

    heard_s: float
    """When anything from the peer last arrived; at first, when this node started."""
    lost_since_s: float | None = None
    """When the last link with the peer ended; None while there is a link, and before the first link."""
    dead_since_s: float | None = None
    """Since when the peer's host says that no such process listens; None if it does not say that."""
    directory: bytes | None = None
    """The id of the member's data directory; None if it is awaited, or the log does not say yet who the members are."""
    status: Status | None = None
    """What that directory last said of itself; None if it has said nothing since this node started."""


class Peers:
    """What this node knows of all other members."""

    def __init__(self, directories: Mapping[str, bytes | None], now_s: float) -> None:
        """Begin with these members; for each, the id of its data directory, or None."""
        self._peers: dict[str, KnownPeer] = {}
        self.configure(directories, now_s)

    def configure(self, directories: Mapping[str, bytes | None], now_s: float) -> None:
        """Keep what is known of these members, and begin with those that are new.

        Since when a name is silent or dead stays known when another directory has it: the clients of the earlier one
        are given up by that.
        """
        self._peers = {name: self._peers.get(name) or KnownPeer(now_s) for name in directories}
        for name, peer in self._peers.items():
            if peer.directory not in (None, directories[name]):
                peer.status = None
            peer.directory = directories[name]

    def status(self, peer: str) -> Status | None:
        return self._peers[peer].status

    # What happens

    def connected(self, peer: str, now_s: float) -> None:
        known = self._peers[peer]
        known.heard_s = now_s
        known.lost_since_s = known.dead_since_s = None

    def heard(self, peer: str, now_s: float) -> None:
        self._peers[peer].heard_s = now_s

    def said(self, peer: str, status: Status) -> None:
        self._peers[peer].status = status

    def lost(self, peer: str, now_s: float) -> None:
        """Note that the link with the peer has ended; harmless if that was known."""
        known = self._peers[peer]
        if known.lost_since_s is None:
            known.lost_since_s = now_s

    def died(self, peer: str, now_s: float) -> None:
        """Note that the peer's process is gone; harmless if that was known."""
        known = self._peers[peer]
        if known.dead_since_s is None:
            known.dead_since_s = now_s

    # What follows

    def silent_s(self, peer: str, now_s: float) -> float:
        return now_s - self._peers[peer].heard_s

    def is_silent(self, peer: str, now_s: float) -> bool:
        """Whether the peer has been silent for so long that it is not known what it does, link or not."""
        return self.silent_s(peer, now_s) >= SILENT_S

    def lost_s(self, peer: str, now_s: float) -> float | None:
        """For how many seconds there has been no link with the peer; None if there is a link, or never was."""
        since_s = self._peers[peer].lost_since_s
        return None if since_s is None else now_s - since_s

    def dead_s(self, peer: str, now_s: float) -> float | None:
        """For how many seconds the peer has been known to be dead; None if it is not."""
        since_s = self._peers[peer].dead_since_s
        return None if since_s is None else now_s - since_s

    def alarmed(self, alarm: Alarm) -> list[str]:
        """The names of the peers that say that they are low on this."""
        return [name for name, status in self._statuses() if status.alarm & alarm]

    def voters(self) -> list[str]:
        return [name for name, status in self._statuses() if status.standing == Standing.VOTER]

    def _statuses(self) -> list[tuple[str, Status]]:
        return [(name, peer.status) for name, peer in self._peers.items() if peer.status is not None]


def member_status(name: str, status: Status | None, *, is_up: bool, leads: bool) -> MemberStatus:
    """Put together what is known of a member whose last status this is; None if it has sent none."""
    if not is_up:
        state = "down"
    elif leads:
        state = "leader"
    else:
        state = "candidate" if status is not None and status.state == Role.CANDIDATE else "follower"
    if status is None:
        return MemberStatus(name, state, *[None] * 14)
    standing = Standing(status.standing).name.lower()
    offset_ms = status.wall_ms - status.time_ms if status.time_ms else None
    judged = bool(status.alarm), offset_ms, bool(status.disk_hangs), status.misses, bool(status.hears_leader)
    return MemberStatus(name, state, *status[1:5], standing, *status[6:10], *judged)
