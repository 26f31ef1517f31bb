"""Build all parts of a group and connect them.

First come the parts that need only this node (bootstrap.py), then the parts that know the peers, then the parts that
need both. Where two parts need each other, the earlier part gets a function that fetches the later part. That function
is called only after the assembly is complete.

Invariant: no part knows the group. A part acts on the group only through the `Hooks`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from cluster.configuration.configuration import Versions
from cluster.group.bootstrap import Bootstrap
from cluster.group.inbox import Inbox
from cluster.group.install_snapshot import SnapshotInstaller
from cluster.group.link_events import Epochs
from cluster.group.low_space import LowSpace
from cluster.log.free_space import Space
from cluster.membership.alarms import Alarms
from cluster.membership.discovery import Discovery
from cluster.membership.eviction import Evictions
from cluster.membership.joining import Joining
from cluster.membership.leadership import Leadership
from cluster.membership.maintenance import Maintenance
from cluster.membership.outages import Outages
from cluster.membership.peer_status import Peers
from cluster.membership.reconfiguration import Reconfiguration
from cluster.membership.status import OwnStatus, Statuses
from cluster.membership.view import Members
from cluster.raft import messages
from cluster.raft.proposals import PendingProposals, ProposalQueue
from cluster.runtime.turn_timer import TurnTimer
from cluster.snapshots.backup_source import BackupSource
from cluster.snapshots.sender import SnapshotSender
from cluster.state.apply import Applying
from cluster.transport.linked_nodes import LinkedNodes
from cluster.transport.outbox import LogSync, PeerOutbox
from cluster.transport.queries import Queries

if TYPE_CHECKING:
    from cluster.config import GroupConfig
    from cluster.engine.engine import Engine
    from cluster.machine import Machine
    from cluster.runtime.ports import Disk, Runtime
    from cluster.transport.ports import Links

SNAPSHOT_ID_BITS = 19
"""Width in bits of the shift of an incarnation that numbers the first snapshot of a process.

A process gives fewer than 2^19 snapshots, so no number is repeated. An incarnation is about as high as a clock may be
(`WALL_MAX_MS`), so the numbers stay below 2^63, as all numbers in messages do."""


class Hooks(NamedTuple):
    """Functions of the group that its parts call."""

    turn: Callable[[], None]
    """Take a turn that was requested."""
    apply: Callable[[int, int, bytes], None]
    """Apply the committed entry with this index, term and payload."""
    installed: Callable[[int], None]
    """Tell the broker that a snapshot of this index was installed."""
    needed_from: Callable[[], int | None]
    """Return the index of the first entry that must stay in the log, or `None` if no entry must."""
    submit_nothing: Callable[[], None]
    """Submit a batch without commands."""
    alarm_changed: Callable[[str | None], None]
    """Tell the broker why publishers must wait from now on, or None if they may continue."""


class Assembly:
    """All parts of a member of a group. The group takes from it the parts that it uses."""

    def __init__(
        self,
        config: GroupConfig,
        machine: Machine,
        runtime: Runtime,
        disk: Disk,
        links: Links,
        engine: type[Engine],
        hooks: Hooks,
    ) -> None:
        """Build all parts. Raises as `Bootstrap` does."""
        self._config = config
        self._versions = Versions(*machine.versions)
        self._outages_since = machine.outages_since
        self._runtime = runtime
        self._disk = disk
        self._links = links
        self._hooks = hooks
        self.turns = TurnTimer(runtime, hooks.turn, config.timing.heartbeat_s)
        self.pending = PendingProposals(config.name)
        self.proposals = ProposalQueue()
        own = self.own = Bootstrap(
            config,
            machine,
            runtime,
            disk,
            self.turns,
            engine,
            hooks.apply,
            hooks.needed_from,
            self._give_way,
        )
        self.pending.begin(own.claim.incarnation)
        self.applying = Applying(own.state, self.pending)
        self._meet_the_others()
        self._prepare_to_lead()
        self._prepare_copies()
        self._prepare_for_shortage()
        self._listen()

    def _give_way(self) -> bool:
        return self.leadership.give_way()

    def _meet_the_others(self) -> None:
        """Build the parts that know the peers: messages to them, their status, the members, discovery."""
        own, config, runtime = self.own, self._config, self._runtime
        configurations, now_s = own.configurations, runtime.monotonic()
        linked = LinkedNodes(configurations)
        self.outbox = PeerOutbox(self._links, config.group_id, linked, own.engine.hold_back)
        self.queries = Queries(self.outbox.is_new, self.outbox.transmit)
        self.log_sync = LogSync(own.engine, own.journal, self.outbox, self.turns, runtime)
        self._peers = Peers(configurations.directories(config.name), now_s)
        space = Space(self._disk, own.journal, config.disk_free_limit_bytes, now_s)
        self.alarms = Alarms(configurations, self._peers, space)
        self.members = Members(
            config.name,
            own.member_id,
            configurations,
            linked,
            self._peers,
            own.engine,
            own.clock,
            own.directory,
            self._links,
            runtime,
            own.listed_members,
            self._members_changed,
        )
        self._joining = Joining(
            config.timing.election_min_s,
            self._versions.high,
            replaces_emptied=config.replaces_emptied,
            raises_version=config.raises_version,
        )
        self.discovery = Discovery(
            self.members,
            config.nodes[config.name],
            config.joins,
            self._versions,
            config.listed_configuration(self._versions.low, lists_members=False),
            own.recovery,
            self._joining,
            own.engine,
            self.outbox.transmit,
            own.stopping.removed,
        )
        self.own_status = OwnStatus(
            own.engine,
            own.recovery,
            own.housekeeping,
            self.alarms,
            own.clock,
            own.stopping,
            self.members,
            self.log_sync,
            runtime,
        )
        self._maintenance = Maintenance(config.name, configurations, now_s)
        self.statuses = Statuses(
            self.members,
            self._peers,
            self._maintenance,
            self.own_status,
            lambda: self.leadership.leader_term.leader,
        )

    def _members_changed(self) -> None:
        self.discovery.tell_members()
        self.turns.ask()

    def _prepare_to_lead(self) -> None:
        """Build the parts that act while this member leads: leadership, changes of members, eviction, outages."""
        own, runtime, members = self.own, self._runtime, self.members
        engine = own.engine
        self.leadership = Leadership(
            members,
            self._peers,
            self.statuses,
            self._maintenance,
            engine,
            runtime,
            self.outbox.transmit,
            self.turns.ask,
        )
        self.reconfiguration = Reconfiguration(
            members,
            self._joining,
            self.leadership,
            self.statuses,
            engine,
            own.clock,
            runtime,
            self.outbox.transmit,
        )
        self.evictions = Evictions(
            self._config,
            members,
            self._peers,
            own.state,
            self.proposals,
            self.turns,
            runtime,
            lambda: engine.is_leader,
        )
        self.outages = Outages(
            self._config.name,
            self._outages_since,
            engine,
            own.configurations,
            own.clock,
            self._config.timing,
            runtime,
        )

    def _prepare_copies(self) -> None:
        """Build the parts for snapshots and backups."""
        own, disk, runtime = self.own, self._disk, self._runtime
        self.sender = SnapshotSender(
            disk,
            own.directory,
            own.journal,
            own.housekeeping,
            runtime,
            self.outbox.transmit,
            own.stopping.disk_failed,
            own.claim.incarnation << SNAPSHOT_ID_BITS,
            self._config.retained_bytes,
        )
        self.installer = SnapshotInstaller(
            disk,
            own,
            self.members,
            self.leadership,
            runtime,
            self.outbox.transmit,
            self._hooks.installed,
        )
        self.backups = BackupSource(
            disk,
            own.directory,
            own.owner,
            own.journal,
            own.housekeeping,
            own.engine,
            own.configurations,
            own.state,
            self.turns.ask,
        )

    def _prepare_for_shortage(self) -> None:
        """Build the part that acts when disk space or memory is short."""
        own = self.own
        self.low_space = LowSpace(
            self.alarms,
            own.housekeeping,
            own.engine,
            self.log_sync,
            self.leadership,
            self.statuses,
            own.stopping,
            self.installer.receiver,
            self._runtime,
            self._hooks.alarm_changed,
            self._hooks.submit_nothing,
        )

    def _listen(self) -> None:
        """Build the receivers of link events, and map each type of message to the part that takes it."""
        own, receiver = self.own, self.installer.receiver
        epochs = Epochs(
            self._links,
            self.members,
            self._peers,
            own.engine,
            own.clock,
            self.outbox,
            self.discovery,
            self._joining,
            self.evictions,
            own.recovery,
            self.own_status,
            self.leadership,
            self.queries,
            receiver,
            self.pending,
            self.turns,
            self._runtime,
            self._config.timing.campaign_jitter_s,
        )
        self.inbox = Inbox(
            self.members,
            self._peers,
            own.engine,
            own.clock,
            own.recovery,
            self.proposals,
            epochs,
            self.log_sync,
            own.stopping,
            self.turns,
            self._runtime,
            part_received=receiver.part_received,
            handlers={
                messages.Introduction: self._joining.introduced,
                messages.MembersReport: self.discovery.members_told,
                messages.Transfer: self.leadership.requested,
                messages.ChangeRequest: self.reconfiguration.requested,
                messages.ChangeRefused: self.reconfiguration.refused,
                messages.Query: self.queries.inquired,
                messages.QueryAnswer: self.queries.answered,
                messages.SnapshotOffer: self.installer.offered,
                messages.FetchChunk: self.sender.fetch,
                messages.SnapshotDamaged: self.sender.spoilt,
                messages.SnapshotChunk: receiver.chunk,
                messages.SnapshotWithdrawn: receiver.withdrawn,
            },
        )
