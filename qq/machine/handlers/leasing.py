"""Handlers of groups and leases: readers outside of AMQP take lists of messages, and commit or release them.

Invariant: each command is idempotent, and a command that cannot be carried out has no effect. Its node learns the
outcome from the state: it asks for the refusal of the same command afterwards.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from qq.machine.handlers.cost_estimate import COMMAND_STEPS, range_steps
from qq.machine.handlers.registry import handles
from qq.machine.protocol import commands as c
from qq.machine.protocol.refusals import (
    Refused,
    access_refused,
    locked,
    not_found,
    precondition_failed,
    the_queue,
)
from qq.machine.protocol.work_meter import RANGES_AT_ONCE
from qq.machine.queue.leases import (
    CHUNKS_AT_ONCE,
    GROUPS_MAX,
    LEASE_RANGES_MAX,
    OPEN_LEASES_MAX,
    GroupSettings,
    Lease,
    the_group,
)

if TYPE_CHECKING:
    from qq.machine.catalog.catalog import Catalog
    from qq.machine.handlers.core import Core
    from qq.machine.handlers.cost_estimate import Costs
    from qq.machine.queue.queue import LeaseGroup, Queue

_LEASED_STEPS = 3
"""Steps for each range that is leased."""
_LEASES_PER_STEP = 4
"""Open leases per step, when all of them end."""


def _lease_steps(costs: Costs, _origin: str, command: c.LeaseMessages) -> int:
    group = _find(costs.core.catalog, command)
    if group is None or command.lease in group.leases:
        return COMMAND_STEPS
    ranges = min(group.queue.backlog.ranges_at_most, command.max_messages, LEASE_RANGES_MAX)
    return COMMAND_STEPS + _LEASED_STEPS * ranges


def _end_steps(costs: Costs, _origin: str, command: c.CommitLeases | c.CloseGroup) -> int:
    group = _find(costs.core.catalog, command)
    if group is None:
        return COMMAND_STEPS
    ranges = 0
    if isinstance(command, c.CloseGroup) or group.queue.histories:
        ranges = sum(lease.count_ranges for lease in islice(group.leases.values(), CHUNKS_AT_ONCE))
    steps = COMMAND_STEPS + len(group.leases) // _LEASES_PER_STEP
    return steps + range_steps(min(ranges, RANGES_AT_ONCE))


def _release_steps(costs: Costs, _origin: str, command: c.ReleaseLease) -> int:
    group = _find(costs.core.catalog, command)
    lease = None if group is None else group.leases.get(command.lease)
    return COMMAND_STEPS + (0 if lease is None else range_steps(lease.count_ranges))


class GroupHandlers:
    """Carries out the commands of groups."""

    def __init__(self, core: Core) -> None:
        self._core = core

    # Commands

    @handles(c.OpenGroup, cost=COMMAND_STEPS)
    def open(self, command: c.OpenGroup) -> None:
        try:
            queue = self.check_open(command)
        except Refused:
            return
        settings = GroupSettings(command.order, command.is_exclusive, command.expires_ms)
        group = queue.open_group(
            command.group, command.fence, command.owner, command.user, settings, self._core.index
        )
        self._used(group)

    @handles(c.LeaseMessages, cost=_lease_steps)
    def lease(self, command: c.LeaseMessages) -> None:
        core = self._core
        try:
            group = check_group(core.catalog, command)
            if command.lease not in group.leases:
                check_new_lease(group, command.lease)
        except Refused:
            return
        queue = group.queue
        if command.lease not in group.leases:
            core.serve(queue)  # consumers come first
            if queue.returning:
                queue.bring_back(RANGES_AT_ONCE, core.time_ms)
            queue.lease(group, command.lease, command.max_messages, command.max_bytes, core.time_ms)
        self._used(group)

    @handles(c.CommitLeases, cost=_end_steps)
    def commit(self, command: c.CommitLeases) -> None:
        try:
            group = check_commit(self._core.catalog, command)
        except Refused:
            return
        group.queue.commit_leases(group, command.up_to)
        self._used(group)

    @handles(c.ReleaseLease, cost=_release_steps)
    def release(self, command: c.ReleaseLease) -> None:
        try:
            group = check_group(self._core.catalog, command)
        except Refused:
            return
        if command.lease in group.leases:
            group.queue.release_lease(group, command.lease)
        self._used(group)

    @handles(c.CloseGroup, cost=_end_steps)
    def close(self, command: c.CloseGroup) -> None:
        try:
            group = check_group(self._core.catalog, command)
            check_close(group, command)
        except Refused:
            return
        self._core.end_group(group)

    def _used(self, group: LeaseGroup) -> None:
        """Record a command of the group's owner."""
        core, queue = self._core, group.queue
        queue.use_group(group, core.available_ms)
        core.group_timers.set(group, group.expires_at_ms())
        core.changed(queue)

    # Outcomes

    def check_open(self, command: c.OpenGroup) -> Queue:
        """Return the queue of a group that can be opened, or that the same command has opened. Raise Refused."""
        queue = _queue(self._core.catalog, command)
        group = queue.groups.get(command.group)
        settings = GroupSettings(command.order, command.is_exclusive, command.expires_ms)
        if group is not None and command.fence <= group.fence:
            group.check_fence(command.fence)
            if (command.owner, settings) != (group.owner, group.settings):
                raise precondition_failed(
                    f"{group.label} is open with fence {group.fence}, owner '{group.owner}' and other settings: "
                    "take it over with a higher fence"
                )
            return queue
        thing = the_queue(queue.name, queue.vhost)
        others = [each for each in queue.groups.values() if each is not group]
        if group is None and len(others) >= GROUPS_MAX:
            raise precondition_failed(f"{thing} has {GROUPS_MAX} groups, which is the limit")
        for other in others:
            if command.is_exclusive or other.settings.is_exclusive:
                raise access_refused(f"{thing} is in use by {other.label}")
        if command.is_exclusive and queue.consumers:
            raise access_refused(f"{thing} has {queue.consumers} consumers, and the group is exclusive")
        return queue

    def opened(self, queue: Queue, command: c.OpenGroup) -> LeaseGroup:
        """Return the group that a command has opened. Raise Refused if the command was not carried out."""
        group = queue.groups.get(command.group)
        if group is None or group.fence != command.fence:
            raise precondition_failed(
                f"{the_group(command.group, queue.name, queue.vhost)} was not opened, because the queue was in use"
            )
        return group

    def taken(self, command: c.LeaseMessages) -> Lease | None:
        """Return the lease that a command has taken, or `None` without a ready message for it. Raise Refused."""
        group = check_group(self._core.catalog, command)
        lease = group.leases.get(command.lease)
        if lease is None:
            check_new_lease(group, command.lease)
        return lease

    def check_ended(self, command: c.CommitLeases | c.ReleaseLease | c.CloseGroup) -> None:
        """Raise Refused if a command has not ended leases or a group."""
        catalog = self._core.catalog
        match command:
            case c.CommitLeases():
                check_commit(catalog, command)
            case c.ReleaseLease():
                group = check_group(catalog, command)
                if not group.first_free <= command.lease <= group.last:
                    group.check_lease(command.lease)
            case c.CloseGroup():
                known = _find(catalog, command)
                if known is not None and known.is_of(command.generation):
                    check_close(check_group(catalog, command), command)

    def find_lease(
        self, vhost: str, name: str, group: str, number: int, generation: int = 0
    ) -> tuple[Queue, Lease]:
        """Return a queue, and an open lease of a group of it, in any generation if `generation` is 0. Raise Refused."""
        known = self._core.catalog.vhosts.get(vhost)
        queue = None if known is None else known.queues.get(name)
        if queue is None:
            raise not_found(the_queue(name, vhost))
        if group not in queue.groups:
            raise not_found(the_group(group, name, vhost))
        queue.groups[group].check_generation(generation)
        return queue, queue.groups[group].check_lease(number)


def check_group(
    catalog: Catalog, command: c.LeaseMessages | c.CommitLeases | c.ReleaseLease | c.CloseGroup
) -> LeaseGroup:
    """Return the group of a command with its owner's fence and the group's generation. Raise Refused."""
    queue = _queue(catalog, command)
    group = queue.groups.get(command.group)
    if group is None:
        raise not_found(the_group(command.group, queue.name, queue.vhost))
    group.check_generation(command.generation)
    group.check_fence(command.fence)
    return group


def check_new_lease(group: LeaseGroup, number: int) -> None:
    """Raise Refused if the group can take no lease with this number."""
    group.check_unused(number)
    if len(group.leases) >= OPEN_LEASES_MAX:
        raise precondition_failed(f"{group.label} has {OPEN_LEASES_MAX} open leases, which is the limit")


def check_commit(catalog: Catalog, command: c.CommitLeases) -> LeaseGroup:
    """Return the group of a commit that is possible, or was carried out before. Raise Refused."""
    group = check_group(catalog, command)
    if command.up_to >= group.first_free:
        group.check_lease(command.up_to)
    return group


def check_close(group: LeaseGroup, command: c.CloseGroup) -> None:
    """Raise Refused if a group with open leases would be closed without their release."""
    if group.leases and not command.releases:
        leases = "1 open lease" if len(group.leases) == 1 else f"{len(group.leases)} open leases"
        raise precondition_failed(f"{group.label} has {leases}: commit or release them first")


def _queue(catalog: Catalog, command: c.GroupCommand) -> Queue:
    """Return the queue of a command. Raise Refused, also for an exclusive queue."""
    vhost = catalog.vhosts.get(command.vhost)
    queue = None if vhost is None else vhost.queues.get(command.queue)
    if queue is None:
        raise not_found(the_queue(command.queue, command.vhost))
    if queue.owner is not None:
        raise locked(the_queue(queue.name, queue.vhost))
    return queue


def _find(catalog: Catalog, command: c.GroupCommand) -> LeaseGroup | None:
    vhost = catalog.vhosts.get(command.vhost)
    queue = None if vhost is None else vhost.queues.get(command.queue)
    return None if queue is None else queue.groups.get(command.group)
