"""Questions between nodes, and their answers: details of peers that a node shows, sent only on request.

The layer above the group defines the contents of questions and answers. The caller waits until an answer comes, the
link is lost, or it forgets the question. Messages are never repeated.

Invariant: a question and its answer cost bounded bytes on the links. A caller that wants more than an answer can hold
must ask again for the rest. Questions and answers do not touch the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from cluster.raft.messages import ANSWER_BYTES_MAX, QUESTION_BYTES_MAX, Message, Query, QueryAnswer

log = logging.getLogger(__name__)

Answered = Callable[[bytes | None], None]
"""Called with the answer, or with None if there will be no answer."""


class _PendingQuery(NamedTuple):
    peer: str
    answered: Answered


class Queries:
    """The pending questions of this node, and its answers to the questions of peers."""

    def __init__(self, answers: Callable[[str], bool], transmit: Callable[[str, Message], None]) -> None:
        """`answers` returns whether a node is linked and its program answers questions."""
        self._answers = answers
        self._transmit = transmit
        self._answer: Callable[[bytes], bytes] = _nothing_to_say
        self._pending: dict[int, _PendingQuery] = {}
        self._last_number = 0

    def set_responder(self, answer: Callable[[bytes], bytes]) -> None:
        """Answer peers' questions with `answer`, which must be quick and return at most `ANSWER_BYTES_MAX` bytes."""
        self._answer = answer

    def send(self, peer: str, question: bytes, answered: Answered) -> int:
        """Send a question to a node and return its number; `answered` is called once, perhaps before the return.

        Raises ValueError if the question has more than `QUESTION_BYTES_MAX`.
        """
        if len(question) > QUESTION_BYTES_MAX:
            raise ValueError(f"a question of {len(question)} bytes")
        self._last_number += 1
        number = self._last_number
        if self._answers(peer):
            self._pending[number] = _PendingQuery(peer, answered)
            self._transmit(peer, Query(number, question))
        else:
            answered(None)
        return number

    def forget(self, number: int) -> None:
        """Drop a pending question, because its caller waits no longer; no effect if the answer has come."""
        self._pending.pop(number, None)

    def fail_queries_to(self, peer: str) -> None:
        """Report to the callers that the answers of a peer are lost with its link."""
        lost = [number for number, pending in self._pending.items() if pending.peer == peer]
        for number in lost:
            self._pending.pop(number).answered(None)

    def query_received(self, peer: str, inquiry: Query) -> None:
        """Answer the question of a peer."""
        answer = self._answer(inquiry.question)
        if len(answer) > ANSWER_BYTES_MAX:
            log.error(
                "an answer of %d bytes is above the limit; sending %s an empty answer", len(answer), peer
            )
            answer = b""
        self._transmit(peer, QueryAnswer(inquiry.number, answer))

    def answer_received(self, peer: str, answer: QueryAnswer) -> None:
        """Pass a peer's answer to the caller that waits for it, if any."""
        pending = self._pending.get(answer.number)
        if pending is not None and pending.peer == peer:
            del self._pending[answer.number]
            pending.answered(answer.answer)


def _nothing_to_say(_question: bytes) -> bytes:
    return b""
