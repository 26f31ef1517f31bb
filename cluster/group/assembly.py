"""Build all parts of a group and connect them.

First comes the replica, the parts that all others build on (bootstrap.py). Then come the parts that know the other
members (cluster/membership/assembly.py), snapshots and backups, and last the inbox, which passes messages to all.

Invariant: no part knows the group. A part acts on the group only through the `Hooks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.group.bootstrap import Bootstrap, Ports
from cluster.group.broker_messages import BrokerMessages
from cluster.group.inbox import Handler, Inbox
from cluster.group.install_snapshot import SnapshotInstaller
from cluster.group.low_space import LowSpace
from cluster.group.reads import Reads
from cluster.membership.assembly import MembershipParts
from cluster.raft import messages
from cluster.snapshots.backup_source import BackupSource
from cluster.snapshots.sender import SnapshotSender
from cluster.state.apply import Applier
from cluster.transport.queries import Queries

if TYPE_CHECKING:
    from cluster.config import GroupConfig
    from cluster.engine.engine import Engine
    from cluster.group.hooks import Hooks
    from cluster.machine import Machine

SNAPSHOT_ID_BITS = 19
"""Width in bits of the shift of an incarnation that numbers the first snapshot of a process.

A process gives fewer than 2^19 snapshots, so no number is repeated. An incarnation is about as high as a clock may be
(`WALL_MAX_MS`), so the numbers stay below 2^63, as all numbers in messages do."""


class Assembly:
    """All parts of a member of a group. The group takes from it the parts that it uses."""

    def __init__(
        self, config: GroupConfig, machine: Machine, ports: Ports, engine: type[Engine], hooks: Hooks
    ) -> None:
        """Build all parts. Raises as `Bootstrap` does."""
        own = Bootstrap(config, machine, ports, engine, hooks)
        replica = self.replica = own.replica
        self.applying = Applier(replica.state, replica.pending)
        self.queries = Queries(replica.outbox.is_new, replica.outbox.transmit)
        self.membership = MembershipParts(replica, machine.outages_since, machine.losses_since)
        self.broker_messages = BrokerMessages(replica, self.membership.members, machine.reads_since)
        self.reads = Reads(replica, self.membership.leadership, machine.reads_since)
        first_id = replica.pending.incarnation << SNAPSHOT_ID_BITS
        self.sender = SnapshotSender(replica, first_id)
        self.installer = SnapshotInstaller(
            replica,
            members=self.membership.members,
            leadership=self.membership.leadership,
            find_configurations=own.find_configurations,
            installed=hooks.installed,
        )
        self.backups = BackupSource(replica)
        self.low_space = LowSpace(
            replica,
            alarms=self.membership.alarms,
            leadership=self.membership.leadership,
            statuses=self.membership.statuses,
            receiver=self.installer.receiver,
            hooks=hooks,
        )
        self.inbox = Inbox(
            replica,
            self.membership,
            receiver=self.installer.receiver,
            queries=self.queries,
            reads=self.reads,
            handlers=self._handlers(),
        )

    def _handlers(self) -> dict[type[messages.Message], Handler]:
        """Map each type of message to the part that handles it, except the types that the inbox handles itself."""
        membership, receiver = self.membership, self.installer.receiver
        return {
            messages.Memory: membership.rollbacks.memory_received,
            messages.Introduction: membership.joining.record_introduction,
            messages.MembersReport: membership.discovery.members_received,
            messages.Transfer: membership.leadership.transfer_requested,
            messages.ChangeRequest: membership.reconfiguration.change_requested,
            messages.ChangeRefused: membership.reconfiguration.change_refused,
            messages.Query: self.queries.query_received,
            messages.QueryAnswer: self.queries.answer_received,
            messages.ReadIndexRequest: self.reads.requested,
            messages.ReadIndexAnswer: self.reads.answered,
            messages.TermCheck: self.reads.check_received,
            messages.TermConfirmed: self.reads.confirmed,
            messages.BrokerMessage: self.broker_messages.received,
            messages.SnapshotOffer: self.installer.offered,
            messages.FetchChunk: self.sender.fetch,
            messages.SnapshotDamaged: self.sender.spoilt,
            messages.SnapshotChunk: receiver.chunk,
            messages.SnapshotWithdrawn: receiver.withdrawn,
        }
