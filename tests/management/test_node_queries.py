"""Queries between nodes, so that each node can show the whole cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.raft.messages import ANSWER_BYTES_MAX, Message, Query, QueryAnswer
from cluster.transport.queries import Queries
from qq.management import node_queries
from qq.management.node_queries import NodeQueries
from qq.management.objects.client_names import ClientNames


class Two:
    """Two nodes; messages arrive at once, unless the link is stuck."""

    def __init__(self) -> None:
        self.is_stuck = False
        self.queries = {
            name: Queries(lambda _: True, lambda peer, message, name=name: self._send(name, peer, message))
            for name in "ab"
        }
        self.requester, self.responder = (NodeQueries(each, lambda: ["b"]) for each in self.queries.values())

    def answer_to(self, topic: str, *arguments: Any) -> Any:
        return asyncio.run(self.requester.query("b", topic, *arguments))

    def rows(self, topic: str) -> dict[str, list[Any]]:
        return asyncio.run(self.requester.rows_of_all(topic))

    def _send(self, sender: str, receiver: str, message: Message) -> None:
        if self.is_stuck:
            return
        there = self.queries[receiver]
        if isinstance(message, Query):
            there.query_received(sender, message)
        elif isinstance(message, QueryAnswer):
            there.answer_received(sender, message)


def numbered(rows: list[Any]) -> node_queries.AnswerRows:
    def after(key: int | None) -> Iterator[tuple[int, Any]]:
        begin = 0 if key is None else key + 1
        return ((number, rows[number]) for number in range(begin, len(rows)))

    return after


def test_peer_answers_a_topic() -> None:
    two = Two()
    two.responder.answer("sum", lambda one, other: {"sum": one + other})
    assert two.answer_to("sum", 1, 2) == {"sum": 3}


@pytest.mark.parametrize(
    "rows",
    [
        [],
        list(range(node_queries.PART_ROWS_MAX)),
        list(range(3 * node_queries.PART_ROWS_MAX + 1)),
        ["x" * 100_000] * 9,
        ["x" * (ANSWER_BYTES_MAX - node_queries.HEAD_BYTES_MAX - 5)] * 3,
    ],
    ids=["none", "one_part", "some_parts", "large", "as_large_as_an_answer"],
)
def test_all_rows_are_returned_once_and_in_order(rows: list[Any]) -> None:
    two = Two()
    two.responder.answer_rows("rows", numbered(rows))
    assert two.rows("rows") == {"b": rows}


@pytest.mark.parametrize("size", [1, ANSWER_BYTES_MAX // 7])
def test_requested_rows_are_returned_once_and_in_order(size: int) -> None:
    """Missing keys are left out; an answer holds a bounded part."""
    two, count = Two(), 2 * node_queries.PART_ROWS_MAX + 10
    rows = {number: f"{number} {'x' * size}" for number in range(0, count, 20)}
    two.responder.answer_keys("some", lambda keys: ((key, rows[key]) for key in keys if key in rows))
    answer_to = asyncio.run(two.requester.rows_with_keys("b", "some", list(range(count))))
    assert answer_to == list(rows.values())
    assert asyncio.run(two.requester.rows_with_keys("b", "some", [])) == []
    assert asyncio.run(two.requester.rows_with_keys("b", "unheard of", [1])) == []


def test_name_of_a_client_is_queried_once() -> None:
    """A reused number is queried again; a node without an answer has no names."""
    two = Two()
    queried: list[int] = []
    called = {1: "one", 2: "two", 4: "four"}

    def name(number: int) -> str | None:
        queried.append(number)
        return called.get(number)

    names: ClientNames[object, str] = ClientNames("a", two.requester, "names", {7: "mine"}.get)
    ClientNames[object, str]("b", two.responder, "names", name)

    def names_of(clients: dict[tuple[str, int], object]) -> dict[tuple[str, int], str]:
        return asyncio.run(names.find(list(clients.items())))

    clients = {("a", 7): object(), ("b", 1): object(), ("b", 2): object(), ("b", 3): object()}
    assert names_of(clients) == {("a", 7): "mine", ("b", 1): "one", ("b", 2): "two"}
    assert queried == [1, 2, 3]
    assert names_of(clients) == {("a", 7): "mine", ("b", 1): "one", ("b", 2): "two"}
    assert queried == [1, 2, 3, 3]
    called[1] = "another"
    assert names_of({("b", 1): object(), ("b", 2): clients["b", 2]}) == {
        ("b", 1): "another",
        ("b", 2): "two",
    }
    two.queries["b"].set_responder(lambda _: b"")
    assert names_of({("b", 2): clients["b", 2], ("b", 4): object()}) == {("b", 2): "two"}


def test_a_row_that_no_answer_holds_is_left_out() -> None:
    two = Two()
    two.responder.answer_rows("rows", numbered([1, "x" * ANSWER_BYTES_MAX, 2]))
    assert two.rows("rows") == {"b": [1, 2]}


def test_unknown_or_failing_topic_has_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    two = Two()
    two.responder.answer("wrong", lambda: 1 // 0)
    assert two.answer_to("unheard of") is None
    assert two.answer_to("wrong") is None
    assert two.rows("wrong") == {"b": []}
    assert "ZeroDivisionError" in caplog.text


def test_unanswered_query_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_queries, "ANSWER_WAIT_S", 0.01)
    two = Two()
    two.responder.answer("one", lambda: 1)
    two.is_stuck = True
    assert two.answer_to("one") is None
    two.is_stuck = False
    assert two.answer_to("one") == 1
