"""Samples of all queues every few seconds: their rates, totals of virtual hosts, and faults of queues and consumers.

Invariant: only reads the machine, in slices. A queue without a new revision costs nearly no work.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Any

from qq.diagnosis.credit_watch import CreditWatch
from qq.diagnosis.queue_watch import (
    SILENT_MS,
    CreditFacts,
    GroupFacts,
    HeldFacts,
    HeldWatch,
    QueueFacts,
    QueueWatch,
    SinkFacts,
    growing_sink,
    held_by_consumer,
    held_by_group,
    silent_sink,
)
from qq.machine.protocol.commands import LIVE_UNLIMITED
from qq.management.statistics.dead_letter_sources import DeadLetterSources
from qq.management.statistics.rates import QueueNumbers, Rates, numbers_of
from qq.management.statistics.totals import (
    ExchangeNumbers,
    KeptSamples,
    VhostNumbers,
    VhostStats,
    VhostTotals,
    exchange_numbers,
)
from qq.management.time_slices import Slices, next_slice
from qq.metrics.counters import ClusterTotals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cluster.group.group import Group
    from qq.machine.catalog.catalog import Catalog
    from qq.machine.catalog.sinks import Sink
    from qq.machine.machine import QueueMachine
    from qq.machine.queue.queue import Consumer, Queue
    from qq.management.reports.rows import Samples
    from qq.management.statistics.vhost_clients import VhostClients
    from qq.sessions.broker import Broker

QUEUES_PER_SAMPLE = 200
"""Queues sampled at a time: about a millisecond of work."""
CONSUMERS_READ_MAX = 10
"""Maximum number of consumers of a queue whose prefetch is read."""


class QueueStatistics:
    """Samples queues, and reports rates, totals and findings from the samples."""

    def __init__(self, broker: Broker, group: Group, clients: VhostClients) -> None:
        self._broker = broker
        self._clients = clients
        self._group = group
        self.rates = Rates()
        """Rates of each queue, by queue number."""
        self._catalog: Catalog | None = None
        """The catalog that was sampled last; loading a state replaces it."""
        self._revisions: dict[int, int] = {}
        """Revision of each queue at its last sample, by queue number."""
        self._sampled: dict[int, int] = {}
        """Revisions of the queues sampled in the pass under way."""
        self._vhost_totals = VhostTotals(clients)
        self._counts = False
        """Whether the samples are from after the start, and not from the replay of the log."""
        self.began_ms = 0
        """Cluster time (ms) of the first sample after the start."""
        self._kept_samples = KeptSamples()
        self.queue_watch = QueueWatch()
        self.held_watch = HeldWatch("consumers", held_by_consumer)
        self.group_watch = HeldWatch("groups", held_by_group)
        self.silent_sinks = HeldWatch("sinks", silent_sink)
        self.growing_sinks = HeldWatch("sinks", growing_sink)
        self.credit_watch = CreditWatch()
        self._dead_letter_sources = DeadLetterSources()
        self.totals: ClusterTotals | None = None
        """Totals of the cluster at the last sample; None before the first sample."""
        self.own_consumers = 0
        """Consumers of this node's clients at the last sample."""

    @property
    def _machine(self) -> QueueMachine:
        return self._broker.machine

    async def sample(self) -> None:
        """Sample the numbers of all queues for their rates, totals and diagnosis."""
        if self._machine.catalog is not self._catalog:
            self._catalog, self._revisions = self._machine.catalog, {}
            self._group.load_entry_times()
        if self._broker.live and not self._counts:
            self._counts, self.began_ms = True, self._group.time_ms()
            self.rates, self._revisions, self._vhost_totals = Rates(), {}, VhostTotals(self._clients)
        queues = list(self._machine.queues())
        for start in range(0, len(queues), QUEUES_PER_SAMPLE):
            now_ms = self._group.time_ms()
            for queue in queues[start : start + QUEUES_PER_SAMPLE]:
                self._sample_queue(queue, now_ms)
            await asyncio.sleep(0)
        self.rates.end_pass()
        self._revisions, self._sampled = self._sampled, {}
        self.queue_watch.end_pass()
        self.group_watch.end_pass()
        await self._check_sinks()
        self._dead_letter_sources.end_pass()
        for _ in self._dead_letter_sources.trace(self._machine.vhosts):
            await next_slice()
        self._vhost_totals.end_pass(self._machine.vhosts.values(), self._group.time_ms())
        for key in self._kept_samples.watched_keys():
            numbers = self.numbers(key)
            if numbers is not None:
                self._kept_samples.record(key, numbers, self._group.time_ms())
        catalog = self._machine.catalog
        together = self.vhost_totals()
        self.totals = ClusterTotals(
            queues=catalog.queue_count,
            queues_created=catalog.queues_declared,
            queues_deleted=catalog.queues_declared - catalog.queue_count,
            messages_ready=together.messages_ready,
            messages_unacked=together.messages_unacknowledged,
        )
        self.own_consumers = await self._check_consumers()

    def _sample_queue(self, queue: Queue, now_ms: int) -> None:
        number, before = queue.number, self.rates.last(queue.number)
        is_leased = bool(queue.groups) and self._check_groups(queue, now_ms)
        # While messages wait for consumers, their waiting time changes without a new revision.
        is_counted = queue.revision == self._revisions.get(number) and not queue.waiting_since_ms
        numbers = numbers_of(queue, now_ms) if before is None or not is_counted else before
        self._sampled[number] = queue.revision
        self._dead_letter_sources.add(queue, is_taken=numbers.deliver_get > 0)
        is_same = numbers == before
        if before is not None and is_same:
            numbers = before  # keep equal numbers once
        self.rates.sample(number, numbers, now_ms)
        if is_same and not numbers.messages and not self.queue_watch.knows(number):
            return  # true for most queues when there are very many
        self._vhost_totals.add(queue.vhost, before, numbers)
        facts = _facts(queue, before, numbers)._replace(is_leased=is_leased)
        if facts.ready and not facts.consumers:
            is_kept = self._dead_letter_sources.is_kept(queue, is_taken=facts.taken > 0)
            facts = facts._replace(keeps_dead_letters=is_kept)
        self.queue_watch.check(facts, now_ms)

    def _check_groups(self, queue: Queue, now_ms: int) -> bool:
        """Find groups of a queue that hold leases and are silent; return whether any group is not silent."""
        outage_ms, is_any_active = self._machine.outage_ms, False
        for group in queue.groups.values():
            idle_ms = now_ms - outage_ms - group.used_ms
            if idle_ms < SILENT_MS:
                is_any_active = True
            elif group.leases:
                names = queue.vhost, queue.name, group.name, group.owner
                since_ms = group.used_ms + outage_ms
                facts = GroupFacts(*names, since_ms, idle_ms, len(group.leases), group.leased)
                self.group_watch.record(facts)
        return is_any_active

    async def _check_sinks(self) -> None:
        """Find sinks with messages that were stored long ago and are not committed."""
        slices = Slices()
        for vhost in list(self._machine.vhosts.values()):
            for sink in list(vhost.sinks.values()):
                if (oldest := sink.oldest_index()) is not None:
                    self._check_sink(sink, oldest)
                await slices.give_way()
        self.silent_sinks.end_pass()
        self.growing_sinks.end_pass()

    def _check_sink(self, sink: Sink, oldest: int) -> None:
        now_ms, outage_ms = self._group.time_ms(), self._machine.outage_ms
        idle_ms, age_ms = now_ms - outage_ms - sink.used_ms, self._group.entry_times.age_ms(oldest, now_ms)
        is_silent = idle_ms >= SILENT_MS
        lasts_ms = idle_ms if is_silent else age_ms
        if lasts_ms >= SILENT_MS:
            names, counts = (sink.vhost, sink.name, sink.user), (len(sink.attempts), sink.messages)
            since_ms = sink.used_ms + outage_ms if is_silent else now_ms - age_ms
            watch = self.silent_sinks if is_silent else self.growing_sinks
            watch.record(SinkFacts(*names, since_ms, lasts_ms, *counts))

    async def _check_consumers(self) -> int:
        """Find consumers that hold messages for long; return the number of this node's own consumers."""
        own, slices = 0, Slices()
        for consumer in list(self._machine.consumers.values()):
            own += consumer.live and consumer.node == self._broker.name
            since_ms = consumer.out_since_ms()
            if since_ms is not None:
                self._check_held(consumer, since_ms)
            if _has_nothing(consumer):
                self._check_credit(consumer)
            await slices.give_way()
        self.held_watch.end_pass()
        self.credit_watch.end_pass()
        return own

    def _check_credit(self, consumer: Consumer) -> None:
        """Check a consumer without credit or messages, unless a different consumer is the single active one."""
        queue = consumer.queue
        if consumer.live and queue.ready and queue.is_active(consumer):
            facts = CreditFacts(queue.vhost, queue.name, consumer.tag, consumer.node, queue.ready)
            key = consumer.node, consumer.id
            self.credit_watch.check(key, consumer.next_id, facts, self._group.time_ms())

    def _check_held(self, consumer: Consumer, since_ms: int) -> None:
        queue = consumer.queue
        timeout_ms = queue.timeout_ms(consumer)
        outage_ms = self._machine.outage_ms
        if timeout_ms and self._group.time_ms() - outage_ms - since_ms > timeout_ms // 2:
            held = len(consumer.unacked)
            facts = HeldFacts(
                queue.vhost, queue.name, consumer.tag, consumer.node, since_ms + outage_ms, timeout_ms, held
            )
            self.held_watch.record(facts)

    def vhost_stats(self, is_visible: Callable[[str], bool]) -> VhostStats:
        """Return the numbers of some virtual hosts, as of the last sample, some seconds ago.

        They are the events since this node started, the messages in their queues, and the octets of their clients.
        """
        vhosts = [vhost for vhost in self._machine.vhosts.values() if is_visible(vhost.name)]
        return self._vhost_totals.stats(vhosts, self._group.time_ms())

    def exchange_stats(self, vhost: str, name: str) -> Mapping[str, Any]:
        """Return the publish counts of an exchange since this node started, with rates; {} before the first publish."""
        known = self._machine.vhosts.get(vhost)
        return {} if known is None else self._vhost_totals.exchange_stats(known, name, self._group.time_ms())

    def samples(self, key: tuple[str, ...], wanted: Samples) -> Mapping[str, Mapping[str, Any]]:
        """Return earlier values of each number of an object, the newest first, with their average and its rate.

        A key is ("queue", VHOST, NAME), ("exchange", VHOST, NAME), ("vhost", NAME) or ("all",). The samples of an
        object are kept from the first request for them on.
        """
        numbers = self.numbers(key)
        if numbers is None:
            return {}
        return self._kept_samples.details(key, numbers, wanted, self._group.time_ms())

    def numbers(self, key: tuple[str, ...]) -> QueueNumbers | VhostNumbers | ExchangeNumbers | None:
        """Return the numbers of an object, or None if it does not exist. Keys are those of `samples`."""
        vhost = self._machine.vhosts.get(key[1]) if len(key) > 1 else None
        match key:
            case ("queue", _, name) if vhost is not None and name in vhost.queues:
                return numbers_of(vhost.queues[name], self._group.time_ms())
            case ("exchange", _, name) if vhost is not None:
                return exchange_numbers(vhost, name)
            case ("vhost", _) if vhost is not None:
                return self._vhost_totals.of_vhost(vhost)
            case ("all",):
                return self.vhost_totals()
            case _:
                return None

    def vhost_totals(self) -> VhostNumbers:
        """Return the numbers of all virtual hosts together."""
        return self._vhost_totals.of_all(self._machine.vhosts.values())


def _facts(queue: Queue, before: QueueNumbers | None, numbers: QueueNumbers) -> QueueFacts:
    """Return the facts for judging a queue. `before` are the numbers of its last sample; None at the first sample."""
    return QueueFacts(
        number=queue.number,
        vhost=queue.vhost,
        name=queue.name,
        ready=numbers.messages_ready,
        unacked=numbers.messages_unacknowledged,
        consumers=queue.consumers,
        dying=queue.dead_count,
        acknowledged=numbers.ack,
        waited_ms=numbers.waited_ms,
        # A count decreases only when a state was loaded: then counting starts again.
        failed=max(0, numbers.failed - (before.failed if before else 0)),
        refused=max(0, numbers.reject_publish - (before.reject_publish if before else 0)),
        prefetch=_prefetch(queue) if queue.waiting_since_ms else 0,
        taken=numbers.deliver_get,
        expires_to_exchange=queue.settings.dead_letter_exchange is not None
        and queue.backlog.expires_ms() > 0,
        lacks_credit=queue.waiting_since_ms > 0 and _lacks_credit(queue),
    )


def _lacks_credit(queue: Queue) -> bool:
    """Return whether all consumers of a queue hold no message, and have no credit of their clients; false for many."""
    return queue.consumers <= CONSUMERS_READ_MAX and all(
        _has_nothing(each) for each in islice(queue.holders, CONSUMERS_READ_MAX)
    )


def _has_nothing(consumer: Consumer) -> bool:
    """Return whether the client sets the credit of a consumer, and the consumer has neither credit nor a message."""
    return consumer.client_credit is not None and consumer.credit < 1 and not consumer.unacked


def _prefetch(queue: Queue) -> int:
    """Return the largest prefetch among some consumers of a queue; 0 if any of them has no limit."""
    some = [0 if each.no_ack else each.prefetch for each in islice(queue.holders, CONSUMERS_READ_MAX)]
    return 0 if 0 in some or LIVE_UNLIMITED in some else max(some, default=0)
