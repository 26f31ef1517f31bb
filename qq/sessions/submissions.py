"""Gathers the requests of this node's sessions into batches for the log.

Invariant: work is done per batch. A batch takes all requests of a pass of the event loop, and all that arrive while
earlier batches are under way, as far as it has room. The rest waits; lanes with large requests wait behind lanes with
small ones (lanes.py). A session's commands keep their order. A command that the log cannot hold is refused to its
caller when it is added, so it never spoils a batch. All requests are counted, not only bodies: for the size of a batch,
which bounds the time that every node spends on it, and for the octets that a connection may request ahead of the log.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from functools import partial
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from cluster.runtime.histogram import Histogram
from qq.machine.handlers.cost_estimate import BATCH_STEPS_MAX
from qq.machine.protocol.codec import check_command
from qq.machine.protocol.commands import Commit, Credit
from qq.sessions.batch import BATCH_BYTES_MAX, LARGE_BYTES, Batch, PartOutcome
from qq.sessions.lanes import QUANTUM, Lane, Lanes
from qq.sessions.pending_requests import (
    COMMAND_BYTES,
    Callback,
    OpenCommit,
    OpenEnqueue,
    OpenSettlement,
    PendingCommand,
    PendingStep,
    bytes_of_command,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.runtime.ports import Runtime
    from qq.machine.machine import QueueMachine
    from qq.machine.protocol.commands import Command, Settlement, StageMessages
    from qq.sessions.lanes import Part, Tenant
    from qq.sessions.ports import Log, Publisher

BATCHES_IN_FLIGHT_MAX = 2
"""Batches that may be submitted and not yet applied. Above that, only full batches are submitted. Meanwhile requests
gather, so the size of the batches adapts to the load."""
SPACING_S = 0.002
"""Seconds after a batch until a batch that is not full is submitted, if the first is not applied earlier. An entry
costs every node as much for one command as for ten, and hardly commits sooner behind another entry."""
COST_AT_ONCE = 2_500
"""Cost of the batches under way, in steps with octets, from which on more batches are submitted only every `PACE_S`, as
long as a light client is active.

It equals two batches full of octets: enough to keep a quick disk and all nodes busy. So a light client waits for few
milliseconds of other clients' work, and not for all their requests."""
SPARING_STEPS = COST_AT_ONCE // 2
"""Steps of a batch as long as a light client is active. A batch of octets is full of them at about as many."""
SPARING_BYTES = 4096
"""Octets in the lanes up to which a batch is small in any case."""
PACE_S = 0.010
"""Seconds after a batch until the next is submitted although `COST_AT_ONCE` is under way. A disk with slow syncs may
then store more in each sync."""
MOMENT_S = 0.002
"""Seconds that an acknowledgement may wait for company, such as the next publish, if no client waits for it."""
SPARING_S = 1.0
"""Seconds after a request of a light client during which the pace is kept, because its next message may come at any
time."""
COST_IN_FLIGHT_MAX = 2 * BATCH_STEPS_MAX
"""Cost of the batches under way, in steps with octets, at which no more batches are submitted."""

TENANT_SHARES_MIN = 8
"""Shares of the memory for requests, at least, of which each virtual host has one."""
WEIGHT_STEPS = 1000
"""Steps for a weight of 1, which is a millisecond."""


class Urgency(Enum):
    """The time at which a settlement must be submitted."""

    AT_ONCE = 0
    """A client may wait for its effect."""
    WITH_NEXT_ENTRY = 1
    """The next message to the consumer needs its effect, but there is no such message yet. So the leader gets it at
    once, and keeps it until the next entry (`Log.propose`)."""
    WITH_NEXT_REQUEST = 2
    """It waits for the next request of this node, at most for `MOMENT_S`."""


class _UnderWay(NamedTuple):
    """A submitted batch that is not yet applied."""

    sequence: int
    batch: Batch
    since_s: float
    may_wait: bool


class _Watched(NamedTuple):
    """A publisher's last publish sequence number at a given time, in seconds."""

    time_s: float
    publisher: Publisher
    published: int


class Submissions:
    """The lanes of this node, and its batches under way."""

    def __init__(
        self, node: str, log: Log, machine: QueueMachine, runtime: Runtime, publish_timeout_s: float
    ) -> None:
        """Create the lanes.

        Publishes without a confirm after `publish_timeout_s` (0: no limit) are refused as unknown.
        """
        self._node = node
        self._log = log
        self._machine = machine
        self._runtime = runtime
        self._publish_timeout_s = publish_timeout_s
        self.large_bytes = LARGE_BYTES
        """Octets of a message above which it is stored in fragments, see `Batch`."""
        self._watched: deque[_Watched] = deque()
        self._flush_scheduled = False
        self._has_urgent = False
        """Whether the lanes hold a part that must not wait for company."""
        self._may_wait = False
        """Whether the leader may keep all parts in the lanes until its next entry."""
        self._is_behind = False
        """Whether the last batch had no room for all the requests in the lanes."""
        self._retry_s = inf
        """Monotonic time, in seconds, of the next scheduled attempt to submit a batch; infinite if there is none."""
        self._under_way: deque[_UnderWay] = deque()
        self._has_waiting_batch = False
        """Whether a batch under way may wait at the leader. The node submits a single batch of that kind at a time."""
        self._cost_in_flight = 0
        self._submitted_s = -PACE_S
        """Monotonic time, in seconds, of the last submitted batch."""
        self._sparing_until_s = 0.0
        """Monotonic time, in seconds, until which this node keeps little under way, so that light clients need not
        wait."""
        self._lanes = Lanes()
        self._own = Lane()
        """The node's own lane, for commands that belong to no connection, such as operators' requests."""
        self.waiting_bytes = 0
        """Octets of requests that wait in the lanes."""
        self._bytes_in_flight = 0
        self._has_begun = False
        """Whether the log knows of this process start. The state then also shows whether sessions of an earlier start
        remain."""
        self.requests = 0
        """Requests of this process start: commands, settlements, barriers and runs of messages."""
        self.batches_applied = 0
        """Applied batches of this process start. A waiting caller sees from it that the log makes progress."""
        self.commit_times = Histogram()
        """Seconds from the submission of a batch until this node has applied it; of batches that must not wait."""
        self.queueing_times = Histogram()
        """Seconds that the first message of each run waited in its lane until a batch took it.

        If no batch has room for a whole run, each piece counts."""
        self.times_unseen = 0
        """How often the node has missed the outcome of its batches, because it received a snapshot or was evicted."""

    @property
    def pending_bytes(self) -> int:
        """Octets of requests that are not known to be applied, as pending_requests.py counts them."""
        return self.waiting_bytes + self._bytes_in_flight

    def oldest_pending(self) -> int | None:
        """Return the number of the oldest batch of this process start that is not applied; None if all are applied.

        Requests that wait in the lanes for their turn count as the next batch.
        """
        is_waiting = self._has_urgent and bool(self._lanes)
        is_pending = is_waiting or bool(self._under_way) or not self._has_begun
        return self.batches_applied if is_pending else None

    def tenant(self, vhost: str) -> Tenant:
        """Return the tenant of the connections to this virtual host (`Lane.tenant`)."""
        return self._lanes.tenant(vhost)

    @property
    def tenant_shares(self) -> int:
        """The number of equal shares of this node's memory for requests. Each tenant has room for one of them."""
        return max(TENANT_SHARES_MIN, self._lanes.tenants)

    # Requests

    def cost_of(self, command: Command) -> int:
        """Return the estimated cost of a command for every node, in steps."""
        return self._machine.costs.steps(self._node, command)

    def add(self, command: Command, lane: Lane | None = None) -> None:
        """Submit a command behind all earlier requests of its lane (by default, the node's own lane).

        Raises InvalidCommand; then the state of the lanes is unchanged.
        """
        check_command(command, self._machine.version)
        pending = self._pending_command(command)
        lane = lane or self._own
        lane.settlements.clear()
        self._enqueue(lane, pending, pending.size)

    def read_barrier(
        self, callback: Callable[[], None], lane: Lane | None = None, *, is_urgent: bool = True, size: int = 0
    ) -> None:
        """Call `callback` when all earlier requests of the lane are applied or abandoned.

        By then this node has applied all that the cluster had committed before the call: a batch goes through the log
        for this, even if it is empty. A barrier that is not urgent waits for the next request, or a moment. `size` is
        the number of octets that it counts as, if a client may ask for any number of barriers.
        """
        wait_s = 0.0 if is_urgent else MOMENT_S
        self._enqueue(lane or self._own, Callback(callback, size), size, wait_s=wait_s)

    def can_read(self, lane: Lane) -> bool:
        """Return whether a read for this lane needs no entry: its requests are submitted, and the leader answers."""
        return (
            not lane.parts
            and self._has_begun
            and self._log.can_read
            and not self._machine.has_lost_sessions(self._node)
        )

    def read(self, callback: Callable[[], None], lane: Lane | None = None) -> None:
        """Call `callback` as `read_barrier` does, but without an entry if no request of the lane waits.

        The log is then read (`Log.read`), so a disk that hangs does not hold up the callback.
        """
        lane = lane or self._own
        if not self.can_read(lane):
            self.read_barrier(callback, lane)
            return
        under_way = self._batches_of(lane)

        def done() -> None:
            if under_way and any(each.batch is under_way[-1] for each in self._under_way):
                under_way[-1].callbacks.append(callback)
            else:
                callback()

        self._log.read(done, partial(self.read_barrier, callback, lane))

    def _batches_of(self, lane: Lane) -> list[Batch]:
        """Return the batches under way with requests of the lane."""
        return [each.batch for each in self._under_way if lane in each.batch.bytes_by_payer]

    def commit(
        self,
        session: int,
        content: Sequence[OpenEnqueue | Command],
        lane: Lane,
        refuse: Callable[[int], None],
    ) -> None:
        """Submit a session's transaction in a single batch, so that all of it is applied or nothing.

        If its cost is above TRANSACTION_STEPS_MAX, `refuse` is called later with the cost.
        """
        parts: list[OpenEnqueue | PendingCommand] = []
        for part in content:
            if isinstance(part, OpenEnqueue):
                part.requested_s = self._runtime.monotonic()
                parts.append(part)
            else:
                check_command(part, self._machine.version)
                parts.append(self._pending_command(part))
        commit = self._pending_command(Commit(session, len(content)))
        lane.settlements.clear()
        transaction = OpenCommit(commit, parts, partial(self._refuse_commit, lane, refuse))
        self._enqueue(lane, transaction, transaction.size)

    def stage(self, command: StageMessages, messages: Sequence[bytes], lane: Lane, session: int) -> None:
        """Submit a step of a sink with its messages; `check_command` must have accepted the command.

        `session` is a new number, for the fragments of a large message.
        """
        pending = PendingStep(command, messages, session)
        self._enqueue(lane, pending, pending.size)

    def _pending_command(self, command: Command) -> PendingCommand:
        return PendingCommand(self._node, command, bytes_of_command(command))

    def _refuse_commit(
        self, lane: Lane, refuse: Callable[[int], None], transaction: OpenCommit, steps: int
    ) -> None:
        self.waiting_bytes -= transaction.size
        lane.count_uncommitted(-transaction.size)
        refuse(steps)

    def publish(self, run: OpenEnqueue, messages: list[bytes], *, is_new: bool) -> None:
        """Add messages to `run`, which is `is_new` if it does not wait here yet."""
        lane = run.publisher.connection.lane
        size = run.size if is_new else 0
        size += run.add(messages)
        if is_new:
            run.requested_s = self._runtime.monotonic()
            # Keep acknowledgements behind this message: the message may have been made from an acknowledged message.
            lane.settlements.clear()
            self._enqueue(lane, run, size)
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
        urgency: Urgency = Urgency.AT_ONCE,
    ) -> None:
        """Settle, return or discard message ids. Consecutive ranges of a consumer become a single command."""
        known = lane.settlements.get((kind, consumer))
        if known is None or not known.extend(first, last):
            known = lane.settlements[kind, consumer] = OpenSettlement(kind, consumer, first, last)
            if urgency is Urgency.WITH_NEXT_ENTRY and not self._lanes and not self._has_waiting_batch:
                self._enqueue(lane, known, COMMAND_BYTES)
                self._may_wait = True
            else:
                wait_s = 0.0 if urgency is Urgency.AT_ONCE else MOMENT_S
                self._enqueue(lane, known, COMMAND_BYTES, wait_s=wait_s)
        elif urgency is Urgency.AT_ONCE:
            self._schedule_flush()

    def credit(self, consumer: int, count: int, lane: Lane, *, is_urgent: bool = True) -> None:
        """Give a consumer credit for `count` more messages. Credit that is not urgent waits for the next command.

        That may take hours, so such credit counts no octets, and its connection does not count as waiting for the log.
        """
        size = COMMAND_BYTES if is_urgent else 0
        credit = PendingCommand(self._node, Credit(consumer, count), size)
        self._enqueue(lane, credit, size, wait_s=0.0 if is_urgent else inf)

    def _enqueue(self, lane: Lane, part: Part, size: int, *, wait_s: float = 0.0) -> None:
        """Put a part into its lane. It may wait up to `wait_s` seconds for company (inf: without limit)."""
        lane.parts.append(part)
        self.requests += 1
        if not lane.is_waiting and self._lanes.enter(lane):
            self._sparing_until_s = self._runtime.monotonic() + SPARING_S
        if size:
            self._count(lane, size)
        if not wait_s:
            self._schedule_flush()
        elif wait_s < inf and not self._flush_scheduled:
            self._retry_in(wait_s)

    def _count(self, lane: Lane, size: int) -> None:
        self.waiting_bytes += size
        lane.count_uncommitted(size)

    # Submitting

    def _schedule_flush(self) -> None:
        self._has_urgent = True
        self._may_wait = False
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._runtime.call_soon(self._flush)

    def _retry_in(self, wait_s: float) -> None:
        at_s = self._runtime.monotonic() + wait_s
        if at_s < self._retry_s:
            self._retry_s = at_s
            self._runtime.call_later(wait_s, self._retry)

    def _retry(self) -> None:
        self._retry_s = inf
        self._has_urgent = True
        self._may_wait = False
        self._submit_urgent()

    def _submit_urgent(self) -> None:
        if self._has_urgent and self._lanes and not self._flush_scheduled:
            self._flush()

    def _flush(self) -> None:
        """Submit all batches that may be submitted.

        Lanes that were put off are served in the next pass of the event loop.
        """
        self._flush_scheduled = False
        self._machine.costs.begin_pass()
        while self._lanes and self._may_submit():
            batch, put_off = self._gather()
            if not batch.is_empty:
                self._submit(batch)
            for lane in put_off:
                self._lanes.go_on(lane)
            if put_off and batch.is_empty:
                self._schedule_flush()
                return
        if not self._lanes:
            self._has_urgent = False

    def _may_submit(self) -> bool:
        if not self._has_begun or self._machine.has_lost_sessions(self._node):
            return False
        under_way = len(self._under_way) - self._has_waiting_batch
        if not under_way or self._may_wait:
            return True
        if self._cost_in_flight >= COST_IN_FLIGHT_MAX:
            return False
        if self._cost_in_flight >= COST_AT_ONCE and self._is_sparing():
            return self._has_waited(PACE_S)
        if self.waiting_bytes < BATCH_BYTES_MAX:
            if under_way >= BATCHES_IN_FLIGHT_MAX:
                return False
            return self._is_behind or self._has_waited(SPACING_S)
        return True

    def _is_sparing(self) -> bool:
        """Return whether a light client has made a request a short while ago."""
        return self._runtime.monotonic() < self._sparing_until_s

    def _has_waited(self, seconds: float) -> bool:
        """Return whether the last batch was submitted at least `seconds` ago; if not, schedule another attempt."""
        wait_s = self._submitted_s + seconds - self._runtime.monotonic()
        if wait_s > 0:
            self._retry_in(wait_s)
        return wait_s <= 0

    def _gather(self) -> tuple[Batch, list[Lane]]:
        """Gather a batch from the next lanes. Return it with the lanes that were put off to the next pass."""
        steps_max = SPARING_STEPS if self.waiting_bytes > SPARING_BYTES and self._is_sparing() else None
        batch, lanes, costs = Batch(self.large_bytes, steps_max), self._lanes, self._machine.costs
        put_off: list[Lane] = []
        outcome = PartOutcome.TAKEN
        while lanes and not batch.is_full and outcome is not PartOutcome.NO_ROOM:
            lane = lanes.next()
            before = batch.cost + costs.route_steps + lane.charged
            outcome = self._serve(lane, batch)
            cost = batch.cost + costs.route_steps + lane.charged - before
            if outcome is PartOutcome.PUT_OFF:
                lanes.put_off(lane, cost)
                put_off.append(lane)
            else:
                lanes.served(lane, cost)
        self._is_behind = batch.is_full or outcome is PartOutcome.NO_ROOM
        return batch, put_off

    def _serve(self, lane: Lane, batch: Batch) -> PartOutcome:
        """Move a lane's parts into the batch, until a part cannot be taken or the lane has had its share (QUANTUM)."""
        parts, costs, until = lane.parts, self._machine.costs, batch.cost + QUANTUM
        while parts and batch.cost < until:
            outcome = parts[0].take(batch, lane, costs)
            if outcome in (PartOutcome.NO_ROOM, PartOutcome.PUT_OFF, PartOutcome.CHARGED):
                return outcome
            if outcome is not PartOutcome.PARTLY_TAKEN:
                parts.popleft()
        return PartOutcome.TAKEN

    def _submit(self, batch: Batch) -> None:
        may_wait, self._may_wait = self._may_wait, False
        sequence = self._log.propose(batch.payload(), batch.steps // WEIGHT_STEPS, may_wait=may_wait)
        now_s = self._runtime.monotonic()
        self._under_way.append(_UnderWay(sequence, batch, now_s, may_wait))
        if may_wait:
            self._has_waiting_batch = True
        else:
            self._submitted_s = now_s
        for requested_s in batch.requested_s:
            self.queueing_times.add(now_s - requested_s)
        self._cost_in_flight += batch.cost
        self.waiting_bytes -= batch.bytes
        self._bytes_in_flight += batch.bytes

    def applied(self, sequence: int, *, unseen: bool = False) -> None:
        """Confirm the publishes of the batches up to `sequence`, which are applied now.

        The first batch of each process start is the group's own, without commands. No batch is submitted before it is
        applied. If the effects were `unseen`, the node does not know which publishes a full queue refused or would have
        been returned. Then all unconfirmed publishes are refused, which tells the publisher that their outcome is
        unknown.
        """
        self._has_begun = True
        self.times_unseen += unseen
        now_s = self._runtime.monotonic()
        while self._under_way and self._under_way[0].sequence <= sequence:
            _, done, since_s, may_wait = self._under_way.popleft()
            self.batches_applied += 1
            self._has_waiting_batch = self._has_waiting_batch and not may_wait
            if not may_wait:
                self.commit_times.add(now_s - since_s)
            self._cost_in_flight -= done.cost
            self._bytes_in_flight -= done.bytes
            for publisher, published in done.confirms.items():
                if unseen:
                    publisher.refuse_unconfirmed(published)
                else:
                    publisher.confirm(published)
            for payer, size in done.bytes_by_payer.items():
                payer.count_uncommitted(-size)
            for callback in done.callbacks:
                callback()
        self._submit_urgent()

    def entry_applied(self) -> None:
        """Submit more after an entry was applied.

        Until then this node may have waited for the log to end the sessions of an earlier process start.
        """
        if not self._under_way:
            self._submit_urgent()

    def abandon(self) -> None:
        """Abandon all requests after the cluster has evicted this node.

        Outcomes are unknown, and no session is left. Barriers wait for the next incarnation, because until then this
        node may lack entries that were committed before their calls.
        """
        callbacks = [callback for each in self._under_way for callback in each.batch.callbacks]
        for lane in self._lanes.clear():
            callbacks += [part.call for part in lane.parts if isinstance(part, Callback)]
            lane.parts.clear()
            lane.settlements.clear()
        self._has_begun = False
        self.times_unseen += 1
        self._under_way.clear()
        self._has_waiting_batch = self._may_wait = False
        self._watched.clear()
        self._cost_in_flight = self.waiting_bytes = self._bytes_in_flight = 0
        for callback in callbacks:
            self.read_barrier(callback)

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
