"""Changes of the members that a leader makes by itself."""

from __future__ import annotations

from contextlib import suppress

import msgpack
import pytest

from cluster.configuration.configuration import (
    Configuration,
    Member,
    MembershipRefused,
    PeerAddress,
    Versions,
)
from cluster.log.hardstate import VoterStatus
from cluster.membership.joining import Joining
from cluster.raft.messages import (
    Introduction,
    MalformedFrame,
    Status,
    Transfer,
    Vote,
    decode,
    encode,
    encode_for_release_0_1,
)
from cluster.runtime.ports import pack
from tests.cluster.configurations import configuration_of, directory_of

CLUSTER = b"c" * 16
ROUND_S = 1.0
NOBODY_HOLDS_ANYTHING: dict[str, int] = {}


def introduction(name: str, *, port: int = 1, low: int = 7, high: int = 8) -> Introduction:
    return Introduction(directory_of(name), name, port, low, high, 0)


def new_directory(name: str, number: int = 1) -> Introduction:
    """Return the introduction of a node with a new data directory."""
    return introduction(name)._replace(member_id=bytes([number]) * 16, may_join=1)


def make_joining(*, replaces_emptied: bool = True, raises_version: bool = True) -> Joining:
    return Joining(ROUND_S, 9, replaces_emptied=replaces_emptied, raises_version=raises_version)


def make_id() -> bytes:
    return CLUSTER


def taken(joining: Joining, configuration: Configuration, now_s: float = 0.0) -> Configuration:
    """The configuration after the first step of those that are due which changes anything."""
    for step in joining.due_steps(configuration, NOBODY_HOLDS_ANYTHING, 10, now_s, make_id):
        with suppress(MembershipRefused):
            after = step(configuration)
            if after is not configuration:
                return after
    return configuration


FILES = Configuration.of(7, [Member(name, PeerAddress(name, 1)) for name in ("a", "b", "c")])
"""The configuration in the files of the nodes."""
TOLD = Configuration.of(
    8,
    [Member(name, PeerAddress(name, 1), name.encode().rjust(16), versions=Versions(7, 8)) for name in "abc"],
    CLUSTER,
)
"""The same members after their introductions."""


def test_first_configuration_needs_introductions_of_all() -> None:
    joining = make_joining()
    for name in ("a", "b"):
        joining.record_introduction(name, introduction(name))
        assert taken(joining, FILES) is FILES
    joining.record_introduction("c", introduction("c"))
    assert taken(joining, FILES) == TOLD
    assert taken(joining, TOLD) is TOLD


@pytest.mark.parametrize(("low", "high"), [(7, 7), (9, 9)])
def test_old_program_of_a_member_keeps_the_version(low: int, high: int) -> None:
    joining = make_joining()
    for name in "abc":
        joining.record_introduction(name, introduction(name))
    joining.record_introduction("b", introduction("b", low=low, high=high))
    assert taken(joining, FILES) is FILES


def test_moved_member_or_new_program_is_recorded() -> None:
    joining = make_joining()
    joining.record_introduction("b", introduction("b", port=5, low=8, high=9))
    after = taken(joining, taken(joining, TOLD))
    assert after.member("b") == Member("b", PeerAddress("b", 5), b"b".rjust(16), versions=Versions(8, 9))
    assert taken(joining, after) is after


def test_no_step_is_due_when_all_members_are_as_recorded() -> None:
    joining = Joining(ROUND_S, TOLD.version, replaces_emptied=True, raises_version=True)
    for name in "abc":
        joining.record_introduction(name, introduction(name))
    assert not joining.due_steps(TOLD, NOBODY_HOLDS_ANYTHING, 10, 0.0, make_id)


def places(configuration: Configuration) -> list[tuple[str, int]]:
    return [member.address for member in configuration.members]


def test_members_that_exchange_addresses_move_in_a_single_step() -> None:
    joining = make_joining()
    for name, host in zip("abc", "bca", strict=True):
        joining.record_introduction(name, introduction(name)._replace(host=host))
    after = taken(joining, TOLD)
    assert places(after) == [("b", 1), ("c", 1), ("a", 1)]
    assert taken(joining, after) is after


def test_address_stays_with_a_member_that_has_not_moved() -> None:
    joining = make_joining()
    joining.record_introduction("a", introduction("a")._replace(host="b", low=8, high=9))
    after = taken(joining, TOLD)
    assert after.member("a") == Member("a", PeerAddress("a", 1), directory_of("a"), versions=Versions(8, 9))
    assert taken(joining, after) is after
    joining.record_introduction("b", introduction("b", port=5))
    assert places(taken(joining, after)) == [("b", 1), ("b", 5), ("c", 1)]


def test_first_configuration_has_reported_addresses_of_members() -> None:
    joining = make_joining()
    for name, host in zip("abc", "bac", strict=True):
        joining.record_introduction(name, introduction(name)._replace(host=host))
    assert places(taken(joining, FILES)) == [("b", 1), ("a", 1), ("c", 1)]


def test_foreign_directory_is_not_taken_for_the_member() -> None:
    joining = make_joining()
    for may_join, host in ((0, "b"), (1, "elsewhere")):
        other = introduction("b")._replace(member_id=b"x" * 16, may_join=may_join, host=host)
        joining.record_introduction("b", other)
        assert taken(joining, TOLD) is TOLD


def test_removed_name_comes_back_only_if_its_node_joins() -> None:
    without = TOLD.without("c", directory_of("c"))
    joining = make_joining()
    joining.record_introduction("c", new_directory("c"))
    assert taken(joining, without) is without
    joining.record_introduction("c", new_directory("c")._replace(joins=1))
    assert taken(joining, without).member("c") is not None
    added = without.added("c", PeerAddress("c", 1), b"\1" * 16)
    joining.record_introduction("c", new_directory("c"))
    after = taken(joining, added).member("c")
    assert after is not None
    assert after.id == b"\1" * 16


def test_new_directory_replaces_a_member_as_learner_if_wanted() -> None:
    joining = make_joining()
    joining.record_introduction("b", new_directory("b"))
    vacated = taken(joining, TOLD)
    assert vacated == TOLD.vacated("b", directory_of("b"))
    joined = taken(joining, vacated)
    assert joined.member("b") == Member("b", PeerAddress("b", 1), b"\1" * 16, False, Versions(7, 8))
    assert taken(joining, joined) is joined
    careful = make_joining(replaces_emptied=False)
    careful.record_introduction("b", new_directory("b"))
    assert taken(careful, TOLD) is TOLD
    assert taken(careful, vacated) == joined, "an operator has decided"


def test_a_new_directory_under_a_new_name_becomes_a_learner() -> None:
    joining = make_joining()
    joining.record_introduction("d", introduction("d"))
    assert taken(joining, TOLD) is TOLD, "it has a log of which this cluster knows nothing"
    joining.record_introduction("d", new_directory("d"))
    assert taken(joining, TOLD).membership.learners == {"d"}
    assert taken(joining, FILES) is FILES, "there is no configuration that it could be in"
    smaller = taken(joining, TOLD).without("d", b"\1" * 16)
    assert taken(joining, smaller) is smaller
    joining.record_introduction("d", new_directory("d", 2))
    joining.forget("d")
    assert taken(joining, smaller) is smaller


def test_directory_that_lost_its_promises_does_not_join_at_first() -> None:
    joining = make_joining()
    for name in "abc":
        joining.record_introduction(name, introduction(name))
    joining.record_introduction("b", new_directory("b"))
    assert taken(joining, FILES) is FILES


def test_version_is_raised_on_request_if_not_automatic() -> None:
    joining = make_joining(raises_version=False)
    for name in "abc":
        joining.record_introduction(name, introduction(name))
    assert taken(joining, FILES) is FILES
    assert joining.raise_version(FILES, make_id) == TOLD


def test_version_is_raised_when_every_member_can_run_it() -> None:
    joining = make_joining()
    configuration = TOLD
    for name in "abc":
        assert configuration.version == 8
        joining.record_introduction(name, introduction(name, low=8, high=9))
        configuration = taken(joining, configuration)
    assert taken(joining, configuration).version == 9


class Learning:
    """A learner that is given the log of a leader."""

    def __init__(self) -> None:
        self.joining = make_joining(raises_version=False)
        members = configuration_of("abc", "d").members
        self.configuration = Configuration.of(8, members, CLUSTER)

    def is_promoted(self, held: int, last_index: int, now_s: float) -> bool:
        steps = self.joining.due_steps(self.configuration, {"d": held}, last_index, now_s, make_id)
        return any("d" in step(self.configuration).membership.voters for step in steps)


def test_learner_votes_after_a_short_round() -> None:
    learning = Learning()
    assert not learning.is_promoted(5, 100, 0.0)
    assert not learning.is_promoted(99, 150, 0.9)
    assert learning.is_promoted(100, 200, 1.0)


def test_long_round_is_followed_by_a_further_round() -> None:
    learning = Learning()
    assert not learning.is_promoted(5, 100, 0.0)
    assert not learning.is_promoted(100, 200, 1.1)
    assert not learning.is_promoted(199, 300, 1.2)
    assert learning.is_promoted(200, 300, 2.1)


def test_unknown_or_reconnected_learner_begins_again() -> None:
    learning = Learning()
    assert not learning.is_promoted(0, 100, 0.0)
    assert not learning.is_promoted(100, 100, 5.0)
    learning.joining.record_introduction("d", introduction("d"))
    assert not learning.is_promoted(100, 100, 5.5)


@pytest.mark.parametrize(
    "fields",
    [
        (b"short", "h", 1, 7, 8, 0),
        (b"i" * 16, 5, 1, 7, 8, 0),
        (b"i" * 16, "h", "x", 7, 8, 0),
        (b"i" * 16, "h", 1, 7, 8),
        (b"i" * 16,),
    ],
)
def test_malformed_introduction_is_a_malformed_frame(fields: tuple[object, ...]) -> None:
    kind = bytes(encode(introduction("n1"))[0])
    with pytest.raises(MalformedFrame):
        decode(kind + pack(fields))


def test_introduction_survives_encoding() -> None:
    expected = introduction("n1", port=5680)
    assert decode(b"".join(encode(expected))) == expected


def test_node_of_release_0_1_is_sent_known_fields_only() -> None:
    status = Status(*range(15))._replace(voter_status=VoterStatus.VOTER, hears_leader=1)
    assert encode_for_release_0_1(expected := introduction("n1")) == []
    assert encode_for_release_0_1(Transfer(5, "n1")) == []
    [kind, fields] = encode_for_release_0_1(status)
    assert msgpack.unpackb(fields) == list(status[:14])
    assert decode(bytes(kind) + bytes(fields)) == status
    assert encode_for_release_0_1(Vote(7)) == encode(Vote(7))
    assert decode(b"".join(encode(expected))) == expected
