"""The verdicts on stopping and leading, from the statuses of the members."""

from __future__ import annotations

import pytest

from cluster.configuration.quorum import Membership
from cluster.log.hardstate import VoterStatus
from cluster.membership.health import (
    FULL_BYTES,
    LAG_MAX,
    Verdict,
    may_drain,
    may_leave,
    may_stop,
    reaching_more,
    successors,
    why_cannot_lead,
    why_log_is_obsolete,
    why_no_leader,
    why_no_majority,
    why_not_all,
    why_not_lead,
    why_nothing_is_stored,
)
from cluster.raft.messages import Alarm, Status

FIT = Status(*[0] * len(Status._fields))._replace(
    last_index=10_000, voter_status=VoterStatus.VOTER, hears_leader=1, may_lead=1, misses=()
)
LEARNER = FIT._replace(voter_status=VoterStatus.LEARNER)
DEAF = FIT._replace(hears_leader=0)
LAGGING = FIT._replace(last_index=FIT.last_index - LAG_MAX - 1)
LOW = FIT._replace(alarm=Alarm.DISK, disk_free_bytes=FULL_BYTES)
FULL = LOW._replace(may_lead=0)
BRIMFUL = LOW._replace(disk_free_bytes=FULL_BYTES - 1)
MISSES_C = FIT._replace(misses=("c",))
HANGING = FIT._replace(disk_hangs=1)
DAMAGED = FIT._replace(may_lead=0)

Known = dict[str, Status | None]


def trio(a: Status | None = FIT, b: Status | None = FIT, c: Status | None = FIT) -> Known:
    return {"a": a, "b": b, "c": c}


def fail_stop(name: str, known: Known, leader: str | None = "a", drained: str = "") -> Verdict:
    return may_stop(name, leader, Membership.of_voters(known), drained, known)


@pytest.mark.parametrize(
    ("name", "known", "text"),
    [
        ("b", trio(), "b may be stopped: a, c go on"),
        ("a", trio(), "a may be stopped: b, c go on; it leads, and hands over before it stops"),
        ("b", trio(b=LEARNER), "b may be stopped: a, c go on"),
        ("b", trio(b=None), "b does not answer, as if it were stopped already; a, c go on without it"),
        ("b", trio(c=FIT._replace(last_index=FIT.last_index - LAG_MAX)), "b may be stopped: a, c go on"),
        ("b", trio(c=LOW), "b may be stopped: a, c go on"),
        ("b", trio() | {"d": None, "e": FIT}, "b may be stopped: a, c, e go on"),
    ],
)
def test_node_may_stop_if_the_rest_is_a_majority(name: str, known: Known, text: str) -> None:
    assert fail_stop(name, known) == Verdict(True, text)


@pytest.mark.parametrize(
    ("name", "known", "flaw"),
    [
        ("b", trio(c=None), "c does not answer (start it, or look at its network)"),
        ("b", trio(c=LEARNER), "c is under repair (wait until it is a voter)"),
        ("b", trio(c=FULL), "c has a full disk (make room on it)"),
        ("b", trio(c=BRIMFUL), "c has a full disk (make room on it)"),
        ("b", trio(c=HANGING), "c has a disk that does not answer (look what is wrong with it)"),
        ("b", trio(c=DEAF), "c does not hear the leader (look at the network between them)"),
        ("b", trio(c=LAGGING), "c lacks 2,001 entries of the log (wait until it has caught up)"),
        ("a", trio(c=None), "c does not answer (start it, or look at its network)"),
    ],
)
def test_node_may_not_stop_while_a_voter_is_missing(name: str, known: Known, flaw: str) -> None:
    verdict = fail_stop(name, known)
    rest = "b" if name == "a" else "a"
    assert verdict == Verdict(False, f"do not stop {name}: {rest} would be no majority of 3 voters; {flaw}")


NO_LINK = "b and c have no link (look at the network between them, and at their secrets)"


@pytest.mark.parametrize("known", [trio(b=MISSES_C), trio(c=FIT._replace(misses=("b",)))])
def test_remaining_voters_must_reach_each_other(known: Known) -> None:
    membership = Membership.of_voters(known)
    text = f"do not stop a: b would be no majority of 3 voters; {NO_LINK}"
    assert fail_stop("a", known) == Verdict(False, text)
    assert fail_stop("b", known).is_safe, "a and c go on"
    assert not may_leave("a", membership, "", known).is_safe
    assert may_drain("a", membership, "", known).text.endswith(
        f": {NO_LINK}; {NO_LINK.replace('b and c', 'c and b')}"
    )
    assert may_drain("b", membership, "", known).text == "a can serve in place of b"
    assert why_not_all("c", membership, known) is not None
    assert why_not_all("a", membership, known) is None


def test_single_voter_that_reaches_a_majority_is_enough() -> None:
    known = {"a": FIT, "b": MISSES_C, "c": FIT, "d": FIT, "e": FIT}
    assert fail_stop("a", known).text.startswith("a may be stopped: b, c, d, e go on")
    membership = Membership.of_voters(known)
    assert successors("a", membership, "", known) == ["d", "e"], "b and c would not lead all"
    assert may_drain("a", membership, "", known).text == "d, e can serve in place of a"
    alone = FIT._replace(misses=("d", "e"))
    known = {"a": FIT, "b": alone, "c": alone, "d": FIT, "e": FIT}
    assert not fail_stop("a", known).is_safe, "two and two"


def test_remaining_voter_must_be_able_to_lead() -> None:
    assert not fail_stop("a", trio(b=DAMAGED, c=DAMAGED)).is_safe
    assert fail_stop("a", trio(b=DAMAGED)).is_safe


def test_member_that_is_down_is_missed_by_all() -> None:
    known = {
        "a": FIT._replace(misses=("e",)),
        "b": FIT,
        "c": FIT._replace(misses=("e",)),
        "d": FIT,
        "e": None,
    }
    membership = Membership.of_voters(known)
    assert fail_stop("a", known).is_safe
    assert may_drain("a", membership, "", known).text == "b, c, d can serve in place of a"


def test_verdict_is_unsafe_without_a_leader() -> None:
    text = "no leader is known; b does not answer; c does not answer: start the nodes that are down"
    assert fail_stop("a", trio(b=None, c=None), leader=None) == Verdict(False, f"do not stop a: {text}")
    text = "do not stop b: no leader is known: wait until the members have elected one"
    assert fail_stop("b", trio(), leader=None) == Verdict(False, text)


def test_node_may_not_stop_if_only_drained_members_stay() -> None:
    assert fail_stop("a", trio(), drained="bc") == Verdict(
        False,
        "do not stop a: b, c would go on, but under maintenance nobody serves clients: end that first (`qq revive b`)",
    )
    assert fail_stop("a", trio(), drained="b").is_safe
    for name in "abc":
        assert "nobody serves clients" in fail_stop(name, trio(), drained="abc").text
    assert not fail_stop("a", trio(a=None), drained="bc").is_safe, "whether it is up or not"


def test_stop_of_a_single_node_is_unsafe() -> None:
    assert not fail_stop("a", {"a": FIT}).is_safe


def test_learner_is_not_counted_and_may_always_stop() -> None:
    known = trio() | {"d": FIT}
    membership = Membership(frozenset("abc"), frozenset("d"))
    assert may_stop("d", "a", membership, "", known).text == "d may be stopped: a, b, c go on"
    assert not may_stop("b", "a", membership, "", known | {"c": None}).is_safe


@pytest.mark.parametrize("status", [None, LEARNER, DEAF, LAGGING])
def test_voter_that_does_not_count_does_not_lead(status: Status | None) -> None:
    assert why_not_lead("b", trio()) is None
    reason = why_not_lead("b", trio(b=status))
    assert reason is not None
    assert reason in fail_stop("c", trio(b=status)).text


def test_member_low_on_disk_or_unknown_does_not_lead() -> None:
    assert why_not_lead("b", trio(b=LOW)) == "b is low on disk (make room on it)"
    assert why_not_lead("b", trio(b=FIT._replace(alarm=Alarm.MEMORY))) is None
    assert why_not_lead("x", trio()) is not None


@pytest.mark.parametrize(
    ("drained", "known", "names"),
    [
        ("", trio(), "bc"),
        ("b", trio(), "c"),
        ("b", trio(c=LOW), "b"),
        ("bc", trio(), "bc"),
        ("bc", trio(b=LAGGING), "c"),
        ("b", trio(b=LOW, c=DEAF), "bc"),
        ("", trio(b=FULL, c=LOW), "c"),
        ("", trio(b=DAMAGED, c=LEARNER), ""),
        ("", trio(b=None, c=FULL), ""),
    ],
)
def test_leadership_goes_to_serving_then_fit_then_able_members(
    drained: str, known: Known, names: str
) -> None:
    assert successors("a", Membership.of_voters(known), drained, known) == list(names)


def test_reason_why_a_member_cannot_lead_is_reported() -> None:
    known = trio(a=None, b=FULL, c=DAMAGED)
    assert why_cannot_lead("a", known) == "a does not answer (start it, or look at its network)"
    assert why_cannot_lead("b", known) == "b has a full disk (make room on it)"
    assert str(why_cannot_lead("c", known)).startswith("c has a damaged log (")
    assert why_cannot_lead("b", trio(b=LOW)) is None


@pytest.mark.parametrize(
    ("name", "known", "verdict"),
    [
        ("c", trio(), Verdict(True, "a, b go on without c")),
        ("c", trio(c=None), Verdict(True, "a, b go on without c")),
        (
            "c",
            trio(b=None),
            Verdict(
                False,
                "c stays a voter: a would be no majority of a, b; "
                "b does not answer (start it, or look at its network)",
            ),
        ),
        ("a", {"a": FIT}, Verdict(False, "a is the only voter: add another one first")),
        ("x", trio(), Verdict(True, "x does not vote, so all goes on without it")),
    ],
)
def test_member_may_leave_if_the_rest_keeps_a_majority(name: str, known: Known, verdict: Verdict) -> None:
    assert may_leave(name, Membership.of_voters(known), "", known) == verdict


@pytest.mark.parametrize("known", [trio(), trio(a=None)])
def test_member_may_not_go_if_only_drained_members_stay(known: Known) -> None:
    membership = Membership.of_voters(known)
    assert may_leave("a", membership, "bc", known) == Verdict(
        False,
        "a stays a voter: b, c would go on, but under maintenance nobody serves clients: end that first "
        "(`qq revive b`)",
    )
    assert may_leave("a", membership, "b", known).is_safe


@pytest.mark.parametrize(
    ("drained", "known", "verdict"),
    [
        ("", trio(), Verdict(True, "b, c can serve in place of a")),
        ("b", trio(), Verdict(True, "c can serve in place of a")),
        (
            "b",
            trio(c=FULL),
            Verdict(False, "b is under maintenance itself; c is low on disk (make room on it)"),
        ),
        ("", {"a": FIT}, Verdict(False, "it is the only voter")),
    ],
)
def test_member_may_be_drained_if_a_fit_member_can_serve(
    drained: str, known: Known, verdict: Verdict
) -> None:
    found = may_drain("a", Membership.of_voters(known), drained, known)
    assert found._replace(text=found.text.removeprefix("a goes on serving: nobody else can: ")) == verdict


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        (trio(), None),
        (trio(a=LOW, b=LOW, c=LOW), None),
        (trio(b=FULL), None),
        (trio(a=FULL), "the node's disk is full: it goes on when there is space"),
        (trio(a=FULL, b=FULL, c=FULL), "the node's disk is full: it goes on when there is space"),
        (
            trio(b=FULL, c=FULL),
            "the disks of too many nodes are full: b, c: the cluster goes on when there is space",
        ),
        (
            trio(b=FULL, c=None),
            "the disks of too many nodes are full: b, and c not heard: the cluster goes on when there is space",
        ),
        (trio(b=BRIMFUL, c=LOW), None),
        (trio(b=None, c=None), None),
    ],
)
def test_lack_of_space_is_the_reason_why_no_entry_is_stored(known: Known, reason: str | None) -> None:
    assert why_nothing_is_stored("a", Membership.of_voters(known), known) == reason


AHEAD = FIT._replace(commit_index=101, disk_bytes=1000)
"""A leader with one entry more than the 100 of the node without space; the log of the leader has 2000 bytes."""


@pytest.mark.parametrize(
    ("known", "leader", "is_obsolete"),
    [
        (trio(a=AHEAD), "a", True),
        (trio(a=AHEAD), "c", False),
        (trio(a=AHEAD), None, False),
        (trio(a=AHEAD, b=None), "a", False),
        (trio(a=AHEAD, b=LEARNER), "a", False),
        (trio(a=AHEAD, b=FULL), "a", False),
        (trio(a=AHEAD._replace(commit_index=100)), "a", False),
        (trio(a=AHEAD._replace(disk_bytes=1001)), "a", False),
        (trio(a=AHEAD, c=LEARNER), "a", True),
    ],
)
def test_log_is_obsolete_if_the_rest_holds_it_in_half_the_space(
    known: Known, leader: str | None, is_obsolete: bool
) -> None:
    why = why_log_is_obsolete("c", leader, Membership.of_voters(known), known, 2000, 100)
    assert (why is not None) == is_obsolete


@pytest.mark.parametrize(
    ("connected", "why"),
    [
        ("abc", "no leader: all members answer, and should elect one in a moment"),
        ("ab", "no leader: c does not answer; the others are a majority"),
        ("a", "no majority: b, c do not answer"),
        ("", "no majority: a, b, c do not answer"),
    ],
)
def test_silent_members_are_named_when_there_is_no_leader(connected: str, why: str) -> None:
    known = {name: FIT._replace(hears_leader=0) if name in connected else None for name in "abc"}
    assert why_no_leader(Membership.of_voters("abc"), known) == why


def test_lost_logs_and_new_directories_are_named_without_leader() -> None:
    """The node with the data said that the emptied nodes did not answer, and that starting nodes would do."""
    known = {"a": FIT._replace(hears_leader=0), "b": None, "c": None}
    voters = Membership.of_voters("abc")
    why = "no majority: b does not answer; another data directory than that of the member is up under the name c"
    assert why_no_leader(voters, known, foreign=["c"]) == why
    assert why_no_leader(voters, known, None, "the logs are lost", ["c"]) == "no majority: the logs are lost"


def test_members_with_a_leader_are_named_by_a_node_without() -> None:
    known = trio(a=FIT._replace(hears_leader=0), c=None)
    why = "no leader: this node hears none, and b hears one; c cannot be heard (look at the network between the nodes)"
    assert why_no_leader(Membership.of_voters("abc"), known) == why
    known |= {"c": FIT}
    why = "no leader: this node hears none, and b, c hear one (look at the network between the nodes)"
    assert why_no_leader(Membership.of_voters("abc"), known) == why


def of(voters: str) -> Membership:
    return Membership.of_voters(voters)


@pytest.mark.parametrize(
    ("before", "after", "known"),
    [
        ("abc", "abc", trio(b=None, c=None)),
        ("abc", "abcd", trio() | {"d": FIT}),
        ("ab", "abd", {"a": FIT, "b": FIT, "d": FIT}),
        ("a", "ab", {"a": FIT, "b": LEARNER}),
        ("abc", "ab", trio(c=None)),
        ("abcd", "abc", trio() | {"d": None}),
        ("abcd", "abcde", trio() | {"d": None, "e": FIT}),
    ],
)
def test_members_change_while_present_voters_stay_a_majority(before: str, after: str, known: Known) -> None:
    assert why_no_majority(of(before), of(after), known) is None


@pytest.mark.parametrize(
    ("before", "after", "known", "text"),
    [
        ("abc", "abcd", trio(c=None) | {"d": FIT}, "4 voters, and of these c does not answer"),
        ("abc", "abcd", trio(c=LEARNER) | {"d": FIT}, "so the rest without d would be no majority"),
        ("abc", "ab", trio(b=None), "2 voters, and of these b does not answer"),
        ("a", "ab", {"a": FIT, "b": None}, "so the rest would be no majority: start, replace or remove"),
    ],
)
def test_change_that_relies_on_the_vote_that_it_gives_is_refused(
    before: str, after: str, known: Known, text: str
) -> None:
    assert text in str(why_no_majority(of(before), of(after), known))


@pytest.mark.parametrize(
    ("known", "drained", "better"),
    [
        (trio(), "", {}),
        (trio(c=None), "", {}),
        (trio(a=FIT._replace(misses=("c",))), "", {"b": ["c"]}),
        (trio(c=FIT._replace(misses=("a",))), "", {"b": ["c"]}),
        # A peer that the leader does not hear may be alive.
        (trio(a=FIT._replace(misses=("c",)), c=None), "", {"b": ["c"]}),
        (trio(a=FIT._replace(misses=("c",)), b=FIT._replace(misses=("c",)), c=None), "", {}),
        (trio(a=FIT._replace(misses=("c",))), "b", {}),
        (trio(a=FIT._replace(misses=("c",)), b=FULL), "", {}),
        # Each reaches a member that the other does not.
        (trio(a=FIT._replace(misses=("c",)), b=FIT._replace(misses=("d",))) | {"d": FIT}, "", {}),
    ],
)
def test_member_that_reaches_more_reaches_all_of_the_leader(
    known: Known, drained: str, better: dict[str, list[str]]
) -> None:
    assert reaching_more("a", Membership.of_voters(known), drained, known) == better
