"""Each timer of the state in an outage, after a restart, and when its setting changes.

docs/explanation/time.md has the same rows in a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from qq.machine.catalog.deduplication import PUBLISHER_AGE_MS
from qq.machine.protocol import commands as c
from qq.machine.protocol.effects import Deliver, DeliveryTimeout, Effect
from qq.machine.queue import queue as queue_module
from qq.machine.queue.queue import DUE_MAX
from tests.machine.machine_driver import Driver, consume, declare, publish, reloaded

if TYPE_CHECKING:
    from collections.abc import Sequence

OUTAGE_MS = 1_000_000
IDLE_MS = 4_000
TTL_MS = 2_000
DELAYS = {
    "x_message_ttl": TTL_MS,
    "x_expires": IDLE_MS,
    "x_dead_letter_exchange": "",
    "x_dead_letter_routing_key": "work",
}


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.machine.raise_to(9)
    return driver


def go_out(driver: Driver, length_ms: int = OUTAGE_MS, *, is_reported: bool = True) -> list[Effect]:
    """Let time pass in which clients cannot act; the next entry declares the outage."""
    driver.time_ms += length_ms
    if is_reported:
        driver.machine.outage(length_ms)
    return driver.apply()


def names(driver: Driver) -> list[str]:
    return list(driver.machine.vhosts["/"].queues)


def ready(driver: Driver, name: str) -> int:
    return driver.machine.vhosts["/"].queues[name].ready


def pass_ms(driver: Driver, time_ms: int) -> list[Effect]:
    return driver.wait_until(driver.time_ms + time_ms)


def put_policy(
    name: str = "p", *, operator: bool = False, priority: int = 0, **definition: Any
) -> c.PutPolicy:
    table = {key.replace("_", "-"): value for key, value in definition.items()}
    return c.PutPolicy("/", name, operator, ".*", "queues", priority, table)


# Idle queues


@pytest.mark.parametrize("is_reloaded", [False, True])
@pytest.mark.parametrize("is_reported", [False, True])
def test_an_outage_does_not_count_as_idle_time(
    driver: Driver, *, is_reported: bool, is_reloaded: bool
) -> None:
    driver.apply(declare("q", x_expires=IDLE_MS), publish(1))
    pass_ms(driver, 1_000)
    go_out(driver, is_reported=is_reported)
    if is_reloaded:
        driver.machine = reloaded(driver.machine)
    assert names(driver) == (["q"] if is_reported else [])
    if is_reported:
        assert driver.machine.due_ms() == driver.time_ms + IDLE_MS - 1_000
        pass_ms(driver, IDLE_MS - 1_001)
        assert names(driver) == ["q"]
        pass_ms(driver, 1)
        assert names(driver) == []


def test_idle_time_restarts_when_a_queue_is_declared_again(driver: Driver) -> None:
    driver.apply(declare("q", x_expires=IDLE_MS))
    go_out(driver)
    pass_ms(driver, 1_000)
    driver.apply(declare("q", x_expires=IDLE_MS))
    pass_ms(driver, IDLE_MS - 1)
    assert names(driver) == ["q"]
    pass_ms(driver, 1)
    assert names(driver) == []


def test_idle_time_starts_when_consumers_of_a_lost_node_end(driver: Driver) -> None:
    driver.apply(declare("q", x_expires=IDLE_MS))
    driver.apply(consume(1, "q", 1), node="n2")
    pass_ms(driver, 10 * IDLE_MS)
    driver.machine.origin_down("n2", driver.time_ms, evicted=True)
    driver.apply()
    pass_ms(driver, IDLE_MS - 1)
    assert names(driver) == ["q"]
    pass_ms(driver, 1)
    assert names(driver) == []


def test_before_version_9_an_outage_is_idle_time() -> None:
    driver = Driver()
    driver.machine.raise_to(8)
    driver.apply(declare("q", x_expires=IDLE_MS))
    go_out(driver, IDLE_MS)
    assert names(driver) == []


@pytest.mark.parametrize("is_reloaded", [False, True])
def test_idle_time_continues_when_version_9_is_agreed_on(*, is_reloaded: bool) -> None:
    driver = Driver()
    driver.machine.raise_to(8)
    driver.apply(declare("q", x_expires=IDLE_MS), declare("kept"), publish(1, "kept", ttl_ms=60_000))
    pass_ms(driver, 1_000)
    driver.machine.raise_to(9)
    if is_reloaded:
        driver.machine = reloaded(driver.machine)
    go_out(driver, 50_000)
    pass_ms(driver, IDLE_MS - 1_001)
    assert names(driver) == ["q", "kept"]
    pass_ms(driver, 1)
    assert names(driver) == ["kept"]
    assert driver.machine.due_ms() is not None  # that of the message


# Changes of policies

CHANGES_OF_POLICIES: dict[str, Sequence[c.Command]] = {
    "a policy comes": [put_policy(expires=IDLE_MS)],
    "a policy of an operator comes": [put_policy(operator=True, expires=IDLE_MS)],
    "another policy is stronger": [put_policy("q", priority=1, expires=IDLE_MS)],
    "it gets shorter": [put_policy(expires=IDLE_MS)],
    "it is removed and comes again": [c.DeletePolicy("/", "p", False), put_policy(expires=IDLE_MS)],
}


@pytest.mark.parametrize("change", CHANGES_OF_POLICIES.values(), ids=CHANGES_OF_POLICIES)
@pytest.mark.parametrize("before_ms", [None, 60_000], ids=["kept for ever before", "kept for longer before"])
def test_idle_time_restarts_when_a_policy_changes_expires(
    driver: Driver, change: Sequence[c.Command], before_ms: int | None
) -> None:
    before = [] if before_ms is None else [put_policy(expires=before_ms)]
    driver.apply(declare("q"), *before)
    pass_ms(driver, 5_000)
    for command in change:
        driver.apply(command)
    pass_ms(driver, IDLE_MS - 1)
    assert names(driver) == ["q"]
    pass_ms(driver, 1)
    assert names(driver) == []


def test_idle_time_restarts_when_a_policy_extends_expires(driver: Driver) -> None:
    driver.apply(declare("q"), put_policy(expires=IDLE_MS))
    pass_ms(driver, IDLE_MS - 1)
    driver.apply(put_policy(expires=2 * IDLE_MS))
    pass_ms(driver, 2 * IDLE_MS - 1)
    assert names(driver) == ["q"]
    pass_ms(driver, 1)
    assert names(driver) == []


def test_idle_time_continues_when_a_policy_keeps_expires(driver: Driver) -> None:
    driver.apply(declare("q"), put_policy(expires=IDLE_MS))
    pass_ms(driver, IDLE_MS - 1)
    driver.apply(put_policy(expires=IDLE_MS, max_length=5))
    pass_ms(driver, 1)
    assert names(driver) == []


# Messages of a queue that goes


def test_a_message_that_expired_in_an_outage_is_dead_lettered(driver: Driver) -> None:
    """The delay queues of Laravel, Symfony and other frameworks: the queue expires a little later than its messages."""
    driver.apply(declare("work"), declare("delay", **DELAYS), publish(5, "delay"))
    go_out(driver)
    driver.lead()
    assert ready(driver, "work") == 5
    assert names(driver) == ["work", "delay"]
    pass_ms(driver, IDLE_MS)
    assert names(driver) == ["work"]


@pytest.mark.parametrize("strategy", ["at-most-once", "at-least-once"])
@pytest.mark.parametrize("is_reloaded", [False, True])
@pytest.mark.parametrize("count", [1, DUE_MAX - 1, 2 * DUE_MAX + 1])
def test_an_expiring_queue_dead_letters_expired_messages_first(
    driver: Driver, strategy: str, count: int, *, is_reloaded: bool
) -> None:
    """The queue and all messages are due in a single entry, in which only `DUE_MAX` messages may expire."""
    kept = {"x_dead_letter_strategy": strategy, "x_overflow": "reject-publish", "x_queue_type": "quorum"}
    driver.apply(declare("work"), declare("delay", **DELAYS, **kept))
    for _ in range(count):
        driver.apply(publish(1, "delay"))
    go_out(driver, IDLE_MS, is_reported=False)
    if is_reloaded:
        driver.machine = reloaded(driver.machine)
    driver.lead()
    assert ready(driver, "work") == count
    assert names(driver) == ["work"]


def test_an_expiring_queue_drops_messages_that_still_live(driver: Driver) -> None:
    driver.apply(declare("work"), declare("delay", **DELAYS), publish(1, "delay"))
    pass_ms(driver, IDLE_MS - TTL_MS + 1)
    driver.apply(publish(1, "delay"))
    pass_ms(driver, TTL_MS)
    assert (names(driver), ready(driver, "work")) == (["work"], 1)


def test_an_expiring_queue_drops_all_without_dead_lettering(driver: Driver) -> None:
    driver.apply(declare("q", x_message_ttl=TTL_MS, x_expires=IDLE_MS), publish(3))
    go_out(driver, IDLE_MS, is_reported=False)
    assert names(driver) == []


def test_an_expiring_queue_stays_until_dead_letters_are_moved(driver: Driver) -> None:
    """A slow leader must not get requests for entries until it has moved them."""
    driver.apply(declare("work"), declare("delay", **DELAYS), publish(3, "delay"))
    go_out(driver, 2 * IDLE_MS, is_reported=False)
    assert names(driver) == ["work", "delay"]
    assert driver.machine.due_ms() is None
    driver.machine = reloaded(driver.machine)
    assert driver.machine.due_ms() is None
    driver.lead()
    assert (names(driver), ready(driver, "work")) == (["work"], 3)


def test_expiring_queue_keeps_dead_letters_without_a_target(driver: Driver) -> None:
    """At least once: RabbitMQ deletes such a queue with them."""
    kept = {
        "x_dead_letter_strategy": "at-least-once",
        "x_overflow": "reject-publish",
        "x_queue_type": "quorum",
    }
    driver.apply(declare("delay", **DELAYS, **kept), publish(3, "delay"))
    pass_ms(driver, 10 * IDLE_MS)
    assert names(driver) == ["delay"]
    driver.apply(declare("work"))
    pass_ms(driver, queue_module.DEAD_LETTER_RETRY_MS)
    assert (names(driver), ready(driver, "work")) == (["work"], 3)


def test_an_expiring_queue_dead_letters_rejected_messages_first(driver: Driver) -> None:
    """Many messages are rejected at once, and die with the next entries."""
    driver.apply(declare("work"), declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="work"))
    for _ in range(40):
        driver.apply(publish(1, "q"), publish(1, "other"))
    driver.apply(consume(1, "q", 100))
    with (
        mock.patch.object(queue_module, "RANGES_AT_ONCE", 1),
        mock.patch("qq.machine.handlers.core.RANGES_OF_QUEUE_MAX", 1),
        mock.patch("qq.machine.handlers.core.RANGES_MAX", 1),
    ):
        policy = put_policy(expires=1)._replace(pattern="^q$")
        driver.apply(policy, c.Discard(1, 0, 39), c.Cancel(1, 1))
        driver.time_ms += 5
        driver.lead()
    assert (names(driver), ready(driver, "work")) == (["work"], 40)


# Consumers


@pytest.mark.parametrize("is_reloaded", [False, True])
@pytest.mark.parametrize("is_got", [False, True])
def test_an_outage_does_not_count_for_a_consumer_timeout(
    driver: Driver, *, is_got: bool, is_reloaded: bool
) -> None:
    driver.apply(declare("q"), publish(1))
    if is_got:
        driver.apply(c.Get(1, 1, 1, 1, "q", False, 10_000))
    else:
        driver.apply(consume(1, "q", 1, timeout_ms=10_000))
    pass_ms(driver, 1_000)
    assert go_out(driver) == []
    if is_reloaded:
        driver.machine = reloaded(driver.machine)
    assert not pass_ms(driver, 8_999)
    late = [effect for effect in pass_ms(driver, 1_002) if isinstance(effect, DeliveryTimeout)]
    assert len(late) == 1


def test_a_changed_consumer_timeout_counts_from_the_delivery(driver: Driver) -> None:
    driver.apply(declare("q"), publish(1), consume(1, "q", 1, timeout_ms=100_000))
    pass_ms(driver, 5_000)
    driver.apply(put_policy(consumer_timeout=8_000))
    assert not pass_ms(driver, 2_900)
    assert any(isinstance(effect, DeliveryTimeout) for effect in pass_ms(driver, 1_200))


# Messages


def test_an_outage_counts_for_a_time_to_live(driver: Driver) -> None:
    driver.apply(declare("q"), publish(1, ttl_ms=5_000))
    go_out(driver, 5_000)
    assert ready(driver, "q") == 0


def test_an_outage_counts_for_a_delay(driver: Driver) -> None:
    driver.apply(declare("q"), publish(1, delay_ms=5_000))
    go_out(driver, 5_000)
    assert ready(driver, "q") == 1


def test_an_outage_counts_for_a_delayed_retry(driver: Driver) -> None:
    retry = {"x_delayed_retry_type": "all", "x_delayed_retry_min": 5_000, "x_delayed_retry_max": 5_000}
    driver.apply(declare("q", x_queue_type="quorum", **retry), publish(1), consume(1, "q", 1))
    driver.apply(c.Return(1, 0, 0))
    effects = go_out(driver, 5_000)
    assert any(isinstance(effect, Deliver) for effect in effects)


def test_an_outage_counts_for_the_retry_of_dead_letters(driver: Driver) -> None:
    kept = {
        "x_dead_letter_strategy": "at-least-once",
        "x_overflow": "reject-publish",
        "x_queue_type": "quorum",
    }
    dead = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "later", "x_message_ttl": 1}
    driver.apply(declare("q", **kept, **dead), publish(1))
    pass_ms(driver, 10)
    assert driver.machine.vhosts["/"].queues["q"].retry_ms
    driver.apply(declare("later"))
    go_out(driver, queue_module.DEAD_LETTER_RETRY_MS)
    driver.lead()
    assert ready(driver, "later") == 1


# Publishers


@pytest.mark.parametrize("is_reported", [False, True])
def test_an_outage_does_not_make_a_publisher_forgotten(driver: Driver, *, is_reported: bool) -> None:
    driver.apply(declare("q"), publish(1, publisher="p", publish_seq=7))
    go_out(driver, PUBLISHER_AGE_MS, is_reported=is_reported)
    driver.apply(publish(1, publisher="p", publish_seq=7))
    assert ready(driver, "q") == (1 if is_reported else 2)
