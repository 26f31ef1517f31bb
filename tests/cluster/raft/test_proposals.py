"""Submissions at their node and at the leader."""

from __future__ import annotations

import pytest

from cluster.log.entry import KIND_EVICTION, MalformedEntry, batches_of, make_entry
from cluster.raft.proposals import COMPANY_S, LeaderTerm, PendingProposals, ProposalQueue

FIRST, SECOND = LeaderTerm("n1", 1), LeaderTerm("n2", 2)


@pytest.fixture
def pending() -> PendingProposals:
    pending = PendingProposals("n3")
    pending.begin(7)
    for number in range(4):
        pending.add([bytes([number]) * 100])
    return pending


def wire(pending: PendingProposals, leader_term: LeaderTerm) -> bytes:
    assert pending.has_unsent(leader_term)
    return b"".join(bytes(buffer) for batch in pending.take_unsent() for buffer in batch.buffers)


def proposed(proposals: ProposalQueue) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    while proposals:
        entry = make_entry(0, proposals.next_entry(10_000))
        found += [(view.origin, view.sequence) for view in batches_of(entry)]
    return found


def test_leader_gets_each_batch_once_and_a_new_leader_all_again(pending: PendingProposals) -> None:
    assert pending.has_unsent(FIRST)
    assert [batch.sequence for batch in pending.take_unsent()] == [1, 2, 3, 4]
    assert not pending.has_unsent(FIRST)
    assert pending.add([]) == 5
    assert pending.has_unsent(FIRST)
    assert [batch.sequence for batch in pending.take_unsent()] == [5]
    assert pending.has_unsent(SECOND)
    assert [batch.sequence for batch in pending.take_unsent()] == [1, 2, 3, 4, 5]


def test_a_new_link_to_the_leader_gets_all_again(pending: PendingProposals) -> None:
    wire(pending, FIRST)
    pending.mark_unsent("n2")
    assert not pending.has_unsent(FIRST)
    pending.mark_unsent("n1")
    assert pending.has_unsent(FIRST)


def test_applied_batches_are_not_sent(pending: PendingProposals) -> None:
    size = pending.pending_bytes
    pending.applied(2)
    assert (len(pending), pending.pending_bytes) == (2, size // 2)
    assert pending.has_unsent(FIRST)
    pending.applied(3)  # a batch that the leader before had proposed
    assert pending.has_unsent(FIRST)
    assert [batch.sequence for batch in pending.take_unsent()] == [4]
    pending.applied(4)
    assert not pending.has_unsent(FIRST)


def test_bytes_sent_at_once_are_bounded(pending: PendingProposals) -> None:
    assert pending.has_unsent(FIRST)
    size = pending.pending_bytes // 4
    assert len(pending.take_unsent(2 * size)) == 2
    assert pending.has_unsent(FIRST)
    assert len(pending.take_unsent(1)) == 1, "at least one"


def test_new_incarnation_begins_without_batches(pending: PendingProposals) -> None:
    pending.begin(8)
    assert (len(pending), pending.pending_bytes) == (0, 0)
    assert not pending.has_unsent(FIRST)
    assert pending.add([]) == 1


def test_a_leader_proposes_repeats_once(pending: PendingProposals) -> None:
    proposals = ProposalQueue()
    data = wire(pending, FIRST)
    proposals.accept("n3", data)
    proposals.accept("n3", data)
    assert proposed(proposals) == [("n3", number) for number in (1, 2, 3, 4)]
    proposals.accept("n3", data)
    assert not proposals, "proposed already in this leader_term"
    proposals.clear()
    proposals.accept("n3", data)
    assert proposals


def test_leader_proposes_lower_numbers_of_a_new_incarnation(
    pending: PendingProposals,
) -> None:
    """Batches accepted from the earlier incarnation may never reach the log (simulated: seed 20182)."""
    proposals = ProposalQueue()
    proposals.accept("n3", wire(pending, FIRST))
    pending.begin(5)
    pending.add([])
    proposals.accept("n3", wire(pending, FIRST))
    assert proposed(proposals) == [("n3", number) for number in (1, 2, 3, 4, 1)]


def test_a_node_forwards_for_itself_only(pending: PendingProposals) -> None:
    proposals = ProposalQueue()
    proposals.accept("n4", wire(pending, FIRST))
    assert not proposals


def test_a_malformed_forward_is_refused_as_a_whole(pending: PendingProposals) -> None:
    proposals = ProposalQueue()
    with pytest.raises(MalformedEntry):
        proposals.accept("n3", wire(pending, FIRST)[:-1])
    assert not proposals


def test_an_entry_is_bounded(pending: PendingProposals) -> None:
    proposals = ProposalQueue()
    proposals.extend("n3", pending.take_unsent() if pending.has_unsent(FIRST) else [])
    size = pending.pending_bytes // 4
    assert len(proposals.next_entry(3 * size)) == 3
    assert len(proposals.next_entry(1)) == 1
    assert not proposals


def test_incarnation_is_evicted_once() -> None:
    proposals = ProposalQueue()
    assert proposals.evict("n2", 5)
    assert not proposals.evict("n2", 5)
    assert proposals.evict("n2", 6)
    kinds = [view.kind for view in batches_of(make_entry(0, proposals.next_entry(10_000)))]
    assert kinds == [KIND_EVICTION, KIND_EVICTION]


def test_weight_of_an_entry_is_bounded() -> None:
    proposals, pending = ProposalQueue(), PendingProposals("n1")
    for weight in (0, 12, 8, 0, 1, 300, 20, 0):
        pending.add([b"x"], weight)
    assert pending.has_unsent(LeaderTerm("n1", 1))
    proposals.extend("n1", pending.take_unsent())
    entries: list[list[int]] = []
    while proposals:
        entries.append([batch.weight for batch in proposals.next_entry(10_000, 20)])
    assert entries == [[0, 12, 8, 0], [1], [255], [20, 0]]


def forwarded(origin: str, sizes: list[int], weight: int = 0) -> bytes:
    pending = PendingProposals(origin)
    for size in sizes:
        pending.add([bytes(size)], weight)
    return wire(pending, FIRST)


@pytest.mark.parametrize("floods", [1, 6])
def test_batch_waits_for_a_single_round_of_the_origins(
    floods: int,
) -> None:
    proposals = ProposalQueue()
    for number in range(floods):
        proposals.accept(f"f{number}", forwarded(f"f{number}", [250_000] * 40))
    for _ in range(20):
        proposals.next_entry(1_000_000)
    proposals.accept("n9", forwarded("n9", [100]))
    origins = [view.origin for view in batches_of(make_entry(0, proposals.next_entry(1_000_000)))]
    if "n9" not in origins:  # those that are as far and came before it
        origins += [view.origin for view in batches_of(make_entry(0, proposals.next_entry(1_000_000)))]
    assert "n9" in origins[: floods + 1]


def test_origins_have_equal_shares_of_a_full_entry() -> None:
    proposals = ProposalQueue()
    sizes = {"large": [600_000] * 20, "small": [1_000] * 12_000}
    for origin, each in sizes.items():
        proposals.accept(origin, forwarded(origin, each))
    proposals.accept("dear", forwarded("dear", [10] * 1_000, weight=5))
    shares = dict.fromkeys((*sizes, "dear"), 0.0)
    for _ in range(20):
        for view in batches_of(make_entry(0, proposals.next_entry(1_000_000, 15))):
            shares[view.origin] += max((view.end - view.start) / 1_000_000, view.weight / 15)
    assert max(shares.values()) - min(shares.values()) < 1


def test_idle_origin_saves_no_share() -> None:
    proposals = ProposalQueue()
    proposals.accept("busy", forwarded("busy", [250_000] * 80))
    for _ in range(10):
        proposals.next_entry(1_000_000)
    proposals.accept("late", forwarded("late", [250_000] * 80))
    origins = [
        view.origin for _ in range(4) for view in batches_of(make_entry(0, proposals.next_entry(1_000_000)))
    ]
    assert abs(origins.count("busy") - origins.count("late")) <= 1


def waiting(origin: str, proposals: ProposalQueue, *, may_wait: bool) -> None:
    pending = PendingProposals(origin)
    pending.begin(7)
    pending.add([b"batch"], may_wait=may_wait)
    proposals.accept(origin, wire(pending, FIRST), may_wait=may_wait)


def test_batch_that_may_wait_is_due_after_a_moment() -> None:
    proposals = ProposalQueue()
    waiting("n2", proposals, may_wait=True)
    assert proposals.wait_s(10.0) == pytest.approx(COMPANY_S)
    waiting("n3", proposals, may_wait=True)
    assert proposals.wait_s(10.0 + COMPANY_S / 2) == pytest.approx(COMPANY_S / 2)
    assert proposals.wait_s(10.0 + COMPANY_S) == 0


def test_batch_that_may_wait_is_part_of_the_next_entry() -> None:
    proposals = ProposalQueue()
    waiting("n2", proposals, may_wait=True)
    assert proposals.wait_s(10.0) > 0
    waiting("n3", proposals, may_wait=False)
    assert proposals.wait_s(10.0) == 0
    assert proposed(proposals) == [("n2", 1), ("n3", 1)]
    waiting("n1", proposals, may_wait=True)
    assert proposals.wait_s(20.0) == pytest.approx(COMPANY_S)


def test_batch_without_room_in_an_entry_is_due_at_once() -> None:
    proposals = ProposalQueue()
    for origin in ("n1", "n2"):
        waiting(origin, proposals, may_wait=True)
    assert len(proposals.next_entry(bytes_max=1)) == 1
    assert proposals.wait_s(10.0) == 0


def test_new_leadership_forgets_the_wait_of_the_last() -> None:
    proposals = ProposalQueue()
    waiting("n2", proposals, may_wait=False)
    proposals.clear()
    waiting("n2", proposals, may_wait=True)
    assert proposals.wait_s(10.0) == pytest.approx(COMPANY_S)
