"""Questions of this node to the other nodes and its answers to theirs, so that each node can show the whole cluster.

A topic is a subject that a node can be asked about. Its answer is a single value, or rows, each with a key, in the
order of the keys. Rows come in parts: the asking node says after which key the next part begins, so the asked node
keeps no state. Rows that appear or disappear between two parts may be missing, or may be sent although they no longer
exist.

Invariant: nodes of the last release may not know a topic, and nodes that are down do not answer. The asking node goes
on with the answers that it has.
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
    from cluster.transport.queries import Queries

log = logging.getLogger(__name__)

Answer = Callable[..., Any]
"""Answers a topic: takes the arguments of the question, returns a value that msgpack can pack."""
AnswerKeys = Callable[[Sequence[Any]], Iterator[tuple[Any, Any]]]
"""Answers a topic with the existing rows for the given keys, in the order of these keys."""
AnswerRows = Callable[[Any], Iterator[tuple[Any, Any]]]
"""Answers a topic with its rows after a key (None: all rows), each with its key, in the order of the keys."""

ANSWER_WAIT_S = 2.0
"""Seconds to wait for an answer. A node answers at once unless it is stopped or busy."""
PART_ROWS_MAX = 100
"""Rows in a part at most: they take the asked node some milliseconds."""
HEAD_BYTES_MAX = 1024
"""Bytes of an answer that its key and its frame take at most."""


class NodeQueries:
    """Sends questions to the other nodes, and answers their questions."""

    def __init__(self, queries: Queries, names: Callable[[], Sequence[str]]) -> None:
        """`names` returns the names of the other members."""
        self._queries = queries
        self._names = names
        self._topics: dict[str, Answer] = {}
        queries.set_responder(self._answer)

    # Answers

    def answer(self, topic: str, answer: Answer) -> None:
        """Answer questions about a topic with `answer` from now on."""
        self._topics[topic] = answer

    def answer_rows(self, topic: str, rows_after: AnswerRows) -> None:
        """Answer questions of `rows` about a topic from now on."""

        def answer(after: Any) -> Any:
            return _part(rows_after(after))

        self._topics[topic] = answer

    def answer_keys(self, topic: str, rows_of: AnswerKeys) -> None:
        """Answer questions of `rows_with_keys` about a topic from now on."""

        def answer(keys: Sequence[Any]) -> Any:
            return _part(rows_of(keys))

        self._topics[topic] = answer

    def _answer(self, question: bytes) -> bytes:
        try:
            topic, *arguments = msgpack.unpackb(question)
            answer = self._topics.get(topic)
            return b"" if answer is None else pack(answer(*arguments))
        except Exception:  # a malformed question must not stop a node that replicates
            log.exception("a question of another node cannot be answered")
            return b""

    # Questions

    async def query(self, node: str, topic: str, *arguments: Any) -> Any | None:
        """Ask a node about a topic; return its answer, or None if it has no answer or is too slow."""
        answered: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def take(answer: bytes | None) -> None:
            if not answered.done():
                answered.set_result(answer)

        number = self._queries.send(node, pack([topic, *arguments]), take)
        try:
            async with asyncio.timeout(ANSWER_WAIT_S):
                answer = await answered
        except TimeoutError:
            return None
        finally:
            self._queries.forget(number)
        return msgpack.unpackb(answer, strict_map_key=False) if answer else None

    async def rows(self, node: str, topic: str) -> list[Any]:
        """Return all rows of a topic at a node, up to the first part that is missing or too slow."""
        rows: list[Any] = []
        after: Any = None
        while (part := await self.query(node, topic, after)) is not None:
            found, after = part
            rows += found
            if after is None:
                break
        return rows

    async def rows_with_keys(self, node: str, topic: str, keys: Sequence[Any]) -> list[Any]:
        """Return the rows with these keys of a topic at a node, up to the first part that is missing or too slow."""
        rows: list[Any] = []
        while keys:
            part = await self.query(node, topic, keys[:PART_ROWS_MAX])
            if part is None:
                break
            found, last = part
            rows += found
            keys = keys[PART_ROWS_MAX if last is None else keys.index(last) + 1 :]
        return rows

    async def query_all(self, topic: str, *arguments: Any) -> dict[str, Any]:
        """Ask all other nodes about a topic; return their answers by node, None for nodes without an answer."""
        nodes = self._names()
        answers = await asyncio.gather(*(self.query(node, topic, *arguments) for node in nodes))
        return dict(zip(nodes, answers, strict=True))

    async def rows_of_all(self, topic: str) -> dict[str, list[Any]]:
        """Return the rows of a topic at each of the other nodes."""
        nodes = self._names()
        answers = await asyncio.gather(*(self.rows(node, topic) for node in nodes))
        return dict(zip(nodes, answers, strict=True))


def _part(rows: Iterator[tuple[Any, Any]]) -> tuple[list[Any], Any]:
    """Return as many rows as an answer holds, and the key of the last row, or None after the end of all rows.

    A row that is too large for an answer is left out.
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
