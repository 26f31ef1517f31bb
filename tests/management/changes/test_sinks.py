"""Sinks: a request of many steps lets other tasks run."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pamqp.commands import Basic

from qq.machine.protocol.versions import VERSIONS
from qq.management.changes.sinks import STEP_MESSAGES, Sinks, _steps
from qq.management.reports.sinks import AttemptPath, RoutedMessages
from qq.sessions.lanes import Lane
from qq.stored.editing import make
from qq.stored.layout import FRAME_MAX, flags

if TYPE_CHECKING:
    from collections.abc import Coroutine

Properties = Basic.Properties
PATH = AttemptPath("/", "s", "guest", 0, "a")


def messages(count: int) -> list[RoutedMessages]:
    """Return messages that are a step each."""
    made = [make(Properties(headers={"x-delay": number}), b"", FRAME_MAX) for number in range(1, count + 1)]
    return [RoutedMessages("", "q", flags(made[0]), made)]


class _Submissions:
    def __init__(self) -> None:
        self.steps: list[int] = []

    def stage(self, command: Any, messages: Any, lane: Lane, session: int) -> None:
        self.steps.append(command.step)


async def _turns_during(work: Coroutine[Any, Any, Any]) -> tuple[int, Any]:
    """Return how often a different task runs while `work` does, and the result of `work`."""
    turns, task = 0, asyncio.ensure_future(work)
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    return turns, task.result()


def test_request_of_many_steps_lets_other_tasks_run() -> None:
    submissions = _Submissions()
    machine = SimpleNamespace(version=VERSIONS[-1])
    broker: Any = SimpleNamespace(submissions=submissions, machine=machine, new_id=lambda: 1)
    group: Any = None

    async def run() -> tuple[int, int]:
        turns, steps = await _turns_during(_steps(PATH, 0, messages(10_000)))
        more, _ = await _turns_during(Sinks(broker, group)._submit(steps, Lane()))
        return turns, more

    turns, more = asyncio.run(run())
    assert submissions.steps == list(range(10_000))
    assert turns > 5
    assert more > 5


def test_step_reads_a_bounded_number_of_messages() -> None:
    made = [make(Properties(expiration="9"), b"x", FRAME_MAX)] * (STEP_MESSAGES * 2 + 1)
    steps = asyncio.run(_steps(PATH, 3, [RoutedMessages("", "q", flags(made[0]), made)]))
    assert [(command.step, len(some)) for command, some in steps] == [(3, 1000), (4, 1000), (5, 1)]
