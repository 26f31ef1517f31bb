from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.routing.exchanges import (
    Binding,
    Destination,
    DestinationKind,
    RoutingTable,
    UnknownExchangeType,
    routing_type,
)
from qq.routing.topics import TopicTrie

TYPES = {"d": "direct", "f": "fanout", "t": "topic"}
QUEUES = ("q1", "q2", "q3")


def queue(name: str) -> Destination:
    return Destination(DestinationKind.QUEUE, name)


def exchange(name: str) -> Destination:
    return Destination(DestinationKind.EXCHANGE, name)


def table(*bindings: Binding) -> RoutingTable:
    routing = RoutingTable()
    for name, kind in TYPES.items():
        routing.add_exchange(name, kind)
    for name in QUEUES:
        routing.add_queue(name)
    for binding in bindings:
        routing.bind(binding)
    return routing


def test_the_default_exchange_knows_every_queue_by_its_name() -> None:
    routing = table()
    assert routing.route("", "q2") == ("q2",)
    routing.remove_queue("q2")
    assert routing.route("", "q2") == ()


def test_each_type_matches_in_its_way() -> None:
    routing = table(
        Binding("d", queue("q1"), "k.x", b""),
        Binding("f", queue("q2"), "k.x", b""),
        Binding("t", queue("q3"), "k.*", b""),
    )
    assert [routing.route(name, "k.x") for name in "dft"] == [("q1",), ("q2",), ("q3",)]
    assert [routing.route(name, "k.y") for name in "dft"] == [(), ("q2",), ("q3",)]
    assert [routing.route(name, "other") for name in "dft"] == [(), ("q2",), ()]


def test_a_queue_that_is_bound_twice_gets_a_message_once() -> None:
    routing = table(
        Binding("d", queue("q1"), "k", b""),
        Binding("d", queue("q1"), "k", b"other arguments"),
        Binding("d", exchange("f"), "k", b""),
        Binding("f", queue("q1"), "", b""),
        Binding("f", queue("q3"), "", b""),
    )
    assert routing.route("d", "k") == ("q1", "q3")
    routing.unbind(Binding("d", queue("q1"), "k", b""))
    routing.unbind(Binding("d", exchange("f"), "k", b""))
    assert routing.route("d", "k") == ("q1",)


def test_exchanges_bound_in_a_circle_end() -> None:
    routing = table(
        Binding("f", exchange("t"), "", b""),
        Binding("t", exchange("f"), "#", b""),
        Binding("t", exchange("t"), "#", b""),
        Binding("t", queue("q1"), "a.#", b""),
    )
    assert routing.route("f", "a.b") == ("q1",)
    assert routing.route("t", "a") == ("q1",)


def test_an_exchange_that_is_not_there_matches_nothing() -> None:
    assert table().route("nowhere", "k") == ()


def test_a_message_with_several_keys_reaches_what_any_of_them_reaches() -> None:
    routing = table(
        Binding("d", queue("q3"), "k", b""),
        Binding("d", queue("q1"), "cc", b""),
        Binding("d", queue("q1"), "bcc", b""),
    )
    assert routing.route("d", "k", "cc", "bcc", "none") == ("q1", "q3")
    assert routing.route("", "q2", "none", "q1", "q2") == ("q1", "q2")


def test_what_an_exchange_does_not_route_goes_to_its_alternate() -> None:
    routing = table(Binding("d", queue("q1"), "k", b""), Binding("f", queue("q2"), "", b""))
    routing.set_alternate("d", "f")
    assert routing.route("d", "k") == ("q1",)
    assert routing.route("d", "other") == ("q2",)
    assert routing.route("d", "other", "k") == ("q1",)
    routing.set_alternate("d", None)
    assert routing.route("d", "other") == ()


def test_an_alternate_takes_what_comes_from_an_exchange_before_even_if_others_route_it() -> None:
    routing = table(
        Binding("f", exchange("d"), "", b""),
        Binding("f", queue("q1"), "", b""),
        Binding("t", queue("q2"), "#", b""),
    )
    routing.set_alternate("d", "t")
    assert routing.route("f", "k") == ("q1", "q2")


def test_alternates_of_each_other_and_one_that_is_not_there_end() -> None:
    routing = table(Binding("t", queue("q1"), "a", b""))
    for source, alternate in (("d", "f"), ("f", "t"), ("t", "d")):
        routing.set_alternate(source, alternate)
    assert routing.route("d", "a") == ("q1",)
    assert routing.route("d", "b") == ()
    routing.set_alternate("f", "nowhere")
    assert routing.route("d", "a") == ()


def test_an_exchange_without_a_router_may_have_an_alternate_and_loses_it_when_it_goes() -> None:
    routing = table(Binding("f", queue("q1"), "", b""))
    routing.set_alternate("h", "f")
    assert routing.route("h", "k") == ("q1",)
    routing.remove_exchange("h")
    assert routing.route("h", "k") == ()


def test_a_delayed_exchange_routes_as_the_type_in_its_argument() -> None:
    assert routing_type("x-delayed-message", {"x-delayed-type": "topic"}) == "topic"
    assert routing_type("direct", {"x-delayed-type": 5}) == "direct"


@pytest.mark.parametrize(
    ("exchange_type", "arguments", "text"),
    [
        ("other", {}, "unknown exchange type 'other'"),
        ("x-delayed-message", {"x-delayed-type": "other"}, "unknown exchange type 'other'"),
        (
            "x-delayed-message",
            {},
            "Invalid argument, 'x-delayed-type' must be an existing exchange type",
        ),
        (
            "x-delayed-message",
            {"x-delayed-type": 5},
            "Invalid argument, 'x-delayed-type' must be an existing exchange type",
        ),
        (
            "x-delayed-message",
            {"x-delayed-type": "x-delayed-message"},
            "Invalid argument, 'x-delayed-message' can't be used for 'x-delayed-type'",
        ),
    ],
)
def test_no_exchange_is_of_a_type_that_is_not_there(
    exchange_type: str, arguments: dict[str, object], text: str
) -> None:
    with pytest.raises(UnknownExchangeType) as caught:
        routing_type(exchange_type, arguments)
    assert str(caught.value) == text


bindings = st.lists(
    st.builds(
        Binding,
        st.sampled_from(sorted(TYPES)),
        st.one_of(st.sampled_from(QUEUES).map(queue), st.sampled_from(sorted(TYPES)).map(exchange)),
        st.sampled_from(["", "a", "a.b", "*", "a.#", "#.b"]),
        st.sampled_from([b"", b"x"]),
    ),
    unique=True,
    max_size=12,
)


alternates = st.dictionaries(st.sampled_from([*TYPES, "h"]), st.sampled_from([*TYPES, "h", "nowhere"]))


def reached(bindings: list[Binding], alternates: dict[str, str], source: str, keys: list[str]) -> set[str]:
    """Every queue that a message can get to, by trying until nothing new is found."""
    exchanges, queues = {source}, set[str]()
    while True:
        found = {
            (binding.source, binding.destination)
            for binding in bindings
            for key in keys
            if binding.source in exchanges and _matches(TYPES[binding.source], binding.routing_key, key)
        }
        reached = {name for _, (kind, name) in found if kind is DestinationKind.EXCHANGE}
        useless = exchanges - {source for source, _ in found}
        reached |= {alternates[name] for name in useless if name in alternates}
        queues |= {name for _, (kind, name) in found if kind is DestinationKind.QUEUE}
        if reached <= exchanges:
            return queues
        exchanges |= reached


def _matches(kind: str, binding_key: str, key: str) -> bool:
    if kind == "topic":
        trie: TopicTrie[int] = TopicTrie()
        trie.add(binding_key, 1)
        return bool(trie.match(key))
    return kind == "fanout" or binding_key == key


@given(bindings, alternates, st.data())
def test_routes_are_what_can_be_reached_and_do_not_depend_on_the_order_of_binding(
    bindings: list[Binding], alternates: dict[str, str], data: st.DataObject
) -> None:
    routing = table(*bindings)
    gone = data.draw(st.lists(st.sampled_from(bindings), unique=True)) if bindings else []
    for binding in gone:
        routing.unbind(binding)
    left = [binding for binding in bindings if binding not in gone]
    fresh = table(*reversed(left))
    for source, alternate in alternates.items():
        routing.set_alternate(source, alternate)
        fresh.set_alternate(source, alternate)
    more_keys = data.draw(st.lists(st.sampled_from(["", "a", "a.b", "c"]), max_size=2))
    for source in TYPES:
        for key in ("", "a", "a.b", "b"):
            route = routing.route(source, key, *more_keys)
            assert route == tuple(sorted(reached(left, alternates, source, [key, *more_keys])))
            assert route == fresh.route(source, key, *more_keys)
