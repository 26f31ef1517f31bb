"""Which nodes a leader gives up, and after how long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.expulsions import Expulsions
from cluster.group_config import GroupConfig
from cluster.peers import Peers

BEAT_S = 0.05
GRACE_S = GroupConfig("a", {}, "c").silent_origin_grace_s


class Leader:
    """A member that listens to `b` and `c`, on a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.expelled: list[tuple[str, float]] = []
        """Who was given up, and when."""
        self.is_leader = True
        self.peers = Peers({"b": None, "c": None}, self.now_s)
        origin = SimpleNamespace(expelled=False, incarnation=1)
        rest: Any = [
            SimpleNamespace(peers=("b", "c")),
            self.peers,
            SimpleNamespace(origins={"b": origin, "c": origin}),
            SimpleNamespace(expel=self._expel),
            SimpleNamespace(ask=lambda: None),
            SimpleNamespace(monotonic=lambda: self.now_s),
        ]
        self._expulsions = Expulsions(GroupConfig("a", {}, "c"), *rest)

    def _expel(self, peer: str, incarnation: int) -> bool:
        is_new = peer not in dict(self.expelled)
        if is_new:
            self.expelled.append((peer, self.now_s))
        return is_new

    def listen(self, seconds: float, *heard: str) -> None:
        """Beat for so long, and hear these at each beat."""
        for _ in range(round(seconds / BEAT_S)):
            self.now_s += BEAT_S
            self._expulsions.look(is_leader=self.is_leader)
            for peer in heard:
                self.peers.heard(peer, self.now_s)

    def pause(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def leader() -> Leader:
    return Leader()


def test_a_node_that_is_silent_is_given_up_after_the_grace(leader: Leader) -> None:
    leader.listen(GRACE_S + 10, "b")
    assert leader.expelled == [("c", pytest.approx(100 + GRACE_S, abs=2 * BEAT_S))]


@pytest.mark.parametrize("pause_s", [GRACE_S + 1, 100 * GRACE_S])
def test_who_was_paused_itself_gives_nobody_up_for_that(leader: Leader, pause_s: float) -> None:
    leader.listen(5, "b", "c")
    leader.pause(pause_s)
    leader.listen(1)  # what they have said meanwhile is still to be read
    leader.listen(5, "b", "c")
    assert leader.expelled == []


def test_silence_before_and_after_a_pause_counts(leader: Leader) -> None:
    leader.listen(GRACE_S / 2, "b")
    leader.pause(3 * GRACE_S)
    leader.listen(GRACE_S / 2 - 1, "b")
    assert leader.expelled == []
    leader.listen(2, "b")
    assert [peer for peer, _ in leader.expelled] == ["c"]


def test_a_pause_before_it_leads_counts_as_one_too(leader: Leader) -> None:
    leader.is_leader = False
    leader.listen(5, "b", "c")
    leader.pause(2 * GRACE_S)
    leader.listen(BEAT_S)
    leader.is_leader = True
    leader.listen(5, "b", "c")
    assert leader.expelled == []
