"""The oracle of the queues knows what the machine may do."""

from __future__ import annotations

from typing import Any

from chaos.sim.queue_checks import QueueOracle
from qq.machine.codec import encode_batch
from qq.machine.commands import NO_PRIORITY, NO_TTL, Command, DeclareQueue, Publish, PurgeQueue
from qq.machine.machine import QueueMachine

FULL = {"x-queue-type": "quorum", "x-max-length": 0, "x-overflow": "reject-publish"}
ROOMY = {**FULL, "x-max-length": 100}


def numbered(key: str, sequence: int, count: int) -> Publish:
    return Publish(1, 1, count, "", key, False, 1, [], NO_PRIORITY, NO_TTL, 0, "b", sequence)


def test_what_was_refused_is_new_also_below_what_was_admitted_since() -> None:
    """Seed 501442: the publisher was forgotten in the meantime, and so sent smaller numbers again."""
    findings: list[str] = []
    oracle, machine = QueueOracle(findings.append), QueueMachine()

    def entry(index: int, *commands: Command, sizes: int = 0) -> None:
        payload: Any = memoryview(b"".join(encode_batch(commands, [b"x"] * sizes)))
        effects = machine.apply_batch("n1", index, 0, 1_000, payload)
        oracle.batch(machine, "n1", index, 0, 1_000, payload, effects)
        oracle.entry_ended(machine, 1_000, machine.end_entry(1_000))

    for number, (name, arguments) in enumerate([("full", FULL), ("roomy", ROOMY)]):
        entry(1 + number, DeclareQueue(1, 1, name, False, True, False, False, False, arguments))
    entry(3, numbered("full", 14, 3), sizes=3)
    entry(4, numbered("roomy", 17, 2), sizes=2)
    entry(5, numbered("roomy", 15, 3), sizes=3)
    entry(6, PurgeQueue(2, 1, "roomy"))
    entry(7, numbered("roomy", 15, 2), sizes=2)
    assert oracle.fates["repeated"] == 3
    assert oracle.enqueued == 4
    assert findings == []
