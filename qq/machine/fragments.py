"""Large messages in fragments: nobody waits for all of one.

All octets of a large message in one batch would keep everybody waiting who comes behind it in the log. So its node
stores them bit by bit, in batches of their own (`StoreFragment`), between which others' batches go. Then it publishes
the message with its content header alone, which goes on with what was stored (`JoinFragments`).

Lives here: which fragments belong to which message. Not here: the commands (publishing.py), what a session has stored
and not published yet (core.py), how the octets come together again (qq/sessions/entries.py).

Law: fragments are kept as long as anything refers to a message of the entry that joins them, and a dump has no others:
so it does not matter when a node forgets those that nobody needs any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


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
        if self._frozen is not None:
            for index in self._frozen.unneeded:
                if kept_from is None or index < kept_from:
                    self._joined.pop(index, None)

    def freeze(self) -> FrozenFragments:
        """All of them as they are now."""
        self._frozen = FrozenFragments(self._joined.copy())
        return self._frozen


class FrozenFragments:
    """The messages in fragments at one moment."""

    def __init__(self, joined: Mapping[int, Mapping[int, Sequence[Fragment]]]) -> None:
        self._joined = joined
        self._needed: Sequence[FragmentsRow] | None = None if joined else ()
        self.unneeded: Sequence[int] = ()
        """The entries to whose messages nothing refers; empty until `needed` was asked."""

    def needed(self, counts: Callable[[Sequence[int]], Sequence[int]]) -> Sequence[FragmentsRow]:
        """Those messages to whose entries anything refers; `counts` is as `FrozenMachine.counts`, without fragments."""
        if self._needed is None:
            bounds = sorted({bound for index in self._joined for bound in (index, index + 1)})
            references = dict(zip(bounds, counts(bounds), strict=False))
            self.unneeded = [index for index in self._joined if not references[index]]
            self._needed = [
                FragmentsRow(index, slot, fragments)
                for index, messages in self._joined.items()
                if references[index]
                for slot, fragments in messages.items()
            ]
        return self._needed


_NONE: Mapping[int, Sequence[Fragment]] = {}
