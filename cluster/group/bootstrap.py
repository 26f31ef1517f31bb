"""The start of a node from its disk: directory, incarnation, log, state, members, engine.

The parts are read in the order of their dependence. The directory says which node of which cluster this is. The new
incarnation gets its number. The log and the newest checkpoint give the state. Log and state together give the members.

Invariant: these steps neither send nor receive messages. Unreadable data ends the start.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cluster.configuration.configuration import Versions
from cluster.configuration.history import Configurations
from cluster.engine.rejoin import Recovery
from cluster.group.clock_log import ClockLog
from cluster.log.housekeeping import Housekeeping
from cluster.log.journal import SegmentedJournal
from cluster.log.segment import CorruptJournal
from cluster.raft.cluster_clock import ClusterClock, bounded
from cluster.state.group_state import GroupState
from cluster.storage.directory import GroupDirectory, Incarnations
from cluster.storage.fail_stop import RemovedFromCluster, Stopping
from cluster.storage.identity import Owner
from cluster.storage.paths import group_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cluster.config import GroupConfig
    from cluster.engine.engine import Engine
    from cluster.log.checkpoints import Checkpoint
    from cluster.machine import Machine
    from cluster.runtime.ports import Disk, Runtime
    from cluster.runtime.turn_timer import TurnTimer


class Bootstrap:
    """The parts of a node that come from its disk."""

    def __init__(
        self,
        config: GroupConfig,
        machine: Machine,
        runtime: Runtime,
        disk: Disk,
        turns: TurnTimer,
        engine: type[Engine],
        apply: Callable[[int, int, bytes], None],
        needed_from: Callable[[], int | None],
        give_way: Callable[[], bool],
    ) -> None:
        """Read the data directory, which may take seconds.

        `apply` is called by the engine for each committed entry, `needed_from` by housekeeping, and `give_way` by
        `Stopping`. Raises the errors of the journal and of the identity, RemovedFromCluster, and OSError.
        """
        self.config = config
        self._machine = machine
        self._runtime = runtime
        self._disk = disk
        versions = Versions(*machine.versions)
        self.state = GroupState(machine)
        self.owner = Owner(config.cluster, config.name, config.group_id)
        self.directory = GroupDirectory(disk, group_path(config.group_id), self.owner)
        listed = [] if config.joins else sorted(config.nodes)
        self.incarnations = Incarnations(self.directory, runtime, versions, listed)
        self.claim = self.incarnations.begin()
        configurations = self.configurations = Configurations(
            config.listed_configuration(versions.low, lists_members=False)
        )
        self.stopping = Stopping(
            config.name, configurations, self.directory, turns, runtime, give_way, self._take_checkpoint
        )
        self.journal, checkpoint = self._open_log()
        self.member_id, cluster, *_ = self.directory.id(self.claim.incarnation)
        configurations.note_cluster(cluster)
        if self.directory.lists_members:
            configurations.begin(config.listed_configuration(versions.low, lists_members=True))
        self.listed_members = configurations.known
        """Members known before the log was read, by name."""
        self.find_configurations(checkpoint.index if checkpoint else 0)
        if configurations.committed.is_removed(self.member_id):
            raise RemovedFromCluster(config.name)
        self.version = configurations.committed.version if configurations.is_settled else versions.low
        """Version of the state that the log is known to be at."""
        self.clock = self._start_clock()
        self.engine = engine(
            config.name,
            self.member_id,
            configurations,
            self.journal,
            config.timing,
            runtime,
            apply,
            checkpoint.index if checkpoint else 1,
        )
        self.engine.may_lead = self.stopping.damage is None
        self.directory.make_durable(self.journal)
        self.recovery = Recovery(config.name, self.member_id, configurations, self.directory.hard_state)
        self.housekeeping = self._begin_housekeeping(checkpoint, needed_from)

    def _open_log(self) -> tuple[SegmentedJournal, Checkpoint | None]:
        config, directory = self.config, self.directory
        open_journal = partial(
            SegmentedJournal,
            self._disk,
            directory.log,
            directory.identity,
            self.stopping.disk_failed,
            directory.hard_state,
            self.configurations,
            segment_bytes=config.segment_bytes,
            segment_entries=config.segment_entries,
            cache_bytes=config.cache_bytes,
            slice_bytes=config.append_bytes_max,
        )
        repairable = config.joins or len(config.nodes) > 1
        return directory.start(self.claim, self.state, open_journal, repairable=repairable)

    def _start_clock(self) -> ClusterClock:
        name, runtime = self.config.name, self._runtime
        clocks, now_s = self.configurations.newest.clocks(name, self.member_id), runtime.monotonic()
        wall_ms = bounded(runtime.wall_ms())
        return ClusterClock(
            ClockLog(name), clocks, self.state.time_ms, wall_ms, now_s, self.config.clock_patience_s
        )

    def _begin_housekeeping(
        self, checkpoint: Checkpoint | None, needed_from: Callable[[], int | None]
    ) -> Housekeeping:
        housekeeping = Housekeeping(
            self._disk,
            self.directory.log,
            self.directory.identity,
            self.journal,
            self.config.housekeeping,
            freeze=self.state.freeze,
            compact=self._machine.compact,
            needed_from=needed_from,
            now=self._runtime.monotonic,
            failed=self.stopping.disk_failed,
        )
        housekeeping.begin(checkpoint)
        return housekeeping

    def _take_checkpoint(self) -> None:
        self.housekeeping.checkpoint_now(*self.engine.last_applied())

    def find_configurations(self, index: int) -> None:
        """Load the configurations in the log after `index`, the index of the state."""
        self.configurations.find(self.state.configuration, index, self._readable_from(index + 1))

    def _readable_from(self, first: int) -> Iterator[tuple[int, bytes]]:
        """Yield index and payload of each readable entry from `first` on.

        Entries after a damaged entry count, too. With an earlier configuration, the other members might need this node
        to continue.
        """
        for index in range(first, self.journal.last_index + 1):
            try:
                yield index, self.journal.read(index)
            except CorruptJournal as error:
                self.stopping.configuration_unreadable(error)
