"""Sets of small numbers, as the bits of integers.

Invariant: to combine two sets costs a word of the machine for each 64 numbers, so it costs about the same for one
member as for thousands. A set of few members takes no more memory than these need.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

AT_ONCE = 4096
"""How many numbers are combined in one step of cost. More take longer."""
FEW_MAX = 8
"""A set of up to so many members is kept as these, one by one."""


class Numbered(Generic[T]):
    """Things that are numbered without a gap.

    Limits go by how many there are: they must be the same on a node that has seen things come and go, and on one that
    has loaded those that are left.
    """

    __slots__ = ("_things", "everything")

    def __init__(self) -> None:
        self._things: list[T] = []
        self.everything = 0
        """The set of all numbers."""

    def add(self, thing: T) -> int:
        """Give the thing a number."""
        number = len(self._things)
        self._things.append(thing)
        self.everything |= 1 << number
        return number

    def remove(self, number: int) -> T | None:
        """Forget the thing with that number, which is there.

        Returns the thing that had the highest number and has this one now; None if it is the one that was forgotten.
        """
        moved = self._things.pop()
        last = len(self._things)
        self.everything ^= 1 << last
        if number == last:
            return None
        self._things[number] = moved
        return moved

    def of(self, mask: int) -> Iterator[T]:
        """The things of a set, in the order of their numbers."""
        bits = bin(mask)
        last = len(bits) - 1
        position = bits.rfind("1")
        while position > 0:
            yield self._things[last - position]
            position = bits.rfind("1", 0, position)

    def __len__(self) -> int:
        """How many things there are."""
        return len(self._things)


class Masks(Generic[K]):
    """A set of numbers under each of some keys."""

    __slots__ = ("_few", "_many")

    def __init__(self) -> None:
        self._few: dict[K, tuple[int, ...]] = {}
        self._many: dict[K, int] = {}

    def add(self, key: K, number: int) -> None:
        """Add a number that is not in the set."""
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
        """Take out a number that is in the set."""
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
        """The set under a key; 0 is the empty one."""
        many = self._many.get(key)
        if many is not None:
            return many
        few = self._few.get(key)
        return 0 if few is None else _mask(few)

    def __len__(self) -> int:
        """How many keys have a set."""
        return len(self._few) + len(self._many)


def _mask(numbers: tuple[int, ...]) -> int:
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask
