"""Readers that lease messages beside a consumer of the same queue.

The readers of the first group take it over from each other, again and again: a reader learns that it lost the group
when its next request is refused. The second group is ended and opened again now and then, and its numbers of leases
begin anew. Each lease is read before it ends, once or twice, whole or in parts. Most leases are committed, and the rest
is released. At the end each group is ended, so that the queue can be drained.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from chaos.workloads.clients import ConsumePlan, Consumer, Publisher, PublishPlan, request_of
from chaos.workloads.lease_requests import digest_of
from chaos.workloads.messages import arrived
from chaos.workloads.transport import LostError, RefusedError
from chaos.workloads.world import QUORUM, Client, Clients, QueuePlan, Workload, World

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeVar

    from chaos.history import Arrived, Call, Fields, Operation
    from chaos.workloads.lease_requests import GroupState, LeaseRequests
    from chaos.workloads.transport import Settling

    T = TypeVar("T")

QUEUE = "leases"
SHARED, ALONE = "shared", "alone"
"""The group that readers take over from each other, and the group with a single reader."""
READERS = {"leases-reader-1": SHARED, "leases-reader-2": SHARED, "leases-reader-3": ALONE}
WINDOW = 10
MESSAGES_MAX = 12
PARTS_MAX = 3
RELEASED = 0.25
"""Share of the leases that are released."""
READ_TWICE = 0.5
ENDED = 0.4
"""Share of the leases of the second group behind which the group is ended, and opened again."""
NACKED = 5
"""A message out of so many is returned by the consumer at its first delivery."""
CONSUMER_DELAY_S = 0.4
PERIOD_S = (0.5, 2.0)
WORK_S = (0.02, 0.3)
"""Seconds between the read of a lease and its end."""
EMPTY_S = 0.2
"""Seconds until a reader asks an empty queue again."""
FENCED_S = (0.3, 1.0)
"""Seconds until a reader whose request was refused takes the group over."""
RETRY_S = (0.05, 0.3)


class Reader(Client):
    """Owns a group until a request is refused, and then takes it over again."""

    def __init__(self, world: World, name: str, group: str, requests: LeaseRequests) -> None:
        super().__init__(name)
        self._requests = requests
        self._random = world.random(name)
        self._process = world.process(name)
        self._group = group
        self._ended = 0
        """How often the reader has ended the group. The history counts the groups of this name."""
        self._fence = 0
        self._read: set[int] = set()
        """Leases whose messages are recorded."""
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        try:
            while not self._stopping.is_set():
                with suppress(LostError):
                    await self._own()
                await self._rest(self._random.uniform(*FENCED_S))
            await self._end()
        finally:
            await self._requests.disconnect()

    async def _own(self) -> None:
        """Open the group, and work on its leases until the end, or until a request is refused."""
        lease = await self._take_over()
        while not self._stopping.is_set():
            number, attempts = await self._take(lease)
            if number:
                # A lost request to take the lease may arrive after its release, and then take other messages.
                await self._work_on(lease, may_release=attempts == 1)
                lease += 1
                if self._group == ALONE and self._random.random() < ENDED:
                    await self._close()
                    lease = await self._take_over()
            else:
                await self._rest(EMPTY_S)

    async def _end(self) -> None:
        """Commit the open leases and end the group, again and again until it has ended."""
        while True:
            with suppress(LostError):
                if await self._state() is not None:
                    await self._take_over()
                    await self._close()
                return
            await asyncio.sleep(self._random.uniform(*RETRY_S))

    async def _take_over(self) -> int:
        """Open the group, commit its open leases, and return the number of the next lease."""
        state = await self._open()
        for lease in state.leases:
            await self._work_on(lease, may_release=False)
        return state.last_lease + 1

    async def _work_on(self, lease: int, *, may_release: bool) -> None:
        """Read a lease, and end it."""
        requests, place = self._requests, (QUEUE, self._group, self._fence)
        await self._read_lease(lease)
        if self._random.random() < READ_TWICE:
            await self._read_lease(lease)
        await self._rest(self._random.uniform(*WORK_S))
        if may_release and self._random.random() < RELEASED:
            await self._insist("release_lease", lambda _: requests.release(*place, lease), lease=lease)
        else:
            await self._insist("commit_leases", lambda _: requests.commit(*place, lease), lease=lease)

    # Requests

    async def _state(self) -> GroupState | None:
        async with request_of():
            return await self._requests.group(QUEUE, self._group)

    async def _open(self) -> GroupState:
        state = await self._state()
        self._fence = 0 if state is None else state.fence + 1
        place = QUEUE, self._group, self._fence, self.name
        opened, _ = await self._insist("open_group", lambda _: self._requests.open(*place))
        return opened

    async def _close(self) -> None:
        place = QUEUE, self._group, self._fence
        await self._insist("close_group", lambda _: self._requests.close(*place))
        self._ended += 1
        self._read.clear()

    async def _take(self, lease: int) -> tuple[int, int]:
        """Return the number of messages of a new lease, and the number of attempts."""
        messages = self._random.randint(1, MESSAGES_MAX)
        place = QUEUE, self._group, self._fence, lease, messages

        async def take(call: Call) -> int:
            found = await self._requests.take(*place)
            call.ok(messages=found)
            return found

        return await self._insist("take_lease", take, lease=lease)

    async def _read_lease(self, lease: int) -> None:
        parts = self._random.randint(1, PARTS_MAX)

        async def read(call: Call) -> list[Arrived]:
            found = await self._requests.read(QUEUE, self._group, lease, parts)
            call.ok(messages=len(found), digest=digest_of(found))
            return [{**arrived(message.delivery), "delivery_count": message.deliveries} for message in found]

        messages, _ = await self._insist("read_lease", read, lease=lease)
        if lease not in self._read:
            self._read.add(lease)
            for place, message in enumerate(messages):
                self._process.event(
                    "leased", queue=QUEUE, group=self._recorded_group, lease=lease, place=place, **message
                )

    @property
    def _recorded_group(self) -> str:
        return f"{self._group} {self._ended}" if self._ended else self._group

    async def _insist(
        self, op: Operation, request: Callable[[Call], Awaitable[T]], lease: int | None = None
    ) -> tuple[T, int]:
        """Repeat a request until it is answered; return its result and the number of attempts. Raises RefusedError."""
        fields: Fields = {"queue": QUEUE, "group": self._recorded_group}
        if op != "read_lease":
            fields["fence"] = self._fence  # a lease is read without being its owner
        if lease is not None:
            fields["lease"] = lease
        attempts = 0
        while True:
            attempts += 1
            call = self._process.invoke(op, **fields)
            try:
                async with request_of(call):
                    return await request(call), attempts
            except RefusedError:
                raise
            except LostError:
                await asyncio.sleep(self._random.uniform(*RETRY_S))

    async def _rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)


def settle(delivery: Arrived) -> Settling:
    is_returned = not delivery["redelivered"] and delivery.get("sequence", 0) % NACKED == 0
    return "nack" if is_returned else "ack"


class Leases(Workload):
    name = "leases"
    weight = 16
    reads_leases = True
    owes = ("lease_repeatable", "lease_holders", "lease_committed", "lease_fenced", "lease_settled")

    def queues(self) -> list[QueuePlan]:
        return [QueuePlan(QUEUE, QUORUM)]

    def clients(self, world: World) -> Clients:
        assert world.lease_connector is not None
        slow = ConsumePlan(QUEUE, prefetch=1, settling=settle, delay_s=CONSUMER_DELAY_S, period_s=PERIOD_S)
        return Clients(
            publishers=[
                Publisher(world, "leases-pub", 0, PublishPlan(QUEUE, rate=world.rate, window=WINDOW))
            ],
            consumers=[
                Consumer(world, "leases-con", 1 % len(world.endpoints), slow),
                *(Reader(world, name, group, world.lease_connector()) for name, group in READERS.items()),
            ],
        )
