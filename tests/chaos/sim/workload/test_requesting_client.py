"""Clients of direct reply-to in the simulation get each reply once and in order, and find hazards put back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from chaos.sim.run import Outcome, run
from chaos.sim.world.cluster import SimulationOptions
from chaos.sim.world.network import LinkEpoch, NetworkOptions
from cluster.group.broker_messages import BrokerMessages
from qq.amqp10_server.reply_link import ReplyOutput
from qq.amqp_server.channel.consuming import ConsumingMethods
from qq.amqp_server.channel.publishing import PublishingMethods
from qq.sessions.direct_replies import DirectReplies, LoggedReplies
from qq.sessions.entries import Messages
from tests.harness.hazards import expect_violation
from tests.harness.long_cases import cases

OPTIONS = SimulationOptions(
    queues=True,
    clients=True,
    requesters=4,
    duration_s=10.0,
    submit_interval_s=0.1,
    fault_interval_s=1.0,
    faults={"reset": 3.0, "lag": 2.0, "kill": 1.0, "pause": 1.0, "isolate": 1.0, "transfer": 1.0},
    network=NetworkOptions(spike_probability=0.05, spike_max_s=0.3),
    retained_bytes=2**20,
)
BOTH_PROTOCOLS = replace(OPTIONS, linking_clients=1)
SEEDS_MAX = 60
REPLIES_MIN = 50


def outcome(seed: int) -> Outcome:
    return run(seed, OPTIONS)


def outcome_of_both(seed: int) -> Outcome:
    return run(seed, BOTH_PROTOCOLS)


@pytest.mark.parametrize("seed", cases(range(6), {0}.__contains__))
def test_requesters_get_replies_once_and_in_order(seed: int) -> None:
    result = outcome(seed)
    assert not result.violation
    assert result.replies > REPLIES_MIN


@pytest.mark.parametrize("seed", cases(range(6), {0}.__contains__))
def test_requesters_of_both_protocols_get_their_replies(seed: int) -> None:
    result = outcome_of_both(seed)
    assert not result.violation
    assert result.replies > REPLIES_MIN


def delivers_to_the_next_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The present consumer of replies on the channel gets them."""

    def replies(self: ConsumingMethods, node: str, replies: Any) -> None:
        logged = self._logged_replies
        if self._requester is not None and not (logged and logged.have_overtaken(node, replies)):
            self._core.outgoing.replies(self._requester.tag, replies)

    monkeypatch.setattr(ConsumingMethods, "replies", replies)


def repeats_messages_on_a_new_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """All messages of a lost link are sent again on the next."""
    send = BrokerMessages.send
    epochs: dict[tuple[BrokerMessages, str], LinkEpoch] = {}
    sent: dict[tuple[BrokerMessages, str], list[Sequence[Any]]] = defaultdict(list)

    def repeat(self: BrokerMessages, peer: str, data: Sequence[Any]) -> bool:
        epoch = cast("Any", self._links).current.get(peer)
        if epoch is None or not send(self, peer, data):
            return False
        if epochs.get((self, peer), epoch) is not epoch:
            for earlier in sent[self, peer]:
                send(self, peer, earlier)
            sent[self, peer].clear()
        epochs[self, peer] = epoch
        sent[self, peer].append(data)
        return True

    monkeypatch.setattr(BrokerMessages, "send", repeat)


def replies_overtake_earlier_replies_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        PublishingMethods, "_has_logged_replies", property(lambda _: False, lambda _, __: None)
    )


def replies_come_before_the_entry_that_they_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DirectReplies, "_take", DirectReplies._deliver)


def replies_come_after_later_replies_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoggedReplies, "have_overtaken", lambda *_: False)


def addresses_of_all_virtual_hosts_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    send = PublishingMethods._send_replies

    def send_anywhere(self: PublishingMethods, *message: Any) -> bool:
        vhosts = self._core.broker.machine.vhosts
        own = vhosts[self._core.connection.vhost]
        kept = own.requesters
        own.requesters = {
            name: there for vhost in vhosts.values() for name, there in vhost.requesters.items()
        }
        try:
            return send(self, *message)
        finally:
            own.requesters = kept

    monkeypatch.setattr(PublishingMethods, "_send_replies", send_anywhere)


def sends_replies_twice_on_links(monkeypatch: pytest.MonkeyPatch) -> None:
    write = ReplyOutput._write_replies

    def write_twice(self: ReplyOutput, stored: Messages) -> None:
        write(self, stored)
        write(self, stored)

    monkeypatch.setattr(ReplyOutput, "_write_replies", write_twice)


def loses_replies_to_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplyOutput, "unlogged", lambda *_: None)


AFTER = r"gets reply \d+ of \S+ after reply \d+"
SEEN: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    delivers_to_the_next_consumer: "which is no request of consumer|which does not consume",
    repeats_messages_on_a_new_link: f"{AFTER}|which is no request",
    replies_overtake_earlier_replies_in_the_log: AFTER,
    replies_come_before_the_entry_that_they_follow: AFTER,
    replies_come_after_later_replies_in_the_log: AFTER,
    addresses_of_all_virtual_hosts_are_known: "gets a reply to guess-",
    sends_replies_twice_on_links: AFTER,
    loses_replies_to_links: "waits for replies to",
}
"""Violation of each hazard."""
OF_LINKS = {sends_replies_twice_on_links, loses_replies_to_links}
"""Hazards that only a client of AMQP 1.0 sees."""
ALWAYS_TRIED = {replies_overtake_earlier_replies_in_the_log, addresses_of_all_virtual_hosts_are_known}
"""Two that show soonest."""
SHOWN_BY: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    delivers_to_the_next_consumer: 2,
    replies_come_after_later_replies_in_the_log: 10,
}
"""The seed that shows a hazard soonest, if it is not the first. If it shows no finding, all seeds are tried."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("hazard", cases(SEEN, ALWAYS_TRIED.__contains__), ids=lambda hazard: hazard.__name__)
def test_hazard_of_direct_replies_is_seen_by_requesters(
    hazard: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hazard(monkeypatch)
    run_seed = outcome_of_both if hazard in OF_LINKS else outcome
    expect_violation(SEEN[hazard], run_seed, SHOWN_BY.get(hazard, 0), SEEDS_MAX)
