"""Binding keys of topic exchanges, and which of them match a routing key.

A binding key with wildcards is an automaton that stands before one of its words, or behind the last. All of them are
moved at once: for each place there is the set of binding keys that stand there, as the bits of an integer. Those
without wildcards are found by the routing key itself.

Invariant: a match costs words of the routing key x words of the longest binding key, times one for each 4096 binding
keys (AT_ONCE), whatever the binding keys are; a place where none stands costs nothing.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from qq.routing.masks import AT_ONCE, Masks, Numbered

T = TypeVar("T")

ANY_WORD = "*"
ANY_WORDS = "#"
WORDS_MAX = 256
"""The most words of a routing key: it has 255 octets, and all words may be empty."""


class _Place:
    """The words that binding keys have at one place, as sets of the keys' numbers."""

    __slots__ = ("any_word", "any_words", "ends", "words")

    def __init__(self) -> None:
        self.words: Masks[str] = Masks()
        self.any_word = 0
        self.any_words = 0
        self.ends = 0
        """The keys that have no word there any more."""

    def __bool__(self) -> bool:
        return bool(self.any_word or self.any_words or self.ends or self.words)


class TopicPatterns(Generic[T]):
    """Items under binding keys; one item may be there under several keys."""

    __slots__ = ("_exact", "_numbers", "_patterns", "_places")

    def __init__(self) -> None:
        self._exact: dict[str, dict[T, None]] = {}
        """The items under each binding key without wildcards."""
        self._patterns: Numbered[tuple[str, dict[T, None]]] = Numbered()
        self._numbers: dict[str, tuple[int, dict[T, None]]] = {}
        """The number of each binding key with wildcards, and its items."""
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
        """Take the item away from under this key; raises KeyError if it is not there."""
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

    def match(self, routing_key: str) -> dict[T, None]:
        """Every item with a binding key that matches, each once."""
        found = dict(self._exact.get(routing_key, ()))
        if self._numbers:
            for _, items in self._patterns.of(self._matching(words_of(routing_key))):
                found.update(items)
        return found

    def steps(self, words: int) -> int:
        """The most that a match with a key of so many words costs."""
        return 1 + words * len(self._places) * (1 + len(self._patterns) // AT_ONCE)

    def steps_with(self, binding_key: str) -> int:
        """The most that a match with the longest key would cost if this binding key were there, too."""
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
        """The numbers of the binding keys that match these words."""
        places = self._places
        last = len(places) - 1
        # For each place, the binding keys that stand there; none do below `low` or above `high`.
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
        """Let a `#` stand for no word at all. Returns the last place where any stand then."""
        at, last = low, len(self._places) - 1
        while at <= high:
            on = standing[at] & self._places[at].any_words
            if on:
                standing[at + 1] |= on
                high = max(high, min(at + 1, last))
            at += 1
        return high


def words_of(key: str) -> list[str]:
    """The words of a key; the empty key has none (as in RabbitMQ), while "." has two empty ones."""
    return key.split(".") if key else []


def _has_wildcards(words: list[str]) -> bool:
    return ANY_WORD in words or ANY_WORDS in words
