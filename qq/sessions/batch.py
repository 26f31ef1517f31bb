"""A batch: what is about to go to the log together.

Invariant: a batch has room for BATCH_STEPS_MAX of cost and BATCH_BYTES_MAX of octets, or for one part that is larger.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

from qq.machine.handlers.cost_estimate import BATCH_STEPS_MAX
from qq.machine.protocol.codec import encode_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.runtime.ports import Buffer
    from qq.machine.protocol.commands import Command, Enqueue, Publish, StoreFragment

BATCH_BYTES_MAX = 256 * 1024
"""A batch of so many octets is full. Larger ones carry hardly more, and whoever comes next waits longer."""
LARGE_BYTES = 2 * 1024 * 1024
"""A message whose frames behind the content header have more octets is stored in fragments: nobody has to wait for all
of it."""
FRAGMENT_BYTES = 127 * 1024
"""The most octets of a fragment: a batch has room for two."""
STEP_BYTES = 200
"""Octets that count as a step, a microsecond, where shares and waiting are concerned: so long takes what a cluster does
for them, at some 200 MB/s."""


class Payer(Protocol):
    """Somebody who is stopped from asking for more than the log takes in, as a connection is."""

    def count_uncommitted(self, size: int, /) -> None:
        """Count octets that the log has yet to take in or, if negative, has taken in."""
        ...


class Unconfirmed(Protocol):
    """A publisher that waits for confirms."""

    def confirm(self, published: int, /) -> None:
        """Note that all up to this publish sequence number is safe, except what was refused before."""
        ...

    def refuse_unconfirmed(self, published: int, /) -> None:
        """Note that nobody knows the outcome of what is not confirmed up to this publish sequence number."""
        ...


class PartOutcome(Enum):
    """What became of a part that a batch was to take."""

    TAKEN = 0
    NO_ROOM = 1
    """The batch has no room for all of it; some of it may have been taken."""
    PUT_OFF = 2
    """Its price is not known yet, and no more routes are looked for in this pass of the event loop."""
    GOES_ON = 4
    """Some of it was taken, and there may be room for more."""
    REFUSED = 3
    NOT_YET = 5
    """It is charged for what it will cost, and is taken when its lane is next again."""


class Batch:
    """The commands and messages that are about to go to the log together."""

    def __init__(self, large_bytes: int = LARGE_BYTES) -> None:
        """Messages of more than `large_bytes` are stored in fragments of at most half of that, or FRAGMENT_BYTES."""
        self.large_bytes = large_bytes
        self.fragment_bytes = min(FRAGMENT_BYTES, large_bytes // 2)
        self._commands: list[Command] = []
        self._messages: list[Buffer] = []
        self.steps = 0
        """What the batch is expected to cost every node, in steps, without its octets."""
        self.bytes = 0
        self.confirms: dict[Unconfirmed, int] = {}
        """The last publish sequence number in the batch, for each publisher that waits for confirms."""
        self.asked_s: list[float] = []
        """When the runs of messages in it were asked for, each its first message."""
        self.asked_bytes: dict[Payer, int] = {}
        """How many of the batch's octets each payer has asked for."""
        self.callbacks: list[Callable[[], None]] = []
        """The functions that are called when the batch has been applied."""

    @property
    def is_empty(self) -> bool:
        return not (self._commands or self.callbacks)

    @property
    def is_full(self) -> bool:
        return self.steps >= BATCH_STEPS_MAX or self.bytes >= BATCH_BYTES_MAX

    @property
    def cost(self) -> int:
        """What the batch costs in steps, octets included."""
        return self.steps + self.bytes // STEP_BYTES

    def fits(self, steps: int, size: int) -> bool:
        """Whether the batch is within its limits with so many more steps and octets."""
        return self.steps + steps <= BATCH_STEPS_MAX and self.bytes + size <= BATCH_BYTES_MAX

    def has_room(self, steps: int, size: int) -> bool:
        """Whether another part may be added. A part that is larger than a batch has one for itself."""
        return self.fits(steps, size) or not self._commands

    def add(self, payer: Payer, command: Command, steps: int, size: int) -> None:
        self._commands.append(command)
        self._count(payer, steps, size)

    def publish(
        self,
        payer: Payer,
        command: Enqueue | Publish | StoreFragment,
        messages: Sequence[Buffer],
        steps: int,
        size: int,
    ) -> None:
        """Add a command and its messages."""
        self._commands.append(command)
        self._messages += messages
        self._count(payer, steps, size)

    def _count(self, payer: Payer, steps: int, size: int) -> None:
        self.steps += steps
        self.bytes += size
        self.asked_bytes[payer] = self.asked_bytes.get(payer, 0) + size

    def payload(self) -> Sequence[Buffer]:
        """The batch in the form in which it is submitted to the log."""
        return encode_batch(self._commands, self._messages)
