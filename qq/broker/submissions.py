"""What this node's sessions want done, gathered into batches for the log.

Lives here: the open batch, and what to do when a batch has been applied (publisher confirms, back-pressure).
Not here: exactly-once delivery of batches to the log (cluster/group.py), what commands do (qq/machine).

Law: work per batch. All that one pass of the event loop brings, and all that comes while earlier batches are still
under way, goes into one batch, but for what would cost the nodes too much at once (qq/machine/costs.py): that becomes
several batches, which wait for their turn. The order of a session's commands is the order it gave them in. A command
that the log cannot hold is refused when it is given, to the one who gives it: never does a batch suffer for it.
Whatever is asked for counts, not bodies only: for how large a batch may get, which is how long every node is busy with
it, and for how much a connection may ask before the log has it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from qq.machine.codec import check_command, encode_batch
from qq.machine.commands import Command, Commit, Credit, Enqueue, Publish, Settle, Settlement
from qq.machine.costs import BATCH_STEPS_MAX
from qq.machine.limits import table_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.group import Group
    from cluster.ports import Buffer, Runtime
    from qq.amqp.properties import Attributes
    from qq.broker.channel import Channel
    from qq.broker.listener import ClientConnection
    from qq.machine.machine import QueueMachine

BATCHES_IN_FLIGHT_MAX = 2
"""Submitted and not yet applied. While that many are under way the open batch grows, so batches fit the load."""
BATCH_BYTES_MAX = 1024 * 1024
"""A batch of this size is submitted at once, whatever is under way."""
COMMAND_BYTES = 256
"""What a command counts as beside its texts and tables. It is some 30 in the log, but every node takes some 10 us for
it, and should be done with a batch in few milliseconds."""
MESSAGE_BYTES = 64
"""The same of a message beside its octets."""

WEIGHT_STEPS = 1000
"""Steps that are a weight of 1: a millisecond."""
CREDIT_STEPS = 8
SETTLE_STEPS, RETURN_STEPS = 10, 15
"""For each piece of what was delivered, though several become one command."""
COMMIT_STEPS = 5
"""For each part of a transaction, to check it before it is carried out."""


class OpenEnqueue:
    """Consecutive publishes of one channel with the same exchange, routing key, flags and attributes."""

    __slots__ = (
        "attributes",
        "channel",
        "count",
        "exchange",
        "first_sequence",
        "mandatory",
        "messages",
        "routing_key",
    )

    def __init__(
        self,
        channel: Channel,
        first_sequence: int,
        exchange: str,
        routing_key: str,
        mandatory: bool,
        attributes: Attributes | None,
    ) -> None:
        self.channel = channel
        self.first_sequence = first_sequence
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = mandatory
        self.attributes = attributes
        """Of the first message; None if it has none."""
        self.messages: list[bytes] = []
        self.count = 0
        """How many there were, those included that went on in an earlier batch."""

    def following(self) -> OpenEnqueue:
        """What takes the messages behind those that this one has had."""
        attributes, count = self.attributes, self.count
        if attributes is not None and attributes.publisher:
            attributes = attributes._replace(publish_seq=attributes.publish_seq + count)
        first = self.first_sequence and self.first_sequence + count
        return OpenEnqueue(self.channel, first, self.exchange, self.routing_key, self.mandatory, attributes)

    @property
    def keys(self) -> int:
        """How many routing keys each of its messages has."""
        return 1 if self.attributes is None else 1 + len(self.attributes.more_keys)

    def takes(self, attributes: Attributes | None) -> bool:
        """Whether messages with these attributes may follow."""
        mine = self.attributes
        if mine is not None and mine.publisher:
            mine = mine._replace(publish_seq=mine.publish_seq + len(self.messages))
        return attributes == mine


class _Closed(NamedTuple):
    """A batch that gets no more, and waits until others are applied."""

    payload: Sequence[Buffer]
    weight: int
    confirms: dict[Channel, int]
    asked_bytes: dict[ClientConnection, int]
    callbacks: list[Callable[[], None]]


class _Applied(NamedTuple):
    """What is to be done when the batch has been applied."""

    sequence: int
    confirms: dict[Channel, int]
    """The last publish sequence number of each channel."""
    asked_bytes: dict[ClientConnection, int]
    """What each connection has asked for in it."""
    callbacks: list[Callable[[], None]]


class _Watched(NamedTuple):
    """What a channel had published at some time."""

    time_s: float
    channel: Channel
    published: int


class Submissions:
    """The node's open batch and the batches under way."""

    def __init__(
        self, node: str, group: Group, machine: QueueMachine, runtime: Runtime, publish_timeout_s: float
    ) -> None:
        """After `publish_timeout_s` (0 is never) what is not confirmed is refused; nobody knows its outcome then."""
        self._node = node
        self._group = group
        self._machine = machine
        self._runtime = runtime
        self._publish_timeout_s = publish_timeout_s
        self._watched: deque[_Watched] = deque()
        self._flush_asked = False
        self._in_commit = False
        """A batch must not end here."""
        self._under_way: deque[_Applied] = deque()
        self._closed: deque[_Closed] = deque()
        self._reset()

    def _reset(self) -> None:
        self._commands: list[Command | OpenEnqueue] = []
        self._bytes = 0
        self._steps = 0
        """What it is expected to cost."""
        self._confirms: dict[Channel, int] = {}
        self._asked_bytes: dict[ClientConnection, int] = {}
        self._settles: dict[tuple[type[Settlement], int], int] = {}
        self._callbacks: list[Callable[[], None]] = []

    def add(self, command: Command, connection: ClientConnection | None = None) -> int:
        """Have a command carried out, after all that its session asked for before; a client's counts for it.

        Returns what it is expected to cost. Raises InvalidCommand, and then nothing has changed.
        """
        check_command(command)
        self._settles.clear()
        steps = self._machine.costs.of(self._node, command)
        self._make_room(steps)
        self._commands.append(command)
        self._count(bytes_of_command(command), connection)
        self._ask_flush()
        return steps

    def when_applied(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when all that was asked for so far is applied, or given up."""
        self._callbacks.append(callback)

    def barrier(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when this node has applied all that the cluster has committed by now, or is given up.

        A batch goes through the log for it, though nothing may be asked for in it.
        """
        self._callbacks.append(callback)
        self._ask_flush()

    def commit(self, channel: Channel, content: Sequence[OpenEnqueue | Command]) -> None:
        """Have a transaction carried out: in one batch, so all or nothing."""
        if self._commands and self._bytes + _bytes_of_all(content) > BATCH_BYTES_MAX:
            self._close()
        self._make_room(COMMIT_STEPS * len(content))  # what it takes besides
        self._in_commit = True
        self.add(Commit(channel.session, len(content)), channel.connection)
        for part in content:
            if isinstance(part, OpenEnqueue):
                messages, part.messages = part.messages, []
                self.publish(part, messages, is_new=True)
            else:
                self.add(part, channel.connection)
        self._in_commit = False
        self._ask_flush()

    def publish(self, run: OpenEnqueue, messages: list[bytes], *, is_new: bool) -> None:
        """Add messages to `run`, which is `is_new` if it is not in the open batch yet."""
        once, each = self._machine.costs.of_messages(
            run.channel.connection.vhost,
            run.exchange,
            (run.routing_key, *(run.attributes.more_keys if run.attributes is not None else ())),
            messages,
            is_plain=run.attributes is None,
        )
        if not each:
            if is_new:
                self._make_room(once)
            self._publish(run, messages, is_new=is_new)
        for message, steps in zip(messages, each, strict=False):
            if self._make_room(steps) and not is_new:
                run, is_new = run.following(), True
            self._publish(run, [message], is_new=is_new)
            is_new = False
        self._ask_flush()

    def _publish(self, run: OpenEnqueue, messages: list[bytes], *, is_new: bool) -> None:
        size = bytes_of_messages(messages)
        if is_new:
            self._commands.append(run)
            size += bytes_of_run(run)
        run.messages += messages
        run.count += len(messages)
        channel = run.channel
        self._count(size, channel.connection)
        if channel.confirming:
            self._confirms[channel] = run.first_sequence + run.count - 1
            if self._publish_timeout_s:
                self._watch(channel)

    def settle(
        self, kind: type[Settlement], consumer: int, first: int, last: int, connection: ClientConnection
    ) -> None:
        """Settle, return or discard message ids; consecutive ranges of one consumer become one command."""
        self._make_room(RETURN_STEPS if kind is not Settle else SETTLE_STEPS)
        position = self._settles.get((kind, consumer))
        if position is not None:
            known = self._commands[position]
            if isinstance(known, kind) and first == known.last + 1:
                self._commands[position] = kind(consumer, known.first, last)
                return
        self._settles[kind, consumer] = len(self._commands)
        self._commands.append(kind(consumer, first, last))
        self._count(COMMAND_BYTES, connection)
        self._ask_flush()

    def credit(self, consumer: int, count: int, connection: ClientConnection) -> None:
        self._make_room(CREDIT_STEPS)
        self._commands.append(Credit(consumer, count))
        self._count(COMMAND_BYTES, connection)
        self._ask_flush()

    def _count(self, size: int, connection: ClientConnection | None) -> None:
        self._bytes += size
        if connection is not None:
            self._asked_bytes[connection] = self._asked_bytes.get(connection, 0) + size
            connection.count_uncommitted(size)

    def holds(self, run: OpenEnqueue) -> bool:
        """Whether `run` is still in the open batch, so that it can take more."""
        return bool(run.messages)

    def _make_room(self, steps: int) -> bool:
        """Count what is about to be asked for; it goes into another batch if the open one would cost too much by it.

        Returns whether it does.
        """
        is_full = self._steps + steps > BATCH_STEPS_MAX and bool(self._commands) and not self._in_commit
        if is_full:
            self._close()
        self._steps += steps
        return is_full

    def _ask_flush(self) -> None:
        if self._in_commit:
            return
        if self._bytes >= BATCH_BYTES_MAX:
            self._close()
            if len(self._closed) == 1:
                self._submit_next()
        if not self._flush_asked:
            self._flush_asked = True
            self._runtime.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_asked = False
        self._machine.costs.begin_turn()
        while len(self._under_way) < BATCHES_IN_FLIGHT_MAX:
            if not self._closed:
                if not (self._commands or self._callbacks):
                    break
                self._close()
            self._submit_next()

    def _close(self) -> None:
        """The open batch gets no more."""
        commands: list[Command] = []
        messages: list[bytes] = []
        for command in self._commands:
            if isinstance(command, OpenEnqueue):
                commands.append(_sealed(command))
                messages += command.messages
                command.messages = []
            else:
                commands.append(command)
        self._closed.append(
            _Closed(
                encode_batch(commands, messages),
                self._steps // WEIGHT_STEPS,
                self._confirms,
                self._asked_bytes,
                self._callbacks,
            )
        )
        self._reset()

    def _submit_next(self) -> None:
        payload, weight, confirms, asked_bytes, callbacks = self._closed.popleft()
        sequence = self._group.submit(payload, weight)
        self._under_way.append(_Applied(sequence, confirms, asked_bytes, callbacks))

    def applied(self, sequence: int, *, unseen: bool = False) -> None:
        """Note that the batches up to `sequence` are applied: their publishes are safe.

        If that was `unseen`, nobody knows which were refused by a queue that was full, or would have been returned: all
        that were not confirmed are refused then, which says that their outcome is unknown.
        """
        while self._under_way and self._under_way[0].sequence <= sequence:
            done = self._under_way.popleft()
            for channel, published in done.confirms.items():
                if unseen:
                    channel.refuse_unconfirmed(published)
                else:
                    channel.confirm(published)
            for connection, size in done.asked_bytes.items():
                connection.count_uncommitted(-size)
            for callback in done.callbacks:
                callback()
        if (self._closed or self._commands or self._callbacks) and not self._flush_asked:
            self._flush()

    def give_up(self) -> None:
        """The cluster expelled this node: whatever was under way has an unknown outcome, and no session is left."""
        batches = (*self._under_way, *self._closed)
        callbacks = [callback for batch in batches for callback in batch.callbacks] + self._callbacks
        self._under_way.clear()
        self._closed.clear()
        self._watched.clear()
        self._reset()
        for callback in callbacks:
            callback()

    # The publish timeout

    def _watch(self, channel: Channel) -> None:
        if not self._watched:
            self._runtime.call_later(self._publish_timeout_s, self._refuse_overdue)
        self._watched.append(_Watched(self._runtime.monotonic(), channel, channel.published))

    def _refuse_overdue(self) -> None:
        watched, now_s = self._watched, self._runtime.monotonic()
        while watched and watched[0].time_s + self._publish_timeout_s <= now_s:
            _, channel, published = watched.popleft()
            channel.refuse_unconfirmed(published)
        if watched:
            wait_s = watched[0].time_s + self._publish_timeout_s - now_s
            self._runtime.call_later(wait_s, self._refuse_overdue)


def bytes_of_messages(messages: Sequence[bytes]) -> int:
    """What messages count as, here and below."""
    return sum(map(len, messages)) + MESSAGE_BYTES * len(messages)


def bytes_of_run(run: OpenEnqueue) -> int:
    """A run of messages, without those."""
    size = COMMAND_BYTES + len(run.exchange) + len(run.routing_key)
    if run.attributes is not None:
        size += sum(map(len, run.attributes.more_keys)) + len(run.attributes.publisher)
    return size


def bytes_of_command(command: Command) -> int:
    size = COMMAND_BYTES
    for field in command:
        match field:
            case str() | bytes():
                size += len(field)
            case list():
                size += sum(map(len, field))
            case dict():
                size += table_bytes(field)
            case _:
                pass
    return size


def _bytes_of_all(content: Sequence[OpenEnqueue | Command]) -> int:
    return sum(
        bytes_of_run(part) + bytes_of_messages(part.messages)
        if isinstance(part, OpenEnqueue)
        else COMMAND_BYTES
        for part in content
    )


def _sealed(run: OpenEnqueue) -> Enqueue | Publish:
    channel = run.channel
    enqueue = Enqueue(
        channel.session,
        run.first_sequence,
        len(run.messages),
        run.exchange,
        run.routing_key,
        run.mandatory,
        channel.number,
    )
    if run.attributes is None:
        return enqueue
    more_keys, priority, ttl_ms, delay_ms, publisher, publish_seq = run.attributes
    return Publish(*enqueue, list(more_keys), priority, ttl_ms, delay_ms, publisher, publish_seq)
