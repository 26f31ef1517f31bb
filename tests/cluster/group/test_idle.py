"""Members without submissions: little work, and enough messages that no member is suspected."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

import pytest

from cluster.engine.engine import Engine
from cluster.raft.messages import Append, AppendResponse
from cluster.raft.timing import Timing
from tests.cluster.harness import Trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.raft.messages import Message

HEARTBEAT_S = Timing().heartbeat_s
DELAY_S = 0.025
"""More than a message is under way, here."""
OTHER_TURNS = 3
"""A second: members tell each other how they are, once a second."""
SECONDS = 20


@pytest.fixture
def trio() -> Trio:
    trio = Trio()
    trio.start()
    trio.pass_ms(3_000)
    return trio


@pytest.fixture
def received(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str, Message]]:
    """Messages that members receive from now on: time, receiver and message."""
    received: list[tuple[float, str, Message]] = []
    receive = Engine.receive

    def record(engine: Engine, peer: str, message: Message) -> None:
        received.append((trio.world.now_s, engine._name, message))
        receive(engine, peer, message)

    monkeypatch.setattr(Engine, "receive", record)
    return received


def test_idle_member_takes_a_turn_per_heartbeat_interval(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: Counter[str] = Counter()
    turn = Engine.turn

    def counted(engine: Engine, compose: Callable[[], None]) -> None:
        turns[engine._name] += 1
        turn(engine, compose)

    monkeypatch.setattr(Engine, "turn", counted)
    trio.pass_ms(SECONDS * 1000)
    least = SECONDS / HEARTBEAT_S * 0.95
    for name in trio.names:
        assert least <= turns[name] <= SECONDS * (1 / HEARTBEAT_S + OTHER_TURNS)


def test_leader_sends_a_message_each_heartbeat_and_a_half(
    trio: Trio, received: list[tuple[float, str, Message]]
) -> None:
    random, leader = Random(1), trio.leader()
    end_s = trio.world.now_s + SECONDS
    while trio.world.now_s < end_s:
        trio.pass_ms(random.randrange(1, 250))
        leader.runtime.enter(partial(leader.group.propose, []))
    assert trio.leader() is leader
    for name in set(trio.names) - {leader.name}:
        times = [
            when_s
            for when_s, receiver, message in received
            if receiver == name and isinstance(message, Append)
        ]
        gaps_s = [later - earlier for earlier, later in pairwise(times)]
        assert len(gaps_s) > SECONDS / HEARTBEAT_S / 1.5
        assert max(gaps_s) < 1.5 * HEARTBEAT_S + DELAY_S


def test_a_heartbeat_is_answered_at_once(trio: Trio, received: list[tuple[float, str, Message]]) -> None:
    trio.pass_ms(SECONDS * 1000)
    heartbeats = [when_s for when_s, _, message in received if isinstance(message, Append)]
    answers = [when_s for when_s, _, message in received if isinstance(message, AppendResponse)]
    assert len(answers) > SECONDS / HEARTBEAT_S
    for answered_s in answers[2:]:
        assert min(answered_s - sent_s for sent_s in heartbeats if sent_s < answered_s) < DELAY_S
