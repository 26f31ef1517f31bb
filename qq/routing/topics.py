"""Matching of topic exchanges: which binding keys match a routing key.

A binding key with wildcards is an automaton. Its state is a place: before a word of the key, or behind the last word.
All automata advance at once: each place has the set of binding keys in this state, as the bits of an integer. Binding
keys without wildcards are looked up by the routing key itself.

Invariant: a match costs at most words of the routing key x words of the longest binding key, times 1 for each 4096
binding keys (AT_ONCE). A place without binding keys costs no time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from qq.routing.masks import AT_ONCE, Masks, Numbered

T = TypeVar("T")

ANY_WORD = "*"
ANY_WORDS = "#"
WORDS_MAX = 256
"""Largest number of words in a routing key, because it has 255 octets and all words may be empty."""


class _Place:
    """The words that binding keys have at the same position: word -> set of the keys' numbers."""

    __slots__ = ("any_word", "any_words", "ends", "words")

    def __init__(self) -> None:
        self.words: Masks[str] = Masks()
        self.any_word = 0
        self.any_words = 0
        self.ends = 0
        """Keys that end before this place."""

    def __bool__(self) -> bool:
        return bool(self.any_word or self.any_words or self.ends or self.words)


class TopicPatterns(Generic[T]):
    """Items by binding key; an item may have several keys."""

    __slots__ = ("_exact", "_numbers", "_patterns", "_places")

    def __init__(self) -> None:
        self._exact: dict[str, dict[T, None]] = {}
        """Items of each binding key without wildcards."""
        self._patterns: Numbered[tuple[str, dict[T, None]]] = Numbered()
        self._numbers: dict[str, tuple[int, dict[T, None]]] = {}
        """Number and items of each binding key with wildcards."""
        self._places: list[_Place] = []

    def add(self, binding_key: str, item: T) -> None:
        words = words_of(binding_key)
        if not _has_wildcards(words):
            self._exact.setdefault(binding_key, {})[item] = None
            return
        known = self._numbers.get(binding_key)
        if known is None:
            items: dict[T, None] = {}
            known = self._numbers[binding_key] = self._patterns.add((binding_key, items)), items
            self._enter(known[0], words)
        known[1][item] = None

    def remove(self, binding_key: str, item: T) -> None:
        """Remove the item from this key; raises KeyError if it is missing."""
        words = words_of(binding_key)
        if not _has_wildcards(words):
            items = self._exact[binding_key]
            del items[item]
            if not items:
                del self._exact[binding_key]
            return
        number, items = self._numbers[binding_key]
        del items[item]
        if not items:
            del self._numbers[binding_key]
            self._leave(number, words)
            moved = self._patterns.remove(number)
            if moved is not None:
                binding_key, items = moved
                words = words_of(binding_key)
                self._leave(len(self._patterns), words)
                self._enter(number, words)
                self._numbers[binding_key] = number, items

    def match(self, routing_key: str) -> Iterator[T]:
        """Yield the items of each matching binding key, so an item with several such keys repeatedly."""
        yield from self._exact.get(routing_key, ())
        if self._numbers:
            for _, items in self._patterns.items(self._matching(words_of(routing_key))):
                yield from items

    def steps(self, words: int) -> int:
        """Return the largest cost of a match for a routing key with so many words, in steps."""
        return 1 + words * len(self._places) * (1 + len(self._patterns) // AT_ONCE)

    def steps_with(self, binding_key: str) -> int:
        """Return the largest cost of a match, in steps, if this binding key were added."""
        words = words_of(binding_key)
        if not _has_wildcards(words) or binding_key in self._numbers:
            return 0
        places = max(len(self._places), len(words) + 1)
        return 1 + WORDS_MAX * places * (1 + (len(self._patterns) + 1) // AT_ONCE)

    def __bool__(self) -> bool:
        return bool(self._exact or self._numbers or self._places)

    def _enter(self, number: int, words: list[str]) -> None:
        places, mask = self._places, 1 << number
        while len(places) <= len(words):
            places.append(_Place())
        for place, word in zip(places, words, strict=False):
            if word == ANY_WORD:
                place.any_word |= mask
            elif word == ANY_WORDS:
                place.any_words |= mask
            else:
                place.words.add(word, number)
        places[len(words)].ends |= mask

    def _leave(self, number: int, words: list[str]) -> None:
        places, mask = self._places, 1 << number
        for place, word in zip(places, words, strict=False):
            if word == ANY_WORD:
                place.any_word ^= mask
            elif word == ANY_WORDS:
                place.any_words ^= mask
            else:
                place.words.remove(word, number)
        places[len(words)].ends ^= mask
        while places and not places[-1]:
            places.pop()

    def _matching(self, words: list[str]) -> int:
        """Return the set of the binding keys that match these words."""
        places = self._places
        last = len(places) - 1
        # For each place, the set of binding keys in this state; places below `low` and above `high` are empty.
        standing = [0] * (last + 2)
        standing[0] = self._patterns.everything
        low = 0
        high = self._pass_over(standing, 0, 0)
        for word in words:
            for at in range(high, low - 1, -1):
                here = standing[at]
                if here:
                    place = places[at]
                    standing[at] = here & place.any_words
                    on = here & (place.any_word | place.words.get(word))
                    if on:
                        standing[at + 1] |= on
            high = self._pass_over(standing, low, min(high + 1, last))
            while not standing[low]:
                low += 1
                if low > high:
                    return 0
        matching = 0
        for at in range(low, high + 1):
            matching |= standing[at] & places[at].ends
        return matching

    def _pass_over(self, standing: list[int], low: int, high: int) -> int:
        """Let each `#` match zero words. Returns the last place with a binding key then."""
        at, last = low, len(self._places) - 1
        while at <= high:
            on = standing[at] & self._places[at].any_words
            if on:
                standing[at + 1] |= on
                high = max(high, min(at + 1, last))
            at += 1
        return high


def words_of(key: str) -> list[str]:
    """Return the words of a key; the empty key has no words (as in RabbitMQ), while "." has two empty words."""
    return key.split(".") if key else []


def _has_wildcards(words: list[str]) -> bool:
    return ANY_WORD in words or ANY_WORDS in words
