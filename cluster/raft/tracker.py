"""What a leader knows of all its peers, and what follows from it for the log: etcd's raft calls it a progress tracker.

Invariant: pure; indexes and times are handed in. What another directory of the same name has acknowledged does not
count, and nothing that was acknowledged to an earlier leader does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.raft.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.configuration.history import Configurations
    from cluster.raft.learner_pace import Pace


class ProgressTracker:
    """The progress of each peer of one member; it is of use only while that one leads."""

    def __init__(self, name: str, configurations: Configurations) -> None:
        self.peers: dict[str, Progress] = {}
        """What this leader knows of each peer."""
        self._name = name
        self._configurations = configurations
        self._directories: dict[str, bytes | None] = {}
        """The id of each peer, as far as it is known."""

    # Peers

    def know(self, peer: str, directory: bytes | None, awake_s: Callable[[], float], next_index: int) -> bool:
        """Keep what is known of a peer, unless another directory has its name now. True if nothing is known of it.

        Whether that one is there is not decided here: a link may have led to it all the time. `awake_s` tells the time
        for which this node was awake; one of which nothing is known is sent `next_index` first.
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

    def begin_reign(self, awake_s: float, next_index: int) -> None:
        """Nothing is known of anybody: acknowledgements are of one reign. Everybody is sent `next_index` first."""
        for peer in self.peers:
            self.peers[peer] = Progress(awake_s, next_index)

    def pace_learners(self, make: Callable[[], Pace]) -> None:
        """Learners are fed slowly, and voters are not; `make` makes the pace of one that is new."""
        learners = self._configurations.membership.learners
        for peer, progress in self.peers.items():
            if peer not in learners:
                progress.pace = None
            elif progress.pace is None:
                progress.pace = make()

    # What is known

    def reached_index(self, own_index: int) -> int:
        """The last entry that a majority has stored; of this leader, `own_index` is what counts."""
        stored = {peer: known.acknowledged for peer, known in self.peers.items()}
        stored[self._name] = own_index
        return self._configurations.membership.reached(stored)

    def silent_s(self, awake_s: float) -> float:
        """For how long no majority was heard, this leader among it, by the time for which this node was awake."""
        heard_s = {peer: known.heard_s for peer, known in self.peers.items()}
        heard_s[self._name] = awake_s
        return awake_s - self._configurations.membership.reached(heard_s)
