"""Large messages in fragments, so that no client has to wait for a whole large message.

In a single batch, the octets of a large message would delay all clients behind it in the log. So its node stores them
piece by piece, in batches of their own (`StoreFragment`), between the batches of other clients. Then it publishes the
message with its content header alone, followed by the stored fragments (`JoinFragments`).

Invariant: fragments are kept while the state refers to their message, and a dump holds only those. So it has no effect
when a node forgets unneeded fragments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence


Place = tuple[int, int]
"""Index and slot of a message."""
Slots = Mapping[int, Iterable[int]]
"""Log index -> slots of messages."""


class Fragment(NamedTuple):
    """The place in the log of some octets of a large message, stored as if they were a message of their own."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here
    slot: int
    size: int
    """Octets."""


class FragmentsRow(NamedTuple):
    """A message that was stored in fragments, in a dump."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here
    slot: int
    fragments: Sequence[Fragment]

    @classmethod
    def read(cls, written: Sequence[Any]) -> FragmentsRow:
        index, slot, fragments = written
        return cls(index, slot, tuple(Fragment(*fragment) for fragment in fragments))


class Fragments:
    """The messages that were stored in fragments."""

    def __init__(self, rows: Iterable[FragmentsRow] = ()) -> None:
        self._joined: dict[int, dict[int, Sequence[Fragment]]] = {}
        """The fragments of each message, by index and slot."""
        self._frozen: FrozenFragments | None = None
        for index, slot, fragments in rows:
            self.join(index, slot, fragments)

    def join(self, index: int, slot: int, fragments: Sequence[Fragment]) -> None:
        """Record that the message at this place is followed by these fragments."""
        self._joined.setdefault(index, {})[slot] = fragments

    def in_entry(self, index: int) -> Mapping[int, Sequence[Fragment]]:
        """Return slot -> fragments, for the messages of an entry that have fragments."""
        return self._joined.get(index, _NONE)

    def first_needed_from(self, index: int) -> int:
        """Return the first log index with fragments of messages from `index` on, or `index` without any."""
        needed = [
            fragments[0].index
            for joined, messages in self._joined.items()
            if joined >= index
            for fragments in messages.values()
        ]
        return min([index, *needed])

    def forget_unneeded(self, kept_from: int | None) -> None:
        """Forget messages before the entry `kept_from` that the last frozen copy has found to be unneeded."""
        if self._frozen is None:
            return
        for index, slot in self._frozen.unneeded:
            if (kept_from is None or index < kept_from) and index in self._joined:
                # A copy, because the frozen state may be read meanwhile.
                left = {other: each for other, each in self._joined[index].items() if other != slot}
                if left:
                    self._joined[index] = left
                else:
                    del self._joined[index]

    def freeze(self) -> FrozenFragments:
        """Return all fragments as they are now."""
        self._frozen = FrozenFragments(self._joined.copy())
        return self._frozen


class FrozenFragments:
    """The messages in fragments at a moment."""

    def __init__(self, joined: Mapping[int, Mapping[int, Sequence[Fragment]]]) -> None:
        self._joined = joined
        self._needed: Sequence[FragmentsRow] | None = None if joined else ()
        self.unneeded: Sequence[Place] = ()
        """The messages that the state does not refer to; empty until `needed` has been called."""

    def needed(self, referred: Callable[[Slots], Container[Place]]) -> Sequence[FragmentsRow]:
        """Return the messages that the state refers to.

        `referred` returns the places among the given slots that the state refers to.
        """
        if self._needed is None:
            found = referred(self._joined)
            rows = [
                FragmentsRow(index, slot, fragments)
                for index, messages in self._joined.items()
                for slot, fragments in messages.items()
            ]
            self._needed = [row for row in rows if row[:2] in found]
            self.unneeded = [row[:2] for row in rows if row[:2] not in found]
        return self._needed


_NONE: Mapping[int, Sequence[Fragment]] = {}
