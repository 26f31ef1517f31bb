from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.routing.content import Content, NeedsContent
from qq.routing.exchanges import check_exchange
from qq.routing.hashing import HASH_STEPS_MAX, ConsistentHash, ModulusHash, Random, _log2
from qq.routing.routers import (
    Arguments,
    Binding,
    Destination,
    DestinationKind,
    InvalidBinding,
    InvalidExchange,
    Router,
)

KEYS = [f"customer-{number}" for number in range(5_000)]


def binding(name: str, weight: int = 1, arguments: bytes = b"") -> Binding:
    return Binding("x", Destination(DestinationKind.QUEUE, name), str(weight), arguments)


def consistent(weights: dict[str, int], arguments: Arguments | None = None) -> ConsistentHash:
    router = ConsistentHash(arguments or {})
    for name, weight in weights.items():
        router.bind(binding(name, weight), {})
    return router


def picked(router: Router, key: str, content: Content | None = None) -> str | None:
    names = [found.destination.name for found in router.match((key,), content)]
    assert len(names) <= 1
    return names[0] if names else None


def placed(router: Router) -> dict[str, str | None]:
    return {key: picked(router, key) for key in KEYS}


def spread_as(found: Counter[str | None], shares: dict[str, float]) -> bool:
    """Pearson's test: the counts differ from the shares by less than five standard deviations of chance."""
    total, parts = sum(found.values()), sum(shares.values())
    assert set(found) <= set(shares)
    expected = {name: total * share / parts for name, share in shares.items()}
    squares = sum((found[name] - many) ** 2 / many for name, many in expected.items())
    freedom = len(shares) - 1
    return squares < freedom + 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize(
    "weights",
    [
        {f"q{number}": 1 for number in range(3)},
        {f"q{number}": 1 for number in range(100)},
        {"one": 1, "two": 2, "ten": 10},
        {f"q{number}": number % 5 + 1 for number in range(40)},
        {"heavy": 10_000, "light": 100, "lighter": 50},
    ],
)
def test_consistent_hash_gives_each_destination_its_weight(weights: dict[str, int]) -> None:
    assert spread_as(Counter(placed(consistent(weights)).values()), dict(weights))


def test_added_binding_moves_only_its_share_of_keys() -> None:
    weights = {f"q{number}": number % 3 + 1 for number in range(10)}
    router = consistent(weights)
    before = placed(router)
    router.bind(binding("new", 4), {})
    after = placed(router)
    moved = [key for key in KEYS if before[key] != after[key]]
    assert {after[key] for key in moved} == {"new"}
    assert len(moved) == pytest.approx(len(KEYS) * 4 / (sum(weights.values()) + 4), rel=0.1)
    router.unbind(binding("new", 4))
    assert placed(router) == before


def test_a_greater_weight_only_attracts() -> None:
    weights = {"a": 1, "b": 2, "c": 3}
    before, after = placed(consistent(weights)), placed(consistent(weights | {"a": 2}))
    assert {after[key] for key in KEYS if before[key] != after[key]} == {"a"}


def test_destination_bound_twice_has_its_greatest_weight() -> None:
    router = consistent({"a": 1, "b": 2})
    for again in (binding("a", 3), binding("a", 3, b"other"), binding("b", 1)):
        router.bind(again, {})
    assert placed(router) == placed(consistent({"a": 3, "b": 2}))


CONSISTENT = "dcbadddcdabbadcbcdbdcdbbdddbabdccbcccbcb"
MODULUS = "dcccabcabcabaadbabcdddacbacdadddaacabdab"
RANDOM = "acbcaccadbcbbccbdcaccadcddaadaaabdabcaca"


def test_keys_keep_their_destination_across_releases() -> None:
    # Nodes of a cluster run different releases, on different platforms, while it is upgraded.
    router = consistent({"a": 1, "b": 2, "c": 3, "d": 3})
    assert "".join(str(picked(router, f"key-{number}")) for number in range(40)) == CONSISTENT
    for kind, expected in ((ModulusHash, MODULUS), (Random, RANDOM)):
        router = kind({})
        for name in "abcd":
            router.bind(binding(name), {})
        content = [Content({}, {}, number) for number in range(40)]
        assert "".join(str(picked(router, f"key-{at.number}", at)) for at in content) == expected


def test_router_without_bindings_picks_no_destination() -> None:
    content = Content({}, {}, 1)
    for router in (ConsistentHash({}), ModulusHash({}), Random({})):
        router.bind(binding("q"), {})
        router.unbind(binding("q"))
        assert picked(router, "k", content) is None


def test_only_the_first_routing_key_is_hashed() -> None:
    router = consistent({f"q{number}": 1 for number in range(10)})
    for key in KEYS[:50]:
        assert list(router.match((key, "cc"), None)) == list(router.match((key,), None))


def test_header_or_property_is_hashed_instead_of_the_routing_key() -> None:
    weights = {f"q{number}": 1 for number in range(10)}
    by_header = consistent(weights, {"hash-header": "customer"})
    by_property = consistent(weights, {"hash-property": "message_id"})
    values = [Content({"customer": key}, {"message_id": key}, 0) for key in KEYS[:2000]]
    for router in (by_header, by_property):
        found = {picked(router, "k", content) for content in values}
        assert found == set(weights)
        assert all(picked(router, "k", at) == picked(router, "other", at) for at in values[:50])
    # Without the header all go to a single destination, with any key.
    without_header = [Content({"other": 1}, {"timestamp": "5"}, number) for number in range(50)]
    for router in (by_header, by_property):
        assert (
            len({picked(router, key, content) for key, content in zip(KEYS, without_header, strict=False)})
            == 1
        )


@pytest.mark.parametrize("value", [None, True, 5, 1.5, b"\xff", "ü", [1, {"k": [None]}], {"b": 1, "a": "x"}])
def test_any_header_can_be_hashed(value: object) -> None:
    router = consistent({"a": 1, "b": 1}, {"hash-header": "h"})
    assert picked(router, "", Content({"h": value}, {}, 1)) == picked(
        router, "k", Content({"h": value}, {}, 2)
    )


def test_tables_hash_the_same_in_any_order() -> None:
    router = consistent({f"q{number}": 1 for number in range(50)}, {"hash-header": "h"})
    one, other = Content({"h": {"a": 1, "b": 2}}, {}, 1), Content({"h": {"b": 2, "a": 1}}, {}, 1)
    assert picked(router, "", one) == picked(router, "", other)


def test_content_is_requested_only_when_hashed() -> None:
    assert picked(consistent({"q": 1}), "k") == "q"
    hashing = [
        consistent({"q": 1}, {argument: "message_id"}) for argument in ("hash-header", "hash-property")
    ]
    for router in (*hashing, Random({})):
        with pytest.raises(NeedsContent):
            router.match(("k",), None)


@pytest.mark.parametrize("kind", [ModulusHash, Random])
def test_each_binding_is_picked_equally_often(kind: type[Router]) -> None:
    router = kind({})
    names = [f"q{number}" for number in range(16)]
    for name in names:
        router.bind(binding(name), {})
    # Numbers that have a stride in common with the number of bindings are no less spread.
    for stride in (1, 16, 2**32):
        contents = (Content({}, {}, number * stride) for number in range(len(KEYS)))
        found = Counter(picked(router, key, at) for key, at in zip(KEYS, contents, strict=True))
        assert spread_as(found, dict.fromkeys(names, 1))


def test_modulus_hash_uses_the_key_and_random_the_message_number() -> None:
    modulus, chance = ModulusHash({}), Random({})
    for number in range(10):
        modulus.bind(binding(f"q{number}"), {})
        chance.bind(binding(f"q{number}"), {})
    assert len({picked(modulus, "k", Content({}, {}, number)) for number in range(50)}) == 1
    assert len({picked(chance, key, Content({}, {}, 5)) for key in KEYS[:50]}) == 1


names = st.text(st.characters(categories=("L", "N")), max_size=3)
many = st.lists(st.builds(binding, names, st.integers(1, 10_000), st.sampled_from([b"", b"x"])), unique=True)


@given(many, st.sampled_from([ConsistentHash, ModulusHash, Random]), st.lists(names, min_size=1), st.data())
def test_picked_destination_does_not_depend_on_binding_order(
    bindings: list[Binding], kind: type[Router], keys: list[str], data: st.DataObject
) -> None:
    one, other = kind({}), kind({})
    removed = data.draw(st.lists(st.sampled_from(bindings), unique=True)) if bindings else []
    for bound in bindings:
        one.bind(bound, {})
    for bound in removed:
        one.unbind(bound)
    for bound in data.draw(st.permutations([bound for bound in bindings if bound not in removed])):
        other.bind(bound, {})
    for number, key in enumerate(keys):
        content = Content({}, {}, number)
        assert picked(one, key, content) == picked(other, key, content)
        assert (picked(one, key, content) is None) is (len(bindings) == len(removed))


@given(st.integers(1, 2**64 - 1))
def test_logarithm_is_accurate_to_a_unit(number: int) -> None:
    assert _log2(number) / 2**24 == pytest.approx(math.log2(number), abs=1.1 / 2**24, rel=0)


@pytest.mark.parametrize(
    ("weight", "text"),
    [
        ("", "The binding key must be an integer: <<>>"),
        ("a", 'The binding key must be an integer: <<"a">>'),
        ("1.5", 'The binding key must be an integer: <<"1.5">>'),
        (" 1", 'The binding key must be an integer: <<" 1">>'),
        ("1_0", 'The binding key must be an integer: <<"1_0">>'),
        ("0", "The binding key must be greater than 0"),
        ("-3", "The binding key must be greater than 0"),
        ("10001", "The binding key must not exceed 10000"),
        ("9" * 255, "The binding key must not exceed 10000"),
    ],
)
def test_a_weight_is_checked_when_binding(weight: str, text: str) -> None:
    with pytest.raises(InvalidBinding) as caught:
        ConsistentHash({}).check(weight, {})
    assert str(caught.value) == text


@pytest.mark.parametrize("weight", ["1\n", "\u0663", "\uff11", "0x1", "+", "1 "])
def test_weight_that_erlang_cannot_read_is_refused(weight: str) -> None:
    with pytest.raises(InvalidBinding, match="must be an integer"):
        ConsistentHash({}).check(weight, {})


@pytest.mark.parametrize("weight", ["1", "10000", "+5", "007"])
def test_weight_that_erlang_reads_is_accepted(weight: str) -> None:
    router = ConsistentHash({})
    router.check(weight, {})
    bound = Binding("x", Destination(DestinationKind.QUEUE, "q"), weight, b"")
    router.bind(bound, {})
    assert list(router.match(("k",), None)) == [bound]


def test_further_hash_types_accept_any_binding() -> None:
    for router in (ModulusHash({}), Random({})):
        router.check("not a number", {"x-match": 5})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"hash-header": "a", "hash-property": "message_id"},
            "hash-header and hash-property are mutually exclusive",
        ),
        ({"hash-property": "app_id"}, "Unsupported property: app_id"),
        ({"hash-header": 5}, "Invalid argument, 'hash-header' must be a string"),
        ({"hash-property": None}, "Invalid argument, 'hash-property' must be a string"),
    ],
)
def test_hash_arguments_are_checked_when_declaring(arguments: dict[str, object], text: str) -> None:
    for kind in ("x-consistent-hash", "x-delayed-message"):
        with pytest.raises(InvalidExchange) as caught:
            check_exchange(kind, {"x-delayed-type": "x-consistent-hash", **arguments})
        assert str(caught.value) == text
    check_exchange("x-modulus-hash", arguments)


@pytest.mark.parametrize(("same", "fit"), [(True, HASH_STEPS_MAX - 15), (False, HASH_STEPS_MAX // 16)])
def test_cost_of_a_message_in_a_consistent_hash_is_bounded(same: bool, fit: int) -> None:
    router = ConsistentHash({})
    for number in range(1, fit + 1):
        weight = 1 if same else number
        router.check(str(weight), {})
        router.bind(binding(f"q{number}", weight), {})
    assert router.steps(("k",), None) == HASH_STEPS_MAX
    with pytest.raises(InvalidBinding, match=r"would cost \d+ steps.* above the limit \(4000\)"):
        router.check("1", {})
    router.unbind(binding("q1"))
    router.check("1", {})
