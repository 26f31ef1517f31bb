"""Micro-batches of a stream: after a crash of its driver at any step, a query reads each message once.

The cluster is a state machine, and Spark is `Query`, which calls the planner in the order of Spark's
`MicroBatchExecution`.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest

from qq.machine.protocol import commands as c
from qq_spark import planner as module
from qq_spark.errors import QueueSourceError, Refusal
from qq_spark.options import stream_options
from qq_spark.planner import NO_LIMITS, Limits, Offset, Planner
from tests.machine.machine_driver import Driver, declare, publish
from tests.qq_spark.machine_client import MachineClient, Message

if TYPE_CHECKING:
    from collections.abc import Callable

URL = "http://127.0.0.1"


class CrashError(Exception):
    """The driver of the query has ended."""


class Query:
    """A streaming query with its checkpoint, which outlives its drivers."""

    def __init__(
        self, driver: Driver, options: dict[str, str], limits: Limits, *, passes_start: bool
    ) -> None:
        self._driver = driver
        self._options = stream_options({"url": URL, "group": "g", "partitions": "3"} | options)
        self._limits = limits
        self._passes_start = passes_start
        """Whether Spark says where a batch begins, as it does since 4.2."""
        self._offsets: list[Offset] = []
        self._finished = 0
        self.sink: dict[int, list[Message]] = {}
        self.runs = 0

    def run(self, crash: Callable[[], None], *, available_now: bool = False) -> None:
        """Run a driver, until there is no new batch or it crashes."""
        self.runs += 1
        client = MachineClient(self._driver, crash)
        planner = Planner(self._options, client, f"run {self.runs}")
        target: Offset | None = None
        if available_now and self._passes_start:
            planner.prepare_available_now()
        elif available_now:
            target = stored(planner.latest(None, self._limits))
        if self._offsets:
            planner.slices(self._offsets[-1], self._offsets[-1])
        if self._finished < len(self._offsets):
            self._batch(planner, client, crash)
        while True:
            start = self._offsets[-1] if self._offsets else stored(planner.initial())
            end = target or stored(planner.latest(start if self._passes_start else None, self._limits))
            crash()
            if end == start:
                return
            self._offsets.append(end)
            crash()
            if len(self._offsets) > 1:
                planner.commit(self._offsets[-2])
            self._batch(planner, client, crash)

    def _batch(self, planner: Planner, client: MachineClient, crash: Callable[[], None]) -> None:
        number = len(self._offsets) - 1
        start = self._offsets[number - 1] if number else stored(planner.initial())
        tasks = planner.slices(start, self._offsets[number])
        crash()
        rows = [message for slices in tasks for part in slices for message in client.messages(part)]
        assert self.sink.setdefault(number, rows) == rows
        crash()
        self._finished = number + 1

    @property
    def rows(self) -> list[Message]:
        return [row for number in sorted(self.sink) for row in self.sink[number]]


def stored(offset: Offset) -> Offset:
    """Return an offset as Spark gives it back from its checkpoint."""
    return json.loads(json.dumps(offset))


def run_quietly() -> None:
    """Never crash."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IDLE_S", 0)
    monkeypatch.setattr(module, "_DISCOVERY_S", 0)


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.machine.raise_to(12)
    for queue in ("a", "b"):
        driver.apply(declare(queue, x_queue_type="quorum"))
    return driver


def leased(driver: Driver) -> int:
    return sum(queue.leased for queue in driver.machine.vhosts["/"].queues.values())


@pytest.mark.parametrize("seed", range(60))
def test_crashing_query_reads_each_message_once(driver: Driver, seed: int) -> None:
    chance = random.Random(seed)
    expected = 0

    def crash() -> None:
        nonlocal expected
        if chance.random() < 0.1:
            count = chance.randrange(1, 9)
            expected += count
            driver.apply(publish(count, chance.choice("ab")))
        if chance.random() < 0.08:
            raise CrashError

    options = chance.choice([{"queues": "a,b"}, {"queuePattern": "[ab]"}])
    query = Query(driver, options, Limits(chance.randrange(1, 12), 10**6), passes_start=chance.random() < 0.5)
    for _ in range(25):
        try:
            query.run(crash, available_now=chance.random() < 0.3)
        except CrashError:
            continue
    query.run(run_quietly)
    assert len(query.rows) == len(set(query.rows)) == expected
    assert leased(driver) == 0
    assert not any(queue.ready for queue in driver.machine.vhosts["/"].queues.values())


@pytest.mark.parametrize("passes_start", [False, True])
def test_trigger_is_bounded_by_messages_and_by_bytes(driver: Driver, passes_start: bool) -> None:
    driver.apply(publish(50, "a"), publish(50, "b"))
    size = driver.machine.vhosts["/"].queues["a"].backlog.size // 50
    query = Query(driver, {"queues": "a,b"}, Limits(20, 10**6), passes_start=passes_start)
    query.run(run_quietly)
    assert [len(rows) for rows in query.sink.values()] == [20] * 5
    driver.apply(publish(12, "a"))
    query = Query(driver, {"queue": "a", "group": "h"}, Limits(100, size * 5), passes_start=passes_start)
    query.run(run_quietly)
    assert [len(rows) for rows in query.sink.values()] == [5, 5, 2]


def test_available_now_ends_with_the_messages_of_its_start(driver: Driver) -> None:
    driver.apply(publish(7, "a"))
    query = Query(driver, {"queue": "a"}, Limits(3, 10**6), passes_start=True)
    query.run(lambda: driver.apply(publish(1, "a")) and None, available_now=True)
    assert len(query.rows) <= 9


def test_available_now_before_4_2_reads_a_single_trigger(driver: Driver) -> None:
    driver.apply(publish(7, "a"))
    query = Query(driver, {"queue": "a"}, Limits(3, 10**6), passes_start=False)
    for read in (3, 6, 7):
        query.run(run_quietly, available_now=True)
        assert len(query.rows) == read


def test_trigger_without_limits_ignores_the_options(driver: Driver) -> None:
    driver.apply(publish(900, "a"))
    client = MachineClient(driver)
    options = stream_options({"url": URL, "group": "g", "queue": "a", "maxMessagesPerTrigger": "5"})
    planner = Planner(options, client, "run")
    start = planner.initial()
    slices = planner.slices(start, planner.latest(start, NO_LIMITS))
    assert sum(len(client.messages(part)) for task in slices for part in task) == 900


def test_fenced_driver_neither_leases_nor_commits(driver: Driver) -> None:
    driver.apply(publish(9, "a"))
    options = stream_options({"url": URL, "group": "g", "queue": "a"})
    old, new = (Planner(options, MachineClient(driver), f"run {number}") for number in (1, 2))
    end = old.latest(old.initial(), Limits(3, 10**6))
    assert new.latest(new.initial(), Limits(5, 10**6)) == end
    for act in (lambda: old.commit(end), lambda: old.latest(end, Limits(3, 10**6))):
        with pytest.raises(Refusal, match=r"fence 0 is stale: .* is open with fence 1, owner 'run 2'"):
            act()
    new.commit(end)
    assert leased(driver) == 0


def advance_anew(driver: Driver) -> None:
    """End the group. A second query opens it again, and reads as many messages."""
    driver.apply(c.CloseGroup("/", "a", "g", 0, True), publish(4, "a"))
    Query(driver, {"queue": "a"}, Limits(2, 10**6), passes_start=True).run(run_quietly)
    driver.apply(publish(1, "a"))


def declare_anew(driver: Driver) -> None:
    """Replace the queue. A second query opens a group of the same name."""
    driver.apply(c.DeleteQueue(1, 2, "a", False, False), declare("a"))
    Query(driver, {"queue": "a"}, Limits(2, 10**6), passes_start=True).run(run_quietly)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda driver: driver.apply(c.DeleteQueue(1, 2, "a", False, False)), "'a' was deleted, or"),
        (
            lambda driver: driver.apply(c.DeleteQueue(1, 2, "a", False, False), declare("a")),
            "'a' was deleted",
        ),
        (declare_anew, "'a' was deleted and declared again"),
        (lambda driver: driver.apply(c.CloseGroup("/", "a", "g", 0, True)), "its group 'g' was ended"),
        (advance_anew, "ended and opened again"),
    ],
)
def test_checkpoint_of_a_lost_group_is_refused(
    driver: Driver, change: Callable[[Driver], object], message: str
) -> None:
    driver.apply(publish(4, "a"))
    query = Query(driver, {"queue": "a"}, Limits(2, 10**6), passes_start=True)
    query.run(run_quietly)
    change(driver)
    queue = driver.machine.vhosts["/"].queues.get("a")
    groups = queue and {name: group.fence for name, group in queue.groups.items()}
    for _ in range(2):
        with pytest.raises(QueueSourceError, match=rf"{message}.* start with a new checkpoint"):
            query.run(run_quietly)
    assert leased(driver) == 0
    assert groups == (queue and {name: group.fence for name, group in queue.groups.items()})


def test_stream_takes_no_leases_of_a_queue_that_its_options_drop(driver: Driver) -> None:
    driver.apply(publish(2, "a"), publish(2, "b"))
    query = Query(driver, {"queues": "a,b"}, Limits(9, 10**6), passes_start=True)

    def crash() -> None:
        if query.sink:
            raise CrashError

    with pytest.raises(CrashError):
        query.run(crash)
    driver.apply(publish(1, "a"), publish(1, "b"))
    query._options = stream_options({"url": URL, "group": "g", "queue": "b"})
    query.run(run_quietly)
    assert len(set(query.rows)) == len(query.rows) == 5
    assert driver.machine.vhosts["/"].queues["a"].ready == 1
    assert leased(driver) == 0


def test_stream_takes_queues_that_are_declared_later(driver: Driver) -> None:
    driver.apply(publish(2, "a"))
    query = Query(driver, {"queuePattern": "[a-c]"}, Limits(10, 10**6), passes_start=True)
    query.run(run_quietly)
    driver.apply(declare("c"), publish(3, "c"))
    query.run(run_quietly)
    driver.apply(c.DeleteQueue(1, 2, "c", False, False), publish(4, "b"))
    query.run(run_quietly)
    assert len(set(query.rows)) == 9


def test_released_last_lease_does_not_stop_the_stream(driver: Driver) -> None:
    driver.apply(publish(4, "a"))
    query = Query(driver, {"queue": "a"}, Limits(2, 10**6), passes_start=True)
    query.run(run_quietly)
    planner = Planner(stream_options({"url": URL, "group": "g", "queue": "a"}), MachineClient(driver), "x")
    driver.apply(publish(2, "a"))
    start = query._offsets[-1]
    end = planner.latest(start, NO_LIMITS)
    driver.apply(c.ReleaseLease("/", "a", "g", 1, 2))
    after = Planner(stream_options({"url": URL, "group": "g", "queue": "a"}), MachineClient(driver), "y")
    assert after.latest(end, NO_LIMITS)["a"]["next"] == end["a"]["next"] + 1


@pytest.mark.parametrize("passes_start", [False, True])
@pytest.mark.parametrize("released", [(1,), (2,), (1, 2), (1, 3), (3,), (1, 2, 3)])
def test_stream_skips_leases_released_before_their_batch(
    driver: Driver, released: tuple[int, ...], passes_start: bool
) -> None:
    driver.apply(publish(2, "a"))
    query = Query(driver, {"queue": "a"}, Limits(2, 10**6), passes_start=passes_start)
    query.run(run_quietly)
    fence = driver.machine.vhosts["/"].queues["a"].groups["g"].fence
    driver.apply(publish(6, "a"))
    for lease in (1, 2, 3):
        driver.apply(c.LeaseMessages("/", "a", "g", fence, lease, 2, 10**6))
    driver.apply(*(c.ReleaseLease("/", "a", "g", fence, lease) for lease in released))
    query.run(run_quietly)
    assert len(set(query.rows)) == len(query.rows) == 8
    assert leased(driver) == 0


def test_queue_that_joins_a_stream_begins_behind_its_commits(driver: Driver) -> None:
    driver.apply(publish(2, "a"), publish(5, "b"))
    limits = Limits(2, 10**6)
    Query(driver, {"queue": "b"}, limits, passes_start=True).run(run_quietly)
    query = Query(driver, {"queue": "a"}, limits, passes_start=True)
    query.run(run_quietly)
    query._options = stream_options({"url": URL, "group": "g", "queues": "a,b"})
    driver.apply(publish(3, "b"))
    query.run(run_quietly)
    assert len(set(query.rows)) == len(query.rows) == 5


@pytest.mark.parametrize("passes_start", [False, True])
def test_leases_of_a_dead_driver_come_before_new_leases(driver: Driver, passes_start: bool) -> None:
    driver.apply(publish(9, "a"))
    options = stream_options({"url": URL, "group": "g", "queue": "a"})
    first, second = (Planner(options, MachineClient(driver), f"run {number}") for number in (1, 2))
    start = first.initial()
    end = first.latest(start, Limits(4, 10**6))
    second.slices(second.initial(), start)
    assert second.latest(start if passes_start else None, Limits(4, 10**6)) == end
    assert leased(driver) == 4
