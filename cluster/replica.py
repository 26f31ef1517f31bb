"""The replica of a group on this node: the parts that all other parts of the group build on.

`Bootstrap` makes it. Every other part gets the replica, and its own collaborators by keyword.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cluster.config import GroupConfig
    from cluster.configuration.configuration import Member, Versions
    from cluster.configuration.history import Configurations
    from cluster.engine.engine import Engine
    from cluster.engine.rejoin import Rejoin
    from cluster.log.housekeeping import Housekeeping
    from cluster.log.journal import SegmentedJournal
    from cluster.raft.cluster_clock import ClusterClock
    from cluster.raft.proposals import PendingProposals, ProposalQueue
    from cluster.runtime.ports import Disk, Runtime
    from cluster.runtime.turn_timer import TurnTimer
    from cluster.state.group_state import GroupState
    from cluster.storage.directory import GroupDirectory, Incarnations
    from cluster.storage.fail_stop import FailStop
    from cluster.transport.linked_nodes import LinkedNodes
    from cluster.transport.outbox import LogSync, PeerOutbox
    from cluster.transport.ports import Links


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """The parts that all other parts of a group share."""

    config: GroupConfig
    versions: Versions
    """The versions of the state that this node's program can run."""
    runtime: Runtime
    disk: Disk
    links: Links
    turns: TurnTimer

    # From the disk
    directory: GroupDirectory
    incarnations: Incarnations
    member_id: bytes
    """The id of this node's data directory."""
    configurations: Configurations
    listed_members: Mapping[str, Member]
    """The members known before the log was read, by name."""
    journal: SegmentedJournal
    state: GroupState
    clock: ClusterClock
    engine: Engine
    rejoin: Rejoin
    housekeeping: Housekeeping
    fail_stop: FailStop

    # In memory
    pending: PendingProposals
    proposals: ProposalQueue
    linked: LinkedNodes
    outbox: PeerOutbox
    log_sync: LogSync

    @property
    def name(self) -> str:
        """The name of this node."""
        return self.config.name
