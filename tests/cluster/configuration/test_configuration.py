"""Which steps a configuration takes, and that no sequence of them makes two majorities without a common voter."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import combinations

import hypothesis.strategies as st
import msgpack
import pytest
from hypothesis import given

from cluster.configuration.configuration import (
    CONFIGURATION,
    MEMBERS_MAX,
    NOBODY,
    REMOVED_MAX,
    Configuration,
    MalformedConfiguration,
    Member,
    MembershipRefused,
    PeerAddress,
    Versions,
    configuration_time_ms,
    fields_of,
    host_problem,
    is_configuration,
    make_configuration,
    read_configuration,
)
from cluster.configuration.history import Configurations
from cluster.configuration.quorum import majority

Step = Callable[[Configuration], Configuration]

CLUSTER = b"c" * 16
VERSIONS = Versions(7, 8)


def identity(number: int) -> bytes:
    return number.to_bytes(16)


def address(number: int) -> PeerAddress:
    return PeerAddress("10.0.0.1", number)


def member(number: int, *, is_voter: bool = True) -> Member:
    return Member(f"n{number}", address(number), identity(number), is_voter=is_voter, versions=VERSIONS)


TRIO = Configuration.of(8, [member(3), member(1), member(2)], CLUSTER)


def refused(step: Callable[[], object]) -> str:
    with pytest.raises(MembershipRefused) as info:
        step()
    return str(info.value)


# Single steps


def test_a_new_directory_joins_as_a_learner_and_is_promoted() -> None:
    joined = TRIO.joined("n4", identity(4), address(4), VERSIONS)
    assert joined.membership.learners == {"n4"}
    assert joined.membership.voters == TRIO.membership.voters
    promoted = joined.promoted("n4")
    assert promoted.membership.voters == {"n1", "n2", "n3", "n4"}
    assert promoted.promoted("n4") is promoted


def test_awaited_member_is_bound_to_the_first_directory() -> None:
    awaited = TRIO.vacated("n2", identity(2))
    assert "still awaited" in refused(lambda: awaited.promoted("n2"))
    bound = awaited.joined("n2", identity(4), address(5), VERSIONS)
    assert bound.member("n2") == Member("n2", address(5), identity(4), is_voter=False, versions=VERSIONS)
    assert "another data directory" in refused(lambda: bound.joined("n2", identity(5), address(4), VERSIONS))


def test_member_without_the_id_of_a_directory_is_refused() -> None:
    """Such a request of a peer had stopped the leader, which could not read its own configuration."""
    assert "does not name its data directory" in refused(lambda: TRIO.added("n4", address(4), b""))


def test_lost_directory_has_the_time_of_its_loss() -> None:
    lost = TRIO.vacated("n2", identity(2)).dated(TRIO, 77)
    assert [member.lost_ms for member in lost.members] == [None, 77, None]
    assert lost.dated(lost, 88) is lost, "it is lost once"
    bound = lost.joined("n2", identity(4), address(2), VERSIONS).dated(lost, 99)
    assert [member.lost_ms for member in bound.members] == [None, 77, None]
    assert read_configuration(make_configuration(5, bound)) == bound
    again = bound.vacated("n2", identity(4)).dated(bound, 111)
    assert [member.lost_ms for member in again.members] == [None, 111, None]
    assert TRIO.drained("n2", is_drained=True).dated(TRIO, 77) == TRIO.drained("n2", is_drained=True)


def test_earlier_programs_read_a_configuration_without_losses() -> None:
    _, _, rows, _ = fields_of(TRIO)
    assert {len(row) for row in rows} == {7}


def test_added_member_is_the_directory_that_answered() -> None:
    added = TRIO.added("n4", address(4), identity(4))
    assert added.member("n4") == Member("n4", address(4), identity(4), is_voter=False)
    assert added.added("n4", address(4), identity(5)) is added
    assert "another data directory" in refused(lambda: added.joined("n4", identity(5), address(4), VERSIONS))
    assert "its name cannot change" in refused(lambda: TRIO.added("n4", address(4), identity(2)))
    joined = added.joined("n4", identity(4), address(4), VERSIONS)
    assert joined.member("n4") == Member("n4", address(4), identity(4), is_voter=False, versions=VERSIONS)


def test_late_repeated_addition_brings_no_removed_member_back() -> None:
    added = TRIO.added("n4", address(4), identity(4))
    for removed in (
        added.without("n4", identity(4)),
        added.joined("n4", identity(4), address(4), VERSIONS).without("n4", identity(4)),
    ):
        assert "has been removed" in refused(partial(removed.added, "n4", address(4), identity(4)))
        again = removed.added("n4", address(4), identity(5)).member("n4")
        assert again is not None, "with an empty directory it may come"


def test_member_with_a_new_address_and_program_is_the_same() -> None:
    moved = TRIO.readdressed({"n2": address(22)}).joined("n2", identity(2), address(22), Versions(8, 9))
    assert moved.member("n2") == Member("n2", address(22), identity(2), versions=Versions(8, 9))
    assert moved.joined("n2", identity(2), address(22), Versions(8, 9)) is moved
    assert "its name cannot change" in refused(lambda: TRIO.joined("n9", identity(2), address(2), VERSIONS))


def test_removed_member_stays_removed() -> None:
    removed = TRIO.without("n2", identity(2))
    assert removed.membership.voters == {"n1", "n3"}
    assert removed.is_removed(identity(2))
    assert removed.without("n2", identity(2)) is removed
    assert "has been removed" in refused(lambda: removed.joined("n2", identity(2), address(2), VERSIONS))
    assert "there is no member 'n7'; the members are n1, n3" in refused(
        lambda: removed.without("n7", identity(7))
    )


def test_removal_never_leaves_a_single_voter() -> None:
    pair = TRIO.without("n2", identity(2))
    assert "add another one first" in refused(lambda: pair.without("n1", identity(1)))
    learner = pair.joined("n4", identity(4), address(4), VERSIONS)
    assert "add another one first" in refused(lambda: learner.without("n1", identity(1)))
    assert learner.without("n4", identity(4)).members == pair.members


def test_repeated_removal_spares_a_newer_directory_of_the_name() -> None:
    again = TRIO.without("n2", identity(2)).joined("n2", identity(22), address(2), VERSIONS)
    assert again.without("n2", identity(2)) is again
    assert "has another data directory by now" in refused(lambda: again.without("n2", identity(5)))
    four = TRIO.joined("n4", identity(4), address(4), VERSIONS)
    awaited = four.vacated("n4", identity(4))
    assert awaited.without("n4", NOBODY).without("n4", NOBODY).members == TRIO.members


def test_lost_directory_is_replaced_by_a_learner_of_the_name() -> None:
    vacated = TRIO.vacated("n2", identity(2))
    assert vacated.vacated("n2", identity(2)) is vacated
    assert vacated.vacated("n2", NOBODY) is vacated
    assert "has been removed" in refused(lambda: vacated.joined("n2", identity(2), address(2), VERSIONS))
    replaced = vacated.joined("n2", identity(22), address(2), VERSIONS)
    assert replaced.membership.voters == {"n1", "n3"}
    assert replaced.membership.learners == {"n2"}
    assert replaced.vacated("n2", identity(2)) is replaced
    alone = Configuration.of(8, [member(1)], CLUSTER)
    assert "nobody else has" in refused(lambda: alone.vacated("n1", identity(1)))


def test_directory_is_the_member_of_its_name_or_no_member() -> None:
    assert TRIO.has("n2", identity(2))
    assert not TRIO.has("n2", identity(3))
    assert not TRIO.has("n4", identity(2))
    assert not TRIO.vacated("n2", identity(2)).has("n2", identity(22)), "it is awaited, and has not joined"
    by_names = Configuration.of(7, TRIO.members)
    assert by_names.has("n2", identity(22))


def test_two_members_cannot_have_the_same_address() -> None:
    assert "is the address of member 'n1'" in refused(
        lambda: TRIO.joined("n4", identity(4), address(1), VERSIONS)
    )
    assert "at 10.0.0.1:2" in refused(lambda: TRIO.added("n2", address(9), identity(9)))
    assert "is the address of member 'n3'" in refused(lambda: TRIO.readdressed({"n2": address(3)}))
    assert "is the address of member" in refused(
        lambda: TRIO.readdressed({"n1": address(9), "n2": address(9)})
    )
    exchanged = TRIO.readdressed({"n1": address(2), "n2": address(1)})
    assert [member.address for member in exchanged.members] == [address(2), address(1), address(3)]


HOSTS = st.text() | st.from_regex(r"[a-z.:%-]{0,80}", fullmatch=True) | st.integers(0, 300).map("a".__mul__)


@pytest.mark.parametrize("host", ["", "db..example.com", "a" * 64 + ".example.com", "a b", "a\0b", "a" * 256])
def test_invalid_host_is_no_address(host: str) -> None:
    assert f"the host {host!r} of node" in refused(
        lambda: TRIO.joined("n4", identity(4), PeerAddress(host, 4), VERSIONS)
    )
    assert "of node 'n4' " in refused(lambda: TRIO.added("n4", PeerAddress(host, 4), identity(4)))


@given(HOSTS)
def test_accepted_host_can_be_resolved(host: str) -> None:
    if host_problem(host) is None:
        with suppress(socket.gaierror):
            socket.getaddrinfo(host, 1, flags=socket.AI_NUMERICHOST)


@pytest.mark.parametrize(
    "host", ["n1", "qq-0.qq.default.svc.cluster.local.", "::1", "fe80::1%eth0", "127.0.0.1"]
)
def test_valid_host_is_accepted(host: str) -> None:
    assert host_problem(host) is None


def test_a_cluster_is_no_larger_than_it_may_be() -> None:
    full = TRIO
    for number in range(4, MEMBERS_MAX + 1):
        full = full.joined(f"n{number}", identity(number), address(number), VERSIONS)
    assert "7 members at most" in refused(lambda: full.added("n8", address(8), identity(8)))
    assert len(full.vacated("n7", identity(7)).members) == MEMBERS_MAX


def test_version_is_raised_when_every_program_can_run_it() -> None:
    old = Configuration.of(7, TRIO.members)
    raised = old.raised(8, CLUSTER)
    assert (raised.version, raised.cluster) == (8, CLUSTER)
    assert raised.raised(8, b"x" * 16) is raised
    assert "'n1' runs a program for versions 7 to 8" in refused(lambda: raised.raised(9, CLUSTER))
    assert "from version 7 to 8, not to 9" in refused(lambda: old.raised(9, CLUSTER))
    awaited = old.added("n4", address(4), identity(4))
    assert "not known which versions of the state node 'n4'" in refused(lambda: awaited.raised(8, CLUSTER))


def test_program_that_cannot_run_the_version_does_not_join() -> None:
    text = refused(lambda: TRIO.joined("n4", identity(4), address(4), Versions(6, 7)))
    assert text == "the cluster runs version 8 of the state, and the program of node 'n4' can run 6 to 7"
    assert "can run 9" in refused(lambda: TRIO.joined("n2", identity(2), address(2), Versions(9, 9)))


def test_maintenance_begins_and_ends() -> None:
    drained = TRIO.drained("n2", is_drained=True)
    assert drained.drained("n2", is_drained=True) is drained
    assert drained.membership == TRIO.membership
    assert drained.drained("n2", is_drained=False) == TRIO


# All steps

numbers = st.integers(1, 9)
names = numbers.map("n{}".format)
addresses = numbers.map(address)
ids = st.integers(1, 12).map(identity)
ids_or_none = ids | st.just(NOBODY)
versions = st.sampled_from([VERSIONS, Versions(8, 9), Versions(6, 7), Versions(9, 9)])
steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(lambda *arguments: lambda c: c.joined(*arguments), names, ids, addresses, versions),
    st.builds(lambda moves: lambda c: c.readdressed(moves), st.dictionaries(names, addresses, max_size=3)),
    st.builds(lambda *arguments: lambda c: c.vacated(*arguments), names, ids_or_none),
    st.builds(lambda *arguments: lambda c: c.without(*arguments), names, ids_or_none),
    st.builds(lambda *arguments: lambda c: c.added(*arguments), names, addresses, ids),
    st.builds(lambda name: lambda c: c.promoted(name), names),
    st.builds(
        lambda name, is_drained: lambda c: c.drained(name, is_drained=is_drained), names, st.booleans()
    ),
    st.builds(lambda version: lambda c: c.raised(version, CLUSTER), st.integers(7, 11)),
)


def majorities(configuration: Configuration) -> list[frozenset[str]]:
    """Return all smallest majorities, as ids: a name may stand for two directories in turn."""
    voters = [str(member.id or member.name) for member in configuration.members if member.is_voter]
    return [frozenset(some) for some in combinations(voters, majority(len(voters)))]


@given(st.lists(steps, max_size=40))
def test_majorities_before_and_after_a_step_share_a_voter(taken: list[Step]) -> None:
    configuration = Configuration.of(7, TRIO.members)
    removed: set[bytes] = set()
    for step in taken:
        try:
            after = step(configuration)
        except MembershipRefused:
            continue
        assert step(after) is after, "a step that is repeated changes nothing"
        assert all(before & now for before in majorities(configuration) for now in majorities(after))
        assert len({member.name for member in after.members}) == len(after.members) <= MEMBERS_MAX
        assert len({member.address for member in after.members}) == len(after.members)
        known = [member.id for member in after.members if member.id]
        assert len(set(known)) == len(known)
        removed.update(member.id for member in configuration.members if member.id and member.id not in known)
        assert removed.isdisjoint(known), "an id never comes again"
        assert read_configuration(make_configuration(5, after)) == after
        configuration = after


def test_an_address_of_ipv6_is_shown_in_brackets() -> None:
    assert [str(PeerAddress(host, 7)) for host in ("h", "10.0.0.1", "::1")] == [
        "h:7",
        "10.0.0.1:7",
        "[::1]:7",
    ]


def test_only_the_last_that_were_removed_are_remembered() -> None:
    configuration = TRIO
    for number in range(100, 110 + REMOVED_MAX):
        known = configuration.member("n2")
        configuration = configuration.vacated("n2", known.id) if known and known.id else configuration
        configuration = configuration.joined("n2", identity(number), address(2), VERSIONS)
    assert len(configuration.removed) == REMOVED_MAX
    assert not configuration.is_removed(identity(2))
    assert configuration.is_removed(identity(108 + REMOVED_MAX))


def test_node_emptied_repeatedly_evicts_no_removed_member() -> None:
    configuration = TRIO.joined("n4", identity(4), address(4), VERSIONS).without("n4", identity(4))
    for number in range(100, 110 + REMOVED_MAX):
        known = configuration.member("n2")
        configuration = configuration.vacated("n2", known.id) if known and known.id else configuration
        configuration = configuration.joined("n2", identity(number), address(2), VERSIONS)
    assert len(configuration.removed) == REMOVED_MAX
    assert configuration.was_removed("n4")
    assert configuration.is_removed(identity(4))
    assert not configuration.was_removed("n2"), "it is a member"


# Entries


def test_configuration_entry_has_its_kind_and_time() -> None:
    entry = make_configuration(12345, TRIO)
    assert is_configuration(entry)
    assert entry[0] == CONFIGURATION
    assert configuration_time_ms(entry) == 12345


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b"\xc0",
        msgpack.packb([b"c", 8, [["n1"]], []]),
        msgpack.packb([b"c", 8, 5, []]),
        b"\xc1",
        b"\x94\xc0",
    ],
)
def test_unreadable_entry_is_no_configuration(tail: bytes) -> None:
    with pytest.raises(MalformedConfiguration):
        read_configuration(make_configuration(0, TRIO)[:10] + tail)


@pytest.mark.parametrize("entry", [b"", b"\xc1", b"\0" * 20, b"\xc1\x02" + b"\0" * 20])
def test_entry_of_a_different_kind_is_no_configuration(entry: bytes) -> None:
    with pytest.raises(MalformedConfiguration):
        read_configuration(entry)


# The valid configuration


def test_the_newest_in_the_log_counts_until_its_entry_is_deleted() -> None:
    four = TRIO.joined("n4", identity(4), address(4), VERSIONS)
    five = four.promoted("n4")
    configurations = Configurations(TRIO)
    configurations.appended(10, make_configuration(0, four))
    configurations.appended(12, make_configuration(0, five))
    assert (configurations.newest_index, configurations.newest) == (12, five)
    configurations.cut_from(13)
    assert configurations.newest == five
    configurations.cut_from(11)
    assert (configurations.newest_index, configurations.newest) == (10, four)
    configurations.cut_from(2)
    assert (configurations.newest_index, configurations.newest) == (0, TRIO)


def test_applied_configuration_cannot_be_deleted() -> None:
    four = TRIO.joined("n4", identity(4), address(4), VERSIONS)
    configurations = Configurations(TRIO)
    configurations.appended(10, make_configuration(0, four))
    configurations.appended(12, make_configuration(0, four.promoted("n4")))
    assert configurations.applied(10) == four
    configurations.cut_from(11)
    assert configurations.newest == four
    configurations.find(TRIO, 20, [])
    assert (configurations.newest_index, configurations.newest) == (20, TRIO)


def test_reported_configuration_counts_until_the_log_reaches_it() -> None:
    told = TRIO.readdressed({"n1": address(4)})
    no_cluster = Configurations(Configuration.of(8, TRIO.members))
    assert not no_cluster.received(9, told)
    configurations = Configurations(TRIO)
    configurations.find(TRIO, 5, [])
    assert not configurations.received(9, Configuration.of(8, TRIO.members, identity(9)))
    assert not configurations.received(5, told)
    assert configurations.latest is TRIO
    assert configurations.received(9, told)
    assert not configurations.received(8, TRIO), "it was told by one that is behind"
    assert configurations.latest is told
    assert configurations.newest is TRIO
    configurations.find(TRIO, 9, [])
    assert configurations.latest is TRIO
