"""The machine goes by the version that the log has agreed on, wherever its state comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from chaos.sim.workload.ledger import Ledger
from cluster.configuration.configuration import (
    Configuration,
    Member,
    OtherVersion,
    PeerAddress,
    make_configuration,
)
from cluster.log.entry import make_batch, make_entry
from cluster.raft.proposals import PendingProposals
from cluster.state.apply import Applier
from cluster.state.group_state import GroupState

LOW, HIGH = Ledger.versions


class Told(Ledger):
    """Notes at which version it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.version = LOW
        self.calls: list[tuple[str, int]] = []

    def raise_to(self, version: int) -> None:
        self.version = version

    def apply_batch(self, *batch: Any) -> Sequence[Any]:
        self.calls.append(("batch", self.version))
        return super().apply_batch(*batch)

    def end_entry(self, time_ms: int) -> Sequence[Any]:
        self.calls.append(("end", self.version))
        return super().end_entry(time_ms)

    def origin_down(self, origin: str, time_ms: int, *, evicted: bool) -> Sequence[Any]:
        self.calls.append(("down", self.version))
        return super().origin_down(origin, time_ms, evicted=evicted)


def entry_of(name: str, sequence: int) -> bytes:
    return make_entry(1, [make_batch(name, 1, sequence, [b"a message"])])


def configuration(version: int) -> bytes:
    members = [Member("n1", PeerAddress("host", 1), b"1" * 16, is_voter=True)]
    return make_configuration(2, Configuration.of(version, members, cluster=b"c" * 16))


@pytest.fixture
def state() -> GroupState:
    return GroupState(Told())


def machine_of(state: GroupState) -> Told:
    assert isinstance(state.machine, Told)
    return state.machine


def test_version_applies_to_the_entries_behind_its_entry(state: GroupState) -> None:
    applying = Applier(state, PendingProposals("n9"))
    applying.apply_entry(2, entry_of("n1", 1))
    applying.apply_entry(3, entry_of("n2", 1))
    applying.apply_configuration(configuration(HIGH))  # n2 is no member by it, and is given up
    applying.apply_entry(5, entry_of("n1", 2))
    assert machine_of(state).calls == [
        *[("batch", LOW), ("end", LOW)] * 2,
        *[("down", LOW), ("end", LOW)],
        *[("batch", HIGH), ("end", HIGH)],
    ]


def test_loaded_state_has_its_version(state: GroupState) -> None:
    before = state.freeze().dump()
    Applier(state, PendingProposals("n9")).apply_configuration(configuration(HIGH))
    other = GroupState(Told())
    other.load(before)
    assert machine_of(other).version == LOW
    other.load(state.freeze().dump())
    assert machine_of(other).version == HIGH


def test_version_that_the_program_cannot_run_is_refused(state: GroupState) -> None:
    with pytest.raises(OtherVersion, match=f"at version {HIGH + 1} of the state, and this program can run"):
        Applier(state, PendingProposals("n9")).apply_configuration(configuration(HIGH + 1))
    with pytest.raises(OtherVersion):
        GroupState(Told()).load(state.freeze().dump())


def test_entries_of_an_earlier_version_are_not_taken_for_ours(
    state: GroupState,
) -> None:
    """The first configuration has the version at the begin of the log, and a checkpoint need not exist."""
    applying = Applier(state, PendingProposals("n9"))
    applying.apply_entry(2, entry_of("n1", 1))
    with pytest.raises(OtherVersion, match=f"at version {LOW - 1} of the state, and this program can run"):
        applying.apply_configuration(configuration(LOW))
