"""A simulated run writes the history of a live run, and the same judges judge it.

The judge in memory judges runs that only confirm and consume, because it is faster; it agrees with the job
(test_judges.py).
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from chaos import history
from chaos.judge.memory import findings, violations
from chaos.judge.run import Run
from chaos.judge.verdict import Verdict
from chaos.pipeline.job import check
from chaos.promises import PROMISES
from chaos.sim.checks.checks import Checks
from chaos.sim.checks.queue_checks import QueueOracle
from chaos.sim.recorded import OPTIONS, record
from chaos.sim.world.cluster import Parts
from chaos.sim.world.network import NetworkOptions
from cluster.state.dedup import Admission, Origins
from qq.management.changes import leases
from qq.sessions.submissions import Batch, Submissions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from qq.machine.machine import QueueMachine
    from qq.machine.protocol.effects import Failed
    from qq.machine.queue.leases import Lease
    from qq.ranges import Range

RESTLESS = replace(
    OPTIONS,
    duration_s=8.0,
    fault_interval_s=0.3,
    faults={"reset": 1.0, "kill": 2.0, "transfer": 2.0},
    disk_slowness=20.0,
    network=NetworkOptions(delay_max_s=0.1),
)
"""Many messages are in flight at each change of the leader."""


def broken(verdict: Verdict) -> dict[str, int]:
    return {promise.name: promise.violations for promise in verdict.promises if not promise.holds}


def test_a_simulated_run_breaks_no_promise(tmp_path: Path) -> None:
    assert record(3, tmp_path, RESTLESS, workloads=["confirm"]) == []
    assert violations(history.read(tmp_path / "history")) == set()


@pytest.mark.long
@pytest.mark.xdist_group("spark")
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(600)
def test_spark_job_finds_a_simulated_run_of_all_workloads_valid(tmp_path: Path) -> None:
    options = replace(OPTIONS, duration_s=14.0)
    assert record(1, tmp_path, options) == []
    verdict = check(tmp_path)
    assert verdict.error is None
    assert broken(verdict) == {}
    assert verdict.valid
    assert [promise.name for promise in verdict.promises if promise.checked < 5] == []
    assert {promise.name for promise in verdict.promises} == PROMISES.keys()
    assert verdict.operations["fault"]["ok"] > 5
    assert verdict.operations["publish"]["unknown"] > 0
    assert json.loads((tmp_path / "meta.json").read_text())["seconds"] == options.duration_s


admit = Origins.admit


def admit_repeats(self: Origins, name: str, incarnation: int, sequence: int) -> Admission:
    """In place of `Origins.admit`: a batch takes effect as often as it is in the log."""
    admission = admit(self, name, incarnation, sequence)
    return Admission.APPLY if admission is Admission.DROP else admission


def count_whatever_comes(checks: Checks, origin: str, client: int, number: int) -> None:
    """In place of `Checks._count_batch`, which would end the run."""
    checks._counted[origin, client] = max(number, checks._counted.get((origin, client), 0))


def expect_errors(oracle: QueueOracle, machine: QueueMachine, effect: Failed) -> None:
    """In place of `QueueOracle._session_failed`: a connection or consumer is there already if its batch is repeated."""
    oracle._failed[effect.node, effect.session] = None


submit = Submissions._submit


def confirm_at_once(self: Submissions, batch: Batch) -> None:
    """In place of `Submissions._submit`: publishers are told of confirms before there are any."""
    submit(self, batch)
    for publisher, last in batch.confirms.items():
        publisher.confirm(last)


def test_loss_and_duplicates_are_found_with_hazards_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what clients are told the checks of the simulation know nothing, and they are told to overlook the other."""
    monkeypatch.setattr(Submissions, "_submit", confirm_at_once)
    monkeypatch.setattr(Checks, "_count_batch", count_whatever_comes)
    monkeypatch.setattr(Origins, "admit", admit_repeats)
    monkeypatch.setattr(QueueOracle, "_session_failed", expect_errors)
    assert record(2, tmp_path, RESTLESS, Parts(), workloads=["confirm"]) == []
    found = violations(history.read(tmp_path / "history"))
    assert {"lost", "unmarked_duplicate"} <= {violation.promise for violation in found}


part_of = leases.part_of


def part_from_the_end(lease: Lease, part: int, parts: int) -> Iterator[list[tuple[int, Range]]]:
    """In place of `leases.part_of`: the first part of a lease is its last part."""
    return part_of(lease, parts - 1 - part, parts)


def test_lease_with_parts_in_another_order_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "part_of", part_from_the_end)
    assert record(2, tmp_path, replace(OPTIONS, duration_s=4.0), workloads=["leases"]) == []
    run = Run.described(json.loads((tmp_path / "meta.json").read_text()))
    found = findings(history.read(tmp_path / "history"), run)
    assert "lease_repeatable" in {cause.promise for cause in found.violations}
