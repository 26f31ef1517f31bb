"""Rates and capacity from samples, with a clock that the test sets."""

from __future__ import annotations

import pytest

from qq.machine.policy.queue_options import QueueSettings
from qq.machine.queue.queue import Queue
from qq.management.statistics.rates import QueueNumbers, Rates, numbers_of

T0 = 1_000_000


@pytest.fixture
def queue() -> Queue:
    return Queue(
        vhost="/",
        name="q",
        kind="quorum",
        durable=True,
        owner=None,
        auto_delete=False,
        arguments={},
        number=1,
        settings=QueueSettings(),
        consumers=1,
    )


def sample(rates: Rates, queue: Queue, now_ms: int) -> None:
    rates.sample(queue.number, numbers_of(queue, now_ms), now_ms)


def per_second(rates: Rates, queue: Queue, now_ms: int) -> dict[str, float]:
    return rates.per_second(queue.number, numbers_of(queue, now_ms), now_ms)


@pytest.fixture
def rates(queue: Queue) -> Rates:
    """With samples at T0 and 5 s later."""
    rates = Rates()
    sample(rates, queue, T0)
    sample(rates, queue, T0 + 5000)
    return rates


def test_rate_covers_the_time_since_the_last_but_first_sample(queue: Queue, rates: Rates) -> None:
    queue.tally.published, queue.tally.acknowledged = 60, 30
    found = per_second(rates, queue, T0 + 6000)
    assert (found["publish"], found["ack"], found["get"]) == (10.0, 5.0, 0.0)
    assert list(found) == list(QueueNumbers._fields)


def test_old_samples_do_not_count(queue: Queue, rates: Rates) -> None:
    queue.tally.published = 60
    sample(rates, queue, T0 + 10_000)
    sample(rates, queue, T0 + 15_000)
    assert per_second(rates, queue, T0 + 16_000)["publish"] == 0.0


def test_a_queue_without_samples_has_no_rates(queue: Queue) -> None:
    queue.tally.published = 60
    rates = Rates()
    assert set(per_second(rates, queue, T0).values()) == {0.0}
    sample(rates, queue, T0)
    assert set(per_second(rates, queue, T0 + 1).values()) == {0.0}


def test_counter_reset_gives_no_negative_rate(queue: Queue) -> None:
    rates = Rates()
    queue.tally.published = 60
    sample(rates, queue, T0)
    queue.tally.published = 5
    assert per_second(rates, queue, T0 + 5000)["publish"] == 0.0


def test_deleted_queues_are_forgotten(queue: Queue, rates: Rates) -> None:
    rates.end_pass()
    assert rates.last(queue.number) is not None
    rates.end_pass()
    queue.tally.published = 60
    assert per_second(rates, queue, T0 + 6000)["publish"] == 0.0


def test_fetched_messages_count_as_delivered_or_fetched_once(queue: Queue) -> None:
    queue.tally.delivered, queue.tally.got = 3, 2
    queue.tally.delivered_no_ack, queue.tally.got_no_ack = 20, 10
    numbers = numbers_of(queue, T0)
    assert (numbers.deliver, numbers.get, numbers.deliver_get) == (3, 2, 35)


def test_a_queue_without_consumers_has_no_capacity(queue: Queue, rates: Rates) -> None:
    queue.consumers = 0
    assert rates.capacity(queue, T0 + 6000) == 0.0


def test_idle_consumers_have_full_capacity(queue: Queue, rates: Rates) -> None:
    assert rates.capacity(queue, T0 + 6000) == 1.0
    assert Rates().capacity(queue, T0) == 1.0


@pytest.mark.parametrize(
    ("waited_ms", "waiting_since_ms", "capacity"),
    [
        (2000, 0, 0.8),  # it waited, and does not any more
        (0, T0 + 6000, 0.6),  # it waits now
        (2000, T0 + 6000, 0.4),
        (0, T0 - 60_000, 0.0),  # it waited before the first sample, too
        (50_000, 0, 0.0),  # a clock that jumped
        (0, T0 + 90_000, 1.0),
    ],
)
def test_capacity_is_the_share_of_time_without_waiting_messages(
    queue: Queue, waited_ms: int, waiting_since_ms: int, capacity: float
) -> None:
    rates = Rates()
    queue.waiting_since_ms = waiting_since_ms if waiting_since_ms < T0 else 0
    sample(rates, queue, T0)
    queue.tally.waited_ms, queue.waiting_since_ms = waited_ms, waiting_since_ms
    assert rates.capacity(queue, T0 + 10_000) == capacity


def test_new_queue_with_waiting_messages_has_no_capacity(queue: Queue) -> None:
    queue.waiting_since_ms = T0
    assert Rates().capacity(queue, T0 + 1) == 0.0
