"""Each type of queue behaves as in RabbitMQ, except for the differences in the list below.

`queue_types.py` has recorded the outcomes of RabbitMQ 4.0.5 in `queue_types.json`. A difference outside of the list is
a failure. So is a listed difference that has ended.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.queues.nodes_here import ClusterHere
from tests.queues.queue_types import CASES, Broker, Kind, outcomes, read_recorded

RECORDED = read_recorded((Path(__file__).parent / "queue_types.json").read_text())
STATISTICS_S = 0.5
ABSENT = "(absent)"


class Difference(NamedTuple):
    case: str
    place: str
    """A regular expression that matches a whole place, "KIND / KEY"."""
    ours: str
    """A regular expression that matches the whole outcome of qq, as JSON."""
    why: str


DIFFERENCES = [
    Difference(
        "arguments",
        r"(?!quorum).* / \{'x-(priority|delivery-count)-mode'.*",
        '"406 .* of queue type rabbit_classic_queue"',
        "the argument is qq's own, and of quorum queues",
    ),
    Difference(
        "arguments",
        r"server-named / {'x-queue-type': ('a'|1|'')}",
        '"406 .*"',
        "RabbitMQ fails with 541",
    ),
    Difference(
        "redeclared",
        r"quorum / with (a wrong )?x-message-ttl",
        "\"406 .* inequivalent arg 'x-message-ttl' .*\"",
        "of several arguments that differ, RabbitMQ names another one",
    ),
    Difference(
        "priorities",
        r"(?!quorum).* / 0",
        r'\["None", "0", "1", .*',
        "RabbitMQ has two levels where 0 asks for none",
    ),
    Difference(
        "priorities", r"(?!quorum).* / 255", r'\["40", "255", "11", .*', "levels above 31 are one level"
    ),
    Difference(
        "deaths",
        r"(?!quorum).* / reject-publish-dlx",
        "null",
        "no queue dead-letters the messages that it refuses",
    ),
    Difference(
        "single_active",
        r"(?!quorum).* / with priorities",
        r'\["a best", "b better"\]',
        "a better consumer takes over at once, also at a classic queue",
    ),
    Difference(
        "channel_limit",
        "quorum",
        r'\["ok", \["a", "b", "c"\]\]',
        "the limit of a channel works with quorum queues",
    ),
    Difference(
        "fields",
        r"(exclusive|server-named) / listed",
        r".*owner_pid_details.*",
        "RabbitMQ shows the owner where one queue is asked for",
    ),
    Difference(
        "conditional_deletes",
        r"quorum / if_\w+ True",
        '"ok"',
        "conditional deletes work with quorum queues",
    ),
    Difference(
        "conditional_deletes",
        r"quorum / if_\w+ False",
        '"406 .*"',
        "conditional deletes work with quorum queues",
    ),
]


@pytest.fixture(scope="module")
def broker(cluster_here: ClusterHere) -> Generator[Broker]:
    node = cluster_here.nodes[1]
    broker = Broker(node.url, f"http://127.0.0.1:{node.http_port}", STATISTICS_S)
    yield broker
    broker.close()


def _unlike(theirs: Any, ours: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[str, str, str]]:
    """Yield each place where two outcomes differ, with both values."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in theirs.keys() | ours.keys():
            yield from _unlike(theirs.get(key, ABSENT), ours.get(key, ABSENT), (*place, key))
    elif theirs != ours:
        yield " / ".join(place), json.dumps(theirs), json.dumps(ours)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_queue_of_each_type_behaves_as_in_rabbitmq(
    broker: Broker, case: Callable[[Broker, Kind], Any]
) -> None:
    listed = [each for each in DIFFERENCES if each.case == case.__name__]
    found: set[Difference] = set()
    unlisted: list[tuple[str, str, str]] = []
    for place, theirs, ours in _unlike(RECORDED[case.__name__], outcomes(broker, case)):
        known = [each for each in listed if re.fullmatch(each.place, place) and re.fullmatch(each.ours, ours)]
        found.update(known)
        if not known:
            unlisted.append((place, theirs, ours))
    assert unlisted == []
    assert found == set(listed), "a listed difference has ended"
