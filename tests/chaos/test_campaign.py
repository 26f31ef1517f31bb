"""Campaigns of many runs: the list of runs, skipped repetitions, and the table."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from chaos import campaign
from chaos.live.command import parse_duration
from chaos.live.nemesis import ALL, GROUPS, NAMES
from chaos.promises import PROMISES


class Runs:
    """In place of the runs: records options, and gives each run a verdict unless it is to break off."""

    def __init__(self) -> None:
        self.given: list[dict[str, str]] = []
        self.violations: dict[str, int] = {}
        self.problems: list[str] = []
        self.breaks_off = False
        self.error: str | None = None

    def run(self, command: list[str], **_: Any) -> None:
        options = dict(zip(command[4::2], command[5::2], strict=True))
        self.given.append(options)
        directory = Path(options["--out"])
        directory.mkdir()
        if self.breaks_off:
            return
        names = GROUPS[ALL] if options["--nemesis"] == ALL else [options["--nemesis"]]
        meta = {
            "nodes": int(options["--nodes"]),
            "nemesis": names,
            "seconds": 300.0,
            "seed": int(options["--seed"]),
        }
        meta["problems"] = self.problems
        promises = [{"name": name, "violations": self.violations.get(name, 0)} for name in PROMISES]
        verdict = {
            "valid": not self.violations and self.error is None,
            "error": self.error,
            "operations": {"publish": {"ok": 1200, "fail": 30, "unknown": 4}, "fault": {"ok": 9, "fail": 1}},
            "promises": promises,
            "figures": {
                "confirmed": 1190,
                "longest_outage_s": 0.32,
                "longest_unavailability_s": 1.26,
                "confirm_p50_ms": 3.4,
                "confirm_p99_ms": 1061.0,
            },
        }
        (directory / "meta.json").write_text(json.dumps(meta))
        (directory / "verdict.json").write_text(json.dumps(verdict))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    runs = Runs()
    monkeypatch.setattr(subprocess, "run", runs.run)
    return runs


def carried_out(out: Path, *arguments: str) -> int:
    return campaign.main(["--out", str(out), *arguments])


def last_rows(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    lines = capsys.readouterr().out.splitlines()
    begin = max(number for number, line in enumerate(lines) if line.startswith("|---"))
    return [line.strip("| ").split(" | ") for line in lines[begin + 1 :]]


def test_every_fault_and_the_mix_at_three_and_at_five_nodes(runs: Runs, tmp_path: Path) -> None:
    assert carried_out(tmp_path) == 0
    faults = [*NAMES, "all"]
    assert [(given["--nodes"], given["--nemesis"]) for given in runs.given] == [
        (nodes, fault) for nodes in ("3", "5") for fault in faults
    ]
    assert {given["--for"] for given in runs.given if given["--nemesis"] != "all"} == {"5m"}
    assert {given["--for"] for given in runs.given if given["--nemesis"] == "all"} == {"30m"}


def test_seed_of_a_fault_does_not_depend_on_the_selection(runs: Runs, tmp_path: Path) -> None:
    carried_out(tmp_path / "all", "--nodes", "3", "--seed", "10")
    seeds = {given["--nemesis"]: given["--seed"] for given in runs.given}
    assert len(set(seeds.values())) == len(NAMES) + 1
    runs.given.clear()
    carried_out(tmp_path / "some", "--nodes", "3", "--seed", "10", "--nemesis", "wipe,pause", "--mix", "0")
    assert {given["--nemesis"]: given["--seed"] for given in runs.given} == {
        name: seeds[name] for name in ("wipe", "pause")
    }


def test_campaign_of_a_mix_is_a_run_of_all_faults(runs: Runs, tmp_path: Path) -> None:
    carried_out(tmp_path, "--nodes", "5", "--nemesis", "none", "--mix", "1h")
    assert [(given["--nemesis"], given["--for"]) for given in runs.given] == [("all", "1h")]


def test_judged_runs_are_skipped_and_interrupted_runs_repeated(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--nodes", "3", "--mix", "0")
    assert carried_out(tmp_path, *options, "--nemesis", "pause") == 0
    runs.breaks_off = True
    assert carried_out(tmp_path, *options, "--nemesis", "pause,wipe") == 1
    assert last_rows(capsys)[1] == ["3-wipe", "was not judged"]
    runs.breaks_off = False
    assert carried_out(tmp_path, *options, "--nemesis", "pause,wipe") == 0
    assert [given["--nemesis"] for given in runs.given] == ["pause", "wipe", "wipe"]


def test_table_row_gives_operations_violations_and_problems(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.violations = {"lost": 2, "phantom": 3, "unmarked_duplicate": 4, "dedup_duplicate": 1, "order": 5}
    runs.problems = ["the cluster does not heal"]
    assert carried_out(tmp_path, "--nodes", "5", "--nemesis", "wipe", "--seed", "7") == 1
    wipe, mix = last_rows(capsys)
    seed = str(7 + NAMES.index("wipe"))
    counts = ["9", "1,244", "1,190", "2", "3", "5", "order: 5, 1 problems", "0.3 s, 1.3 s", "3 / 1,061 ms"]
    assert wipe == ["5", "wipe", "300s", seed, *counts]
    assert parse_duration(wipe[2]) == 300
    assert mix[:2] == ["5", "all"]


def test_run_that_cannot_be_judged_gives_its_reason(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.error = "it recorded nothing"
    assert carried_out(tmp_path, "--nodes", "3", "--nemesis", "wipe", "--mix", "0") == 1
    assert last_rows(capsys)[0][-1] == "it recorded nothing"


@pytest.mark.parametrize(
    "arguments", [("--nodes", "4"), ("--nemesis", "frogs"), ("--each", "long"), ("--mix", "0m")]
)
def test_invalid_option_is_reported(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        carried_out(tmp_path, *arguments)
    assert arguments[1] in capsys.readouterr().err
