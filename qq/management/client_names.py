"""What connections and channels are called, on every node.

The log knows the clients of all nodes, and not their names, which each node tells of its own. With them lists are
ordered and searched, of which only a part is shown.

Invariant: a name is asked for once, for as long as its client is there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from qq.http.base.slices import Slices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from qq.management.others import OtherNodes

State = TypeVar("State")
Name = TypeVar("Name")
Place = tuple[str, int]
"""The node of a client, and its number there."""


class ClientNames(Generic[State, Name]):
    """The names of clients of one kind."""

    def __init__(
        self, node: str, others: OtherNodes, topic: str, own_name: Callable[[int], Name | None]
    ) -> None:
        """`own_name` tells what the client of this node with a number is called; None if it is not there."""
        self._node = node
        self._others = others
        self._topic = topic
        self._own_name = own_name
        self._known: dict[Place, tuple[State, Name]] = {}
        others.tell_some(topic, self._tell)

    async def of(self, clients: Sequence[tuple[Place, State]]) -> dict[Place, Name]:
        """The names of these clients, which are all that there are; `State` is what the log has of one.

        Those are missing whose nodes do not tell them.
        """
        # A client has its name for as long as it is there; its number may be that of another one later.
        known: dict[Place, tuple[State, Name]] = {}
        unknown: dict[str, dict[int, State]] = {}
        slices = Slices()
        for place, state in clients:
            node, number = place
            told = self._known.get(place)
            if told is not None and told[0] is state:
                known[place] = told
            elif node != self._node:
                unknown.setdefault(node, {})[number] = state
            elif (own := self._own_name(number)) is not None:
                known[place] = state, own
            await slices.give_way()
        asked = [self._others.some(node, self._topic, list(some)) for node, some in unknown.items()]
        for (node, some), names in zip(unknown.items(), await asyncio.gather(*asked), strict=True):
            known |= {(node, number): (some[number], name) for number, name in names}
        self._known = known
        return {place: name for place, (_, name) in known.items()}

    def _tell(self, numbers: Sequence[int]) -> Iterator[tuple[int, tuple[int, Name]]]:
        for number in numbers:
            name = self._own_name(number)
            if name is not None:
                yield number, (number, name)
