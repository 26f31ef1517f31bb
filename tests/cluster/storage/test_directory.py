"""Incarnations of a node, which its directory numbers."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

from chaos.sim.world.disk import SimulatedDisk
from cluster.configuration.configuration import Versions
from cluster.storage.directory import INCARNATION_LEAP, GroupDirectory, Incarnations
from cluster.storage.identity import Owner


def test_incarnation_exceeds_the_last_the_clock_and_the_cluster() -> None:
    disk = SimulatedDisk(Random(1), lambda _delay, callback: callback())
    directory = GroupDirectory(disk, "groups/0", Owner("test", "a", 0))
    runtime = SimpleNamespace(random=Random(1), now_ms=10**9)
    runtime.wall_ms = lambda: runtime.now_ms
    incarnations = Incarnations(directory, runtime, Versions(1, 1), ["a"])  # pyright: ignore[reportArgumentType]
    first = incarnations.begin().incarnation
    assert first >= 10**9
    runtime.now_ms = -(10**15)
    second = incarnations.begin().incarnation
    assert first < second
    known = second + 10**6
    third = incarnations.begin(known).incarnation
    assert known < third <= known + 2 * INCARNATION_LEAP
