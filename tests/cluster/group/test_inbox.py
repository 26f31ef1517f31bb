"""Messages of peers: each has a single receiver."""

from __future__ import annotations

from typing import get_args

from chaos.sim.workload.ledger import Ledger
from chaos.sim.world.disk import SimulatedDisk
from chaos.sim.world.network import Network, NetworkOptions
from chaos.sim.world.world import SimulatedRuntime, SimulatedWorld, WallClock
from cluster.config import GroupConfig
from cluster.configuration.configuration import PeerAddress
from cluster.group.group import Group
from cluster.raft.messages import (
    Append,
    AppendResponse,
    HeartbeatResponse,
    HigherTerm,
    Message,
    PreVote,
    PreVoteRequest,
    TimeoutNow,
    Vote,
    VoteRequest,
)

CONSENSUS = {
    Append,
    AppendResponse,
    HeartbeatResponse,
    HigherTerm,
    PreVote,
    PreVoteRequest,
    TimeoutNow,
    Vote,
    VoteRequest,
}


def _ignore(*_: object) -> None:
    """Ignore events of a group that is not started."""


def make_group() -> Group:
    world = SimulatedWorld(1)
    runtime = SimulatedRuntime(world, WallClock(world, 0), world.random("a"), _ignore, _ignore, _ignore)
    network = Network(world, ["a"], NetworkOptions(), world.random("network"))
    disk = SimulatedDisk(world.random("disk"), world.after)
    config = GroupConfig("a", {"a": PeerAddress("a", 1)}, "test")
    return Group(config, Ledger(), runtime, disk, network.attach("a", runtime))


def test_message_belongs_to_the_engine_or_to_a_single_handler() -> None:
    handlers = set(make_group().inbox._handlers)
    assert not handlers & CONSENSUS
    assert handlers | CONSENSUS == set(get_args(Message))
