"""A node whose disk does not complete a sync does not count as serving, though it answers."""

from __future__ import annotations

from cluster.transport.outbox import HANGS_S
from tests.cluster.harness import Growing, submit


def test_node_with_a_hanging_disk_is_not_relied_on(growing: Growing) -> None:
    leader, hanging, third = growing.leader(), *growing.followers()
    hanging.disk.slow = 10_000.0  # some 20 s for a sync
    leader.runtime.enter(lambda: submit(leader))
    growing.pass_ms(int(HANGS_S * 1000) + 1500)
    statuses = leader.group.statuses
    why = f"{hanging.name} has a disk that does not answer (look what is wrong with it)"
    for stopped in (leader.name, third.name):
        verdict = statuses.may_stop(stopped)
        assert not verdict.is_safe
        assert verdict.text.endswith(why)
    assert [status.name for status in statuses.all() if status.disk_hangs] == [hanging.name]
    assert statuses.may_stop(hanging.name).is_safe
    assert statuses.why_not_lead(hanging.name) == why
    assert statuses.successors() == [third.name]
    growing.pass_ms(40_000)
    hanging.disk.slow = 1.0
    growing.pass_ms(3000)
    assert statuses.may_stop(third.name).is_safe


def test_a_node_that_was_stopped_does_not_take_that_for_its_disk(growing: Growing) -> None:
    leader, frozen, _ = growing.leader(), *growing.followers()
    frozen.disk.slow = 10_000.0
    leader.runtime.enter(lambda: submit(leader))
    growing.pass_ms(500)
    frozen.runtime.pause()
    growing.pass_ms(int(HANGS_S * 1000))
    frozen.runtime.go_on()
    growing.pass_ms(1000)
    statuses = leader.group.statuses
    assert [status.name for status in statuses.all() if status.disk_hangs] == []
    growing.pass_ms(int(HANGS_S * 1000) + 1500)
    assert [status.name for status in statuses.all() if status.disk_hangs] == [frozen.name]
