"""Messages between brokers use a link only while both ends hear each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.harness import Trio

if TYPE_CHECKING:
    from tests.cluster.harness import Member

SILENCE_MS = 3_500


@pytest.fixture
def trio() -> Trio:
    trio = Trio()
    trio.start()
    trio.pass_ms(3_000)  # the newest version is agreed on
    return trio


def sends(sender: Member, receiver: Member) -> bool:
    sent: list[bool] = []
    sender.runtime.enter(lambda: sent.append(sender.group.send_message(receiver.name, [b"hello"])))
    return sent[0]


def test_message_reaches_the_broker_of_a_peer(trio: Trio) -> None:
    first, second = trio.followers()
    received: list[tuple[str, bytes]] = []
    second.group.receive_messages(lambda peer, data: received.append((peer, data)))
    assert sends(first, second)
    trio.until(lambda: bool(received), 100)
    assert received == [(first.name, b"hello")]


@pytest.mark.parametrize("ways", ["there", "back", "both"])
def test_message_is_refused_while_the_link_drops_packets(trio: Trio, ways: str) -> None:
    options = trio.network.options
    options.timeout_min_s = options.timeout_max_s = 60.0  # TCP does not notice the cut
    first, second = trio.followers()
    cuts = {"there": [(first, second)], "back": [(second, first)]}
    cuts["both"] = [*cuts["there"], *cuts["back"]]
    for source, target in cuts[ways]:
        trio.network.cut(source.name, target.name)
    trio.pass_ms(SILENCE_MS + 1_500 * (ways == "there"))
    assert not sends(first, second)
    for source, target in cuts[ways]:
        trio.network.heal(source.name, target.name)
    trio.until(lambda: sends(first, second), within_ms=10_000)
