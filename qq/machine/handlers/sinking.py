"""Handlers of sinks: writers outside of AMQP store messages, and publish them together, epoch by epoch.

Invariant: each command is idempotent, and a command that cannot be carried out publishes no message. Its node learns
the outcome from the state. A commit that names very many runs publishes them in portions, in the order of the commits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.machine.catalog.sinks import (
    ATTEMPTS_MAX,
    RUNS_MAX,
    SINKS_MAX,
    Sink,
    StagedAttempt,
    StagedRun,
    no_sink,
)
from qq.machine.handlers.cost_estimate import COMMAND_STEPS, range_steps
from qq.machine.handlers.publishing import is_bounded, size_runs
from qq.machine.handlers.registry import handles
from qq.machine.protocol import commands as c
from qq.machine.protocol.refusals import (
    Refused,
    not_found,
    precondition_failed,
    the_exchange,
    the_queue,
)
from qq.machine.protocol.work_meter import RANGES_AT_ONCE
from qq.ranges import MESSAGE_MASK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from qq.machine.catalog.sinks import QueueRef
    from qq.machine.handlers.core import Core
    from qq.machine.handlers.cost_estimate import Costs
    from qq.machine.handlers.publishing import PublishHandlers
    from qq.machine.queue.queue import Queue

_ATTEMPTS_PER_STEP = 2
"""Attempts per step, when an epoch is committed."""


def _commit_steps(costs: Costs, _origin: str, command: c.CommitEpoch) -> int:
    vhost = costs.core.catalog.vhosts.get(command.vhost)
    sink = None if vhost is None else vhost.sinks.get(command.sink)
    if sink is None or command.epoch < sink.first_free:
        return COMMAND_STEPS
    attempts = len(command.attempts) + len(sink.attempts)
    return COMMAND_STEPS + attempts // _ATTEMPTS_PER_STEP + range_steps(min(sink.runs, RANGES_AT_ONCE))


class SinkHandlers:
    """Carries out the commands of sinks."""

    def __init__(self, core: Core, publishing: PublishHandlers) -> None:
        self._core = core
        self._publishing = publishing

    # Commands

    @handles(c.OpenSink, cost=COMMAND_STEPS)
    def open(self, command: c.OpenSink) -> None:
        core = self._core
        vhost = core.catalog.vhosts.get(command.vhost)
        try:
            sink = self.find(command)
        except Refused:
            if vhost is None or command.sink in vhost.sinks or len(vhost.sinks) >= SINKS_MAX:
                return
            sink = vhost.sinks[command.sink] = Sink(
                command.vhost, command.sink, command.user, command.expires_ms
            )
        sink.expires_ms = command.expires_ms
        core.use_sink(sink)

    @handles(c.StageMessages, cost=COMMAND_STEPS)
    def stage(self, command: c.StageMessages) -> None:
        core = self._core
        slot = core.next_slot
        core.next_slot = slot + command.count
        try:
            sink = self.find(command)
        except Refused:
            return
        core.use_sink(sink)
        vhost = core.catalog.vhosts[command.vhost]
        if vhost.limits or core.catalog.access.published:
            self._publishing.count_published(vhost, command.user, slot, command.count)
        if len(sink.attempts) >= ATTEMPTS_MAX or sink.runs >= RUNS_MAX:
            self._drop(sink, sink.stale_attempts(core.available_ms))
        attempt = sink.attempts.get(command.attempt)
        if attempt is None and not command.step and len(sink.attempts) < ATTEMPTS_MAX:
            attempt = StagedAttempt(command.attempt, command.epoch, core.available_ms)
        if (
            command.epoch < sink.first_free
            or attempt is None
            or attempt.refusal is not None
            or (attempt.epoch, attempt.steps) != (command.epoch, command.step)
        ):
            return
        try:
            runs = self._runs(sink, command, slot)
        except Refused as refused:
            core.deferred_free.add(sink.refuse(attempt, refused))
            return
        sink.store(attempt, runs)
        attempt.steps += 1
        attempt.used_ms = core.available_ms

    def _runs(self, sink: Sink, command: c.StageMessages, slot: int) -> list[StagedRun]:
        """Route the messages of a step. Raise Refused, also if a message reaches no queue."""
        core = self._core
        vhost = core.catalog.vhosts[command.vhost]
        runs: list[StagedRun] = []
        properties = command.priority, command.ttl_ms, command.delay_ms
        for first, count, queues in self._publishing.parts(vhost, _as_publish(command), slot):
            if not queues:
                raise precondition_failed(
                    f"messages with routing key '{command.routing_key}' reach no queue from "
                    f"{the_exchange(command.exchange, command.vhost)}"
                )
            refs = tuple([(queue.name, queue.number) for queue in queues])
            by_size = any(queue.backlog.exact_sizes for queue in queues)
            at = slot + first
            ordinal = at & MESSAGE_MASK
            for more, size in size_runs(core.sizes[ordinal : ordinal + count], by_size=by_size):
                runs.append(StagedRun(core.index, at, more, size, refs, command.exchange, *properties))
                at += more
        if sink.runs + len(runs) > RUNS_MAX:
            raise precondition_failed(
                f"{sink.label} has {RUNS_MAX} runs of messages that are not committed, which is the limit: write "
                "messages with the same routing key and properties behind each other, or smaller epochs"
            )
        return runs

    @handles(c.CommitEpoch, cost=_commit_steps)
    def commit(self, command: c.CommitEpoch) -> None:
        core = self._core
        try:
            sink = self.find(command)
            core.use_sink(sink)
            if command.epoch < sink.first_free:
                return
            totals = sink.check_attempts(command.attempts, command.steps, command.epoch)
            for queue in self._queues(command.vhost, totals):
                if is_bounded(queue):
                    core.serve(queue)  # because consumers may take messages that are already ready
            self.check_commit(sink, command)
        except Refused:
            return
        runs: list[StagedRun] = []
        for name in command.attempts:
            runs += sink.take(name)
        sink.first_free = command.epoch + 1
        self._drop(sink, [name for name, each in sink.attempts.items() if each.epoch <= command.epoch])
        core.routed[core.origin] += sum(run.count * len(run.queues) for run in runs)
        core.publish_runs(command.vhost, runs)

    def _drop(self, sink: Sink, names: Iterable[str]) -> None:
        for name in names:
            self._core.deferred_free.add(sink.take(name))

    def _queues(self, vhost: str, refs: Iterable[QueueRef]) -> Iterator[Queue]:
        """Yield the queues that still exist."""
        queues = self._core.catalog.vhosts[vhost].queues
        for name, number in refs:
            queue = queues.get(name)
            if queue is not None and queue.number == number:
                yield queue

    @handles(c.CloseSink, cost=COMMAND_STEPS)
    def close(self, command: c.CloseSink) -> None:
        try:
            self._core.end_sink(self.find(command))
        except Refused:
            return

    # Outcomes

    def find(self, command: c.SinkCommand) -> Sink:
        """Return the sink of a command of its user. Raise Refused."""
        vhost = self._core.catalog.vhosts.get(command.vhost)
        sink = None if vhost is None else vhost.sinks.get(command.sink)
        if sink is None:
            raise no_sink(command.sink, command.vhost)
        sink.check_user(command.user)
        return sink

    def opened(self, command: c.OpenSink) -> Sink:
        """Return the sink that a command has opened. Raise Refused if the command was not carried out."""
        vhost = self._core.catalog.vhosts.get(command.vhost)
        if vhost is not None and command.sink not in vhost.sinks and len(vhost.sinks) >= SINKS_MAX:
            raise precondition_failed(f"vhost '{command.vhost}' has {SINKS_MAX} sinks, which is the limit")
        return self.find(command)

    def stored_steps(self, command: c.StageMessages) -> int | None:
        """Return how many steps of a command's attempt are stored; None if its epoch is committed. Raise Refused.

        The command is refused if its step can never be stored.
        """
        sink = self.find(command)
        if command.epoch < sink.first_free:
            return None
        attempt = sink.attempts.get(command.attempt)
        if attempt is None:
            if len(sink.attempts) >= ATTEMPTS_MAX:
                raise precondition_failed(
                    f"{sink.label} has {ATTEMPTS_MAX} attempts that are not committed, which is the limit"
                )
            steps = 0
        else:
            attempt.check()
            steps = attempt.steps
            if attempt.epoch != command.epoch:
                raise precondition_failed(
                    f"attempt '{command.attempt}' of {sink.label} is of epoch {attempt.epoch}, not {command.epoch}"
                )
        if steps < command.step:
            raise precondition_failed(
                f"attempt '{command.attempt}' of {sink.label} has {steps} steps, so step {command.step} is not the next"
            )
        return steps

    def check_commit(self, sink: Sink, command: c.CommitEpoch) -> None:
        """Raise Refused if an epoch that is not committed cannot be committed."""
        vhost = self._core.catalog.vhosts[command.vhost]
        for (name, number), (count, size) in sink.check_attempts(
            command.attempts, command.steps, command.epoch
        ).items():
            queue = vhost.queues.get(name)
            thing = the_queue(name, command.vhost)
            if queue is None or queue.number != number:
                raise not_found(
                    f"{thing}, which messages of epoch {command.epoch} of {sink.label} were stored for"
                )
            room, room_bytes = queue.room_left(count)
            if room < count or (room_bytes is not None and room_bytes < size):
                raise precondition_failed(
                    f"{thing} is too full for {count} messages of {size} bytes of epoch {command.epoch} of {sink.label}"
                )


def _as_publish(command: c.StageMessages) -> c.Publish:
    return c.Publish(
        0,
        0,
        command.count,
        command.exchange,
        command.routing_key,
        True,
        command.frames_channel,
        command.more_keys,
        command.priority,
        command.ttl_ms,
        command.delay_ms,
        "",
        0,
    )
