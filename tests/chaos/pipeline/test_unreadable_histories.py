"""What cannot be judged is not valid, and says in a line why."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipeline_histories import History, Story
from pyspark.sql import SparkSession

from chaos.pipeline import java
from chaos.pipeline.job import check, main

# The first test waits for Spark and for the check that all others look at: half a minute, more on a busy machine.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    history = History()
    story = Story(history, "story")
    story.queue()
    for number in (1, 2, 3):
        story.publish(number)
        story.take(number)
    history.write(tmp_path / "run")
    return tmp_path / "run"


def lines_of(run: Path) -> tuple[Path, list[str]]:
    file = run / "history" / "clients.jsonl"
    return file, file.read_text().splitlines(keepends=True)


def reason(run: Path) -> str:
    verdict = check(run)
    assert not verdict.valid
    assert verdict.error is not None
    assert "\n" not in verdict.error
    return verdict.error


@pytest.mark.parametrize(
    "line",
    [
        "no JSON",
        '{"time_ns": 1, "process": "con", "call": 1, "type": "ok"}',
        '{"time_ns": 1, "process": "con", "call": 1, "type": "ok", "op": "steal"}',
        '{"time_ns": 1, "process": "con", "call": "first", "type": "ok", "op": "deliver"}',
        "[]",
    ],
    ids=["no JSON", "something is missing", "unknown operation", "wrong type", "no object"],
)
def test_a_line_that_is_no_row_is_named(run: Path, spark: SparkSession, line: str) -> None:
    file, lines = lines_of(run)
    file.write_text("".join([*lines[:4], line + "\n", *lines[4:]]))
    assert reason(run) == f"{file}:5: no row of a history: {line}"
    assert not list(run.glob("check-*"))


def test_a_history_that_is_cut_in_the_middle_of_its_last_line_is_named(run: Path) -> None:
    file, lines = lines_of(run)
    file.write_text("".join(lines)[:-10])
    assert reason(run).startswith(f"{file}:{len(lines)}: cut in the middle: {{")


def test_a_run_that_recorded_nothing_is_a_failure(run: Path, spark: SparkSession) -> None:
    file, lines = lines_of(run)
    file.write_text(lines[0])
    assert reason(run) == f"{run}: recorded nothing: no confirmed publish and no delivery in 1 rows"


def test_a_directory_without_a_history_is_a_failure(run: Path) -> None:
    lines_of(run)[0].unlink()
    assert reason(run) == f"{run / 'history'}: no history (*.jsonl, *.parquet)"
    assert json.loads((run / "verdict.json").read_text())["error"] == reason(run)


def test_a_directory_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    assert reason(tmp_path / "none") == f"{tmp_path / 'none'}: no such directory"


def test_a_run_without_its_description_is_a_failure(run: Path) -> None:
    meta = run / "meta.json"
    meta.write_text("{}")
    assert reason(run) == f"{meta}: started_ns is missing"
    meta.write_text("{")
    assert reason(run).startswith(f"{meta}: ")
    meta.unlink()
    assert reason(run) == f"{meta}: No such file or directory"


def test_a_history_may_be_parquet(run: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    file, lines = lines_of(run)
    rows = [json.loads(line) for line in lines]
    names = {name for row in rows for name in row}
    file.unlink()
    pq.write_table(
        pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows]),
        run / "history" / "clients.parquet",
    )
    assert main([str(run)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[1].split() == ["lost", "3", "0"]
    assert told[-1].startswith(f"VALID: every promise was kept ({len(rows)} rows in ")


def test_a_failure_is_a_line_and_an_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == f"INVALID: {tmp_path / 'meta.json'}: No such file or directory\n"


# Java


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory for tools, and nothing else to find a Java in."""
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


def test_java_is_found_where_it_is_set_then_on_the_path_then_among_the_tools(
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


def test_a_java_that_is_too_old_or_does_not_run_is_passed_over(
    no_java: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
    assert java.main(["--install"]) == 0  # there is one


def test_java_that_cannot_be_brought_is_a_line(
    no_java: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def install(*_: object, **__: object) -> None:
        raise java.jdk.JdkError("no route to host")

    monkeypatch.setattr(java.jdk, "install", install)
    assert java.main(["--install"]) == 1
    told = capsys.readouterr().err
    assert told == f"Java 21 could not be brought to {no_java / 'java'}: no route to host; set JAVA_HOME\n"
