"""Commands of sinks: epochs become visible at once and only once, limits, refusals, and work that is put off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from qq.machine.catalog.limits import MAX_PUBLISHES
from qq.machine.catalog.sinks import STALE_MS
from qq.machine.handlers import core as core_module
from qq.machine.handlers import sinking
from qq.machine.protocol import commands as c
from qq.machine.protocol.codec import InvalidCommand, check_command
from qq.machine.protocol.refusals import Refused
from qq.machine.queue.queue import Queue
from qq.stored.properties import NO_PRIORITY, NO_TTL
from tests.machine.likeness import differences
from tests.machine.machine_driver import Driver, declare, live_messages, publish, ready_messages, reloaded

if TYPE_CHECKING:
    from qq.machine.catalog.sinks import Sink

PLACE = ("/", "s", "ann")


def staged(step: int, count: int = 1, key: str = "q", attempt: str = "a", **more: object) -> c.StageMessages:
    command = c.StageMessages(*PLACE, 0, attempt, step, count, "", key, 1, [], NO_PRIORITY, NO_TTL, 0)
    return command._replace(**more)


def committed(*attempts: tuple[str, int], epoch: int = 0) -> c.CommitEpoch:
    return c.CommitEpoch(*PLACE, epoch, [name for name, _ in attempts], [steps for _, steps in attempts])


def opened(**settings: object) -> c.OpenSink:
    return c.OpenSink(*PLACE, 0)._replace(**settings)


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.machine.raise_to(12)
    driver.apply(declare("q", x_queue_type="quorum"), declare("r", x_queue_type="quorum"), opened())
    return driver


def queue_of(driver: Driver, name: str = "q") -> Queue:
    return driver.machine.vhosts["/"].queues[name]


def sink_of(driver: Driver) -> Sink:
    return driver.machine.vhosts["/"].sinks["s"]


def slots_of(driver: Driver, name: str = "q") -> list[tuple[int, int]]:
    return [(index, slot) for index, slot, _ in ready_messages(queue_of(driver, name))]


def refusal_of(driver: Driver, command: c.CommitEpoch) -> str:
    with pytest.raises(Refused) as refused:
        driver.machine.sinks.check_commit(sink_of(driver), command)
    return refused.value.text


def test_sinks_need_version_12() -> None:
    with pytest.raises(InvalidCommand, match=r"OpenSink.* version 12 of the state"):
        check_command(opened(), 11)
    assert check_command(opened(), 12)


def test_epoch_becomes_visible_when_it_is_committed(driver: Driver) -> None:
    driver.apply(staged(0, 2), staged(0, 1, "r", attempt="b"))
    driver.apply(publish(1), staged(1, 3))
    assert (slots_of(driver), slots_of(driver, "r")) == ([(3, 0)], [])
    driver.apply(committed(("a", 2), ("b", 1)))
    assert slots_of(driver) == [(3, 0), (2, 0), (2, 1), (3, 1), (3, 2), (3, 3)]
    assert slots_of(driver, "r") == [(2, 2)]
    assert sink_of(driver).attempts == {}


def test_committed_epoch_is_ignored_when_it_is_repeated(driver: Driver) -> None:
    driver.apply(staged(0), committed(("a", 1)))
    for attempt in ("a", "b"):
        driver.apply(staged(0, attempt=attempt), committed((attempt, 1)))
    assert len(slots_of(driver)) == 1
    assert driver.machine.sinks.stored_steps(staged(0, attempt="b")) is None
    driver.apply(staged(0, epoch=1), committed(("a", 1), epoch=1), committed(("a", 1), epoch=0))
    assert len(slots_of(driver)) == 2


def test_commit_drops_other_attempts_of_the_epoch(driver: Driver) -> None:
    driver.apply(staged(0), staged(0, attempt="slow"), staged(0, attempt="next", epoch=1))
    driver.apply(committed(("a", 1)))
    assert list(sink_of(driver).attempts) == ["next"]
    assert sink_of(driver).runs == 1
    driver.apply(staged(1, attempt="slow"))
    assert list(sink_of(driver).attempts) == ["next"]
    assert len(slots_of(driver)) == 1


def test_repeated_step_is_stored_once(driver: Driver) -> None:
    driver.apply(staged(0, 2))
    driver.apply(staged(0, 2), staged(1, 1))
    driver.apply(staged(1, 1), staged(3, 1))
    assert driver.machine.sinks.stored_steps(staged(0)) == 2
    with pytest.raises(Refused, match="has 2 steps, so step 3 is not the next"):
        driver.machine.sinks.stored_steps(staged(3))
    driver.apply(committed(("a", 2)))
    assert slots_of(driver) == [(2, 0), (2, 1), (3, 2)]


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (committed(("a", 1)), "attempt 'a' at epoch 0 of sink 's' in vhost '/' has 2 steps, not 1"),
        (committed(("a", 2), ("c", 1)), "attempt 'c' at epoch 0 of sink .* is not stored"),
        (committed(("a", 2), ("a", 2)), "an attempt at epoch 0 of sink .* is named twice"),
        (committed(("a", 2), epoch=3), "attempt 'a' at epoch 3 of sink .* is not stored"),
        (committed(("b", 0)), "messages with routing key 'nowhere' reach no queue from exchange ''"),
    ],
)
def test_commit_is_refused_as_a_whole(driver: Driver, command: c.CommitEpoch, error: str) -> None:
    driver.apply(staged(0), staged(1), staged(0, attempt="b"), staged(1, key="nowhere", attempt="b"))
    driver.apply(command)
    assert slots_of(driver) == []
    assert sink_of(driver).first_free == 0
    with pytest.raises(Refused, match=error):
        driver.machine.sinks.check_commit(sink_of(driver), command)


def test_step_that_reaches_no_queue_fails_its_attempt(driver: Driver) -> None:
    driver.apply(staged(0, 5), staged(1, key="nowhere"), staged(2))
    assert sink_of(driver).attempts["a"].runs == []
    assert sink_of(driver).runs == 0
    with pytest.raises(Refused, match="routing key 'nowhere' reach no queue"):
        driver.machine.sinks.stored_steps(staged(2))


def test_full_queue_refuses_the_epoch_and_takes_it_later(driver: Driver) -> None:
    full = {"x_queue_type": "quorum", "x_max_length": 3, "x_overflow": "reject-publish"}
    driver.apply(declare("full", **full), publish(1, "full"), staged(0, 3, "full"), staged(1, 1))
    driver.apply(committed(("a", 2)))
    assert (len(slots_of(driver, "full")), slots_of(driver)) == (1, [])
    error = refusal_of(driver, committed(("a", 2)))
    assert (
        error
        == "queue 'full' in vhost '/' is too full for 3 messages of 3 bytes of epoch 0 of sink 's' in vhost '/'"
    )
    driver.apply(c.PurgeQueue(9, 1, "full"), committed(("a", 2)))
    assert (len(slots_of(driver, "full")), len(slots_of(driver))) == (3, 1)


def test_deleted_queue_refuses_the_epoch(driver: Driver) -> None:
    driver.apply(staged(0), c.DeleteQueue(9, 1, "q", False, False))
    driver.apply(declare("q", x_queue_type="quorum"), committed(("a", 1)))
    assert slots_of(driver) == []
    assert "queue 'q' in vhost '/', which messages of epoch 0" in refusal_of(driver, committed(("a", 1)))


def test_sink_belongs_to_its_user(driver: Driver) -> None:
    for command in (staged(0), committed(("a", 1)), c.CloseSink(*PLACE)):
        other = command._replace(user="bob")
        driver.apply(other)
        with pytest.raises(Refused, match="sink 's' in vhost '/' belongs to user 'ann'"):
            driver.machine.sinks.find(other)
    assert sink_of(driver).attempts == {}


def test_idle_sink_ends_after_its_time(driver: Driver) -> None:
    driver.apply(opened(expires_ms=1_000), staged(0))
    driver.time_ms += 600
    driver.apply(staged(1))
    driver.wait_until(driver.time_ms + 999)
    assert sink_of(driver).attempts["a"].steps == 2
    driver.wait_until(driver.time_ms + 2)
    assert driver.machine.vhosts["/"].sinks == {}
    with pytest.raises(Refused, match="no sink 's' in vhost '/'"):
        driver.machine.sinks.find(staged(2))


def test_limits_of_sinks_and_attempts_are_named(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinking, "SINKS_MAX", 1)
    monkeypatch.setattr(sinking, "ATTEMPTS_MAX", 1)
    monkeypatch.setattr(sinking, "RUNS_MAX", 2)
    driver.apply(opened(sink="t"), staged(0), staged(0, attempt="b"))
    with pytest.raises(Refused, match="vhost '/' has 1 sinks, which is the limit"):
        driver.machine.sinks.opened(opened(sink="t"))
    with pytest.raises(Refused, match="has 1 attempts that are not committed, which is the limit"):
        driver.machine.sinks.stored_steps(staged(0, attempt="b"))
    driver.apply(staged(1), staged(2))
    with pytest.raises(Refused, match="has 2 runs of messages that are not committed, which is the limit"):
        driver.machine.sinks.stored_steps(staged(3))


def test_large_epoch_is_published_in_portions(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "RANGES_AT_ONCE", 4)
    monkeypatch.setattr(core_module, "RANGES_MAX", 3)
    for step in range(10):
        driver.apply(staged(step))
    driver.apply(committed(("a", 10)))
    early = len(slots_of(driver))
    assert 0 < early < 10
    assert differences(driver.machine, reloaded(driver.machine)) == []
    other = reloaded(driver.machine)
    driver.apply(staged(0, epoch=1), committed(("a", 1), epoch=1))
    assert driver.machine.due_ms() == 0
    driver.lead()
    slots = slots_of(driver)
    assert slots == sorted(slots)
    assert len(slots) == 11
    while other.due_ms() == 0:
        other.end_entry(driver.time_ms)
    assert other.vhosts["/"].queues["q"].ready == 10


def test_staged_messages_are_kept_in_the_log(driver: Driver) -> None:
    driver.apply(staged(0, 2), publish(1, "r"))
    frozen = driver.machine.freeze()
    assert {index: dict(batches) for index, batches in frozen.live(0, 99).items()}[2][0] == [(0, 3)]
    assert frozen.counts([2, 3]) == [3]
    driver.apply(c.CloseSink(*PLACE))
    assert {index: dict(batches) for index, batches in driver.machine.freeze().live(0, 99).items()} == {
        2: {0: [(2, 1)]}
    }


def test_sink_survives_a_reload(driver: Driver) -> None:
    driver.apply(
        opened(expires_ms=5_000), staged(0, 2, priority=3, ttl_ms=9), staged(0, key="no", attempt="b")
    )
    assert differences(driver.machine, reloaded(driver.machine)) == []


def test_properties_take_effect_when_the_epoch_is_committed(driver: Driver) -> None:
    driver.apply(declare("p", x_queue_type="quorum"))
    driver.apply(staged(0, 1, "p", ttl_ms=100), staged(1, 1, "p", delay_ms=50), staged(2, 1, "p", priority=9))
    driver.time_ms += 10_000
    driver.apply(committed(("a", 3)))
    assert (queue_of(driver, "p").ready, queue_of(driver, "p").backlog.delayed) == (2, 1)
    driver.wait_until(driver.time_ms + 60)
    assert queue_of(driver, "p").ready == 3
    driver.wait_until(driver.time_ms + 60)
    assert queue_of(driver, "p").ready == 2


def test_deleted_virtual_host_ends_its_sinks(driver: Driver) -> None:
    driver.apply(opened(expires_ms=1_000), staged(0), c.DeleteVhost("/"))
    driver.wait_until(driver.time_ms + 2_000)
    assert driver.machine.freeze().sinks == []


def test_full_sink_drops_attempts_that_wait_for_long(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinking, "RUNS_MAX", 3)
    driver.apply(staged(0, attempt="dead"), staged(1, attempt="dead"))
    driver.time_ms += STALE_MS - 1
    driver.apply(staged(0, attempt="b"), staged(0, attempt="c"))
    with pytest.raises(Refused, match="has 3 runs"):
        driver.machine.sinks.stored_steps(staged(0, attempt="c"))
    driver.time_ms += 1
    driver.apply(staged(0, attempt="d"))
    assert {name: each.steps for name, each in sink_of(driver).attempts.items()} == {"b": 1, "c": 0, "d": 1}
    assert sink_of(driver).runs == 2
    assert differences(driver.machine, reloaded(driver.machine)) == []


def test_staged_messages_count_for_limits_of_publishing(driver: Driver) -> None:
    driver.apply(staged(0, 2), messages=[b"x"] * 2)
    vhost, published = driver.machine.vhosts["/"], driver.machine.catalog.access.published
    assert (list(vhost.published.elsewhere("")), published) == ([], {})
    limit = {MAX_PUBLISHES: 9}
    driver.apply(c.PutUser("ann", b"", b"", []), c.SetUserLimits("ann", limit), c.SetVhostLimits("/", limit))
    driver.apply(staged(1, 3), committed(("a", 2)), messages=[b"xx"] * 3)
    for counts in (vhost.published, published["ann"]):
        assert [row[1:] for row in counts.elsewhere("")] == [(3, 6)]


def test_staged_message_in_fragments_is_whole_until_it_is_dropped(driver: Driver) -> None:
    for fragment in (b"f" * 100, b"s" * 50):
        driver.apply(c.StoreFragment(7), messages=[fragment])
    driver.apply(c.JoinFragments(7), staged(0), c.SessionDown(7), messages=[b"h"])
    index = driver.index
    assert (sink_of(driver).messages, sink_of(driver).size) == (1, 151)
    driver.machine = reloaded(driver.machine)
    assert [each.size for each in driver.machine.fragments_of(index)[0]] == [100, 50]
    assert len(live_messages(driver.machine)) == 3
    driver.apply(committed(("a", 1)))
    assert (queue_of(driver).ready, queue_of(driver).backlog.size) == (1, 151)
    assert len(live_messages(reloaded(driver.machine))) == 3
    driver.apply(c.PurgeQueue(1, 1, "q"))
    assert live_messages(reloaded(driver.machine)) == []
    assert not driver.machine._core.sessions.get(("n1", 7))
