"""A model of handovers because of slow disks: nodes that write the proposals of their leader, and its clients."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cluster.membership.leadership import DiskLag
from cluster.raft.timing import Timing

BEAT_S = Timing().heartbeat_s
HOP_S = 0.0005
IN_FLIGHT_MAX = 2
BEHIND_MAX = 10
"""So many entries a leader holds in memory that its disk has not; if there are more, everybody waits for that."""
WriteTime = Callable[[float, Random], float]
"""How long a write takes that begins then."""


class Disks:
    """The disks of a cluster; the first is that of the first leader. `leaderships` has the start of each leadership.

    Some clients wait for each confirm before the next publish, and further clients publish `rate` messages a second.
    `waited_s`: the time in which only the leader's disk delayed commits.
    """

    def __init__(self, disks: list[WriteTime], seed: int, clients: int, rate: float) -> None:
        self.leaderships = [(0.0, 0)]
        self.waited_s = 0.0
        self._disks = disks
        self._random = Random(seed)
        self._rate = rate
        self._now_s = 0.0
        self._due: list[tuple[float, int, Callable[[], Any]]] = []
        self._order = count()
        self._written, self._stored, self._acknowledged = ([0] * len(disks) for _ in range(3))
        self._writing = [False] * len(disks)
        self._end = self._committed = 0
        self._entries: dict[int, int] = {}
        """How many clients wait for each entry."""
        self._waiting = clients
        self._disk_lag = DiskLag()
        self._checked_s = 0.0
        self._in(self._random.uniform(0, BEAT_S), self._heartbeat)
        if rate:
            self._in(0.0, self._publish)
        self._propose()

    def run(self, seconds: float) -> None:
        while self._due[0][0] < seconds:
            self._now_s, _, call = heapq.heappop(self._due)
            call()

    @property
    def _leader(self) -> int:
        return self.leaderships[-1][1]

    def _in(self, delay_s: float, call: Callable[[], Any]) -> None:
        heapq.heappush(self._due, (self._now_s + delay_s, next(self._order), call))

    def _publish(self) -> None:
        self._in(self._random.expovariate(self._rate), self._publish)
        self._entries[self._end + 1] = self._entries.get(self._end + 1, 0)
        self._propose()

    def _propose(self) -> None:
        if self._end - self._committed < IN_FLIGHT_MAX and (self._waiting or self._end + 1 in self._entries):
            self._end += 1
            self._entries[self._end], self._waiting = self._waiting, 0
            for node in range(len(self._disks)):
                self._in(HOP_S * (node != self._leader), partial(self._write, node, self._end))

    def _write(self, node: int, index: int) -> None:
        self._written[node] = max(self._written[node], index)
        if not self._writing[node] and self._stored[node] < self._written[node]:
            self._writing[node] = True
            takes_s = self._disks[node](self._now_s, self._random)
            self._in(takes_s, partial(self._store, node, self._written[node]))

    def _store(self, node: int, index: int) -> None:
        self._writing[node] = False
        self._stored[node] = index
        self._write(node, index)
        self._in(HOP_S * (node != self._leader), partial(self._receive, node, index))

    def _receive(self, node: int, index: int) -> None:
        self._acknowledged[node] = index
        self._commit()

    def _commit(self) -> None:
        reached = self._reached
        if self._end - self._stored[self._leader] > BEHIND_MAX:
            reached = min(reached, self._stored[self._leader])
        while self._committed < reached:
            self._committed += 1
            self._waiting += self._entries.pop(self._committed)
        self._propose()

    @property
    def _reached(self) -> int:
        return sorted(self._acknowledged)[len(self._acknowledged) // 2]

    def _heartbeat(self) -> None:
        self._in(self._random.uniform(1.0, 1.05) * BEAT_S, self._heartbeat)
        delays_commit = self._committed < self._reached
        if delays_commit:
            self.waited_s += self._now_s - self._checked_s
        self._checked_s = self._now_s
        self._disk_lag.add(self._now_s, BEAT_S, delays_commit=delays_commit)
        fit = [
            node
            for node, index in enumerate(self._acknowledged)
            if index >= self._reached and node != self._leader
        ]
        if self._disk_lag.is_too_much and fit:
            # A member with all entries gets the request, and the first of several.
            self.leaderships.append(
                (self._now_s, min(fit, key=lambda node: self._acknowledged[node] < self._end))
            )
            self._disk_lag.reset()
            self._commit()


def about(mean_s: float, spread: float = 0.5) -> WriteTime:
    return lambda _now_s, random: mean_s * random.uniform(1 - spread, 1 + spread)


def by_turns(one: WriteTime, other: WriteTime, seconds: float, phase: float) -> WriteTime:
    """A disk that is so for some seconds, and then otherwise."""
    return lambda now_s, random: (one, other)[int(now_s / seconds + phase) % 2](now_s, random)


def hanging(disk: WriteTime, since_s: float) -> WriteTime:
    """A disk that does not come to the end of a write from then on."""
    return lambda now_s, random: 1e9 if now_s > since_s else disk(now_s, random)


SEEDS = st.integers(0, 1_000_000)
SIZES = st.sampled_from([3, 5])
LOADS = st.sampled_from([(1, 0.0), (3, 0.0), (0, 30.0), (0, 300.0), (2, 30.0)])
SPREADS = st.sampled_from([0.02, 0.2, 0.5])


@given(SEEDS, SIZES, LOADS, SPREADS, st.floats(0.002, 1.0))
def test_leader_stays_while_all_disks_are_alike(
    seed: int, size: int, load: tuple[int, float], spread: float, write_s: float
) -> None:
    disks = Disks([about(write_s, spread)] * size, seed, *load)
    disks.run(40.0)
    assert disks.leaderships == [(0.0, 0)]


@given(
    SEEDS,
    LOADS,
    SPREADS,
    st.floats(0.01, 3.0),
    st.floats(0.0005, 1.0),
    st.sampled_from([(1, 3), (1, 5), (2, 5)]),
)
def test_clients_do_not_wait_long_for_the_slow_disk_of_a_leader(
    seed: int, load: tuple[int, float], spread: float, slow_s: float, share: float, nodes: tuple[int, int]
) -> None:
    slow, size = nodes
    quick = about(max(0.0005, share * slow_s), spread)
    disks = Disks([about(slow_s, spread)] * slow + [quick] * (size - slow), seed, *load)
    disks.run(60.0)
    assert len(disks.leaderships) <= 2
    [*_, (_, leader)] = disks.leaderships
    assert len(disks.leaderships) == 1 or leader >= slow
    assert (
        disks.waited_s < 10.0
    )  # a tenth of the time is forgotten, and so are delays shorter than a heartbeat interval


@given(SEEDS, SIZES, LOADS, SPREADS, st.floats(0.002, 0.4))
def test_clients_do_not_wait_long_for_a_disk_that_hangs(
    seed: int, size: int, load: tuple[int, float], spread: float, write_s: float
) -> None:
    slow = about(write_s, spread)
    disks = Disks([hanging(slow, 20.0)] + [slow] * (size - 1), seed, *load)
    disks.run(60.0)
    assert len(disks.leaderships) == 2
    assert disks.waited_s < 2.0


@given(SEEDS, SIZES, LOADS, st.floats(0.2, 1.0), st.sampled_from([3.0, 10.0, 30.0]))
def test_disks_slow_by_turns_cause_no_handovers_in_circles(
    seed: int, size: int, load: tuple[int, float], slow_s: float, seconds: float
) -> None:
    """One or two disks are slow at any moment; if they are too many for a majority, a handover gains no time."""
    disks = [by_turns(about(slow_s), about(0.005), seconds, phase=2 * node / size) for node in range(size)]
    model = Disks(disks, seed, *load)
    model.run(90.0)
    changes = 90.0 / seconds
    assert len(model.leaderships) - 1 <= 2 * changes
