"""Groups of members in a simulated world, and steps that tests of several rooms of the cluster share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgpack

from chaos.sim.world.disk import SimulatedDisk
from chaos.sim.world.network import Network, NetworkOptions, address_of
from chaos.sim.world.world import SimulatedRuntime, SimulatedWorld, WallClock
from cluster.config import GroupConfig
from cluster.configuration.change_request import MemberChange, Verb
from cluster.configuration.configuration import Configuration, PeerAddress, Versions
from cluster.group.group import Group
from cluster.log.entry import batches_of, entry_time_ms, is_regular
from cluster.membership.reconfiguration import NotNow
from cluster.runtime.ports import pack
from cluster.storage.fail_stop import RemovedFromCluster
from tests.cluster.toy_queue import FrozenToy

RUNG_MAX = 2


Step = Callable[[Configuration], Configuration]


class Alarms:
    """Rings alarms when they are due, a few with each entry. A batch gives delays in milliseconds."""

    def __init__(self) -> None:
        self.due: list[int] = []
        self.rung: list[tuple[int, int]] = []
        """When each was due, and the time of the entry that rang it."""
        self.entries = 0
        self.outage_ms = 0

    versions = (1, 2)
    outages_since = 2
    reads_since = 2
    losses_since = 2
    waiting_batches_since = 2

    def raise_to(self, version: int) -> None:
        """It does the same at both versions."""

    def outage(self, length_ms: int) -> None:
        self.outage_ms += length_ms

    def apply_batch(
        self,
        origin: str,
        index: int,
        ordinal: int,
        time_ms: int,
        payload: memoryview,
    ) -> Sequence[Any]:
        self.due = sorted([*self.due, *(time_ms + delay_ms for delay_ms in msgpack.unpackb(payload))])
        return []

    def end_entry(self, time_ms: int) -> Sequence[Any]:
        self.entries += 1
        rung = [due_ms for due_ms in self.due if due_ms <= time_ms][:RUNG_MAX]
        self.due = self.due[len(rung) :]
        self.rung += [(due_ms, time_ms) for due_ms in rung]
        return []

    def due_ms(self) -> int | None:
        return self.due[0] if self.due else None

    def concerned(self, effects: Sequence[Any]) -> Sequence[str]:
        return []

    def origin_down(self, origin: str, time_ms: int, *, evicted: bool) -> Sequence[Any]:
        return []

    def outstanding(self, origin: str) -> Sequence[Any]:
        return []

    def compact(self, payload: memoryview, messages: Sequence[tuple[int, int]]) -> bytes:
        raise AssertionError(f"there are no live messages in {bytes(payload)!r}, let alone {messages}")

    def freeze(self) -> FrozenAlarms:
        return FrozenAlarms(pack(self.due))

    def dump(self) -> bytes:
        return b"".join(self.freeze().pieces())

    def read(self, data: bytes) -> Any:
        return msgpack.unpackb(data)

    def adopt(self, state: Any) -> None:
        self.due = state

    def digest(self) -> str:
        return str(self.due)


class FrozenAlarms(FrozenToy):
    """No messages, so that all that is applied can go."""

    def __init__(self, dumped: bytes) -> None:
        super().__init__([])
        self._dumped = dumped

    def pieces(self) -> list[bytes]:
        return [self._dumped]


class Member:
    """A node through its lives. It is the `GroupEvents` of its group."""

    group: Group
    runtime: SimulatedRuntime

    def __init__(self, name: str, trio: Trio) -> None:
        self.name = name
        self.wall = WallClock(trio.world, 0)
        self.disk = SimulatedDisk(trio.world.random(f"disk {name}"), self._schedule_disk)
        self.machine = Alarms()
        self.address = address_of(name)
        self._trio = trio
        self._starts = 0

    def _schedule_disk(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._trio.world.after(delay_s, lambda: self.runtime.enter(callback))

    def start(
        self,
        machine: Alarms | None = None,
        group: type[Group] = Group,
        places: Mapping[str, PeerAddress] = MappingProxyType({}),
        **settings: Any,
    ) -> None:
        """Start the process. `places`: addresses of members in the node's file, in addition to those in the log."""
        trio = self._trio
        self._starts += 1
        self.machine = machine or Alarms()
        random = trio.world.random(f"node {self.name} {self._starts}")
        failed = trio.failures.append
        self.runtime = SimulatedRuntime(trio.world, self.wall, random, ignore, failed, ignore)
        self.disk.wait = self.runtime.stall
        seeds = [address_of(name) for name in trio.listed] if settings.get("joins") else []
        versions = Versions(*self.machine.versions)
        links = trio.network.attach(
            self.name, self.runtime, versions, addresses=[self.address], listed=places, seeds=seeds
        )
        names = {self.name} if seeds else {*trio.listed, self.name}
        config = GroupConfig(
            self.name,
            {name: address_of(name) for name in names} | {self.name: self.address},
            "test",
            dead_origin_grace_s=1e9,
            silent_origin_grace_s=1e9,
            **settings,
        )
        self.group = group(config, self.machine, self.runtime, self.disk, links)
        self.group.start(self)

    def end(self) -> None:
        self.runtime.alive = False
        self.disk.crash(power_loss=False)
        self._trio.network.process_ended(self.name, power_loss=False)

    @property
    def is_settled(self) -> bool:
        is_known = self.group.configurations.is_settled
        return is_known and self.machine.entries > 0 and _is_idle(self)

    def set_alarms(self, *delays_ms: int) -> None:
        """Submit them, and wait until they are set."""
        entries = self.machine.entries
        self.runtime.enter(lambda: ignore(self.group.propose([pack(delays_ms)])))
        self._trio.until(lambda: self.machine.entries > entries)

    def ticks(self) -> list[int]:
        """The times of the entries without batches in its log."""
        journal = self.group.journal
        entries = map(journal.read, range(journal.first_index, journal.last_index + 1))
        return [entry_time_ms(entry) for entry in entries if is_regular(entry) and batches_of(entry) == []]

    # GroupEvents

    def applied(self, index: int, effects: Sequence[Any]) -> None: ...

    def leader_changed(self, leader: str | None, term: int) -> None: ...

    def resumed(self, sequence: int, outstanding: Sequence[Any]) -> None: ...

    def needed_from(self) -> int | None:
        return None

    def alarm_changed(self, reason: str | None) -> None: ...


class Trio:
    """Up to three members in a simulated world."""

    def __init__(self, names: Sequence[str] = ("a", "b", "c"), listed: Sequence[str] = ()) -> None:
        """`listed`: the members that each node's file lists besides itself; all members by default."""
        self.names = names
        self.listed = listed or names
        self.world = SimulatedWorld(1)
        self.network = Network(self.world, names, NetworkOptions(), self.world.random("network"))
        self.failures: list[BaseException] = []
        self.members = [Member(name, self) for name in names]

    def start(self) -> Member:
        """Start all; returns the leader, once everybody's first submission is applied, and the log has its members."""
        for member in self.members:
            member.start()
        self.until(lambda: all(member.is_settled for member in self.members))
        return self.leader()

    def leader(self) -> Member:
        [leader] = [
            member for member in self.members if member.runtime.alive and member.group.engine.is_leader
        ]
        return leader

    def followers(self) -> list[Member]:
        leader = self.leader()
        return [member for member in self.members if member is not leader and member.runtime.alive]

    def pass_ms(self, time_ms: int) -> None:
        self.world.run_until(self.world.now_s + time_ms / 1000)
        assert not self.failures

    def until(self, holds: Callable[[], bool], within_ms: int = 10_000) -> None:
        end_s = self.world.now_s + within_ms / 1000
        while not holds():
            assert self.world.now_s < end_s
            self.pass_ms(1)


class Growing(Trio):
    """Three members and a fourth node that can join."""

    def __init__(self, names: str = "abcd") -> None:
        super().__init__(list(names), listed=list(names[:-1]))
        *self.members, self.fourth = self.members

    def change(self, step: Step) -> int:
        """Have the leader take a step as soon as it may; returns the index of the entry."""
        taken: list[int] = []

        def request() -> None:
            try:
                taken.append(self.leader().group.reconfiguration.propose(step))
            except NotNow:
                return

        def is_taken() -> bool:
            if not taken:
                self.leader().runtime.enter(request)
            return bool(taken)

        self.until(is_taken)
        self.until(lambda: self.leader().group.engine.applied_index >= taken[0])
        return taken[0]

    def outcome_of(self, member: Member, change: MemberChange) -> str:
        """Ask a member for a change until it is made, or refused: why then."""
        refusals: list[str] = []
        end_s = self.world.now_s + 20.0
        while not (refusals or change.is_made(member.group.configurations.committed)):
            assert self.world.now_s < end_s
            member.runtime.enter(lambda: member.group.reconfiguration.request(change, refusals.append))
            self.world.run_until(self.world.now_s + 0.1)
        return "".join(refusals[:1])

    def add_fourth(self) -> None:
        self.fourth.start(joins=True)
        self.members.append(self.fourth)
        self.until(lambda: self.agrees("abcd"))

    def lead_by(self, names: str) -> None:
        """Transfer leadership until a member of `names` leads."""
        for _ in range(100):
            leaders = [node for node in self.members if node.runtime.alive and node.group.engine.is_leader]
            if leaders and leaders[0].name in names:
                return
            if leaders:
                leaders[0].runtime.enter(
                    lambda leader=leaders[0]: leader.group.leadership.transfer(names[0]) and None
                )
            self.pass_ms(300)
        raise AssertionError(f"none of {names} leads")

    def agrees(self, voters: str) -> bool:
        """Return whether all running members know exactly these voters as committed."""
        running = [member for member in self.members if member.runtime.alive]
        return all(
            sorted(voters) == sorted(member.group.configurations.committed.membership.voters)
            and member.group.configurations.newest is member.group.configurations.committed
            for member in running
        )

    def stops(self, member: Member) -> None:
        """Wait until a member stops because it was removed."""
        end_s = self.world.now_s + 10.0
        while not self.failures:
            assert self.world.now_s < end_s
            self.world.run_until(self.world.now_s + 0.1)
        assert isinstance(self.failures.pop(), RemovedFromCluster)
        member.end()
        self.members = [other for other in self.members if other is not member]

    def all_submit(self) -> None:
        """Every member has a batch applied."""
        for member in self.members:
            if member.runtime.alive:
                member.set_alarms(1)


def _is_idle(member: Member) -> bool:
    group = member.group
    return not group.pending_batches and group.engine.applied_index == group.journal.last_index


def ignore(_value: object = None) -> None: ...


def voters_of(node: Member) -> list[str]:
    return sorted(node.group.configurations.membership.voters)


def id_of(node: Member) -> bytes:
    return node.group.members.id


def remove(node: Member) -> MemberChange:
    return MemberChange(Verb.REMOVE, node.name, id_of(node))


def replace_(node: Member) -> MemberChange:
    return MemberChange(Verb.REPLACE, node.name, id_of(node))


def drain(growing: Growing, *nodes: Member) -> None:
    for node in nodes:
        assert growing.outcome_of(node, MemberChange(Verb.DRAIN, node.name)) == ""


def leads(growing: Growing, *nodes: Member) -> bool:
    return any(node.runtime.alive and node.group.engine.is_leader for node in nodes) and all(
        member.group.leader in {node.name for node in nodes}
        for member in growing.members
        if member.runtime.alive
    )


def submit(node: Member) -> None:
    node.group.propose([b"\x90"])


def applied(growing: Growing, node: Member, *, request: Callable[[], None]) -> int:
    """Return the number of entries that a node applies in four seconds with a batch submitted every 10 ms."""
    before = node.machine.entries
    for turn in range(400):
        if turn % 30 == 0:
            node.runtime.enter(request)
        node.runtime.enter(lambda: submit(node))
        growing.pass_ms(10)
    return node.machine.entries - before
