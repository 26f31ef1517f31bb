"""How one member of a group is to be: its name, whom it begins with, its times and sizes.

Invariant: nothing of it changes while the group runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.configuration.configuration import Configuration, Member, PeerAddress
from cluster.log.housekeeping import HousekeepingSettings
from cluster.raft.cluster_clock import PATIENCE_S
from cluster.raft.timing import Timing


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The names of this member and its peers, and the group's times and sizes."""

    name: str
    nodes: Mapping[str, PeerAddress]
    """The members that the cluster begins with, this one among them, and where the others reach them.

    They matter only until the log tells who the members are."""
    cluster: str
    joins: bool = False
    """Whether the cluster is there already, and this node wants to become a member of it; else it is one of `nodes`."""
    replaces_emptied: bool = True
    """Whether a node that comes back to its name and its address with a new data directory is taken in again."""
    raises_version: bool = True
    """Whether the cluster goes over to the next version of the state by itself, once all members can run it."""
    group_id: int = 0
    timing: Timing = field(default_factory=Timing)
    dead_origin_grace_s: float = 0.1
    """A node whose process is known to be gone is expelled after this long, if a majority has no link with it: its
    consumers' messages return. A process that lives behind a broken proxy has dialled the other members by then."""
    doubted_origin_grace_s: float = 1.0
    """A node whose process only the leader knows to be gone is expelled after this long."""
    silent_origin_grace_s: float = 60.0
    """A node that merely does not answer may be paused or cut off: it keeps what its clients hold for this long."""
    clock_patience_s: float = PATIENCE_S
    """A wall clock that has jumped is believed once it has kept its new time for this long."""
    segment_bytes: int = 64 * 1024 * 1024
    segment_entries: int = 65_536
    cache_bytes: int = 32 * 1024 * 1024
    checkpoint_entries: int = 16_384
    """A checkpoint is taken after this many entries."""
    checkpoint_bytes: int = 64 * 1024 * 1024
    """A checkpoint is also taken after this many bytes of entries, or as many as the last one has if that is more."""
    checkpoint_interval_s: float = 60.0
    """A checkpoint is also taken after this time, if anything was applied since the last one."""
    retained_bytes: int = 128 * 1024 * 1024
    """Entries up to this size stay in the log for followers that were away; one that needs more gets a snapshot."""
    disk_free_limit_bytes: int = 50 * 1024 * 1024
    """Publishers have to wait while the disk has less free space than this, in bytes."""
    entry_bytes_max: int = 1024 * 1024
    """An entry gathers batches up to about this size; a larger batch travels alone."""
    entry_weight_max: int = 15
    """An entry gathers batches up to this weight, in estimated milliseconds of applying; the rest wait for the next."""
    forward_bytes_max: int = 1024 * 1024
    """A message to the leader gathers batches up to about this size; a larger batch travels alone."""
    append_bytes_max: int = 1024 * 1024
    """An append to a follower gathers entries up to about this size; a larger entry travels alone."""

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

    def listed_configuration(self, version: int, *, lists_members: bool) -> Configuration:
        """What a node begins with, before its log or another node tells who the members are.

        Where the members are not those of a list, this node votes for nobody and stands for nothing until it is told.
        """
        members = [
            Member(name, address, is_voter=lists_members or name != self.name)
            for name, address in self.nodes.items()
        ]
        return Configuration.of(version, members)
