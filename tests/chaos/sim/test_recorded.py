"""The workloads of live runs in a simulated world."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chaos import history
from chaos.sim import recorded
from chaos.sim.faults.nemesis import Nemesis
from chaos.sim.recorded import record
from chaos.sim.world.loop import SimulatedLoop
from chaos.sim.world.world import SimulatedWorld
from chaos.workloads.catalog import WORKLOADS
from chaos.workloads.moved import Moved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.sim.world.cluster import SimulatedNode

ROOT = Path(__file__).parents[3]
RECORD = """
import sys
from dataclasses import replace
from chaos.sim import __main__ as program, recorded
recorded.QUIET_S, recorded.RATE = 1.0, 30.0
program.OPTIONS = replace(program.OPTIONS, duration_s=2.0)
sys.exit(program.main())
"""


@pytest.mark.long
def test_the_same_seed_is_the_same_history_in_every_process(tmp_path: Path) -> None:
    files: list[bytes] = []
    for number in "12":
        directory = tmp_path / number
        subprocess.run(
            [sys.executable, "-c", RECORD, "--seed", "5", "--nodes", "3", "--out", str(directory)],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": number},
            check=True,
        )
        [file] = (directory / "history").iterdir()
        files.append(file.read_bytes())
    assert files[0] == files[1]
    rows = history.read(tmp_path / "1" / "history")
    assert {row["workload"] for row in rows if row["op"] == "deliver"} == WORKLOADS.keys() - {Moved.name}
    assert {row["node"] for row in rows if row["op"] == "publish"} == {"n1", "n2", "n3"}
    connected = {row["detail"] for row in rows if (row["op"], row["type"]) == ("connect", "ok")}
    assert connected == {"AMQP 0-9-1", "AMQP 1.0"}


def test_history_has_each_move_of_a_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge must know by how much the cluster's time may have jumped."""
    moved: list[tuple[str, int]] = []
    move = Nemesis._move_clocks

    def moving(nemesis: Nemesis, nodes: Sequence[SimulatedNode], jump_ms: int) -> None:
        moved.append((",".join(node.name for node in nodes), jump_ms))
        move(nemesis, nodes, jump_ms)

    monkeypatch.setattr(Nemesis, "_move_clocks", moving)
    monkeypatch.setattr(recorded, "QUIET_S", 1.0)
    options = replace(recorded.OPTIONS, duration_s=2.0, fault_interval_s=0.3, faults={"clock jump": 1.0})
    assert record(1, tmp_path, options, workloads=["backlog"]) == []
    rows = history.read(tmp_path / "history")
    details = [
        (row["node"], json.loads(row["detail"] or "")) for row in rows if row.get("fault") == "clocks move"
    ]
    assert details == [(nodes, {history.CLOCK_OFFSET: moved_ms}) for nodes, moved_ms in moved]
    assert len(moved) > 4
    assert any(moved_ms < 0 for _, moved_ms in moved)


def test_simulated_loop_sleeps_in_simulated_time() -> None:
    world = SimulatedWorld(1)
    recorded: list[tuple[float, str]] = []

    async def wait(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        recorded.append((world.now_s, name))

    async def main() -> str:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wait("late", 3.0))
            tasks.create_task(wait("early", 1.0))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await asyncio.Event().wait()
        return "done"

    assert SimulatedLoop(world).run(main(), until_s=10.0) == "done"
    assert recorded == [(1.0, "early"), (3.0, "late")]
    assert world.now_s == 5.0


def test_task_still_waiting_at_the_end_of_the_world_is_cancelled() -> None:
    ended: list[str] = []

    async def main() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("main")

    with pytest.raises(TimeoutError, match="not done at 5 s"):
        SimulatedLoop(SimulatedWorld(1)).run(main(), until_s=5.0)
    assert ended == ["main"]


def test_exception_in_a_client_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.workloads.clients.messages_of", lambda *_: iter(()))
    with pytest.raises(RuntimeError, match="StopIteration"):
        record(1, tmp_path, workloads=["confirm"])
