"""Members of the cluster as a node sees them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class NodeState(StrEnum):
    """State of a member of the cluster as this node sees it."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    DOWN = "down"
    UNKNOWN = "unknown"  # connected, before its first report


class NodeStatus(NamedTuple):
    """Status of a member of the cluster; None for facts that this node does not know."""

    name: str
    state: NodeState
    standing: str | None = None
    """"voter"; "learner" or "blank" while the node's log is repaired, so that it has no vote yet."""
    term: int | None = None
    first_index: int | None = None
    """First index in its log. Of older entries the node keeps the state, and the messages that queues hold."""
    last_index: int | None = None
    commit_index: int | None = None
    applied_index: int | None = None
    checkpoint_index: int | None = None
    disk_free_bytes: int | None = None
    alarm: bool | None = None
    """Whether the node's disk is full or nearly full."""
    clock_offset_ms: int | None = None
    """Milliseconds that the node's wall clock is ahead of the cluster's time."""
    role: str | None = None
    """Role in the configuration of the log: "voter", "learner" or "awaited"."""
    versions: str | None = None
    """Versions of the state that the node's program can run."""
    drained: bool = False
    """Whether the node is under maintenance."""
    disk_hangs: bool | None = None
    """Whether a write of the node's disk hangs, so that the node acknowledges no entries."""
    misses: Sequence[str] | None = None
    """Members that the node has no link with or does not hear."""
    hears_leader: bool | None = None
    """Whether the node leads or hears the leader."""
    lost_ms: int | None = None
    """When the node's data directory was lost or replaced, if that was within the last day, in ms since 1970."""
    rolled_back_ms: int | None = None
    """When the node learnt that its directory was put back as it was earlier, in ms since 1970; None if it was not."""
    other_directory: bool = False
    """Whether another data directory than the member's is up under its name."""


class ClusterStatus(NamedTuple):
    """Status of the cluster as `node` sees it."""

    cluster: str
    node: str
    leader: str | None
    nodes: Sequence[NodeStatus]
    version: int
    """Version of the state that all members have agreed on."""
    majority_lost: str | None = None
    """Which logs are damaged or lost, and the remedy, if the members with intact logs are no majority; else None."""


class ClusterMember(NamedTuple):
    """A member of the cluster, by the configuration in the log; None for unknown facts."""

    name: str
    host: str
    port: int
    """`host` and `port` are the address at which the members reach this member."""
    id: str | None
    """Id of the member's data directory, in hexadecimal."""
    role: str
    """"voter", "learner", or "awaited" until a data directory has taken the member's place."""
    state: NodeState
    lag: int | None
    """Number of entries of the log that the member lacks."""
    versions: str | None
    """Versions of the state that the member's program can run, such as "7 to 8" or "8"."""
    drained: bool
    """Whether the member is under maintenance."""
    lost_ms: int | None = None
    """When the member's data directory was lost or replaced, if that was within the last day, in ms since 1970."""


class RemovedMember(NamedTuple):
    """A removed member; `id` is empty if it was removed while it was awaited."""

    name: str
    id: str


class ClusterMembers(NamedTuple):
    """The members by the configuration in the log, as `node` sees it."""

    node: str
    cluster: str
    cluster_id: str | None
    """Id of the cluster; None while the members are defined by the list in each node's file."""
    version: int
    """Version of the state that all members have agreed on."""
    leader: str | None
    members: Sequence[ClusterMember]
    removed: Sequence[RemovedMember]
    """The members that were removed or replaced last, the newest at the end."""
