"""The broker's dead letters on a simulated node: production code, as `qq/sessions/broker.py` drives it.

Lives here: what stands between it and the simulation, whose batches begin with a tag. Not here: which messages die
(the machine), what is right (queue_checks.py).

Law: there is one for each process life; it goes on as a new incarnation goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from chaos.sim.cluster import NodeEvents
from chaos.sim.watched import TAG
from cluster.entry import (
    batches_of,
    compacted_parts,
    entry_time_ms,
    is_compacted,
    is_regular,
    make_batch,
    make_compacted,
    make_entry,
)
from qq.sessions.dead_letters import DeadLetters
from qq.sessions.entries import Entries
from qq.sessions.submissions import Submissions

if TYPE_CHECKING:
    from chaos.sim.cluster import SimulatedNode
    from cluster.ports import Buffer
    from qq.machine.machine import QueueMachine


class SimulatedDeadLetters:
    """What a node does for messages that have died while it leads."""

    def __init__(self, node: SimulatedNode, submit: Callable[[Sequence[Buffer]], int]) -> None:
        log = TaggedLog(node, submit)
        machine = cast("QueueMachine", node.machine.inner)
        self._submissions = Submissions(node.name, log, machine, node.runtime, publish_timeout_s=0.0)
        entries = Entries([log], node.disk)
        self._dead_letters = DeadLetters(machine, self._submissions, entries, node.runtime)
        self._name = node.name
        self._leader: str | None = None

    def confirmed(self, sequence: int) -> None:
        self._submissions.applied(sequence)

    def entry_applied(self) -> None:
        self._submissions.entry_applied()
        self._dead_letters.turn()

    def leader_changed(self, leader: str | None) -> None:
        if leader is None or leader == self._leader:
            return
        self._leader = leader
        self._dead_letters.lead(leader == self._name)

    def resumed(self, sequence: int) -> None:
        self._submissions.applied(sequence, unseen=True)

    def expelled(self) -> None:
        self._submissions.give_up()


class DeadLetterPumps(NodeEvents):
    """What the latest life of each node does for dead messages; `submit` is how a node submits."""

    def __init__(self, submit: Callable[[SimulatedNode, Sequence[Buffer]], int]) -> None:
        self._submit = submit
        self._pumps: dict[str, SimulatedDeadLetters] = {}

    def started(self, node: SimulatedNode) -> None:
        self._pumps[node.name] = SimulatedDeadLetters(node, partial(self._submit, node))

    def expelled(self, node: SimulatedNode) -> None:
        self._pumps[node.name].expelled()

    def confirmed(self, node: SimulatedNode, sequence: int) -> None:
        self._pumps[node.name].confirmed(sequence)

    def entry_applied(self, node: SimulatedNode) -> None:
        self._pumps[node.name].entry_applied()

    def leader_changed(self, node: SimulatedNode, leader: str | None) -> None:
        self._pumps[node.name].leader_changed(leader)

    def resumed(self, node: SimulatedNode, sequence: int, outstanding: Sequence[Any]) -> None:  # noqa: ARG002
        self._pumps[node.name].resumed(sequence)


class TaggedLog:
    """A log without tags, as far as the sessions look."""

    def __init__(self, node: SimulatedNode, submit: Callable[[Sequence[Buffer]], int]) -> None:
        self._group = node.group
        self._submit = submit

    def submit(self, payload: Sequence[Buffer], weight: int = 0) -> int:  # noqa: ARG002
        return self._submit(payload)

    @property
    def last_index(self) -> int:
        return self._group.last_index

    def payload(self, index: int) -> bytes | None:
        entry = self._group.payload(index)
        return None if entry is None else _without_tags(entry)

    def read_job(self, indexes: Sequence[int], bytes_max: int) -> Callable[[], list[bytes]]:
        job = self._group.read_job(indexes, bytes_max)
        return lambda: [_without_tags(entry) for entry in job()]

    def disk_failed(self, error: Exception) -> None:
        self._group.disk_failed(error)


def _without_tags(entry: bytes) -> bytes:
    if is_compacted(entry):
        parts = compacted_parts(entry)
        return make_compacted({ordinal: bytes(part[TAG.size :]) for ordinal, part in parts.items()})
    if not is_regular(entry):
        return entry  # the one with which a leader begins
    batches: list[Any] = []
    for view in batches_of(entry):
        payload = entry[view.start + TAG.size : view.end] if view.end > view.start else b""
        batches.append(make_batch(view.origin, view.incarnation, view.sequence, [payload], view.kind))
    return make_entry(entry_time_ms(entry), batches)
