"""When garbage is looked for, and that hardly anything is left for it."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from qq.process import garbage
from qq.process.garbage import REST_S, YOUNG_WORK_S, Collector, YoungCollector
from tests.harness.garbage_walks import collections_as_in_a_node

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True, scope="module")
def as_before() -> Iterator[None]:
    """Restore the state of the collector once for all tests: a full collection takes a second in pytest."""
    yield
    garbage.collect()


def test_no_collection_that_comes_by_itself_walks_many_objects() -> None:
    with collections_as_in_a_node() as walked:
        kept = [[number] for number in range(1_000_000)]
    assert len(walked) > 10
    assert max(walked) < len(kept) / 10


def test_young_objects_stay_few_while_old_objects_are_freed() -> None:
    """As when messages come as fast as the log takes older ones in: the collector counts no difference."""
    backlog: deque[list[int]] = deque([number] for number in range(100_000))
    clock_s = 0.0
    with collections_as_in_a_node() as walked:
        young = YoungCollector(lambda: clock_s)
        for number in range(100_000):
            backlog.append([number])
            backlog.popleft()
            clock_s += YOUNG_WORK_S / 1000
            young.check()
    assert len(walked) >= 90
    assert max(walked) < 5000


def test_all_objects_are_collected_when_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[Any] = []
    clock_s, takes_s = 5_000.0, 2.0

    def collect() -> None:
        nonlocal clock_s
        collected.append(gc.get_freeze_count())
        clock_s += takes_s

    monkeypatch.setattr(garbage.gc, "collect", collect)
    monkeypatch.setattr(garbage, "perf_counter", lambda: clock_s)
    collector = Collector()
    collector.begin()
    assert not collected, "clients wait for the node"
    assert gc.get_freeze_count() > 0
    assert not collector.check(is_short=False, now_s=1_000.0)
    assert collector.check(is_short=True, now_s=1_000.0)
    assert not collector.check(is_short=True, now_s=1_000.0 + REST_S / 2), "it was just done"
    takes_s = 0.01
    assert collector.check(is_short=True, now_s=1_000.0 + REST_S)
    assert not collector.check(is_short=True, now_s=1_000.0 + REST_S + 5.0)
    assert collector.check(is_short=True, now_s=1_000.0 + REST_S + 7.0), "nobody waits long for it"
    assert collected == [0] * 3, "what was frozen is looked through, too"


class _Ring:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_from_before_serving_is_collected() -> None:
    collector = Collector()
    ring = _Ring()
    collector.begin()
    there = weakref.ref(ring)
    del ring
    assert there() is not None
    assert collector.check(is_short=True, now_s=0.0)
    assert there() is None


def test_imports_are_collected_when_there_is_a_reason() -> None:
    with garbage.none_expected():
        assert not gc.isenabled()
        ring = _Ring()
    assert gc.isenabled()
    there = weakref.ref(ring)
    del ring
    gc.collect()
    assert there() is not None
    assert Collector().check(is_short=True, now_s=0.0)
    assert there() is None
