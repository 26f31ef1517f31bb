"""A client of leases whose cluster is a state machine in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from qq.machine.protocol import commands as c
from qq.machine.protocol.refusals import Refused
from qq.management.changes.leases import part_of, status_of
from qq_spark.client import Access, Group, Lease, LeaseClient
from qq_spark.errors import Refusal
from tests.machine.machine_driver import Driver, messages_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from qq.machine.queue.leases import Lease as OpenLease
    from qq.machine.queue.queue import LeaseGroup
    from qq_spark.planner import Slice

STATUSES = {404: 404, 405: 409, 406: 412}
"""Statuses of HTTP for the codes of AMQP."""
T = TypeVar("T")
Message = tuple[int, int, int]


class MachineClient(LeaseClient):
    """Carries out its requests in a state machine. `crash` may raise before and after each change of the state."""

    def __init__(self, driver: Driver, crash: Callable[[], None] = lambda: None) -> None:
        super().__init__(Access(()))
        self._driver = driver
        self._machine = driver.machine
        self._crash = crash

    def queues(self) -> list[str]:
        return list(self._machine.vhosts["/"].queues)

    def group(self, queue: str, group: str) -> Group | None:
        known = self._machine.vhosts["/"].queues.get(queue)
        return None if known is None or group not in known.groups else self._status(known.groups[group])

    def open_group(
        self, queue: str, group: str, fence: int, owner: str, settings: Mapping[str, object] | None = None
    ) -> Group:
        command = c.OpenGroup("/", queue, group, fence, owner, "guest", "ready", False, 0)
        groups = self._machine.groups
        return self._status(self._run(command, lambda: groups.opened(groups.check_open(command), command)))

    def take(
        self, queue: str, group: str, fence: int, number: int, max_messages: int, max_bytes: int
    ) -> Lease | None:
        command = c.LeaseMessages("/", queue, group, fence, number, max_messages, max_bytes)
        found = self._run(command, lambda: self._machine.groups.taken(command))
        return None if found is None else lease_of(found)

    def lease(self, queue: str, group: str, number: int) -> Lease:
        return lease_of(self._found(queue, group, number))

    def commit(self, queue: str, group: str, fence: int, up_to: int) -> None:
        command = c.CommitLeases("/", queue, group, fence, up_to)
        self._run(command, lambda: self._machine.groups.check_ended(command))

    def messages(self, part: Slice) -> list[Message]:
        """Return the messages of a part, as a task reads them."""
        found = self._found(part.queue, part.group, part.lease)
        lists = part_of(found, part.parts.part, part.parts.of)
        return messages_of([each for ranges in lists for _, each in ranges])

    def _found(self, queue: str, group: str, number: int) -> OpenLease:
        try:
            return self._machine.groups.find_lease("/", queue, group, number)[1]
        except Refused as refused:
            raise Refusal(STATUSES[refused.code], refused.text) from None

    def _run(self, command: c.GroupCommand, outcome: Callable[[], T]) -> T:
        self._crash()
        self._driver.apply(command)
        self._crash()
        try:
            return outcome()
        except Refused as refused:
            raise Refusal(STATUSES[refused.code], refused.text) from None

    def _status(self, group: LeaseGroup) -> Group:
        return Group(
            group.name,
            group.queue.name,
            group.queue.number,
            group.generation,
            group.fence,
            group.owner,
            group.first_free - 1,
            group.last,
            tuple(lease_of(lease) for lease in group.leases.values()),
            group.queue.ready,
        )


def lease_of(lease: OpenLease) -> Lease:
    return Lease(*status_of(lease))
