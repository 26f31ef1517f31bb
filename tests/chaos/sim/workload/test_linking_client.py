"""Clients of AMQP 1.0 beside clients of 0-9-1 in the simulation are told the truth, and find hazards put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chaos.sim.run import Outcome, draw_amqp10, run
from chaos.sim.workload.linking_client import ACCEPTED, REJECTED, RELEASED, LinkingClient
from chaos.sim.world.cluster import SimulationOptions
from qq.amqp10.link import Link10
from qq.amqp10.sending_link import SendingLink, SessionDeliveries
from qq.amqp10.session import SettlementRequested
from qq.amqp10_server.connection import Amqp10Connection
from qq.amqp10_server.consuming_link import ConsumingLink
from qq.amqp10_server.delivering_link import DeliveringLink
from qq.amqp10_server.link_output import LinkOutput
from qq.amqp10_server.publishing_link import PublishingLink
from qq.sessions import headers
from qq.sessions.submissions import Submissions
from tests.harness.hazards import expect_violation
from tests.harness.long_cases import cases

OPTIONS = SimulationOptions(
    queues=True,
    clients=True,
    linking_clients=3,
    duration_s=6.0,
    submit_interval_s=0.1,
    fault_interval_s=1.0,
    faults={"transfer": 3.0, "kill": 1.0, "lag": 1.0, "isolate": 1.0, "reset": 1.0},
    retained_bytes=2**20,
)
SEEDS_MAX = 60
BUSY_SEED = 37
"""A seed with several drains, and with each outcome."""
OUTCOMES_MIN, DELIVERIES_MIN = 50, 100

slow = pytest.mark.slow


def outcome(seed: int) -> Outcome:
    return run(seed, OPTIONS)


def outcome_with_any_fault(seed: int) -> Outcome:
    return run(seed, draw_amqp10(seed))


@slow
def test_clients_of_both_protocols_are_told_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[int] = []
    deliveries: list[int] = []
    tell, arrive = LinkingClient._outcome, LinkingClient._arrived

    def told(self: LinkingClient, message: Any) -> None:
        outcomes.append(int(message.delivery.remote_state))
        tell(self, message)

    def arrived(self: LinkingClient, receiver: Any, delivery: Any) -> None:
        deliveries.append(delivery.pending)
        arrive(self, receiver, delivery)

    monkeypatch.setattr(LinkingClient, "_outcome", told)
    monkeypatch.setattr(LinkingClient, "_arrived", arrived)
    result = outcome(BUSY_SEED)
    assert not result.violation
    assert result.fates["drains"] > 2
    assert len(deliveries) > DELIVERIES_MIN
    assert len(outcomes) > OUTCOMES_MIN
    assert set(outcomes) == {ACCEPTED, REJECTED, RELEASED}


def gives_credit_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliveries under way when the client set its credit are given once more."""
    receive = SendingLink.receive_flow

    def count_anew(self: SendingLink, flow: Any) -> Any:
        event = receive(self, flow)
        self.credit = flow.link_credit or 0
        return event

    monkeypatch.setattr(SendingLink, "receive_flow", count_anew)


def loses_credit_with_a_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: DeliveringLink) -> None:
        if isinstance(self, ConsumingLink) and not self._drain:
            self._limit = self._output.written_id
            self._send_credit()

    monkeypatch.setattr(DeliveringLink, "leader_changed", forget)


def answers_drains_before_their_deliveries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LinkOutput, "report", LinkOutput._write_state)


def tells_states_before_their_deliveries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a link leaves before its deliveries that wait for the client's window."""
    send = SendingLink._send

    def tell(self: SendingLink, state: Any) -> None:
        waiting, self.waiting = self.waiting, 0
        send(self, state)
        self.waiting = waiting

    monkeypatch.setattr(SendingLink, "_send", tell)


def forgets_states_with_a_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: DeliveringLink) -> None:
        if isinstance(self, ConsumingLink):
            self._echo = 0

    monkeypatch.setattr(DeliveringLink, "leader_changed", forget)


def settles_the_next_delivery_too(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = SessionDeliveries.settle
    monkeypatch.setattr(SessionDeliveries, "settle", lambda self, first, last: settle(self, first, last + 1))


def loses_messages_by_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first message of a group takes the place of the others."""
    to_frames = headers.to_frames

    def lose_one(messages: Any, channel: int, frame_max: int) -> Any:
        return to_frames([messages[0]] * len(messages), channel, frame_max)

    monkeypatch.setattr(headers, "to_frames", lose_one)


def accepts_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = Submissions._submit

    def accept_too_early(self: Submissions, batch: Any) -> None:
        submit(self, batch)
        for publisher, published in batch.confirms.items():
            if isinstance(publisher, PublishingLink):
                publisher.confirm(published)

    monkeypatch.setattr(Submissions, "_submit", accept_too_early)


def settles_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Amqp10Connection._handle

    def settle_too_early(self: Amqp10Connection, event: Any) -> None:
        if isinstance(event, SettlementRequested):
            event.session.settle(event)
            self._schedule_flush()
        else:
            handle(self, event)

    monkeypatch.setattr(Amqp10Connection, "_handle", settle_too_early)


def accepts_unknown_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PublishingLink, "refuse_unconfirmed", PublishingLink.confirm)


def keeps_messages_of_detached_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConsumingLink, "end", lambda self: self.output.close())


def bars_handles_until_the_detach_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Link10, "has_client_detached", False)


SEEN: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    gives_credit_twice: "has given .* credit for|is told that",
    loses_credit_with_a_leader: "and has credit for",
    answers_drains_before_their_deliveries: "has given .* credit for|is told that",
    tells_states_before_their_deliveries: "is told that",
    forgets_states_with_a_leader: "waits for the state of",
    settles_the_next_delivery_too: "promise='(lost|acknowledged)'",
    loses_messages_by_conversion: "promise='lost'",
    accepts_before_the_commit: "is confirmed, and not in the log",
    settles_before_the_commit: "is delivered after a consumer has accepted it",
    accepts_unknown_outcomes: "which no queue got|is confirmed, and not in the log",
    keeps_messages_of_detached_links: "messages are left",
    bars_handles_until_the_detach_is_answered: "handle-in-use",
}
"""Violation of each hazard."""
ALWAYS_TRIED = {gives_credit_twice, tells_states_before_their_deliveries, accepts_before_the_commit}
"""Three that show soonest."""
SHOWN_BY: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    loses_credit_with_a_leader: 15,
    answers_drains_before_their_deliveries: 1,
    loses_messages_by_conversion: 1,
    accepts_unknown_outcomes: 2,
    bars_handles_until_the_detach_is_answered: 11,
    forgets_states_with_a_leader: 15,
    settles_before_the_commit: 40,
}
"""The seed that shows a hazard soonest, if it is not the first. If it shows no finding, all seeds are tried."""


@slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("hazard", cases(SEEN, ALWAYS_TRIED.__contains__), ids=lambda hazard: hazard.__name__)
def test_hazard_of_links_is_seen_by_clients(
    hazard: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hazard(monkeypatch)
    run_seed = outcome_with_any_fault if hazard is settles_before_the_commit else outcome
    expect_violation(SEEN[hazard], run_seed, SHOWN_BY.get(hazard, 0), SEEDS_MAX)
