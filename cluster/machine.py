"""The contract between a replicated state machine and the group that replicates it.

Invariant: a machine is a pure function of what it was given before. The same calls in the same order leave every
replica in the same state with the same effects: no clock (time arrives with the entry), no randomness, no I/O, no
iteration over sets, no floats. A command that cannot be carried out yields an effect that says so. What raises, such as
a batch that cannot be read, is a fault of ours and stops the node (hazard H10): whoever went on would confirm what it
has not done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol


class FrozenCopy(Protocol):
    """A machine's state at one moment, whatever happens to the machine afterwards. Usable on any thread.

    Messages are named by their place in the log: index of the entry, ordinal of the batch in it, ordinal of the message
    in the batch. A message is live while something in the state refers to it.
    """

    def pieces(self) -> Sequence[bytes]:
        """What `Machine.dump` gave at that moment, in pieces: to copy all of a large state holds up other threads."""
        ...

    def counts(self, bounds: Sequence[int]) -> list[int]:
        """How many references to messages there are with bounds[i] <= index < bounds[i + 1], for each i.

        `bounds` ascend. A message that several queues hold is counted for each of them.
        """
        ...

    def live(self, first: int, end: int) -> Mapping[int, Mapping[int, Sequence[tuple[int, int]]]]:
        """The live messages of the entries from `first` to before `end`, ascending by index, batch and message.

        Each entry that has any maps the ordinals of its batches to (first message, count); those ranges neither overlap
        nor touch.
        """
        ...


class Machine(Protocol):
    """The state machine that a group calls in the order of the log. Its effects are opaque to the group."""

    @property
    def versions(self) -> tuple[int, int]:
        """The lowest and the highest version of the state that this program can run; a node refuses other directories.

        A version says what entries do, and how the state is written. A new machine goes by the lowest one.
        """
        ...

    @property
    def outages_since(self) -> int:
        """The version of the state since which entries tell of outages."""
        ...

    def raise_to(self, version: int) -> None:
        """Go by this version of the state, one of `versions`, from the next entry on: the log has agreed on it.

        What entries do, and how the state is dumped, goes by it alone: programs that can run others do the same.
        """
        ...

    def outage(self, length_ms: int) -> None:
        """Take note that clients could not act for so long of the time since the last entry; called before its batches.

        `length_ms` is never longer than that time was.
        """
        ...

    def apply_batch(
        self, origin: str, index: int, ordinal: int, time_ms: int, payload: memoryview
    ) -> Sequence[Any]:
        """Carry out one batch that node `origin` submitted.

        `index` is the Raft index of the entry, `ordinal` the batch's position in it, `time_ms` the cluster's time,
        which never goes backwards from entry to entry.
        """
        ...

    def end_entry(self, time_ms: int) -> Sequence[Any]:
        """Do what is due by now; called once for each entry, after its batches. Returns the effects.

        `time_ms` is that of `apply_batch`. One call may leave a part of what is due to the next.
        """
        ...

    def due_ms(self) -> int | None:
        """The cluster's time from which on an entry without any batch would do something; None for never.

        A leader asks for it in every turn, and appends such an entry then. A time that is past is as good as now, but
        each such entry must get something done: there will be one after the other until nothing is due.
        """
        ...

    def concerned(self, effects: Sequence[Any]) -> Iterable[str]:
        """The nodes that somebody waits at for one of these effects, perhaps several times each."""
        ...

    def origin_down(self, origin: str, time_ms: int, *, expelled: bool) -> Sequence[Any]:
        """Give up everything that `origin` held. Returns the effects.

        The node restarted or, with `expelled`, the cluster stopped waiting for it. `time_ms` is the time of the entry
        that tells it.
        """
        ...

    def outstanding(self, origin: str) -> Sequence[Any]:
        """What the sessions of `origin` are owed according to the state, as effects.

        This is for a node that was given the state of another one, and so never computed the effects of the entries
        before it. It may have had some of them earlier.
        """
        ...

    def compact(self, payload: memoryview, messages: Sequence[tuple[int, int]]) -> bytes:
        """Reduce a batch to some of its messages, given as (first ordinal, count), ascending. Usable on any thread.

        `payload` may also be what an earlier call returned; the ordinals are those of the batch as it was submitted.
        """
        ...

    def freeze(self) -> FrozenCopy:
        """The state as it is now, without copying much of it: the rest can be done on another thread."""
        ...

    def dump(self) -> bytes:
        """The whole state, as the version wants it that the machine goes by; equal states give equal bytes."""
        ...

    def read(self, data: bytes) -> Any:
        """A state of any of `versions` that was dumped, to be given to `adopt`. Usable on any thread.

        Nothing is changed. It lets other threads go on in between, however large the state is.
        """
        ...

    def adopt(self, state: Any) -> None:
        """Replace the state by one that was read, soon; which version is agreed on is told behind it."""
        ...

    def digest(self) -> str:
        """A short name of the state: equal states, equal digests."""
        ...
