"""A simulated cluster: several production nodes, without their sockets, in one world.

Invariant: everything above the ports is production code, built as production builds it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from chaos.sim.world.compared_machines import Program
from chaos.sim.world.disk import ProcessEnds, SimulatedDisk
from chaos.sim.world.network import Network, NetworkOptions, address_of
from chaos.sim.world.world import SimulatedRuntime, SimulatedWorld, WallClock
from cluster.config import GroupConfig
from cluster.configuration.change_request import MemberChange, Verb
from cluster.configuration.configuration import NOBODY, OtherVersion, PeerAddress, Versions
from cluster.engine.engine import Engine
from cluster.group.group import Group
from cluster.log.hardstate import VoterStatus
from cluster.log.segment import JournalError
from cluster.raft.timing import Timing
from cluster.state.apply import Confirmed, Evicted
from cluster.storage.fail_stop import ObsoleteLog, RemovedFromCluster
from cluster.storage.identity import MEMBER_FILE, OtherMembers
from cluster.transport.handshake import VERSIONS as PROTOCOLS

if TYPE_CHECKING:
    from chaos.sim.world.compared_machines import WatchedMachine
    from cluster.configuration.configuration import Configuration

CLUSTER = "simulation"
GROUP = "groups/0"
LOG = f"{GROUP}/log"
"""Directory of the log on each node's disk."""
START_RETRY_S = 0.5
OPERATOR_S = 3.0
"""Seconds between two checks of the members by an operator."""
RETURN_S = 1.0
"""Seconds until an operator lets a removed node in again."""


class Parts(NamedTuple):
    """Classes that a node is built from; tests replace them to put hazards back."""

    engine: type[Engine] = Engine
    group: type[Group] = Group
    network: type[Network] = Network


AT_ONCE_SHARE = 0.5
"""Share of a disk's short jobs that finish at once, without its thread, as on a quick disk."""


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """The options of a run, which run.py draws from the seed."""

    nodes: int = 3
    queues: bool = False
    """Whether the machine is the queue machine; otherwise it is the ledger."""
    clients: bool = False
    """Whether AMQP clients use the queues; otherwise the workload submits commands directly."""
    requesters: int = 0
    """AMQP clients that request and reply by direct reply-to, beside the others."""
    linking_clients: int = 0
    """Clients of AMQP 1.0 among the clients."""
    leases: bool = False
    """Whether readers certainly lease messages of the queues; otherwise the seed decides."""
    links: bool = False
    """Whether clients certainly set the credit of consumers; otherwise the seed decides."""
    declarers: int = 0
    """AMQP clients that declare queues and look for them, beside the others."""
    calm_s: float = 0.0
    """Seconds of load before the first fault."""
    duration_s: float = 20.0
    """Seconds of load and faults."""
    submit_interval_s: float = 0.15
    """Mean seconds between two submissions at a node."""
    large_batches: float = 0.0
    """Share of the ledger's batches that are large enough to congest links."""
    largest_bytes: int = 40_000
    """Upper bound of the bytes of a large batch."""
    fault_interval_s: float = 1.0
    faults: dict[str, float] = field(default_factory=dict)
    """Weight of each fault, by name."""
    network: NetworkOptions = field(default_factory=NetworkOptions)
    timing: Timing = field(
        default_factory=lambda: Timing(
            election_min_s=0.8,
            election_max_s=1.6,
            heartbeat_s=0.2,
            campaign_jitter_s=0.05,
            campaign_retry_s=0.2,
        )
    )
    disk_slowness: float = 1.0
    """Factor of the disks' latencies, which are a millisecond or two."""
    segment_bytes: int = 16 * 1024
    segment_entries: int = 65_536
    cache_bytes: int = 64 * 1024
    checkpoint_entries: int = 40
    checkpoint_bytes: int = 64 * 1024
    checkpoint_interval_s: float = 2.0
    retained_bytes: int = 16 * 1024
    disk_free_limit_bytes: int = 0
    checks_disk_use: bool = False
    """Whether load goes on after the faults until the disks meet their bound."""
    message_bytes_max: int = 16 * 1024
    """Bytes; bounds entries, forwards and appends, like the limit of a megabyte in production."""
    is_upgrade: bool = False
    """Whether nodes begin with the previous release and are upgraded while they run."""
    raises_version: bool = True
    """Whether the cluster raises the version of the state by itself, or waits for an operator's command."""
    makes_backup: bool = False
    """Whether a backup is made at a random moment and restored as a new cluster at the end."""
    grows: bool = False
    """Whether nodes are added under new names, and members removed for good."""
    replaces_emptied: bool = True
    """Whether a node with an empty directory replaces its former member by itself, or only on an operator's command."""
    skew_max_ms: int = 5_000
    clock_patience_s: float = 3.0


class NodeEvents:
    """Listener for a node's process starts and its group's reports; each method does nothing by default."""

    def started(self, node: SimulatedNode) -> None: ...

    def confirmed(self, node: SimulatedNode, sequence: int) -> None: ...

    def evicted(self, node: SimulatedNode) -> None: ...

    def effect(self, node: SimulatedNode, effect: Any) -> None: ...

    def resumed(self, node: SimulatedNode, sequence: int, outstanding: Sequence[Any]) -> None: ...

    def entry_applied(self, node: SimulatedNode, index: int) -> None:
        """Handle the end of an entry, after its effects."""

    def leader_changed(self, node: SimulatedNode, leader: str | None) -> None:
        """Handle a change of the leader that the node follows."""

    def alarm_changed(self, node: SimulatedNode, reason: str | None) -> None:
        """Handle an alarm: the reason why publishers must wait, or None when they may go on."""

    def retired(self, node: SimulatedNode) -> None:
        """Handle a node that has been removed for good."""

    def needed_from(self, node: SimulatedNode) -> int | None:  # noqa: ARG002 - whoever reads no entries needs none
        """Return the lowest log index that will still be read, or None."""
        return None


class Watcher(Protocol):
    """Observer of simulated nodes.

    It supplies the state machine of each process start and is called after every step.
    """

    def machine(self, program: Program) -> WatchedMachine: ...

    def started(self, node: SimulatedNode) -> None: ...

    def observe(self, node: SimulatedNode) -> None:
        """Inspect a node; called after each of its steps."""
        ...

    def applied(self, node: SimulatedNode, index: int) -> None: ...

    def received(self, node: SimulatedNode, peer: str, frame: bytes) -> None: ...

    def resumed(self, node: SimulatedNode) -> None: ...

    def node_failed(self, node: SimulatedNode, error: BaseException) -> None: ...

    def found_no_space(self, node: SimulatedNode, error: OSError) -> None: ...

    def damaged(self, node: SimulatedNode) -> None: ...

    def gave_log_up(self, node: SimulatedNode) -> None: ...

    def may_find_damage(self, node: SimulatedNode) -> bool: ...

    def topology_changed(self) -> None: ...


class SimulatedNode:
    """A simulated member: a lasting disk and clock, and a process that starts again and again.

    It is the `GroupEvents` of its group.
    """

    group: Group
    runtime: SimulatedRuntime
    machine: WatchedMachine

    def __init__(self, name: str, cluster: SimulatedCluster) -> None:
        self.name = name
        self.members = cluster.founders
        """The list of members in the node's file."""
        self.joins = False
        """Whether the node has no list and searches for its cluster at all other nodes."""
        self.address = address_of(name)
        """The address at which the node listens."""
        self.may_be_removed = False
        """Whether an operator has asked for its removal, so that it may stop and return with an empty directory."""
        self.is_retired = False
        """Whether the node stays away after its removal."""
        self._is_taken_down = False
        self.program = Program.CURRENT
        """The program that is installed on the node."""
        self.incarnation = 0
        self.up = False
        self._power_loss_within = False
        self._log_lists_members = False
        """Whether its last process start knew the members from the log; then the list in the file has no effect."""
        self.has_started = False
        """Whether this process start is complete: the node has an engine, a log and a voter status."""
        self._voter_status = VoterStatus.BLANK
        self._cluster = cluster
        self._world = cluster.world
        self.wall = WallClock(self._world, cluster.skew_ms())
        self.disk = SimulatedDisk(self._world.random(f"disk {name}"), self._schedule_disk)
        self.disk.slow = cluster.options.disk_slowness
        self.disk.at_once_share = AT_ONCE_SHARE

    def _schedule_disk(self, delay_s: float, callback: Callable[[], None]) -> None:
        # Enter the runtime that is current when the callback is due: the disk itself drops callbacks of earlier starts.
        self._world.after(delay_s, lambda: self.runtime.enter(callback))

    # Process starts

    def start(self) -> None:
        """Start the process, or retry later if the disk fails."""
        if self.up or self._is_taken_down or self not in self._cluster.nodes:
            return
        self._voter_status = self.voter_status
        self.has_started = False
        self.incarnation += 1
        watcher = self._cluster.watcher
        runtime = SimulatedRuntime(
            self._world,
            self.wall,
            self._world.random(f"node {self.name} {self.incarnation}"),
            happened=partial(watcher.observe, self),
            failed=self._failed,
            ended=self._ended_within,
        )
        self.runtime = runtime
        self.disk.wait = runtime.stall
        self._cluster.network.host_has_power(self.name)
        self.machine = watcher.machine(self.program)
        versions = Versions(*self.machine.versions)
        others = [node.address for node in self._cluster.nodes if node is not self]
        links = self._cluster.network.attach(
            self.name,
            runtime,
            versions,
            addresses=[self.address],
            listed=self._cluster.listed_by(self),
            seeds=others if self.joins else [],
            protocol=PROTOCOLS[0] if self.program is Program.EARLIER else PROTOCOLS[-1],
        )
        links.frame_received = partial(watcher.received, self)
        config, parts = self._cluster.group_config(self), self._cluster.parts
        self.up = True
        try:
            self.group = parts.group(config, self.machine, runtime, self.disk, links, engine=parts.engine)
            self.group.start(self)
        except OSError as error:
            if error.errno == errno.ENOSPC and self._voter_status is VoterStatus.VOTER:
                watcher.found_no_space(self, error)
            self.end(power_loss=False)
            self._world.after(START_RETRY_S, self.start)
            return
        except (OtherMembers, OtherVersion) as error:
            if not self._may_refuse(error):
                watcher.node_failed(self, error)
            self.end(power_loss=False)  # the operator who has configured it so will correct it
            return
        except ProcessEnds:
            self._ended_within()
            return
        except RemovedFromCluster as error:
            self._removed(error)
            return
        except Exception as error:  # noqa: BLE001 - whatever else keeps a node from starting is a finding
            watcher.node_failed(self, error)
        self.has_started = True
        watcher.started(self)
        for events in self._cluster.events:
            events.started(self)

    def _may_refuse(self, error: OtherMembers | OtherVersion) -> bool:
        """Return whether this program with this list may refuse the directory."""
        if isinstance(error, OtherVersion):
            return self.program is not Program.CURRENT
        is_lost = self._cluster.watcher.may_find_damage(self)
        return self.members != self._cluster.founders and (is_lost or not self._log_lists_members)

    @property
    def peers(self) -> list[str]:
        """The names of all other present nodes."""
        return [peer for peer in self._cluster.names if peer != self.name]

    @property
    def known(self) -> set[str]:
        """The names of the peers that the node can find: those in its file and the members in its log."""
        in_file = self.peers if self.joins else self.members
        in_log = [member.name for member in self.group.configurations.newest.members]
        return {*in_file, *in_log} - {self.name}

    @property
    def has_id(self) -> bool:
        """Whether its directory has an id; an empty directory gets its id during the start."""
        return f"{GROUP}/{MEMBER_FILE}" in self.disk.by_path

    @property
    def misconfigured(self) -> bool:
        return self.program is Program.FOREIGN or self.members != self._cluster.founders

    def end(self, *, power_loss: bool) -> None:
        """End the process as `kill -9` does or, with `power_loss`, as a power cut does."""
        if not self.up:
            return
        if self.has_started:
            # A configuration's consequences are stored by the next turn, after the configuration itself. So the disk
            # has all of them only if that turn has run and no write waits for a sync.
            held, journal = self.group.configurations, self.group.journal
            is_followed = held.is_settled and held.known is self.group.members.known
            self._log_lists_members = is_followed and journal.synced == journal.written
        self.up = False
        self.runtime.alive = False
        self.disk.crash(power_loss=power_loss)
        self._cluster.network.process_ended(self.name, power_loss=power_loss)
        self._cluster.watcher.topology_changed()

    def take_down(self) -> None:
        """End the process for good, even if a restart is scheduled."""
        self._is_taken_down = True
        self.end(power_loss=False)

    def end_within(self, steps: int, *, power_loss: bool) -> None:
        """End the process in the middle of its disk operations, after `steps` further steps."""
        self._power_loss_within = power_loss
        self.disk.end_process_after(steps)

    def spare(self) -> None:
        """Undo `end_within`."""
        self.disk.spare_process()

    def _ended_within(self) -> None:
        self.end(power_loss=self._power_loss_within)
        self._world.after(START_RETRY_S, self.start)

    @property
    def voter_status(self) -> VoterStatus:
        """The voter status that the node itself knew last."""
        return self.group.rejoin.voter_status if self.has_started else self._voter_status

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, ProcessEnds):
            return  # `_ended_within` follows
        if isinstance(error, RemovedFromCluster):
            self._removed(error)
            return
        if isinstance(error, ObsoleteLog):
            self._cluster.watcher.gave_log_up(self)
        damaged = isinstance(error, JournalError) and self._cluster.watcher.may_find_damage(self)
        if not (damaged or isinstance(error, OSError)):
            self._cluster.watcher.node_failed(self, error)
        self._world.after(0.0, partial(self._end_process, self.incarnation))

    def _removed(self, error: RemovedFromCluster) -> None:
        """Handle the removal of the node. An operator lets it in again as a new member, or removes it for good."""
        if not self.may_be_removed:
            self._cluster.watcher.node_failed(self, error)
        self.leave()

    def leave(self) -> None:
        """End the process because the node was removed, and return later as a new member, or never."""
        self._world.after(RETURN_S, partial(self._join_anew, self.incarnation))
        self._world.after(0.0, partial(self._end_for_good, self.incarnation))

    def _end_for_good(self, incarnation: int) -> None:
        if self.up and self.incarnation == incarnation:
            self.end(power_loss=False)

    def _join_anew(self, incarnation: int) -> None:
        if self.incarnation != incarnation or not self.may_be_removed:
            return
        if self.is_retired:
            self.end(power_loss=False)
            self._cluster.retire(self)
            return
        self.may_be_removed = False
        self.begin_anew()

    def begin_anew(self) -> None:
        """Start the node with an empty directory and its peers' addresses (`--join`), as an operator would."""
        self.end(power_loss=False)
        self.disk.lose_everything()
        self._cluster.watcher.damaged(self)
        self.joins = True
        self.start()

    def _end_process(self, incarnation: int) -> None:
        """End the process after a disk failure, and restart it as an operator would."""
        if self.up and self.incarnation == incarnation:
            self.end(power_loss=False)
            self._world.after(START_RETRY_S, self.start)

    # GroupEvents

    def applied(self, index: int, effects: Sequence[Any]) -> None:
        self._cluster.watcher.applied(self, index)
        for effect in effects:
            for events in self._cluster.events:
                if type(effect) is Confirmed:
                    events.confirmed(self, effect.sequence)
                elif type(effect) is Evicted:
                    events.evicted(self)
                else:
                    events.effect(self, effect)
        for events in self._cluster.events:
            events.entry_applied(self, index)

    def leader_changed(self, leader: str | None, term: int) -> None:  # noqa: ARG002 - the checks see it in `observe`
        for events in self._cluster.events:
            events.leader_changed(self, leader)

    def resumed(self, sequence: int, outstanding: Sequence[Any]) -> None:
        self._cluster.watcher.resumed(self)
        for events in self._cluster.events:
            events.resumed(self, sequence, outstanding)

    def needed_from(self) -> int | None:
        needed = (events.needed_from(self) for events in self._cluster.events)
        return min((index for index in needed if index is not None), default=None)

    def alarm_changed(self, reason: str | None) -> None:
        for events in self._cluster.events:
            events.alarm_changed(self, reason)


class SimulatedCluster:
    """All nodes of a run."""

    def __init__(
        self,
        world: SimulatedWorld,
        options: SimulationOptions,
        parts: Parts,
        watcher: Watcher,
        network: Network | None = None,
    ) -> None:
        """Build the nodes, in an own network or in the given `network`."""
        self.world = world
        self.options = options
        self.parts = parts
        self.watcher = watcher
        self.events: list[NodeEvents] = []
        self.founders = [f"n{number}" for number in range(1, options.nodes + 1)]
        """The names of the first nodes: the list in their files."""
        self.names = list(self.founders)
        """The names of the present nodes."""
        self.network = network or parts.network(world, self.names, options.network, world.random("network"))
        self._skew: Random = world.random("skew")
        self.nodes = [SimulatedNode(name, self) for name in self.names]
        self._ever = len(self.nodes)
        """Number of nodes that have ever existed."""

    def add_node(self) -> SimulatedNode:
        """Add a node under a new name and return it; when started, it searches for its cluster at its peers."""
        self._ever += 1
        node = SimulatedNode(f"n{self._ever}", self)
        node.joins = True
        self.names.append(node.name)
        self.nodes.append(node)
        return node

    def retire(self, node: SimulatedNode) -> None:
        """Forget a node that has been removed and has ended; it never starts again."""
        self.names.remove(node.name)
        self.nodes.remove(node)
        self.watcher.topology_changed()
        for events in self.events:
            events.retired(node)

    def skew_ms(self) -> int:
        return self._skew.randint(-self.options.skew_max_ms, self.options.skew_max_ms)

    def group_config(self, node: SimulatedNode) -> GroupConfig:
        options = self.options
        return GroupConfig(
            name=node.name,
            nodes=self.listed_by(node),
            cluster=CLUSTER,
            joins=node.joins,
            replaces_emptied=options.replaces_emptied,
            raises_version=options.raises_version,
            timing=options.timing,
            dead_origin_grace_s=0.1,
            doubted_origin_grace_s=0.6,
            silent_origin_grace_s=5.0,
            clock_patience_s=options.clock_patience_s,
            segment_bytes=options.segment_bytes,
            segment_entries=options.segment_entries,
            cache_bytes=options.cache_bytes,
            checkpoint_entries=options.checkpoint_entries,
            checkpoint_bytes=options.checkpoint_bytes,
            checkpoint_interval_s=options.checkpoint_interval_s,
            retained_bytes=options.retained_bytes,
            disk_free_limit_bytes=options.disk_free_limit_bytes,
            entry_bytes_max=options.message_bytes_max,
            forward_bytes_max=options.message_bytes_max,
            append_bytes_max=options.message_bytes_max,
        )

    def listed_by(self, node: SimulatedNode) -> dict[str, PeerAddress]:
        """Return the addresses in a node's file, which are right when the node starts."""
        names = [node.name] if node.joins else node.members
        known = {other.name: other.address for other in self.nodes}
        return {name: known.get(name, address_of(name)) for name in names}

    def operate_members(self) -> None:
        """Do the work of an operator where the cluster cannot repair its membership by itself.

        A node with a new directory is not let in automatically if its address is new too, or if its former member was
        removed before it could be replaced. If moreover all peers in its file have been removed, the operator starts it
        with the present addresses.

        A node that was removed for good may have stopped because an older directory of its name was removed. Then the
        operator also removes the member that remains.
        """
        self.world.after(OPERATOR_S, self.operate_members)
        leader = self.leader()
        if leader is None:
            return
        members = leader.group.configurations.committed
        waiting = [
            node
            for node in self.nodes
            if node.up and node.has_started and node.group.rejoin.describe() is not None
        ]
        for node in waiting:
            if node.misconfigured or node.known.intersection(self.names):
                continue
            member = members.member(node.name)
            if members.is_removed(node.group.members.id):
                node.leave()
            elif member is not None and member.address != node.address:
                self.world.after(0.0, node.begin_anew)
        changes = [_taking_in(node, members) for node in waiting]
        retired = [member for member in members.members if member.name not in self.names]
        changes += [MemberChange(Verb.REMOVE, member.name, member.id or NOBODY) for member in retired]
        for change in changes:
            if change is not None:
                refused = partial(_refused, leader)
                leader.runtime.enter(partial(leader.group.reconfiguration.request, change, refused))

    def leader(self) -> SimulatedNode | None:
        """Return the leader of the highest term, or None."""
        leaders = [node for node in self.nodes if node.up and node.group.engine.is_leader]
        return max(leaders, key=lambda node: node.group.engine.term, default=None)

    def settled(self) -> bool:
        """Return whether the cluster is at rest.

        All nodes are up, are voters and agree on a leader; all have applied the whole log, at the newest version of the
        state; no batch is pending. A member under maintenance leads only if all members are under maintenance.
        """
        leaders = 0
        applied: dict[int, None] = {}
        leader = self.leader()
        if leader is None:
            return False
        members = leader.group.configurations.committed
        drained = [member.name for member in members.members if member.is_drained]
        if leader.name in drained and len(drained) < len(self.nodes):
            return False
        for node in self.nodes:
            if not node.up or node.runtime.paused or node.group.pending_batches:
                return False
            is_voter = members.has_voter(node.name, node.group.members.id)
            if members.version != node.machine.versions[1]:
                return False
            if node.voter_status is not VoterStatus.VOTER or not is_voter:
                return False
            engine = node.group.engine
            leaders += engine.is_leader
            applied[engine.applied_index] = None
            if engine.applied_index != node.group.journal.last_index:
                return False
        return leaders == 1 and len(applied) == 1

    def describe(self) -> str:
        """Return the role and log position of each node, for a failure report."""
        return "; ".join(_describe(node) for node in self.nodes)


def _taking_in(node: SimulatedNode, members: Configuration) -> MemberChange | None:
    """Return the change that an operator must request for a node that is not a voter, or None."""
    member = members.member(node.name)
    if members.was_removed(node.name):
        return MemberChange(Verb.ADD, node.name, node.group.members.id, *node.address)
    if member is not None and member.id not in (None, node.group.members.id):
        return MemberChange(Verb.REPLACE, node.name, member.id)
    return None


def _refused(leader: SimulatedNode, reason: str) -> None:
    """End the maintenance of a member if a change is refused because all remaining members are under maintenance."""
    if "under maintenance" in reason:
        drained = [
            member.name for member in leader.group.configurations.committed.members if member.is_drained
        ]
        leader.group.reconfiguration.request(MemberChange(Verb.REVIVE, drained[0]), _ignore)


def _ignore(_reason: str) -> None:
    """Ignore the reason of a refusal, because a later request may succeed."""


def _describe(node: SimulatedNode) -> str:
    if not node.up:
        return f"{node.name} down"
    if not node.has_started:
        return f"{node.name} has not started"
    engine, journal = node.group.engine, node.group.journal
    asleep = " paused" if node.runtime.paused else ""
    voter_status = "" if node.voter_status is VoterStatus.VOTER else f" {node.voter_status.name.lower()}"
    return (
        f"{node.name}{asleep}{voter_status} {engine.role.name.lower()} of {engine.leader} term {engine.term} "
        f"log {journal.first_index} to {journal.last_index} synced {journal.synced_index} commit {engine.commit_index} "
        f"applied {engine.applied_index} pending {node.group.pending_batches}"
    )
