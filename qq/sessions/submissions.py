"""What this node's sessions want done, gathered into batches for the log.

Invariant: work per batch. All that one pass of the event loop brings, and all that comes while earlier batches are
still under way, goes into one batch, as far as that has room; what is left waits, and those who ask for much wait
behind those who ask for little. The order of a session's commands is the order it gave them in. A command that the log
cannot hold is refused when it is given, to the one who gives it: never does a batch suffer for it. Whatever is asked
for counts, not bodies only: for how large a batch may get, which is how long every node is busy with it, and for how
much a connection may ask before the log has it.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from cluster.runtime.histogram import Histogram
from qq.machine.handlers.cost_estimate import BATCH_STEPS_MAX
from qq.machine.protocol.codec import check_command
from qq.machine.protocol.commands import Commit, Credit
from qq.sessions.batch import BATCH_BYTES_MAX, LARGE_BYTES, Batch, PartOutcome
from qq.sessions.fair_queue import QUANTUM, Lane, Lanes
from qq.sessions.pending_requests import (
    COMMAND_BYTES,
    Asked,
    Callback,
    OpenCommit,
    OpenEnqueue,
    OpenSettlement,
    bytes_of_command,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.runtime.ports import Runtime
    from qq.machine.machine import QueueMachine
    from qq.machine.protocol.commands import Command, Settlement
    from qq.sessions.fair_queue import Part, Tenant
    from qq.sessions.ports import Log, Publisher

BATCHES_IN_FLIGHT_MAX = 2
"""Batches that may be submitted and not yet applied; above that, only full ones are submitted. Meanwhile what is asked
for gathers, so batches fit the load."""
SPACING_S = 0.002
"""How long after a batch, if that is not applied earlier, one that is not full is submitted. An entry costs every node
as much for one command as for ten, and hardly comes sooner if there is another one before it."""
COST_AT_ONCE = 2_500
"""Cost of the batches under way, in steps, octets included, from which on more is submitted at a pace only (`PACE_S`)
while there is somebody who asks for little.

It is two batches that are full of octets: enough to keep a quick disk and all nodes busy. So whoever asks for little
waits for few milliseconds of others' work, and not for all that they have asked for.
"""
PACE_S = 0.010
"""How long after a batch the next one is submitted though `COST_AT_ONCE` is under way: a disk that takes long for each
sync may have more to do in one."""
MOMENT_S = 0.002
"""How long an acknowledgement that no client waits for may wait for company, such as the next publish."""
SPARING_S = 1.0
"""How long, after somebody has come who asks for little, the pace is kept: the next message may come at any time."""
COST_IN_FLIGHT_MAX = 2 * BATCH_STEPS_MAX
"""Cost of the batches under way, in steps, octets included, at which no more is submitted."""

WEIGHT_STEPS = 1000
"""How many steps make a weight of 1, which is a millisecond."""


class _UnderWay(NamedTuple):
    """A batch that was submitted."""

    sequence: int
    batch: Batch
    since_s: float


class _Watched(NamedTuple):
    """How far a publisher had published at some time, as a publish sequence number."""

    time_s: float
    publisher: Publisher
    published: int


class Submissions:
    """The lanes of this node, and the batches under way."""

    def __init__(
        self, node: str, log: Log, machine: QueueMachine, runtime: Runtime, publish_timeout_s: float
    ) -> None:
        """What is not confirmed within `publish_timeout_s` (0: no limit) is refused; nobody knows its outcome then."""
        self._node = node
        self._log = log
        self._machine = machine
        self._runtime = runtime
        self._publish_timeout_s = publish_timeout_s
        self.large_bytes = LARGE_BYTES
        """Messages of more octets than that are stored in fragments, see `Batch`."""
        self._watched: deque[_Watched] = deque()
        self._flush_asked = False
        self._has_urgent = False
        """Whether the lanes hold more than parts that may wait for company."""
        self._is_behind = False
        """Whether the last batch had no room for all that waited in the lanes."""
        self._look_s = inf
        """When to look next whether a batch may be submitted, if nothing happens before."""
        self._under_way: deque[_UnderWay] = deque()
        self._cost_in_flight = 0
        self._submitted_s = -PACE_S
        """When the last batch was submitted."""
        self._sparing_until_s = 0.0
        """Until when this node keeps little under way, so that light clients do not wait."""
        self._lanes = Lanes()
        self._own = Lane()
        """The node's own lane: commands that belong to no connection, such as what operators ask for."""
        self._waiting_bytes = 0
        self._bytes_in_flight = 0
        self._has_begun = False
        """Whether the cluster knows of this life of the node; the state says then, too, that an earlier one is over."""
        self.batches_applied = 0
        """How many batches were applied: whoever waits sees from it that the log goes on."""
        self.commit_times = Histogram()
        """How long it took from the submission of a batch until this node had applied it."""
        self.queueing_times = Histogram()
        """How long the first messages of runs have waited in their lanes until a batch took them in.

        Of a run that no batch has room for as a whole each piece counts.
        """
        self.times_unseen = 0
        """How often the node has missed what became of its batches: it was given a snapshot, or was expelled."""

    @property
    def pending_bytes(self) -> int:
        """Octets that were asked for and are not known to be applied, as parts.py counts them."""
        return self._waiting_bytes + self._bytes_in_flight

    def tenant(self, vhost: str) -> Tenant:
        """The tenant that the lanes of connections to this virtual host belong to (`Lane.tenant`)."""
        return self._lanes.tenant(vhost)

    # What is asked for

    def price(self, command: Command) -> int:
        """What a command is expected to cost every node, in steps."""
        return self._machine.costs.of(self._node, command)

    def add(self, command: Command, lane: Lane | None = None) -> None:
        """Have a command carried out, after all that its lane (by default the node's own) has asked for before.

        Raises InvalidCommand, and then nothing has changed.
        """
        check_command(command, self._machine.version)
        asked = self._asked(command)
        lane = lane or self._own
        lane.settlements.clear()
        self._ask(lane, asked, asked.size)

    def read_barrier(
        self, callback: Callable[[], None], lane: Lane | None = None, *, is_urgent: bool = True
    ) -> None:
        """Have `callback` called when all that the lane asked for so far is applied, or is given up.

        This node has applied then all that the cluster has committed by now: a batch goes through the log for it,
        though nothing may be asked for in it. See `settle` for what is not urgent.
        """
        self._ask(lane or self._own, Callback(callback), 0, wait_s=_wait_s(is_urgent=is_urgent))

    def commit(
        self,
        session: int,
        content: Sequence[OpenEnqueue | Command],
        lane: Lane,
        refuse: Callable[[int], None],
    ) -> None:
        """Have a transaction of a session carried out: in one batch, so all or nothing.

        `refuse` is called later with what it would cost if that is more than TRANSACTION_STEPS_MAX.
        """
        parts: list[OpenEnqueue | Asked] = []
        for part in content:
            if isinstance(part, OpenEnqueue):
                part.asked_s = self._runtime.monotonic()
                parts.append(part)
            else:
                check_command(part, self._machine.version)
                parts.append(self._asked(part))
        commit = self._asked(Commit(session, len(content)))
        lane.settlements.clear()
        transaction = OpenCommit(commit, parts, partial(self._refuse, lane, refuse))
        self._ask(lane, transaction, transaction.size)

    def _asked(self, command: Command) -> Asked:
        return Asked(self._node, command, bytes_of_command(command))

    def _refuse(self, lane: Lane, refuse: Callable[[int], None], transaction: OpenCommit, steps: int) -> None:
        self._waiting_bytes -= transaction.size
        lane.count_uncommitted(-transaction.size)
        refuse(steps)

    def publish(self, run: OpenEnqueue, messages: list[bytes], *, is_new: bool) -> None:
        """Add messages to `run`, which is `is_new` if it does not wait here yet."""
        lane = run.publisher.connection.lane
        size = run.size if is_new else 0
        size += run.add(messages)
        if is_new:
            run.asked_s = self._runtime.monotonic()
            # What is acknowledged behind a message must not go before it: it may be what the message was made of.
            lane.settlements.clear()
            self._ask(lane, run, size)
        else:
            self._count(lane, size)
        if run.first_sequence and self._publish_timeout_s:
            self._watch(run.publisher)

    def settle(
        self,
        kind: type[Settlement],
        consumer: int,
        first: int,
        last: int,
        lane: Lane,
        *,
        is_urgent: bool = True,
    ) -> None:
        """Settle, return or discard message ids; consecutive ranges of one consumer become one command.

        What is not urgent, because nobody waits for what comes of it, goes with what is asked for next, or in a moment.
        """
        known = lane.settlements.get((kind, consumer))
        if known is None or not known.goes_on(first, last):
            known = lane.settlements[kind, consumer] = OpenSettlement(kind, consumer, first, last)
            self._ask(lane, known, COMMAND_BYTES, wait_s=_wait_s(is_urgent=is_urgent))
        elif is_urgent:
            self._ask_flush()

    def credit(self, consumer: int, count: int, lane: Lane, *, is_urgent: bool = True) -> None:
        """Let a consumer have `count` messages more. Credit that is not urgent waits for the next command.

        That may take hours, so such credit counts no octets: its connection does not wait for the log.
        """
        size = COMMAND_BYTES if is_urgent else 0
        credit = Asked(self._node, Credit(consumer, count), size)
        self._ask(lane, credit, size, wait_s=0.0 if is_urgent else inf)

    def _ask(self, lane: Lane, part: Part, size: int, *, wait_s: float = 0.0) -> None:
        """Put a part into its lane; it may wait up to `wait_s` seconds for company (inf: for ever)."""
        lane.parts.append(part)
        if not lane.is_waiting and self._lanes.enter(lane):
            self._sparing_until_s = self._runtime.monotonic() + SPARING_S
        if size:
            self._count(lane, size)
        if not wait_s:
            self._ask_flush()
        elif wait_s < inf and not self._flush_asked:
            self._look_again_in(wait_s)

    def _count(self, lane: Lane, size: int) -> None:
        self._waiting_bytes += size
        lane.count_uncommitted(size)

    # What is submitted

    def _ask_flush(self) -> None:
        self._has_urgent = True
        if not self._flush_asked:
            self._flush_asked = True
            self._runtime.call_soon(self._flush)

    def _look_again_in(self, wait_s: float) -> None:
        at_s = self._runtime.monotonic() + wait_s
        if at_s < self._look_s:
            self._look_s = at_s
            self._runtime.call_later(wait_s, self._look_again)

    def _look_again(self) -> None:
        self._look_s = inf
        self._has_urgent = True
        self._go_on()

    def _go_on(self) -> None:
        if self._has_urgent and self._lanes and not self._flush_asked:
            self._flush()

    def _flush(self) -> None:
        """Submit what may be submitted; what is put off is looked at again in the next pass of the event loop."""
        self._flush_asked = False
        self._machine.costs.begin_pass()
        while self._lanes and self._may_submit():
            batch, put_off = self._gather()
            if not batch.is_empty:
                self._submit(batch)
            for lane in put_off:
                self._lanes.go_on(lane)
            if put_off and batch.is_empty:
                self._ask_flush()
                return
        if not self._lanes:
            self._has_urgent = False

    def _may_submit(self) -> bool:
        if not self._has_begun or self._machine.has_lost_sessions(self._node):
            return False
        if not self._under_way:
            return True
        if self._cost_in_flight >= COST_IN_FLIGHT_MAX:
            return False
        if self._waiting_bytes < BATCH_BYTES_MAX:
            if len(self._under_way) >= BATCHES_IN_FLIGHT_MAX:
                return False
            return self._is_behind or self._has_waited(SPACING_S)
        return self._cost_in_flight < COST_AT_ONCE or not self._is_sparing() or self._has_waited(PACE_S)

    def _is_sparing(self) -> bool:
        """Whether a light client has asked for something a short while ago."""
        return self._runtime.monotonic() < self._sparing_until_s

    def _has_waited(self, seconds: float) -> bool:
        """Whether the last batch was submitted so long ago; if not, this node looks again when it was."""
        wait_s = self._submitted_s + seconds - self._runtime.monotonic()
        if wait_s > 0:
            self._look_again_in(wait_s)
        return wait_s <= 0

    def _gather(self) -> tuple[Batch, list[Lane]]:
        """Make a batch of what is next; returns with it the lanes that were put off to the next pass."""
        batch, lanes, costs = Batch(self.large_bytes), self._lanes, self._machine.costs
        put_off: list[Lane] = []
        outcome = PartOutcome.TAKEN
        while lanes and not batch.is_full and outcome is not PartOutcome.NO_ROOM:
            lane = lanes.next()
            before = batch.cost + costs.looked + lane.charged
            outcome = self._serve(lane, batch)
            cost = batch.cost + costs.looked + lane.charged - before
            if outcome is PartOutcome.PUT_OFF:
                lanes.put_off(lane, cost)
                put_off.append(lane)
            else:
                lanes.served(lane, cost)
        self._is_behind = batch.is_full or outcome is PartOutcome.NO_ROOM
        return batch, put_off

    def _serve(self, lane: Lane, batch: Batch) -> PartOutcome:
        """Move a lane's parts into the batch, until one cannot be taken or the lane has had its share (QUANTUM)."""
        parts, costs, until = lane.parts, self._machine.costs, batch.cost + QUANTUM
        while parts and batch.cost < until:
            outcome = parts[0].take(batch, lane, costs)
            if outcome in (PartOutcome.NO_ROOM, PartOutcome.PUT_OFF, PartOutcome.NOT_YET):
                return outcome
            if outcome is not PartOutcome.GOES_ON:
                parts.popleft()
        return PartOutcome.TAKEN

    def _submit(self, batch: Batch) -> None:
        sequence = self._log.submit(batch.payload(), batch.steps // WEIGHT_STEPS)
        self._submitted_s = self._runtime.monotonic()
        self._under_way.append(_UnderWay(sequence, batch, self._submitted_s))
        for asked_s in batch.asked_s:
            self.queueing_times.add(self._submitted_s - asked_s)
        self._cost_in_flight += batch.cost
        self._waiting_bytes -= batch.bytes
        self._bytes_in_flight += batch.bytes

    def applied(self, sequence: int, *, unseen: bool = False) -> None:
        """Note that the batches up to `sequence` are applied: their publishes are safe.

        The first one of each life is the group's own, without commands: nothing is submitted before that is applied.
        If that was `unseen`, nobody knows which were refused by a queue that was full, or would have been returned: all
        that were not confirmed are refused then, which says that their outcome is unknown.
        """
        self._has_begun = True
        self.times_unseen += unseen
        now_s = self._runtime.monotonic()
        while self._under_way and self._under_way[0].sequence <= sequence:
            _, done, since_s = self._under_way.popleft()
            self.batches_applied += 1
            self.commit_times.add(now_s - since_s)
            self._cost_in_flight -= done.cost
            self._bytes_in_flight -= done.bytes
            for publisher, published in done.confirms.items():
                if unseen:
                    publisher.refuse_unconfirmed(published)
                else:
                    publisher.confirm(published)
            for payer, size in done.asked_bytes.items():
                payer.count_uncommitted(-size)
            for callback in done.callbacks:
                callback()
        self._go_on()

    def entry_applied(self) -> None:
        """An entry was applied: submit more, unless an earlier life of this node is not over yet in the log."""
        if not self._under_way:
            self._go_on()

    def give_up(self) -> None:
        """The cluster expelled this node: whatever was under way has an unknown outcome, and no session is left."""
        callbacks = [callback for each in self._under_way for callback in each.batch.callbacks]
        for lane in self._lanes.clear():
            callbacks += [part.call for part in lane.parts if isinstance(part, Callback)]
            lane.parts.clear()
            lane.settlements.clear()
        self._has_begun = False
        self.times_unseen += 1
        self._under_way.clear()
        self._watched.clear()
        self._cost_in_flight = self._waiting_bytes = self._bytes_in_flight = 0
        for callback in callbacks:
            callback()

    # The publish timeout

    def _watch(self, publisher: Publisher) -> None:
        if not self._watched:
            self._runtime.call_later(self._publish_timeout_s, self._refuse_overdue)
        self._watched.append(_Watched(self._runtime.monotonic(), publisher, publisher.published))

    def _refuse_overdue(self) -> None:
        watched, now_s = self._watched, self._runtime.monotonic()
        while watched and watched[0].time_s + self._publish_timeout_s <= now_s:
            _, publisher, published = watched.popleft()
            publisher.refuse_unconfirmed(published)
        if watched:
            wait_s = watched[0].time_s + self._publish_timeout_s - now_s
            self._runtime.call_later(wait_s, self._refuse_overdue)


def _wait_s(*, is_urgent: bool) -> float:
    """How long a settlement, or a barrier behind settlements, may wait for company."""
    return 0.0 if is_urgent else MOMENT_S
