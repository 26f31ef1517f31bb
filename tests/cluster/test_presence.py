"""Who is at the other ends of the links."""

from __future__ import annotations

from dataclasses import replace

from memberships import configuration_of, directory_of

from cluster.configurations import Configurations
from cluster.presence import Arrivals, Presence

NOTHING_NEW = Arrivals([], [])
CLUSTER = b"c" * 16
OTHER = b"another directory"


def test_members_come_and_go_with_their_links_and_with_the_configuration() -> None:
    configurations = Configurations(replace(configuration_of("ab"), cluster=CLUSTER))
    presence = Presence(configurations)
    presence.link_began("b", directory_of("b"))
    presence.link_began("c", directory_of("c"))
    assert presence.look() == Arrivals(["b"], [])
    assert (presence.members, presence.guests) == (("b",), ("c",))
    assert presence.look() == NOTHING_NEW
    presence.link_began("b", directory_of("b"))
    assert presence.look() == Arrivals(["b"], []), "another link"
    presence.link_began("b", OTHER)
    assert presence.look() == NOTHING_NEW
    assert presence.guests == ("b", "c")


def test_a_first_configuration_that_is_taken_back_leaves_the_members_where_they_are() -> None:
    """What was noted of them is gone, so they have to be taken in again (seed 101115)."""
    named = replace(configuration_of("ab"), cluster=CLUSTER)
    configurations = Configurations(named)
    unnamed = replace(named, members=tuple(replace(each, id=None) for each in named.members), cluster=b"")
    configurations.begin(unnamed)
    presence = Presence(configurations)
    presence.link_began("b", directory_of("b"))
    assert presence.look() == Arrivals(["b"], [])
    configurations.begin(named)
    assert presence.look() == NOTHING_NEW
    configurations.begin(unnamed)
    assert presence.look() == Arrivals(["b"], [])
    assert presence.look() == NOTHING_NEW
