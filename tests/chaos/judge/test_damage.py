"""Each operator that breaks a recorded history is found, and the untouched history breaks no promise."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest

from chaos import history
from chaos.judge.memory import findings
from chaos.judge.run import Run
from chaos.sim.recorded import OPTIONS, record
from tests.chaos.judge.damage import OPERATORS, QUICK, SECONDS, SEED, Operator

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from chaos.history import Row

LONG_SEED, LONG_SECONDS = 1, 20.0


class Recording(NamedTuple):
    rows: Sequence[Any]
    run: Run

    def broken(self, rows: Sequence[Any]) -> dict[str, set[str]]:
        """Return the causes by broken promise."""
        found: dict[str, set[str]] = {}
        for cause in findings(cast("Sequence[Row]", rows), self.run).violations:
            found.setdefault(cause.promise, set()).add(cause.name)
        return found


def recorded(directory: Path, seed: int, seconds: float) -> Recording:
    """Return what the clients of a simulated cluster recorded under faults."""
    assert record(seed, directory, replace(OPTIONS, duration_s=seconds)) == []
    run = Run.described(json.loads((directory / "meta.json").read_text()))
    return Recording(history.read(directory / "history"), run)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return recorded(tmp_path_factory.mktemp("recording"), SEED, SECONDS)


@pytest.fixture(scope="module")
def long_recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return recorded(tmp_path_factory.mktemp("recording"), LONG_SEED, LONG_SECONDS)


def test_untouched_history_breaks_no_promise(recording: Recording) -> None:
    assert recording.broken(recording.rows) == {}


def test_there_are_more_than_seventy_operators() -> None:
    assert len({operator.name for operator in OPERATORS}) == len(OPERATORS) > 70


@pytest.mark.parametrize("operator", QUICK, ids=lambda operator: operator.name)
def test_damaged_history_breaks_a_promise(recording: Recording, operator: Operator) -> None:
    found = recording.broken(operator.damaged(recording.rows, SEED))
    assert operator.promises & found.keys(), found


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
def test_damage_of_any_message_is_found(long_recording: Recording, seed: int) -> None:
    rows = long_recording.rows
    missed = [
        operator.name
        for operator in OPERATORS
        if not operator.promises & long_recording.broken(operator.damaged(rows, seed)).keys()
    ]
    assert missed == []
