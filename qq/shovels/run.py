"""A run of a shovel: from connecting to both brokers until a failure, or until all messages are carried.

Invariant: the messages in flight are bounded in bytes. Above the bound the source is not read, so a slow target slows
its source down. A message is acknowledged after the target has it. A message that the target refuses is sent again
instead of being returned, because a source may drop messages that return too often.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from pamqp import commands

from qq.errors import ReplyCode
from qq.shovels import frames
from qq.shovels.client import ChannelClosed, Client, Closed
from qq.shovels.definition import NEVER, NO_ACK, ON_CONFIRM, WHEN_EMPTY
from qq.shovels.frames import Confirmation, Delivery
from qq.shovels.ledger import Ledger, encode_entries
from qq.shovels.outbound import Outbound, Route, key_of
from qq.shovels.report import BLOCKED, RUNNING, STARTING, Report

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from qq.shovels.connecting import Connector
    from qq.shovels.definition import Definition, End
    from qq.shovels.ledger import Number

T = TypeVar("T")

MESSAGE_OVERHEAD_BYTES = 500
"""Bytes of memory that a message takes besides its frames."""
PART_MESSAGES = 1000
"""Maximum number of messages that are sent together, and whose numbers are stored together."""
SLICE_MESSAGES = 100
"""Messages prepared in a pass of the event loop, which takes some milliseconds."""
NUMBERED_MAX = 1000
"""Maximum number of numbered messages in flight: a ledger has room for these."""
CHECK_EVERY = 200
"""Acknowledgements after which the source is sent a request, whose answer proves that it has received them."""
REFUSED_PAUSE_S = 0.5
"""Seconds before a message refused by the target is sent again."""


class AllMoved(Exception):
    """The target has all messages that the shovel was to carry."""


class RunContext(Protocol):
    """The functions that a run gets from its runner."""

    connector: Connector

    def now_s(self) -> int:
        """Return the seconds since 1970."""
        ...

    async def store(self, numbers: str, /) -> None:
        """Store the ledger text (`encode_entries`) in the log, for the next run. Raises Closed."""
        ...


class _Sent(NamedTuple):
    """A message that was sent and is not confirmed yet."""

    delivery: Delivery
    key: bytes | None
    """Ledger key of the message; `None` if the message has no number."""


class ShovelRun:
    """A run of a shovel, with a connection to each broker."""

    def __init__(
        self,
        shovel: Definition,
        route: Route,
        context: RunContext,
        ledger: Ledger,
        ledger_name: str,
        buffer_bytes: int,
    ) -> None:
        """`route` lacks the addresses, which the run fills in; `ledger_name` names the shovel in the stored ledger."""
        self._shovel = shovel
        self._route = route
        self._context = context
        self._ledger = ledger
        self._ledger_name = ledger_name
        self._buffer_bytes = buffer_bytes
        self._source: Client
        self._target: Client
        self._outbound: Outbound
        self._has_numbers = False
        """Whether the target deduplicates, and the source may deliver unacknowledged messages again."""
        self._is_running = False
        self._waiting: deque[Delivery] = deque()
        self._arrived = asyncio.Event()
        self._bytes = 0
        """Bytes of messages that wait, or are sent and unconfirmed."""
        self._unconfirmed: dict[int, _Sent] = {}
        """Sent messages by their publisher-confirm numbers, ascending."""
        self._published = 0
        self._refused: set[int] = set()
        """Delivery tags of messages that the target has refused and not confirmed since."""
        self._replies: list[bytes] = []
        """Acknowledgements to be sent to the source next."""
        self._acked: list[bytes] = []
        """Keys of messages whose acknowledgement the source may not have received."""
        self._must_check = asyncio.Event()
        self._left: int | None = None
        """Number of messages still to be sent; `None`: unlimited."""
        self._unsettled: int | None = None
        """Number of messages still to be confirmed; `None`: unlimited."""
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.forwarded = 0

    def report(self) -> Report:
        if not self._is_running:
            return STARTING
        state = RUNNING if self._target.may_publish.is_set() else BLOCKED
        figures = {
            "src_uri": self._route.source_uri,
            "dest_uri": self._route.target_uri,
            "blocked_status": state,
            "remaining": "unlimited" if self._unsettled is None else self._unsettled,
            "remaining_unacked": "unlimited" if self._left is None else self._left,
            "pending": len(self._waiting),
            "forwarded": self.forwarded,
        }
        return Report(state, None, figures)

    async def run(self) -> None:
        """Carry messages. Raises Closed on a failure, AllMoved when the target has all messages."""
        self._source = await self._connected("source", self._shovel.source)
        try:
            self._target = await self._connected("destination", self._shovel.target)
            try:
                await self._run_tasks()
            finally:
                await self._target.close()
        finally:
            await self._source.close()

    async def _connected(self, which: str, end: End) -> Client:
        try:
            return await self._context.connector.connect(end.uris, f"Shovel {self._route.name}")
        except Closed as closed:
            raise Closed(f"failed to connect to {which}: {closed}") from None

    async def _run_tasks(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for which, client in (("source", self._source), ("destination", self._target)):
                    tasks.create_task(_name_broker(which, client.read()))
                    tasks.create_task(_name_broker(which, client.send_heartbeats()))
                tasks.create_task(self._move_messages(tasks))
        except ExceptionGroup as group:
            ends = group.subgroup((Closed, AllMoved))
            if ends is None:
                raise
            while isinstance(ends, ExceptionGroup):
                ends = ends.exceptions[0]
            raise ends from None
        finally:
            self._is_running = False

    # Begin

    async def _move_messages(self, tasks: asyncio.TaskGroup) -> None:
        await _name_broker("destination", self._prepare_target())
        await _name_broker("source", self._prepare_source())
        self._is_running = True
        tasks.create_task(self._pump())
        tasks.create_task(self._check_acknowledged())
        await self._done
        raise AllMoved

    async def _prepare_target(self) -> None:
        shovel, target = self._shovel, self._target
        self._route = self._route._replace(source_uri=self._source.shown, target_uri=target.shown)
        self._has_numbers = (
            target.knows_publishers and shovel.ack_mode == ON_CONFIRM and bool(shovel.source.queue)
        )
        self._outbound = Outbound(
            shovel,
            self._route,
            self._source.frame_max,
            target.frame_max,
            knows_publishers=target.knows_publishers,
        )
        await target.open_channel()
        if shovel.target.queue:
            await _declare(target, shovel.target)
        if shovel.ack_mode == ON_CONFIRM:
            await target.call(commands.Confirm.Select())
            target.on_event = self._confirmed
            target.on_read = self._reply

    async def _prepare_source(self) -> None:
        shovel, source = self._shovel, self._source
        await source.open_channel()
        queue = shovel.source.queue
        if queue:
            messages = await _declare(source, shovel.source)
        else:
            queue, messages = (await source.call(frames.QueueDeclare(exclusive=True))).queue, 0
            exchange, key = shovel.source.exchange or "", shovel.source.key or ""
            await source.call(frames.QueueBind(queue=queue, exchange=exchange, routing_key=key))
        if shovel.delete_after != NEVER:
            self._left = messages if shovel.delete_after == WHEN_EMPTY else int(shovel.delete_after)
            self._unsettled = self._left
            self._check_done()
        if shovel.ack_mode != NO_ACK:
            await source.call(commands.Basic.Qos(prefetch_count=self._prefetch()))
        source.on_event = self._take
        consume = frames.Consume(
            queue=queue,
            consumer_tag=shovel.consumer_tag,
            no_ack=shovel.ack_mode == NO_ACK,
            arguments=shovel.consumer_args,
        )
        await source.call(consume)

    def _prefetch(self) -> int:
        bounds = [self._shovel.prefetch, self._left or 0, NUMBERED_MAX if self._has_numbers else 0]
        return min(min(filter(None, bounds), default=0), 2**16 - 1)

    # From the source

    def _take(self, event: Delivery | Confirmation) -> None:
        if isinstance(event, Delivery):
            self._waiting.append(event)
            self._count(_size(event))
            self._arrived.set()

    def _count(self, octets: int) -> None:
        self._bytes += octets
        if self._bytes < self._buffer_bytes:
            self._source.may_read.set()
        else:
            self._source.may_read.clear()

    # To the target

    async def _pump(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting and self._left != 0:
                await self._target.may_publish.wait()
                await self._publish()

    async def _publish(self) -> None:
        """Send up to `PART_MESSAGES` of the waiting messages."""
        count = min(len(self._waiting), PART_MESSAGES)
        part = [
            self._waiting.popleft() for _ in range(count if self._left is None else min(count, self._left))
        ]
        now_s, out, keys = self._context.now_s(), list[bytes](), list[bytes | None]()
        is_mandatory = bool(self._shovel.target.queue)  # a queue deleted meanwhile loses no message
        for place, delivery in enumerate(part, 1):
            key, number = self._numbered(delivery)
            out.append(frames.publish(*self._outbound.address(delivery), is_mandatory=is_mandatory))
            out.append(self._outbound.message(delivery, now_s, number))
            keys.append(key)
            if not place % SLICE_MESSAGES:
                await asyncio.sleep(0)
        if self._ledger.is_changed:
            self._ledger.is_changed = False
            await self._context.store(encode_entries(self._ledger.entries(), self._ledger_name))
        for delivery, key in zip(part, keys, strict=True):
            self._published += 1
            self._unconfirmed[self._published] = _Sent(delivery, key)
        if self._left is not None:
            self._left -= len(part)
        self._target.send(out)
        await _name_broker("destination", self._target.drain())
        self.forwarded += len(part)
        if self._shovel.ack_mode != ON_CONFIRM:
            self._confirmed(Confirmation(self._published, is_multiple=True, is_nack=False))
            self._reply()

    def _numbered(self, delivery: Delivery) -> tuple[bytes | None, Number | None]:
        key = key_of(delivery) if self._has_numbers else None
        if key is None:
            return None, None
        return key, self._ledger.number(key, is_redelivered=delivery.is_redelivered)

    # From the target, and back to the source

    def _confirmed(self, event: Delivery | Confirmation) -> None:
        if not isinstance(event, Confirmation):
            return
        numbers = [event.tag]
        if event.is_multiple:
            numbers = list(takewhile(lambda number: not event.tag or number <= event.tag, self._unconfirmed))
        sent = [self._unconfirmed.pop(number) for number in numbers if number in self._unconfirmed]
        if not sent:
            return
        if event.is_nack:
            self._refused.update(each.delivery.tag for each in sent)
            asyncio.get_running_loop().call_later(REFUSED_PAUSE_S, self._send_again, sent)
        else:
            self._settle(sent, is_multiple=event.is_multiple)

    def _settle(self, sent: Sequence[_Sent], *, is_multiple: bool) -> None:
        if self._shovel.ack_mode != NO_ACK:
            if is_multiple and not self._refused:
                self._replies.append(frames.ack(sent[-1].delivery.tag, is_multiple=True))
            else:
                self._replies += [frames.ack(each.delivery.tag, is_multiple=False) for each in sent]
        self._refused.difference_update(each.delivery.tag for each in sent)
        self._count(-sum(_size(each.delivery) for each in sent))
        self._acked += [each.key for each in sent if each.key is not None]
        if len(self._acked) >= CHECK_EVERY:
            self._must_check.set()
        if self._unsettled is not None:
            self._unsettled -= len(sent)

    def _send_again(self, refused: Sequence[_Sent]) -> None:
        # Marked as redelivered, the messages keep their numbers.
        self._waiting.extendleft(each.delivery._replace(is_redelivered=True) for each in reversed(refused))
        if self._left is not None:
            self._left += len(refused)
        self._arrived.set()

    def _reply(self) -> None:
        if self._replies:
            self._source.send(self._replies)
            self._replies = []
        self._check_done()

    def _check_done(self) -> None:
        if self._unsettled == 0 and not self._done.done():
            self._done.set_result(None)

    async def _check_acknowledged(self) -> None:
        """Ask the source for an answer, which proves that it has received the acknowledgements before it.

        A source answers in the order of the requests. The ledger then forgets these messages.
        """
        while True:
            await self._must_check.wait()
            self._must_check.clear()
            self._reply()
            acked, self._acked = self._acked, []
            asks = frames.QueueDeclare(queue=self._shovel.source.queue, passive=True)
            await _name_broker("source", self._source.call(asks))
            for key in acked:
                self._ledger.forget(key)


def _size(delivery: Delivery) -> int:
    return len(delivery.message) + MESSAGE_OVERHEAD_BYTES


async def _declare(client: Client, end: End) -> int:
    """Declare the queue of an end if it is missing; return the number of its messages.

    Raises ChannelClosed if a predeclared queue is missing.
    """
    try:
        found = await client.call(frames.QueueDeclare(queue=end.queue, passive=True))
    except ChannelClosed as closed:
        if closed.code != ReplyCode.NOT_FOUND or end.is_predeclared:
            raise
        await client.open_channel()
        found = await client.call(
            frames.QueueDeclare(queue=end.queue, durable=True, arguments=end.queue_args)
        )
    return found.message_count


async def _name_broker(which: str, work: Awaitable[T]) -> T:
    """Await `work`; on Closed, raise Closed with the name of the broker in the text."""
    try:
        return await work
    except Closed as closed:
        raise Closed(f"{which}: {closed}") from None
