"""Limits of the rate of publishing: passed and held messages, and that each message passes in the end."""

from __future__ import annotations

import random
import time
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import settings
from pamqp import commands

from qq.amqp.encoding import HEARTBEAT
from qq.amqp_server.connection import HEARTBEAT_CHECKS, SILENT_CHECKS_MAX
from qq.client_sockets import closing
from qq.client_sockets.back_pressure import HELD_BYTES_MAX
from qq.config import NodeLimits
from qq.machine.catalog.limits import MAX_PUBLISH_BYTES, MAX_PUBLISHES, NONE
from qq.machine.machine import QueueMachine
from qq.machine.protocol import commands as c
from qq.machine.protocol.codec import encode_batch
from qq.management.changes.request_session import RequestSession
from qq.management.reports.messages import NewMessage
from qq.sessions.throttle import ACTIVE_S, BURST_S, CHECK_S, SWEEP_S, TURN_S, Throttle, _Key
from qq.stored.content import content_of
from tests.harness.lone_broker import LoneBroker, wait_until
from tests.harness.raw_client import RawClient, publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cluster.runtime.ports import Runtime
    from qq.sessions.ports import PatientPublisher

READ = 20
"""Messages that a single read of a client's socket brings."""
NODES = ("n1", "n2", "n3")
LAG_S = 0.005
"""How long after it was published something is known at all nodes."""


class Flood:
    """A client that publishes whenever it may. It is its connection, its session and its publisher."""

    def __init__(self, world: World, number: int, vhost: str, user: str, size: int, node: str) -> None:
        self.id = self.session = number
        self.vhost, self.user = vhost, user
        self.connection = self
        self.world, self.size, self.node = world, size, node
        self.throttle = world.throttles[node]
        self.idle = False
        """Whether it publishes only on request of the test."""
        self.held: list[bytes] = []
        self.passed = 0

    @property
    def as_publisher(self) -> PatientPublisher:
        return cast("PatientPublisher", self)

    @property
    def waits(self) -> bool:
        return bool(self.held)

    def read(self) -> None:
        if self.session in self.world.connections:
            assert not self.waits
            self.publish([bytes(self.size)] * READ)
            if not self.waits:
                self.world.at(0.002, self.read)

    def publish(self, messages: list[bytes]) -> None:
        me = self.as_publisher
        passing = self.throttle.count_passing(me, messages)
        self.throttle.charge(me, messages, passing)
        self.passed += passing
        self.world.is_published(self, messages[:passing])
        self.held = messages[passing:]
        if self.held:
            self.throttle.wait(me)

    def resume(self) -> None:
        assert self.waits, "nobody is told twice"
        self.publish(self.held)
        if not self.waits and not self.idle:
            self.world.at(0.002, self.read)


class World:
    """Nodes with a common state, a clock set by the test, and clients."""

    def __init__(self, **limits: Any) -> None:
        self.machine = QueueMachine(content_of)
        self.now_s = 1000.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count(1)
        self.connections: dict[int, Flood] = {}
        """Those that are open, by session."""
        self.all_connections: list[Flood] = []
        self.limits = limits
        self.throttles = {
            node: Throttle(node, self.machine, cast("Runtime", self), NodeLimits(**limits)) for node in NODES
        }
        self._index = 0
        for name in ("a", "b"):
            self.operate(c.PutVhost(name, "", [], ""), c.PutUser(name, b"salt", b"hash", []))
        for user in ("a", "b"):
            self.operate(*(c.SetPermissions(user, vhost, "", "", "") for vhost in ("a", "b")))

    def operate(self, *changes: Any, node: str = "n1") -> None:
        self._index += 1
        self.machine.apply_batch(node, self._index, 0, 8, b"".join(encode_batch(changes, [])))
        self.machine.end_entry(8)

    def is_published(self, flood: Flood, messages: list[bytes]) -> None:
        """Have the log tell of messages, a moment later."""
        if messages:
            self.at(LAG_S, lambda: self._count(flood, len(messages), sum(map(len, messages))))

    def _count(self, flood: Flood, messages: int, size: int) -> None:
        access = self.machine.catalog.access
        vhost, of_user = self.machine.vhosts.get(flood.vhost), access.published.get(flood.user)
        if vhost is not None:
            vhost.published.count(flood.node, messages, size)
        if of_user is not None:
            of_user.count(flood.node, messages, size)

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

    def connect(
        self,
        vhost: str = "a",
        user: str = "a",
        size: int = 100,
        node: str = "n1",
        *,
        idle: bool = False,
        of: Flood | None = None,
    ) -> Flood:
        """Connect a client, which floods unless it is `idle`; `of` gets a further channel."""
        number = next(self._numbers)
        self.operate(c.Connect(number, vhost, user), node=node)
        flood = self.connections[number] = Flood(self, number, vhost, user, size, node)
        if of is not None:
            flood.id = of.id
        self.all_connections.append(flood)
        flood.idle = idle
        if not idle:
            self.at(0.0, flood.read)
        return flood

    def leave(self, flood: Flood) -> None:
        del self.connections[flood.session]
        flood.throttle.remove(flood.as_publisher)
        flood.throttle.connection_left(flood.as_publisher.connection)
        self.at(LAG_S, lambda: self.operate(c.ConnectionDown(flood.id), node=flood.node))


def of_vhost(name: str, limit: int | None, vhost: str = "a") -> c.ChangeVhostLimits:
    return c.ChangeVhostLimits(vhost, {name: limit})


@pytest.mark.parametrize("nodes", [NODES[:1], NODES])
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
def test_publishers_share_a_limit_and_a_second_tenant_is_free(
    change: Any, floods: int, nodes: Sequence[str]
) -> None:
    world = World()
    world.operate(change)
    mine = [world.connect(node=node) for _ in range(floods) for node in nodes]
    other = world.connect("b", "b")
    world.run(8.0)
    passed = [each.passed for each in mine]
    burst_s = (BURST_S + TURN_S) * len(nodes)
    assert 1000 * 8 - READ <= sum(passed) <= 1000 * (8 + burst_s) + len(mine)
    assert max(passed) - min(passed) <= 1000 * burst_s
    assert not other.waits
    assert other.passed > 50_000


@pytest.mark.parametrize("name", ["connection_publishes_per_s", "connection_publish_bytes_per_s"])
def test_each_connection_has_a_limit_of_its_own(name: str) -> None:
    world = World(**{name: 1000 if "publishes" in name else 100_000})
    floods = [world.connect(vhost, vhost) for vhost in ("a", "a", "b")]
    world.run(10.0)
    assert [each.passed for each in floods] == [pytest.approx(1000 * (10 + BURST_S + TURN_S), abs=2)] * 3


def test_idle_connection_takes_no_share_of_a_limit() -> None:
    world = World()
    world.operate(of_vhost(MAX_PUBLISHES, 1000))
    for node in NODES:
        for _ in range(50):
            world.connect(node=node, idle=True)
    flood = world.connect()
    world.run(10.0)
    assert flood.passed == pytest.approx(1000 * (10 + BURST_S + TURN_S), abs=2)


def test_unused_share_of_a_limit_goes_to_a_flooding_client() -> None:
    world = World()
    world.operate(of_vhost(MAX_PUBLISHES, 1000))
    flood = world.connect()
    slow = world.connect(node="n2", idle=True)
    for tenth in range(200):  # 100 messages a second, which is less than half
        world.at(tenth / 10, lambda: slow.publish([b"m"] * 10))
    world.run(20.0)
    assert slow.passed == 2000
    assert flood.passed == pytest.approx(900 * 20 + 1000 * BURST_S, rel=0.01)
    # Use above the share while capacity was free leaves no debt.
    new = world.connect(node="n3")
    before = flood.passed, new.passed
    world.run(6.0)
    assert flood.passed - before[0] >= 0.3 * 6000
    assert new.passed - before[1] >= 0.3 * 6000


def test_late_node_gets_its_share_of_a_limit() -> None:
    world = World()
    world.operate(of_vhost(MAX_PUBLISHES, 1000))
    first = world.connect()
    world.run(5.0)
    late = world.connect(node="n2")
    world.run(2.0)
    before = first.passed, late.passed
    world.run(10.0)
    assert late.passed - before[1] >= 0.45 * 10_000
    assert first.passed - before[0] >= 0.45 * 10_000
    assert late.passed + first.passed - sum(before) == pytest.approx(10_000, rel=0.01)
    world.leave(first)  # as when the node is killed
    world.run(1.0)
    before_leaving = late.passed
    world.run(10.0)
    assert late.passed - before_leaving == pytest.approx(10_000, rel=0.01)
    assert not late.throttle._buckets[_Key("vhost", "a", MAX_PUBLISHES)]._nodes(world.now_s) > 1


def test_message_above_a_limit_passes_then_waits() -> None:
    world = World()
    world.operate(of_vhost(MAX_PUBLISH_BYTES, 1000))
    flood = world.connect(size=50_000)
    world.run(1.0)
    assert flood.passed == 1
    world.run(49.0 - 1.0 - 2 * TURN_S)
    assert flood.passed == 1
    world.run(2.0)
    assert flood.passed == 2


@pytest.mark.parametrize("size", [10_000, 100_000, 300_000])
def test_large_messages_at_several_nodes_respect_a_limit(size: int) -> None:
    """Each message uses up the limit, of 10 kB a second, for longer than publishes of peers are remembered."""
    world = World()
    world.operate(of_vhost(MAX_PUBLISH_BYTES, 10_000))
    floods = [world.connect(size=size, node=node) for node in NODES]
    world.run(30 * size / 10_000)
    assert 28 <= sum(each.passed for each in floods) <= 30 + 2 * len(NODES)


def test_reconnecting_client_leaves_no_debt() -> None:
    world = World()
    world.operate(of_vhost(MAX_PUBLISHES, 10))
    honest = world.connect(idle=True)
    for tenth in range(100):
        visitor = world.connect(idle=True)
        world.at(tenth / 10, lambda visitor=visitor: visitor.publish([b"m"] * 5000))
        world.at(tenth / 10 + 0.09, lambda visitor=visitor: world.leave(visitor))
    world.run(5.0)
    honest.publish([b"m"])
    world.run(0.3)
    assert honest.passed == 1
    world.run(5.0)
    assert sum(each.passed for each in world.all_connections) == pytest.approx(10 * (10 + BURST_S), abs=5)


def test_connections_have_turns_however_many_channels_they_have() -> None:
    world = World()
    world.operate(of_vhost(MAX_PUBLISHES, 100))
    one = world.connect()
    channels = [world.connect(of=one) for _ in range(50)]
    other = world.connect()
    world.run(20.0)
    passed = [each.passed for each in (one, *channels)]
    assert other.passed == pytest.approx(sum(passed), abs=100 * BURST_S + 5)
    assert max(passed[1:]) - min(passed[1:]) <= 100 * BURST_S


def test_modest_publisher_precedes_flooding_publishers() -> None:
    world = World()
    world.operate(of_vhost(MAX_PUBLISHES, 500))
    floods = [world.connect() for _ in range(100)]
    modest = world.connect(idle=True)
    world.run(2.0)
    modest.publish([b"m"])  # a new client is last in the queue: reconnecting gains no time
    world.run(1.2)
    assert modest.passed == 1
    for second in range(5):
        world.run(1.0)
        modest.publish([b"m"])
        world.run(3 * TURN_S)
        assert modest.passed == 2 + second
    passed = [each.passed for each in floods]
    assert max(passed) - min(passed) <= 500 * 3 * TURN_S + READ


def test_reconnecting_clients_do_not_overtake_a_waiting_client() -> None:
    world = World()
    world.operate(of_vhost(MAX_PUBLISHES, 100))
    steady = world.connect()
    for tick in range(1000):
        visitor = world.connect(idle=True)
        world.at(tick / 100, lambda visitor=visitor: visitor.publish([b"m"] * 5000))
        world.at(tick / 100 + 0.5, lambda visitor=visitor: world.leave(visitor))
    world.run(3.0)
    before = steady.passed
    world.run(6.0)
    assert steady.passed - before >= 100 * 6 / 60  # at least its turn among the 50 that are there at a time
    assert len(steady.throttle._buckets[_Key("vhost", "a", MAX_PUBLISHES)].used_s) < 500


@pytest.mark.parametrize("limit", [None, NONE, 10**6, 2**63 - 1])
def test_waiting_publishers_continue_when_their_limit_is_lifted(limit: int | None) -> None:
    world = World()
    world.operate(of_vhost(MAX_PUBLISHES, 1))
    floods = [world.connect() for _ in range(10)]
    world.run(0.5)
    assert sum(each.passed for each in floods) <= 3
    world.operate(of_vhost(MAX_PUBLISHES, limit))
    world.run(CHECK_S + 10 * TURN_S + READ * 10 / 10**6)
    assert all(each.passed > READ for each in floods)


def test_waiting_publishers_continue_when_their_vhost_is_deleted() -> None:
    world = World()
    world.operate(of_vhost(MAX_PUBLISHES, 1))
    flood = world.connect()
    world.run(1.0)
    assert flood.waits
    world.operate(c.DeleteVhost("a"))
    world.run(CHECK_S + TURN_S)
    assert flood.passed > READ


def test_publisher_is_held_by_the_lower_of_two_limits() -> None:
    world = World()
    world.operate(of_vhost(MAX_PUBLISHES, 1000), c.ChangeUserLimits("a", {MAX_PUBLISHES: 10}))
    flood = world.connect()
    world.run(10.0)
    assert flood.passed == pytest.approx(10 * (10 + BURST_S), abs=2)


@pytest.mark.parametrize(
    ("of_all", "of_mine", "size"),
    [
        ({MAX_PUBLISHES: 7}, {MAX_PUBLISHES: 11}, 10),
        ({MAX_PUBLISHES: 30}, {MAX_PUBLISHES: 3}, 10),
        ({MAX_PUBLISH_BYTES: 10_000}, {MAX_PUBLISHES: 10}, 3000),
        ({MAX_PUBLISH_BYTES: 10_000}, {MAX_PUBLISH_BYTES: 13_000}, 3000),
    ],
)
def test_publisher_under_two_used_limits_gets_a_share_of_both(
    of_all: dict[str, Any], of_mine: dict[str, Any], size: int
) -> None:
    """The limits hardly ever have room at the same time."""
    world = World()
    world.operate(c.SetVhostLimits("a", of_all), c.SetUserLimits("b", of_mine))
    in_vhost = [world.connect("a", "a", size) for _ in range(3)]
    of_user = [world.connect("b", "b", size) for _ in range(3)]
    world.run(5.13)
    both = world.connect("a", "b", size)
    before = [each.passed for each in (*in_vhost, *of_user)]
    world.run(60.0)
    passed = [each.passed - then for each, then in zip((*in_vhost, *of_user), before, strict=True)]
    assert both.passed >= 0.8 * min(passed)
    for limits, mine in ((of_all, passed[:3]), (of_mine, passed[3:])):
        [(name, limit)] = limits.items()
        most = limit * 60 / (size if name == MAX_PUBLISH_BYTES else 1)
        assert 0.9 * most <= sum(mine) + both.passed <= most + 5


def test_messages_during_a_standstill_are_charged_for_that_time() -> None:
    world = World()
    world.operate(of_vhost(MAX_PUBLISHES, 100))
    flood, other = world.connect(), world.connect(node="n2")
    world.run(2.0)
    world.leave(other)
    world.run(0.5)
    # For a minute there are no reports, and then a report of all that a peer has let through meanwhile.
    world.now_s += 60.0
    world._count(other, 6000, 6000)
    before = flood.passed
    world.run(10.0)
    assert flood.passed - before >= 100 * 9


def test_nodes_without_limits_leave_a_share_and_no_debt() -> None:
    """Release 0.1 keeps limits and does not apply them."""
    world = World()
    world.operate(of_vhost(MAX_PUBLISHES, 100))
    flood, other = world.connect(), world.connect(node="n2", idle=True)
    for second in range(10):
        world.at(second, lambda: world._count(other, 100_000, 100_000))
    world.run(5.0)
    before = flood.passed
    world.run(4.0)
    assert flood.passed - before == pytest.approx(200, rel=0.1)
    world.run(ACTIVE_S + 1.0)
    before = flood.passed
    world.run(4.0)
    assert flood.passed - before == pytest.approx(400, rel=0.1)


def test_records_of_closed_connections_are_removed() -> None:
    world = World(connection_publishes_per_s=1)
    world.operate(of_vhost(MAX_PUBLISHES, 10))
    floods = [world.connect() for _ in range(5)]
    world.run(0.1)
    assert all(world.throttles["n1"].delays(each.id) for each in floods)
    for each in floods:
        world.leave(each)
    world.run(200.0)
    last = world.connect(size=1)
    world.run(2 * SWEEP_S)
    throttle = world.throttles["n1"]
    assert {key.of for key in throttle._buckets} == {last.id, "a"}
    assert list(throttle._waits_for) == [last.session]
    assert dict(throttle._waiting_of) == {last.id: 1}


@pytest.mark.seeds
@pytest.mark.parametrize("seed", range(settings.default.max_examples // 5))
def test_random_use_respects_limits_and_blocks_no_client_forever(
    seed: int,
) -> None:
    rng = random.Random(seed)
    world = World(**rng.choice([{}, {"connection_publishes_per_s": 500}]))
    limits = [1, 10, 1000, 10**6, NONE, None, 2**63 - 1]
    for _ in range(40):
        match rng.randrange(6):
            case 0 | 1:
                size, node = rng.choice([1, 100, 10**5]), rng.choice(NODES)
                world.connect(rng.choice("ab"), rng.choice("ab"), size, node)
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
    # From now on a single limit holds for the whole virtual host.
    for user in "ab":
        world.operate(c.SetUserLimits(user, {}))
    world.operate(c.SetVhostLimits("a", {MAX_PUBLISHES: 200}), c.SetVhostLimits("b", {}))
    world.run(CHECK_S + 2.0)
    here = [each for each in world.connections.values() if each.vhost == "a"]
    before = sum(each.passed for each in here)
    world.run(5.0)
    passed = sum(each.passed for each in here) - before
    assert passed <= 200 * (5 + len(NODES) * BURST_S) + len(here)
    if here:
        assert passed >= 200 * 5 * 0.98
    world.operate(c.SetVhostLimits("a", {}))
    world.run(CHECK_S + 0.1)
    counts = {each: each.passed for each in world.connections.values()}
    world.run(1.0)
    assert all(each.passed > passed for each, passed in counts.items())


# --- on sockets

Basic, Channel, Confirm, Queue, Tx = (
    commands.Basic,
    commands.Channel,
    commands.Confirm,
    commands.Queue,
    commands.Tx,
)
FLOOD = 500
"""Messages that a client sends at once; with frames they are fewer bytes than the node reads while messages wait."""
UNREAD = 2 * (HELD_BYTES_MAX + 16 * 1024) // len(publish(1, "q", b"m"))
"""So many that the client is not read any more, and that the rest is in the node's buffer."""


def set_limit(broker: LoneBroker, limit: int | None) -> None:
    broker.operate(c.ChangeVhostLimits("/", {MAX_PUBLISHES: limit}))


def ready(broker: LoneBroker) -> int:
    return broker.call(lambda: broker.machine.vhosts["/"].queues["q"].ready)


@pytest.fixture
def broker() -> Iterator[LoneBroker]:
    """A broker with a queue, whose publishers may publish a message per second."""
    with LoneBroker() as lone:
        with RawClient(lone.amqp_port) as client:
            client.open_channel(1)
            client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
            client.close()
        set_limit(lone, 1)
        yield lone


def waits(broker: LoneBroker) -> list[bool]:
    """Whether each connection waits: its state is "flow" then."""
    return broker.call(lambda: [*map(broker.broker.throttle.delays, broker.broker.connections)])


def flooding(broker: LoneBroker, *methods: Any, heartbeat: int = 0, count: int = FLOOD) -> RawClient:
    """A client with messages that wait, and behind them methods."""
    client = RawClient(broker.amqp_port, heartbeat=heartbeat)
    client.open_channel(1)
    client.send(1, *methods)
    client.write(b"".join(publish(1, "q", b"m") for _ in range(count)))
    wait_until(lambda: bool(held(broker)), "messages that wait")
    return client


def held(broker: LoneBroker) -> list[int]:
    """The numbers of the connections that wait for a limit."""
    throttle = broker.broker.throttle
    return broker.call(lambda: [number for number in broker.broker.connections if throttle.delays(number)])


def test_second_channel_continues_while_a_channel_is_throttled(broker: LoneBroker) -> None:
    with flooding(broker) as client:
        client.send(1, Queue.Declare(queue="q"))
        client.open_channel(2)
        client.send(2, Basic.Get(queue="q"))
        client.expect_message()
        client.send(2, Basic.Ack(1))
        assert waits(broker) == [True]
        client.call(2, Channel.Close(200, "", 0, 0), Channel.CloseOk)
        set_limit(broker, None)
        assert client.expect(Queue.DeclareOk, 1).message_count >= FLOOD - 3
        assert waits(broker) == [False]


def test_a_client_that_waits_keeps_its_heartbeats(broker: LoneBroker) -> None:
    """Both a client that is read, and a client that is not read because so many of its messages wait."""
    with flooding(broker, heartbeat=1) as client, flooding(broker, heartbeat=1, count=20_000) as much:
        end_s, received = time.monotonic() + SILENT_CHECKS_MAX / HEARTBEAT_CHECKS + 0.5, [b"", b""]
        while time.monotonic() < end_s:
            client.write(HEARTBEAT)
            for number, each in enumerate((client, much)):
                each.socket.settimeout(2)
                received[number] += each.socket.recv(1000)
        assert [each.count(HEARTBEAT) >= 2 for each in received] == [True, True]
        set_limit(broker, None)
        wait_until(lambda: ready(broker) >= FLOOD + 20_000, "all messages")


@pytest.mark.parametrize("closing", [Channel.Close(200, "", 0, 0), commands.Connection.Close(200, "", 0, 0)])
def test_throttled_messages_are_published_before_a_close(broker: LoneBroker, closing: Any) -> None:
    is_channel = isinstance(closing, Channel.Close)
    with flooding(broker) as client:
        client.send(1 if is_channel else 0, closing)
        broker.pass_some_time()
        assert held(broker)
        set_limit(broker, None)
        client.expect(Channel.CloseOk if is_channel else commands.Connection.CloseOk)
        wait_until(lambda: ready(broker) == FLOOD, "all messages")
        assert not held(broker)


def test_close_behind_throttled_messages_needs_no_majority(
    broker: LoneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "CLOSE_GRACE_S", 0.5)
    with flooding(broker) as client:
        client.send(1, Queue.Declare(queue="q"), Queue.Declare(queue="q"))
        client.send(0, commands.Connection.Close(200, "", 0, 0))
        broker.pass_some_time()
        assert held(broker)
        broker.group.holding = True
        broker.learn(c.ChangeVhostLimits("/", {MAX_PUBLISHES: None}))
        client.expect(commands.Connection.CloseOk, 0)
        broker.call(broker.group.release)


def test_stopping_node_does_not_wait_for_throttled_clients(broker: LoneBroker) -> None:
    with flooding(broker) as client, flooding(broker) as leaving:
        leaving.send(0, commands.Connection.Close(200, "", 0, 0))
        broker.pass_some_time()
        for connection in broker.call(lambda: list(broker.broker.connections.values())):
            broker.call(connection.shut_down, "bye")
        client.expect_close(320, "CONNECTION_FORCED - bye")
        leaving.expect(commands.Connection.CloseOk)
        assert not held(broker)
        assert ready(broker) <= 3


@pytest.mark.parametrize("count", [FLOOD, UNREAD])
def test_throttled_messages_of_a_disconnected_client_are_dropped(broker: LoneBroker, count: int) -> None:
    """Also if so much waits that the client is not read any more."""
    for _ in range(5):
        with flooding(broker, count=count):
            pass
    wait_until(lambda: not broker.call(lambda: broker.broker.connections), "the end of the connections")
    assert not broker.broker.throttle._waits_for
    with RawClient(broker.amqp_port) as honest:
        honest.open_channel(1)
        honest.call(1, Confirm.Select(), Confirm.SelectOk)
        honest.write(publish(1, "q", b"m"))
        assert honest.expect(Basic.Ack).delivery_tag == 1


def test_confirms_and_transactions_are_as_without_a_limit(broker: LoneBroker) -> None:
    with flooding(broker, Confirm.Select()) as client, flooding(broker, Tx.Select()) as transaction:
        client.expect(Confirm.SelectOk)
        transaction.expect(Tx.SelectOk)
        transaction.send(1, Tx.Commit())
        set_limit(broker, FLOOD)
        confirmed = 0
        while confirmed < FLOOD:
            confirmed = client.expect(Basic.Ack).delivery_tag
        transaction.expect(Tx.CommitOk)
        assert confirmed == FLOOD
        assert ready(broker) == 2 * FLOOD


def test_http_publishers_get_turns_beside_flooding_clients(broker: LoneBroker) -> None:
    """And takes no more of them than it uses."""
    limit, requests = 200, 20
    set_limit(broker, limit)

    async def publish_over_http() -> None:
        for _ in range(requests):
            async with RequestSession(broker.broker, "/", "guest") as session:
                assert await session.publish(NewMessage("", "q", Basic.Properties(), b"m"))

    with flooding(broker, count=5 * FLOOD):
        before, begun_s = ready(broker), time.monotonic()
        broker.await_on_loop(publish_over_http())
        seconds, came = time.monotonic() - begun_s, ready(broker) - before
    assert came >= min(0.5 * limit * seconds, 2 * requests)
    assert seconds < 5


def test_refused_messages_are_not_charged(broker: LoneBroker) -> None:
    set_limit(broker, 10)
    broker.operate(c.SetPermissions("guest", "/", ".*", "^amq.default$", ".*"))
    with RawClient(broker.amqp_port) as client:
        client.open_channel(1)
        client.write(b"".join(publish(1, "q", b"m", exchange="amq.direct") for _ in range(10)))
        client.expect_close(
            403,
            "ACCESS_REFUSED - write access to exchange 'amq.direct' in vhost '/' refused for user 'guest'",
            channel=1,
        )
        client.send(1, Channel.CloseOk())
        client.open_channel(1)
        client.write(b"".join(publish(1, "q", b"m") for _ in range(10)))
        client.call(1, Queue.Declare(queue="q", passive=True), Queue.DeclareOk)
        assert not held(broker)


# --- reports through the log


def test_published_messages_are_counted_once_per_node() -> None:
    machine = QueueMachine(content_of)
    setup = [
        c.SetVhostLimits("/", {MAX_PUBLISHES: 10}),
        c.PutUser("u", b"salt", b"hash", []),
        c.SetUserLimits("u", {MAX_PUBLISHES: 10}),
        c.SetPermissions("u", "/", "", "", ""),
        c.Connect(1, "/", "u"),
        c.OpenChannel(2, 1),
        *(c.DeclareQueue(2, 1, f"q{n}", False, True, False, False, False, {}) for n in range(3)),
        *(c.BindQueue(2, 1, f"q{n}", "amq.fanout", "", {}) for n in range(3)),
    ]
    fanned = c.Enqueue(2, 0, 2, "amq.fanout", "", False, 1)
    nowhere = c.Enqueue(2, 0, 3, "", "nowhere", True, 1)
    batch = [*setup, fanned, c.Commit(2, 1), c.Enqueue(2, 0, 1, "", "q0", False, 1), nowhere]
    messages = [bytes(10 * (1 + number)) for number in range(6)]
    machine.apply_batch("n2", 1, 0, 8, b"".join(encode_batch(batch, messages)))
    counted = ("n2", 6, sum(map(len, messages)))
    of_user = machine.catalog.access.published["u"]
    for published in (machine.vhosts["/"].published, of_user):
        assert list(published.elsewhere("n1")) == [counted]
        assert list(published.elsewhere("n2")) == []
    machine.apply_batch("n2", 2, 0, 8, b"".join(encode_batch([c.SetUserLimits("u", {})], [])))
    assert not machine.catalog.access.published
