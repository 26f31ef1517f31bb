"""What this node asks the other nodes, and tells them, so that each can show the whole cluster.

A topic is a subject that a node can be asked about: what is told of it is one value, or rows, each with a key, in the
order of the keys. Rows come in parts: whoever asks says after which key the next part is to begin, so the asked node
remembers nothing. What comes between two parts, or ends, may be missed or told although it has ended.

Invariant: nodes of the last release, and nodes that are down, tell nothing; whoever asks goes on with what it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgpack

from cluster.raft.messages import ANSWER_BYTES_MAX
from cluster.runtime.ports import pack

if TYPE_CHECKING:
    from cluster.transport.queries import Inquiries

log = logging.getLogger(__name__)

Tell = Callable[..., Any]
"""Tells of a topic: it is given the arguments of the question, and returns what msgpack can pack."""
TellSome = Callable[[Sequence[Any]], Iterator[tuple[Any, Any]]]
"""Tells the rows of a topic with certain keys, those that there are, in the order of the keys it is given."""
TellRows = Callable[[Any], Iterator[tuple[Any, Any]]]
"""Tells the rows of a topic after a key, or all if that is None: each with its key, in the order of the keys."""

ANSWER_WAIT_S = 2.0
"""How long an answer is waited for. A node that is asked answers at once, unless it is stopped or busy."""
PART_ROWS_MAX = 100
"""How many rows a part has at most: they take the asked node some milliseconds."""
HEAD_BYTES_MAX = 1024
"""How much of an answer its key and its frame take at most."""


class OtherNodes:
    """The questions and answers of one node."""

    def __init__(self, inquiries: Inquiries, names: Callable[[], Sequence[str]]) -> None:
        """`names` returns the names of the other members."""
        self._inquiries = inquiries
        self._names = names
        self._topics: dict[str, Tell] = {}
        inquiries.answer_with(self._answer)

    # Being asked

    def tell(self, topic: str, tell: Tell) -> None:
        """From now on others can ask about this topic."""
        self._topics[topic] = tell

    def tell_rows(self, topic: str, rows_after: TellRows) -> None:
        """From now on others can ask for these rows, with `rows`."""

        def tell(after: Any) -> Any:
            return _part(rows_after(after))

        self._topics[topic] = tell

    def tell_some(self, topic: str, rows_of: TellSome) -> None:
        """From now on others can ask for the rows with certain keys, with `some`."""

        def tell(keys: Sequence[Any]) -> Any:
            return _part(rows_of(keys))

        self._topics[topic] = tell

    def _answer(self, question: bytes) -> bytes:
        try:
            topic, *arguments = msgpack.unpackb(question)
            tell = self._topics.get(topic)
            return b"" if tell is None else pack(tell(*arguments))
        except Exception:  # a question is nothing for which a node that replicates may end
            log.exception("a question of another node cannot be answered")
            return b""

    # Asking

    async def told(self, node: str, topic: str, *arguments: Any) -> Any | None:
        """What another node tells of a topic; None if it tells nothing, or not in time."""
        answered: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def take(answer: bytes | None) -> None:
            if not answered.done():
                answered.set_result(answer)

        number = self._inquiries.ask(node, pack([topic, *arguments]), take)
        try:
            async with asyncio.timeout(ANSWER_WAIT_S):
                answer = await answered
        except TimeoutError:
            return None
        finally:
            self._inquiries.forget(number)
        return msgpack.unpackb(answer, strict_map_key=False) if answer else None

    async def rows(self, node: str, topic: str) -> list[Any]:
        """All rows of a topic that another node tells, as far as it tells them in time."""
        rows: list[Any] = []
        after: Any = None
        while (part := await self.told(node, topic, after)) is not None:
            told, after = part
            rows += told
            if after is None:
                break
        return rows

    async def some(self, node: str, topic: str, keys: Sequence[Any]) -> list[Any]:
        """The rows of a topic with these keys that another node tells in time."""
        rows: list[Any] = []
        while keys:
            part = await self.told(node, topic, keys[:PART_ROWS_MAX])
            if part is None:
                break
            told, last = part
            rows += told
            keys = keys[PART_ROWS_MAX if last is None else keys.index(last) + 1 :]
        return rows

    async def told_by_all(self, topic: str, *arguments: Any) -> dict[str, Any]:
        """What each of the other nodes tells of a topic; None for those that tell nothing."""
        nodes = self._names()
        told = await asyncio.gather(*(self.told(node, topic, *arguments) for node in nodes))
        return dict(zip(nodes, told, strict=True))

    async def rows_of_all(self, topic: str) -> dict[str, list[Any]]:
        """The rows of a topic that each of the other nodes tells."""
        nodes = self._names()
        told = await asyncio.gather(*(self.rows(node, topic) for node in nodes))
        return dict(zip(nodes, told, strict=True))


def _part(rows: Iterator[tuple[Any, Any]]) -> tuple[list[Any], Any]:
    """The first rows, as many as an answer holds, and the key of the last one; None in place of it if these are all.

    A row that no answer can hold is left out.
    """
    part: list[Any] = []
    last_key: Any = None
    room = ANSWER_BYTES_MAX - HEAD_BYTES_MAX
    for count, (key, row) in enumerate(rows):
        size = len(pack(row))
        if count == PART_ROWS_MAX or (part and size > room):
            return part, last_key
        if size <= room:
            part.append(row)
            room -= size
        last_key = key
    return part, None
