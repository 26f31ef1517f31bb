"""The present bindings alone decide the cost of a message, and so its refusal: not former bindings, nor their order.

A replica that has loaded its state knows only the present bindings; it must agree with a replica that applied all
changes.
"""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest

from qq.routing import headers, topics
from qq.routing.content import Content
from qq.routing.exchanges import ROUTE_STEPS_MAX, RouteTooLong, RoutingTable
from qq.routing.headers import Headers
from qq.routing.routers import Binding, Destination, DestinationKind, Router, Topic

QUEUE = DestinationKind.QUEUE
CONTENT = Content({"a": 1, "b": 2}, {}, 1)
TOPIC_KEYS = ["#", "*", "a.#", "#.b", "*.*", "a.*.#", "a.b", "#.#", "*.a.*.b"]
CONDITIONS: list[dict[str, object]] = [
    {},
    {"a": 1},
    {"b": 2},
    {"a": 1, "b": 2},
    {"x-match": "any", "a": 1, "b": 3},
    {"x-match": "any", "c": 1},
    {"a": 1, "b": 2, "c": 3},
]


def test_cost_of_a_match_does_not_depend_on_earlier_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (topics, headers):
        monkeypatch.setattr(module, "AT_ONCE", 2)
    for seed in range(60):
        chance = Random(seed)
        for kind in (Topic, Headers):
            _live(kind, chance)


def _live(kind: type[Router], chance: Random) -> None:
    lived = kind({})
    there: dict[Binding, dict[str, object]] = {}
    for _ in range(chance.randrange(1, 60)):
        destination = Destination(QUEUE, f"q{chance.randrange(4)}")
        if kind is Topic:
            key, arguments, packed = chance.choice(TOPIC_KEYS), dict[str, object](), b""
        else:
            number = chance.randrange(len(CONDITIONS))
            key, arguments, packed = "", CONDITIONS[number], b"%d" % number
        binding = Binding("x", destination, key, packed)
        if binding not in there:
            lived.bind(binding, arguments)
            there[binding] = arguments
        if chance.random() < 0.6:
            removed = chance.choice(list(there))
            lived.unbind(removed)
            del there[removed]
    loaded = kind({})
    for binding, arguments in there.items():
        loaded.bind(binding, arguments)
    for keys in (["a"], ["a.b", "c"], [""], ["a.a.b.b"]):
        assert lived.steps(keys, CONTENT) == loaded.steps(keys, CONTENT)
        assert set(lived.match(keys, CONTENT)) == set(loaded.match(keys, CONTENT))


@pytest.mark.slow
def test_route_cost_counts_the_last_exchange_in_any_order() -> None:
    """It once was short enough if the dear exchange came first: its own bindings counted only for those behind it."""
    for order in permutations(["dear", "cheap"]):
        table = RoutingTable()
        table.add_exchange("first", "topic", {})
        for name in order:
            table.add_exchange(name, "fanout", {})
        for place, name in enumerate(order):
            table.bind(
                Binding("first", Destination(DestinationKind.EXCHANGE, name), "#" + ".#" * place, b""), {}
            )
        table.add_queue("q")
        for number in range(ROUTE_STEPS_MAX):
            table.bind(Binding("dear", Destination(QUEUE, "q"), str(number), b""), {})
        with pytest.raises(RouteTooLong):
            table.route("first", "a")
