"""Each fault can be carried out and made good, and takes nothing that was confirmed."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import TYPE_CHECKING, cast

import pytest
from live_clients import Publisher, taken

from chaos.live import nemesis
from chaos.live.nemesis import GROUPS, NAMES, NemesisError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from chaos.live.cluster import LiveCluster

pytestmark = [pytest.mark.xdist_group("live"), pytest.mark.timeout(120)]

DURATION_S = 0.1


class History:
    def __init__(self) -> None:
        self.rows: list[tuple[str, str, Sequence[str], str]] = []

    def record(self, kind: str, fault: str, nodes: Sequence[str], detail: str) -> None:
        self.rows.append((kind, fault, nodes, detail))


@pytest.fixture(scope="module")
def publisher(runner: asyncio.Runner, cluster: LiveCluster) -> Generator[Publisher]:
    """Publishes while the faults come and go; in the end all that was confirmed is there."""
    runner.run(cluster.wait_caught_up())
    with Publisher(list(cluster.endpoints.values()), "numbers") as publisher:
        yield publisher
    runner.run(nemesis.heal(cluster))
    found = {body.rstrip() for body in taken(cluster.direct["n1"], "numbers")}
    assert len(publisher.confirmed) > len(NAMES)
    assert publisher.confirmed - found == set()


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_comes_and_goes(
    runner: asyncio.Runner, cluster: LiveCluster, publisher: Publisher, name: str
) -> None:
    history = History()

    async def check() -> None:
        assert await nemesis.carry_out(name, cluster, Random(name), DURATION_S, history.record), history.rows
        await cluster.wait_caught_up()
        await publisher.confirms_more()

    runner.run(check())
    (first, fault, nodes, _), (last, *_, detail) = history.rows
    assert (first, fault, last) == ("invoke", name, "ok")
    assert set(nodes) <= set(cluster.names)
    assert isinstance(json.loads(detail), dict)
    assert cluster.toxiproxy.toxics() == []
    assert cluster.crashes == []


def test_heal_makes_everything_good(runner: asyncio.Runner, cluster: LiveCluster) -> None:
    async def check() -> None:
        await cluster.hurt([cluster.link("n1", "n2")], "slow", "latency", latency=50)
        cluster.set_faults("n1", clock_offset_ms=5_000)
        cluster.freeze("n2")
        await cluster.kill("n3")
        await nemesis.heal(cluster)
        assert cluster.serving() == list(cluster.names)
        assert cluster.toxiproxy.toxics() == []
        assert cluster.faults("n1") == nemesis.NO_FAULTS

    runner.run(check())


class Stub:
    """A cluster on which everything goes well at once."""

    names = ("n1", "n2", "n3")

    def link(self, source: str, target: str) -> str:
        return source + target

    def set_faults(self, name: str, **faults: float) -> None:
        pass

    async def at_once(self, *_: object, **__: object) -> None:
        pass

    hurt = relieve = wait_started = at_once


def carried_out(names: Sequence[str], seed: int, seconds: float) -> History:
    history = History()
    asyncio.run(nemesis.run(cast("LiveCluster", Stub()), names, seed, seconds, history.record))
    return history


def test_a_schedule_overlaps_faults_of_nodes_with_those_of_the_network_only(
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

    def begun(seed: int) -> list[tuple[str, Sequence[str], str]]:
        rows = carried_out(("clock_jump", "slow_fsync"), seed, 0.5).rows
        return [(fault, nodes, detail) for kind, fault, nodes, detail in rows if kind == "invoke"][:4]

    assert len(begun(1)) == 4
    assert begun(1) == begun(1) != begun(2)


def test_groups_mean_their_faults_and_nothing_is_named_twice() -> None:
    assert nemesis.chosen(["pause", "disk", "wipe"]) == ("pause", *GROUPS["disk"])
    assert set(nemesis.chosen(["network", "process", "disk"])) == set(nemesis.chosen(["all"])) == set(NAMES)


def test_an_unknown_name_is_one_line_with_all_that_are_known() -> None:
    with pytest.raises(NemesisError) as caught:
        nemesis.chosen(["pause", "earthquake"])
    text = str(caught.value)
    assert text.startswith("unknown nemesis 'earthquake'")
    assert "\n" not in text
    assert all(name in text for name in (*NAMES, *GROUPS))


def test_a_flipped_bit_is_one_bit_of_a_segment_and_can_be_taken_back(tmp_path: Path) -> None:
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


def test_a_file_in_place_of_the_damaged_one_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "groups" / "0" / "log"
    log.mkdir(parents=True)
    (log / "1.segment").write_bytes(bytes(64))
    (tmp_path / "other").write_bytes(bytes(64))
    flip = nemesis.flip_bit(tmp_path, Random(0))
    (tmp_path / "other").replace(log / "1.segment")
    assert not flip.is_there()
    flip.invert()
    assert flip.file.read_bytes() == bytes(64)
