"""A node accepts the arguments, properties and headers that RabbitMQ 4.0 accepts, except for the list below."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.wire.arguments import CASES, Client, Outcomes, recorded

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.testing import ClusterNode

RECORDED = recorded()


class Difference(NamedTuple):
    place: str
    """A regular expression that matches a whole place."""
    theirs: str
    ours: str
    why: str


DIFFERENCES = (
    Difference(
        r"(classic|quorum) x-dead-letter-exchange \| S octets|direct alternate-exchange \| S octets",
        "ok",
        "406",
        "no exchange can have such a name",
    ),
    Difference(
        r"(classic|quorum) x-dead-letter-routing-key \| S of 256",
        "ok",
        "406",
        "no message can be delivered with such a routing key",
    ),
    Difference(r"quorum x-queue-type \| S stream", "ok", "406", "there are no streams"),
    Difference(
        r"x-consistent-hash hash-(header|property) \| .*",
        "541",
        "406",
        "RabbitMQ fails where the argument is no string",
    ),
    Difference(
        r"x-consistent-hash hash-header \| S octets",
        "ok",
        "406",
        "a header with such a name is not looked up",
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_node_accepts_the_values_that_rabbitmq_accepts(
    node: ClusterNode, case: Callable[[Client], Outcomes]
) -> None:
    with Client(node.amqp_port) as client:
        theirs, ours = RECORDED[case.__name__], case(client)
    assert theirs.keys() == ours.keys()
    differing = [place for place in theirs if theirs[place] != ours[place]]
    unlisted = [
        (place, theirs[place], ours[place]) for place in differing if not _is_listed(place, theirs, ours)
    ]
    assert unlisted == []


def test_differences_are_recorded_outcomes() -> None:
    outcomes = [item for case in RECORDED.values() for item in case.items()]
    for each in DIFFERENCES:
        assert any(re.fullmatch(each.place, place) and each.theirs == outcome for place, outcome in outcomes)


def _is_listed(place: str, theirs: Outcomes, ours: Outcomes) -> bool:
    return any(
        re.fullmatch(each.place, place) and (each.theirs, each.ours) == (theirs[place], ours[place])
        for each in DIFFERENCES
    )
