"""Counters of published messages per virtual host or user, for limits of publishing.

Each node grants its clients the part of a limit that the other nodes leave.

Invariant: this is not part of the state, and has no effect on the machine. A replica counts from its start, so only
differences of the counters have a meaning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Published:
    """Number and octets of the messages that each node's clients have published, including refused messages."""

    __slots__ = ("_by_node",)

    def __init__(self) -> None:
        self._by_node: dict[str, tuple[int, int]] = {}

    def count(self, node: str, messages: int, size: int) -> None:
        """Count messages of `size` octets together."""
        before, size_before = self._by_node.get(node, (0, 0))
        self._by_node[node] = before + messages, size_before + size

    def elsewhere(self, node: str) -> Iterator[tuple[str, int, int]]:
        """Yield the nodes except `node`, each with its number of messages and their octets."""
        for other, (messages, size) in self._by_node.items():
            if other != node:
                yield other, messages, size
