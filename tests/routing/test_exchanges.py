from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.routing.content import Content, NeedsContent
from qq.routing.exchanges import (
    EXCHANGE_TYPES,
    QUEUES_MAX,
    ROUTE_STEPS_MAX,
    Binding,
    Destination,
    DestinationKind,
    RouteTooLong,
    RoutingTable,
    UnknownExchangeType,
    check_exchange,
    routing_type,
)
from qq.routing.routers import InvalidBinding
from qq.routing.topics import TopicPatterns

TYPES = {"d": "direct", "f": "fanout", "t": "topic"}
QUEUES = ("q1", "q2", "q3")


def queue(name: str) -> Destination:
    return Destination(DestinationKind.QUEUE, name)


def exchange(name: str) -> Destination:
    return Destination(DestinationKind.EXCHANGE, name)


def table(*bindings: Binding) -> RoutingTable:
    routing = RoutingTable()
    for name, kind in TYPES.items():
        routing.add_exchange(name, kind, {})
    for name in QUEUES:
        routing.add_queue(name)
    for binding in bindings:
        routing.bind(binding, {})
    return routing


def test_the_default_exchange_knows_every_queue_by_its_name() -> None:
    routing = table()
    assert routing.route("", "q2") == ("q2",)
    routing.remove_queue("q2")
    assert routing.route("", "q2") == ()


def test_each_exchange_type_matches_its_bindings() -> None:
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


def test_exchange_that_does_not_exist_routes_to_no_queue() -> None:
    assert table().route("nowhere", "k") == ()


def test_message_with_several_keys_reaches_the_queues_of_each() -> None:
    routing = table(
        Binding("d", queue("q3"), "k", b""),
        Binding("d", queue("q1"), "cc", b""),
        Binding("d", queue("q1"), "bcc", b""),
    )
    assert routing.route("d", "k", "cc", "bcc", "none") == ("q1", "q3")
    assert routing.route("", "q2", "none", "q1", "q2") == ("q1", "q2")


def test_unrouted_message_goes_to_the_alternate_exchange() -> None:
    routing = table(Binding("d", queue("q1"), "k", b""), Binding("f", queue("q2"), "", b""))
    routing.set_alternate("d", "f")
    assert routing.route("d", "k") == ("q1",)
    assert routing.route("d", "other") == ("q2",)
    assert routing.route("d", "other", "k") == ("q1",)
    routing.set_alternate("d", None)
    assert routing.route("d", "other") == ()


def test_alternate_gets_a_message_although_its_source_routed_it() -> None:
    routing = table(
        Binding("f", exchange("d"), "", b""),
        Binding("f", queue("q1"), "", b""),
        Binding("t", queue("q2"), "#", b""),
    )
    routing.set_alternate("d", "t")
    assert routing.route("f", "k") == ("q1", "q2")


def test_alternates_in_a_circle_or_missing_route_to_no_queue() -> None:
    routing = table(Binding("t", queue("q1"), "a", b""))
    for source, alternate in (("d", "f"), ("f", "t"), ("t", "d")):
        routing.set_alternate(source, alternate)
    assert routing.route("d", "a") == ("q1",)
    assert routing.route("d", "b") == ()
    routing.set_alternate("f", "nowhere")
    assert routing.route("d", "a") == ()


def test_removed_exchange_without_a_router_loses_its_alternate() -> None:
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
def test_unknown_exchange_type_is_refused(
    exchange_type: str, arguments: dict[str, object], text: str
) -> None:
    for check in (routing_type, check_exchange):
        with pytest.raises(UnknownExchangeType) as caught:
            check(exchange_type, arguments)
        assert str(caught.value) == text


@pytest.mark.parametrize("exchange_type", sorted(EXCHANGE_TYPES))
def test_a_delayed_exchange_may_route_as_any_type(exchange_type: str) -> None:
    routing = table()
    routing.add_exchange("e", exchange_type, {})
    routing.add_exchange("delayed", "x-delayed-message", {"x-delayed-type": exchange_type})
    for source in ("e", "delayed"):
        for name in QUEUES:
            routing.bind(Binding(source, queue(name), "1", b""), {})
    found = [routing.route(source, "1", content=CONTENT) for source in ("e", "delayed")]
    assert found[0] == found[1] != ()
    with pytest.raises(UnknownExchangeType):
        check_exchange("x-delayed-message", {"x-delayed-type": "other"})


def test_delayed_exchange_checks_and_hashes_as_its_inner_type() -> None:
    routing = table()
    arguments = {"x-delayed-type": "x-consistent-hash", "hash-header": "a"}
    routing.add_exchange("delayed", "x-delayed-message", arguments)
    with pytest.raises(InvalidBinding):
        routing.check_binding("delayed", "k", {})
    routing.check_binding("delayed", "1", {})
    with pytest.raises(NeedsContent):
        routing.route("delayed", "k")


CONTENT = Content({"a": 1}, {}, 5)


def test_content_is_requested_only_by_exchanges_on_the_way() -> None:
    routing = table(Binding("d", exchange("h"), "k", b""), Binding("f", queue("q2"), "", b""))
    routing.add_exchange("h", "headers", {})
    routing.bind(Binding("h", queue("q1"), "", b"a"), {"a": 1})
    routing.set_alternate("h", "f")
    assert routing.route("d", "other") == ()
    with pytest.raises(NeedsContent):
        routing.route("d", "other", "k")
    assert routing.route("d", "k", content=CONTENT) == ("q1",)
    assert routing.route("d", "k", content=Content({}, {}, 5)) == ("q2",)
    routing.set_alternate("d", "h")
    with pytest.raises(NeedsContent):
        routing.route("d", "other")


@pytest.mark.parametrize("kind", ["x-random", "x-local-random"])
def test_random_exchange_picks_a_single_queue_for_each_message(kind: str) -> None:
    routing = table()
    routing.add_exchange("r", kind, {})
    for name in ("q1", "q2"):
        routing.bind(Binding("r", queue(name), "", b""), {})
    found = [routing.route("r", "k", content=Content({}, {}, number)) for number in range(50)]
    assert set(found) == {("q1",), ("q2",)}


def test_circle_with_content_exchanges_ends() -> None:
    routing = table(Binding("f", exchange("h"), "", b""))
    routing.add_exchange("h", "headers", {})
    routing.add_exchange("r", "x-random", {})
    routing.bind(Binding("h", exchange("r"), "", b""), {})
    routing.bind(Binding("h", queue("q1"), "", b"a"), {"a": 1})
    routing.bind(Binding("r", exchange("f"), "", b""), {})
    assert routing.route("r", "k", content=CONTENT) == ("q1",)
    assert routing.route("h", "k", content=Content({}, {}, 0)) == ()


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
    """Return every queue that a message can reach, by searching until no new queue is found."""
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
        trie: TopicPatterns[int] = TopicPatterns()
        trie.add(binding_key, 1)
        return any(trie.match(key))
    return kind == "fanout" or binding_key == key


@given(bindings, alternates, st.data())
def test_routes_are_the_reachable_queues_in_any_binding_order(
    bindings: list[Binding], alternates: dict[str, str], data: st.DataObject
) -> None:
    routing = table(*bindings)
    removed = data.draw(st.lists(st.sampled_from(bindings), unique=True)) if bindings else []
    for binding in removed:
        routing.unbind(binding)
    left = [binding for binding in bindings if binding not in removed]
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


tables = st.dictionaries(st.sampled_from(["a", "b", "x-c"]), st.sampled_from([None, 1, "1"]), max_size=2)
all_types = sorted(EXCHANGE_TYPES)
any_bindings = st.lists(
    st.tuples(
        st.sampled_from(all_types),
        st.one_of(st.sampled_from(QUEUES).map(queue), st.sampled_from(all_types).map(exchange)),
        st.sampled_from(["1", "2", "#", "*.1"]),
        tables,
        st.sampled_from([{}, {"x-match": "any"}, {"x-match": "any-with-x"}]),
    ),
    max_size=15,
)
contents = st.builds(Content, tables, st.just({}), st.integers(0, 9))


@given(
    any_bindings, st.dictionaries(st.sampled_from(all_types), st.sampled_from(all_types)), contents, st.data()
)
def test_types_ignore_binding_order_and_content_not_requested(
    drawn: list[tuple[str, Destination, str, dict[str, object], dict[str, object]]],
    alternates: dict[str, str],
    content: Content,
    data: st.DataObject,
) -> None:
    one, other = RoutingTable(), RoutingTable()
    for routing in (one, other):
        for kind in all_types:
            routing.add_exchange(kind, kind, {})
            routing.set_alternate(kind, alternates.get(kind))
    bindings: dict[Binding, dict[str, object]] = {}
    for source, destination, key, *arguments in drawn:
        if source == "x-consistent-hash" and not key.isdigit():
            key = "1"
        merged = arguments[0] | arguments[1]
        one.check_binding(source, key, merged)
        bindings[Binding(source, destination, key, repr(sorted(merged.items())).encode())] = merged
    for binding, arguments in bindings.items():
        one.bind(binding, arguments)
    for removed in data.draw(st.lists(st.sampled_from(list(bindings)), unique=True)) if bindings else []:
        one.unbind(removed)
        del bindings[removed]
    for binding in data.draw(st.permutations(list(bindings))):
        other.bind(binding, bindings[binding])
    keys = data.draw(st.lists(st.sampled_from(["1", "2", "3.1"]), min_size=1, max_size=2))
    for source in all_types:
        route = one.route(source, *keys, content=content)
        assert route == other.route(source, *keys, content=content)
        try:
            assert one.route(source, *keys) == route
        except NeedsContent:
            with pytest.raises(NeedsContent):
                other.route(source, *keys)


def test_queues_reached_by_a_message_are_limited() -> None:
    routing = RoutingTable()
    routing.add_exchange("f", "fanout", {})
    for number in range(QUEUES_MAX + 1):
        if number == QUEUES_MAX:
            assert len(routing.route("f", "")) == QUEUES_MAX
        routing.bind(Binding("f", Destination(DestinationKind.QUEUE, f"q{number}"), "", b""), {})
    with pytest.raises(RouteTooLong, match=r"reaches 5001 queues, above the limit \(5000\)"):
        routing.route("f", "")


def test_steps_between_exchanges_are_limited() -> None:
    """Each leads to each, and all of them have to be asked for the longest key there is."""
    routing = RoutingTable()
    names = [f"t{number}" for number in range(60)]
    for name in names:
        routing.add_exchange(name, "topic", {})
    pattern = ".".join(["#", "a"] * 60)
    for source in names:
        for name in names:
            routing.bind(Binding(source, Destination(DestinationKind.EXCHANGE, name), pattern, b""), {})
    assert routing.route("t0", "a.b.c.d") == ()
    with pytest.raises(RouteTooLong, match=r"more steps than the limit \(75000\)"):
        routing.route("t0", ".".join("a" * 127))


@pytest.mark.parametrize(
    ("kind", "bound"),
    [("direct", [""] * 1000), ("topic", list(map(".".join, product("*#", repeat=10)))[1:])],
    ids=["direct", "topic"],
)
def test_search_for_many_matching_keys_stops_at_the_limit(
    monkeypatch: pytest.MonkeyPatch, kind: str, bound: list[str]
) -> None:
    """Once some of them took seconds of every node, for a message that was refused then."""
    routing = RoutingTable()
    routing.add_exchange("x", kind, {})
    keys = [".".join("ab"[number >> place & 1] for place in range(10)) for number in range(100)]
    for number, pattern in enumerate(bound):
        for key in [pattern] if pattern else keys:
            routing.bind(Binding("x", queue(f"q{number}"), key, b""), {})
    router = routing._routers["x"]
    match = router.match
    found: list[Binding] = []

    def record_route(_: object, routing_keys: Sequence[str], content: Content | None) -> Iterator[Binding]:
        for binding in match(routing_keys, content):
            found.append(binding)
            yield binding

    monkeypatch.setattr(type(router), "match", record_route)
    with pytest.raises(RouteTooLong, match=r"more steps than the limit \(75000\)"):
        routing.route("x", *keys)
    assert 0 < len(found) <= ROUTE_STEPS_MAX


def test_binding_key_that_makes_matches_too_expensive_is_refused() -> None:
    routing = RoutingTable()
    routing.add_exchange("t", "topic", {})
    for number in range(4094):
        routing.bind(Binding("t", Destination(DestinationKind.QUEUE, f"q{number}"), f"*.{number}", b""), {})
    longest = ".".join(["#", "a"] * 97)
    routing.check_binding("t", "x." * 200, {})  # a key without wildcards costs no steps
    routing.check_binding("t", longest[:-2], {})
    with pytest.raises(InvalidBinding, match=r"would take 50177 steps, above the limit \(50000\)"):
        routing.check_binding("t", longest + ".b", {})
