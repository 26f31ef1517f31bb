"""Handovers: which peer a leader asks, and when a handover ends."""

from __future__ import annotations

from cluster.membership.leadership import HANDOVER_S, PAUSE_S, Handover


def test_handover_requests_a_single_peer_and_times_out() -> None:
    handover = Handover()
    assert not handover.is_on(5.0)
    handover.begin(5.0)
    requested: list[bool] = []

    def request_one() -> bool:
        requested.append(len(requested) == 1)
        return requested[-1]

    for _ in range(4):
        handover.request_once(request_one)
    assert requested == [False, True]
    assert handover.is_on(5.0 + HANDOVER_S / 2)
    assert not handover.is_on(5.0 + HANDOVER_S)
    handover.begin(7.0)
    handover.request_once(request_one)
    assert len(requested) == 3
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
