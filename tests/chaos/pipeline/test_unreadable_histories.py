"""A history that cannot be judged is invalid; a line gives the reason."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from chaos.judge.verdict import Promise, Verdict, describe
from chaos.pipeline import java, job
from chaos.pipeline.job import check, main
from chaos.pipeline.places import SHOWN
from tests.chaos.judge.histories import History, Story, died
from tests.harness.long_cases import cases

# The first test waits for Spark and for the check that all tests share: half a minute, more on a busy machine.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]


ROW = '{"time_ns": 1, "process": "con", "call": 1, "type": "ok", "op": "deliver"}'


LINE_BYTES = 1024


def lines_of(run: Path) -> tuple[Path, list[str]]:
    file = run / "history" / "clients.jsonl"
    return file, file.read_text().splitlines(keepends=True)


def change_meta(run: Path, key: str, value: Any) -> None:
    """Change a key of meta.json, or remove it with None."""
    meta = json.loads((run / "meta.json").read_text()) | {key: value}
    (run / "meta.json").write_text(
        json.dumps({key: value for key, value in meta.items() if value is not None})
    )


def reason(run: Path) -> str:
    verdict = check(run)
    assert not verdict.valid
    assert verdict.error is not None
    assert "\n" not in verdict.error
    return verdict.error


NOT_ROWS = {
    "no JSON": "no JSON",
    "something is missing": '{"time_ns": 1, "process": "con", "call": 1, "type": "ok"}',
    "unknown operation": '{"time_ns": 1, "process": "con", "call": 1, "type": "ok", "op": "steal"}',
    "wrong type": '{"time_ns": 1, "process": "con", "call": "first", "type": "ok", "op": "deliver"}',
    "no object": "[]",
    "two rows": ROW + ROW,
    "the begin of another": ROW + '{"time_ns": 17',
    "a comma": ROW + ",",
    "a brace": ROW + "}",
    "a bracket": ROW + "]",
    "unknown key": ROW[:-1] + ', "colour": "red"}',
    "a death without a count": ROW[:-1] + ', "deaths": [{"queue": "story", "reason": "rejected"}]}',
}
ALWAYS_TRIED = {"no JSON", "unknown operation"}


@pytest.mark.parametrize("name", cases(NOT_ROWS, ALWAYS_TRIED.__contains__))
def test_a_line_that_is_no_row_is_named(run: Path, spark: SparkSession, name: str) -> None:
    line = NOT_ROWS[name]
    file, lines = lines_of(run)
    file.write_text("".join([*lines[:4], line + "\n", *lines[4:]]))
    shown = line if len(line) <= SHOWN else line[:SHOWN] + "…"
    assert reason(run) == f"{file}:5: no row of a history: {shown}"
    assert not list(run.glob("check-*"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("block_bytes", "earlier_ns"),
    [(2**30, 5_000_000), (LINE_BYTES, 0)],
    ids=["falling in one block", "equal in a block for each line"],
)
def test_row_with_a_time_that_does_not_rise_is_reported(
    run: Path, spark: SparkSession, block_bytes: int, earlier_ns: int
) -> None:
    file, lines = lines_of(run)
    before, row = (json.loads(line) for line in lines[6:8])
    lines[7] = json.dumps(row | {"time_ns": before["time_ns"] - earlier_ns})
    file.write_text("".join(f"{line.strip():{LINE_BYTES - 1}}\n" for line in lines))
    limits = {f"spark.sql.files.{name}": block_bytes for name in ("maxPartitionBytes", "openCostInBytes")}
    kept = {name: spark.conf.get(name) for name in limits}
    try:
        for name, value in limits.items():
            spark.conf.set(name, value)
        assert reason(run).startswith(f"{file}:8: time_ns does not rise: {lines[7][:50]}")
    finally:
        for name, value in kept.items():
            spark.conf.set(name, value)


def test_history_cut_between_lines_is_noticed(run: Path, spark: SparkSession) -> None:
    file, lines = lines_of(run)
    file.write_text("".join(lines[:-1]))
    assert reason(run) == f"{run}: {len(lines) - 1} rows, but {len(lines)} were recorded"


def test_history_cut_within_its_last_line_is_reported(run: Path) -> None:
    file, lines = lines_of(run)
    file.write_text("".join(lines)[:-10])
    assert reason(run).startswith(f"{file}:{len(lines)}: cut in the middle: {{")


def test_run_without_recorded_operations_is_invalid(run: Path, spark: SparkSession) -> None:
    file, lines = lines_of(run)
    file.write_text(lines[0])
    assert reason(run) == f"{run}: recorded nothing: no confirmed publish and no delivery in 1 rows"


def test_a_directory_without_a_history_is_a_failure(run: Path) -> None:
    lines_of(run)[0].unlink()
    assert reason(run) == f"{run / 'history'}: no history (*.jsonl, *.parquet)"
    assert json.loads((run / "verdict.json").read_text())["error"] == reason(run)


def test_missing_directory_is_reported(tmp_path: Path) -> None:
    assert reason(tmp_path / "none") == f"{tmp_path / 'none'}: no such directory"


def test_a_run_without_its_description_is_a_failure(run: Path) -> None:
    meta = run / "meta.json"
    meta.write_text("{}")
    assert reason(run) == f"{meta}: started_ns is missing"
    meta.write_text("{")
    assert reason(run).startswith(f"{meta}: ")
    meta.unlink()
    assert reason(run) == f"{meta}: No such file or directory"


def as_parquet(run: Path, **changes: Any) -> Path:
    """Write the history as a Parquet file, with a changed row 5."""
    file, lines = lines_of(run)
    rows = [json.loads(line) for line in lines]
    rows[4] |= changes
    names = {name for row in rows for name in row}
    file.unlink()
    table = file.with_suffix(".parquet")
    pq.write_table(pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows]), table)
    return table


@pytest.mark.long
def test_a_history_may_be_parquet_and_larger_than_memory(
    run: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(job, "QUICK_BYTES", 0)
    _, rows = lines_of(run)
    as_parquet(run)
    change_meta(run, "rows", None)  # meta.json without the number of rows is accepted
    assert main([str(run)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[1].split() == ["lost", "3", "0"]
    assert printed[-1].startswith(f"VALID: every promise was kept ({len(rows)} rows in ")


NOT_OF_PARQUET: dict[str, dict[str, Any]] = {
    "unknown operation": {"op": "steal"},
    "unknown type": {"type": "maybe"},
    "something is missing": {"time_ns": None},
    "a death without a reason": {"deaths": [died("story"), {"queue": "story", "reason": None, "count": 1}]},
}


@pytest.mark.parametrize("name", cases(NOT_OF_PARQUET, lambda name: name == "unknown operation"))
def test_invalid_row_of_a_parquet_history_is_shown(run: Path, spark: SparkSession, name: str) -> None:
    changes = NOT_OF_PARQUET[name]
    table = as_parquet(run, **changes)
    place, _, row = reason(run).partition(": no row of a history: ")
    assert place == f"{table}:?"
    [(key, value)] = changes.items()
    shown = json.dumps({key: value}, separators=(",", ":"))[1:-1]
    assert (shown in row) if key in {"op", "type"} else row.startswith("{")


@pytest.fixture(scope="module")
def run_with_problems(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Verdict]:
    """A run that had problems and kept its promises, with a few messages of both priorities."""
    run = tmp_path_factory.mktemp("gone-wrong")
    history = History()
    story = Story(history, "story")
    story.queue(priorities=True)
    for number in range(1, 100 + 1):
        story.publish(number, priority=7 if number % 2 else 0)
    for number in range(1, 100 + 1):
        story.take(number)
    history.write(run)
    change_meta(run, "problems", ["the cluster does not heal", "fault kill of n1: in vain"])
    return run, check(run)


@pytest.mark.long
def test_run_with_problems_is_invalid_although_promises_held(run_with_problems: tuple[Path, Verdict]) -> None:
    run, verdict = run_with_problems
    printed = describe(verdict).splitlines()
    assert printed[-1].startswith(
        "INVALID: problems of the run: the cluster does not heal; fault kill of n1: in vain ("
    )
    assert not any("VALID: every promise was kept" in line for line in printed)
    document = json.loads((run / "verdict.json").read_text())
    assert (document["valid"], document["error"], len(document["problems"])) == (False, None, 2)
    assert all(promise["holds"] for promise in document["promises"])


@pytest.mark.long
def test_ratio_without_deliveries_is_not_judged(run_with_problems: tuple[Path, Verdict]) -> None:
    _, verdict = run_with_problems
    [line] = [line for line in describe(verdict).splitlines() if line.startswith("priority_ratio")]
    assert line.split() == ["priority_ratio", "0", "0", "not", "judged"]


def test_broken_promises_and_problems_are_both_reported() -> None:
    broken = Promise("lost", False, checked=3, violations=1, examples=[{"id": "story#3"}], text="it arrives")
    verdict = Verdict(False, None, rows=9, promises=[broken], problems=["the cluster does not heal"])
    *_, last = describe(verdict).splitlines()
    assert last == "INVALID: broken: lost; problems of the run: the cluster does not heal (9 rows in 0.0 s)"


def test_a_failure_is_a_line_and_an_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == f"INVALID: {tmp_path / 'meta.json'}: No such file or directory\n"


# Java


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty directory of tools, in an environment without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(java.tools, "directory", lambda: tmp_path / "tools")
    return tmp_path / "tools"


def a_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.exit(print('openjdk version \"{version}\"', file=sys.stderr))\n"
    )
    program.chmod(0o755)
    return home


def test_java_is_searched_in_java_home_then_path_then_tools(
    no_java: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = a_java(no_java / "java" / "jdk-21", "21.0.4")
    assert java.find() == tool
    on_path = a_java(tmp_path / "path", "17.0.15")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert java.find() == on_path
    home = a_java(tmp_path / "home", "25")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find() == home


def test_unsuitable_java_is_skipped(no_java: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    old = a_java(tmp_path / "old", "1.8.0_402")
    monkeypatch.setenv("PATH", str(old / "bin"))
    tool = a_java(no_java / "java" / "jdk-17", "17.0.1")
    assert java.find() == tool


def test_without_java_the_error_is_a_line_that_names_the_remedy(
    no_java: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = a_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(old))
    expected = f"the checker needs Java 17 or newer and found none ({old}: Java 11): {java.REMEDY}\n"
    assert java.main([]) == 1
    assert capsys.readouterr().err == expected
    assert "make setup" in java.REMEDY


def test_java_is_brought_into_the_tool_directory(
    no_java: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def install(version: str, *, jre: bool, path: str) -> None:
        a_java(Path(path) / f"jdk-{version}-jre", version)

    monkeypatch.setattr(java.jdk, "install", install)
    assert java.main(["--install"]) == 0
    assert capsys.readouterr().out == f"{no_java / 'java' / 'jdk-21-jre'}\n"
    monkeypatch.setattr(java.jdk, "install", None)
    assert java.main(["--install"]) == 0  # Java exists


def test_java_that_cannot_be_brought_is_a_line(
    no_java: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def install(*_: object, **__: object) -> None:
        raise java.jdk.JdkError("no route to host")

    monkeypatch.setattr(java.jdk, "install", install)
    assert java.main(["--install"]) == 1
    printed = capsys.readouterr().err
    assert printed == f"Java 21 could not be brought to {no_java / 'java'}: no route to host; set JAVA_HOME\n"
