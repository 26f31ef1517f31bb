"""Policies: settings for all queues or exchanges whose names match a pattern.

Invariant: at most a single user policy and a single operator policy apply to a queue or exchange. The policy must match
the name, and all its settings must be supported by the type. Among these the highest priority wins, then the smallest
name. The search for a name costs at most MATCH_STEPS_MAX steps; a policy that would need more does not match.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.machine.policy.patterns import PATTERN_BYTES_MAX, InvalidPattern, Pattern
from qq.machine.policy.queue_options import ALTERNATE_EXCHANGE, QUEUE_OPTIONS
from qq.machine.policy.value_checks import INTEGERS
from qq.machine.protocol.queue_types import CLASSIC, MODULES, QUORUM

if TYPE_CHECKING:
    from collections.abc import Collection

    from qq.machine.protocol.commands import PutPolicy, Table
    from qq.machine.protocol.work_meter import Work

MATCH_STEPS_MAX = 30_000
"""Pattern-matching steps to find the policy of a name; so many again for the operator policy."""
_SEARCH_STEPS = 8
"""Steps that a search counts as, on top of its own steps."""

_EXCHANGE = "exchange"
APPLIES_TO: dict[str, tuple[str, ...]] = {
    "all": (*MODULES, _EXCHANGE),
    "queues": tuple(MODULES),
    "classic_queues": (CLASSIC,),
    "quorum_queues": (QUORUM,),
    "streams": (),
    "exchanges": (_EXCHANGE,),
}
"""Value of apply-to -> the types that it covers. qq has no streams, but imported definitions name them."""


class InvalidPolicy(ValueError):
    """The policy is not valid; the text is RabbitMQ's."""


class Policy(NamedTuple):
    """Settings for all queues or exchanges with a matching name.

    `definition` holds arguments without their prefix "x-".
    """

    name: str
    pattern: str
    definition: Table
    priority: int
    apply_to: str
    operator: bool = False


def policy_of(command: PutPolicy) -> Policy:
    """Return the policy that a command describes."""
    _, name, operator, pattern, apply_to, priority, definition = command
    return Policy(name, pattern, definition, priority, apply_to, operator)


Applied = tuple[Policy | None, Policy | None]
"""The policy and the operator policy of a queue or an exchange, each None if there is no match."""


class Policies:
    """All user policies and operator policies of a virtual host, by name."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._policies: dict[tuple[bool, str], tuple[Policy, Pattern]] = {}
        self._ranked: dict[bool, list[tuple[Policy, Pattern]]] = {False: [], True: []}
        """The policies of users (False) and of operators (True), each in the order of matching."""

    def put(self, policy: Policy) -> None:
        """Add a policy, or replace the policy of its name. Raise InvalidPolicy."""
        check_policy(policy)
        self._remove(policy.name, operator=policy.operator)
        entry = self._policies[policy.operator, policy.name] = policy, Pattern(policy.pattern)
        insort(self._ranked[policy.operator], entry, key=_rank)

    def __len__(self) -> int:
        """The number of user policies and operator policies together."""
        return len(self._policies)

    def has(self, name: str, *, operator: bool) -> bool:
        """Return whether a policy of this name exists."""
        return (operator, name) in self._policies

    def delete(self, name: str, *, operator: bool) -> bool:
        """Remove a policy, and return whether it existed."""
        return self._remove(name, operator=operator)

    def _remove(self, name: str, *, operator: bool) -> bool:
        removed = self._policies.pop((operator, name), None)
        if removed is not None:
            ranked = self._ranked[operator]
            del ranked[bisect_left(ranked, _rank(removed), key=_rank)]
        return removed is not None

    def get(self, name: str, *, operator: bool) -> Policy | None:
        """Return the policy of this name, or None."""
        known = self._policies.get((operator, name))
        return known and known[0]

    def rows(self) -> list[Policy]:
        """Return all policies: user policies first, each kind sorted by name."""
        return [policy for _, (policy, _) in sorted(self._policies.items(), key=itemgetter(0))]

    def match(self, name: str, kind: str) -> Applied:
        """Return the policy and the operator policy that apply to a queue."""
        return self._first(name, kind, operator=False), self._first(name, kind, operator=True)

    def match_exchange(self, name: str) -> Applied:
        """Return the policy and the operator policy that apply to an exchange."""
        return self.match(name, _EXCHANGE)

    def _first(self, name: str, kind: str, *, operator: bool) -> Policy | None:
        left = MATCH_STEPS_MAX
        for policy, pattern in self._ranked[operator]:
            if not _applies(policy, kind):
                continue
            found, steps = pattern.search_within(name, left)
            steps += _SEARCH_STEPS
            self._work.steps += steps
            left -= steps
            if found:
                return policy
            if left <= 0:
                break
        return None


def _rank(entry: tuple[Policy, Pattern]) -> tuple[int, str]:
    policy, _ = entry
    return -policy.priority, policy.name


def alternate_exchange(applied: Applied) -> str | None:
    """Return the alternate exchange that policies set, or None.

    An argument of the exchange takes precedence over it.
    """
    return effective_definition(*applied).get(ALTERNATE_EXCHANGE)


def effective_definition(policy: Policy | None, operator: Policy | None) -> Table:
    """Merge a policy with an operator policy: operator limits cap the user's, and all remaining settings are kept."""
    if policy is None or operator is None:
        only = policy or operator
        return {} if only is None else only.definition
    merged = dict(policy.definition)
    for key, value in operator.definition.items():
        merged[key] = OPERATOR_KEYS[key](merged[key], value) if key in merged else value
    return merged


def check_policy(policy: Policy) -> None:
    """Raise InvalidPolicy, with RabbitMQ's text, if RabbitMQ would refuse the policy."""
    _check_pattern(policy.pattern)
    if policy.priority not in INTEGERS:
        raise InvalidPolicy(f"priority should be a number, actually was {policy.priority}")
    if policy.apply_to not in APPLIES_TO:
        raise InvalidPolicy(
            f"apply-to '{policy.apply_to}' unrecognised; should be one of: 'queues', 'classic_queues', "
            " 'quorum_queues', 'streams', 'exchanges', or 'all'"
        )
    if not policy.definition:
        raise InvalidPolicy("no policy provided")
    _check_recognised(policy.definition, OPERATOR_KEYS if policy.operator else POLICY_KEYS)
    for key, value in policy.definition.items():
        known = POLICY_KEYS[key]
        if not known.is_valid(value):
            raise InvalidPolicy(f"{erlang_term(value)} is not a valid {known.description}")
    _check_retry(policy.definition)


def erlang_term(value: Any) -> str:
    """Return a JSON value as RabbitMQ's texts print it."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return f'<<"{value}">>'
        case list():
            return f"[{','.join(map(erlang_term, value))}]"
        case dict():
            pairs = (f"{erlang_term(key)} => {erlang_term(entry)}" for key, entry in value.items())
            return f"#{{{','.join(pairs)}}}"
        case _:
            return str(value)


def _applies(policy: Policy, kind: str) -> bool:
    if kind not in APPLIES_TO[policy.apply_to]:
        return False
    unsupported = _UNSUPPORTED.get(kind, frozenset())
    return not any(key in unsupported for key in policy.definition)


def check_version(policy: Policy, version: int) -> None:
    """Raise InvalidPolicy if a key needs a later version of the state."""
    _check_recognised(policy.definition, {name for name, key in POLICY_KEYS.items() if key.since <= version})


def _check_recognised(definition: Table, known: Collection[str]) -> None:
    unknown = [
        f"{{{erlang_term(key)},{erlang_term(value)}}}"
        for key, value in definition.items()
        if key not in known
    ]
    if unknown:
        raise InvalidPolicy(f"[{','.join(unknown)}] are not recognised policy settings")


def _check_pattern(pattern: str) -> None:
    try:
        Pattern(pattern)
    except InvalidPattern as error:
        if len(pattern.encode(errors="surrogatepass")) > PATTERN_BYTES_MAX:
            raise InvalidPolicy(f"pattern must not exceed {PATTERN_BYTES_MAX} bytes") from None
        raise InvalidPolicy(f"pattern should be regular expression but is invalid: {error}") from None


def _check_retry(definition: Table) -> None:
    retry_type, least, most = (definition.get(f"delayed-retry-{part}") for part in ("type", "min", "max"))
    if retry_type not in (None, "disabled") and least is None:
        raise InvalidPolicy(f"delayed-retry-min is required when delayed-retry-type is {retry_type}")
    if least is not None and most is not None and most < least:
        raise InvalidPolicy(
            f"delayed-retry-max ({most}) must not be smaller than delayed-retry-min ({least})"
        )


POLICY_KEYS = {option.name: option.policy for option in QUEUE_OPTIONS if option.policy is not None}
"""The keys that the definition of a policy may have."""
OPERATOR_KEYS = {name: key.operator for name, key in POLICY_KEYS.items() if key.operator is not None}
"""The keys that an operator policy may have -> the function that merges the user's value with the operator's."""
_UNSUPPORTED = {
    kind: frozenset(name for name, key in POLICY_KEYS.items() if kind not in key.types) for kind in MODULES
}
"""Queue type -> the keys that keep a whole policy from applying to it."""
