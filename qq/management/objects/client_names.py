"""Names of connections and channels, on all nodes.

The log contains the clients of all nodes, but not their names; each node knows the names of its own clients. Lists of
clients are sorted and searched by name before a page is cut out of them.

Invariant: a node asks for a name once in a client's lifetime.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from qq.management.time_slices import Slices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from qq.management.node_queries import NodeQueries

State = TypeVar("State")
Name = TypeVar("Name")
Place = tuple[str, int]
"""The node of a client, and its number at that node."""


class ClientNames(Generic[State, Name]):
    """Cache of the names of connections, or of channels."""

    def __init__(
        self, node: str, queries: NodeQueries, topic: str, own_name: Callable[[int], Name | None]
    ) -> None:
        """`own_name` returns the name of this node's client with a number, or None if it does not exist."""
        self._node = node
        self._queries = queries
        self._topic = topic
        self._own_name = own_name
        self._known: dict[Place, tuple[State, Name]] = {}
        queries.answer_keys(topic, self._own_names)

    async def find(self, clients: Sequence[tuple[Place, State]]) -> dict[Place, Name]:
        """Return the names of these clients.

        `clients` must be all clients; `State` is a client's object in the machine.

        Names are missing for nodes that do not answer.
        """
        # A client keeps its name. A number may be used again, so the client's object must be the same, too.
        known: dict[Place, tuple[State, Name]] = {}
        unknown: dict[str, dict[int, State]] = {}
        slices = Slices()
        for place, state in clients:
            node, number = place
            cached = self._known.get(place)
            if cached is not None and cached[0] is state:
                known[place] = cached
            elif node != self._node:
                unknown.setdefault(node, {})[number] = state
            elif (own := self._own_name(number)) is not None:
                known[place] = state, own
            await slices.give_way()
        queries = [
            self._queries.rows_with_keys(node, self._topic, list(some)) for node, some in unknown.items()
        ]
        for (node, some), names in zip(unknown.items(), await asyncio.gather(*queries), strict=True):
            known |= {(node, number): (some[number], name) for number, name in names}
        self._known = known
        return {place: name for place, (_, name) in known.items()}

    def _own_names(self, numbers: Sequence[int]) -> Iterator[tuple[int, tuple[int, Name]]]:
        for number in numbers:
            name = self._own_name(number)
            if name is not None:
                yield number, (number, name)
