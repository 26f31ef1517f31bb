"""Configurations for tests, from the names of their members."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.configuration.configuration import Configuration, Member, PeerAddress
from cluster.configuration.history import Configurations


def configuration_of(voters: Iterable[str], learners: Iterable[str] = ()) -> Configuration:
    """Return the configuration with these members; directory ids and addresses follow from the names."""
    voting = [_member(name, is_voter=True) for name in voters]
    return Configuration.of(8, [*voting, *(_member(name, is_voter=False) for name in learners)])


def configurations_of(voters: Iterable[str], learners: Iterable[str] = ()) -> Configurations:
    """Return the configurations of a log with a single configuration."""
    return Configurations(configuration_of(voters, learners))


def directory_of(name: str) -> bytes:
    """The id of the data directory of this member."""
    return name.encode().rjust(16)


def _member(name: str, *, is_voter: bool) -> Member:
    return Member(name, PeerAddress(name, 1), directory_of(name), is_voter=is_voter)
