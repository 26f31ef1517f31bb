"""The contract between a replicated state machine and the group that replicates it.

Invariant: a machine is a pure function of its inputs. The same calls in the same order leave every replica in the same
state with the same effects. So a machine has no clock (the time arrives with the entry), no randomness, no I/O, no
iteration over sets and no floats. A command that cannot be carried out yields an effect that says so. An exception, for
example from an unreadable batch, is a bug and stops the node (hazard H10), because the node must not confirm a batch
that it has not applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol


class FrozenCopy(Protocol):
    """An immutable copy of a machine's state at a single moment. Usable on any thread.

    A message is named by its place in the log: index of the entry, ordinal of the batch in the entry, ordinal of the
    message in the batch. A message is live while the state refers to it.
    """

    def pieces(self) -> Sequence[bytes]:
        """Return the bytes of `Machine.dump` at that moment, in pieces.

        Copying a large state into one string would hold up the other threads.
        """
        ...

    def counts(self, bounds: Sequence[int]) -> list[int]:
        """Return, for each i, the number of references to messages with bounds[i] <= index < bounds[i + 1].

        `bounds` ascend. A message that several queues hold is counted once for each queue.
        """
        ...

    def live(self, first: int, end: int) -> Mapping[int, Mapping[int, Sequence[tuple[int, int]]]]:
        """Return the live messages of the entries from `first` to before `end`, ascending by index, batch and message.

        The keys are indexes of entries with live messages. Each value maps the ordinal of a batch to ranges (first
        message, count). Ranges neither overlap nor touch.
        """
        ...


class Machine(Protocol):
    """The state machine that a group calls in the order of the log. Its effects are opaque to the group."""

    @property
    def versions(self) -> tuple[int, int]:
        """The lowest and the highest version of the state that this program can run.

        A version defines the effect of entries and the format of the state. A new machine begins at the lowest version.
        A node refuses a data directory whose version is outside this range.
        """
        ...

    @property
    def outages_since(self) -> int:
        """The lowest version of the state that lets entries declare outages."""
        ...

    @property
    def reads_since(self) -> int:
        """The lowest version of the state at which every program knows the messages of reads without an entry."""
        ...

    @property
    def losses_since(self) -> int:
        """The lowest version of the state whose configurations have the times of lost data directories."""
        ...

    @property
    def waiting_batches_since(self) -> int:
        """The lowest version of the state at which every program knows forwarded batches that may wait."""
        ...

    def raise_to(self, version: int) -> None:
        """Switch to `version`, one of `versions`, from the next entry on, because the log has agreed on it.

        Only this version decides how entries act and how the state is dumped, so programs with other highest versions
        agree.
        """
        ...

    def outage(self, length_ms: int) -> None:
        """Record that clients could not act for `length_ms` of the time since the last entry.

        The group calls it before the batches of the entry. `length_ms` is at most the time since the last entry.
        """
        ...

    def apply_batch(
        self, origin: str, index: int, ordinal: int, time_ms: int, payload: memoryview
    ) -> Sequence[Any]:
        """Apply a batch that node `origin` submitted, and return its effects.

        `index` is the Raft index of the entry and `ordinal` the batch's position in the entry. `time_ms` is the
        cluster's time, which never goes backwards from entry to entry.
        """
        ...

    def end_entry(self, time_ms: int) -> Sequence[Any]:
        """Do the work that is due at `time_ms`, and return its effects. Called once for each entry, after its batches.

        `time_ms` is the time that `apply_batch` got. A call may leave a part of the due work to the next entry.
        """
        ...

    def due_ms(self) -> int | None:
        """Return the cluster's time in ms when an entry without batches will do work, or None for never.

        The leader asks in every turn, and appends such an entry at that time. A time in the past means now. Each such
        entry must make progress, because the leader appends one entry after the next until no work is due.
        """
        ...

    def concerned(self, effects: Sequence[Any]) -> Iterable[str]:
        """Return the nodes with clients that wait for these effects. A node may appear several times."""
        ...

    def origin_down(self, origin: str, time_ms: int, *, evicted: bool) -> Sequence[Any]:
        """Release all that `origin` held, and return the effects.

        The node has restarted or, with `evicted`, the cluster has evicted it. `time_ms` is the time of the entry that
        says so.
        """
        ...

    def outstanding(self, origin: str) -> Sequence[Any]:
        """Return, as effects, all deliveries and answers that the state owes to the sessions of `origin`.

        A node calls it after it has installed a peer's state, because it never computed the effects of the skipped
        entries. The node may have carried out a part of these effects before.
        """
        ...

    def compact(self, payload: memoryview, messages: Sequence[tuple[int, int]]) -> bytes:
        """Return the batch reduced to `messages`, ranges (first ordinal, count) that ascend. Usable on any thread.

        `payload` may also be the result of an earlier call. The ordinals are always those of the submitted batch.
        """
        ...

    def freeze(self) -> FrozenCopy:
        """Return an immutable copy of the current state without copying most of it. Usable on any thread."""
        ...

    def dump(self) -> bytes:
        """Return the whole state in the format of the current version. Equal states give equal bytes."""
        ...

    def read(self, data: bytes) -> Any:
        """Parse a dumped state of any version in `versions`, for `adopt`. Usable on any thread.

        The machine's own state is unchanged. The call lets other threads run in between, however large the state is.
        """
        ...

    def adopt(self, state: Any) -> None:
        """Replace the state by a parsed state, in short time.

        The caller calls `raise_to` with the agreed version afterwards.
        """
        ...

    def digest(self) -> str:
        """Return a short hash of the state. Equal states have equal digests."""
        ...
