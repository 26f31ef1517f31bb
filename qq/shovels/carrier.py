"""Which shovels this node carries out: all that are no moves, while it leads.

Invariant: nothing that happens to a shovel ends the node. A shovel runs on one node at a time, but for the moments in
which a leader does not know yet that it leads no more: then a message may be there twice, unless it has a number.
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
    """A virtual host, and the name of a shovel in it."""

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""How often it is looked which shovels there are."""
START_AFTER_S = 1.0
"""How long a node leads before it carries out shovels: what the last one has asked of the log is there then."""
CARRIED_MAX = 100
"""How many shovels are carried out at a time, in the order of their names."""
ROOM_BYTES, ROOM_BYTES_MIN, ROOM_BYTES_MAX = 256 * 2**20, 2**20, 16 * 2**20
"""Octets that may be on their way: of all shovels, about; and of one, at least and at most."""
PAUSE_S_MIN = 0.1
"""How long to wait at least before a shovel is begun again."""
RUNS_PER_S = 10
"""How many runs begin in a second, of all shovels: connecting takes some milliseconds of a core, and all may fail."""


class ShovelCarrier:
    """Carries out the shovels of this node."""

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
        """`leads` tells whether this node leads, `cluster` the cluster's name; `open_own` connects to this node.

        `message_bytes_max` is the largest body of a message that a shovel takes, `may_reach` tells to which hosts one
        may connect.
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
        """The shovels that are more than CARRIED_MAX."""
        self._turn, self._begun_s = asyncio.Lock(), 0.0
        """Whose run is the next to begin, and when the last one has begun."""
        self._ending: set[asyncio.Task[None]] = set()
        """What is about to end: runners that were stopped, and the removal of numbers that nobody needs."""

    def now_s(self) -> int:
        return self._wall_ms() // 1000

    def reports(self) -> dict[Key, Report]:
        """What is told of each shovel that is carried out here, or would be if there were fewer."""
        left_out = Report(
            TERMINATED, f"{CARRIED_MAX} shovels are carried out at most, and so many come before it", {}
        )
        return dict.fromkeys(self._left_out, left_out) | {
            key: runner.report() for key, runner in self._runs.items()
        }

    def restart(self, vhost: str, name: str) -> bool:
        """Stop a shovel and begin it again; return whether there is one here."""
        runner = self._runs.get((vhost, name))
        if runner is not None:
            self._stop((vhost, name))
            self._start((vhost, name), runner.text, runner.change)
        return runner is not None

    async def run(self, change: ChangeLog) -> None:
        """Carry out shovels until cancelled. `change` has something changed in the log, or raises an exception."""
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
        """The shovels that are gone, and whose numbers are still written down."""
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

    # What runners ask

    async def turn(self) -> None:
        """Wait until another run may begin."""
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
    except Exception as error:  # noqa: BLE001  # it will be tried again
        log.info("numbers of shovels that are gone stay for now: %s", error)


class _Runner:
    """Carries out one shovel. It is the `Surroundings` of its runs."""

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
        """The numbers that the last run has left; None before the first one."""

    def report(self) -> Report:
        return self._failure if self._current is None else self._current.report()

    def stop(self) -> None:
        """Have it end as soon as the brokers know."""
        # A task group whose tasks fail in this moment says nothing of having been cancelled, before Python 3.13.
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
                await asyncio.Event().wait()  # until somebody restarts it
            await asyncio.sleep(max(shovel.reconnect_delay_s, PAUSE_S_MIN))

    async def _run_once(self, shovel: Definition) -> str:
        """Carry messages until something goes wrong; return what."""
        # What else is said of a shovel may change, a password among it: its messages are the same.
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
        except Exception as error:  # noqa: BLE001  # whatever it is, there will be another run
            raise Closed(f"the log of this cluster does not go on: {error}") from None

    def _failed(self, reason: str) -> None:
        if reason != self._failure.reason:
            log.warning("shovel '%s' in vhost '%s' stops: %s", self._key[1], self._key[0], reason)
        self._failure = Report(TERMINATED, reason, {})
