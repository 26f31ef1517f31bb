"""Handing leadership over, and the numbers of lives."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

from chaos.sim.world.disk import SimulatedDisk
from cluster.configuration.configuration import Versions
from cluster.membership.leadership import HANDOVER_S, PAUSE_S, Handover
from cluster.storage.directory import INCARNATION_LEAP, GroupDirectory, Incarnations
from cluster.storage.identity import Owner


def test_handover_asks_a_single_peer_and_ends_by_itself() -> None:
    handover = Handover()
    assert not handover.is_on(5.0)
    handover.begin(5.0)
    asked: list[bool] = []

    def ask_one() -> bool:
        asked.append(len(asked) == 1)
        return asked[-1]

    for _ in range(4):
        handover.ask(ask_one)
    assert asked == [False, True]
    assert handover.is_on(5.0 + HANDOVER_S / 2)
    assert not handover.is_on(5.0 + HANDOVER_S)
    handover.begin(7.0)
    handover.ask(ask_one)
    assert len(asked) == 3
    handover.end()
    assert not handover.is_on(7.0)


def test_a_handover_is_for_some_peers_or_for_any() -> None:
    handover = Handover()
    handover.begin(1.0, ["b", "d"])
    assert handover.meant(["a", "c"]) == ["b", "d"]
    handover.begin(1.0)
    assert handover.meant(["a", "c"]) == ["a", "c"]


def test_failed_handover_is_remembered_for_a_while() -> None:
    handover = Handover()
    assert not handover.was_in_vain(0.0)
    handover.begin(5.0)
    end_s = 5.0 + HANDOVER_S
    assert [
        handover.was_in_vain(now_s) for now_s in (5.0, end_s, end_s + PAUSE_S - 0.1, end_s + PAUSE_S)
    ] == [
        False,
        True,
        True,
        False,
    ]
    handover.begin(5.0)
    handover.end()
    assert not handover.was_in_vain(end_s)


def test_incarnation_exceeds_the_last_the_clock_and_the_cluster() -> None:
    disk = SimulatedDisk(Random(1), lambda _delay, callback: callback())
    directory = GroupDirectory(disk, "groups/0", Owner("test", "a", 0))
    runtime = SimpleNamespace(random=Random(1), now_ms=10**9)
    runtime.wall_ms = lambda: runtime.now_ms
    lives = Incarnations(directory, runtime, Versions(1, 1), ["a"])  # pyright: ignore[reportArgumentType]
    first = lives.begin().incarnation
    assert first >= 10**9
    runtime.now_ms = -(10**15)
    second = lives.begin().incarnation
    assert first < second
    known = second + 10**6
    third = lives.begin(known).incarnation
    assert known < third <= known + 2 * INCARNATION_LEAP
