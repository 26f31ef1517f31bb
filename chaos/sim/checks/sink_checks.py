"""Oracle of sinks: an epoch is published once, completely, from the attempts that its commit names.

Invariant: steps and routes are computed from the commands alone. The machine only says whether a commit was carried
out, because queues may be full. A commit that could be carried out must be, and any other commit must not be.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from chaos.sim.checks.queue_model import rejects
from qq.machine.protocol.commands import (
    DEFAULT_VHOST,
    CloseSink,
    CommitEpoch,
    OpenSink,
    Publish,
    SinkCommand,
    StageMessages,
)

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from chaos.sim.checks.queue_model import QueueModel
    from qq.machine.machine import QueueMachine
    from qq.ranges import Range

    Place = tuple[int, int]
    Arrive = Callable[[QueueModel, Place, Publish], None]


class StagedMessages(NamedTuple):
    """The messages of a step, with the numbers of the queues that they will enter."""

    properties: Publish
    places: Sequence[Place]
    queues: Mapping[str, int]


@dataclass(slots=True)
class AttemptModel:
    epoch: int
    steps: list[StagedMessages] = field(default_factory=list)
    is_refused: bool = False
    """Whether a step could not be stored: then the messages of the steps before it are dropped, too."""

    @property
    def places(self) -> list[Place]:
        """The stored messages."""
        return [] if self.is_refused else [place for step in self.steps for place in step.places]


@dataclass(slots=True)
class SinkModel:
    expires_ms: int
    used_ms: int = 0
    first_free: int = 0
    attempts: dict[str, AttemptModel] = field(default_factory=dict)


class SinkOracle:
    """Follows the sinks of the default virtual host."""

    def __init__(
        self,
        fail: Callable[[str], None],
        fates: Counter[str],
        queues: Callable[[], Mapping[str, QueueModel]],
        route: Callable[[str, Sequence[str]], list[QueueModel]],
        arrive: Arrive,
    ) -> None:
        """Create the oracle without sinks. `arrive` puts a message into the model of a queue."""
        self._fail = fail
        self._fates = fates
        self._queues = queues
        self._route = route
        self._arrive = arrive
        self._sinks: dict[str, SinkModel] = {}

    def carry_out(
        self, machine: QueueMachine, index: int, slots: Iterator[int], command: SinkCommand, available_ms: int
    ) -> list[QueueModel]:
        """Follow a command, and return the queues that took messages and have a limit that they must not exceed."""
        places = []
        if isinstance(command, StageMessages):
            places = [(index, slot) for _, slot in zip(range(command.count), slots, strict=False)]
        sink = self._sinks.get(command.sink)
        if isinstance(command, OpenSink):
            sink = self._sinks.setdefault(command.sink, SinkModel(command.expires_ms))
            sink.expires_ms, sink.used_ms = command.expires_ms, available_ms
            return []
        if sink is None:
            return []
        sink.used_ms = available_ms
        match command:
            case StageMessages():
                self._stage(sink, command, places)
            case CommitEpoch():
                return self._commit(machine, sink, command)
            case CloseSink():
                del self._sinks[command.sink]
        return []

    def _stage(self, sink: SinkModel, command: StageMessages, places: Sequence[Place]) -> None:
        attempt = sink.attempts.get(command.attempt) or AttemptModel(command.epoch)
        is_next = (attempt.epoch, len(attempt.steps)) == (command.epoch, command.step)
        if command.epoch < sink.first_free or attempt.is_refused or not is_next:
            self._fates["steps without effect"] += 1
            return
        sink.attempts[command.attempt] = attempt
        targets = self._route(command.exchange, [command.routing_key, *command.more_keys])
        if not targets:
            attempt.is_refused = True
            return
        queues = {model.name: model.number for model in targets}
        attempt.steps.append(StagedMessages(_as_publish(command), places, queues))
        self._fates["staged"] += len(places)

    def _commit(self, machine: QueueMachine, sink: SinkModel, command: CommitEpoch) -> list[QueueModel]:
        if command.epoch < sink.first_free:
            self._fates["epochs repeated"] += 1
            return []
        there = machine.vhosts[DEFAULT_VHOST].sinks.get(command.sink)
        is_done = there is not None and there.first_free > command.epoch
        steps: list[StagedMessages] = []
        is_whole = len(set(command.attempts)) == len(command.attempts)
        for name, count in zip(command.attempts, command.steps, strict=True):
            attempt = sink.attempts.get(name)
            if (
                attempt is None
                or attempt.epoch != command.epoch
                or attempt.is_refused
                or len(attempt.steps) != count
            ):
                is_whole = False
            else:
                steps += attempt.steps
        targets = {name: number for step in steps for name, number in step.queues.items()}
        models = {name: model for name, model in self._queues().items() if targets.get(name) == model.number}
        has_queues = all(
            name in models and models[name].number == number
            for step in steps
            for name, number in step.queues.items()
        )
        may_be_full = any(map(rejects, models.values()))
        if is_done != (is_whole and has_queues) and (is_done or not may_be_full):
            self._fail(
                f"{command} is {'' if is_done else 'not '}carried out: {is_whole}, {has_queues}, {sink}"
            )
        if not is_done:
            self._fates["epochs refused"] += 1
            return []
        self._fates["epochs"] += 1
        sink.first_free = command.epoch + 1
        sink.attempts = {
            name: attempt for name, attempt in sink.attempts.items() if attempt.epoch > command.epoch
        }
        for step in steps:
            for place in step.places:
                for name in step.queues:
                    self._arrive(models[name], place, step.properties)
            self._fates["published by epochs"] += len(step.places)
        return [model for model in models.values() if rejects(model)]

    def end_idle(self, machine: QueueMachine, available_ms: int) -> None:
        """Follow sinks that have ended by themselves, and check that they were idle for long enough."""
        for name, sink in list(self._sinks.items()):
            is_due = 0 < sink.expires_ms <= available_ms - sink.used_ms
            if is_due != (name not in machine.vhosts[DEFAULT_VHOST].sinks):
                self._fail(f"sink {name} after {available_ms - sink.used_ms} ms: {sink}")
            if is_due:
                self._fates["idle sinks"] += 1
                del self._sinks[name]

    def check(self, name: str, machine: QueueMachine) -> None:
        """Check that a node's machine has exactly the sinks and messages of the commands."""
        there = {
            sink.name: (
                sink.first_free,
                {
                    each.name: (
                        each.epoch,
                        each.steps,
                        each.refusal is not None,
                        [place for run in each.runs for place in _places(run.messages)],
                    )
                    for each in sink.attempts.values()
                },
            )
            for sink in machine.vhosts[DEFAULT_VHOST].sinks.values()
        }
        expected = {
            sink: (
                model.first_free,
                {
                    each: (
                        attempt.epoch,
                        len(attempt.steps),
                        attempt.is_refused,
                        attempt.places,
                    )
                    for each, attempt in model.attempts.items()
                },
            )
            for sink, model in self._sinks.items()
        }
        if there != expected:
            self._fail(f"{name} has the sinks {there}, not {expected}")


def staged_in(machine: QueueMachine) -> Iterator[Range]:
    """Yield the staged messages of all sinks of the default virtual host."""
    for sink in machine.vhosts[DEFAULT_VHOST].sinks.values():
        for attempt in sink.attempts.values():
            for run in attempt.runs:
                yield run.messages


def _places(messages: Range) -> Iterator[Place]:
    for slot in range(messages.slot, messages.slot + messages.count):
        yield messages.index, slot


def _as_publish(command: StageMessages) -> Publish:
    place = (0, 0, command.count, command.exchange, command.routing_key, False, command.frames_channel)
    return Publish(*place, command.more_keys, command.priority, command.ttl_ms, command.delay_ms, "", 0)
