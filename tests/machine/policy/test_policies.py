"""The policy that applies, the limits of operator policies, and refused definitions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.machine.policy.policies import (
    InvalidPolicy,
    Policies,
    Policy,
    alternate_exchange,
    check_policy,
    check_version,
    effective_definition,
)
from qq.machine.protocol.commands import PutPolicy
from qq.machine.protocol.queue_types import CLASSIC, QUORUM
from qq.machine.protocol.work_meter import Work
from tests.machine.machine_driver import Driver

NAMES = ["", "a", "b", "ab", "ba", "aab"]
MATCHES = {
    "": NAMES,
    ".*": NAMES,
    "^a": ["a", "ab", "aab"],
    "b$": ["b", "ab", "aab"],
    "^ab$": ["ab"],
    "x": [],
}
WHOM = {
    "all": {CLASSIC, QUORUM, "exchange"},
    "queues": {CLASSIC, QUORUM},
    "classic_queues": {CLASSIC},
    "quorum_queues": {QUORUM},
    "streams": set[str](),
    "exchanges": {"exchange"},
}
NOT_CLASSIC = {"delivery-limit", "target-group-size"}


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    operator = draw(st.booleans())
    keys = ["max-length", "delivery-limit", "target-group-size"]
    if not operator:
        keys += ["queue-mode", "alternate-exchange"]
    definition = {
        key: {"queue-mode": "lazy", "alternate-exchange": "ae"}.get(key, draw(st.integers(1, 9)))
        for key in draw(st.lists(st.sampled_from(keys), min_size=1, max_size=2))
    }
    return Policy(
        name=draw(st.sampled_from("pqr")),
        pattern=draw(st.sampled_from(sorted(MATCHES))),
        definition=definition,
        priority=draw(st.integers(-1, 1)),
        apply_to=draw(st.sampled_from(sorted(WHOM))),
        operator=operator,
    )


def applies(policy: Policy, name: str, kind: str) -> bool:
    keys = set(policy.definition)
    unsupported = {CLASSIC: keys & NOT_CLASSIC, QUORUM: keys & {"queue-mode"}}.get(kind)
    return kind in WHOM[policy.apply_to] and not unsupported and name in MATCHES[policy.pattern]


def best(candidates: list[Policy]) -> Policy | None:
    return min(candidates, key=lambda policy: (-policy.priority, policy.name), default=None)


def policy(
    definition: dict[str, object], *, name: str = "p", pattern: str = ".*", operator: bool = False
) -> Policy:
    return Policy(name, pattern, definition, 0, "all", operator)


changes = st.lists(
    st.one_of(policies(), policies(), st.tuples(st.sampled_from("pqr"), st.booleans())), max_size=12
)


@given(changes)
def test_policy_of_highest_priority_then_first_name_applies(steps: list[Policy | tuple[str, bool]]) -> None:
    tested = Policies(Work())
    model: dict[tuple[bool, str], Policy] = {}
    for step in steps:
        if isinstance(step, Policy):
            tested.put(step)
            model[step.operator, step.name] = step
        else:
            name, operator = step
            assert tested.delete(name, operator=operator) == ((operator, name) in model)
            model.pop((operator, name), None)
        assert tested.rows() == [model[key] for key in sorted(model)]
        for name in NAMES:
            expected = {
                kind: tuple(
                    best([p for p in model.values() if p.operator is operator and applies(p, name, kind)])
                    for operator in (False, True)
                )
                for kind in (CLASSIC, QUORUM, "exchange")
            }
            assert tested.match(name, CLASSIC) == expected[CLASSIC]
            assert tested.match(name, QUORUM) == expected[QUORUM]
            assert tested.match_exchange(name) == expected["exchange"]


def test_order_of_policies_does_not_matter() -> None:
    one, other = policy({"expires": 1}, name="b"), policy({"expires": 2}, name="a")
    for order in ([one, other], [other, one]):
        tested = Policies(Work())
        for each in order:
            tested.put(each)
        assert tested.match("q", QUORUM) == (other, None)


def test_policy_of_negative_priority_applies_last() -> None:
    blanket, other = policy({"expires": 1}, name="a")._replace(priority=-20), policy({"expires": 2}, name="b")
    tested = Policies(Work())
    tested.put(blanket)
    assert tested.match("q", QUORUM) == (blanket, None)
    tested.put(other)
    assert tested.match("q", QUORUM) == (other, None)


def test_exchange_gets_its_alternate_from_its_policy() -> None:
    tested = Policies(Work())
    assert alternate_exchange(tested.match_exchange("x")) is None
    tested.put(Policy("p", "^x$", {"alternate-exchange": "ae"}, 0, "exchanges"))
    assert alternate_exchange(tested.match_exchange("x")) == "ae"
    assert alternate_exchange(tested.match_exchange("y")) is None
    tested.put(Policy("q", "", {"max-length": 1}, 5, "all"))
    assert alternate_exchange(tested.match_exchange("x")) is None


def test_refused_policy_changes_no_state() -> None:
    tested = Policies(Work())
    tested.put(policy({"max-length": 1}))
    with pytest.raises(InvalidPolicy):
        tested.put(policy({"max-length": -1}))
    assert tested.rows() == [policy({"max-length": 1})]


@pytest.mark.parametrize(
    ("key", "mine", "theirs", "merged"),
    [
        ("max-length", 5, 9, 5),
        ("max-length", 9, 5, 5),
        ("max-length-bytes", 9, 5, 5),
        ("max-in-memory-length", 9, 5, 5),
        ("max-in-memory-bytes", 9, 5, 5),
        ("message-ttl", 9, 5, 5),
        ("expires", 9, 5, 5),
        ("delivery-limit", 9, 5, 5),
        ("delivery-limit", -1, 5, 5),
        ("delivery-limit", 9, -1, 9),
        ("delivery-limit", -3, -1, -1),
        ("overflow", "drop-head", "reject-publish", "reject-publish"),
        ("overflow", "reject-publish", "drop-head", "drop-head"),
        ("queue-version", 2, 1, 1),
        ("target-group-size", 3, 5, 5),
        ("delayed-retry-type", "all", "disabled", "disabled"),
        ("delayed-retry-min", 3, 5, 5),
        ("delayed-retry-max", 3, 5, 3),
    ],
)
def test_an_operators_limit_cannot_be_exceeded(
    key: str, mine: object, theirs: object, merged: object
) -> None:
    user, operator = policy({key: mine, "dead-letter-exchange": "d"}), policy({key: theirs}, operator=True)
    assert effective_definition(user, operator) == {key: merged, "dead-letter-exchange": "d"}
    assert effective_definition(user, None) == user.definition
    assert effective_definition(None, operator) == operator.definition
    assert effective_definition(policy({"queue-mode": "lazy"}), operator) == {
        "queue-mode": "lazy",
        key: theirs,
    }
    assert user.definition[key] == mine


def test_effective_definition_is_empty_without_policies() -> None:
    assert effective_definition(None, None) == {}


@pytest.mark.parametrize(
    ("definition", "error"),
    [
        ({}, "no policy provided"),
        ({"foo": 1}, '[{<<"foo">>,1}] are not recognised policy settings'),
        (
            {"ha-mode": "all", "max-length": -1, "max-priority": 10},
            '[{<<"ha-mode">>,<<"all">>},{<<"max-priority">>,10}] are not recognised policy settings',
        ),
        ({"alternate-exchange": 1}, "1 is not a valid alternate exchange name"),
        (
            {"consumer-disconnected-timeout": -1},
            "-1 is not a valid consumer disconnected timeout",
        ),
        ({"consumer-timeout": "1"}, '<<"1">> is not a valid consumer timeout'),
        ({"dead-letter-exchange": True}, "true is not a valid dead letter exchange name"),
        ({"dead-letter-routing-key": None}, "null is not a valid dead letter routing key"),
        (
            {"dead-letter-routing-key": "k" * 256},
            f'<<"{"k" * 256}">> is not a valid dead letter routing key',
        ),
        ({"dead-letter-strategy": "x"}, '<<"x">> is not a valid dead letter strategy'),
        ({"message-ttl": -1}, "-1 is not a valid message TTL"),
        ({"expires": 0}, "0 is not a valid queue expiry"),
        ({"max-length": 1.5}, "1.5 is not a valid maximum length"),
        ({"max-length": 2**63}, "9223372036854775808 is not a valid maximum length"),
        ({"delivery-limit": -(2**63) - 1}, "-9223372036854775809 is not a valid delivery limit"),
        ({"max-length": True}, "true is not a valid maximum length"),
        ({"max-length-bytes": [1, "a"]}, '[1,<<"a">>] is not a valid maximum length in bytes'),
        ({"max-in-memory-length": -1}, "-1 is not a valid maximum memory in bytes"),
        ({"max-in-memory-bytes": -1}, "-1 is not a valid maximum memory in bytes"),
        ({"queue-mode": "x"}, '<<"x">> is not a valid queue-mode value'),
        ({"queue-version": 3}, "3 is not a valid queue-version value"),
        ({"overflow": {"a": 1}}, '#{<<"a">> => 1} is not a valid overflow value'),
        ({"delivery-limit": "20"}, '<<"20">> is not a valid delivery limit'),
        ({"queue-leader-locator": "here"}, '<<"here">> is not a valid queue leader locator value'),
        ({"target-group-size": 0}, "0 is not a valid qq target count value"),
        (
            {"delayed-retry-type": "x"},
            '<<"x">> is not a valid delayed retry type. Must be one of: all, failed, returned, disabled',
        ),
        (
            {"delayed-retry-min": 0},
            "0 is not a valid delayed retry minimum delay. Must be a positive integer",
        ),
        (
            {"delayed-retry-max": 0},
            "0 is not a valid delayed retry maximum delay. Must be a positive integer",
        ),
        (
            {"delayed-retry-type": "all"},
            "delayed-retry-min is required when delayed-retry-type is all",
        ),
        (
            {"delayed-retry-min": 2, "delayed-retry-max": 1},
            "delayed-retry-max (1) must not be smaller than delayed-retry-min (2)",
        ),
        ({"priority-mode": "x"}, '<<"x">> is not a valid priority mode'),
        ({"return-position": "x"}, '<<"x">> is not a valid return position'),
        ({"delivery-count-mode": 4.3}, "4.3 is not a valid delivery count mode"),
        ({"consumer-timeout-action": "x"}, '<<"x">> is not a valid consumer timeout action'),
        ({"max-age": 5}, "5 is not a valid max age"),
        ({"max-age": "5X"}, '<<"5X">> is not a valid max age'),
        ({"stream-filter-size-bytes": 15}, "15 is not a valid filter size. Valid range is 16-255"),
        ({"stream-max-segment-size-bytes": -1}, "-1 is not a valid segment size"),
        ({"initial-cluster-size": "a"}, '<<"a">> is not a valid cluster size'),
        ({"queue-master-locator": 1}, "1 is not a valid master locator"),
    ],
)
def test_a_wrong_definition_is_refused_with_rabbitmqs_text(definition: dict[str, object], error: str) -> None:
    with pytest.raises(InvalidPolicy) as refusal:
        check_policy(policy(definition))
    assert str(refusal.value) == error


@pytest.mark.parametrize(
    "definition",
    [
        {
            "max-length": 0,
            "max-length-bytes": 0,
            "message-ttl": 0,
            "expires": 1,
            "overflow": "reject-publish-dlx",
            "delivery-limit": -1,
            "queue-leader-locator": "balanced",
            "consumer-timeout": 0,
            "consumer-disconnected-timeout": 0,
            "target-group-size": 5,
        },
        {"dead-letter-exchange": "", "dead-letter-routing-key": "", "dead-letter-strategy": "at-least-once"},
        {"delayed-retry-type": "failed", "delayed-retry-min": 1, "delayed-retry-max": 1},
        {"delayed-retry-type": "disabled"},
        {
            "priority-mode": "strict",
            "return-position": "original",
            "delivery-count-mode": "4.3",
            "consumer-timeout-action": "cancel-consumer",
        },
        {"queue-mode": "lazy", "queue-version": 2, "max-in-memory-length": 0, "max-in-memory-bytes": 0},
        {"alternate-exchange": "ae"},
        {"max-age": "7D", "stream-max-segment-size-bytes": 0, "stream-filter-size-bytes": 16},
        {"initial-cluster-size": 3, "queue-master-locator": "min-masters"},
    ],
)
def test_valid_definition_is_accepted(definition: dict[str, object]) -> None:
    check_policy(policy(definition))


LATER = [
    {"max-age": "7D"},
    {"stream-max-segment-size-bytes": 500},
    {"stream-filter-size-bytes": 255},
    {"initial-cluster-size": 3},
    {"queue-master-locator": "random"},
]


@pytest.mark.parametrize("definition", LATER, ids=str)
def test_policy_is_entered_since_the_version_of_its_settings(definition: dict[str, Any]) -> None:
    [key] = definition
    for version, names in ((8, []), (9, ["p"])):
        driver = Driver()
        driver.machine.raise_to(version)
        driver.apply(PutPolicy("/", "p", False, ".*", "all", 0, definition))
        assert [each.name for each in driver.machine.vhosts["/"].policies.rows()] == names
    check_version(policy(definition), 9)
    with pytest.raises(InvalidPolicy, match=f".*{key}.* are not recognised policy settings"):
        check_version(policy(definition), 8)


@pytest.mark.parametrize("definition", LATER, ids=str)
def test_policy_with_stream_settings_does_not_apply_elsewhere(definition: dict[str, Any]) -> None:
    policies = Policies(Work())
    policies.put(policy({**definition, "max-length": 5}))
    [key] = definition
    of_all, of_classic = key == "stream-filter-size-bytes", key == "queue-master-locator"
    assert (policies.match("q", CLASSIC)[0] is not None) == (of_all or of_classic)
    assert (policies.match("q", QUORUM)[0] is not None) == of_all


def test_an_operator_may_only_set_limits() -> None:
    check_policy(policy({"max-length": 1, "delayed-retry-type": "disabled"}, operator=True))
    with pytest.raises(InvalidPolicy) as refusal:
        check_policy(policy({"max-length": 1, "dead-letter-exchange": "x"}, operator=True))
    assert str(refusal.value) == '[{<<"dead-letter-exchange">>,<<"x">>}] are not recognised policy settings'


@pytest.mark.parametrize(
    ("pattern", "error"),
    [
        ("(", 'pattern should be regular expression but is invalid: {"missing )",1}'),
        ("a" * 1025, "pattern must not exceed 1024 bytes"),
    ],
)
def test_a_wrong_pattern_is_refused(pattern: str, error: str) -> None:
    with pytest.raises(InvalidPolicy) as refusal:
        check_policy(policy({"expires": 1}, pattern=pattern))
    assert str(refusal.value) == error


def test_an_unknown_apply_to_is_refused() -> None:
    with pytest.raises(InvalidPolicy) as refusal:
        check_policy(Policy("p", "", {"expires": 1}, 0, "everything"))
    assert str(refusal.value) == (
        "apply-to 'everything' unrecognised; should be one of: 'queues', 'classic_queues', "
        " 'quorum_queues', 'streams', 'exchanges', or 'all'"
    )


def test_a_priority_that_the_log_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidPolicy) as refusal:
        check_policy(Policy("p", "", {"expires": 1}, 2**63, "all"))
    assert str(refusal.value) == "priority should be a number, actually was 9223372036854775808"
