"""Each fault can be carried out and repaired, and loses no confirmed message."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from itertools import permutations
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any, cast

import pytest

from chaos.live import nemesis, releases
from chaos.live.cluster import SPARES, LiveCluster, LiveClusterError
from chaos.live.faulty_node import Faults
from chaos.live.nemesis import ALL, CLIENTS, GROUPS, NAMES, NODES, UPGRADE, Harm, NemesisError
from tests.chaos.live.clients import Publisher, taken
from tests.harness.long_cases import cases

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path

pytestmark = [pytest.mark.xdist_group("live"), pytest.mark.timeout(120)]

DURATION_S = 0.1
ALWAYS_TRIED = {"kill_leader", "partition_one_way", "bit_flip", "replace"}
"""A fault of each group."""


class History:
    def __init__(self) -> None:
        self.rows: list[tuple[str, str, Sequence[str], str]] = []

    def record(self, kind: str, fault: str, nodes: Sequence[str], detail: str) -> None:
        self.rows.append((kind, fault, nodes, detail))


@pytest.fixture(scope="module")
def publisher(runner: asyncio.Runner, cluster: LiveCluster) -> Generator[Publisher]:
    """Publishes while the faults come and go; in the end all that was confirmed is there, and so are all members."""
    members = cluster.names
    runner.run(cluster.wait_caught_up())
    with Publisher(list(cluster.endpoints.values()), "numbers") as publisher:
        yield publisher
    runner.run(nemesis.heal(cluster))
    runner.run(restored(cluster, members))
    found = {body.rstrip() for body in taken(cluster.direct[cluster.names[0]], "numbers")}
    assert publisher.confirmed - found == set()


async def restored(cluster: LiveCluster, members: Sequence[str]) -> None:
    """Restore these members for the next test."""
    for name in members:
        if name not in cluster.names:
            await cluster.join(name)
    for name in cluster.names:
        if name not in members:
            await cluster.remove(name)
    await cluster.wait_caught_up()


KILLS = ("kill_leader", "kill_follower", "kill_random", "kill_all")
DEEDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(KILLS, ("kill", "start")),
    "pause": ("freeze", "thaw"),
    **dict.fromkeys(("restart", "rolling_restart"), ("stop", "start")),
    **dict.fromkeys(("clock_jump", "disk_full", "slow_fsync"), ("set_faults",)),
    "power_loss": ("set_faults", "kill", "lose_power", "start"),
    "bit_flip": ("kill", "start"),
    "wipe": ("kill", "wipe", "start"),
    "rotate_secret": ("write_secrets", "stop", "start"),
}
"""Actions on each affected node; network faults are toxics, and membership faults change the members."""


@pytest.fixture
def deeds(cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Actions of a fault, with the affected node or link."""
    done: set[tuple[str, str]] = set()

    def watch(deed: str, names: Callable[[Any], Sequence[str]]) -> None:
        do = getattr(cluster, deed)

        def watched(subject: Any, *arguments: Any, **options: Any) -> Any:
            done.update((deed, name) for name in names(subject))
            return do(subject, *arguments, **options)

        monkeypatch.setattr(cluster, deed, watched)

    for deed in {deed for deeds in DEEDS.values() for deed in deeds}:
        watch(deed, lambda name: [name])
    watch("hurt", lambda links: [link.proxy for link in links])
    return done


@pytest.mark.parametrize("name", cases(GROUPS[ALL], ALWAYS_TRIED.__contains__))
def test_fault_is_begun_and_ended(
    runner: asyncio.Runner,
    cluster: LiveCluster,
    publisher: Publisher,
    deeds: set[tuple[str, str]],
    name: str,
) -> None:
    history = History()

    async def check() -> None:
        if name == "member_remove" and len(cluster.names) == nemesis.MEMBERS_MIN:
            await cluster.join(cluster.absent[0])
        assert await nemesis.carry_out(name, cluster, Random(name), DURATION_S, history.record), history.rows
        await cluster.wait_caught_up()
        await publisher.confirms_more()

    runner.run(check())
    (first, fault, nodes, _), (last, *_, detail) = history.rows
    assert (first, fault, last) == ("invoke", name, "ok")
    assert set(nodes) <= set(cluster.everybody)
    assert isinstance(json.loads(detail), dict)
    if name in GROUPS["network"]:
        assert {deed for deed, _ in deeds} == {"hurt"}
    elif name in DEEDS:
        assert deeds == {(deed, node) for deed in DEEDS[name] for node in nodes}
    assert cluster.toxiproxy.toxics() == []
    assert cluster.crashes == []


@pytest.mark.long
def test_five_nodes_bear_a_ring_and_a_bridge(tmp_path: Path) -> None:
    history = History()

    async def check(cluster: LiveCluster, publisher: Publisher) -> None:
        for name in ("partition_ring", "partition_bridge"):
            assert await nemesis.carry_out(name, cluster, Random(name), 1.0, history.record), history.rows
            await publisher.confirms_more()
        await cluster.wait_caught_up()

    with asyncio.Runner() as runner:
        cluster = LiveCluster(tmp_path, 5)
        runner.run(cluster.__aenter__())
        try:
            with Publisher(list(cluster.endpoints.values()), "numbers") as publisher:
                runner.run(check(cluster, publisher))
            found = {body.rstrip() for body in taken(cluster.direct["n5"], "numbers")}
        finally:
            runner.run(cluster.__aexit__())
    assert publisher.confirmed - found == set()
    assert [len(json.loads(detail)["cut"]) for kind, *_, detail in history.rows if kind == "ok"] == [10, 8]


@pytest.mark.long
def test_upgrade_goes_from_the_release_to_this_program(tmp_path: Path) -> None:
    """Features that only the present program has are not used meanwhile."""
    history = History()
    release = tmp_path / "release"
    releases.unpack("0.1", release)

    async def check(cluster: LiveCluster, publisher: Publisher) -> None:
        for name in ("member_add", "clock_jump"):
            assert not await nemesis.carry_out(name, cluster, Random(name), DURATION_S, history.record)
        assert [(kind, detail) for kind, *_, detail in history.rows] == [
            ("info", json.dumps({"left out": "n1 runs the release that the cluster began with"}))
        ] * 2
        for seed in range(2):
            assert await nemesis.carry_out(UPGRADE, cluster, Random(seed), DURATION_S, history.record), (
                history.rows
            )
            await publisher.confirms_more()
        assert cluster.on_release
        await nemesis.heal(cluster)
        assert cluster.on_release == ()
        assert await nemesis.carry_out("clock_jump", cluster, Random(0), DURATION_S, history.record)
        assert not await nemesis.carry_out(UPGRADE, cluster, Random(0), DURATION_S, history.record)
        await publisher.confirms_more()

    with asyncio.Runner() as runner:
        cluster = LiveCluster(tmp_path, release=release)
        runner.run(cluster.__aenter__())
        try:
            with Publisher(list(cluster.endpoints.values()), "numbers") as publisher:
                runner.run(check(cluster, publisher))
            found = {body.rstrip() for body in taken(cluster.direct["n1"], "numbers")}
        finally:
            runner.run(cluster.__aexit__())
    assert publisher.confirmed - found == set()


def test_heal_ends_all_faults(runner: asyncio.Runner, cluster: LiveCluster) -> None:
    async def check() -> None:
        first, second, third, *_ = cluster.names  # faults may have changed the members
        await cluster.hurt(cluster.links(first, second), "slow", "latency", latency=50)
        cluster.set_faults(first, clock_offset_ms=5_000)
        cluster.freeze(second)
        await cluster.kill(third)
        await nemesis.heal(cluster)
        assert cluster.serving() == list(cluster.names)
        assert cluster.toxiproxy.toxics() == []
        assert cluster.faults(first) == nemesis.NO_FAULTS

    runner.run(check())


class Stub:
    """A cluster on which everything goes well at once."""

    def __init__(self, nodes: int = 3, leading: str = "n2") -> None:
        self.names = tuple(f"n{number}" for number in range(1, nodes + 1))
        self.leading = leading
        self.hurt_links: list[tuple[str, str]] = []
        """Source and target of each that is hurt."""
        self.killed: list[str] = []

    def links(self, source: str, target: str) -> list[tuple[str, str]]:
        return [(source, target)]

    def clients_of(self, name: str) -> tuple[tuple[str, str], tuple[str, str]]:
        return (CLIENTS, name), (name, CLIENTS)

    async def hurt(self, links: list[tuple[str, str]], *_: object, **__: object) -> None:
        self.hurt_links += links

    async def leader(self, _patience_s: float) -> str:
        return self.leading

    async def kill(self, name: str) -> None:
        self.killed.append(name)

    def set_faults(self, name: str, **faults: float) -> None:
        pass

    async def at_once(self, *_: object, **__: object) -> None:
        pass

    relieve = wait_started = wait_upgraded = at_once


def begun(stub: Stub, name: str, seed: int) -> Harm:
    """A fault of this name, under way."""

    async def begin() -> Harm:
        harm = await nemesis._FAULTS[name](cast("LiveCluster", stub), Random(seed))
        await harm.begin()
        return harm

    return asyncio.run(begin())


SEEDS = range(60)
Ways = set[tuple[str, str]]


def both_ways(some: Sequence[str], other_nodes: Sequence[str]) -> Ways:
    return {way for one in some for other in other_nodes for way in ((one, other), (other, one))}


def cut(name: str, nodes: int, leading: str = "n2") -> list[tuple[Sequence[str], Ways, Ways]]:
    """Return, for each seed, the names of a partition, and its cuts between nodes and between nodes and clients."""
    found: list[tuple[Sequence[str], Ways, Ways]] = []
    for seed in SEEDS:
        stub = Stub(nodes, leading)
        harm = begun(stub, name, seed)
        ways = set(stub.hurt_links)
        assert len(ways) == len(stub.hurt_links)
        assert sorted(harm.detail["cut"]) == sorted(f"{source}>{target}" for source, target in ways)
        of_clients = {way for way in ways if CLIENTS in way}
        found.append((harm.nodes, ways - of_clients, of_clients))
    return found


def rest(nodes: int, names: Sequence[str]) -> list[str]:
    return [name for name in Stub(nodes).names if name not in names]


@pytest.mark.parametrize(("nodes", "minority"), [(3, 1), (5, 2)])
def test_minority_partition_cuts_off_nodes_and_sometimes_clients(nodes: int, minority: int) -> None:
    found = cut("partition_majority", nodes)
    for names, between_nodes, with_clients in found:
        assert len(names) == minority
        assert between_nodes == both_ways(names, rest(nodes, names))
        assert with_clients in (set(), both_ways(names, [CLIENTS]))
    assert {bool(with_clients) for *_, with_clients in found} == {True, False}


@pytest.mark.parametrize("nodes", [3, 5])
def test_leader_partition_cuts_off_nodes_and_sometimes_clients(nodes: int) -> None:
    found = cut("partition_leader", nodes, leading="n3")
    for names, between_nodes, with_clients in found:
        assert names == ["n3"]
        assert between_nodes == both_ways(names, rest(nodes, names))
        assert with_clients in (set(), both_ways(names, [CLIENTS]))
    assert {bool(with_clients) for *_, with_clients in found} == {True, False}


def test_ring_of_three_passes_messages_in_a_single_direction() -> None:
    for names, between_nodes, with_clients in cut("partition_ring", 3):
        first, second, third = names
        assert between_nodes == {(second, first), (third, second), (first, third)}
        assert with_clients == set()


def test_ring_of_five_connects_only_neighbours() -> None:
    for names, between_nodes, with_clients in cut("partition_ring", 5):
        received = {pair for place in range(5) for pair in both_ways([names[place - 1]], [names[place]])}
        assert between_nodes == set(permutations(names, 2)) - received
        assert len(received) == len(between_nodes) == 10
        assert with_clients == set()


@pytest.mark.parametrize("nodes", [3, 5])
def test_bridge_partition_connects_two_halves_by_a_node(nodes: int) -> None:
    for names, between_nodes, with_clients in cut("partition_bridge", nodes):
        half = nodes // 2
        assert len(set(names)) == 2 * half == nodes - 1
        assert between_nodes == both_ways(names[:half], names[half:])
        assert with_clients == set()


@pytest.mark.parametrize("nodes", [3, 5])
def test_asymmetric_partition_cuts_sending_or_receiving(nodes: int) -> None:
    found = cut("partition_one_way", nodes)
    seen: set[tuple[bool, bool, int]] = set()
    for (victim,), between_nodes, with_clients in found:
        is_mute = any(source == victim for source, _ in between_nodes)
        other_nodes = {target if is_mute else source for source, target in between_nodes}
        assert other_nodes <= set(rest(nodes, [victim]))
        assert between_nodes == {(victim, name) if is_mute else (name, victim) for name in other_nodes}
        assert with_clients in (set(), {(victim, CLIENTS) if is_mute else (CLIENTS, victim)})
        seen.add((is_mute, bool(with_clients), len(other_nodes)))
    assert {is_mute for is_mute, *_ in seen} == {has_clients for _, has_clients, _ in seen} == {True, False}
    assert {count for *_, count in seen} == set(range(1, nodes))


@pytest.mark.parametrize("name", ["latency", "jitter", "bandwidth", "slicer"])
def test_bad_connections_affect_nodes_or_clients_or_both(
    name: str,
) -> None:
    seen: set[tuple[int, str]] = set()
    for seed in SEEDS:
        stub = Stub()
        harm = begun(stub, name, seed)
        expected: Ways = set()
        if NODES in harm.detail["with"]:
            expected |= {pair for pair in permutations(stub.names, 2) if set(pair) & set(harm.nodes)}
        if CLIENTS in harm.detail["with"]:
            expected |= both_ways(harm.nodes, [CLIENTS])
        assert set(stub.hurt_links) == expected != set()
        seen.add((len(harm.nodes), "+".join(harm.detail["with"])))
    assert seen == {(count, links) for count in (1, 3) for links in (NODES, CLIENTS, f"{NODES}+{CLIENTS}")}


@pytest.mark.parametrize("leading", ["n1", "n2", "n3"])
def test_faults_of_the_leader_strike_the_leader(leading: str) -> None:
    paused: list[Sequence[str]] = []
    for seed in SEEDS:
        stub = Stub(leading=leading)
        assert begun(stub, "kill_leader", seed).nodes == stub.killed == [leading]
        (follower,) = begun(stub, "kill_follower", seed).nodes
        assert follower != leading
        assert stub.killed == [leading, follower]
        paused.append(asyncio.run(nemesis.pause(cast("LiveCluster", stub), Random(seed))).nodes)
    assert paused.count([leading]) > len(paused) / 3  # not by chance


# Members and their programs


class Members(Stub):
    """A cluster whose nodes only start, stop, and change their programs; each action is recorded."""

    def __init__(self, nodes: int = 3, members: int = 3, on_release: Sequence[str] = ()) -> None:
        super().__init__(nodes)
        self.everybody = tuple(f"n{number}" for number in range(1, nodes + SPARES + 1))
        self.names = self.everybody[:members]
        self.on_release = tuple(on_release)
        self.deeds: list[tuple[str, str]] = []
        self.down: set[str] = set()
        self.wiped: set[str] = set()
        self.is_prepared = False
        """Whether a join needs no restart of members."""
        self.is_refused = False
        """Whether no member can be removed."""

    @property
    def absent(self) -> tuple[str, ...]:
        return tuple(name for name in self.everybody if name not in self.names)

    def running(self, name: str) -> bool:
        return name in self.names and name not in self.down

    async def kill(self, name: str) -> None:
        self.deeds.append(("kill", name))
        self.down.add(name)

    async def stop(self, name: str) -> None:
        self.deeds.append(("stop", name))
        self.down.add(name)

    async def start(self, name: str) -> None:
        self.deeds.append(("start", name))
        self.down.discard(name)

    async def list_everybody(self, names: Sequence[str]) -> None:
        assert names == self.names
        assert not self.down
        self.is_prepared = True

    async def wipe(self, name: str) -> None:
        assert name in self.down
        self.wiped.add(name)

    async def replace(self, name: str) -> None:
        assert name in self.wiped & self.down
        self.deeds.append(("replace", name))

    async def join(self, name: str) -> None:
        assert not self.running(name)
        self.deeds.append(("join", name))
        self.names = tuple(sorted({*self.names, name}))
        self.down.discard(name)

    async def remove(self, name: str) -> bool:
        if self.is_refused:
            raise LiveClusterError("it is refused")
        self.deeds.append(("remove", name))
        self.names = tuple(known for known in self.names if known != name)
        return name not in self.down

    async def change_program(self, name: str) -> None:
        assert name in self.down
        self.on_release = tuple(sorted({*self.on_release} ^ {name}))

    wait_caught_up = wait_votes = Stub.at_once


def struck(stub: Members, name: str, seed: int) -> tuple[bool, dict[str, Any]]:
    """Carry out a fault. Return whether it succeeded, and its detail in the history; all members are up then."""
    history = History()
    has_worked = asyncio.run(
        nemesis.carry_out(name, cast("LiveCluster", stub), Random(seed), 0.0, history.record)
    )
    assert stub.down.isdisjoint(stub.names)
    return has_worked, json.loads(history.rows[-1][3])


def test_a_cluster_grows_by_its_spares_and_shrinks_to_three() -> None:
    stub = Members()
    for size in (4, 5):
        assert struck(stub, "member_add", size)[0]
        assert len(stub.names) == size
    assert struck(stub, "member_add", 0) == (False, {"left out": "5 members are the most"})
    for size in (4, 3):
        assert struck(stub, "member_remove", size)[0]
        assert len(stub.names) == size
    assert struck(stub, "member_remove", 0) == (False, {"left out": "3 members are the fewest"})
    assert [deed for deed, _ in stub.deeds if deed != "kill"] == ["join", "join", "remove", "remove"]


def test_removed_member_leads_or_is_up_or_is_dead() -> None:
    seen: set[str] = set()
    for seed in SEEDS:
        stub = Members(members=4)
        has_worked, detail = struck(stub, "member_remove", seed)
        [removed] = set(stub.everybody[:4]) - set(stub.names)
        assert has_worked
        assert detail["has_ended"] is (detail["state"] != "dead")
        assert [deed for deed, _ in stub.deeds] == ["kill"] * (detail["state"] == "dead") + ["remove"]
        assert {name for _, name in stub.deeds} == {removed}
        assert detail["state"] != "leads" or removed == stub.leading
        seen.add(detail["state"])
    assert seen == {"leads", "up", "dead"}


def test_member_joins_again_after_its_removal_failed() -> None:
    stub = Members(members=4)
    stub.is_refused = True
    has_worked, detail = struck(stub, "member_remove", 1)
    assert (has_worked, detail["error"]) == (False, "it is refused")
    assert [deed for deed, _ in stub.deeds] == ["kill", "join"]
    assert len(stub.names) == 4


@pytest.mark.parametrize(("nodes", "members", "missing"), [(3, 3, 0), (3, 5, 1), (5, 5, 1), (5, 7, 2)])
def test_lost_directory_is_replaced_with_a_minority_down(nodes: int, members: int, missing: int) -> None:
    ways: set[bool] = set()
    for seed in SEEDS:
        stub = Members(nodes, members)
        has_worked, detail = struck(stub, "replace", seed)
        assert has_worked
        (_, lost), *_ = stub.deeds
        new, down = detail["by"], detail["down"]
        assert stub.wiped == {lost}
        assert stub.is_prepared is (new != lost)
        assert len({lost, *down}) == missing + 1 <= (members + 1) // 2
        ways.add(new == lost)
        by_command = (
            [("replace", lost), ("start", lost)] if new == lost else [("remove", lost), ("join", new)]
        )
        killed = [("kill", name) for name in (lost, *down)]
        assert stub.deeds == [*killed, *by_command, *(("start", name) for name in down)]
    assert ways == ({True, False} if members < nodes + SPARES else {True})


def test_nodes_are_upgraded_in_turn_and_some_downgraded() -> None:
    seen: set[tuple[str, str]] = set()
    for seed in SEEDS:
        stub = Members(on_release=("n1", "n2", "n3"))
        before = stub.on_release
        for step in range(1000):
            has_worked, detail = struck(stub, UPGRADE, seed * 1000 + step)
            if not before:
                assert (has_worked, detail) == (False, {"left out": "all nodes run today's program"})
                break
            assert len(stub.on_release) == len(before) + (1 if detail["to"] == "release" else -1)
            seen.add((detail["to"], detail["by"]))
            before = stub.on_release
        else:
            pytest.fail("the upgrade never ends")
    assert seen == {(to, by) for to in ("today", "release") for by in ("stop", "kill")}


# Reactions of a node to a faulty disk or clock

NODE = """
    import asyncio, pathlib, sys, time
    from chaos.live.faulty_node import _World

    async def show():
        world = _World(pathlib.Path(sys.argv[1]))
        world.begin()
        disk = world.open_disk(pathlib.Path(sys.argv[2]))
        disk.make_directory("d")
        file = disk.open("d/f", create=True)
        runtime = world.make_runtime(asyncio.get_running_loop(), print)
        while True:
            file.append([b"x"])
            began_s = time.monotonic()
            file.sync()
            synced_s = time.monotonic() - began_s
            print(runtime.wall_ms() - time.time_ns() // 10**6, round(synced_s * 1000), flush=True)
            time.sleep(0.01)

    asyncio.run(show())
"""
"""Prints by how much its clock is off and how long a sync takes, in milliseconds."""


class OneNode(Stub):
    """A cluster with a single faulty node and no further parts."""

    def __init__(self, side: Path) -> None:
        super().__init__(1)
        self._side = side

    def set_faults(self, name: str, **faults: float) -> None:
        replace(Faults.read(self._side), **cast("Any", faults)).write(self._side)


def noticed(name: str, tmp_path: Path) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """Return the parameters of a fault, and the figures that a node printed before, during and after it."""
    side, data = tmp_path / "side", tmp_path / "data"
    side.mkdir()
    data.mkdir()
    history = History()
    command = [sys.executable, "-c", textwrap.dedent(NODE), str(side), str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        printed = [node.stdout.readline()]
        stub = cast("LiveCluster", OneNode(side))
        assert asyncio.run(nemesis.carry_out(name, stub, Random(0), 1.0, history.record))
        time.sleep(1.0)
        node.terminate()
        printed += node.stdout.readlines()
    lines = [tuple(map(int, line.split())) for line in printed if line.endswith("\n")]
    return json.loads(history.rows[0][3]), cast("list[tuple[int, int]]", lines)


@pytest.mark.long
def test_a_clock_that_jumps_is_the_nodes(tmp_path: Path) -> None:
    parameters, lines = noticed("clock_jump", tmp_path)
    jump_ms = parameters["clock_offset_ms"]
    assert abs(jump_ms) >= 1000
    near = [round(offset_ms / jump_ms) for offset_ms, _ in lines]
    assert near[0] == near[-1] == 0
    assert any(abs(offset_ms - jump_ms) <= 5 for offset_ms, _ in lines)


@pytest.mark.long
def test_a_disk_that_is_slow_is_the_nodes(tmp_path: Path) -> None:
    parameters, lines = noticed("slow_fsync", tmp_path)
    delay_ms = parameters["sync_delay_s"] * 1000
    slow = [synced_ms for _, synced_ms in lines if synced_ms >= delay_ms / 2]
    assert delay_ms / 2 <= median(slow)
    assert sum(slow) >= 500  # of the second that it lasts
    assert lines[0][1] < delay_ms / 2 > lines[-1][1]


def carried_out(names: Sequence[str], seed: int, seconds: float) -> History:
    history = History()
    asyncio.run(nemesis.run(cast("LiveCluster", Stub()), names, seed, seconds, history.record))
    return history


def test_node_faults_overlap_only_with_network_faults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nemesis, "GAP_S", (0.0, 0.01))
    monkeypatch.setattr(nemesis, "DURATION_S", (0.05, 0.1))
    history = carried_out(("latency", "slicer", "clock_jump"), 3, 1.0)
    under_way: set[str] = set()
    together: set[frozenset[str]] = set()
    for kind, fault, *_ in history.rows:
        assert (kind == "invoke") is (fault not in under_way)
        under_way ^= {fault}
        together.add(frozenset(under_way))
    assert under_way == set()
    assert not any({"latency", "slicer"} <= faults for faults in together)
    assert {frozenset({"latency", "clock_jump"}), frozenset({"slicer", "clock_jump"})} <= together


def test_the_same_seed_chooses_the_same_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nemesis, "GAP_S", (0.0, 0.01))
    monkeypatch.setattr(nemesis, "DURATION_S", (0.01, 0.02))

    def first(seed: int) -> list[tuple[str, Sequence[str], str]]:
        rows = carried_out(("clock_jump", "slow_fsync"), seed, 0.5).rows
        return [(fault, nodes, detail) for kind, fault, nodes, detail in rows if kind == "invoke"][:4]

    assert len(first(1)) == 4
    assert first(1) == first(1) != first(2)


def test_groups_expand_to_their_faults_without_repetition() -> None:
    assert nemesis.chosen(["pause", "disk", "wipe"]) == ("pause", *GROUPS["disk"])
    groups = ["network", "process", "disk", "operator"]
    assert set(nemesis.chosen(groups)) == set(nemesis.chosen([ALL])) == set(NAMES) - {UPGRADE}
    assert set(nemesis.chosen([ALL, UPGRADE])) == set(NAMES)


def test_unknown_fault_is_reported_with_all_known_names() -> None:
    with pytest.raises(NemesisError) as caught:
        nemesis.chosen(["pause", "earthquake"])
    text = str(caught.value)
    assert text.startswith("unknown nemesis 'earthquake'")
    assert "\n" not in text
    assert all(name in text for name in (*NAMES, *GROUPS))


def test_flipped_bit_is_in_a_segment_and_can_be_reverted(tmp_path: Path) -> None:
    log = tmp_path / "groups" / "0" / "log"
    log.mkdir(parents=True)
    for name in ("1.segment", "manifest"):
        (log / name).write_bytes(bytes(64))
    flip = nemesis.flip_bit(tmp_path, Random(0))
    assert flip.file == log / "1.segment"
    damaged = flip.file.read_bytes()
    assert damaged[flip.bit // 8] == 1 << flip.bit % 8
    assert sum(map(int.bit_count, damaged)) == 1
    assert (log / "manifest").read_bytes() == bytes(64)
    assert flip.is_there()
    flip.invert()
    assert flip.file.read_bytes() == bytes(64)


def test_file_that_replaced_the_damaged_file_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "groups" / "0" / "log"
    log.mkdir(parents=True)
    (log / "1.segment").write_bytes(bytes(64))
    (tmp_path / "other").write_bytes(bytes(64))
    flip = nemesis.flip_bit(tmp_path, Random(0))
    (tmp_path / "other").replace(log / "1.segment")
    assert not flip.is_there()
    flip.invert()
    assert flip.file.read_bytes() == bytes(64)
