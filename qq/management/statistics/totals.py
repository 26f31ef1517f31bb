"""Totals of all queues of a virtual host, their rates, and their samples of the last minutes.

Invariant: bounded memory, and numbers are added up at samples only. So events between a queue's last sample and its
deletion are missing, and samples of an object exist only after a client has asked for them.
"""

from __future__ import annotations

from collections import deque
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.management.reports.rows import Samples
from qq.management.statistics.rates import (
    DELIVERIES,
    LENGTHS,
    SAMPLE_INTERVAL_S,
    QueueNumbers,
    Rates,
    with_rates,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from qq.machine.catalog.vhost import VirtualHost
    from qq.management.statistics.vhost_clients import VhostClients

_FIELDS = QueueNumbers._fields
# Slices instead of names, because this runs for each of very many queues, most of them unchanged.
_HAPPENED = slice(_FIELDS.index(DELIVERIES[0]), _FIELDS.index(DELIVERIES[-1]) + 1)
_LENGTHS = slice(_FIELDS.index(LENGTHS[0]), _FIELDS.index(LENGTHS[-1]) + 1)
SAMPLES_KEPT_S = 600
"""Seconds that samples are kept for objects that clients ask for."""
WATCHED_MAX = 200
"""Objects with samples at most: those that clients asked for last."""


class VhostNumbers(NamedTuple):
    """Events in the queues and exchanges of a virtual host, and its messages, under RabbitMQ's names."""

    publish: int = 0
    confirm: int = 0
    return_unroutable: int = 0
    drop_unroutable: int = 0
    deliver: int = 0
    deliver_no_ack: int = 0
    get: int = 0
    get_no_ack: int = 0
    get_empty: int = 0
    deliver_get: int = 0
    redeliver: int = 0
    ack: int = 0
    messages: int = 0
    messages_ready: int = 0
    messages_unacknowledged: int = 0
    recv_oct: int = 0
    """Octets that clients have sent; `send_oct` were sent to them."""
    send_oct: int = 0


OCTETS = ("recv_oct", "send_oct")


class VhostStats(NamedTuple):
    """The numbers of virtual hosts in total, each with its rate as NAME_details."""

    happened: dict[str, Any]
    lengths: dict[str, Any]
    octets: dict[str, Any]


class ExchangeNumbers(NamedTuple):
    """Messages published to an exchange, and copies of them that it routed to queues."""

    publish_in: int = 0
    publish_out: int = 0


class VhostTotals:
    """Totals of each virtual host as of the last pass over the queues."""

    def __init__(self, clients: VhostClients) -> None:
        self._clients = clients
        self._counted: dict[str, list[int]] = {}
        """Counts of the queues of each virtual host, deleted queues included."""
        self._lengths: dict[str, list[int]] = {}
        self._pass: dict[str, list[int]] = {}
        """Lengths so far in the pass under way."""
        self._rates = Rates()

    def add(self, vhost: str, before: QueueNumbers | None, now: QueueNumbers) -> None:
        """Add the increase of a queue's counts since its last sample, and its lengths."""
        if before is None or before[_HAPPENED] != now[_HAPPENED]:
            counted = self._counted.setdefault(vhost, [0] * len(DELIVERIES))
            olds = () if before is None else before[_HAPPENED]
            for place, (count, old) in enumerate(zip_longest(now[_HAPPENED], olds, fillvalue=0)):
                counted[place] += count - old if count >= old else count
        if now.messages:  # includes both other lengths
            lengths = self._pass.setdefault(vhost, [0] * len(LENGTHS))
            for place, length in enumerate(now[_LENGTHS]):
                lengths[place] += length

    def end_pass(self, vhosts: Iterable[VirtualHost], now_ms: int) -> None:
        """End a pass over all queues. `vhosts` are the existing virtual hosts."""
        self._lengths, self._pass = self._pass, {}
        there = list(vhosts)
        names = {vhost.name for vhost in there}
        self._counted = {name: counted for name, counted in self._counted.items() if name in names}
        for vhost in there:
            self._rates.sample(vhost.name, self.of_vhost(vhost), now_ms)
            for exchange in vhost.exchange_counts:
                self._rates.sample((vhost.name, exchange), exchange_numbers(vhost, exchange), now_ms)
        self._rates.end_pass()

    def of_vhost(self, vhost: VirtualHost) -> VhostNumbers:
        published = sum(count for count, _ in vhost.exchange_counts.values())
        counted = self._counted.get(vhost.name) or [0] * len(DELIVERIES)
        lengths = self._lengths.get(vhost.name) or [0] * len(LENGTHS)
        confirmed, *octets = self._clients.of_vhost(vhost.name)
        return VhostNumbers(published, confirmed, vhost.returned, vhost.dropped, *counted, *lengths, *octets)

    def of_all(self, vhosts: Iterable[VirtualHost]) -> VhostNumbers:
        numbers = [self.of_vhost(vhost) for vhost in vhosts]
        return VhostNumbers(*map(sum, zip(*numbers, strict=True)))

    def stats(self, vhosts: Collection[VirtualHost], now_ms: int) -> VhostStats:
        numbers = [self.of_vhost(vhost) for vhost in vhosts]
        rates = [
            self._rates.per_second(vhost.name, each, now_ms)
            for vhost, each in zip(vhosts, numbers, strict=True)
        ]
        total = dict.fromkeys(VhostNumbers._fields, 0)
        per_second = dict.fromkeys(VhostNumbers._fields, 0.0)
        for each, rate in zip(numbers, rates, strict=True):
            for name, value in each._asdict().items():
                total[name] += value
                per_second[name] = round(per_second[name] + rate[name], 2)
        happened = [name for name in total if name not in (*LENGTHS, *OCTETS)]
        return VhostStats(
            *(
                with_rates({name: total[name] for name in names}, per_second)
                for names in (happened, LENGTHS, OCTETS)
            )
        )

    def exchange_stats(self, vhost: VirtualHost, exchange: str, now_ms: int) -> dict[str, Any]:
        """Return the counts of an exchange with their rates; {} before the first publish to it."""
        if exchange not in vhost.exchange_counts:
            return {}
        numbers = exchange_numbers(vhost, exchange)
        return with_rates(numbers._asdict(), self._rates.per_second((vhost.name, exchange), numbers, now_ms))


def exchange_numbers(vhost: VirtualHost, exchange: str) -> ExchangeNumbers:
    return ExchangeNumbers(*vhost.exchange_counts.get(exchange, (0, 0)))


class KeptSamples:
    """Recent samples of the objects that clients ask for."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, ...], deque[tuple[int, Any]]] = {}
        """Samples by the key of the object; the object that was asked for last is at the end."""

    def watched_keys(self) -> list[tuple[str, ...]]:
        return list(self._samples)

    def record(self, key: tuple[str, ...], numbers: Any, now_ms: int) -> None:
        samples = self._samples.get(key)
        if samples is not None:
            samples.append((now_ms, numbers))

    def details(
        self, key: tuple[str, ...], numbers: Any, wanted: Samples, now_ms: int
    ) -> dict[str, dict[str, Any]]:
        """Return the content of NAME_details besides the rate for each number, the newest sample first.

        There is always at least a single sample.
        """
        known = self._samples.pop(key, None)
        if known is None:
            known = deque([(now_ms, numbers)], maxlen=int(SAMPLES_KEPT_S / SAMPLE_INTERVAL_S) + 1)
        self._samples[key] = known
        while len(self._samples) > WATCHED_MAX:
            del self._samples[next(iter(self._samples))]
        samples = [*known, (now_ms, numbers)]
        step_ms = wanted.step_s * 1000
        last_ms = now_ms // step_ms * step_ms
        chosen: list[tuple[int, Any]] = []
        for time_ms in range(last_ms, last_ms - wanted.age_s * 1000 - 1, -step_ms):
            while samples and samples[-1][0] > time_ms:
                samples.pop()
            if not samples:
                break
            chosen.append((time_ms, samples[-1][1]))
        if not chosen:  # this is the first request for the object
            chosen.append((last_ms, numbers))
        return {name: _details(chosen, place) for place, name in enumerate(numbers._fields)}


def _details(chosen: list[tuple[int, Any]], place: int) -> dict[str, Any]:
    values = [(time_ms, numbers[place]) for time_ms, numbers in chosen]
    (last_ms, last), (first_ms, first) = values[0], values[-1]
    elapsed_s = (last_ms - first_ms) / 1000
    return {
        "samples": [{"sample": value, "timestamp": time_ms} for time_ms, value in values],
        "avg_rate": (last - first) / elapsed_s if elapsed_s else 0.0,
        "avg": sum(value for _, value in values) / len(values),
    }
