"""The start of a node from its disk: directory, incarnation, log, state, members, engine.

The parts are read in the order of their dependence. The directory says which node of which cluster this is. The new
incarnation gets its number. The log and the newest checkpoint give the state. Log and state together give the members.

Invariant: these steps neither send nor receive messages. Unreadable data ends the start.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cluster.configuration.configuration import MemberId, Versions
from cluster.configuration.history import Configurations
from cluster.engine.rejoin import Rejoin
from cluster.group.clock_log import ClockLog
from cluster.log.housekeeping import Housekeeping
from cluster.log.journal import SegmentedJournal
from cluster.log.segment import CorruptJournal
from cluster.raft.cluster_clock import ClusterClock, bounded
from cluster.raft.proposals import PendingProposals, ProposalQueue
from cluster.replica import Replica
from cluster.runtime.turn_timer import TurnTimer
from cluster.state.group_state import GroupState
from cluster.storage.directory import GroupDirectory, Incarnations
from cluster.storage.fail_stop import FailStop, RemovedFromCluster
from cluster.storage.identity import Owner
from cluster.storage.paths import group_path
from cluster.transport.linked_nodes import LinkedNodes
from cluster.transport.outbox import LogSync, PeerOutbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cluster.config import GroupConfig
    from cluster.engine.engine import Engine
    from cluster.group.hooks import Hooks
    from cluster.log.checkpoints import Checkpoint
    from cluster.machine import Machine
    from cluster.runtime.ports import Disk, Runtime
    from cluster.storage.identity import Claim
    from cluster.transport.ports import Links


class Ports(NamedTuple):
    """The ports through which a group uses the outside world."""

    runtime: Runtime
    disk: Disk
    links: Links


class Bootstrap:
    """The start of a node from its disk; `replica` is its result."""

    def __init__(
        self, config: GroupConfig, machine: Machine, ports: Ports, engine: type[Engine], hooks: Hooks
    ) -> None:
        """Read the data directory, which may take seconds.

        Raises the errors of the journal and of the identity, RemovedFromCluster, and OSError.
        """
        self.config = config
        self._machine = machine
        self._runtime, self._disk, links = ports
        turns = TurnTimer(self._runtime, hooks.turn, config.timing.heartbeat_s)
        versions = Versions(*machine.versions)
        self._state = GroupState(machine)
        owner = Owner(config.cluster, config.name, config.group_id)
        self._directory = GroupDirectory(self._disk, group_path(config.group_id), owner)
        listed = [] if config.joins else sorted(config.nodes)
        incarnations = Incarnations(self._directory, self._runtime, versions, listed)
        claim = incarnations.begin()
        configurations = self.configurations = Configurations(
            config.listed_configuration(versions.low, lists_members=False)
        )
        self._fail_stop = FailStop(
            configurations,
            self._directory,
            turns,
            give_way=hooks.give_way,
            take_checkpoint=self._take_checkpoint,
        )
        self._journal, checkpoint = self._open_log(claim)
        member_id, cluster, *_ = self._directory.id(claim.incarnation)
        configurations.set_cluster(cluster)
        if self._directory.lists_members:
            configurations.begin(config.listed_configuration(versions.low, lists_members=True))
        listed_members = configurations.known
        self.find_configurations(checkpoint.index if checkpoint else 0)
        if configurations.committed.is_removed(member_id):
            raise RemovedFromCluster(config.name)
        clock = self._start_clock(member_id)
        self._engine = engine(
            MemberId(config.name, member_id),
            configurations,
            self._journal,
            config.timing,
            self._runtime,
            hooks.apply,
        )
        if checkpoint is not None:
            self._engine.start_from(checkpoint.index)
        self._engine.may_lead = self._fail_stop.damage is None
        self._directory.make_durable(self._journal)
        hard_state = self._directory.hard_state
        rejoin = Rejoin(config.name, member_id, configurations, hard_state, self._journal.last_index)
        rejoin.awaits_memories = configurations.newest.version >= machine.losses_since
        self._housekeeping = self._begin_housekeeping(checkpoint, hooks.needed_from)
        pending = PendingProposals(config.name)
        pending.begin(claim.incarnation)
        linked = LinkedNodes(configurations)
        outbox = PeerOutbox(
            links,
            config.group_id,
            linked,
            self._engine.peer_paused,
            lambda: configurations.newest.version >= machine.losses_since,
        )
        self.replica = Replica(
            config=config,
            versions=versions,
            runtime=self._runtime,
            disk=self._disk,
            links=links,
            turns=turns,
            directory=self._directory,
            incarnations=incarnations,
            member_id=member_id,
            configurations=configurations,
            listed_members=listed_members,
            journal=self._journal,
            state=self._state,
            clock=clock,
            engine=self._engine,
            rejoin=rejoin,
            housekeeping=self._housekeeping,
            fail_stop=self._fail_stop,
            pending=pending,
            proposals=ProposalQueue(),
            linked=linked,
            outbox=outbox,
            log_sync=LogSync(self._engine, self._journal, outbox, turns, self._runtime),
        )

    def _open_log(self, claim: Claim) -> tuple[SegmentedJournal, Checkpoint | None]:
        config, directory = self.config, self._directory
        open_journal = partial(
            SegmentedJournal,
            directory.log_files,
            directory.hard_state,
            config.journal_sizes,
            on_failure=self._fail_stop.disk_failed,
            observer=self.configurations,
        )
        repairable = config.joins or len(config.nodes) > 1
        return directory.start(claim, self._state, open_journal, repairable=repairable)

    def _start_clock(self, member_id: bytes) -> ClusterClock:
        name, runtime = self.config.name, self._runtime
        clocks, now_s = self.configurations.newest.clocks(name, member_id), runtime.monotonic()
        wall_ms = bounded(runtime.wall_ms())
        return ClusterClock(
            ClockLog(name), clocks, self._state.time_ms, wall_ms, now_s, self.config.clock_patience_s
        )

    def _begin_housekeeping(
        self, checkpoint: Checkpoint | None, needed_from: Callable[[], int | None]
    ) -> Housekeeping:
        housekeeping = Housekeeping(
            self._journal,
            self.config.housekeeping,
            freeze=self._state.freeze,
            compact=self._machine.compact,
            needed_from=needed_from,
            monotonic=self._runtime.monotonic,
        )
        housekeeping.begin(checkpoint)
        return housekeeping

    def _take_checkpoint(self) -> None:
        self._housekeeping.checkpoint_now(*self._engine.last_applied())

    def find_configurations(self, index: int) -> None:
        """Load the configurations in the log after `index`, the index of the state."""
        self.configurations.find(self._state.configuration, index, self._readable_from(index + 1))

    def _readable_from(self, first: int) -> Iterator[tuple[int, bytes]]:
        """Yield index and payload of each readable entry from `first` on.

        Entries after a damaged entry count, too. With an earlier configuration, the other members might need this node
        to continue.
        """
        for index in range(first, self._journal.last_index + 1):
            try:
                yield index, self._journal.read(index)
            except CorruptJournal as error:
                self._fail_stop.configuration_unreadable(error)
