"""Apply committed entries to the replicated state, and return the effects for this node.

Invariant: each batch takes effect at most once and in order, and all replicas act alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from cluster.configuration.configuration import configuration_time_ms, read_configuration
from cluster.log.entry import KIND_EVICTION, KIND_OUTAGE, BatchView, batches_of, entry_time_ms
from cluster.state.dedup import Admission

if TYPE_CHECKING:
    from cluster.raft.proposals import PendingProposals
    from cluster.state.group_state import GroupState


class Confirmed(NamedTuple):
    """Effect made by the group: this node's batch `sequence` has been applied, exactly once."""

    sequence: int


class Evicted(NamedTuple):
    """Effect made by the group: the cluster has evicted this node, which continues as a new incarnation.

    Batches of the old incarnation that this node has not seen applied have an unknown outcome.
    """


class Outcome(NamedTuple):
    """The consequences of an applied entry."""

    effects: list[Any]
    evicted_at: int | None
    """Position of `Evicted` among the effects, or `None`."""
    awaited_by: list[str]
    """Nodes with clients that wait for the entry itself, whatever its effects. A node may appear several times."""


class Applier:
    """Applies entries to a state, and removes applied batches from this node's pending proposals."""

    def __init__(self, state: GroupState, pending: PendingProposals) -> None:
        self._state = state
        self._pending = pending

    def apply_entry(self, index: int, payload: bytes) -> Outcome:
        """Apply an entry with batches, and return its consequences."""
        state, view = self._state, memoryview(payload)
        origins: list[str] = []
        elapsed_ms = self._advance(entry_time_ms(payload))
        effects: list[Any] = []
        evicted_at = None
        for ordinal, batch in enumerate(batches_of(payload)):
            if batch.kind == KIND_OUTAGE:
                state.machine.outage(min(batch.sequence, elapsed_ms))
                continue
            origins.append(batch.origin)
            if batch.kind != KIND_EVICTION:
                self._batch(index, ordinal, batch, view, effects)
            elif self._evict(batch.origin, batch.incarnation, effects):
                evicted_at = len(effects) - 1
        effects.extend(state.machine.end_entry(state.time_ms))
        return Outcome(effects, evicted_at, origins)

    def apply_configuration(self, payload: bytes) -> Outcome:
        """Apply an entry with a configuration. Nodes that are no members any more are evicted.

        Such an entry cannot declare an outage, and may be the first of a leadership. So all the time since the previous
        entry counts as an outage, because too long an outage does no harm.

        The version in the configuration is that of the later entries. Raises OtherVersion, also if the entries before
        the first configuration have a version that this program cannot run.
        """
        state = self._state
        state.machine.outage(self._advance(configuration_time_ms(payload)))
        before, state.configuration = state.configuration, read_configuration(payload)
        if before is None:
            # The first configuration is also a raise, so the entries before it have the next lower version.
            state.check_version(state.configuration.version - 1)
        effects: list[Any] = []
        evicted_at = None
        for name, origin in state.origins.living():
            old, new = before and before.member(name), state.configuration.member(name)
            if new is not None and (old is None or old.id in (None, new.id)):
                continue
            if self._evict(name, origin.incarnation, effects):
                evicted_at = len(effects) - 1
        effects.extend(state.machine.end_entry(state.time_ms))
        state.go_by_agreed_version()
        return Outcome(effects, evicted_at, list(state.configuration.membership.members))

    def _advance(self, time_ms: int) -> int:
        """Put the cluster's time forward to that of an entry. Return the difference in milliseconds."""
        state = self._state
        before_ms, state.time_ms = state.time_ms, max(state.time_ms, time_ms)
        return state.time_ms - before_ms

    def _batch(
        self, index: int, ordinal: int, batch: BatchView, payload: memoryview, effects: list[Any]
    ) -> None:
        state = self._state
        if state.configuration is not None and batch.origin not in state.configuration.membership.members:
            return
        admission = state.origins.admit(batch.origin, batch.incarnation, batch.sequence)
        if admission is Admission.DROP:
            return
        if admission is Admission.APPLY_AFTER_RESTART:
            effects.extend(state.machine.origin_down(batch.origin, state.time_ms, evicted=False))
        if batch.end > batch.start:
            part = payload[batch.start : batch.end]
            effects.extend(state.machine.apply_batch(batch.origin, index, ordinal, state.time_ms, part))
        own = self._pending
        if batch.origin == own.origin and batch.incarnation == own.incarnation:
            own.applied(batch.sequence)
            effects.append(Confirmed(batch.sequence))

    def _evict(self, name: str, incarnation: int, effects: list[Any]) -> bool:
        """Evict this incarnation of a node, if it is the current incarnation. Return True if the node is this node."""
        state = self._state
        if not state.origins.evict(name, incarnation):
            return False
        effects.extend(state.machine.origin_down(name, state.time_ms, evicted=True))
        if (name, incarnation) != (self._pending.origin, self._pending.incarnation):
            return False
        effects.append(Evicted())
        return True
