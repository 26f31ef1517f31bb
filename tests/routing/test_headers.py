from __future__ import annotations

from collections.abc import Hashable
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.routing import headers as headers_module
from qq.routing.content import Content, NeedsContent
from qq.routing.headers import Condition, Headers
from qq.routing.masks import Masks
from qq.routing.routers import Binding, Destination, DestinationKind, InvalidBinding
from qq.routing.values import comparable

Table = dict[str, object]

VALUES: list[object] = [
    *("a", b"a", bytearray(b"a"), "", b"\xff", bytearray(b"\xff"), "true", None),
    *(0, 1, True, False, 1.0, 0.0, -0.0, float("nan"), Decimal(1), Decimal("1.0"), Decimal("1.00")),
    *(datetime.fromtimestamp(1, tz=UTC), datetime.fromtimestamp(2, tz=UTC)),
    *([], [1], [True], ["a", None], [b"a", None], {}, {"k": 1, "j": "a"}, {"j": b"a", "k": 1}, {"k": 1.0}),
]
KEYS = ["a", "b", "x-c", "x-", "X-d", "x-match"]

tables = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=4)
matching = st.sampled_from([{}, *({"x-match": how} for how in ("all", "any", "all-with-x", "any-with-x"))])


def equal(one: object, other: object) -> bool:
    """The definition, class by class."""
    if isinstance(one, str):
        one = one.encode()
    if isinstance(other, str):
        other = other.encode()
    match one, other:
        case ((bytes() | bytearray()), (bytes() | bytearray())):
            return bytes(one) == bytes(other)
        case list(), list():
            return len(one) == len(other) and all(map(equal, one, other))
        case dict(), dict():
            return set(one) == set(other) and all(equal(one[key], other[key]) for key in one)
        case float(), float():
            return str(one) == str(other)
        case Decimal(), Decimal():
            return str(one) == str(other)
        case _:
            return type(one) is type(other) and one == other


def matches(arguments: Table, headers: Table) -> bool:
    """The definition, argument by argument."""
    how = str(arguments.get("x-match", "all"))
    found: list[bool] = []
    for key, value in arguments.items():
        if key == "x-match" or (key.startswith("x-") and not how.endswith("-with-x")):
            continue
        found.append(key in headers and (value is None or equal(value, headers[key])))
    return any(found) if how.startswith("any") else all(found)


def binding(number: int) -> Binding:
    return Binding("h", Destination(DestinationKind.QUEUE, f"q{number}"), "", b"")


def matched(router: Headers, headers: Table) -> set[Binding]:
    return set(router.match(("k",), Content(headers, {}, 0)))


@given(st.lists(st.tuples(tables, matching), max_size=10), st.lists(tables, min_size=1), st.data())
def test_headers_match_as_defined_in_any_binding_order(
    bound: list[tuple[Table, Table]], messages: list[Table], data: st.DataObject
) -> None:
    router, reordered = Headers({}), Headers({})
    bindings = {binding(number): arguments | how for number, (arguments, how) in enumerate(bound)}
    bindings = {key: _valid(arguments) for key, arguments in bindings.items()}
    for key, arguments in bindings.items():
        router.bind(key, arguments)
    for removed in data.draw(st.lists(st.sampled_from(list(bindings)), unique=True)) if bindings else []:
        router.unbind(removed)
        del bindings[removed]
    for key in data.draw(st.permutations(list(bindings))):
        reordered.bind(key, bindings[key])
    for headers in messages:
        expected = {key for key, arguments in bindings.items() if matches(arguments, headers)}
        assert matched(router, headers) == expected
        assert matched(reordered, headers) == expected


def _valid(arguments: Table) -> Table:
    return arguments if isinstance(arguments.get("x-match"), str) else arguments | {"x-match": "all"}


@pytest.mark.parametrize(
    ("arguments", "headers", "expected"),
    [
        ({}, {}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"x-match": "any", "a": 1, "b": 2}, {"a": 1}, True),
        ({"x-match": "any", "a": 1}, {"a": True}, False),
        ({"a": None}, {"a": "anything"}, True),
        ({"a": None}, {"a": None}, True),
        ({"a": None}, {}, False),
        ({"a": ""}, {"a": None}, False),
        ({"x-a": 1}, {}, True),
        ({"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
        ({"x-match": "all-with-x", "x-a": 1}, {}, False),
        ({"x-match": "all-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"x-match": "any-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"x-match": "any-with-x"}, {"x-match": "any-with-x"}, False),
        ({"x-match": "all-with-x"}, {}, True),
    ],
)
def test_known_bindings(arguments: Table, headers: Table, expected: bool) -> None:
    router = Headers({})
    router.bind(binding(1), arguments)
    assert bool(matched(router, headers)) is expected
    assert matches(arguments, headers) is expected


def test_removing_all_bindings_leaves_the_router_empty() -> None:
    router = Headers({})
    for number, how in enumerate(("all", "any", "all-with-x")):
        router.bind(binding(number), {"x-match": how, "a": 1, "b": None, "x-c": 2})
    router.bind(binding(3), {})
    for number in range(4):
        router.unbind(binding(number))
    assert not router._bindings
    assert not any(
        (router._any, router._all, router._wants_all, router._wanted, router._conditions, router._names)
    )


class CountingMasks(Masks[Condition]):
    """Counts how often a set is asked for."""

    lookups = 0

    def get(self, key: Condition) -> int:
        CountingMasks.lookups += 1
        return super().get(key)


@pytest.mark.parametrize("how", ["all", "any"])
def test_bindings_with_equal_conditions_share_their_lookups(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers_module, "Masks", CountingMasks)
    headers: Table = {"type": "order", "unit": "kg", "id": 7, **{f"h{number}": 1 for number in range(50)}}
    for count in (1, 10_000):
        router = Headers({})
        for number in range(count):
            router.bind(binding(number), {"x-match": how, "type": "order", "unit": None, "h1": 1, "no": 1})
        CountingMasks.lookups = 0
        assert len(matched(router, headers)) == (count if how == "any" else 0)
        assert CountingMasks.lookups == 2 * 3  # headers without a binding are not looked up
        content = Content(headers, {}, 0)
        assert router.steps(("k",), content) >= CountingMasks.lookups


def test_only_values_that_a_binding_names_are_made_comparable(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[object] = []

    def record_value(value: object) -> Hashable:
        compared.append(value)
        return comparable(value)

    router = Headers({})
    for number, how in enumerate(("any", "all")):
        router.bind(binding(number), {"x-match": how, "a": [None], "b": None})
    monkeypatch.setattr(headers_module, "comparable", record_value)
    large: list[object] = [None] * (headers_module.VALUES_MAX + 1)
    assert len(matched(router, {"b": large, "c": [None]})) == 1
    assert len(matched(router, {"a": {"k": [large]}})) == 0
    assert compared == []
    assert len(matched(router, {"a": [None], "b": 1, "c": [None]})) == 2
    assert compared == [[None], 1]


def test_no_route_is_known_without_the_headers() -> None:
    with pytest.raises(NeedsContent):
        Headers({}).match(("k",), None)


VALUE = "Invalid x-match field value {}; expected all, any, all-with-x, or any-with-x"
TYPE = "Invalid x-match field type {} (value {}); expected longstr"


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("some", VALUE.format('<<"some">>')),
        ("ALL", VALUE.format('<<"ALL">>')),
        ("", VALUE.format("<<>>")),
        (b"\xffa", VALUE.format("<<255,97>>")),
        (5, TYPE.format("signedint", "5")),
        (2**40, TYPE.format("long", "1099511627776")),
        (True, TYPE.format("bool", "true")),
        (None, TYPE.format("void", "undefined")),
        (1.5, TYPE.format("double", "1.5")),
        (Decimal("-1.50"), TYPE.format("decimal", "{2,-150}")),
        (datetime.fromtimestamp(77, tz=UTC), TYPE.format("timestamp", "77")),
        (["all", 1], TYPE.format("array", '[{longstr,<<"all">>},{signedint,1}]')),
        ({"k": "v"}, TYPE.format("table", '[{<<"k">>,longstr,<<"v">>}]')),
    ],
)
def test_binding_with_invalid_x_match_is_refused(how: object, text: str) -> None:
    with pytest.raises(InvalidBinding) as caught:
        Headers({}).check("", {"x-match": how})
    assert str(caught.value) == text


@pytest.mark.parametrize(
    "arguments", [{}, *({"x-match": how, "a": 1} for how in ("all", "any", "all-with-x", "any-with-x"))]
)
def test_each_x_match_mode_may_be_bound(arguments: Table) -> None:
    Headers({}).check("any key", arguments)
