"""Large messages in fragments: nobody waits for all of one.

All octets of a large message in one batch would keep everybody waiting who comes behind it in the log. So its node
stores them bit by bit, in batches of their own (`StoreFragment`), between which others' batches go. Then it publishes
the message with its content header alone, which goes on with what was stored (`JoinFragments`).

Invariant: fragments are kept as long as anything refers to their message, and a dump has no others: so it does not
matter when a node forgets those that nobody needs any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence


Place = tuple[int, int]
"""Index and slot of a message."""
Slots = Mapping[int, Iterable[int]]
"""Slots of messages, by index."""


class Fragment(NamedTuple):
    """Where some octets of a large message are stored, as if they were a message of their own."""

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
        """Note that the message at this place goes on with these fragments."""
        self._joined.setdefault(index, {})[slot] = fragments

    def of(self, index: int) -> Mapping[int, Sequence[Fragment]]:
        """The fragments of the messages of an entry that have some, by slot."""
        return self._joined.get(index, _NONE)

    def first_needed_from(self, index: int) -> int:
        """The first entry with fragments of messages of this entry and those behind it; `index` if they have none."""
        needed = [
            fragments[0].index
            for joined, messages in self._joined.items()
            if joined >= index
            for fragments in messages.values()
        ]
        return min([index, *needed])

    def forget_unneeded(self, kept_from: int | None) -> None:
        """Forget those of which the last copy has found that nothing refers to them, before the entry `kept_from`."""
        if self._frozen is None:
            return
        for index, slot in self._frozen.unneeded:
            if (kept_from is None or index < kept_from) and index in self._joined:
                # What was frozen may be read meanwhile.
                left = {other: each for other, each in self._joined[index].items() if other != slot}
                if left:
                    self._joined[index] = left
                else:
                    del self._joined[index]

    def freeze(self) -> FrozenFragments:
        """All of them as they are now."""
        self._frozen = FrozenFragments(self._joined.copy())
        return self._frozen


class FrozenFragments:
    """The messages in fragments at one moment."""

    def __init__(self, joined: Mapping[int, Mapping[int, Sequence[Fragment]]]) -> None:
        self._joined = joined
        self._needed: Sequence[FragmentsRow] | None = None if joined else ()
        self.unneeded: Sequence[Place] = ()
        """The messages that nothing refers to; empty until `needed` was asked."""

    def needed(self, referred: Callable[[Slots], Container[Place]]) -> Sequence[FragmentsRow]:
        """The messages that anything refers to; `referred` tells of which of some messages that is so."""
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
