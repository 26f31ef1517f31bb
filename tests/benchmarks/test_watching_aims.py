"""The benchmark of watching judges its aims, and requests existing resources."""

from __future__ import annotations

from tests.benchmarks.watching import Phase, judge, resources

QUIET = [
    Phase([0.05, 0.04], [5.0] * 100),
    Phase([0.06, 0.04], [6.0] * 100),
    Phase([0.9, 0.04], [500.0] * 100),
]


def watched(cores: float, waited_ms: float) -> list[Phase]:
    return [Phase([0.06 + cores, 0.04], [6.0 + waited_ms] * 100)]


def test_median_aim_compares_watched_with_quiet_figures() -> None:
    rows = judge(QUIET, watched(0.02, 1.0), ["n1 (leads)", "n2"])
    assert [(row.name, row.figures, row.met) for row in rows] == [
        ("n1 (leads): watching it", "2.00 % of a core (beside 6.00 %)", True),
        ("n2: watching it", "0.00 % of a core (beside 4.00 %)", True),
        ("a publisher's confirms, p50", "6.0 ms, watched 7.0 ms", True),
        ("a publisher's confirms, p99", "6.0 ms, watched 7.0 ms", True),
    ]
    assert [row.met for row in judge(QUIET, watched(0.031, 5.1), ["n1", "n2"])] == [False, True, False, False]


def test_watcher_polls_all_lists_but_no_exports() -> None:
    paths = resources()
    assert {"/api/queues", "/api/bindings", "/api/connections", "/api/doctor", "/api/cluster"} <= set(paths)
    assert not any("definitions" in path or "backup" in path or "{" in path for path in paths)
