"""The benchmark of many clients says whether its aims are met, and may open as many connections as it needs."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks import connections
from tests.benchmarks.connections import RABBITMQ_QUEUES, Row, beside_rabbitmq, shown


def test_an_aim_that_is_missed_is_shown_and_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row("a", "1 ms"), Row("b", "1 ms", "below 2 ms"), Row("c", "3 ms", "below 2 ms", met=False)]
    assert shown(rows[:2])
    assert not shown(rows)
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| a | 1 ms |  |  |",
        "| b | 1 ms | below 2 ms | met |",
        "| c | 3 ms | below 2 ms | MISSED |",
    ]


@pytest.mark.parametrize(
    ("count", "seconds", "p50_ms", "met"),
    [
        (RABBITMQ_QUEUES, 47.0, 42.9, True),
        (RABBITMQ_QUEUES, 47.2, 42.9, False),
        (RABBITMQ_QUEUES, 47.0, 43.1, False),
        (10, 0.5, 1.0, False),
    ],
)
def test_declaring_is_to_be_faster_than_with_rabbitmq(
    count: int, seconds: float, p50_ms: float, met: bool
) -> None:
    assert beside_rabbitmq("declared", count, seconds, p50_ms).met is met


def test_as_many_files_may_be_open_as_the_machine_allows() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    program = (
        f"import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (128, {hard})); "
        "import connections; connections.allow_files(); print(r.getrlimit(r.RLIMIT_NOFILE)[0])"
    )
    here = Path(connections.__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=here, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == hard
