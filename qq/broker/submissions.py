"""What this node's sessions want done, gathered into batches for the log.

Lives here: the open batch, and what to do when a batch has been applied (publisher confirms, back-pressure).
Not here: exactly-once delivery of batches to the log (cluster/group.py), what commands do (qq/machine).

Law: work per batch. All that one pass of the event loop brings, and all that comes while earlier batches are still
under way, goes into one batch; the order of a session's commands is the order it gave them in.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from qq.machine.codec import encode_batch
from qq.machine.commands import Command, Commit, Credit, Enqueue, Publish, Settlement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.group import Group
    from cluster.ports import Runtime
    from qq.amqp.properties import Attributes
    from qq.broker.channel import Channel
    from qq.broker.listener import ClientConnection

BATCHES_IN_FLIGHT_MAX = 2
"""Submitted and not yet applied. While that many are under way the open batch grows, so batches fit the load."""
BATCH_BYTES_MAX = 1024 * 1024
"""A batch of this size is submitted at once, whatever is under way."""


class OpenEnqueue:
    """Consecutive publishes of one channel with the same exchange, routing key, flags and attributes."""

    __slots__ = (
        "attributes",
        "channel",
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

    def takes(self, attributes: Attributes | None) -> bool:
        """Whether messages with these attributes may follow."""
        mine = self.attributes
        if mine is not None and mine.publisher:
            mine = mine._replace(publish_seq=mine.publish_seq + len(self.messages))
        return attributes == mine


class _Applied(NamedTuple):
    """What is to be done when the batch has been applied."""

    sequence: int
    confirms: dict[Channel, int]
    """The last publish sequence number of each channel."""
    published_bytes: dict[ClientConnection, int]
    callbacks: list[Callable[[], None]]


class _Watched(NamedTuple):
    """What a channel had published at some time."""

    time_s: float
    channel: Channel
    published: int


class Submissions:
    """The node's open batch and the batches under way."""

    def __init__(self, group: Group, runtime: Runtime, publish_timeout_s: float) -> None:
        """After `publish_timeout_s` (0 is never) what is not confirmed is refused; nobody knows its outcome then."""
        self._group = group
        self._runtime = runtime
        self._publish_timeout_s = publish_timeout_s
        self._watched: deque[_Watched] = deque()
        self._flush_asked = False
        self._in_commit = False
        """A batch must not end here."""
        self._under_way: deque[_Applied] = deque()
        self._reset()

    def _reset(self) -> None:
        self._commands: list[Command | OpenEnqueue] = []
        self._bytes = 0
        self._confirms: dict[Channel, int] = {}
        self._published_bytes: dict[ClientConnection, int] = {}
        self._settles: dict[tuple[type[Settlement], int], int] = {}
        self._callbacks: list[Callable[[], None]] = []

    def add(self, command: Command) -> None:
        """Have a command carried out, after all that its session asked for before."""
        self._settles.clear()
        self._commands.append(command)
        self._ask_flush()

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
        self._in_commit = True
        self.add(Commit(channel.session, len(content)))
        for part in content:
            if isinstance(part, OpenEnqueue):
                messages, part.messages = part.messages, []
                self.publish(part, messages, is_new=True)
            else:
                self.add(part)
        self._in_commit = False
        self._ask_flush()

    def publish(self, run: OpenEnqueue, messages: list[bytes], *, is_new: bool) -> None:
        """Add messages to `run`, which is `is_new` if it is not in the open batch yet."""
        if is_new:
            self._commands.append(run)
        run.messages += messages
        size = sum(map(len, messages))
        self._bytes += size
        channel = run.channel
        if channel.confirming:
            self._confirms[channel] = channel.published
            if self._publish_timeout_s:
                self._watch(channel)
        connection = channel.connection
        self._published_bytes[connection] = self._published_bytes.get(connection, 0) + size
        connection.count_uncommitted(size)
        self._ask_flush()

    def settle(self, kind: type[Settlement], consumer: int, first: int, last: int) -> None:
        """Settle, return or discard message ids; consecutive ranges of one consumer become one command."""
        position = self._settles.get((kind, consumer))
        if position is not None:
            known = self._commands[position]
            if isinstance(known, kind) and first == known.last + 1:
                self._commands[position] = kind(consumer, known.first, last)
                return
        self._settles[kind, consumer] = len(self._commands)
        self._commands.append(kind(consumer, first, last))
        self._ask_flush()

    def credit(self, consumer: int, count: int) -> None:
        self._commands.append(Credit(consumer, count))
        self._ask_flush()

    def holds(self, run: OpenEnqueue) -> bool:
        """Whether `run` is still in the open batch, so that it can take more."""
        return bool(run.messages)

    def _ask_flush(self) -> None:
        if self._in_commit:
            return
        if self._bytes >= BATCH_BYTES_MAX:
            self._submit()
        elif not self._flush_asked:
            self._flush_asked = True
            self._runtime.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_asked = False
        if (self._commands or self._callbacks) and len(self._under_way) < BATCHES_IN_FLIGHT_MAX:
            self._submit()

    def _submit(self) -> None:
        commands: list[Command] = []
        messages: list[bytes] = []
        for command in self._commands:
            if isinstance(command, OpenEnqueue):
                commands.append(_sealed(command))
                messages += command.messages
                command.messages = []
            else:
                commands.append(command)
        sequence = self._group.submit(encode_batch(commands, messages))
        self._under_way.append(_Applied(sequence, self._confirms, self._published_bytes, self._callbacks))
        self._reset()

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
            for connection, size in done.published_bytes.items():
                connection.count_uncommitted(-size)
            for callback in done.callbacks:
                callback()
        if (self._commands or self._callbacks) and not self._flush_asked:
            self._flush()

    def give_up(self) -> None:
        """The cluster expelled this node: whatever was under way has an unknown outcome, and no session is left."""
        callbacks = [callback for batch in self._under_way for callback in batch.callbacks] + self._callbacks
        self._under_way.clear()
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
