"""Simulated AMQP clients at production sessions find wrong answers of sessions: each hazard is put back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest

from chaos.sim.checks.checks import ViolationError
from chaos.sim.run import Outcome, Simulation
from chaos.sim.workload import client_workload
from chaos.sim.workload.client_workload import ClientWorkload
from chaos.sim.workload.working_client import NOWHERE, WorkingClient
from qq.amqp_server.channel.publishing import PublishingMethods
from qq.amqp_server.connection import AmqpConnection
from qq.machine.protocol.effects import Deliver, Known, Reply
from qq.sessions import dispatch, no_quorum
from qq.sessions.broker import Broker
from qq.sessions.resume import resume
from qq.sessions.submissions import Submissions
from tests.chaos.sim import absences
from tests.chaos.sim.absences import AWAY_S, CUTS_S
from tests.harness.hazards import expect_violation
from tests.harness.long_cases import cases

STEP_S = 0.25
SEEDS_MAX = 60
"""The rarest hazard shows in a run of twenty."""
OPTIONS = replace(absences.OPTIONS, clients=True)


def outcome(seed: int, *, evicts: bool = False) -> Outcome:
    """Run with nodes that are cut off in turn; their clients stay connected."""
    simulation = Simulation(seed, OPTIONS)
    submit_just_before_nodes_are_cut_off(simulation)
    absences.cut_off_nodes_in_turn(simulation, 2 * AWAY_S if evicts else AWAY_S)
    violation = ""
    try:
        simulation.run()
    except ViolationError as error:
        violation = str(error)
    return simulation.outcome(violation)


def submit_just_before_nodes_are_cut_off(simulation: Simulation) -> None:
    """Submit requests whose answers are lost: they are carried out, because nodes need some milliseconds for
    messages.
    """

    def submit(workload: ClientWorkload) -> None:
        workload.submit_once()
        for client in workload._amqp_clients:
            if isinstance(client, WorkingClient):
                client._get("c1")

    assert isinstance(simulation.workload, ClientWorkload)
    for cut_s, before_s in product(CUTS_S, (0.003, 0.009, 0.018, 0.027)):
        simulation.world.after(cut_s - before_s, partial(submit, simulation.workload))


@pytest.mark.parametrize("evicts", cases([True, False], bool))
def test_sessions_give_clients_true_answers_under_faults(evicts: bool) -> None:
    result = outcome(int(evicts), evicts=evicts)
    assert not result.violation
    assert result.installs, "a node was away for so long that it needs a snapshot"


def test_clients_of_a_half_cut_node_are_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node hears a leader that does not hear it."""
    timeout_s, held_s = 1.0, (3.0, 8.0)
    monkeypatch.setattr(client_workload, "MAJORITY_TIMEOUTS_MS", (int(timeout_s * 1000),))
    simulation = Simulation(0, replace(OPTIONS, duration_s=9.0, faults={}))
    brokers = simulation.workload.brokers
    [half_cut, *_] = names = simulation.cluster.names
    waited_s: dict[int, float] = {}
    told: list[str] = []
    shut_down = AmqpConnection.shut_down

    def record(connection: AmqpConnection, text: str) -> None:
        told.append(text)
        shut_down(connection, text)

    def hold() -> None:
        for peer in names[1:]:
            simulation.cluster.network.hold(half_cut, peer)

    def heal() -> None:
        for peer in names[1:]:
            simulation.cluster.network.heal(half_cut, peer)

    def watch() -> None:
        waiting = [
            each for each in brokers._shells[half_cut].broker.connections.values() if each.waits_for_log
        ]
        for number in waited_s.keys() - {each.id for each in waiting}:
            del waited_s[number]
        for each in waiting:
            waited_s[each.id] = waited_s.get(each.id, 0.0) + STEP_S
            assert waited_s[each.id] <= timeout_s + 2 * no_quorum.CHECK_S + STEP_S
        simulation.world.after(STEP_S, watch)

    monkeypatch.setattr(AmqpConnection, "shut_down", record)
    for at_s, step in ((held_s[0], hold), (held_s[0], watch), (held_s[1], heal)):
        simulation.world.after(at_s, step)
    simulation.run()
    assert any("no request of this node" in text for text in told)


def confirms_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = Submissions._submit

    def confirm_too_early(self: Submissions, batch: Any) -> None:
        submit(self, batch)
        for publisher, published in batch.confirms.items():
            publisher.confirm(published)

    monkeypatch.setattr(Submissions, "_submit", confirm_too_early)


def confirms_publishes_that_a_snapshot_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot may have skipped that messages were returned, as all are here."""
    monkeypatch.setattr(WorkingClient, "_place", lambda _: ("", NOWHERE, ()))
    monkeypatch.setattr(client_workload, "PUBLISH_TIMEOUTS_MS", (0,))
    monkeypatch.setattr(PublishingMethods, "refuse_unconfirmed", PublishingMethods.confirm)


def confirms_publishes_that_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_workload, "PUBLISH_TIMEOUTS_MS", (300,))
    monkeypatch.setattr(PublishingMethods, "refuse_unconfirmed", PublishingMethods.confirm)


def refusals_are_confirms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        PublishingMethods, "refuse", lambda self, _, last: PublishingMethods.confirm(self, last)
    )


def repeats_deliveries_after_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    def deliver_all(session: Any, effect: Any) -> None:
        if isinstance(effect, Deliver):
            session.consumers.deliver(effect)
        else:
            resume(session, effect)

    monkeypatch.setattr(dispatch, "resume", deliver_all)


def forgets_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave_out(session: Any, effect: Any) -> None:
        if not isinstance(effect, Reply | Known):
            resume(session, effect)

    monkeypatch.setattr(dispatch, "resume", leave_out)


def keeps_messages_of_ended_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(self: Broker, session: Any) -> None:
        self._dispatcher.sessions.pop(session.session, None)

    monkeypatch.setattr(Broker, "session_ended", end)


def leaves_half_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AmqpConnection, "eof_received", lambda _: True)


def keeps_connections_when_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broker, "_evicted", lambda self: self.submissions.abandon())


SEEN: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    confirms_at_once: "is confirmed, and not in the log",
    confirms_publishes_that_a_snapshot_skipped: "before it is returned",
    confirms_publishes_that_timed_out: "is confirmed, and not in the log",
    refusals_are_confirms: "promise='lost'",
    repeats_deliveries_after_a_snapshot: "promise='unmarked_duplicate'",
    forgets_answers: "waits for answers|is not connected",
    keeps_messages_of_ended_sessions: "messages are left",
    leaves_half_a_connection: "waits for",
    keeps_connections_when_evicted: "is confirmed, and not in the log",
}
"""Violation of each hazard."""
ALWAYS_TRIED = {confirms_at_once, confirms_publishes_that_timed_out}
"""Two that show soonest."""
SHOWN_BY: dict[Callable[[pytest.MonkeyPatch], None], int] = {refusals_are_confirms: 3}
"""The seed that shows a hazard soonest, if it is not the first. If it shows no finding, all seeds are tried."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("hazard", cases(SEEN, ALWAYS_TRIED.__contains__), ids=lambda hazard: hazard.__name__)
def test_hazard_in_the_sessions_is_seen_by_clients(
    hazard: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hazard(monkeypatch)
    evicts = hazard is keeps_connections_when_evicted
    expect_violation(SEEN[hazard], partial(outcome, evicts=evicts), SHOWN_BY.get(hazard, 0), SEEDS_MAX)
