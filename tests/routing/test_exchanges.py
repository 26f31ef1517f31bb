from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qq.routing.exchanges import Binding, Destination, DestinationKind, RoutingTable
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


def reached(bindings: list[Binding], source: str, key: str) -> set[str]:
    """Every queue that a message can get to, by trying until nothing new is found."""
    exchanges, queues = {source}, set[str]()
    while True:
        found = {
            binding.destination
            for binding in bindings
            if binding.source in exchanges and _matches(TYPES[binding.source], binding.routing_key, key)
        }
        more = {name for kind, name in found if kind is DestinationKind.EXCHANGE} - exchanges
        queues |= {name for kind, name in found if kind is DestinationKind.QUEUE}
        if not more:
            return queues
        exchanges |= more


def _matches(kind: str, binding_key: str, key: str) -> bool:
    if kind == "topic":
        trie: TopicTrie[int] = TopicTrie()
        trie.add(binding_key, 1)
        return bool(trie.match(key))
    return kind == "fanout" or binding_key == key


@given(bindings, st.data())
def test_routes_are_what_can_be_reached_and_do_not_depend_on_the_order_of_binding(
    bindings: list[Binding], data: st.DataObject
) -> None:
    routing = table(*bindings)
    gone = data.draw(st.lists(st.sampled_from(bindings), unique=True)) if bindings else []
    for binding in gone:
        routing.unbind(binding)
    left = [binding for binding in bindings if binding not in gone]
    fresh = table(*reversed(left))
    for source in TYPES:
        for key in ("", "a", "a.b", "b"):
            route = routing.route(source, key)
            assert route == tuple(sorted(reached(left, source, key)))
            assert route == fresh.route(source, key)
