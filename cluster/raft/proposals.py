"""Batches on their way into the log: pending at the node that submitted them, and waiting at the leader.

Invariant: a batch leaves `PendingProposals` only after this node has seen it applied, and every new leader gets all
pending batches again. A leader proposes each batch of a node once in its term, in order. Between nodes the leader is
fair (start-time fair queueing): next is the node with the least proposed so far. So no node waits for all batches that
a second node has forwarded.

A batch that may wait, because no client waits for its effect, is part of the leader's next entry. Without another batch
it gets an entry after `COMPANY_S`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from cluster.log.entry import (
    BATCH_BYTES_MAX,
    BATCHES_MAX,
    KIND_EVICTION,
    KIND_PROPOSED,
    WEIGHT_MAX,
    ProposedBatch,
    batch_at,
    make_batch,
    read_batches,
)
from cluster.runtime.fair_queue import FairQueue

if TYPE_CHECKING:
    from cluster.runtime.ports import Buffer


class LeaderTerm(NamedTuple):
    """A leader and its term; `leader` is None while no leader is known."""

    leader: str | None
    term: int


COMPANY_S = 0.002
"""Seconds for which the leader keeps a batch that may wait, if it has no other batch for an entry."""

_NO_LEADER = LeaderTerm(None, 0)

_PROPOSED_MAX = BATCHES_MAX - 1
"""Largest number of batches taken for an entry. It leaves room for a further batch, which declares an outage."""


class PendingProposals:
    """The submitted batches of this node that it has not yet seen applied, oldest first.

    Batches belong to the current incarnation of the node.
    """

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.incarnation = 0
        self.pending_bytes = 0
        self._pending: deque[ProposedBatch] = deque()
        self._next_sequence = 1
        self._sent_sequence = 0
        self._sent_to = _NO_LEADER

    def __len__(self) -> int:
        """Return the number of pending batches."""
        return len(self._pending)

    def begin(self, incarnation: int) -> None:
        """Begin an incarnation: drop all pending batches, and number batches from 1 again."""
        self.incarnation = incarnation
        self._pending.clear()
        self.pending_bytes = 0
        self._next_sequence = 1
        self._sent_to = _NO_LEADER

    def add(self, payload: Sequence[Buffer], weight: int = 0, *, may_wait: bool = False) -> int:
        """Number a batch, keep it, and return its sequence. Raises ValueError if it is too large for an entry."""
        batch = make_batch(
            self.origin,
            self.incarnation,
            self._next_sequence,
            payload,
            weight=min(weight, WEIGHT_MAX),
            may_wait=may_wait,
        )
        if batch.size > BATCH_BYTES_MAX:
            raise ValueError(f"a batch of {batch.size} bytes is above the limit of {BATCH_BYTES_MAX}")
        self._next_sequence += 1
        self._pending.append(batch)
        self.pending_bytes += batch.size
        return batch.sequence

    def applied(self, sequence: int) -> None:
        """Remove the batches up to `sequence`, because they are applied."""
        while self._pending and self._pending[0].sequence <= sequence:
            self.pending_bytes -= self._pending.popleft().size

    def mark_unsent(self, peer: str) -> None:
        """Treat all batches sent to `peer` as unsent, because they may have been lost with the old link."""
        if self._sent_to.leader == peer:
            self._sent_to = _NO_LEADER

    def has_unsent(self, leader_term: LeaderTerm) -> bool:
        """Return whether some batches have not yet been sent to this leader in this term."""
        if not self._pending:
            return False
        first = self._pending[0].sequence
        if leader_term != self._sent_to:
            self._sent_to = leader_term
            self._sent_sequence = first - 1
        # A batch that the last leader proposed may be applied before it was sent to this leader.
        self._sent_sequence = max(self._sent_sequence, first - 1)
        return self._sent_sequence < self._pending[-1].sequence

    def take_unsent(self, bytes_max: int | None = None) -> list[ProposedBatch]:
        """Return the next unsent batches for the leader of the last `has_unsent` call, and count them as sent.

        They have about `bytes_max` together, if that is given. At least one batch is returned.
        """
        batches: list[ProposedBatch] = []
        size = 0
        for position in range(self._sent_sequence + 1 - self._pending[0].sequence, len(self._pending)):
            batch = self._pending[position]
            size += batch.size
            if batches and bytes_max is not None and size > bytes_max:
                break
            batches.append(batch)
            self._sent_sequence = batch.sequence
        return batches


class _Submitter:
    """The batches of a node that the leader has accepted and not yet proposed, in order."""

    __slots__ = ("batches", "is_waiting", "time")

    def __init__(self) -> None:
        self.batches: deque[ProposedBatch] = deque()
        self.is_waiting = False
        self.time: float = 0
        """Entries proposed for this node, counted by bytes or by weight, whichever fills more of an entry."""


class ProposalQueue:
    """The batches that a leader has accepted and not yet proposed."""

    def __init__(self) -> None:
        self._submitters: dict[str, _Submitter] = {}
        self._queue: FairQueue[_Submitter] = FairQueue()
        """The nodes with waiting batches."""
        self._accepted: dict[str, tuple[int, int]] = {}
        self._evicted: set[tuple[str, int]] = set()
        self._is_due = False
        """Whether some batch must not wait for company."""
        self._due_s = math.inf
        """Time at which batches that may wait need an entry of their own, on the monotonic clock."""

    def __bool__(self) -> bool:
        return bool(self._queue)

    def clear(self) -> None:
        """Drop all batches, because a leadership begins or ends. The submitting nodes send them to the next leader."""
        self._submitters.clear()
        self._queue = FairQueue()
        self._accepted.clear()
        self._evicted.clear()
        self._is_due, self._due_s = False, math.inf

    def wait_s(self, now_s: float) -> float:
        """Return the seconds for which all waiting batches may still wait for company; 0 if an entry is due now."""
        if self._is_due:
            return 0.0
        self._due_s = min(self._due_s, now_s + COMPANY_S)
        return max(self._due_s - now_s, 0.0)

    def extend(self, leader: str, batches: Sequence[ProposedBatch]) -> None:
        """Accept batches that the leader itself has submitted."""
        for batch in batches:
            self._add(leader, batch)

    def accept(self, peer: str, data: bytes, *, may_wait: bool = False) -> None:
        """Accept batches that `peer` forwarded, without repeats. Raises `MalformedEntry`, and then accepts no batch."""
        for view in list(read_batches(data, 0)):
            incarnation, sequence = self._accepted.get(view.origin, (None, 0))
            # Each change of the incarnation is a new process, even to a lower number: a removed node may have lost its
            # directory and have its clock set back, while the log never had a batch of the earlier process.
            is_new = view.incarnation != incarnation or view.sequence > sequence
            if view.kind == KIND_PROPOSED and view.origin == peer and is_new:
                self._accepted[view.origin] = (view.incarnation, view.sequence)
                self._add(view.origin, batch_at(data, view, may_wait=may_wait))

    def evict(self, origin: str, incarnation: int) -> bool:
        """Propose to evict this incarnation of a node. Return False if that is proposed already."""
        if (origin, incarnation) in self._evicted:
            return False
        self._evicted.add((origin, incarnation))
        self._add(origin, make_batch(origin, incarnation, 0, [], KIND_EVICTION))
        return True

    def next_entry(self, bytes_max: int, weight_max: int = WEIGHT_MAX) -> list[ProposedBatch]:
        """Remove and return the batches of the next entry: at least one, and more while both limits hold."""
        batches: list[ProposedBatch] = []
        queue = self._queue
        size = weight = 0
        while queue and len(batches) < _PROPOSED_MAX:
            waiting = queue.peek().batches
            batch = waiting[0]
            size += batch.size
            weight += batch.weight
            if batches and (size > bytes_max or weight > weight_max):
                break
            batches.append(batch)
            waiting.popleft()
            submitter = queue.next()
            submitter.time += max(batch.size / bytes_max, batch.weight / weight_max)
            submitter.is_waiting = bool(waiting)
            if waiting:
                queue.push(submitter)
        self._is_due, self._due_s = bool(queue), math.inf
        return batches

    def _add(self, origin: str, batch: ProposedBatch) -> None:
        submitter = self._submitters.get(origin)
        if submitter is None:
            submitter = self._submitters[origin] = _Submitter()
        submitter.batches.append(batch)
        self._is_due = self._is_due or not batch.may_wait
        if not submitter.is_waiting:
            self._queue.enter(submitter)
