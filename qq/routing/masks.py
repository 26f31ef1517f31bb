"""Sets of small numbers, stored as the bits of integers.

Invariant: combining two sets costs a machine word per 64 numbers, so a set with a single member costs about the same as
a set with thousands. The memory of a set with few members depends only on these members.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

AT_ONCE = 4096
"""Numbers that are combined per step of cost; larger sets cost more steps."""
FEW_MAX = 8
"""Largest set that is stored as a tuple of its members and not as bits."""


class Numbered(Generic[T]):
    """Items numbered without gaps.

    Limits depend only on the number of items. They must be equal on a node that has added and removed many items, and
    on a node that has loaded the remaining items.
    """

    __slots__ = ("_things", "everything")

    def __init__(self) -> None:
        self._things: list[T] = []
        self.everything = 0
        """Set of all numbers."""

    def add(self, thing: T) -> int:
        """Add an item and return its number."""
        number = len(self._things)
        self._things.append(thing)
        self.everything |= 1 << number
        return number

    def remove(self, number: int) -> T | None:
        """Remove the item with an existing number, and give this number to the item with the highest number.

        Returns the renumbered item; `None` if the removed item had the highest number.
        """
        moved = self._things.pop()
        last = len(self._things)
        self.everything ^= 1 << last
        if number == last:
            return None
        self._things[number] = moved
        return moved

    def items(self, mask: int) -> Iterator[T]:
        """Yield the items of a set, in the order of their numbers."""
        bits = bin(mask)
        last = len(bits) - 1
        position = bits.rfind("1")
        while position > 0:
            yield self._things[last - position]
            position = bits.rfind("1", 0, position)

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._things)


class Masks(Generic[K]):
    """A set of numbers for each key."""

    __slots__ = ("_few", "_many")

    def __init__(self) -> None:
        self._few: dict[K, tuple[int, ...]] = {}
        self._many: dict[K, int] = {}

    def add(self, key: K, number: int) -> None:
        """Add a new number to the set of a key."""
        many = self._many.get(key)
        if many is not None:
            self._many[key] = many | 1 << number
            return
        few = (*self._few.get(key, ()), number)
        if len(few) <= FEW_MAX:
            self._few[key] = few
        else:
            del self._few[key]
            self._many[key] = _mask(few)

    def remove(self, key: K, number: int) -> None:
        """Remove an existing number from the set of a key."""
        many = self._many.get(key)
        if many is not None:
            left = many ^ 1 << number
            if left:
                self._many[key] = left
            else:
                del self._many[key]
            return
        few = tuple(other for other in self._few[key] if other != number)
        if few:
            self._few[key] = few
        else:
            del self._few[key]

    def get(self, key: K) -> int:
        """Return the set of a key; 0 is the empty set."""
        many = self._many.get(key)
        if many is not None:
            return many
        few = self._few.get(key)
        return 0 if few is None else _mask(few)

    def __len__(self) -> int:
        """Return the number of keys with a set."""
        return len(self._few) + len(self._many)


def _mask(numbers: tuple[int, ...]) -> int:
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask
