"""A Spark that does not start, or dies, and a job of it that fails, are verdicts in a line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from chaos.pipeline import job

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

DYING = """
import sys
from chaos.pipeline import job

lines = job._Check._lines

def killed(check):
    gateway = check._spark.sparkContext._gateway
    gateway.proc.kill()
    gateway.proc.wait()
    return lines(check)

job._Check._lines = killed
sys.exit(job.main(sys.argv[1:]))
"""


def error_line(*arguments: str | Path) -> str:
    """Return the single line that a failing Python process prints."""
    ended = subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr == ""
    [line] = ended.stdout.splitlines()
    return line


def test_a_job_that_fails_is_a_line(run: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise PySparkException(
            "An error occurred while it was read.\n: no space left\n\tat a place in a trace"
        )

    monkeypatch.setattr(job._Check, "_lines", fails)
    verdict = job.check(run)
    assert (verdict.valid, verdict.error) == (False, "the check failed in Spark: no space left")


# Each of these waits for a Spark of its own.


@pytest.mark.long
def test_a_spark_that_cannot_start_is_a_line(run: Path) -> None:
    line = error_line("-m", "chaos", "check", run, "--master", "moon")
    log = run / "logs" / "spark.log"
    assert line.startswith("INVALID: Spark does not start with master moon: ")
    assert line.endswith(f" (see {log})")
    assert log.exists()


@pytest.mark.long
def test_executors_get_the_code_and_files_by_uri(run: Path, tmp_path: Path) -> None:
    """The executors are processes of their own, without this harness."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    home = tmp_path / "spark"  # where the workers of a local cluster leave the directory `work`
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    ended = subprocess.run(
        [sys.executable, "-m", "chaos", "check", run.as_uri(), "--master", "local-cluster[1,1,1024]"],
        env=environment | {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[-1].startswith("VALID: every promise was kept (")
    assert json.loads((run / "verdict.json").read_text())["valid"] is True


@pytest.mark.long
def test_a_spark_that_dies_is_a_line(run: Path) -> None:
    assert error_line("-c", DYING, run).startswith("INVALID: the check failed in Spark: ")
    assert not list(run.glob("check-*"))
