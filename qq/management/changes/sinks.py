"""Sinks: their reports, and the commands of their writers.

Invariant: each request may be repeated, at any node. A request is answered when this node has applied its commands, and
its outcome is read from the state.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b
from typing import TYPE_CHECKING

from qq.errors import ReplyCode
from qq.machine.protocol import commands as c
from qq.machine.protocol.codec import check_command
from qq.machine.protocol.refusals import Refused
from qq.management.changes.request_session import outcome_of
from qq.management.changes.sink_pace import RETRY_S, SinkPace
from qq.management.changes.version_wait import wait_for_version
from qq.management.errors import NOT_CARRIED_OUT, PublishersWait, RequestRefused, Unavailable
from qq.management.reports.sinks import AttemptPath, SinkStatus
from qq.management.time_slices import Slices
from qq.sessions.batch import LARGE_BYTES
from qq.sessions.lanes import Lane
from qq.stored.properties import PLAIN, UnacceptableProperties, group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeVar

    from cluster.group.group import Group
    from qq.machine.catalog.sinks import Sink
    from qq.management.reports.sinks import RoutedMessages
    from qq.sessions.broker import Broker
    from qq.stored.properties import Attributes

    T = TypeVar("T")

STEP_BYTES = 128 * 1024
"""Bytes of the messages of a step, from which on a step is full: a batch of the log has room for a step beside others.
A message of more than `LARGE_BYTES` is a step by itself."""
STEP_MESSAGES = 1_000
"""Messages of a step."""
FRAMES_CHANNEL = 1
"""The channel number in the frames of the messages."""
_PASSING_MS = 600_000
"""Milliseconds after which the sink of a single request ends, if the request could not end it."""

Step = tuple[c.StageMessages, "Sequence[bytes]"]


class Sinks:
    """The sinks of a node."""

    def __init__(self, broker: Broker, group: Group) -> None:
        self._broker = broker
        self._group = group
        self._pace = SinkPace(broker)

    @property
    def message_bytes(self) -> int:
        """Bytes that the body of a message may have."""
        return self._broker.limits.message_bytes

    # Reports

    async def all(self, is_visible: Callable[[str], bool]) -> list[SinkStatus]:
        """Return the sinks of the visible virtual hosts."""
        slices, found = Slices(), list[SinkStatus]()
        for vhost in list(self._broker.machine.vhosts.values()):
            if is_visible(vhost.name):
                for sink in list(vhost.sinks.values()):
                    found.append(self._status(sink))
                    await slices.give_way()
        return found

    def find(self, vhost: str, name: str) -> SinkStatus | None:
        known = self._broker.machine.vhosts.get(vhost)
        sink = None if known is None else known.sinks.get(name)
        return None if sink is None else self._status(sink)

    def _status(self, sink: Sink) -> SinkStatus:
        oldest, now_ms = sink.oldest_index(), self._group.time_ms()
        return SinkStatus(
            name=sink.name,
            vhost=sink.vhost,
            user=sink.user,
            expires_ms=sink.expires_ms,
            committed=sink.first_free - 1 if sink.first_free else None,
            attempts=len(sink.attempts),
            messages_staged=sink.messages,
            bytes_staged=sink.size,
            age_ms=0 if oldest is None else self._group.entry_times.age_ms(oldest, now_ms),
            idle_ms=max(now_ms - self._broker.machine.outage_ms - sink.used_ms, 0),
        )

    # Commands

    async def open(self, command: c.OpenSink) -> SinkStatus:
        """Open a sink, or find it. Raises RequestRefused, Unavailable, InvalidCommand."""
        return await self._run([command], lambda: self._status(self._broker.machine.sinks.opened(command)))

    async def close(self, command: c.CloseSink) -> None:
        """End a sink, if it exists. Raises as `open`."""

        def read() -> None:
            if self.find(command.vhost, command.sink) is not None:
                self._broker.machine.sinks.find(command)

        await self._run([command], read)

    async def commit(self, command: c.CommitEpoch) -> None:
        """Publish an epoch, unless it was published before. Raises as `open`."""
        await self._run([command], lambda: self._check_committed(command))

    async def stage(self, path: AttemptPath, first: int, tables: Iterable[RoutedMessages]) -> int | None:
        """Store messages as the steps of an attempt from `first` on, and return how many steps it has then.

        Returns None if the epoch is committed. Raises RequestRefused, Unavailable, InvalidCommand.
        """
        await self._wait_for_version()
        steps, lane = await _steps(path, first, tables), Lane()
        if self._pace.is_limited(path.vhost, path.user):
            await self._submit_slowly(path, steps, lane)
        else:
            self._check_room()
            await self._submit(steps, lane)
        return await self._run([], lambda: self._stored(path, first, steps), lane)

    async def _submit_slowly(self, path: AttemptPath, steps: Sequence[Step], lane: Lane) -> None:
        """Submit the steps that are not stored yet, each when the limits of publishing allow it.

        Raises Unavailable, and then some steps may be stored.
        """
        key = path.vhost, path.user, path.sink, path.attempt
        for step in steps:
            if not self._is_stored(step[0]):
                self._check_room()
                await self._pace.let_pass(key, path.vhost, path.user, step[1])
                await self._submit([step], lane)

    def _is_stored(self, command: c.StageMessages) -> bool:
        try:
            stored = self._broker.machine.sinks.stored_steps(command)
        except Refused:
            return False  # the answer will have the reason
        return stored is None or stored > command.step

    async def publish(self, vhost: str, user: str, tables: Iterable[RoutedMessages]) -> None:
        """Publish messages, all or none, without a sink of their writer. Raises as `stage`."""
        name = f"request-{secrets.token_hex(8)}"
        path = AttemptPath(vhost, name, user, 0, name)
        opened = c.OpenSink(vhost, name, user, _PASSING_MS)
        steps = await _steps(path, 0, tables)
        if not steps:
            return
        await self._wait_for_version()
        committed = c.CommitEpoch(vhost, name, user, 0, [name], [len(steps)])
        if self._pace.is_limited(vhost, user):
            self._check_room()
            messages = [message for _, some in steps for message in some]
            digest = blake2b(b"".join(messages), digest_size=16).digest()
            await self._pace.let_pass((vhost, user, digest), vhost, user, messages)
        lane = Lane()

        def read() -> None:
            if self.find(vhost, name) is not None:
                self._stored(path, 0, steps)
            self._check_committed(committed)

        self._check_room()
        try:
            await self._submit(steps, lane, opened, committed)
            await self._run([], read, lane)
        finally:
            self._broker.submissions.add(c.CloseSink(vhost, name, user), lane)

    def _check_room(self) -> None:
        """Raise Unavailable if no messages may be submitted now."""
        broker = self._broker
        if broker.alarm is not None:
            text = f"publishers must wait: {broker.alarm}; {NOT_CARRIED_OUT}"
            raise PublishersWait(text, RETRY_S, is_limited=False)
        if broker.is_full_for_operators:
            raise Unavailable(f"{broker.why_full}; {NOT_CARRIED_OUT}")

    async def _submit(
        self,
        steps: Sequence[Step],
        lane: Lane,
        before: c.Command | None = None,
        behind: c.Command | None = None,
    ) -> None:
        """Submit steps in slices, with a command before and behind them. Raises InvalidCommand."""
        broker, slices = self._broker, Slices()
        for command, _ in steps:
            check_command(command, broker.machine.version)
            await slices.give_way()
        if before is not None:
            broker.submissions.add(before, lane)
        for command, messages in steps:
            broker.submissions.stage(command, messages, lane, broker.new_id())
            await slices.give_way()
        if behind is not None:
            broker.submissions.add(behind, lane)

    async def _run(
        self, commands: Sequence[c.Command], outcome: Callable[[], T], lane: Lane | None = None
    ) -> T:
        """Put commands into the log, and return their outcome. Raises as `open`."""
        await self._wait_for_version()
        return await outcome_of(self._broker, commands, outcome, lane)

    async def _wait_for_version(self) -> None:
        await wait_for_version(self._group, self._broker.machine, c.SINCE[c.OpenSink], "sinks")

    # Outcomes

    def _stored(self, path: AttemptPath, first: int, steps: Sequence[Step]) -> int | None:
        """Return the steps of an attempt after `steps` were submitted. Raises Refused, Unavailable."""
        sinks = self._broker.machine.sinks
        if not steps:
            return first
        stored = sinks.stored_steps(steps[0][0])
        if stored is not None and stored < first + len(steps):
            raise Unavailable(f"not all steps of attempt '{path.attempt}' are stored; {NOT_CARRIED_OUT}")
        return stored

    def _check_committed(self, command: c.CommitEpoch) -> None:
        """Raise Refused unless an epoch is committed, or Unavailable if it could be committed now."""
        sinks = self._broker.machine.sinks
        sink = sinks.find(command)
        if command.epoch >= sink.first_free:
            sinks.check_commit(sink, command)
            raise Unavailable(f"epoch {command.epoch} was not committed; {NOT_CARRIED_OUT}")


async def _steps(path: AttemptPath, first: int, tables: Iterable[RoutedMessages]) -> list[Step]:
    """Return the commands that store messages, with their messages. Raises RequestRefused."""
    steps, slices = list[Step](), Slices()
    for table, attributes, messages in _pieces(path.user, tables):
        more_keys, priority, ttl_ms, delay_ms, _, _ = attributes
        where = (len(messages), table.exchange, table.routing_key, FRAMES_CHANNEL, list(more_keys))
        step = first + len(steps)
        steps.append((c.StageMessages(*path, step, *where, priority, ttl_ms, delay_ms), messages))
        await slices.give_way()
    return steps


def _pieces(
    user: str, tables: Iterable[RoutedMessages]
) -> Iterator[tuple[RoutedMessages, Attributes, list[bytes]]]:
    """Yield the messages of each step. The time for a step is bounded, because it reads `STEP_MESSAGES` at most."""
    for table in tables:
        try:
            for start in range(0, len(table.messages), STEP_MESSAGES):
                part = table.messages[start : start + STEP_MESSAGES]
                for attributes, alike in group(list(part), table.flags, user):
                    at = size = 0
                    for end, message in enumerate(alike, 1):
                        if len(message) > LARGE_BYTES and end - 1 > at:
                            yield table, attributes or PLAIN, alike[at : end - 1]
                            at, size = end - 1, 0
                        size += len(message)
                        if size >= STEP_BYTES or end == len(alike):
                            yield table, attributes or PLAIN, alike[at:end]
                            at, size = end, 0
        except UnacceptableProperties as error:
            raise RequestRefused(ReplyCode.PRECONDITION_FAILED, str(error)) from None
