"""Oracle of leases: each leased message was ready, stays in its lease, and leaves it once.

Invariant: a lease's messages are read from the machine when it is taken, and each must have been ready. From then on,
every machine must have exactly these messages in the lease, in this order, until the oracle ends the lease itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from chaos.sim.checks.queue_model import names_of
from qq.machine.protocol.commands import (
    DEFAULT_VHOST,
    CloseGroup,
    CommitLeases,
    GroupCommand,
    LeaseMessages,
    OpenGroup,
    ReleaseLease,
)

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from chaos.sim.checks.queue_model import Key, Message, QueueModel
    from qq.machine.machine import QueueMachine
    from qq.machine.queue.queue import Queue
    from qq.ranges import Range

    Take = Callable[[QueueModel, Range, Iterable[Key]], list[Message]]
    GiveBack = Callable[[QueueModel, list[Message]], None]


@dataclass(slots=True)
class GroupModel:
    """A group as its commands left it."""

    fence: int
    settings: tuple[str, str, bool, int]
    """Owner, order, whether it is exclusive, and `expires_ms`."""
    generation: int
    used_ms: int
    leases: dict[int, list[Message]] = field(default_factory=dict)
    committed: int = -1
    """The highest committed lease."""
    last: int = -1
    """The highest lease that was taken."""


class _GroupKey(NamedTuple):
    queue: int
    """The number of the queue."""
    name: str


class LeaseOracle:
    """Follows the groups of the default virtual host."""

    def __init__(
        self,
        fail: Callable[[str], None],
        fates: Counter[str],
        queues: Callable[[], Mapping[str, QueueModel]],
        take: Take,
        give_back: GiveBack,
    ) -> None:
        """Create the oracle without groups.

        `take` checks messages that must be ready, and takes them out of the model of a queue; `give_back` returns
        them.
        """
        self._fail = fail
        self._fates = fates
        self._queues = queues
        self._take = take
        self._give_back = give_back
        self._groups: dict[_GroupKey, GroupModel] = {}

    def leased(self, model: QueueModel) -> int:
        """Return the number of messages of a queue that are in leases."""
        return sum(
            len(messages)
            for key, group in self._groups.items()
            if key.queue == model.number
            for messages in group.leases.values()
        )

    def is_used(self, model: QueueModel) -> bool:
        return any(key.queue == model.number for key in self._groups)

    def forget(self, model: QueueModel) -> int:
        """Forget the groups of a removed queue, and return the number of messages that were in leases."""
        leased = self.leased(model)
        self._groups = {key: group for key, group in self._groups.items() if key.queue != model.number}
        return leased

    def carry_out(self, machine: QueueMachine, index: int, command: GroupCommand, available_ms: int) -> None:
        """Follow a command of the entry at this index, which the machine has carried out."""
        model = self._queues().get(command.queue)
        if model is None:
            return
        key = _GroupKey(model.number, command.group)
        group = self._groups.get(key)
        if isinstance(command, OpenGroup):
            settings = (command.owner, command.order, command.is_exclusive, command.expires_ms)
            if group is None:
                group = self._groups[key] = GroupModel(command.fence, settings, index, available_ms)
                self._fates["groups"] += 1
            elif command.fence > group.fence:
                group.fence, group.settings = command.fence, settings
                self._fates["takeovers"] += 1
            if (command.fence, settings) == (group.fence, group.settings):
                group.used_ms = available_ms
            return
        if group is None or command.fence != group.fence:
            self._fates["stale fences"] += 1
            return
        if command.generation not in (0, group.generation):
            self._fates["ended generations"] += 1
            return
        if self._is_carried_out(machine, model, key, group, command):
            group.used_ms = available_ms

    def _is_carried_out(
        self,
        machine: QueueMachine,
        model: QueueModel,
        key: _GroupKey,
        group: GroupModel,
        command: LeaseMessages | CommitLeases | ReleaseLease | CloseGroup,
    ) -> bool:
        match command:
            case LeaseMessages(lease=number):
                if number in group.leases:
                    self._fates["leases taken again"] += 1
                    return True
                if number <= max(group.committed, group.last):
                    self._fates["late leases"] += 1
                    return False
                self._lease(machine, model, key, group, command)
            case CommitLeases(up_to=up_to):
                if up_to > group.committed and up_to not in group.leases:
                    return False
                for number in [number for number in group.leases if number <= up_to]:
                    self._fates["committed"] += len(group.leases.pop(number))
                group.committed = max(group.committed, up_to)
            case ReleaseLease(lease=number):
                self._release(model, group, [number])
            case CloseGroup(releases=releases):
                if group.leases and not releases:
                    return False
                self._release(model, group, list(group.leases))
                del self._groups[key]
        return True

    def _lease(
        self,
        machine: QueueMachine,
        model: QueueModel,
        key: _GroupKey,
        group: GroupModel,
        command: LeaseMessages,
    ) -> None:
        """Read a new lease from the machine, and check that its messages were ready."""
        queue = _queue(machine, model)
        there = queue.groups.get(key.name)
        lease = None if there is None else there.leases.get(command.lease)
        if lease is None:
            self._fates["empty leases"] += 1
            return
        ranges = list(lease.ranges())
        taken = group.leases[command.lease] = [
            message
            for messages in ranges
            for message in self._take(model, messages, names_of(queue, [messages]))
        ]
        group.last = command.lease
        self._fates["leases"] += 1
        self._fates["leased"] += len(taken)
        size = sum(messages.size for messages in ranges)
        if len(taken) > command.max_messages or (size > command.max_bytes and len(taken) > 1):
            self._fail(f"{command} has taken {len(taken)} messages of {size} bytes")

    def _release(self, model: QueueModel, group: GroupModel, numbers: list[int]) -> None:
        for number in numbers:
            messages = group.leases.pop(number, [])
            self._fates["released"] += len(messages)
            self._give_back(model, messages)

    def end_idle(self, machine: QueueMachine, available_ms: int) -> None:
        """Follow groups that have ended by themselves, and check that they were idle for long enough."""
        for model in self._queues().values():
            queue = machine.vhosts[DEFAULT_VHOST].queues.get(model.name)
            if queue is None or queue.number != model.number:
                continue  # it has expired, which is checked elsewhere
            there = queue.groups
            for key, group in [each for each in self._groups.items() if each[0].queue == model.number]:
                is_due = 0 < group.settings[-1] <= available_ms - group.used_ms
                if (key.name not in there) != is_due:
                    self._fail(f"group {key} after {available_ms - group.used_ms} ms: {group}, {list(there)}")
                if is_due:
                    self._fates["idle groups"] += 1
                    self._release(model, group, list(group.leases))
                    del self._groups[key]

    def check(self, name: str, machine: QueueMachine) -> None:
        """Check that a node's machine has exactly the groups and leases that were not ended."""
        for model in self._queues().values():
            queue = _queue(machine, model)
            there = {
                group.name: (
                    group.fence,
                    group.generation,
                    group.first_free - 1,
                    {number: list(names_of(queue, lease.ranges())) for number, lease in group.leases.items()},
                )
                for group in queue.groups.values()
            }
            expected = {
                key.name: (group.fence, group.generation, group.committed, _names(group))
                for key, group in self._groups.items()
                if key.queue == model.number
            }
            if there != expected:
                self._fail(f"{model.name} at {name} has the groups {there}, not {expected}")
            if queue.leased != self.leased(model) or (queue.leased == 0) != (queue.leased_size == 0):
                self._fail(
                    f"{model.name} at {name} counts {queue.leased} leased messages of {queue.leased_size} bytes"
                )


def leases_of(machine: QueueMachine) -> Iterator[list[Range]]:
    """Yield the messages of all open leases of the default virtual host."""
    for queue in machine.vhosts[DEFAULT_VHOST].queues.values():
        for group in queue.groups.values():
            for lease in group.leases.values():
                yield list(lease.ranges())


def _names(group: GroupModel) -> dict[int, list[Key]]:
    return {number: [message.name for message in messages] for number, messages in group.leases.items()}


def _queue(machine: QueueMachine, model: QueueModel) -> Queue:
    return machine.vhosts[DEFAULT_VHOST].queues[model.name]
