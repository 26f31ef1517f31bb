"""Pre-votes: grants and refusals, and the conditions of a campaign."""

from __future__ import annotations

import pytest

from cluster.configuration.configuration import ID_BYTES, Configuration
from cluster.configuration.history import Configurations
from cluster.raft.elections import Elections, ElectionStep, LogEnd, VoteAnswer
from cluster.raft.failure_detector import FailureDetector
from tests.cluster.configurations import configuration_of, configurations_of

FLOOR_S, CEILING_S = 0.5, 1.0


@pytest.fixture
def elections() -> Elections:
    return Elections("b", configurations_of("abcde"), FailureDetector(FLOOR_S, CEILING_S))


def test_a_round_is_won_with_a_majority_of_different_voters(elections: Elections) -> None:
    number = elections.begin_round()
    assert number is not None
    assert [elections.count_pre_vote(peer, number) for peer in "aaxa"] == [False] * 4
    assert not elections.is_won
    assert elections.count_pre_vote("c", number)
    assert elections.is_won


def test_sole_voter_needs_no_pre_votes() -> None:
    assert Elections("a", configurations_of("a"), FailureDetector(FLOOR_S, CEILING_S)).begin_round() is None


def test_answers_to_an_earlier_round_do_not_count(elections: Elections) -> None:
    first = elections.begin_round()
    assert first is not None
    elections.count_pre_vote("a", first)
    second = elections.begin_round()
    assert second is not None
    assert not elections.count_pre_vote("c", first)
    assert not elections.count_pre_vote("c", second)  # a's grant in the previous round
    elections.end_round()
    assert not elections.count_pre_vote("d", second)
    assert not elections.is_won


def test_won_pre_vote_is_lost_when_the_leader_speaks(elections: Elections) -> None:
    number = elections.begin_round()
    assert number is not None
    assert [elections.count_pre_vote(peer, number) for peer in "ac"] == [False, True]
    elections.hear_leader(1, 5.0)
    assert not elections.is_won


def test_vote_counts_once_per_campaign(elections: Elections) -> None:
    elections.campaign()
    assert [elections.count_vote(peer) for peer in "aaxbc"] == [False, False, False, False, True]
    elections.campaign()
    assert not elections.count_vote("d")


def test_a_leader_leads_until_it_is_silent_or_its_link_breaks(elections: Elections) -> None:
    assert not elections.has_heard_leader(0.0)
    elections.hear_leader(1, 5.0)
    assert elections.has_heard_leader(5.0 + FLOOR_S / 2)
    assert not elections.has_heard_leader(5.0 + FLOOR_S)
    assert not elections.leader_is_dead(5.0 + FLOOR_S)
    assert elections.leader_is_dead(5.0 + CEILING_S)
    elections.hear_leader(1, 7.0)
    elections.leader_is_lost()
    assert not elections.has_heard_leader(7.0)
    assert elections.leader_is_dead(7.0)


def test_time_until_a_new_leader_is_not_learnt_as_silence(elections: Elections) -> None:
    elections.hear_leader(1, 5.0)
    elections.hear_leader(2, 5.0 + CEILING_S)
    assert elections.patience_s == FLOOR_S
    elections.hear_leader(2, 5.0 + 2 * CEILING_S)
    assert elections.patience_s == CEILING_S


def test_the_more_complete_log_is_better(elections: Elections) -> None:
    ours = LogEnd(term=2, index=7)
    assert elections.is_better("c", LogEnd(3, 1), ours)
    assert elections.is_better("c", LogEnd(2, 8), ours)
    assert not elections.is_better("a", LogEnd(2, 6), ours)
    assert not elections.is_better("a", LogEnd(1, 9), ours)


def test_equal_candidate_with_the_smaller_name_goes_first(elections: Elections) -> None:
    end = LogEnd(2, 7)
    assert elections.is_better("c", end, end)
    elections.begin_round()
    assert not elections.is_better("c", end, end)
    assert elections.is_better("a", end, end)
    elections.end_round()
    assert elections.is_better("c", end, end)


def test_winner_or_requested_member_campaigns_once_if_it_may(elections: Elections) -> None:
    elections.is_won = True
    assert move(elections, is_promotable=False) is ElectionStep.WAIT
    assert move(elections) is ElectionStep.CAMPAIGN
    assert move(elections) is ElectionStep.PRE_VOTE
    assert move(elections, is_asked=True) is ElectionStep.CAMPAIGN
    assert move(elections, is_asked=True, is_promotable=False) is ElectionStep.WAIT


def test_stalled_member_reads_before_it_requests_votes(elections: Elections) -> None:
    elections.hear_leader(1, 5.0)
    assert move(elections, awake_s=5.0 + FLOOR_S / 2) is ElectionStep.READ
    assert move(elections, awake_s=5.0 + FLOOR_S / 2, follows=False) is ElectionStep.PRE_VOTE
    assert move(elections, awake_s=5.0 + FLOOR_S) is ElectionStep.PRE_VOTE


def test_member_under_maintenance_campaigns_only_on_request(elections: Elections) -> None:
    assert move(elections, campaigns_on_timeout=False) is ElectionStep.WAIT
    assert move(elections, campaigns_on_timeout=False, is_asked=True) is ElectionStep.CAMPAIGN


def move(
    elections: Elections,
    awake_s: float = 100.0,
    *,
    follows: bool = True,
    is_promotable: bool = True,
    campaigns_on_timeout: bool = True,
    is_asked: bool = False,
) -> ElectionStep:
    return elections.next_step(
        awake_s,
        follows=follows,
        is_promotable=is_promotable,
        campaigns_on_timeout=campaigns_on_timeout,
        is_asked=is_asked,
    )


OURS, BETTER, WORSE = LogEnd(2, 7), LogEnd(3, 1), LogEnd(1, 9)


@pytest.mark.parametrize(
    ("theirs", "may_vote", "is_later_term", "hears_leader", "expected"),
    [
        (BETTER, True, True, False, VoteAnswer(granted=True, campaigns_instead=False)),
        (BETTER, False, True, False, VoteAnswer(granted=False, campaigns_instead=False)),
        (BETTER, True, False, False, VoteAnswer(granted=False, campaigns_instead=False)),
        (BETTER, True, True, True, VoteAnswer(granted=False, campaigns_instead=False)),
        (WORSE, True, True, False, VoteAnswer(granted=False, campaigns_instead=True)),
        (WORSE, True, True, True, VoteAnswer(granted=False, campaigns_instead=False)),
    ],
)
def test_pre_vote_is_granted_to_a_better_candidate(
    elections: Elections,
    theirs: LogEnd,
    may_vote: bool,
    is_later_term: bool,
    hears_leader: bool,
    expected: VoteAnswer,
) -> None:
    answer = elections.answer_pre_vote(
        "c", theirs, OURS, may_vote=may_vote, is_later_term=is_later_term, hears_leader=hears_leader
    )
    assert answer == expected


@pytest.mark.parametrize("last_index", [1, 2])
def test_member_with_an_empty_log_leads_no_cluster(last_index: int) -> None:
    """A new member with an empty log knows its cluster only from peers: the candidate may be an emptied node."""
    members = configuration_of("abcde").members
    configurations = Configurations(Configuration.of(8, members, b"c" * ID_BYTES))
    new = Elections("b", configurations, FailureDetector(FLOOR_S, CEILING_S))
    first = LogEnd(0, 1)
    answer = new.answer_pre_vote(
        "c", LogEnd(0, last_index), first, may_vote=True, is_later_term=True, hears_leader=False
    )
    assert answer == VoteAnswer(granted=last_index > 1, campaigns_instead=False)


def test_member_that_grants_a_pre_vote_ends_its_own_round(elections: Elections) -> None:
    number = elections.begin_round()
    assert number is not None
    elections.count_pre_vote("a", number)
    elections.answer_pre_vote("c", BETTER, OURS, may_vote=True, is_later_term=True, hears_leader=False)
    assert not elections.count_pre_vote("d", number)
    assert not elections.is_won


def test_resting_member_does_not_take_precedence(elections: Elections) -> None:
    """It had requested votes, and lost its links: the only candidate with links to a majority was refused for ever."""
    end = LogEnd(2, 7)
    elections.begin_round()
    assert not elections.is_better("c", end, end)
    assert move(elections, campaigns_on_timeout=False) is ElectionStep.WAIT
    assert elections.is_better("c", end, end)
