"""Settings of a member of a group: its name, the members at the start, timeouts and sizes.

Invariant: the settings are constant while the group runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.configuration.configuration import Configuration, Member, PeerAddress
from cluster.log.housekeeping import HousekeepingSettings
from cluster.log.journal import JournalSizes
from cluster.raft.cluster_clock import PATIENCE_S
from cluster.raft.timing import Timing


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The names of this member and its peers, and the group's timeouts and sizes."""

    name: str
    nodes: Mapping[str, PeerAddress]
    """Members when the cluster begins, this node included: name to the address at which peers reach it.

    The mapping counts only until the log holds a configuration."""
    cluster: str
    joins: bool = False
    """Whether this node joins an existing cluster. If False, it is a founding member, listed in `nodes`."""
    replaces_emptied: bool = True
    """Whether the cluster readmits a node that returns with its old name and address and a new data directory."""
    raises_version: bool = True
    """Whether the leader raises the version of the state by itself when all members can run the next version."""
    group_id: int = 0
    timing: Timing = field(default_factory=Timing)
    dead_origin_grace_s: float = 0.1
    """Seconds until the leader evicts a node after the death of its process, if a majority has lost its link to it. The
    messages of its consumers return to their queues. A process that lives behind a broken proxy dials the other members
    within this time."""
    doubted_origin_grace_s: float = 1.0
    """Seconds until the leader evicts a node after the death of its process, if only the leader noticed the death."""
    silent_origin_grace_s: float = 60.0
    """Seconds until the leader evicts a silent node. The node may only be paused or cut off, so its clients keep their
    messages until then."""
    clock_patience_s: float = PATIENCE_S
    """Seconds that a wall clock must keep its new time after a jump before the node believes it."""
    segment_bytes: int = 64 * 1024 * 1024
    segment_entries: int = 65_536
    cache_bytes: int = 32 * 1024 * 1024
    checkpoint_entries: int = 16_384
    """Entries after which the node takes a checkpoint."""
    checkpoint_bytes: int = 64 * 1024 * 1024
    """Bytes of entries after which the node takes a checkpoint; the size of the last checkpoint, if that is larger."""
    checkpoint_interval_s: float = 60.0
    """Seconds after which the node takes a checkpoint, if it has applied an entry since the last checkpoint."""
    retained_bytes: int = 128 * 1024 * 1024
    """Bytes of entries kept in the log for followers that were away. A follower that needs older entries gets a
    snapshot."""
    disk_free_limit_bytes: int = 50 * 1024 * 1024
    """Free bytes on the disk below which publishers must wait."""
    entry_bytes_max: int = 1024 * 1024
    """Bytes of batches gathered into an entry, about. A larger batch travels alone."""
    entry_weight_max: int = 15
    """Estimated milliseconds of applying gathered into an entry. The remaining batches wait for the next entry."""
    forward_bytes_max: int = 1024 * 1024
    """Bytes of batches gathered into a message to the leader, about. A larger batch travels alone."""
    append_bytes_max: int = 1024 * 1024
    """Bytes of entries gathered into an append to a follower, about. A larger entry travels alone."""

    @property
    def housekeeping(self) -> HousekeepingSettings:
        return HousekeepingSettings(
            self.checkpoint_entries,
            self.checkpoint_bytes,
            self.checkpoint_interval_s,
            self.retained_bytes,
            self.segment_bytes,
            self.segment_entries,
        )

    @property
    def journal_sizes(self) -> JournalSizes:
        return JournalSizes(
            self.segment_bytes, self.segment_entries, self.cache_bytes, slice_bytes=self.append_bytes_max
        )

    def listed_configuration(self, version: int, *, lists_members: bool) -> Configuration:
        """Return the configuration that counts until the log or a peer supplies the members.

        With `lists_members` False, this node is a learner in it. So it neither votes nor campaigns until a
        configuration arrives.
        """
        members = [
            Member(name, address, is_voter=lists_members or name != self.name)
            for name, address in self.nodes.items()
        ]
        return Configuration.of(version, members)
