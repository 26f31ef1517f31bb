"""A batch: the commands and messages that are submitted to the log together.

Invariant: a batch has at most BATCH_STEPS_MAX of cost and BATCH_BYTES_MAX octets, or consists of a single larger part.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

from qq.machine.handlers.cost_estimate import BATCH_STEPS_MAX
from qq.machine.protocol.codec import encode_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.runtime.ports import Buffer
    from qq.machine.protocol.commands import Command, Enqueue, Publish, StageMessages, StoreFragment

BATCH_BYTES_MAX = 256 * 1024
"""Octets at which a batch is full. A larger batch hardly raises throughput, and makes the next requests wait longer."""
LARGE_BYTES = 2 * 1024 * 1024
"""Octets behind the content header above which a message is stored in fragments, so that no client waits for all of
it."""
FRAGMENT_BYTES = 127 * 1024
"""Octets of a fragment, at most. A batch has room for two."""
STEP_BYTES = 200
"""Octets that cost as much as a step (a microsecond), for shares and waiting: a cluster carries some 200 MB/s."""


class Payer(Protocol):
    """The source of requests, such as a connection, that must pause while the log has too much of it to take in."""

    def count_uncommitted(self, size: int, /) -> None:
        """Add `size` to the octets that the log has yet to take in. A negative size subtracts octets taken in."""
        ...


class Unconfirmed(Protocol):
    """A publisher that waits for confirms."""

    def confirm(self, published: int, /) -> None:
        """Confirm all publishes up to this sequence number, except those that were refused before."""
        ...

    def refuse_unconfirmed(self, published: int, /) -> None:
        """Refuse all unconfirmed publishes up to this sequence number, because their outcome is unknown."""
        ...


class PartOutcome(Enum):
    """The result of offering a part to a batch."""

    TAKEN = 0
    NO_ROOM = 1
    """The batch has no room for all of the part. Some of it may have been taken."""
    PUT_OFF = 2
    """The part's price is unknown, and this pass of the event loop searches no more routes."""
    PARTLY_TAKEN = 4
    """Some of the part was taken, and there may be room for more."""
    REFUSED = 3
    CHARGED = 5
    """The part's cost is charged to its lane now. The part is taken when the lane is next again."""


class Batch:
    """The commands and messages that are submitted to the log together."""

    def __init__(self, large_bytes: int = LARGE_BYTES, steps_max: int | None = None) -> None:
        """Create an empty batch that is full at `steps_max` (by default BATCH_STEPS_MAX).

        Messages of more than `large_bytes` are stored in fragments of at most half of that, or FRAGMENT_BYTES.
        """
        self._steps_max = BATCH_STEPS_MAX if steps_max is None else steps_max
        self.large_bytes = large_bytes
        self.fragment_bytes = min(FRAGMENT_BYTES, large_bytes // 2)
        self._commands: list[Command] = []
        self._messages: list[Buffer] = []
        self.steps = 0
        """The estimated cost for every node, in steps, without the cost of the batch's octets."""
        self.bytes = 0
        self.confirms: dict[Unconfirmed, int] = {}
        """The last publish sequence number in the batch, for each publisher that waits for confirms."""
        self.requested_s: list[float] = []
        """Monotonic times, in seconds, at which the message runs in this batch were requested: of each run, its first
        message."""
        self.bytes_by_payer: dict[Payer, int] = {}
        """The batch's octets by the payer that requested them."""
        self.callbacks: list[Callable[[], None]] = []
        """Functions to call when the batch has been applied."""

    @property
    def is_empty(self) -> bool:
        return not (self._commands or self.callbacks)

    @property
    def is_full(self) -> bool:
        return self.steps >= self._steps_max or self.bytes >= BATCH_BYTES_MAX

    @property
    def cost(self) -> int:
        """The cost of the batch in steps, octets included."""
        return self.steps + self.bytes // STEP_BYTES

    def fits(self, steps: int, size: int) -> bool:
        """Return whether the batch stays within its limits with `steps` and `size` octets added."""
        return self.steps + steps <= self._steps_max and self.bytes + size <= BATCH_BYTES_MAX

    def has_room(self, steps: int, size: int) -> bool:
        """Return whether another part may be added. A part that is larger than a batch needs an empty batch."""
        return self.fits(steps, size) or not self._commands

    def add(self, payer: Payer, command: Command, steps: int, size: int) -> None:
        self._commands.append(command)
        self.count(payer, steps, size)

    def publish(
        self,
        payer: Payer,
        command: Enqueue | Publish | StageMessages | StoreFragment,
        messages: Sequence[Buffer],
        steps: int,
        size: int,
    ) -> None:
        """Add a command and its messages."""
        self._commands.append(command)
        self._messages += messages
        self.count(payer, steps, size)

    def count(self, payer: Payer, steps: int, size: int) -> None:
        """Add to the cost of the batch."""
        self.steps += steps
        self.bytes += size
        self.bytes_by_payer[payer] = self.bytes_by_payer.get(payer, 0) + size

    def payload(self) -> Sequence[Buffer]:
        """Return the batch in the encoding that is submitted to the log."""
        return encode_batch(self._commands, self._messages)
