"""Runs the shovels of this node: the leader runs every shovel that is not a move.

Invariant: an error in a shovel never ends the node. A shovel runs on a single node at a time, except while a former
leader does not know yet that it has lost leadership. During that time a message may arrive twice, unless it has a
deduplication number (ledger.py).
"""

from __future__ import annotations

import asyncio
import logging
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from cluster.net.resolver import HostNames
from qq.machine.protocol.commands import DeleteParameter, PutParameter
from qq.machine.queue.moves import LEDGER, SHOVEL
from qq.shovels import ledger
from qq.shovels.client import Closed
from qq.shovels.definition import read_shovel, shovels_of
from qq.shovels.outbound import Way
from qq.shovels.report import STARTING, TERMINATED, Report
from qq.shovels.run import AllThere, ShovelRun

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from random import Random

    from qq.machine.catalog.vhost import VirtualHost
    from qq.machine.machine import QueueMachine
    from qq.machine.protocol.commands import Change
    from qq.shovels.connecting import MayReach, OpenOwn
    from qq.shovels.definition import Definition

    ChangeLog = Callable[[Change], Awaitable[None]]
    Key = tuple[str, str]
    """The virtual host and the name of a shovel."""

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""Seconds between polls of the shovel parameters."""
START_AFTER_S = 1.0
"""Seconds that a node must have led before it runs shovels, so that the last leader's pending changes have arrived."""
CARRIED_MAX = 100
"""Maximum number of shovels that run at a time, in the order of virtual hosts and names."""
ROOM_BYTES, ROOM_BYTES_MIN, ROOM_BYTES_MAX = 256 * 2**20, 2**20, 16 * 2**20
"""Bytes of messages in flight: the approximate budget of all shovels, then the minimum and maximum of each shovel."""
PAUSE_S_MIN = 0.1
"""Minimum seconds before a failed shovel starts again."""
RUNS_PER_S = 10
"""Maximum number of runs begun per second, over all shovels. Connecting takes some milliseconds of a core, and every
run may fail."""


class ShovelCarrier:
    """Starts, stops and reports the shovels of this node."""

    def __init__(
        self,
        machine: QueueMachine,
        leads: Callable[[], bool],
        cluster: Callable[[], str],
        open_own: OpenOwn,
        wall_ms: Callable[[], int],
        random: Random,
        message_bytes_max: int,
        may_reach: MayReach,
    ) -> None:
        """`leads` returns whether this node leads, `cluster` the name of the cluster; `open_own` connects to this node.

        `message_bytes_max` is the largest message body that a shovel accepts, in bytes. `may_reach` returns whether
        shovels may connect to a host.
        """
        self.open_own = open_own
        self.random = random
        self.message_bytes_max = message_bytes_max
        self.may_reach = may_reach
        self.names = HostNames()
        self._machine = machine
        self._leads = leads
        self._cluster = cluster
        self._wall_ms = wall_ms
        self._runs: dict[Key, _Runner] = {}
        self._left_out: list[Key] = []
        """Keys of the shovels beyond `CARRIED_MAX`, which do not run."""
        self._turn, self._begun_s = asyncio.Lock(), 0.0
        """Lock that lets runs begin in turn, and the loop time at which the last run began, in seconds."""
        self._ending: set[asyncio.Task[None]] = set()
        """Tasks that are about to end: stopped runners, and the removal of the ledgers of deleted shovels."""

    def now_s(self) -> int:
        return self._wall_ms() // 1000

    def reports(self) -> dict[Key, Report]:
        """Return the report of each shovel that runs here, or would run here below `CARRIED_MAX`."""
        left_out = Report(
            TERMINATED, f"{CARRIED_MAX} shovels are carried out at most, and so many come before it", {}
        )
        return dict.fromkeys(self._left_out, left_out) | {
            key: runner.report() for key, runner in self._runs.items()
        }

    def restart(self, vhost: str, name: str) -> bool:
        """Stop a shovel and start it again; return whether it runs here."""
        runner = self._runs.get((vhost, name))
        if runner is not None:
            self._stop((vhost, name))
            self._start((vhost, name), runner.text, runner.change)
        return runner is not None

    async def run(self, change: ChangeLog) -> None:
        """Run shovels until cancelled. `change` submits a change to the log, or raises an exception."""
        led_looks = 0
        try:
            while True:
                led_looks = led_looks + 1 if self._leads() else 0
                self._look(change, is_carrying=led_looks > START_AFTER_S / LOOK_S)
                await asyncio.sleep(LOOK_S)
        finally:
            for key in list(self._runs):
                self._stop(key)
            await asyncio.gather(*self._ending, return_exceptions=True)

    def _look(self, change: ChangeLog, *, is_carrying: bool) -> None:
        found = sorted(self._wanted()) if is_carrying else []
        wanted = dict(found[:CARRIED_MAX])
        self._left_out = [key for key, _ in found[CARRIED_MAX:]]
        for key, runner in list(self._runs.items()):
            if wanted.get(key) != runner.text:
                self._stop(key)
        for key, text in wanted.items():
            if key not in self._runs:
                self._start(key, text, change)
        if is_carrying and not self._ending and (unneeded := list(self._unneeded())):
            self._keep(asyncio.create_task(_forget(unneeded, change)))

    def _unneeded(self) -> Iterator[Key]:
        """Yield the keys of deleted shovels whose ledgers are still in the log."""
        for vhost in self._machine.vhosts.values():
            for component, name in vhost.parameters:
                if component == LEDGER and (SHOVEL, name) not in vhost.parameters:
                    yield vhost.name, name

    def _wanted(self) -> Iterator[tuple[Key, str]]:
        for vhost, name, text, shovel in shovels_of(self._machine.vhosts.values()):
            if not shovel.is_move:
                yield (vhost, name), text

    def _start(self, key: Key, text: str, change: ChangeLog) -> None:
        before = [task for task in self._ending if task.get_name() == repr(key)]
        runner = self._runs[key] = _Runner(self, key, text, change)
        runner.task = asyncio.create_task(runner.run(before), name=repr(key))

    def _stop(self, key: Key) -> None:
        runner = self._runs.pop(key)
        runner.stop()
        self._keep(runner.task)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    # Called by runners

    async def turn(self) -> None:
        """Wait until `RUNS_PER_S` allows the next run to begin."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            await asyncio.sleep(max(0.0, self._begun_s + 1 / RUNS_PER_S - loop.time()))
            self._begun_s = loop.time()

    def way(self, key: Key) -> Way:
        return Way(*key, self._cluster(), "", "")

    def room_bytes(self) -> int:
        return max(ROOM_BYTES_MIN, min(ROOM_BYTES_MAX, ROOM_BYTES // max(1, len(self._runs))))

    def parameter(self, component: str, key: Key) -> str | None:
        vhost: VirtualHost | None = self._machine.vhosts.get(key[0])
        return None if vhost is None else vhost.parameters.get((component, key[1]))


async def _forget(keys: list[Key], change: ChangeLog) -> None:
    try:
        for vhost, name in keys:
            await change(DeleteParameter(vhost, LEDGER, name))
    except Exception as error:  # noqa: BLE001  # the next poll tries again
        log.info("numbers of shovels that are gone stay for now: %s", error)


class _Runner:
    """Runs a single shovel again and again. It is the `Surroundings` of its runs."""

    def __init__(self, carrier: ShovelCarrier, key: Key, text: str, change: ChangeLog) -> None:
        self.text = text
        self.change = change
        self.task: asyncio.Task[None]
        self.random = carrier.random
        self.message_bytes_max, self.may_reach = carrier.message_bytes_max, carrier.may_reach
        self.now_s, self.open_own, self.names = carrier.now_s, carrier.open_own, carrier.names
        self._carrier = carrier
        self._key = key
        self._is_stopped = False
        self._current: ShovelRun | None = None
        self._failure = STARTING
        self._entries: list[tuple[bytes, ledger.Number]] | None = None
        """Ledger entries left by the last run; `None` before the first run."""

    def report(self) -> Report:
        return self._failure if self._current is None else self._current.report()

    def stop(self) -> None:
        """Cancel the runner, which ends after it has closed its connections."""
        # Before Python 3.13 a task group whose tasks fail at this moment loses the cancellation; the flag stays.
        self._is_stopped = True
        self.task.cancel()

    async def run(self, before: list[asyncio.Task[Any]]) -> None:
        await asyncio.gather(*before, return_exceptions=True)
        shovel = read_shovel(self._key[0], self.text)
        assert shovel is not None
        while True:
            await self._carrier.turn()
            reason = await self._run_once(shovel)
            self._failed(reason)
            if self._is_stopped:
                return
            if not shovel.reconnect_delay_s:
                await asyncio.Event().wait()  # until an operator restarts the shovel
            await asyncio.sleep(max(shovel.reconnect_delay_s, PAUSE_S_MIN))

    async def _run_once(self, shovel: Definition) -> str:
        """Carry messages until the run ends; return the reason."""
        # The hash covers both ends without passwords: other settings may change, because the messages stay the same.
        name = blake2b(repr((shovel.source, shovel.target)).encode(), digest_size=8).hexdigest()
        if self._entries is None:
            self._entries = ledger.read(self._carrier.parameter(LEDGER, self._key), name)
        numbers = ledger.Ledger(self.random.randbytes(16).hex(), self._entries)
        carrier = self._carrier
        self._current = ShovelRun(shovel, carrier.way(self._key), self, numbers, name, carrier.room_bytes())
        try:
            await self._until_done(self._current)
        except Closed as closed:
            return str(closed)
        except Exception:
            log.exception("shovel '%s' in vhost '%s': unexpected", self._key[1], self._key[0])
            return "an unexpected error; the node's log tells which"
        else:
            return "it has done what it was for"
        finally:
            self._current = None
            self._entries = list(numbers.entries())

    async def _until_done(self, run: ShovelRun) -> None:
        try:
            await run.run()
        except AllThere:
            if self._carrier.parameter(SHOVEL, self._key) == self.text:
                await self._change(DeleteParameter(self._key[0], SHOVEL, self._key[1]))

    async def store(self, numbers: str) -> None:
        if self._carrier.parameter(SHOVEL, self._key) != self.text:
            raise Closed("there is another shovel of this name")
        await self._change(PutParameter(self._key[0], LEDGER, self._key[1], numbers))

    async def _change(self, change: Change) -> None:
        try:
            await self.change(change)
        except Exception as error:  # noqa: BLE001  # any error ends only this run; the next run follows
            raise Closed(f"the log of this cluster does not go on: {error}") from None

    def _failed(self, reason: str) -> None:
        if reason != self._failure.reason:
            log.warning("shovel '%s' in vhost '%s' stops: %s", self._key[1], self._key[0], reason)
        self._failure = Report(TERMINATED, reason, {})
