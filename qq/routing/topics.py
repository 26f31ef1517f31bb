"""Binding keys of topic exchanges, compiled into one trie.

Lives here: the syntax of binding keys. `.` separates words, `*` stands for exactly one word, `#` for any number.

Law: a match costs words x live branches, whatever the binding keys are. Branches that meet in one node go on as one,
so keys like `#.a.#.a.#` do not make it exponential.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")

ANY_WORD = "*"
ANY_WORDS = "#"


class _Node(Generic[T]):
    """A position in the binding keys. `loops`: it was reached by a `#`, which takes any further word."""

    __slots__ = ("children", "items", "loops")

    def __init__(self, loops: bool) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.items: dict[T, None] = {}
        self.loops = loops


class TopicTrie(Generic[T]):
    """Items under binding keys; one item may be there under several keys."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Node[T] = _Node(loops=False)

    def add(self, binding_key: str, item: T) -> None:
        node = self._root
        for word in words_of(binding_key):
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = _Node(loops=word == ANY_WORDS)
            node = child
        node.items[item] = None

    def remove(self, binding_key: str, item: T) -> None:
        """Take the item away from under this key; raises KeyError if it is not there."""
        path = [self._root]
        words = words_of(binding_key)
        for word in words:
            path.append(path[-1].children[word])
        del path[-1].items[item]
        for parent, word in zip(reversed(path[:-1]), reversed(words), strict=True):
            child = parent.children[word]
            if child.items or child.children:
                return
            del parent.children[word]

    def match(self, routing_key: str) -> dict[T, None]:
        """Every item with a binding key that matches, each once."""
        live: dict[int, _Node[T]] = {}
        _enter(self._root, live)
        for word in words_of(routing_key):
            reached: dict[int, _Node[T]] = {}
            for node in live.values():
                if node.loops:
                    _enter(node, reached)
                # A word of the routing key that happens to read "#" or "*" is an ordinary word; that it then finds the
                # wildcard's branch directly does no harm, because the wildcard matches it as well.
                for branch in (word, ANY_WORD):
                    child = node.children.get(branch)
                    if child is not None:
                        _enter(child, reached)
            live = reached
        return {item: None for node in live.values() for item in node.items}


def words_of(key: str) -> list[str]:
    """The words of a key; the empty key has none (as in RabbitMQ), while "." has two empty ones."""
    return key.split(".") if key else []


def _enter(node: _Node[T], live: dict[int, _Node[T]]) -> None:
    """Add the node, and what a `#` behind it reaches by standing for no word at all."""
    while id(node) not in live:
        live[id(node)] = node
        behind = node.children.get(ANY_WORDS)
        if behind is None:
            return
        node = behind
