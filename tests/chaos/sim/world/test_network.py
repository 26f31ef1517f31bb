"""Links between simulated nodes: dials, addresses and results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.sim.world.network import Network, NetworkOptions, SimulatedLinks, address_of
from chaos.sim.world.world import SimulatedRuntime, SimulatedWorld, WallClock
from cluster.configuration.configuration import Configuration, Member, PeerAddress
from cluster.configuration.history import Configurations
from cluster.transport import admission

CLUSTER = b"the first cluster"[:16]
BEAT_S = 0.1
GIVEN_UP_S = 8.0
"""Longer than it takes a simulated TCP to give a connection up, and both sides to dial again."""


class Node:
    """A process that says something every now and then, as a group does. It is the `LinkEvents` of its links."""

    links: SimulatedLinks

    def __init__(self, name: str, net: Net) -> None:
        self.name = name
        self.runtime: SimulatedRuntime | None = None
        self.events: list[tuple[str, str]] = []
        self._net = net

    def start(
        self,
        configuration: Configuration,
        *,
        addresses: Sequence[PeerAddress] = (),
        seeds: Sequence[PeerAddress] = (),
    ) -> None:
        world = self._net.world
        random = world.random(self.name)
        runtime = SimulatedRuntime(world, WallClock(world, 0), random, _ignore, self._net.fail, _ignore)
        self.runtime = runtime
        self.links = self._net.network.attach(self.name, runtime, addresses=addresses, seeds=seeds)
        self.configure(configuration)
        self.links.register(0, self)
        self._tick(runtime)

    def configure(self, configuration: Configuration) -> None:
        self.links.configure(id_of(self.name), Configurations(configuration))

    def end(self, *, power_loss: bool = False) -> None:
        if self.runtime is not None:
            self.runtime.alive = False
            self.runtime = None
            self._net.network.process_ended(self.name, power_loss=power_loss)

    def _tick(self, runtime: SimulatedRuntime) -> None:
        for peer in sorted(self.links.current):
            self.links.send(peer, 0, [b"beat"])
        runtime.call_later(BEAT_S, partial(self._tick, runtime))

    def was_reported(self, kind: str, peer: str) -> bool:
        return (kind, peer) in self.events

    def count(self, kind: str) -> int:
        return [event for event, _ in self.events].count(kind)

    def peer_connected(self, peer: str) -> None:
        self._record("connected", peer)

    def peer_lost(self, peer: str, *, dead: bool) -> None:
        self._record("dead" if dead else "lost", peer)

    def peer_drained(self, peer: str) -> None: ...

    def part_received(self, peer: str) -> None: ...

    def frame_received(self, peer: str, frame: bytes) -> None: ...

    def _record(self, kind: str, peer: str) -> None:
        self.events.append((kind, peer))


class Net:
    """Some nodes in a world."""

    def __init__(self, names: str, seed: int = 1, options: NetworkOptions | None = None) -> None:
        self.world = SimulatedWorld(seed)
        self.network = Network(self.world, names, options or NetworkOptions(), self.world.random("network"))
        self.nodes = [Node(name, self) for name in names]

    def fail(self, error: BaseException) -> None:
        raise AssertionError from error

    def pass_s(self, time_s: float) -> None:
        self.world.run_until(self.world.now_s + time_s)


def id_of(name: str) -> bytes:
    return name.encode() * 16


def members(names: str, cluster: bytes = b"", moved: Sequence[tuple[str, PeerAddress]] = ()) -> Configuration:
    addresses = {name: address_of(name) for name in names} | dict(moved)
    return Configuration.of(7, [Member(name, address) for name, address in addresses.items()], cluster)


def are_linked(one: Node, other: Node) -> bool:
    """Whether both ends have the same connection, and no other."""
    connection = one.links.current.get(other.name)
    return connection is not None and connection is other.links.current.get(one.name)


def _ignore() -> None: ...


# A single connection.

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["reset", "cut", "cut one way", "freeze", "kill", "pull the plug", "wait"]),
        st.integers(0, 1),
        st.floats(0.0, 4.0),
    ),
    max_size=6,
)


@given(
    seed=st.integers(0, 2**32),
    first=st.integers(0, 1),
    apart_s=st.floats(0.0, 4.0),
    redial_s=st.floats(0.001, 0.5),
    delay_max_s=st.floats(0.001, 0.3),
    steps=STEPS,
)
def test_two_nodes_keep_a_single_connection(
    seed: int,
    first: int,
    apart_s: float,
    redial_s: float,
    delay_max_s: float,
    steps: list[tuple[str, int, float]],
) -> None:
    """In any order of dials, after any events."""
    net = Net("ab", seed, NetworkOptions(redial_s=redial_s, delay_max_s=delay_max_s))
    configuration = members("ab", CLUSTER)
    net.nodes[first].start(configuration)
    net.pass_s(apart_s)
    net.nodes[1 - first].start(configuration)
    for kind, which, time_s in steps:
        disturb(net, kind, which, time_s)
    net.pass_s(2 * GIVEN_UP_S)
    one, other = net.nodes
    assert are_linked(one, other)
    connection = one.links.current["b"]
    happened = [len(node.events) for node in net.nodes]
    net.pass_s(10.0)
    assert one.links.current["b"] is connection
    assert are_linked(one, other)
    assert [len(node.events) for node in net.nodes] == happened


def disturb(net: Net, kind: str, which: int, time_s: float) -> None:
    node, peer = net.nodes[which], net.nodes[1 - which]
    runtime = node.runtime
    assert runtime is not None
    match kind:
        case "reset":
            net.network.reset(node.name, peer.name)
            net.pass_s(time_s)
        case "cut" | "cut one way":
            cuts = [(node.name, peer.name), (peer.name, node.name)][: 1 if kind == "cut one way" else 2]
            for cut in cuts:
                net.network.cut(*cut)
            net.pass_s(time_s)
            for cut in cuts:
                net.network.heal(*cut)
        case "freeze":
            runtime.pause()
            net.pass_s(time_s)
            runtime.go_on()
        case "kill" | "pull the plug":
            node.end(power_loss=kind == "pull the plug")
            net.pass_s(time_s)
            net.network.host_has_power(node.name)
            node.start(members("ab", CLUSTER))
        case _:
            net.pass_s(time_s)


def test_simultaneous_dials_do_not_displace_connections_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "_PATIENCE_S", 0.0)
    for seed in range(200):
        # A handshake takes as long as the pause between two attempts.
        net = Net("ab", seed, NetworkOptions(redial_s=0.1, delay_max_s=0.3))
        for node in net.nodes:
            node.start(members("ab", CLUSTER))
        net.pass_s(10.0)
        one, other = net.nodes
        assert are_linked(one, other)
        assert all(1 <= node.count("connected") <= 2 for node in net.nodes), seed


@pytest.mark.parametrize("unheard", [0, 1])
def test_only_node_with_the_right_address_dials(unheard: int) -> None:
    net = Net("ab")
    known, unknown = net.nodes[1 - unheard], net.nodes[unheard]
    elsewhere = [(unknown.name, PeerAddress("nowhere", 1))]
    known.start(members("ab", CLUSTER, elsewhere))
    unknown.start(members("ab", CLUSTER, elsewhere))
    net.pass_s(5.0)
    assert are_linked(known, unknown)


def test_larger_name_waits_for_the_smaller_name_to_dial() -> None:
    dialled: list[str] = []

    class Noting(Network):
        def _agree(self, dialler: SimulatedLinks, acceptor: SimulatedLinks) -> bool:
            dialled.append(dialler.name)
            return super()._agree(dialler, acceptor)

    net = Net("ab")
    net.network = Noting(net.world, "ab", NetworkOptions(), net.world.random("network"))
    for node in reversed(net.nodes):
        node.start(members("ab"))
    net.pass_s(5.0)
    assert dialled == ["a"]


# Addresses.


def test_moved_node_is_found_by_its_dials_or_the_configuration() -> None:
    for moving, staying in ((0, 1), (1, 0)):
        net = Net("ab")
        configuration, new_home = members("ab", CLUSTER), PeerAddress("elsewhere", 7)
        moved, other = net.nodes[moving], net.nodes[staying]
        for node in net.nodes:
            node.start(configuration)
        net.pass_s(2.0)
        moved.end()
        net.pass_s(1.0)
        assert other.was_reported("dead", moved.name)
        moved.start(configuration, addresses=[new_home])
        net.pass_s(5.0)
        assert are_linked(moved, other)
        for node in net.nodes:
            node.configure(members("ab", CLUSTER, [(moved.name, new_home)]))
        net.network.reset("a", "b")
        net.pass_s(5.0)
        assert are_linked(moved, other)


def test_wrong_node_at_a_dialled_address_gets_no_link() -> None:
    net = Net("abc")
    net.nodes[0].start(members("ab", CLUSTER))
    net.nodes[2].start(members("c", CLUSTER), addresses=[address_of("b")])
    net.pass_s(5.0)
    assert net.nodes[0].links.current == {}
    assert net.nodes[0].events == []


# Admission.


def test_unknown_node_is_linked_as_a_nonmember() -> None:
    net = Net("abx")
    a, b, x = net.nodes
    for node in (a, b):
        node.start(members("ab", CLUSTER))
    x.start(members("abx"))
    net.pass_s(5.0)
    assert are_linked(a, x)
    assert are_linked(b, x)
    assert a.links.peer_id("x") == id_of("x")
    x.end()
    net.pass_s(GIVEN_UP_S)
    for node in (a, b):
        assert [event for event in node.events if event[1] == "x"] == [("connected", "x"), ("lost", "x")]


def test_nodes_without_a_log_link_only_to_nodes_in_their_list() -> None:
    net = Net("abx")
    a, b, x = net.nodes
    for node in (a, b):
        node.start(members("ab"))
    x.start(members("abx"))
    net.pass_s(5.0)
    assert are_linked(a, b)
    assert x.links.current == {}


def test_nodes_of_two_clusters_have_no_link() -> None:
    net = Net("ab")
    net.nodes[0].start(members("ab", CLUSTER))
    net.nodes[1].start(members("ab", b"the other cluster"[:16]))
    net.pass_s(5.0)
    assert net.nodes[0].links.current == {}


def test_removed_member_keeps_its_link_and_is_not_redialled() -> None:
    net = Net("ab")
    a, b = net.nodes
    for node in net.nodes:
        node.start(members("ab", CLUSTER))
    net.pass_s(2.0)
    for node in net.nodes:
        node.configure(members(node.name, CLUSTER))
    net.pass_s(2.0)
    assert are_linked(a, b)
    net.network.reset("a", "b")
    net.pass_s(GIVEN_UP_S)
    assert a.links.current == b.links.current == {}
    assert a.events == [("connected", "b"), ("lost", "b")]


# Seeds.


def test_node_without_known_members_finds_the_cluster_by_a_seed() -> None:
    net = Net("ab")
    for node in net.nodes:
        node.start(members("ab", CLUSTER))
    net.pass_s(2.0)
    x = Node("x", net)
    x.start(members("x"), seeds=[PeerAddress("nowhere", 1), address_of("x"), address_of("b")])
    net.pass_s(2.0)
    assert are_linked(net.nodes[1], x)
    assert list(x.links.current) == ["b"]
    net.network.reset("b", "x")
    net.pass_s(3.0)
    assert are_linked(net.nodes[1], x)
    for node in (*net.nodes, x):
        node.configure(members("abx", CLUSTER))
    net.pass_s(3.0)
    assert all(are_linked(x, node) for node in net.nodes)


@pytest.mark.parametrize(("known", "is_linked"), [("ac", False), ("a", True)])
def test_node_that_knows_members_does_not_dial_seeds(known: str, is_linked: bool) -> None:
    """A node that knows no further member may have been removed before it had any of the log."""
    net = Net("ab")
    net.nodes[1].start(members("b", CLUSTER))
    net.nodes[0].start(members(known, CLUSTER), seeds=[address_of("b")])
    net.pass_s(5.0)
    assert are_linked(*net.nodes) == is_linked
