"""Submissions on their way into the log: at the node that made them, and at the leader that proposes them.

Invariant: nothing leaves `PendingSubmissions` before it is seen applied, and a new leader gets everything again; a
leader proposes the batches of one node once in its reign, in their order. Between nodes the leader is fair: the one is
next of which it has proposed least (start-time fair queueing), so that nobody waits for all that another node has
forwarded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from cluster.log.entry import (
    BATCH_BYTES_MAX,
    BATCHES_MAX,
    KIND_EXPEL,
    KIND_SUBMITTED,
    WEIGHT_MAX,
    SubmittedBatch,
    batch_at,
    make_batch,
    read_batches,
)

if TYPE_CHECKING:
    from cluster.runtime.ports import Buffer


class Reign(NamedTuple):
    """A leader and its term; `leader` is None while none is known."""

    leader: str | None
    term: int


_NOBODY = Reign(None, 0)

_PROPOSED_MAX = BATCHES_MAX - 1
"""How many batches are taken for an entry: one more may declare an outage."""


class PendingSubmissions:
    """The batches of this node under one incarnation after the other, oldest first, until they are seen applied."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.incarnation = 0
        self.pending_bytes = 0
        self._pending: deque[SubmittedBatch] = deque()
        self._next_sequence = 1
        self._sent_sequence = 0
        self._sent_to = _NOBODY

    def __len__(self) -> int:
        """Count the batches that are pending."""
        return len(self._pending)

    def begin(self, incarnation: int) -> None:
        """Begin an incarnation: drop what is pending, and number batches from 1 again."""
        self.incarnation = incarnation
        self._pending.clear()
        self.pending_bytes = 0
        self._next_sequence = 1
        self._sent_to = _NOBODY

    def add(self, payload: Sequence[Buffer], weight: int = 0) -> int:
        """Number a batch; returns its sequence. Raises ValueError if it is too large for an entry."""
        batch = make_batch(
            self.origin, self.incarnation, self._next_sequence, payload, weight=min(weight, WEIGHT_MAX)
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

    def link_is_new(self, peer: str) -> None:
        """Count what was sent to `peer` as not sent, because it may not have arrived."""
        if self._sent_to.leader == peer:
            self._sent_to = _NOBODY

    def has_unsent(self, reign: Reign) -> bool:
        """Whether there are batches that this leader has not been sent in this term."""
        if not self._pending:
            return False
        first = self._pending[0].sequence
        if reign != self._sent_to:
            self._sent_to = reign
            self._sent_sequence = first - 1
        # Batches that the last leader had proposed may have been applied before this one was sent them.
        self._sent_sequence = max(self._sent_sequence, first - 1)
        return self._sent_sequence < self._pending[-1].sequence

    def take_unsent(self, bytes_max: int | None = None) -> list[SubmittedBatch]:
        """Return the next batches for the leader that `has_unsent` was asked about, and count them as sent.

        They are about `bytes_max` together, if that is given, and at least one.
        """
        batches: list[SubmittedBatch] = []
        size = 0
        for position in range(self._sent_sequence + 1 - self._pending[0].sequence, len(self._pending)):
            batch = self._pending[position]
            size += batch.size
            if batches and bytes_max is not None and size > bytes_max:
                break
            batches.append(batch)
            self._sent_sequence = batch.sequence
        return batches


class Proposals:
    """The batches that a leader has taken in and has not proposed yet."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[SubmittedBatch]] = {}
        """The batches of each node that has some, in their order."""
        self._times: dict[str, float] = {}
        """How much was proposed of each node, in entries, by what fills more of them: octets or weight."""
        self._time = 0.0
        """The time of the node that had got farthest when its turn came."""
        self._accepted: dict[str, tuple[int, int]] = {}
        self._expelled: set[tuple[str, int]] = set()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def clear(self) -> None:
        """Drop everything, because a reign begins or ends: whoever submitted it sends it to the next leader."""
        self._waiting.clear()
        self._times.clear()
        self._time = 0.0
        self._accepted.clear()
        self._expelled.clear()

    def extend(self, leader: str, batches: Sequence[SubmittedBatch]) -> None:
        """Take in batches that the leader itself has submitted."""
        for batch in batches:
            self._of(leader).append(batch)

    def take_in(self, peer: str, data: bytes) -> None:
        """Take in what `peer` forwarded, without repeats. Raises `MalformedEntry`, and then nothing is taken in."""
        for view in list(read_batches(data, 0)):
            incarnation, sequence = self._accepted.get(view.origin, (None, 0))
            # Another incarnation is another life, also with a lower number: a node that was removed may have lost its
            # directory, and its clock gone back, and the log never had a batch of the life before.
            is_new = view.incarnation != incarnation or view.sequence > sequence
            if view.kind == KIND_SUBMITTED and view.origin == peer and is_new:
                self._accepted[view.origin] = (view.incarnation, view.sequence)
                self._of(view.origin).append(batch_at(data, view))

    def expel(self, origin: str, incarnation: int) -> bool:
        """Propose to expel this incarnation of a node; False if that is proposed already."""
        if (origin, incarnation) in self._expelled:
            return False
        self._expelled.add((origin, incarnation))
        self._of(origin).append(make_batch(origin, incarnation, 0, [], KIND_EXPEL))
        return True

    def next_entry(self, bytes_max: int, weight_max: int = WEIGHT_MAX) -> list[SubmittedBatch]:
        """Remove and return the batches of the next entry: at least one, more only up to both limits."""
        batches: list[SubmittedBatch] = []
        size = weight = 0
        while self._waiting and len(batches) < _PROPOSED_MAX:
            origin = min(self._waiting, key=self._times.__getitem__)
            batch = self._waiting[origin][0]
            size += batch.size
            weight += batch.weight
            if batches and (size > bytes_max or weight > weight_max):
                break
            batches.append(batch)
            self._propose(origin, max(batch.size / bytes_max, batch.weight / weight_max))
        return batches

    def _of(self, origin: str) -> deque[SubmittedBatch]:
        """The batches of a node that wait, to which one is about to be added."""
        waiting = self._waiting.get(origin)
        if waiting is None:
            waiting = self._waiting[origin] = deque()
            self._times[origin] = max(self._times.get(origin, 0.0), self._time)
        return waiting

    def _propose(self, origin: str, share: float) -> None:
        """Take a node's next batch, which is this share of an entry."""
        self._time = max(self._time, self._times[origin])
        self._times[origin] += share
        waiting = self._waiting.pop(origin)
        waiting.popleft()
        if waiting:
            self._waiting[origin] = waiting  # behind those that are as far
