"""The addresses of peers: from the log, and from the node's own file."""

from __future__ import annotations

import pytest

from cluster.configuration.configuration import (
    Configuration,
    Member,
    PeerAddress,
    Versions,
    make_configuration,
)
from cluster.configuration.history import Configurations
from cluster.transport.admission import Link, PeerAdmission
from cluster.transport.handshake import (
    NO_ID,
    UNNAMED,
    AlreadyLinkedError,
    OtherDirectoryError,
    SecondProcessError,
    Terms,
)

IN_LOG = {name: PeerAddress(f"{name}.log", 25672) for name in ("n1", "n2", "n3")}
IN_FILE = {"n1": IN_LOG["n1"], "n2": PeerAddress("n2.file", 25672), "n9": PeerAddress("n9.file", 25672)}


def known(*, prefers_listed: bool) -> PeerAdmission:
    """The members that n1 knows; its file has a different address of n2, lacks n3, and lists a non-member."""
    members = PeerAdmission("n1", Versions(8, 8), bytes(16), IN_FILE, prefers_listed=prefers_listed)
    configuration = Configuration.of(8, [Member(*place) for place in IN_LOG.items()], bytes(16))
    members.configure(NO_ID, Configurations(configuration), {})
    return members


def test_members_are_dialled_by_the_log_and_then_by_the_file() -> None:
    members = known(prefers_listed=False)
    assert members.addresses == {name: IN_LOG[name] for name in ("n2", "n3")}
    assert members.possible_addresses("n2") == (IN_LOG["n2"], IN_FILE["n2"])
    assert members.possible_addresses("n3") == (IN_LOG["n3"],)


def test_preferred_listed_address_is_the_only_address() -> None:
    """At the address in the log there may be a different node, or a foreign process."""
    members = known(prefers_listed=True)
    assert members.addresses == {"n2": IN_FILE["n2"], "n3": IN_LOG["n3"]}
    assert members.possible_addresses("n2") == (IN_FILE["n2"],)
    assert members.possible_addresses("n3") == (IN_LOG["n3"],)


def test_future_member_is_dialled_where_members_are() -> None:
    reported = PeerAddress("n9.said", 25672)
    assert known(prefers_listed=False).dial_address("n9", reported) == reported
    assert known(prefers_listed=True).dial_address("n9", reported) == IN_FILE["n9"]
    assert known(prefers_listed=True).dial_address("n8", reported) == reported


def test_members_unknown_to_the_log_are_dialled_as_reported() -> None:
    """A reported member may lead without knowing this node (simulated: an addition that was lost with a leader)."""
    members = PeerAdmission("n1", Versions(8, 8), bytes(16), IN_FILE)
    before = Configuration.of(8, [Member(*place) for place in IN_LOG.items()], b"cluster")
    held = Configurations(before)
    held.set_cluster(b"cluster")
    members.configure(NO_ID, held, {})
    elsewhere = PeerAddress("seed", 1)
    assert members.seeds([elsewhere]) == ()
    new = PeerAddress("n5.log", 25672)
    assert held.received(9, Configuration.of(8, [*before.members, Member("n5", new)], b"cluster"))
    members.configure(NO_ID, held, {})
    assert members.seeds([elsewhere]) == (new,)
    assert "n5" not in members.addresses


@pytest.mark.parametrize("prefers_listed", [False, True])
def test_node_in_the_file_only_is_no_member(prefers_listed: bool) -> None:
    assert known(prefers_listed=prefers_listed).addresses.keys() == {"n2", "n3"}


@pytest.mark.parametrize("was_member", [False, True])
def test_former_member_without_the_cluster_id_is_admitted(was_member: bool) -> None:
    """It was removed before it learned the cluster's id, and no other node could report it (simulated: four voters)."""
    removed = bytes([1]) * 16
    members = PeerAdmission("n1", Versions(8, 8), bytes(16), {})
    named = [Member(name, place, name.encode()) for name, place in IN_LOG.items()]
    configuration = Configuration.of(8, named, b"cluster")
    if was_member:
        known_once = [*named, Member("n4", PeerAddress("n4", 1), removed)]
        configuration = Configuration.of(8, known_once, b"cluster").without("n4", removed)
    members.configure(b"n1", Configurations(configuration), {})
    terms = Terms.of(IN_LOG, 8, bytes(16), cluster=UNNAMED, member=removed)
    assert (members.why_rejected("n4", terms, None, dialled_here=False) is None) == was_member


@pytest.mark.parametrize("cluster_id", [b"c" * 16, b"d" * 16, UNNAMED, NO_ID])
def test_node_with_the_configuration_of_a_cluster_is_admitted(cluster_id: bytes) -> None:
    """The leader had reported a committed configuration to a node with an empty log, and was lost (simulated)."""
    held = Configurations(Configuration.of(8, [Member(*place) for place in IN_LOG.items()]))
    members = PeerAdmission("n1", Versions(8, 8), bytes(16), {})
    held.has_past = True
    members.configure(b"1" * 16, held, {})
    first = Configuration.of(
        8, [Member(name, place, name.encode() * 8) for name, place in IN_LOG.items()], b"c" * 16
    )
    held.appended(2, make_configuration(0, first))
    members.configure(b"1" * 16, held, {})
    assert members.terms.cluster == UNNAMED, "it is not known to be committed"
    members.learn_cluster(Terms.of(IN_LOG, 8, bytes(16), cluster=cluster_id, member=b"2" * 16))
    members.configure(b"1" * 16, held, {})
    assert members.terms.cluster == (b"c" * 16 if cluster_id == b"c" * 16 else UNNAMED)


@pytest.mark.parametrize("is_reported", [True, False])
def test_earlier_links_end_when_a_node_reports_the_cluster(is_reported: bool) -> None:
    """A directory as new as this one may have joined a different cluster meanwhile."""
    held = Configurations(Configuration.of(8, [Member(*place) for place in IN_LOG.items()]))
    members = PeerAdmission("n1", Versions(8, 8), bytes(16), {})
    held.has_past = True
    first = Configuration.of(
        8, [Member(name, place, name.encode() * 8) for name, place in IN_LOG.items()], b"c" * 16
    )
    held.appended(2, make_configuration(0, first))
    members.configure(b"1" * 16, held, {})
    if is_reported:
        members.learn_cluster(Terms.of(IN_LOG, 8, bytes(16), cluster=b"c" * 16, member=b"n2" * 8))
    held.applied(2)
    before = {
        name: Terms.of(IN_LOG, 8, bytes(16), cluster=UNNAMED, member=member)
        for name, member in {"n2": b"n2" * 8, "n3": b"z" * 16}.items()
    }
    assert members.configure(b"1" * 16, held, before) == ["n3"]


def test_node_without_members_does_not_refuse_a_non_member() -> None:
    members = PeerAdmission("n1", Versions(8, 8), bytes(16), {})
    held = Configurations(Configuration.of(8, [Member(*place) for place in IN_LOG.items()]))
    held.set_cluster(b"c" * 16)
    members.configure(b"1" * 16, held, {})
    terms = Terms.of(IN_LOG, 8, bytes(16), cluster=UNNAMED, member=b"2" * 16)
    refused = members.why_rejected("n2", terms, None, dialled_here=True)
    assert "start it with an empty one" not in str(refused)
    assert "does not know yet whether its log is of this cluster" in str(refused)


def test_node_without_known_members_searches_its_cluster() -> None:
    """It was told, restarted before it had any of the log, and was removed meanwhile."""
    members = PeerAdmission("n4", Versions(8, 8), bytes(16), {})
    held = Configurations(Configuration.of(8, [Member("n4", PeerAddress("n4", 1), is_voter=False)]))
    held.set_cluster(b"cluster")
    members.configure(b"n4", held, {})
    assert members.terms.is_named
    assert members.seeks_members


def test_equally_new_node_must_reconnect_after_joining() -> None:
    """Two that were linked as long as both were new may join two clusters: then each would hear the other's leader."""
    members = PeerAdmission("n1", Versions(8, 8), bytes(16), {})
    new = Configurations(Configuration.of(8, []))
    ids = {name: bytes([number]) * 16 for number, name in enumerate([*IN_LOG, "guest"])}
    linked = {name: Terms.of([name], 8, bytes(16), member=member_id) for name, member_id in ids.items()}
    assert members.configure(ids["n1"], new, {}) == []
    joined = Configuration.of(8, [Member(*place, ids[place[0]]) for place in IN_LOG.items()], b"cluster")
    assert members.configure(ids["n1"], Configurations(joined), linked) == ["guest"]
    # A guest that comes later has been told which cluster this is, and may wait for as long as it takes.
    assert members.configure(ids["n1"], Configurations(joined), linked) == []


@pytest.mark.parametrize(("silent_s", "is_kept"), [(1.3, True), (2.5, False)])
def test_non_member_with_a_late_status_keeps_its_connection(silent_s: float, is_kept: bool) -> None:
    """It sends no further messages, so a node waiting for its addition reconnected it each second."""
    members = PeerAdmission("n1", Versions(8, 8), bytes(16), {})
    configuration = Configuration.of(8, [Member(*place, place[0].encode()) for place in IN_LOG.items()], b"c")
    members.configure(b"n1", Configurations(configuration), {})
    non_member = Terms.of(["n4"], 8, b"p" * 16, member=b"n4")
    again = members.why_rejected(
        "n4", non_member, Link(non_member.process, non_member.member, silent_s), dialled_here=False
    )
    assert isinstance(again, AlreadyLinkedError) == is_kept


REAL, OTHER, THIRD = (bytes([number]) * 16 for number in range(3))


@pytest.mark.parametrize("dialled_here", [False, True])
@pytest.mark.parametrize(
    ("linked", "comes", "silent_s", "refusal"),
    [
        (OTHER, REAL, 0.0, None),
        (REAL, OTHER, 0.0, OtherDirectoryError),
        (REAL, OTHER, 3.0, None),
        (REAL, REAL, 0.0, SecondProcessError),
        (OTHER, THIRD, 0.0, SecondProcessError),
        (OTHER, REAL, 3.0, None),
    ],
)
def test_member_directory_wins_over_a_process_of_its_name(
    linked: bytes, comes: bytes, silent_s: float, dialled_here: bool, refusal: type[Exception] | None
) -> None:
    """The real n3 was kept out for as long as a process with an empty directory had its name."""
    members = PeerAdmission("n1", Versions(8, 8), b"1" * 16, {})
    ids = {"n1": b"n1" * 8, "n2": b"n2" * 8, "n3": REAL}
    configuration = Configuration.of(
        8, [Member(name, place, ids[name]) for name, place in IN_LOG.items()], b"c" * 16
    )
    members.configure(ids["n1"], Configurations(configuration), {})
    terms = Terms.of(["n3"], 8, b"p" * 16, cluster=b"c" * 16, member=comes)
    judged = members.why_rejected("n3", terms, Link(b"q" * 16, linked, silent_s), dialled_here=dialled_here)
    if dialled_here and refusal is SecondProcessError:
        refusal = None  # as before: this node has dialled the address that the log has
    assert (type(judged) if judged else None) is refusal


def test_member_directory_is_the_latest_that_a_peer_reported() -> None:
    """This node was away while n3 got a new directory: the former directory must not exclude the new one."""
    members = PeerAdmission("n1", Versions(8, 8), b"1" * 16, {})
    old = Configuration.of(8, [Member("n3", IN_LOG["n3"], REAL)], b"c" * 16)
    held = Configurations(old)
    held.set_cluster(b"c" * 16)
    members.configure(b"n1" * 8, held, {})
    assert members.is_another_directory("n3", OTHER)
    assert held.received(9, Configuration.of(8, [Member("n3", IN_LOG["n3"], OTHER)], b"c" * 16))
    assert members.is_another_directory("n3", REAL)
    assert not members.is_another_directory("n3", OTHER)
