"""Questions that nodes ask each other, and answers: what a node shows of the others, and they do not tell unasked.

What a question means, and what an answer holds, is the shell's. Whoever asks waits as long as it likes: an answer comes
once, or the link is lost, or it is forgotten. Nothing is repeated.

Invariant: a question costs bounded bytes on the links, and whoever wants more than an answer can hold asks again for
the rest. Nothing here is of any concern to the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from cluster.raft.messages import ANSWER_BYTES_MAX, QUESTION_BYTES_MAX, Inquiry, InquiryAnswer, Message

log = logging.getLogger(__name__)

Answered = Callable[[bytes | None], None]
"""Is told the answer, or None if there will be none."""


class _Asked(NamedTuple):
    peer: str
    answered: Answered


class Inquiries:
    """What this node has asked others, and its answers to what they ask."""

    def __init__(self, answers: Callable[[str], bool], transmit: Callable[[str, Message], None]) -> None:
        """`answers` tells whether there is a link with a node, and its program answers questions at all."""
        self._answers = answers
        self._transmit = transmit
        self._answer: Callable[[bytes], bytes] = _nothing_to_say
        self._asked: dict[int, _Asked] = {}
        self._last_number = 0

    def answer_with(self, answer: Callable[[bytes], bytes]) -> None:
        """Have questions of other nodes answered by `answer`, which returns at most `ANSWER_BYTES_MAX` and is quick."""
        self._answer = answer

    def ask(self, peer: str, question: bytes, answered: Answered) -> int:
        """Ask a node something; `answered` is called once, perhaps before this returns. Returns the question's number.

        Raises ValueError if the question has more than `QUESTION_BYTES_MAX`.
        """
        if len(question) > QUESTION_BYTES_MAX:
            raise ValueError(f"a question of {len(question)} bytes")
        self._last_number += 1
        number = self._last_number
        if self._answers(peer):
            self._asked[number] = _Asked(peer, answered)
            self._transmit(peer, Inquiry(number, question))
        else:
            answered(None)
        return number

    def forget(self, number: int) -> None:
        """Nobody waits for the answer to this question any more; harmless if it has come."""
        self._asked.pop(number, None)

    def peer_lost(self, peer: str) -> None:
        """The link is lost, and with it the answers that were to come over it."""
        lost = [number for number, asked in self._asked.items() if asked.peer == peer]
        for number in lost:
            self._asked.pop(number).answered(None)

    def inquired(self, peer: str, inquiry: Inquiry) -> None:
        """A node asks something."""
        answer = self._answer(inquiry.question)
        if len(answer) > ANSWER_BYTES_MAX:
            log.error(
                "an answer of %d bytes is longer than any may be; %s is told nothing", len(answer), peer
            )
            answer = b""
        self._transmit(peer, InquiryAnswer(inquiry.number, answer))

    def answered(self, peer: str, answer: InquiryAnswer) -> None:
        """A node answers, perhaps what nobody waits for any more."""
        asked = self._asked.get(answer.number)
        if asked is not None and asked.peer == peer:
            del self._asked[answer.number]
            asked.answered(answer.answer)


def _nothing_to_say(_question: bytes) -> bytes:
    return b""
