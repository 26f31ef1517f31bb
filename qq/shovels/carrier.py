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

from qq.machine.protocol.commands import DeleteParameter, PutParameter
from qq.machine.queue.moves import LEDGER, SHOVEL
from qq.shovels import ledger
from qq.shovels.client import Closed
from qq.shovels.definition import read_shovel, shovels_of
from qq.shovels.outbound import Route
from qq.shovels.report import STARTING, TERMINATED, Report
from qq.shovels.run import AllMoved, ShovelRun

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from qq.machine.catalog.vhost import VirtualHost
    from qq.machine.machine import QueueMachine
    from qq.machine.protocol.commands import Change
    from qq.shovels.connecting import Connector
    from qq.shovels.definition import Definition

    ChangeLog = Callable[[Change], Awaitable[None]]
    Key = tuple[str, str]
    """The virtual host and the name of a shovel."""

log = logging.getLogger(__name__)

POLL_S = 0.5
"""Seconds between polls of the shovel parameters."""
START_AFTER_S = 1.0
"""Seconds that a node must have led before it runs shovels, so that the last leader's pending changes have arrived."""
RUNNING_MAX = 100
"""Maximum number of shovels that run at a time, in the order of virtual hosts and names."""
BUFFER_BYTES, BUFFER_BYTES_MIN, BUFFER_BYTES_MAX = 256 * 2**20, 2**20, 16 * 2**20
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
        connector: Connector,
        leads: Callable[[], bool],
        cluster: Callable[[], str],
        wall_ms: Callable[[], int],
    ) -> None:
        """`leads` returns whether this node leads, `cluster` the name of the cluster."""
        self.connector = connector
        self._machine = machine
        self._leads = leads
        self._cluster = cluster
        self._wall_ms = wall_ms
        self._runs: dict[Key, _Runner] = {}
        self._over_limit: list[Key] = []
        """Keys of the shovels beyond `RUNNING_MAX`, which do not run."""
        self._turn, self._begun_s = asyncio.Lock(), 0.0
        """Lock that lets runs begin in turn, and the loop time at which the last run began, in seconds."""
        self._ending: set[asyncio.Task[None]] = set()
        """Tasks that are about to end: stopped runners, and the removal of the ledgers of deleted shovels."""

    def now_s(self) -> int:
        return self._wall_ms() // 1000

    def reports(self) -> dict[Key, Report]:
        """Return the report of each shovel that runs here, or would run here below `RUNNING_MAX`."""
        over_limit = Report(
            TERMINATED, f"at most {RUNNING_MAX} shovels run at a time, and this shovel comes after them", {}
        )
        return dict.fromkeys(self._over_limit, over_limit) | {
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
        polls_led = 0
        try:
            while True:
                polls_led = polls_led + 1 if self._leads() else 0
                self._poll(change, runs_shovels=polls_led > START_AFTER_S / POLL_S)
                await asyncio.sleep(POLL_S)
        finally:
            for key in list(self._runs):
                self._stop(key)
            await asyncio.gather(*self._ending, return_exceptions=True)

    def _poll(self, change: ChangeLog, *, runs_shovels: bool) -> None:
        found = sorted(self._defined()) if runs_shovels else []
        wanted = dict(found[:RUNNING_MAX])
        self._over_limit = [key for key, _ in found[RUNNING_MAX:]]
        for key, runner in list(self._runs.items()):
            if wanted.get(key) != runner.text:
                self._stop(key)
        for key, text in wanted.items():
            if key not in self._runs:
                self._start(key, text, change)
        if runs_shovels and not self._ending and (orphaned := list(self._orphaned_ledgers())):
            self._await_end(asyncio.create_task(_delete_ledgers(orphaned, change)))

    def _orphaned_ledgers(self) -> Iterator[Key]:
        """Yield the keys of deleted shovels whose ledgers are still in the log."""
        for vhost in self._machine.vhosts.values():
            for component, name in vhost.parameters:
                if component == LEDGER and (SHOVEL, name) not in vhost.parameters:
                    yield vhost.name, name

    def _defined(self) -> Iterator[tuple[Key, str]]:
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
        self._await_end(runner.task)

    def _await_end(self, task: asyncio.Task[None]) -> None:
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    # Called by runners

    async def wait_turn(self) -> None:
        """Wait until `RUNS_PER_S` allows the next run to begin."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            await asyncio.sleep(max(0.0, self._begun_s + 1 / RUNS_PER_S - loop.time()))
            self._begun_s = loop.time()

    def route(self, key: Key) -> Route:
        return Route(*key, self._cluster(), "", "")

    def buffer_bytes(self) -> int:
        return max(BUFFER_BYTES_MIN, min(BUFFER_BYTES_MAX, BUFFER_BYTES // max(1, len(self._runs))))

    def parameter(self, component: str, key: Key) -> str | None:
        vhost: VirtualHost | None = self._machine.vhosts.get(key[0])
        return None if vhost is None else vhost.parameters.get((component, key[1]))


async def _delete_ledgers(keys: list[Key], change: ChangeLog) -> None:
    try:
        for vhost, name in keys:
            await change(DeleteParameter(vhost, LEDGER, name))
    except Exception as error:  # noqa: BLE001  # the next poll tries again
        log.info("the deduplication numbers of deleted shovels stay for now: %s", error)


class _Runner:
    """Runs a single shovel again and again. It is the `RunContext` of its runs."""

    def __init__(self, carrier: ShovelCarrier, key: Key, text: str, change: ChangeLog) -> None:
        self.text = text
        self.change = change
        self.task: asyncio.Task[None]
        self.connector, self.now_s = carrier.connector, carrier.now_s
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
            await self._carrier.wait_turn()
            reason = await self._run_once(shovel)
            self._record_failure(reason)
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
            self._entries = ledger.decode_entries(self._carrier.parameter(LEDGER, self._key), name)
        numbers = ledger.Ledger(self.connector.random.randbytes(16).hex(), self._entries)
        carrier = self._carrier
        self._current = ShovelRun(
            shovel, carrier.route(self._key), self, numbers, name, carrier.buffer_bytes()
        )
        try:
            await self._until_done(self._current)
        except Closed as closed:
            return str(closed)
        except Exception:
            log.exception("shovel '%s' in vhost '%s': unexpected", self._key[1], self._key[0])
            return "an unexpected error, which the node's log shows"
        else:
            return "all messages were moved"
        finally:
            self._current = None
            self._entries = list(numbers.entries())

    async def _until_done(self, run: ShovelRun) -> None:
        try:
            await run.run()
        except AllMoved:
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
            raise Closed(f"the log of this cluster does not take a change: {error}") from None

    def _record_failure(self, reason: str) -> None:
        if reason != self._failure.reason:
            log.warning("shovel '%s' in vhost '%s' stops: %s", self._key[1], self._key[0], reason)
        self._failure = Report(TERMINATED, reason, {})
