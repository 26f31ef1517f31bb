"""Limits of how much is published in a second: what passes, who waits, and that nobody waits for ever."""

from __future__ import annotations

import random
import time
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import pytest
from lone_broker import LoneBroker, wait_until
from pamqp import commands
from raw_client import RawClient, publish

from qq.amqp.encoding import HEARTBEAT
from qq.amqp_server.connection import BEATS, SILENT_BEATS_MAX
from qq.config import NodeLimits
from qq.http.view import Product
from qq.machine import commands as c
from qq.machine.codec import encode_batch
from qq.machine.limits import MAX_PUBLISH_BYTES, MAX_PUBLISHES, NONE
from qq.machine.machine import QueueMachine
from qq.management.catalog import CatalogReports
from qq.sessions.throttle import BURST_S, COUNT_S, LOOK_S, TURN_S, Throttle
from qq.stored.content import content_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.ports import Runtime
    from qq.sessions.ports import Connection

READ = 20
"""Messages that one read of a client's socket brings."""


class Flood:
    """A client that publishes whenever it is read."""

    is_admitted = True

    def __init__(self, world: World, number: int, vhost: str, user: str, size: int) -> None:
        self.id, self.vhost, self.user = number, vhost, user
        self.world, self.size = world, size
        self.reasons: set[object] = set()
        self.passed = 0

    def pause_for(self, reason: object) -> None:
        self.reasons.add(reason)

    def resume_for(self, reason: object) -> None:
        self.reasons.remove(reason)
        self.world.at(0.0, self.read)

    def read(self) -> None:
        if not self.reasons and self.id in self.world.connections:
            self.passed += READ
            self.world.throttle.published(self, [bytes(self.size)] * READ)
            if not self.reasons:
                self.world.at(0.0005, self.read)


class World:
    """A node whose clock goes on when the test says so, and the connections of the cluster."""

    def __init__(self, **limits: Any) -> None:
        self.machine = QueueMachine(content_of)
        self.now_s = 1000.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count(1)
        self.connections: dict[int, Flood] = {}
        self.throttle = Throttle(
            self.machine,
            cast("Runtime", self),
            NodeLimits(**limits),
            lambda: cast("dict[int, Connection]", self.connections),
        )
        self._index = 0
        for name in ("a", "b"):
            self.operate(c.PutVhost(name, "", [], ""), c.PutUser(name, b"salt", b"hash", []))
        for user in ("a", "b"):
            self.operate(*(c.SetPermissions(user, vhost, "", "", "") for vhost in ("a", "b")))

    def operate(self, *changes: Any, node: str = "n1") -> None:
        self._index += 1
        self.machine.apply_batch(node, self._index, 0, 8, b"".join(encode_batch(changes, [])))
        self.machine.end_entry(8)

    def monotonic(self) -> float:
        return self.now_s

    def at(self, wait_s: float, callback: Callable[[], None]) -> None:
        heappush(self._timers, (self.now_s + wait_s, next(self._numbers), callback))

    def call_later(self, wait_s: float, callback: Callable[[], None]) -> None:
        self.at(wait_s, callback)

    def run(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self._timers and self._timers[0][0] <= until_s:
            self.now_s, _, callback = heappop(self._timers)
            callback()
        self.now_s = until_s

    def connect(self, vhost: str = "a", user: str = "a", size: int = 100, node: str = "n1") -> Flood:
        """Let a client come; one of this node begins to flood."""
        number = next(self._numbers)
        self.operate(c.Connect(number, vhost, user), node=node)
        flood = Flood(self, number, vhost, user, size)
        if node == "n1":
            self.connections[number] = flood
            self.at(0.0, flood.read)
        return flood

    def leave(self, flood: Flood) -> None:
        del self.connections[flood.id]
        self.throttle.left(flood.id)
        self.operate(c.ConnectionDown(flood.id))


def of_vhost(name: str, limit: int | None, vhost: str = "a") -> c.ChangeVhostLimits:
    return c.ChangeVhostLimits(vhost, {name: limit})


@pytest.mark.parametrize("floods", [1, 7])
@pytest.mark.parametrize(
    "change",
    [
        of_vhost(MAX_PUBLISHES, 1000),
        of_vhost(MAX_PUBLISH_BYTES, 100_000),
        c.ChangeUserLimits("a", {MAX_PUBLISHES: 1000}),
        c.ChangeUserLimits("a", {MAX_PUBLISH_BYTES: 100_000, MAX_PUBLISHES: 50_000}),
    ],
)
def test_all_publishers_together_are_held_to_a_limit_and_nobody_elses(change: Any, floods: int) -> None:
    world = World()
    world.operate(change)
    mine = [world.connect() for _ in range(floods)]
    other = world.connect("b", "b")
    world.run(10.0)
    passed = [each.passed for each in mine]
    assert sum(passed) == pytest.approx(1000 * (10 + BURST_S), abs=(1 + floods) * READ)
    assert max(passed) - min(passed) <= 1000 * BURST_S
    assert not other.reasons
    assert other.passed > 100_000


@pytest.mark.parametrize("name", ["connection_publishes_per_s", "connection_publish_bytes_per_s"])
def test_each_connection_has_a_limit_of_its_own(name: str) -> None:
    world = World(**{name: 1000 if "publishes" in name else 100_000})
    floods = [world.connect(vhost, vhost) for vhost in ("a", "a", "b")]
    world.run(10.0)
    assert [each.passed for each in floods] == [pytest.approx(1000 * (10 + BURST_S), abs=2 * READ)] * 3


def test_a_node_grants_its_share_of_a_limit_and_more_when_connections_elsewhere_go() -> None:
    world = World()
    elsewhere = [world.connect(node="n2") for _ in range(3)]
    flood = world.connect()
    world.operate(of_vhost(MAX_PUBLISHES, 4000))
    world.run(10.0)
    assert flood.passed == pytest.approx(1000 * (10 + BURST_S), abs=2 * READ)
    world.operate(*(c.ConnectionDown(each.id) for each in elsewhere), node="n2")
    world.run(COUNT_S)
    before = flood.passed
    world.run(10.0)
    assert flood.passed - before == pytest.approx(4000 * 10, abs=2 * READ)


def test_what_is_larger_than_a_limit_passes_and_then_waits_its_time() -> None:
    world = World()
    world.operate(of_vhost(MAX_PUBLISH_BYTES, 1000))
    flood = world.connect(size=5000)  # with each read 100 times the limit
    world.run(99.0 - 1.0)
    assert flood.passed == READ
    world.run(2.0)
    assert flood.passed == 2 * READ


@pytest.mark.parametrize("limit", [None, NONE, 0, 10**6, 2**63 - 1])
def test_those_who_wait_go_on_at_once_when_their_limit_is_lifted(limit: int | None) -> None:
    world = World()
    world.operate(of_vhost(MAX_PUBLISHES, 1))
    floods = [world.connect() for _ in range(10)]
    world.run(5.0)
    assert [each.passed for each in floods] == [READ] * 10
    world.operate(of_vhost(MAX_PUBLISHES, limit))
    world.run(LOOK_S + 10 * TURN_S + READ * 10 / 10**6)
    assert all(each.passed > READ for each in floods)


def test_those_who_wait_go_on_when_their_virtual_host_is_gone() -> None:
    world = World()
    world.operate(of_vhost(MAX_PUBLISHES, 1))
    flood = world.connect()
    world.run(1.0)
    world.operate(c.DeleteVhost("a"))
    world.run(LOOK_S + TURN_S)
    assert not flood.reasons


def test_who_waits_for_one_limit_is_then_held_by_another_one() -> None:
    world = World()
    world.operate(of_vhost(MAX_PUBLISHES, 1000), c.ChangeUserLimits("a", {MAX_PUBLISHES: 10}))
    flood = world.connect()
    world.run(10.0)
    assert flood.passed == pytest.approx(10 * (10 + BURST_S), abs=2 * READ)


def test_nothing_is_kept_of_who_has_left_and_of_limits_that_nobody_uses() -> None:
    world = World(connection_publishes_per_s=1)
    world.operate(of_vhost(MAX_PUBLISHES, 10))
    floods = [world.connect() for _ in range(5)]
    world.run(0.1)
    for each in floods:
        world.leave(each)
    world.run(200.0)
    last = world.connect(size=1)
    world.run(2 * COUNT_S)
    assert {key.of for key in world.throttle._buckets} == {last.id, "a"}
    assert list(world.throttle._held) == [last.id]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_operators_and_clients_do_no_more_passes_than_limits_allow_and_nobody_waits_for_ever(
    seed: int,
) -> None:
    rng = random.Random(seed)
    world = World(**rng.choice([{}, {"connection_publishes_per_s": 500}]))
    limits = [1, 10, 1000, 10**6, NONE, None, 2**63 - 1]
    for _ in range(40):
        match rng.randrange(6):
            case 0 | 1:
                world.connect(rng.choice("ab"), rng.choice("ab"), rng.choice([1, 100, 10**5]))
            case 2 if world.connections:
                world.leave(rng.choice(list(world.connections.values())))
            case 3:
                name = rng.choice([MAX_PUBLISHES, MAX_PUBLISH_BYTES])
                world.operate(of_vhost(name, rng.choice(limits), rng.choice("ab")))
            case 4:
                name = rng.choice([MAX_PUBLISHES, MAX_PUBLISH_BYTES])
                world.operate(c.ChangeUserLimits(rng.choice("ab"), {name: rng.choice(limits)}))
            case _:
                world.run(rng.choice([0.001, 0.05, 0.3]))
    # From now on one limit holds for all of a virtual host.
    for user in "ab":
        world.operate(c.SetUserLimits(user, {}))
    world.operate(c.SetVhostLimits("a", {MAX_PUBLISHES: 200}), c.SetVhostLimits("b", {}))
    world.run(LOOK_S + COUNT_S)
    here = [each for each in world.connections.values() if each.vhost == "a"]
    before = sum(each.passed for each in here)
    world.run(10.0)
    passed = sum(each.passed for each in here) - before
    assert passed <= 200 * (10 + BURST_S) + READ * (1 + len(here))
    world.operate(c.SetVhostLimits("a", {}))
    world.run(LOOK_S + 1.0)
    counts = {each: each.passed for each in world.connections.values()}
    world.run(10.0)
    assert all(each.passed > passed for each, passed in counts.items())


# --- on sockets

Basic, Queue = commands.Basic, commands.Queue


def set_limit(broker: LoneBroker, limit: int | None) -> None:
    broker.operate(c.ChangeVhostLimits("/", {MAX_PUBLISHES: limit}))


def declared(client: RawClient) -> int:
    return client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk).message_count


def test_a_connection_above_a_limit_is_not_read_keeps_its_heartbeats_and_goes_on_when_the_limit_goes() -> (
    None
):
    with LoneBroker() as broker, RawClient(broker.amqp_port, heartbeat=1) as client:
        client.open_channel(1)
        declared(client)
        set_limit(broker, 1)
        client.write(b"".join(publish(1, "q", b"m") for _ in range(500)))
        with RawClient(broker.amqp_port) as consumer:
            consumer.open_channel(1)
            consumer.call(1, Basic.Consume(queue="q"), Basic.ConsumeOk)
            for tag in range(1, 501):
                assert consumer.expect_message()[2] == b"m"
                consumer.send(1, Basic.Ack(tag))
        client.send(1, Queue.Declare(queue="q"))
        wait_until(
            lambda: broker.call(lambda: len(broker.broker.connections)) == 1,
            "the end of the consumer's connection",
        )
        [number] = broker.call(lambda: list(broker.broker.connections))
        assert broker.call(broker.broker.throttle.holds, number)
        reports = CatalogReports(broker.broker, Product("", "", ""))
        assert [each.state for each in broker.call(reports.connections)] == ["flow"]
        end_s, heard = time.monotonic() + SILENT_BEATS_MAX / BEATS + 0.5, b""
        while time.monotonic() < end_s:  # the node would give up a client that it should hear and does not
            heard += client.socket.recv(1000)
        assert heard.count(HEARTBEAT) >= 2
        set_limit(broker, None)
        client.expect(Queue.DeclareOk)
        assert [each.state for each in broker.call(reports.connections)] == ["running"]
