"""Each broken promise is found with its row; a healthy history breaks no promise."""

from __future__ import annotations

from itertools import chain

import pytest

from chaos.promises import PROMISES
from tests.chaos.judge.histories import Judged, Row
from tests.chaos.judge.stories.collection import HEALTHY, PLANTED


def found(judged: Judged, story: str) -> dict[str, list[Row]]:
    """The examples of a story's processes, by promise."""
    by_promise = {
        promise.name: [row for row in promise.examples if row["process"].startswith(f"{story}/")]
        for promise in judged.promises
    }
    return {name: rows for name, rows in by_promise.items() if rows}


@pytest.mark.parametrize("story", [teller.__name__ for teller in HEALTHY])
def test_healthy_history_breaks_no_promise(judged: Judged, story: str) -> None:
    assert found(judged, story) == {}


@pytest.mark.parametrize("story", [teller.__name__ for teller in PLANTED])
def test_planted_violation_is_found_with_its_row(judged: Judged, story: str) -> None:
    assert found(judged, story) == judged.planted[story]


def test_every_promise_is_broken_and_its_violations_counted(judged: Judged) -> None:
    rows = list(chain.from_iterable(found.items() for found in judged.planted.values()))
    expected = {name: sum(len(shown) for promise, shown in rows if promise == name) for name in PROMISES}
    assert {promise.name: promise.violations for promise in judged.promises} == expected
    assert all(expected.values())
    assert all(promise.checked >= promise.violations for promise in judged.promises)
    assert not any(promise.holds for promise in judged.promises)
