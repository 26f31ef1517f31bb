"""`qq serve` with a disk and a clock that can be hurt while it runs.

Its arguments are `--config node.toml --side DIRECTORY`, and it is forked from a process that has imported the node
(qq/process/fork_server.py).

    DIRECTORY/faults.json    the present faults; read at the start and whenever the file changes
    DIRECTORY/disk/          the history that is needed to undo unsynced writes (faulty_disk.py)

On SIGUSR1 it logs the stacks of its threads and tasks, to explain why it does not end.

Invariant: without faults it is the same node as `qq serve`, with the same code and the same files.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import json
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Self

from chaos.live.faulty_disk import FaultyDisk
from cluster.runtime.asyncio_runtime import AsyncioRuntime
from qq import node
from qq.cli.local.serve import serve
from qq.errors import OperatingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.config import NodeConfig

FAULTS_FILE = "faults.json"
DISK_DIRECTORY = "disk"
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of a node's disk and clock."""

    disk_full: bool = False
    """Whether every operation that needs space fails with ENOSPC, with 0 bytes reported as free."""
    sync_delay_s: float = 0.0
    """Mean seconds that each sync is delayed."""
    seed: int = 0
    """The seed for the random parts of the two faults above."""
    clock_offset_ms: int = 0
    """Offset of the wall clock in ms."""

    @classmethod
    def read(cls, side: Path) -> Self:
        try:
            return cls(**json.loads((side / FAULTS_FILE).read_text()))
        except FileNotFoundError:
            return cls()

    def write(self, side: Path) -> None:
        temporary = side / f"{FAULTS_FILE}.new"
        temporary.write_text(json.dumps(asdict(self)))
        temporary.replace(side / FAULTS_FILE)


class FaultyRuntime(AsyncioRuntime):
    """A node's runtime with an offset wall clock."""

    offset_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.offset_ms


class _World:
    """The disk and the clock of the node in this process; new objects at each start of the node."""

    def __init__(self, side: Path) -> None:
        self._side = side
        self._disk: FaultyDisk | None = None
        self._runtime: FaultyRuntime | None = None
        self._faults = Faults.read(side)

    def begin(self) -> None:
        """Start the thread that applies the faults whenever they change."""
        threading.Thread(target=self._follow, name="faults", daemon=True).start()

    async def run(self, config: NodeConfig) -> None:
        self.begin()
        await node.run(config, open_disk=self.open_disk, make_runtime=self.make_runtime)

    def open_disk(self, root: Path) -> FaultyDisk:
        self._disk = FaultyDisk(root, self._side / DISK_DIRECTORY)
        self._obey()
        return self._disk

    def make_runtime(
        self, loop: asyncio.AbstractEventLoop, on_failure: Callable[[BaseException], None]
    ) -> FaultyRuntime:
        self._runtime = FaultyRuntime(loop, on_failure)
        self._obey()
        return self._runtime

    def _follow(self) -> None:
        while True:
            time.sleep(_POLL_S)
            faults = Faults.read(self._side)
            if faults != self._faults:
                self._faults = faults
                self._obey()

    def _obey(self) -> None:
        if self._disk is not None:
            self._disk.chance = Random(self._faults.seed)
            self._disk.full = self._faults.disk_full
            self._disk.sync_delay_s = self._faults.sync_delay_s
        if self._runtime is not None:
            self._runtime.offset_ms = self._faults.clock_offset_ms


def _print_stacks(*_: object) -> None:
    faulthandler.dump_traceback()
    for task in asyncio.all_tasks():
        task.print_stack()


def run() -> int:
    parser = argparse.ArgumentParser(prog="faulty_node", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the node's configuration")
    parser.add_argument("--side", type=Path, required=True, help="a directory beside the data directory")
    options = parser.parse_args()
    options.side.mkdir(parents=True, exist_ok=True)
    world = _World(options.side)
    signal.signal(signal.SIGUSR1, _print_stacks)
    try:
        return serve(options.config, world.run)
    except OperatingError as error:
        print(error, file=sys.stderr)
        return error.exit_status
