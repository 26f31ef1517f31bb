"""A leader's table of all peers, and the indexes that follow from it (etcd's raft: progress tracker).

Invariant: pure; indexes and times are arguments. An acknowledgement counts only for the directory that gave it and for
the leadership in which it was given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.raft.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.configuration.history import Configurations
    from cluster.raft.learner_pace import Pace


class ProgressTracker:
    """The progress of each peer of a member. It is used only while this member leads."""

    def __init__(self, name: str, configurations: Configurations) -> None:
        self.peers: dict[str, Progress] = {}
        """The progress of each peer, by name."""
        self._name = name
        self._configurations = configurations
        self._directories: dict[str, bytes | None] = {}
        """The directory id of each peer, by name; `None` if it is unknown."""

    # Peers

    def know(self, peer: str, directory: bytes | None, awake_s: Callable[[], float], next_index: int) -> bool:
        """Keep the progress of `peer`, or begin it anew if its directory changed. Return True if it begins anew.

        The link to the peer is not considered, because it may have led to the new directory all the time. `awake_s`
        returns the time awake of this node. A new progress begins with `next_index` as the next entry to send.
        """
        before = self._directories.get(peer)
        self._directories[peer] = directory
        is_another = before is not None and directory != before
        if peer in self.peers and not is_another:
            return False
        self.peers[peer] = Progress(awake_s(), next_index)
        return True

    def forget(self, peer: str) -> None:
        del self.peers[peer], self._directories[peer]

    def reset_all(self, awake_s: float, next_index: int) -> None:
        """Reset the progress of all peers, because acknowledgements count for a single leadership.

        Each peer is sent `next_index` first.
        """
        for peer in self.peers:
            self.peers[peer] = Progress(awake_s, next_index)

    def pace_learners(self, make: Callable[[], Pace]) -> None:
        """Give each learner a pace, made by `make`, if it lacks a pace; remove the pace of voters."""
        learners = self._configurations.membership.learners
        for peer, progress in self.peers.items():
            if peer not in learners:
                progress.pace = None
            elif progress.pace is None:
                progress.pace = make()

    # Majorities

    def reached_index(self, own_index: int) -> int:
        """Return the highest index that a majority has stored. `own_index` counts for this leader."""
        stored = {peer: known.acknowledged for peer, known in self.peers.items()}
        stored[self._name] = own_index
        return self._configurations.membership.reached(stored)

    def silent_s(self, awake_s: float) -> float:
        """Return the seconds awake since this leader, which counts itself as heard, last heard a majority."""
        heard_s = {peer: known.heard_s for peer, known in self.peers.items()}
        heard_s[self._name] = awake_s
        return awake_s - self._configurations.membership.reached(heard_s)
