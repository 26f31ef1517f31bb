"""How much is published in a virtual host, or by a user: every node grants of a limit of publishing what others leave.

Invariant: no part of the state, and nothing in the machine goes by it: a replica counts from when it began, so only
differences say something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Published:
    """What the clients of each node have published, whatever became of it."""

    __slots__ = ("_by_node",)

    def __init__(self) -> None:
        self._by_node: dict[str, tuple[int, int]] = {}

    def count(self, node: str, messages: int, size: int) -> None:
        """Count so many messages of `size` octets together."""
        before, size_before = self._by_node.get(node, (0, 0))
        self._by_node[node] = before + messages, size_before + size

    def elsewhere(self, node: str) -> Iterator[tuple[str, int, int]]:
        """The other nodes, each with its messages and their octets."""
        for other, (messages, size) in self._by_node.items():
            if other != node:
                yield other, messages, size
