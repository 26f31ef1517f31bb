"""Clients that declare queues in the simulation are told the truth, and find hazards put back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from chaos.sim.run import Outcome, run
from chaos.sim.world.cluster import SimulationOptions
from qq.amqp_server.channel.core import ChannelCore
from qq.amqp_server.channel.method_queue import MethodQueue
from tests.harness.hazards import expect_violation
from tests.harness.long_cases import cases

OPTIONS = SimulationOptions(
    queues=True,
    clients=True,
    declarers=4,
    duration_s=10.0,
    submit_interval_s=0.1,
    fault_interval_s=1.0,
    faults={"lag": 4.0, "kill": 1.0, "pause": 1.0, "isolate": 1.0, "partition": 1.0, "transfer": 1.0},
    retained_bytes=2**20,
)
SEEDS_MAX = 60


def outcome(seed: int) -> Outcome:
    return run(seed, OPTIONS)


@pytest.mark.parametrize("seed", cases(range(6), {0}.__contains__))
def test_declarations_show_all_confirmed_changes(seed: int) -> None:
    assert not outcome(seed).violation


def test_declarations_are_right_during_an_upgrade() -> None:
    assert not run(1, replace(OPTIONS, is_upgrade=True)).violation


def answers_from_an_outdated_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node does not wait until it has applied all entries that were committed before."""
    monkeypatch.setattr(MethodQueue, "wait_read", lambda _, then: then())


def leaves_the_default_queue_to_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log does not know about declarations without an entry."""
    monkeypatch.setattr(ChannelCore, "queue_name", lambda _, name: name)


SEEN: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    answers_from_an_outdated_state: r"is told that own-\S+ (exists|does not exist)",
    leaves_the_default_queue_to_the_log: r"is told that own-\S+ does not exist|its default queue is own-",
}
"""Violation of each hazard."""
SHOWN_BY = {answers_from_an_outdated_state: 2, leaves_the_default_queue_to_the_log: 1}
"""The seed that shows a hazard soonest. If it shows no finding, all seeds are tried."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "hazard",
    cases(SEEN, {leaves_the_default_queue_to_the_log}.__contains__),
    ids=lambda hazard: hazard.__name__,
)
def test_hazard_of_declarations_is_seen_by_clients(
    hazard: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hazard(monkeypatch)
    expect_violation(SEEN[hazard], outcome, SHOWN_BY[hazard], SEEDS_MAX)
