"""The oracle of the queues allows all that the machine may do."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.sim.checks.queue_checks import QueueOracle
from qq.machine.machine import QueueMachine
from qq.machine.protocol.codec import encode_batch
from qq.machine.protocol.commands import (
    Cancel,
    Checkout,
    Command,
    DeadLetter,
    DeclareQueue,
    Enqueue,
    Get,
    Limit,
    Publish,
    PurgeQueue,
    Recover,
    SessionDown,
    Table,
)
from qq.stored.properties import NO_PRIORITY, NO_TTL

FULL = {"x-queue-type": "quorum", "x-max-length": 0, "x-overflow": "reject-publish"}
ROOMY = {**FULL, "x-max-length": 100}


def numbered(key: str, sequence: int, count: int) -> Publish:
    return Publish(1, 1, count, "", key, False, 1, [], NO_PRIORITY, NO_TTL, 0, "b", sequence)


class Run:
    """A machine and its oracle."""

    def __init__(self) -> None:
        self.findings: list[str] = []
        self.oracle = QueueOracle(self.findings.append)
        self.machine = QueueMachine()
        self.index = 0

    def entry(self, *commands: Command, sizes: int = 0, time_ms: int = 1_000) -> None:
        self.index += 1
        payload: Any = memoryview(b"".join(encode_batch(commands, [b"x"] * sizes)))
        effects = self.machine.apply_batch("n1", self.index, 0, time_ms, payload)
        self.oracle.batch(self.machine, "n1", self.index, 0, time_ms, payload, effects)
        self.oracle.entry_ended(self.machine, time_ms, self.machine.end_entry(time_ms))

    def declare(self, name: str, arguments: Table) -> None:
        self.entry(DeclareQueue(1, 1, name, False, True, False, False, False, arguments))


def test_refused_sequence_numbers_are_new_when_sent_again() -> None:
    """Seed 501442: the publisher was forgotten in the meantime, and so sent smaller numbers again."""
    run = Run()
    run.declare("full", FULL)
    run.declare("channels_with_room", ROOMY)
    run.entry(numbered("full", 14, 3), sizes=3)
    run.entry(numbered("channels_with_room", 17, 2), sizes=2)
    run.entry(numbered("channels_with_room", 15, 3), sizes=3)
    run.entry(PurgeQueue(2, 1, "channels_with_room"))
    run.entry(numbered("channels_with_room", 15, 2), sizes=2)
    assert run.oracle.fates["repeated"] == 3
    assert run.oracle.enqueued == 4
    assert run.findings == []


def test_dead_letter_that_expires_at_once_makes_room() -> None:
    """Seed 506951: each had room, and was gone when the batch was over."""
    run = Run()
    run.declare("next", {**FULL, "x-max-length": 1, "x-message-ttl": 0})
    dead_lettering = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "next", "x-message-ttl": 1}
    run.declare("q", {**ROOMY, **dead_lettering})
    run.declare("safe", {**ROOMY, **dead_lettering, "x-dead-letter-strategy": "at-least-once"})
    for name in ("q", "safe"):
        run.entry(Enqueue(1, 0, 1, "", name, False, 1), sizes=1)
    run.entry(time_ms=2_000)
    moves = [
        DeadLetter(
            "/",
            dead.queue,
            dead.number,
            dead.parts[0][0],
            1,
            "",
            dead.queue,
            [],
            [],
            "",
            NO_PRIORITY,
            False,
            {},
            {},
        )
        for dead in run.machine.pending_dead_letters(10)
    ]
    assert [move.queue for move in moves] == ["q", "safe"]
    run.entry(*moves, time_ms=2_000)
    assert run.findings == []
    assert run.oracle.fates["no room"] == 0


def test_session_publishes_to_full_and_roomy_queues_in_a_batch() -> None:
    run = Run()
    run.declare("full", FULL)
    run.declare("channels_with_room", ROOMY)
    queues = ("channels_with_room", "full", "channels_with_room", "full", "channels_with_room")
    run.entry(*(Enqueue(1, number, 1, "", name, False, 1) for number, name in enumerate(queues, 1)), sizes=5)
    assert run.oracle.fates["refused"] == 2
    assert run.oracle.ready("channels_with_room") == 3
    assert run.findings == []


@pytest.mark.parametrize("end", [SessionDown(2), Recover(2)])
def test_delivery_precedes_the_session_end_in_the_same_batch(end: Command) -> None:
    """A get first delivers the messages for waiting consumers."""
    run = Run()
    run.declare("q", ROOMY)
    run.entry(Checkout(2, 1, 1, 1, "q", "tag", 10, False, False, True, False, True, 0, {}))
    run.entry(Enqueue(1, 1, 2, "", "q", False, 1), Get(3, 1, 1, 2, "q", False, 0), end, sizes=2)
    assert run.oracle.ready("q") + run.oracle.held("q") == 2
    run.oracle.check_machine("n1", run.machine)
    assert run.findings == []


def test_expired_queue_frees_the_channel_limit_at_once() -> None:
    """Seed 8000605: a cancelled consumer still held as many messages as the channel may."""
    run, names = Run(), ("expires", "stays")
    run.declare("expires", {**ROOMY, "x-expires": 1_000})
    run.declare("stays", ROOMY)
    run.entry(Limit(2, 2))
    run.entry(
        *(Enqueue(1, number, 2, "", name, False, 1) for number, name in enumerate(names, 1)),
        sizes=4,
    )
    for consumer, queue in enumerate(names, 1):
        run.entry(
            Checkout(2, 1, 1, consumer, queue, f"tag {consumer}", 10, False, False, True, False, True, 0, {})
        )
    run.entry(Cancel(2, 1))
    assert [run.oracle.held(queue) for queue in names] == [2, 0]
    run.entry(time_ms=3_000)
    assert run.oracle.held("stays") == 2
    assert run.findings == []
