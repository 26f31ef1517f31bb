"""One replicated group on one node: submissions in, applied entries out.

One turn = what was received, tick, compose an entry, start a sync, send. Everything that happens (a frame, a synced
write, a submission, a timer) asks for a turn; turns run one at a time on the loop. Disk and network overlap: appends
leave before the leader's own sync, acknowledgements wait for it, and a leader counts no entry beyond its own synced
tail (the engine sees to that).

Lives here: the driving of the engine, exactly-once submission (`submit`), forwarding to the leader, *tick entries* that
bring the machine nothing but the time, the decision to stop waiting for a node. Not here: consensus (engine.py), files
(directory.py, log), snapshots (catch_up.py), standing (recovery.py), sockets (links.py), what
an entry means (the machine).

Law: no entry is applied twice, none out of order, and a submission is repeated until this node has seen it applied.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from cluster.alarms import Alarms
from cluster.applying import Applying, Expelled
from cluster.backup_source import BackupSource
from cluster.catch_up import Installable, SnapshotGiver, SnapshotTaker
from cluster.clock import PATIENCE_S, ClusterClock, bounded
from cluster.configuration import (
    ID_BYTES,
    Configuration,
    Member,
    MembershipRefused,
    PeerAddress,
    Versions,
    is_configuration,
    make_configuration,
)
from cluster.configurations import Configurations
from cluster.departures import Departures
from cluster.directory import GroupDirectory
from cluster.elections import Role
from cluster.engine import Engine, Timing
from cluster.enrolment import Enrolment
from cluster.entry import MalformedEntry, is_regular, make_entry
from cluster.envelope import (
    Alarm,
    Appended,
    ChangeRefused,
    ChangeRequest,
    Fetch,
    Forward,
    Hearing,
    Introduction,
    MalformedFrame,
    MembersTold,
    Message,
    Offer,
    PreVote,
    SnapshotChunk,
    Spoilt,
    Status,
    TimeoutNow,
    Transfer,
    Vote,
    VoteRequest,
    Withdrawn,
    decode,
    encode,
    encode_for_release_0_1,
)
from cluster.fitness import Verdict, may_drain, may_leave, may_stop, why_not_lead
from cluster.handover import Handover
from cluster.handshake import VERSIONS as PROTOCOLS
from cluster.identity import Owner
from cluster.incarnation import Incarnations
from cluster.link_ports import Links
from cluster.log.hardstate import Standing
from cluster.log.housekeeping import Housekeeping, HousekeepingSettings
from cluster.log.journal import SegmentedJournal
from cluster.log.manifest import log_start
from cluster.log.segment import CorruptJournal
from cluster.log.space import CHECK_INTERVAL_S, Space
from cluster.log_matching import ForeignLog
from cluster.machine import Machine
from cluster.maintenance import Maintenance
from cluster.member_changes import MemberChange, Questions, Verb
from cluster.peers import MemberStatus, Peers, member_status
from cluster.ports import Buffer, Disk, Runtime
from cluster.presence import Presence
from cluster.recovery import Recovery
from cluster.state import GroupState
from cluster.submission import PendingSubmissions, Proposals, Reign
from cluster.turns import TurnTimer

log = logging.getLogger(__name__)

SNAPSHOT_ID_BITS = 20
"""Snapshots are numbered from the incarnation shifted by this many bits: one life gives fewer, so none is repeated."""

OLDEST_PROTOCOL = PROTOCOLS[0]
"""What nodes of release 0.1 speak, which know no introductions."""
IN_FLIGHT_MAX = 2
"""At most this many entries are proposed and not yet committed. More would only make the entries smaller."""
STATUS_INTERVAL_S = 1.0
SILENT_S = 3 * STATUS_INTERVAL_S
"""What a peer has last said of itself counts no more when it has been silent for this long."""


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
    dead_origin_grace_s: float = 1.0
    """A node whose process is known to be gone is expelled after this long: its consumers' messages return."""
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
    """With less free space than this, publishers have to wait."""
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


class NotNow(Exception):
    """The members cannot be changed at this moment; nothing has changed."""


class RemovedFromCluster(Exception):
    """The data directory of this node was a member's, and is no more: the node has nothing to do."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"node {name!r} was removed from the cluster, and its data directory can be no member again: "
            "to let the node in anew, start it with an empty one"
        )


class GroupEvents(Protocol):
    """What the shell hears from the group, on the loop."""

    def applied(self, index: int, effects: Sequence[Any]) -> None:
        """The entry at `index` is committed and applied, and `effects` follow from it, in order."""
        ...

    def leader_changed(self, leader: str | None, term: int) -> None: ...

    def resumed(self, sequence: int, outstanding: Sequence[Any]) -> None:
        """A snapshot was installed; nothing else is told of the entries that it stands for.

        This node's batches up to `sequence` have been applied, and `outstanding` is what the machine owes its sessions.
        """
        ...

    def needed_from(self) -> int | None:
        """The first entry that the shell will still read although the state may not refer to it; None if none is."""
        ...

    def alarm_changed(self, reason: str | None) -> None:
        """From now on publishers must wait for this reason or, if it is None, need not wait any more."""
        ...


class _Nobody:
    """The events of a group that has not been started: all are ignored."""

    def applied(self, index: int, effects: Sequence[Any]) -> None: ...

    def leader_changed(self, leader: str | None, term: int) -> None: ...

    def resumed(self, sequence: int, outstanding: Sequence[Any]) -> None: ...

    def needed_from(self) -> int | None: ...

    def alarm_changed(self, reason: str | None) -> None: ...


class Group:
    """One member of the group."""

    def __init__(
        self,
        config: GroupConfig,
        machine: Machine,
        runtime: Runtime,
        disk: Disk,
        links: Links,
        engine: type[Engine] = Engine,
    ) -> None:
        """Read what is on the disk, which may take seconds: on any thread, before anybody else has the group.

        Raises the errors of the journal and of the identity, and OSError.
        """
        self.config = config
        self.machine = machine
        self.damage: CorruptJournal | None = None
        """The damage found in the log while it was in use; the node stops once the others can go on without it."""
        self.snapshots_installed = 0
        self.is_removed = False
        """Whether this node has stopped because it is no member any more."""
        self._runtime = runtime
        self._links = links
        self._events: GroupEvents = _Nobody()
        self._reign = Reign(None, 0)
        self._handover = Handover()
        self._tried_full_disk_s = 0.0
        self._cleaned = False
        self._installed_at = 0
        """When the journal has synced this many changes, the last installed snapshot is durable; 0 if none waits."""
        self._applying_s = 0.0
        """Seconds that applying entries has taken in all, without what this node does with the effects."""

        self._state = GroupState(machine)
        self._submissions = PendingSubmissions(config.name)
        self._proposals = Proposals()
        self._enrolment = Enrolment(
            config.timing.election_min_s,
            machine.versions[1],
            replaces_emptied=config.replaces_emptied,
            raises_version=config.raises_version,
        )
        self._asked = Questions()
        self._told_index = 0
        """The index of the configuration that this node was told last."""
        self._complaint = ""
        """Why a step that was due was refused, as was logged last."""
        self._applying = Applying(self._state, self._submissions)
        self._turns = TurnTimer(runtime, self._turn, config.timing.heartbeat_s / 2)
        self._departures = Departures(self._transmit)

        owner = Owner(config.cluster, config.name, config.group_id)
        directory = self._directory = GroupDirectory(disk, f"groups/{config.group_id}", owner)
        listed = [] if config.joins else sorted(config.nodes)
        self._incarnations = Incarnations(directory, runtime, Versions(*machine.versions), listed)
        claim = self._incarnations.begin()
        self._submissions.begin(claim.incarnation)
        self.configurations = Configurations(_listed(config, machine, lists_members=directory.lists_members))
        """The configurations in the log. The newest one counts."""
        self._members = self.configurations.known
        """The members that links and peers go by."""
        self._presence = Presence(self.configurations)
        self._maintenance = Maintenance(config.name, self.configurations, runtime.monotonic())
        self.journal, checkpoint = directory.start(
            claim,
            self._state,
            partial(_open_journal, config, disk, directory, self.configurations, self.disk_failed),
            repairable=config.joins or len(config.nodes) > 1,
        )
        directory_id = directory.id(claim.incarnation)
        self.member_id = directory_id.member
        """The id of this node's data directory."""
        self.configurations.note_cluster(directory_id.cluster)
        if not directory.lists_members:  # else the log has none, and no entry need be read twice
            self._begin_configurations(checkpoint.index if checkpoint else 0)
        if self.configurations.committed.is_removed(self.member_id):
            raise RemovedFromCluster(config.name)
        self._clock = ClusterClock(
            config.name,
            self._clocks(),
            self._state.time_ms,
            self._wall_ms(),
            runtime.monotonic(),
            config.clock_patience_s,
        )
        self.engine = engine(
            config.name,
            self.member_id,
            self.configurations,
            self.journal,
            config.timing,
            runtime,
            self._apply,
            checkpoint.index if checkpoint else 1,
        )
        self.engine.may_lead = self.damage is None
        self._make_durable()
        self.recovery = Recovery(config.name, self.member_id, self.configurations, directory.hard_state)
        self._peers = Peers(self.peers, runtime.monotonic())
        space = Space(disk, self.journal, config.disk_free_limit_bytes, runtime.monotonic())
        self._alarms = Alarms(self.configurations, self._peers, space)
        self.housekeeping = Housekeeping(
            disk,
            directory.log,
            directory.identity,
            self.journal,
            config.housekeeping,
            freeze=self._state.freeze,
            compact=machine.compact,
            needed_from=self._needed_from,
            now=runtime.monotonic,
            failed=self.disk_failed,
        )
        self.housekeeping.begin(checkpoint)
        self._giver = SnapshotGiver(
            disk,
            directory,
            self.journal,
            self.housekeeping,
            runtime,
            self._transmit,
            self.disk_failed,
            claim.incarnation << SNAPSHOT_ID_BITS,
        )
        self._taker = SnapshotTaker(disk, directory, self.journal, runtime, self._transmit, self._install)
        self.backups = BackupSource(
            disk,
            directory,
            owner,
            self.journal,
            self.housekeeping,
            self.engine,
            self.configurations,
            self._state,
            self._turns.ask,
        )

    def start(self, events: GroupEvents) -> None:
        """Take part; `events` is told what is committed, and what else the shell has to know."""
        self._events = events
        self._turns.is_on = True
        self.recovery.turn(self.engine, self.journal)
        self._enrolment.introduced(self.config.name, self._introduction())
        self._note_past()
        self._links.register(self.config.group_id, self)
        self.submit([])  # tells the cluster that this incarnation lives, so that it forgets the last one
        self._beat()
        self._tell_status()

    # Members

    def change_configuration(self, step: Callable[[Configuration], Configuration]) -> int:
        """Propose the configuration that comes of a step; returns the index of the entry in which it is, or was.

        Only a leader may be asked. Raises MembershipRefused, and NotNow if it may be asked again in a moment.
        """
        engine, held = self.engine, self.configurations
        if not engine.is_leader or self._handover.is_on(self._runtime.monotonic()):
            raise NotNow("this node does not lead")
        # A leader that has committed nothing in its term does not know what is committed (thesis 4.1, as corrected
        # in 2015), and two changes at once could have majorities without a common voter.
        if (
            held.newest_index > engine.commit_index
            or self.journal.term_at(engine.commit_index) != engine.term
        ):
            raise NotNow("an earlier change is not committed yet")
        after = step(held.newest)
        if after is held.newest:
            return held.newest_index
        if not after.has(self.config.name, self.member_id):
            self.transfer_leadership()
            raise NotNow("this node leads, and hands over first")
        self._check_majority_of(after)
        index = engine.propose(make_configuration(self.time_ms(), after))
        self._follow_configuration()
        return index

    def ask_for_change(self, change: MemberChange, refused: Callable[[str], None]) -> None:
        """Have the leader, whoever that is, make a change of the members.

        `refused` is told why if it is not made; the configuration tells when it is (`MemberChange.is_made`). Whoever
        hears of neither asks again: the leader may have changed, or another change may have been under way.
        """
        leader = self._reign.leader
        if leader == self.config.name:
            self._make_change(change, refused)
        elif leader is not None:
            self._transmit(leader, ChangeRequest(self._asked.add(refused), change))

    def _make_change(self, change: MemberChange, refused: Callable[[str], None]) -> None:
        try:
            if change.verb == Verb.FINISH_UPGRADE:
                self.change_configuration(self._finish_upgrade)
            elif not self.configurations.newest.cluster:
                refused(
                    "the members cannot be changed before the upgrade to this release is finished: `qq upgrade finish`"
                )
            elif change.verb == Verb.REPLACE and self._is_there(change.name, change.member_id):
                refused(
                    f"node {change.name!r} is up and has its data directory: stop it before it is replaced"
                )
            else:
                self.change_configuration(change.step)
        except NotNow:
            pass
        except MembershipRefused as error:
            refused(str(error))

    def _is_there(self, name: str, member_id: bytes) -> bool:
        member = self.configurations.newest.member(name)
        is_up = name == self.config.name or self._presence.is_member(name)
        return is_up and member is not None and member.id == member_id

    def _finish_upgrade(self, configuration: Configuration) -> Configuration:
        return self._enrolment.raise_version(configuration, self._new_id)

    def _new_id(self) -> bytes:
        return self._runtime.random.randbytes(ID_BYTES)

    def _clocks(self) -> int:
        """How many voters' clocks decide what time it is; 0 if this node's is none of them."""
        newest = self.configurations.newest
        return len(newest.membership.voters) if newest.has_voter(self.config.name, self.member_id) else 0

    def _check_majority_of(self, after: Configuration) -> None:
        """Raise MembershipRefused if so few of the voters of this configuration are there that it could not commit it.

        It counts as soon as it is in the log, so there would be no way back.
        """
        if after.membership.voters == self.configurations.membership.voters:
            return
        there = [name for name, status in self._known().items() if status is not None]
        if not after.membership.is_majority(there):
            away = ", ".join(sorted(after.membership.voters.difference(there)))
            raise MembershipRefused(
                f"{len(after.membership.voters)} voters would be left, and of these {away} do not answer, so the rest "
                "would be no majority: start or replace them first"
            )

    def _mind_members(self) -> None:
        """Take the step that is due, if any; what cannot be done now is tried again with the next beat."""
        configuration, progress = self.configurations.newest, self.engine.progress
        learners = {
            name: progress[name].acknowledged
            for name in configuration.membership.learners
            if self._presence.is_member(name)
        }
        steps = self._enrolment.due_steps(
            configuration, learners, self.journal.last_index, self._runtime.monotonic(), self._new_id
        )
        for step in steps:
            try:
                if self.change_configuration(step) > self.engine.commit_index:
                    return
            except NotNow:
                return
            except MembershipRefused as refused:
                if str(refused) != self._complaint:
                    self._complaint = str(refused)
                    log.info("the members stay as they are: %s", refused)

    def _note_past(self) -> None:
        """Have links tell whether this node is of a cluster already, also if that has no id."""
        self.configurations.has_past = self.recovery.standing is Standing.VOTER
        self._links.configure(self.member_id, self.configurations)

    def _introduction(self) -> Introduction:
        may_join = self.recovery.standing is not Standing.VOTER or bool(self.configurations.cluster)
        address = self.config.nodes[self.config.name]
        return Introduction(self.member_id, *address, *self.machine.versions, int(may_join))

    def _introduce(self) -> None:
        """Tell everybody who this node is, because that is not what it was when the links began."""
        self._enrolment.introduced(self.config.name, self._introduction())
        self._tell_peers(self._introduction())

    def _tell_members(self, peer: str) -> None:
        """Tell who the members are, because the log of the other node may not say so.

        A learner is told what is not committed, too: it has promised nothing so far, so it may as well begin.
        """
        held = self.configurations
        if self._presence.is_member(peer) and peer in held.membership.learners:
            self._transmit(peer, MembersTold(self.engine.term, held.newest_index, held.newest))
        elif held.is_settled:
            self._transmit(peer, MembersTold(self.engine.term, held.committed_index, held.committed))

    def _receive_members(self, told: MembersTold) -> None:
        """Learn who the members are, because the own log does not tell, or that this node is none any more."""
        held = self.configurations
        if told.configuration.is_removed(self.member_id):
            self._leave()
            return
        is_ignorant = self.recovery.standing is Standing.BLANK or not self._directory.lists_members
        if is_ignorant and held.newest_index == 0 and told.index > self._told_index:
            self._told_index = told.index
            held.begin(0, told.configuration)
            self._follow_configuration()
        self.recovery.told(told.configuration, told.term, self.engine)
        self._turns.ask()

    def _begin_configurations(self, index: int) -> None:
        """Find the configurations of the log behind `index`, the entry that the state is of."""
        if self._state.configuration is not None:
            self.configurations.begin(index, self._state.configuration)
        for later in range(index + 1, self.journal.last_index + 1):
            try:
                self.configurations.appended(later, self.journal.read(later))
            except CorruptJournal as error:
                # What it cannot read may be a configuration, so it must not lead; a lone node finds out when it applies
                # it. Those behind it count: by an earlier one, the others might never be able to go on without it.
                if self.peers:
                    self._note_damage(error)

    def _follow_configuration(self) -> None:
        """Have links, peers and clock go by the members that there are now."""
        held = self.configurations
        if held.known is self._members:
            return
        before, self._members = self._members, held.known
        for name in self._members.keys() ^ before.keys():
            log.info("node %s is %s", name, "a member now" if name in self._members else "no member any more")
        self._directory.note_configuration(held, self.journal)
        self._clock.members = self._clocks()
        for name in (before.keys() | held.known.keys()) - held.membership.voters:
            self._clock.forget(name)  # a majority of the voters decides what time it is
        self._peers.configure(self.peers, self._runtime.monotonic())
        self._links.configure(self.member_id, held)
        self._meet()
        for peer in self._presence.linked:
            self._tell_members(peer)
        self._turns.ask()

    def _meet(self) -> None:
        """Count and feed those who are at the other ends of the links as members, and nobody else."""
        presence, now_s = self._presence, self._runtime.monotonic()
        self.engine.follow_configuration(presence.guests)
        came, went = presence.look()
        for peer in went:
            self.engine.hold_back(peer)
        for peer in came:
            self._peers.connected(peer, now_s)
            self.engine.peer_connected(peer)

    def _make_durable(self) -> None:
        """Sync what opening the journal has added to it, such as a new log's first entry. Raises OSError.

        Unless the disk is merely full, the next start is told then that writes may be lost.
        """
        try:
            self.journal.sync_now()
        except OSError:
            if not self.journal.full:
                self._directory.note_writes_lost()
            raise

    def disk_failed(self, error: Exception) -> None:
        """Stop because the disk cannot be trusted, and let the next start know why.

        With damage of what was once stored, a node with peers stops only when the others can go on without it: it
        comes back as a learner.
        """
        if isinstance(error, CorruptJournal) and self.peers:
            self._note_damage(error)
            self._leave_if_the_others_can_go_on()
        else:
            self._directory.note_writes_lost()
            self._stop_for(error)

    def _note_damage(self, error: CorruptJournal) -> None:
        if self.damage is None:
            log.error("%s: this node will be repaired from the others", error)
            self.damage = error

    def _leave_if_the_others_can_go_on(self) -> None:
        """Stop for damage, as a follower, once the other voters are a majority without this node."""
        if self.damage is None or not self._turns.is_on:
            return
        self.engine.may_lead = False
        voters = list(filter(self._presence.is_member, self._peers.voters()))
        if self.engine.is_leader:
            if not self._handover.is_on(self._runtime.monotonic()):
                self.transfer_leadership()
        elif self.configurations.membership.is_majority(voters):
            self._directory.note_damage(self.damage)
            self._stop_for(self.damage)

    def _leave(self) -> None:
        """Stop because this node was removed."""
        self.is_removed = True
        self._stop_for(RemovedFromCluster(self.config.name))

    def _stop_for(self, error: Exception) -> None:
        self._turns.is_on = False
        self._runtime.fail(error)

    def _stop_for_foreign_log(self, error: ForeignLog) -> None:
        """Write a checkpoint and stop: the next start knows what was applied, and refuses the same leader again."""
        self.housekeeping.checkpoint_now(*self._applied())
        self._stop_for(error)

    def stop(self) -> None:
        """Take no further part. What was submitted and not applied has an unknown outcome."""
        if self._turns.is_on:
            self._turns.is_on = False
            self.housekeeping.checkpoint_now(*self._applied())

    # Submitting

    def submit(self, payload: Sequence[Buffer], weight: int = 0) -> int:
        """Have a batch applied exactly once on every node, after all earlier ones of this node. Returns its sequence.

        `weight` is what the batch is expected to cost every node, in milliseconds (`GroupConfig.entry_weight_max`).
        The batch is sent to every new leader until a `Confirmed` effect reports it, or `Expelled` gives it up. Raises
        ValueError if it has more than `BATCH_BYTES_MAX`, which no entry could hold.
        """
        sequence = self._submissions.add(payload, weight)
        self._turns.ask()
        return sequence

    # What entries hold, for whoever delivers it

    @property
    def last_index(self) -> int:
        """Index of the newest entry in this node's log."""
        return self.journal.last_index

    def payload(self, index: int) -> bytes | None:
        """The payload of an entry if it is in memory, else None."""
        return self.journal.payload(index)

    def read_job(self, indexes: Sequence[int], bytes_max: int) -> Callable[[], list[bytes]]:
        """Make a job that reads these entries from the disk: see `SegmentedJournal.read_job`. Raises EntryGone."""
        return self.journal.read_job(indexes, bytes_max)

    @property
    def pending_batches(self) -> int:
        """How many batches this node has submitted and not yet seen applied."""
        return len(self._submissions)

    @property
    def pending_bytes(self) -> int:
        return self._submissions.pending_bytes

    def transfer_leadership(self, to: str | None = None) -> bool:
        """Hand leadership to this peer, or to any; `leader` tells when it has changed.

        Returns False if nothing is begun: this node does not lead, no peer is connected, or the one that is meant is
        not fit, is this node itself, or would get in the way of a handover that is under way.
        Nothing is proposed meanwhile: a peer that lacks the latest entry could not be elected.
        """
        now_s = self._runtime.monotonic()
        if not self.engine.is_leader or self.is_alone:
            return False
        if to is not None and (
            to == self.config.name or self._handover.is_on(now_s) or self.why_not_lead(to) is not None
        ):
            return False
        self._handover.begin(now_s, to)
        self._turns.ask()
        return True

    def ask_for_transfer(self, to: str | None) -> None:
        """Have the leader, whoever that is, hand over to this member, or to any. `leader` tells when it has."""
        leader, term = self._reign
        if leader == self.config.name:
            self.transfer_leadership(to)
        elif leader is not None:
            self._transmit(leader, Transfer(term, to or ""))

    # Reading

    @property
    def leader(self) -> str | None:
        return self._reign.leader

    @property
    def peers(self) -> tuple[str, ...]:
        """The other members, also such as are about to be removed."""
        return tuple(name for name in self.configurations.known if name != self.config.name)

    def _is_majority_alone(self) -> bool:
        return self.configurations.membership.is_majority([self.config.name])

    @property
    def is_alone(self) -> bool:
        """Whether no other member is connected."""
        return not any(map(self._links.connected, self.peers))

    def statuses(self) -> list[MemberStatus]:
        """The status of every member: this node's as it is now, the others' as they last told it."""
        return [self._status_of(name) for name in self.configurations.membership.members]

    def why_not_lead(self, name: str) -> str | None:
        """Why leadership should not go to this member, as far as is known here; None if it may."""
        if name in self._maintenance.members:
            return f"{name} is under maintenance (end that with `qq revive {name}`)"
        return why_not_lead(name, self._known())

    def may_stop(self, name: str) -> Verdict:
        """Whether the others go on when this member stops, as far as is known here."""
        return may_stop(name, self.leader, self.configurations.membership, self._known())

    def may_leave(self, name: str) -> Verdict:
        """Whether the others go on when this member is none any more, as far as is known here."""
        return may_leave(name, self.configurations.membership, self._known())

    def may_drain(self, name: str) -> Verdict:
        """Whether the others can lead and serve clients in place of this member, as far as is known here."""
        drained = self._maintenance.members
        return may_drain(name, self.configurations.membership, drained, self._known())

    def _known(self) -> dict[str, Status | None]:
        """What each member that is heard says of itself, and None for the others."""
        now_s = self._runtime.monotonic()
        known: dict[str, Status | None] = {self.config.name: self._own_status()}
        for peer in self.peers:
            is_heard = self._presence.is_member(peer) and self._peers.silent_s(peer, now_s) < SILENT_S
            known[peer] = self._peers.status(peer) if is_heard else None
        return known

    @property
    def members(self) -> Sequence[str]:
        return self.configurations.membership.members

    def own_status(self) -> MemberStatus:
        """The status of this node, be it a member or not."""
        return self._status_of(self.config.name)

    def _status_of(self, name: str) -> MemberStatus:
        if name == self.config.name:
            return member_status(name, self._own_status(), is_up=True, leads=name == self.leader)
        is_up = self._presence.is_member(name)
        return member_status(name, self._peers.status(name), is_up=is_up, leads=name == self.leader)

    def _own_status(self) -> Status:
        engine, journal, now_s = self.engine, self.journal, self._runtime.monotonic()
        return Status(
            engine.role,
            engine.term,
            journal.last_index,
            engine.commit_index,
            engine.applied_index,
            self.recovery.standing,
            journal.first_index,
            self.housekeeping.newest_index,
            journal.disk_bytes,
            self._alarms.free_bytes,
            self._alarms.own(now_s),
            self._clock.time_ms(now_s),
            self._wall_ms(),
            self._clock.steady_ms(now_s),
            int(engine.hears_leader()),
        )

    def time_ms(self) -> int:
        """The cluster's time, as this node knows it. It never goes back and never stands still."""
        return self._clock.time_ms(self._runtime.monotonic())

    def _wall_ms(self) -> int:
        return bounded(self._runtime.wall_ms())

    def describe_standing(self) -> str | None:
        """Why this node does not take full part, or None if it does."""
        if self.damage is not None:
            return f"{self.damage}; this node will be repaired as soon as the others can go on without it"
        return self.recovery.describe()

    def dump(self) -> bytes:
        """The replicated state, the group's own part included; equal on every replica at equal index."""
        return self._state.freeze().dump()

    # Links

    def peer_connected(self, peer: str) -> None:
        self._presence.link_began(peer, self._links.peer_id(peer))
        self._departures.drop(peer)
        self._follow_configuration()
        self._meet()
        if not self._presence.is_member(peer):
            self.engine.guest_connected()
        self._tell_members(peer)
        self._transmit(peer, self._introduction())
        self._transmit(peer, self._own_status())
        self._taker.connected(peer)
        self._submissions.link_is_new(peer)
        self._turns.ask()

    def peer_lost(self, peer: str, *, dead: bool) -> None:
        self._follow_configuration()
        self._departures.drop(peer)
        self._clock.forget(peer)
        self._enrolment.left(peer)
        if peer in self.engine.progress:
            self.engine.peer_lost(peer)
        self._presence.link_ended(peer)
        self._meet()
        if dead and peer in self._members:
            self._peers.died(peer, self._runtime.monotonic())
        if self._reign.leader == peer:
            self._runtime.call_later(self.config.timing.campaign_jitter_s, self._turns.ask)
        self._turns.ask()

    def peer_drained(self, peer: str) -> None:
        self._follow_configuration()
        if self._presence.is_member(peer):
            self.engine.peer_resumed(peer)
            self._turns.ask()

    def part_received(self, peer: str) -> None:
        if not self._turns.is_on:
            return
        self._follow_configuration()
        is_member = self._presence.is_member(peer)
        if is_member:
            self._peers.heard(peer, self._runtime.monotonic())
        self._taker.part_received(peer)
        if self.recovery.standing is not Standing.BLANK and (is_member or not self.engine.is_leader):
            self.engine.part_received(peer)
            if self.engine.outbox:
                self._turns.ask()

    def frame_received(self, peer: str, frame: bytes) -> None:
        if not self._turns.is_on:
            return
        self._follow_configuration()
        if self._presence.is_member(peer):
            self._peers.heard(peer, self._runtime.monotonic())
        try:
            message = decode(frame)
        except MalformedFrame:
            log.exception("peer %s sent a malformed frame; ignored", peer)
            return
        try:
            self._receive(peer, message)
        except ForeignLog as error:
            self._stop_for_foreign_log(error)
        self._turns.ask()

    def _receive(self, peer: str, message: Message) -> None:
        if not (self._presence.is_member(peer) or self._hears_guest(message)):
            return
        if isinstance(message, TimeoutNow):
            self._maintenance.asked_to_lead(self._runtime.monotonic())
            self._judge_fitness()
        match message:
            case Forward():
                self._receive_forward(peer, message)
            case Status():
                self._receive_status(peer, message)
            case Introduction():
                self._enrolment.introduced(peer, message)
            case MembersTold():
                self._receive_members(message)
            case Transfer():
                if message.term == self.engine.term:
                    self.transfer_leadership(message.to or None)
            case ChangeRequest():
                answer = partial(self._refuse_change, peer, message.number)
                if self.engine.is_leader:
                    self._make_change(message.change, answer)
            case ChangeRefused():
                self._asked.answered(message.number, message.text)
            case Offer():
                self.engine.check_snapshot(peer, message.index, message.term)
                self._taker.offered(peer, message)
            case Fetch():
                self._giver.fetch(peer, message)
            case SnapshotChunk():
                self._taker.chunk(peer, message)
            case Withdrawn():
                self._taker.withdrawn(peer, message)
            case Spoilt():
                self._giver.spoilt(peer, message)
            case _ if self.recovery.standing is not Standing.BLANK:
                self.engine.receive(peer, message)
                self._follow_configuration()
                self._start_sync()
            case _:
                pass  # a blank node must promise nothing: it may have promised something else before

    def _hears_guest(self, message: Message) -> bool:
        """Whether a message matters although its sender is no member by the newest configuration here.

        Its promises count for nothing, and it does not disturb a leader that is heard. But this log may be behind: the
        sender may lead, or be about to.
        """
        if isinstance(message, VoteRequest):
            return not self.engine.hears_leader()
        return not isinstance(message, Appended | Hearing | Vote | PreVote | Forward)

    def _refuse_change(self, peer: str, number: int, text: str) -> None:
        self._transmit(peer, ChangeRefused(number, text))

    def _receive_status(self, peer: str, status: Status) -> None:
        if status.state == Role.LEADER:
            self.engine.check_end_of(peer, status.term, status.last_index)
            self.recovery.heard_leader(status)
        if self._presence.is_member(peer):
            self._peers.said(peer, status)
            if peer in self.configurations.membership.voters:
                self._clock.hear(peer, status.steady_ms, self._runtime.monotonic())
            self.recovery.heard(peer, status)
        elif peer in self.configurations.membership.voters:
            self.recovery.heard_other(peer, status)

    # The turn

    def _beat(self) -> None:
        """Ask for a turn at regular intervals: heartbeats and elections fall due without any event, too."""
        if self._turns.is_on:
            self._turns.ask()
            self._watch_space()
            self._leave_if_the_others_can_go_on()
            if self.engine.is_leader:
                self._leave_leading()
                self._expel_the_gone()
                self._mind_members()
            self._runtime.call_later(self._turns.beat_s, self._beat)

    def _turn(self) -> None:
        try:
            self._take_turn()
        except CorruptJournal as damage:
            self.disk_failed(damage)

    def _take_turn(self) -> None:
        # What the last turn has left is sent before this one makes more: only a link that has been written to tells
        # that it is congested.
        if self.engine.outbox:
            self._send()
        self._follow_configuration()
        # A lone member counts itself as the majority, so it must not tick while its tail is not on disk.
        alone_and_unsynced = self.journal.synced < self.journal.written and self._is_majority_alone()
        if not alone_and_unsynced:
            self._note_leader()
            self._check_incarnation()
            self._forward()
            if self.recovery.turn(self.engine, self.journal):
                self._note_past()
                self._introduce()
                self._tell_peers(self._own_status())
            last_index = self.journal.last_index
            self.engine.turn(self._compose)
            self._note_leader()
            if self.journal.last_index > last_index:
                self._send()  # new entries: every peer's disk is waiting for them
        self._giver.turn(self.engine)
        self.housekeeping.turn(*self._applied(), self._applying_s)
        self._start_sync()
        if self.engine.outbox:
            # These are mere notices of the commit index: clients hear first what was just applied.
            self._runtime.call_soon(self._send)
        if self.engine.behind:
            self._turns.ask()

    def _note_leader(self) -> None:
        if (self.engine.leader, self.engine.term) == self._reign:
            return
        reign = Reign(self.engine.leader, self.engine.term)
        if self.config.name in (self._reign.leader, reign.leader):
            self._proposals.clear()
            self._handover.end()
        if reign.leader or self._reign.leader:  # that there is still none is not logged with each term
            log.info("leader of term %d: %s", reign.term, reign.leader or "none")
        self._reign = reign
        # Else they would know for up to a second that this node hears no leader.
        self._tell_peers(self._own_status())
        self._turns.ask()  # submissions go to the new leader
        self._events.leader_changed(*reign)

    def _start_sync(self) -> None:
        if self.journal.dirty and not self.journal.sync_in_flight:
            self.journal.start_sync(self._synced)

    def _synced(self) -> None:
        if self._turns.is_on:
            self.engine.synced()
            self._start_sync()
            self._send()
            self._turns.ask()

    def _applied(self) -> tuple[int, int]:
        """Index and term of the last entry that the state holds."""
        index = self.engine.applied_index
        return index, self.journal.term_at(index)

    def _needed_from(self) -> int | None:
        """Index of the first entry that must stay in the log for the shell or for followers; None if none must."""
        needed = self._events.needed_from()
        if not self.engine.is_leader:
            return needed
        fed = self._giver.needed_from(self.engine, self._presence.members, self.config.retained_bytes)
        return min((index for index in (needed, fed) if index is not None), default=None)

    # Maintenance

    def _leave_leading(self) -> None:
        """Hand over if this node is under maintenance and another one can lead."""
        if self.config.name not in self._maintenance.members or self._handover.is_on(
            self._runtime.monotonic()
        ):
            return
        successor = self._successor()
        if successor is not None:
            self.transfer_leadership(successor)

    def _successor(self) -> str | None:
        """A voter that can lead in place of this node, and is not under maintenance."""
        others = sorted(self.configurations.membership.voters - {self.config.name})
        return next((voter for voter in others if self.why_not_lead(voter) is None), None)

    def _not_to_lead(self) -> list[str]:
        """The members that leadership should not go to.

        A leader whose log is damaged may be unable to give the others what they lack, so it takes whoever has all.
        """
        spares_drained = self.damage is None and self._successor() is not None
        drained = self._maintenance.members if spares_drained else ()
        return [*self._peers.not_voting(), *drained]

    # Space

    @property
    def alarms(self) -> Alarm:
        """What is short, so that publishers must wait; empty if they need not."""
        return self._alarms.active

    @property
    def alarm(self) -> str | None:
        """Why publishers must wait, in RabbitMQ's words; None if they need not."""
        return self._alarms.reason

    @property
    def low_on_memory(self) -> bool:
        """Whether publishers must wait because memory is short; set by the shell, which knows how much may be used."""
        return self._alarms.low_on_memory

    @low_on_memory.setter
    def low_on_memory(self, is_low: bool) -> None:
        self._alarms.low_on_memory = is_low

    def _watch_space(self) -> None:
        if self._alarms.look(self._runtime.monotonic()):
            reason = self.alarm
            log.warning("publishers must wait: %s", reason) if reason else log.info("publishers may go on")
            self._events.alarm_changed(reason)
        self._maintenance.look(self._reign.leader, self._runtime.monotonic())
        self._judge_fitness()
        if self.journal.full:
            self._try_full_disk()

    def _judge_fitness(self) -> None:
        """Have this node stand for leader only if it can lead, and is not to leave that to others."""
        leaves_leading = self._maintenance.leaves_leading(self._runtime.monotonic())
        self.engine.may_lead = not (self.journal.full or self.damage is not None or leaves_leading)

    def _try_full_disk(self) -> None:
        """Try again now and then to write, and ask a member whose disk is not full to lead."""
        now_s = self._runtime.monotonic()
        if now_s - self._tried_full_disk_s < CHECK_INTERVAL_S:
            return
        self._tried_full_disk_s = now_s
        if not self.journal.sync_in_flight:
            self.journal.start_sync(self._synced)
        if self.engine.is_leader:
            unfit = [*self._peers.alarmed(Alarm.DISK), *self._not_to_lead()]
            self.engine.transfer_leadership(without=unfit)

    # Snapshots

    def _install(self, installable: Installable) -> None:
        """Take over another node's log and state, and tell the shell what has happened meanwhile."""
        checkpoint = installable.checkpoint
        try:
            self._check_log_of(installable)
        except ForeignLog as error:
            self._directory.remove_checkpoint(checkpoint.index)  # or the next start would load it
            self._stop_for_foreign_log(error)
            return
        self._directory.restore(self._state, checkpoint)
        self._clock.follow(self._state.time_ms, self._runtime.monotonic())
        self.journal.adopt(installable.segments, installable.runs)
        self._begin_configurations(checkpoint.index)
        self.engine.installed(checkpoint.index)
        self._follow_configuration()
        self.housekeeping.begin(checkpoint)
        self.snapshots_installed += 1
        self._installed_at = self.journal.written
        log.info("installed a snapshot of index %d", checkpoint.index)
        self._resume(checkpoint.index)
        self._turns.ask()

    def _check_log_of(self, installable: Installable) -> None:
        """Raise ForeignLog if the snapshot contradicts what is committed here (hazard H12)."""
        checkpoint, segments, runs = installable
        giver, commit_index = self.leader or "unknown", self.engine.commit_index
        self.engine.check_snapshot(giver, checkpoint.index, checkpoint.term)
        if log_start(segments, segments[-1].end) <= commit_index < segments[-1].end:
            self.engine.check_snapshot(giver, commit_index, runs.at(commit_index))

    def _resume(self, index: int) -> None:
        origin = self._state.origins.get(self.config.name)
        if origin is None or origin.incarnation != self._submissions.incarnation:
            return  # nothing of this life was applied yet
        if origin.expelled:
            self._begin_incarnation()
            self._events.applied(index, [Expelled()])
            return
        self._submissions.applied(origin.sequence)
        self._events.resumed(origin.sequence, self.machine.outstanding(self.config.name))

    def _send(self) -> None:
        """Send what may leave: everything at once, except acknowledgements of what is not yet synced (hazard H1)."""
        outbox, self.engine.outbox = self.engine.outbox, []
        self._departures.send(outbox, self.journal.synced)

    def _transmit(self, peer: str, message: Message) -> None:
        if not self._links.connected(peer):
            return
        is_new = self._links.protocol(peer) > OLDEST_PROTOCOL
        buffers = encode(message) if is_new else encode_for_release_0_1(message)
        if buffers:
            self._links.send(peer, self.config.group_id, buffers)
        if self._links.congested(peer):
            self.engine.hold_back(peer)

    def _tell_peers(self, message: Message) -> None:
        for peer in self._presence.linked:
            self._transmit(peer, message)

    def _tell_status(self) -> None:
        if self._turns.is_on:
            self._clock.look(self._wall_ms(), self._runtime.monotonic())
            self._tell_peers(self._own_status())
            self._giver.tick(self.engine)
            self._taker.tick()
            self._clean_up()
            self._runtime.call_later(STATUS_INTERVAL_S, self._tell_status)

    def _clean_up(self) -> None:
        """Remove a snapshot's directory once it is installed durably, and damaged logs once this node is a voter."""
        if self._installed_at and self.journal.synced >= self._installed_at:
            self._installed_at = 0
            self._taker.remove_installed()
        if not self._cleaned and self.recovery.standing is Standing.VOTER:
            self._cleaned = True
            self._directory.remove_set_aside()

    # Submissions on their way

    def _forward(self) -> None:
        """Send the leader the pending batches that it has not been sent; after a new leader or link, all of them."""
        reign, submissions = self._reign, self._submissions
        if reign.leader is None or not submissions.has_unsent(reign):
            return
        if reign.leader == self.config.name:
            self._proposals.extend(submissions.take_unsent())
        elif self._links.connected(reign.leader) and not self._links.congested(reign.leader):
            batches = submissions.take_unsent(self.config.forward_bytes_max)
            buffers = [buffer for batch in batches for buffer in batch.buffers]
            self._transmit(reign.leader, Forward(reign.term, buffers))
            if submissions.has_unsent(reign):
                self._turns.ask()

    def _receive_forward(self, peer: str, message: Forward) -> None:
        """Take in batches that a peer forwarded, unless they are for another term: then the peer sends them again."""
        if not self.engine.is_leader or message.term != self.engine.term:
            return
        try:
            self._proposals.take_in(peer, b"".join(message.batches))
        except MalformedEntry:
            log.exception("peer %s forwarded malformed batches; ignored", peer)

    def _compose(self) -> None:
        """Propose the batches that have gathered, as one entry, unless enough is under way already."""
        self._note_leader()
        if self._handover.is_on(self._runtime.monotonic()):
            unfit = [*self._not_to_lead(), *self._handover.not_meant(self.peers)]
            self._handover.ask(partial(self.engine.transfer_leadership, unfit))
            return
        while self._proposals and self.journal.last_index - self.engine.commit_index < IN_FLIGHT_MAX:
            batches = self._proposals.next_entry(self.config.entry_bytes_max, self.config.entry_weight_max)
            self.engine.propose(make_entry(self.time_ms(), batches))
        self._tick_if_due()

    def _tick_if_due(self) -> None:
        """Propose a tick entry if the machine has something to do by now, or ask for a turn at the time when it will.

        Nothing is done while an entry is under way: it brings the time as well, and is followed by another turn.
        """
        if self.engine.applied_index < self.journal.last_index:
            return
        due_ms = self.machine.due_ms()
        if due_ms is None:
            return
        time_ms = self.time_ms()
        if due_ms <= time_ms:
            self.engine.propose(make_entry(time_ms, []))
        else:
            self._wake_in(self._clock.wait_s(due_ms, self._runtime.monotonic()))

    def _wake_in(self, delay_s: float) -> None:
        self._turns.ask_in(delay_s)

    def _expel_the_gone(self) -> None:
        now_s = self._runtime.monotonic()
        for peer in self.peers:
            origin = self._state.origins.get(peer)
            if origin is None or origin.expelled:
                continue
            is_silent = self._peers.silent_s(peer, now_s) > self.config.silent_origin_grace_s
            is_dead = self._peers.dead_s(peer, now_s) > self.config.dead_origin_grace_s
            if (is_silent or is_dead) and self._proposals.expel(peer, origin.incarnation):
                log.warning("node %s is gone: its consumers' messages return", peer)
                self._turns.ask()

    # Applying

    def _apply(self, index: int, _term: int, payload: bytes) -> None:
        changes_members = is_configuration(payload)
        if not (changes_members or is_regular(payload)):
            return
        begun_s = self._runtime.monotonic()
        try:
            if changes_members:
                effects, expelled_at = self._applying.configuration(payload)
                before, committed = self.configurations.committed, self.configurations.applied(index)
                if committed.version != before.version:
                    log.info("the cluster is at version %d of the state now", committed.version)
                if committed.is_removed(self.member_id):
                    self._leave()
            else:
                effects, expelled_at = self._applying.entry(index, payload)
            self._clock.follow(self._state.time_ms, begun_s)
        except BaseException as error:
            # H10: whatever this is, every further entry would build on a state that differs from the other nodes'.
            self._turns.is_on = False
            self._runtime.fail(error)
            raise
        self._applying_s += self._runtime.monotonic() - begun_s
        if expelled_at is not None:
            # What the shell submits while it hears of these belongs to the life that is over.
            self._events.applied(index, effects[:expelled_at])
            effects = effects[expelled_at:]
            self._begin_incarnation()
        self._events.applied(index, effects)

    def _check_incarnation(self) -> None:
        """Begin a new incarnation if the log knows a higher one of this node.

        That happens when its directory was lost and its clock set back, since incarnations then begin with the clock.
        """
        origin = self._state.origins.get(self.config.name)
        if origin is not None and origin.incarnation > self._submissions.incarnation:
            self._begin_incarnation()
            self._events.applied(self.engine.applied_index, [Expelled()])

    def _begin_incarnation(self) -> None:
        """Go on under a higher incarnation, because the last one was given up; batches that are pending are dropped."""
        known = self._state.origins.get(self.config.name)
        claim = self._incarnations.begin(known.incarnation if known else None)
        self._submissions.begin(claim.incarnation)
        self.submit([])


def _listed(config: GroupConfig, machine: Machine, *, lists_members: bool) -> Configuration:
    """What a node begins with, before its log or another node tells who the members are.

    Where the members are not those of a list, this node votes for nobody and stands for nothing until it is told.
    """
    members = [
        Member(name, address, is_voter=lists_members or name != config.name)
        for name, address in config.nodes.items()
    ]
    return Configuration.of(machine.versions[0], members)


def _open_journal(
    config: GroupConfig,
    disk: Disk,
    directory: GroupDirectory,
    configurations: Configurations,
    failed: Callable[[Exception], None],
    writes_lost: bool,
) -> SegmentedJournal:
    return SegmentedJournal(
        disk,
        directory.log,
        directory.identity,
        failed,
        directory.hard_state,
        configurations,
        writes_lost=writes_lost,
        segment_bytes=config.segment_bytes,
        segment_entries=config.segment_entries,
        cache_bytes=config.cache_bytes,
        slice_bytes=config.append_bytes_max,
    )
