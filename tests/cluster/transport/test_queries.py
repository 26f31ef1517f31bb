"""Questions that nodes ask each other."""

from __future__ import annotations

import logging

import pytest

from cluster.raft.messages import ANSWER_BYTES_MAX, QUESTION_BYTES_MAX, Message, Query, QueryAnswer
from cluster.transport.queries import Queries


class Nodes:
    """Nodes whose messages wait for delivery by the test."""

    def __init__(self, *names: str) -> None:
        self.linked = set(names)
        self.sent: list[tuple[str, str, Message]] = []
        self.queries = {name: self._queries(name) for name in names}

    def _queries(self, name: str) -> Queries:
        return Queries(
            self.linked.__contains__, lambda peer, message: self.sent.append((name, peer, message))
        )

    def deliver(self) -> None:
        while self.sent:
            sender, receiver, message = self.sent.pop(0)
            there = self.queries[receiver]
            if isinstance(message, Query):
                there.query_received(sender, message)
            elif isinstance(message, QueryAnswer):
                there.answer_received(sender, message)


@pytest.fixture
def nodes() -> Nodes:
    return Nodes("a", "b", "c")


def test_each_question_gets_its_own_answer(nodes: Nodes) -> None:
    answers: list[bytes | None] = []
    nodes.queries["b"].set_responder(lambda question: b"b says " + question)
    nodes.queries["c"].set_responder(lambda question: b"c says " + question)
    nodes.queries["a"].send("b", b"one", answers.append)
    nodes.queries["a"].send("c", b"two", answers.append)
    nodes.queries["a"].send("b", b"three", answers.append)
    nodes.deliver()
    assert answers == [b"b says one", b"c says two", b"b says three"]


def test_query_without_a_link_has_no_answer(nodes: Nodes) -> None:
    answers: list[bytes | None] = []
    nodes.linked.discard("b")
    nodes.queries["a"].send("b", b"one", answers.append)
    assert answers == [None]
    assert not nodes.sent


def test_query_over_a_lost_link_has_no_answer_later(nodes: Nodes) -> None:
    answers: list[bytes | None] = []
    querying = nodes.queries["a"]
    number = querying.send("b", b"one", answers.append)
    querying.send("c", b"two", answers.append)
    querying.fail_queries_to("b")
    assert answers == [None]
    querying.answer_received("b", QueryAnswer(number, b"late"))
    nodes.deliver()
    assert answers == [None, b""]


def test_answer_to_a_forgotten_query_or_by_a_third_is_ignored(nodes: Nodes) -> None:
    answers: list[bytes | None] = []
    querying = nodes.queries["a"]
    querying.forget(querying.send("b", b"one", answers.append))
    number = querying.send("b", b"two", answers.append)
    querying.answer_received("c", QueryAnswer(number, b"not asked"))
    assert answers == []
    nodes.deliver()
    assert answers == [b""]


def test_query_or_answer_that_is_too_long_is_not_sent(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    answers: list[bytes | None] = []
    with pytest.raises(ValueError, match="a question of"):
        nodes.queries["a"].send("b", bytes(QUESTION_BYTES_MAX + 1), answers.append)
    nodes.queries["b"].set_responder(lambda _: bytes(ANSWER_BYTES_MAX + 1))
    nodes.queries["a"].send("b", bytes(QUESTION_BYTES_MAX), answers.append)
    with caplog.at_level(logging.ERROR):
        nodes.deliver()
    assert answers == [b""]
    assert "is above the limit" in caplog.text
