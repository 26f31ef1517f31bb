"""Where a node looks for the others: what the log says, and what its own file says."""

from __future__ import annotations

import pytest

from cluster.configuration import Configuration, Member, PeerAddress, Versions
from cluster.configurations import Configurations
from cluster.handshake import NO_ID
from cluster.known_members import KnownMembers

IN_LOG = {name: PeerAddress(f"{name}.log", 25672) for name in ("n1", "n2", "n3")}
IN_FILE = {"n1": IN_LOG["n1"], "n2": PeerAddress("n2.file", 25672), "n9": PeerAddress("n9.file", 25672)}


def known(*, prefers_listed: bool) -> KnownMembers:
    """The members as n1 knows them; its file has n2 elsewhere, does not know n3, and lists one that is no member."""
    members = KnownMembers("n1", Versions(8, 8), bytes(16), IN_FILE, prefers_listed=prefers_listed)
    configuration = Configuration.of(8, [Member(*place) for place in IN_LOG.items()], bytes(16))
    members.configure(NO_ID, Configurations(configuration))
    return members


def test_members_are_looked_for_where_the_log_says_and_then_where_the_file_says() -> None:
    members = known(prefers_listed=False)
    assert members.addresses == {name: IN_LOG[name] for name in ("n2", "n3")}
    assert members.places("n2") == (IN_LOG["n2"], IN_FILE["n2"])
    assert members.places("n3") == (IN_LOG["n3"],)


def test_a_listed_address_that_is_preferred_is_the_only_one() -> None:
    """Where the log says, another node may be found from here, or a process that is no node."""
    members = known(prefers_listed=True)
    assert members.addresses == {"n2": IN_FILE["n2"], "n3": IN_LOG["n3"]}
    assert members.places("n2") == (IN_FILE["n2"],)
    assert members.places("n3") == (IN_LOG["n3"],)


@pytest.mark.parametrize("prefers_listed", [False, True])
def test_who_is_only_listed_is_no_member(prefers_listed: bool) -> None:
    assert known(prefers_listed=prefers_listed).addresses.keys() == {"n2", "n3"}
