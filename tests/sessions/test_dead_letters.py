"""The leader's steps of dead letters: their size, and steps without an effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from pamqp import frame, header
from pamqp.commands import Basic

from qq.machine.machine import PendingDeadLetters
from qq.machine.protocol.codec import check_command
from qq.machine.protocol.commands import DeadLetter
from qq.machine.protocol.versions import VERSIONS
from qq.machine.queue.stuck_lines import StuckLines
from qq.ranges import Range
from qq.sessions.dead_letters import BYTES_MAX, RETRY_S, STEPS_MAX, DeadLetters
from qq.sessions.entries import Messages
from qq.sessions.lanes import Lane


class World:
    """The machine, the submissions, the entries and the runtime, as far as dead letters look."""

    def __init__(self, stored: list[bytes], *, makes_progress: bool) -> None:
        self.stored = stored
        self.version = VERSIONS[0]
        self.makes_progress = makes_progress
        self.first = 0
        self.steps_each = self.priced = 0
        """The estimated cost of a command."""
        self.steps: list[list[DeadLetter]] = []
        self.delays_s: list[float] = []
        self.later: list[Callable[[], None]] = []
        self.stuck_lines = StuckLines()
        self._step: list[DeadLetter] = []
        self._applied: list[Callable[[], None]] = []
        self.dead_letters = DeadLetters(*[cast("Any", self)] * 4)

    def pending_dead_letters(self, _ranges_max: int, _first: int) -> Iterator[PendingDeadLetters]:
        if self.first < len(self.stored):
            left = Range(1, self.first, len(self.stored) - self.first)
            yield PendingDeadLetters("/", "q", 1, [(self.first, left)], needs_content=True)

    def messages(self, part: Range, *, frames_max: int) -> list[Messages]:
        assert frames_max == 0  # large messages need not be in memory as a whole
        stored = self.stored[part.slot : part.slot + part.count]
        return [Messages("", "q", 1, stored)]

    def cost_of(self, _command: DeadLetter) -> int:
        self.priced += 1
        return self.steps_each

    def add(self, command: DeadLetter, _lane: Lane) -> None:
        self._step.append(command)

    def read_barrier(self, callback: Callable[[], None], _lane: Lane) -> None:
        self._applied.append(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.delays_s.append(delay_s)
        self.later.append(callback)

    def apply(self) -> bool:
        """Apply the pending step; return whether there was a step."""
        applied, self._applied = self._applied, []
        if self._step:
            self.steps.append(self._step)
            if self.makes_progress:
                self.first += sum(command.count for command in self._step)
            self._step = []
        for callback in applied:
            callback()
        return bool(applied)


def with_headers(**headers: Any) -> bytes:
    return frame.marshal(header.ContentHeader(0, 0, Basic.Properties(headers=headers)), 1)


def test_step_without_progress_is_repeated_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World([with_headers(a=1)], makes_progress=False)
    world.dead_letters.set_leading(True)
    for seconds in range(1, 4):
        while world.apply():
            pass
        assert len(world.steps) == seconds
        assert world.delays_s == [RETRY_S] * seconds
        assert len(caplog.records) == seconds
        world.later.pop()()
    world.makes_progress = True
    assert world.apply()
    assert not world.apply()
    assert world.later == []


def test_dead_letter_step_is_bounded_in_bytes() -> None:
    world = World([with_headers(a=number, b="x" * 100_000) for number in range(50)], makes_progress=True)
    world.dead_letters.set_leading(True)
    while world.apply():
        pass
    assert world.first == 50
    assert world.later == []
    for step in world.steps:
        assert sum(check_command(command, world.version) for command in step[:-1]) < BYTES_MAX
    assert len(world.steps) > 3


def test_dead_letter_step_is_bounded_in_cost(caplog: pytest.LogCaptureFixture) -> None:
    world = World([with_headers(a=number) for number in range(9)], makes_progress=True)
    world.steps_each = STEPS_MAX // 2
    world.dead_letters.set_leading(True)
    while world.apply():
        pass
    assert [len(step) for step in world.steps] == [2, 2, 2, 2, 1]
    assert world.priced == 9  # each estimate was used
    assert caplog.records == []
