"""The fuzzer: a short run of it, and what it would notice."""

from __future__ import annotations

import struct
import time
from collections import Counter
from random import Random

import pytest
from pamqp import commands
from pamqp.heartbeat import Heartbeat
from raw_client import HEADER, marshal

from chaos.fuzz.conversations import conversations
from chaos.fuzz.mutations import mutate
from chaos.fuzz.run import TROUBLE, Violation, _Frames, _note, run_seed, served
from qq.testing import ClusterNode

CLIENTS = 200
SECONDS = 10.0


def test_conversations_that_are_not_damaged_are_served_to_their_end(node: ClusterNode) -> None:
    assert served(node.amqp_port) == Counter()


def test_damaged_ones_harm_nobody() -> None:
    outcome = run_seed(1, CLIENTS, time.monotonic() + SECONDS)
    assert outcome.violation == ""
    assert outcome.clients == CLIENTS
    assert {"channel 404", "channel 406", "connection 501", "connection 503", "connection 505"} <= set(
        outcome.told
    )


def test_the_damage_is_a_function_of_the_seed() -> None:
    undamaged = {b"".join(conversation.frames) for conversation in conversations()}
    first, again = (
        [mutate(Random(f"1-{number}"), conversations()) for number in range(300)] for _ in range(2)
    )
    assert first == again
    assert len(set(first) - undamaged) > 270


def frames(data: bytes) -> list[object]:
    read = _Frames()
    read.add(data)
    return [*iter(read.next, None)]


def test_an_answer_that_is_no_frame_is_noticed() -> None:
    beat, close = Heartbeat().marshal(), marshal(1, commands.Channel.CloseOk())
    assert [type(frame) for frame in frames(beat + close + close[:-1])] == [
        Heartbeat,
        commands.Channel.CloseOk,
    ]
    assert frames(HEADER) == []
    for wrong in (close[:-1] + b"\0", struct.pack(">BHI", 9, 0, 0) + b"\xce"):
        with pytest.raises(Violation):
            frames(wrong)


def test_what_may_not_be_said_is_noticed() -> None:
    told: Counter[str] = Counter()
    _note(commands.Connection.CloseOk(), told, closed=True)
    _note(commands.Channel.Close(404, "NOT_FOUND - no queue", 50, 10), told, closed=False)
    assert told == {"channel 404": 1}
    with pytest.raises(Violation, match="behind its connection"):
        _note(commands.Channel.OpenOk(), told, closed=True)
    with pytest.raises(Violation, match="INTERNAL_ERROR"):
        _note(
            commands.Connection.Close(541, "INTERNAL_ERROR - an unexpected error", 0, 0), told, closed=False
        )


@pytest.mark.parametrize(
    "line",
    [
        "ERROR qq.broker.listener: connection 5 of guest: unexpected:",
        "Traceback (most recent call last):",
        "Task exception was never retrieved",
    ],
)
def test_an_error_of_ours_in_the_log_is_noticed(line: str) -> None:
    assert TROUBLE.search(line)
