"""Which nodes a leader gives up, and after how long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from cluster.config import GroupConfig
from cluster.configuration.quorum import Membership
from cluster.membership.eviction import UNDECIDED_S, Evictions
from cluster.membership.peer_status import SILENT_S, Peers
from cluster.raft.messages import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BEAT_S = 0.05
CONFIG = GroupConfig("a", {}, "c")
GRACE_S, DEAD_S, DOUBTED_S = (
    CONFIG.silent_origin_grace_s,
    CONFIG.dead_origin_grace_s,
    CONFIG.doubted_origin_grace_s,
)
STATUS = Status(*[0] * 14)


class Leader:
    """A member `a` that receives statuses of its peers, on a clock of its own."""

    def __init__(self, peers: Sequence[str] = ("b", "c")) -> None:
        self.now_s = 100.0
        self._peers = peers
        self._scheduled: list[tuple[float, Callable[[], None]]] = []
        """When it wants to look, besides the beats."""
        self.evicted: list[tuple[str, float]] = []
        """Evicted nodes, with the time."""
        self.is_leader = True
        self.of_release_0_1: list[str] = []
        self.peers = Peers(dict.fromkeys(peers), self.now_s)
        self._origin = SimpleNamespace(evicted=False, incarnation=1)
        members: Any = SimpleNamespace(
            name="a",
            peers=peers,
            of_release_0_1=self.of_release_0_1,
            hears=lambda peer: not self.peers.is_silent(peer, self.now_s),
            configurations=SimpleNamespace(membership=Membership.of_voters(["a", *peers])),
        )
        replica: Any = SimpleNamespace(
            config=GroupConfig("a", {}, "c"),
            state=SimpleNamespace(origins=dict.fromkeys(peers, self._origin)),
            engine=self,
            proposals=SimpleNamespace(evict=self._evict),
            turns=SimpleNamespace(request=lambda: None),
            runtime=SimpleNamespace(monotonic=lambda: self.now_s, call_later=self._call_later),
        )
        self.evictions = Evictions(replica, members, self.peers)

    def _evict(self, peer: str, incarnation: int) -> bool:
        is_new = peer not in dict(self.evicted)
        if is_new:
            self.evicted.append((peer, self.now_s))
        return is_new

    def _call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._scheduled.append((self.now_s + delay_s, call))

    def lose(self, peer: str, *missed_by: str) -> None:
        """Lose the link with a peer; the peers in `missed_by` report that they miss it too, and the rest that they do
        not.
        """
        self.peers.lost(peer, self.now_s)
        self.evictions.record_lost_link()
        for other in self._peers:
            if other != peer:
                self.peers.record_status(other, STATUS._replace(misses=(peer,) if other in missed_by else ()))

    def find_dead(self, peer: str) -> None:
        self.peers.died(peer, self.now_s)
        self.evictions.record_death()

    def evict_at_last(self) -> None:
        """Have the log say that all members are given up."""
        self._origin.evicted = True

    def listen(self, seconds: float, *heard: str) -> None:
        """Beat for so long, and hear these at each beat."""
        for _ in range(round(seconds / BEAT_S)):
            end_s = self.now_s + BEAT_S
            due = [scheduled for scheduled in self._scheduled if scheduled[0] <= end_s]
            for scheduled in due:
                self._scheduled.remove(scheduled)
                self.now_s = scheduled[0]
                scheduled[1]()
            self.now_s = end_s
            self.evictions.check()
            for peer in heard:
                self.peers.record_contact(peer, self.now_s)

    def pause(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def leader() -> Leader:
    return Leader()


def test_silent_node_is_evicted_after_the_grace_period(leader: Leader) -> None:
    leader.listen(GRACE_S + 10, "b")
    assert leader.evicted == [("c", pytest.approx(100 + GRACE_S, abs=2 * BEAT_S))]


@pytest.mark.parametrize("pause_s", [GRACE_S + 1, 100 * GRACE_S])
def test_leader_that_was_paused_evicts_no_member_for_that(leader: Leader, pause_s: float) -> None:
    leader.listen(5, "b", "c")
    leader.pause(pause_s)
    leader.listen(1)  # statuses sent meanwhile are still unread
    leader.listen(5, "b", "c")
    assert leader.evicted == []


def test_silence_before_and_after_a_pause_counts(leader: Leader) -> None:
    leader.listen(GRACE_S / 2, "b")
    leader.pause(3 * GRACE_S)
    leader.listen(GRACE_S / 2 - 1, "b")
    assert leader.evicted == []
    leader.listen(2, "b")
    assert [peer for peer, _ in leader.evicted] == ["c"]


def test_pause_before_a_leadership_counts_as_a_pause(leader: Leader) -> None:
    leader.is_leader = False
    leader.listen(5, "b", "c")
    leader.pause(2 * GRACE_S)
    leader.listen(BEAT_S)
    leader.is_leader = True
    leader.listen(5, "b", "c")
    assert leader.evicted == []


def test_dead_node_is_evicted_soon_if_a_majority_lost_it(leader: Leader) -> None:
    leader.lose("c", "b")
    leader.listen(1, "b")
    assert leader.evicted == [], "its host has not said that nobody listens"
    leader.find_dead("c")
    found_s = leader.now_s
    leader.listen(1, "b")
    assert leader.evicted == [("c", pytest.approx(found_s + DEAD_S, abs=0.01))]


def test_a_node_is_kept_while_a_follower_has_a_link_with_it(leader: Leader) -> None:
    leader.lose("c")
    leader.find_dead("c")
    leader.listen(GRACE_S / 2, "b")
    assert leader.evicted == []
    leader.lose("c", "b")
    leader.listen(BEAT_S, "b")
    assert [peer for peer, _ in leader.evicted] == ["c"]


def test_a_status_of_a_silent_member_does_not_count(leader: Leader) -> None:
    leader.lose("c")
    leader.find_dead("c")
    leader.listen(SILENT_S + 1)
    assert leader.evicted == [("c", pytest.approx(100 + SILENT_S, abs=2 * BEAT_S))]


@pytest.mark.parametrize("reports", [True, False])
def test_leader_waits_longer_when_no_follower_confirms_death(leader: Leader, *, reports: bool) -> None:
    if reports:
        leader.lose("c")
        leader.of_release_0_1.append("b")  # its statuses do not mention links
    else:
        leader.peers.lost("c", leader.now_s)
    leader.find_dead("c")
    leader.listen(5, "b")
    assert leader.evicted == [("c", pytest.approx(100 + DOUBTED_S, abs=2 * BEAT_S))]


def test_two_of_five_are_no_majority_that_lost_a_node() -> None:
    leader = Leader("bcde")
    leader.lose("e", "b")
    leader.find_dead("e")
    leader.listen(5, "b", "c", "d")
    assert leader.evicted == []
    leader.lose("e", "b", "c")
    leader.listen(BEAT_S, "b", "c", "d")
    assert [peer for peer, _ in leader.evicted] == ["e"]


def test_node_that_connects_again_is_not_evicted(leader: Leader) -> None:
    leader.lose("c", "b")
    leader.find_dead("c")
    leader.listen(DEAD_S - BEAT_S, "b")
    leader.peers.connected("c", leader.now_s)
    leader.listen(5, "b", "c")
    assert leader.evicted == []


def test_a_lost_node_is_undecided_for_a_bounded_time(leader: Leader) -> None:
    assert not leader.evictions.undecided()
    leader.lose("c", "b")
    assert leader.evictions.undecided() == ["c"]
    leader.listen(UNDECIDED_S - 2 * BEAT_S, "b")
    assert leader.evictions.undecided() == ["c"]
    leader.listen(4 * BEAT_S, "b")
    assert not leader.evictions.undecided()


@pytest.mark.parametrize("ending", ["connected", "evicted"])
def test_node_is_decided_when_it_is_back_or_evicted(leader: Leader, ending: str) -> None:
    leader.lose("c", "b")
    if ending == "connected":
        leader.peers.connected("c", leader.now_s)
    else:
        leader.evict_at_last()
    assert not leader.evictions.undecided()
