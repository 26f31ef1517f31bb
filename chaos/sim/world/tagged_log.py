"""The log of a simulated node as its broker sees it: without the tag at the start of each simulated batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from chaos.sim.world.compared_machines import TAG
from cluster.log.entry import (
    batches_of,
    compacted_parts,
    entry_time_ms,
    is_compacted,
    is_regular,
    make_batch,
    make_compacted,
    make_entry,
)

if TYPE_CHECKING:
    from chaos.sim.world.cluster import SimulatedNode
    from cluster.runtime.ports import Buffer


class Submit(Protocol):
    """Submits a batch with its tag for a node's present client, and returns its sequence."""

    def __call__(self, payload: Sequence[Buffer], *, may_wait: bool) -> int: ...


class TaggedLog:
    """A log that strips the tags for the sessions."""

    def __init__(self, node: SimulatedNode, submit: Submit) -> None:
        self._group = node.group
        self._submit = submit

    def propose(self, payload: Sequence[Buffer], weight: int = 0, *, may_wait: bool = False) -> int:  # noqa: ARG002
        return self._submit(payload, may_wait=may_wait)

    @property
    def applied_index(self) -> int:
        return self._group.applied_index

    def payload(self, index: int) -> bytes | None:
        entry = self._group.payload(index)
        return None if entry is None else _without_tags(entry)

    def read_job(self, indexes: Sequence[int], bytes_max: int) -> Callable[[], list[bytes]]:
        job = self._group.read_job(indexes, bytes_max)
        return lambda: [_without_tags(entry) for entry in job()]

    @property
    def can_read(self) -> bool:
        return self._group.can_read

    def read(self, done: Callable[[], None], failed: Callable[[], None]) -> None:
        self._group.read(done, failed)

    def send_message(self, peer: str, data: Sequence[Buffer]) -> bool:
        return self._group.send_message(peer, data)

    def receive_messages(self, receive: Callable[[str, bytes], None]) -> None:
        self._group.receive_messages(receive)

    def disk_failed(self, error: Exception) -> None:
        self._group.disk_failed(error)

    def why_undecided(self) -> str | None:
        return self._group.why_undecided()

    def undecided(self) -> Collection[str]:
        return self._group.undecided()


def _without_tags(entry: bytes) -> bytes:
    if is_compacted(entry):
        parts = compacted_parts(entry)
        return make_compacted({ordinal: bytes(part[TAG.size :]) for ordinal, part in parts.items()})
    if not is_regular(entry):
        return entry  # the first entry of a leader's term
    batches: list[Any] = []
    for view in batches_of(entry):
        payload = entry[view.start + TAG.size : view.end] if view.end > view.start else b""
        batches.append(make_batch(view.origin, view.incarnation, view.sequence, [payload], view.kind))
    return make_entry(entry_time_ms(entry), batches)
