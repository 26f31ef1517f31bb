"""The order of service among clients; requests are neither lost nor duplicated, and counts return to zero."""

from __future__ import annotations

import gc
import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import settings
from pamqp.commands import Basic

from qq.machine.handlers import core as core_module
from qq.machine.handlers.cost_estimate import BATCH_STEPS_MAX, COMMAND_STEPS, TRANSACTION_STEPS_MAX
from qq.machine.machine import QueueMachine
from qq.machine.protocol.codec import decode_batch, encode_batch
from qq.machine.protocol.commands import (
    BindExchange,
    BindQueue,
    Checkout,
    Commit,
    Credit,
    DeclareExchange,
    DeclareQueue,
    DeleteQueue,
    Discard,
    Enqueue,
    JoinFragments,
    Publish,
    Settle,
    StoreFragment,
)
from qq.machine.protocol.effects import Failed
from qq.sessions.batch import BATCH_BYTES_MAX, STEP_BYTES
from qq.sessions.lanes import AHEAD, QUANTUM, Lane
from qq.sessions.pending_requests import OpenEnqueue
from qq.sessions.submissions import (
    BATCHES_IN_FLIGHT_MAX,
    COST_AT_ONCE,
    COST_IN_FLIGHT_MAX,
    MOMENT_S,
    PACE_S,
    SPACING_S,
    SPARING_S,
    Submissions,
    Urgency,
)
from qq.stored.content import content_of
from qq.stored.editing import make
from qq.stored.properties import NO_PRIORITY, NO_TTL, Attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.group.group import Group
    from cluster.runtime.ports import Runtime
    from qq.sessions.ports import Publisher

EMPTY = b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c\x00\x00" + bytes(8) + b"\x00\x00\xce"
"""The stored form of a message without properties and body."""
FULL_OF_OCTETS = BATCH_BYTES_MAX // STEP_BYTES
"""Steps of a batch that is full of octets."""
PATTERNS = 3000
"""Binding keys with wildcards; a new key of 64 words takes some 2,500 steps beside them."""


class Connection:
    """A client's connection, with the interface that submissions use."""

    vhost = "/"

    def __init__(self) -> None:
        self.lane = Lane(cast("Any", self))
        self.uncommitted_bytes = 0

    def count_uncommitted(self, size: int) -> None:
        self.uncommitted_bytes += size


@dataclass(eq=False)
class Client:
    """A channel with the messages that it published and those that arrived."""

    session: int
    number: int = 1
    confirming: bool = True
    has_failed: bool = False
    published: int = 0
    confirmed: int = 0
    sent_messages: list[bytes] = field(default_factory=list)
    came: list[bytes] = field(default_factory=list)
    stored: bytes = b""
    """The fragments of the next message."""
    connection: Connection = field(default_factory=Connection)
    run: OpenEnqueue | None = None

    def confirm(self, published: int) -> None:
        assert published > self.confirmed
        self.confirmed = published


class World:
    """A node whose batches the test applies."""

    def __init__(self, clients: int) -> None:
        self.machine = QueueMachine(content_of)
        queues = ["q", "p0", "p1", "p2"]
        commands: list[Any] = [
            DeclareQueue(1, 1, name, False, True, False, False, False, {}) for name in queues
        ]
        parts = ["*", "#", "a"]
        for number in range(PATTERNS):
            key = ".".join(parts[number // 3**place % 3] for place in range(8))
            commands.append(BindQueue(1, 1, f"p{number % 3}", "amq.topic", key, {}))
        effects = self.machine.apply_batch("n1", 1, 0, 7, b"".join(encode_batch(commands, [])))
        assert not any(isinstance(effect, Failed) for effect in effects)
        self.machine.end_entry(7)
        self.clients = [Client(2 + number) for number in range(clients)]
        self.batches: list[tuple[list[Any], list[bytes]]] = []
        self.applied = 0
        self._callbacks: list[Callable[[], None]] = []
        self.now_s = 0.0
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self.waiting: list[bool] = []
        """Whether the leader may keep each batch for its next entry."""
        self.submissions = Submissions(
            "n1", cast("Group", self), self.machine, cast("Runtime", self), publish_timeout_s=0.0
        )
        self.submissions.applied(0)

    can_read = False

    def propose(self, payload: Sequence[bytes], _weight: int, *, may_wait: bool) -> int:
        data = b"".join(payload)
        commands, offsets = decode_batch(data)
        messages = [data[start:end] for start, end in pairwise(offsets)]
        first = commands[0] if commands else None
        is_one_part = len(commands) == (1 + first.count if isinstance(first, Commit) else 1)
        assert is_one_part or sum(map(len, messages)) <= BATCH_BYTES_MAX
        self.batches.append((list(commands), messages))
        self.waiting.append(may_wait)
        return len(self.batches)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def monotonic(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._timers.append((self.now_s + delay_s, callback))

    def wait(self, seconds: float) -> None:
        """Advance the clock without applying batches."""
        self.now_s += seconds
        due = [callback for at_s, callback in self._timers if at_s <= self.now_s]
        self._timers = [timer for timer in self._timers if timer[0] > self.now_s]
        for callback in due:
            callback()

    @property
    def under_way(self) -> int:
        """Batches that were submitted and are not applied."""
        return len(self.batches) - self.applied

    def turn(self) -> None:
        """Run a pass of the loop."""
        sent_messages, self._callbacks = self._callbacks, []
        for callback in sent_messages:
            callback()

    def apply(self) -> bool:
        """Apply the next batch; return False if there is none."""
        if self.applied == len(self.batches):
            return False
        commands, messages = self.batches[self.applied]
        self.applied += 1
        by_session = {client.session: client for client in self.clients}
        start, rest = 0, b""
        for command in commands:
            client = by_session.get(getattr(command, "session", 0))
            if isinstance(command, StoreFragment):
                assert client is not None
                client.stored += messages[start]
                start += 1
            elif isinstance(command, JoinFragments):
                assert client is not None
                rest, client.stored = client.stored, b""
            elif isinstance(command, Enqueue | Publish):
                assert client is not None
                beginning, *more = messages[start : start + command.count]
                client.came += [beginning + rest, *more]
                rest = b""
                start += command.count
        self.submissions.applied(self.applied)
        return True

    def settle(self) -> None:
        """Run until no batch is left, without timers: applied batches make room."""
        while self._callbacks or self.under_way:
            self.turn()
            self.apply()

    def publish(
        self, client: Client, exchange: str, key: str, message: bytes, attributes: Attributes | None = None
    ) -> None:
        run = client.run
        is_new = (
            run is None
            or not run.messages
            or (run.exchange, run.routing_key) != (exchange, key)
            or not run.accepts(attributes)
        )
        if run is None or is_new:
            run = OpenEnqueue(
                cast("Publisher", client), client.published + 1, exchange, key, False, attributes
            )
            client.run = run
        client.published += 1
        client.sent_messages.append(message)
        self.submissions.publish(run, [message], is_new=is_new)

    def batches_until_served(self, client: Client, number: int) -> int:
        """Publish the message of a client that has asked for `number` before; how many batches it waited for."""
        self.publish(client, "", "q", b"%d" % number)
        before = self.applied
        while len(client.came) <= number:
            self.turn()
            assert self.apply()
        return self.applied - before


def dear_key(number: int) -> str:
    """Return a new routing key whose route is long."""
    return ".".join("ab"[number >> place & 1] for place in range(64))


def test_modest_client_does_not_wait_for_a_greedy_client() -> None:
    world = World(2)
    greedy, modest = world.clients
    for number in range(200):
        world.publish(greedy, "amq.topic", dear_key(number), b"dear")
    world.turn()
    for number in range(10):
        # Those under way, and its own.
        assert world.batches_until_served(modest, number) <= 3
    assert len(greedy.came) < 150
    world.settle()
    assert greedy.came == greedy.sent_messages


def large(size: int, content: bytes = b"") -> bytes:
    """A message of so many octets of body."""
    return make(Basic.Properties(), content.ljust(size, b".")[:size], 1000)


def test_client_does_not_wait_for_a_whole_large_message() -> None:
    world = World(2)
    world.machine.raise_to(8)
    heavy, light = world.clients
    world.publish(heavy, "", "q", large(16 * 2**20))
    world.publish(heavy, "", "q", large(3))
    for number in range(10):
        # The batches in flight, and its own. At first it does not count as a light client yet.
        assert world.batches_until_served(light, number) <= 3 or number < 2
    assert not heavy.came
    world.settle()
    assert heavy.came == heavy.sent_messages
    assert all(sum(map(len, messages)) <= BATCH_BYTES_MAX for _, messages in world.batches)
    check_counts(world)


def test_large_message_is_not_fragmented_before_version_8() -> None:
    world = World(1)
    [client] = world.clients
    world.publish(client, "", "q", large(8 * 2**20))
    world.settle()
    assert [[type(command) for command in commands] for commands, _ in world.batches] == [[Enqueue]]


@pytest.mark.parametrize("seed", range(5))
def test_large_messages_come_once_in_order_and_whole(seed: int) -> None:
    rng = random.Random(seed)
    world = World(rng.choice([1, 3]))
    world.machine.raise_to(8)
    world.submissions.large_bytes = rng.choice([2, 100, 100_000])
    sizes = [0, 1, 3, 100, 5_000, 300_000]
    for number in range(100):
        client = rng.choice(world.clients)
        attributes = None
        if rng.random() < 0.3:
            attributes = Attributes((), NO_PRIORITY, NO_TTL, 0, "me", client.published)
        exchange = rng.choice(["", "", "amq.topic"])
        size = rng.choice(sizes)
        if size < 5_000 or rng.random() < 0.1:
            world.publish(client, exchange, rng.choice("qr"), large(size, b"%d" % number), attributes)
        if rng.random() < 0.3:
            rng.choice([world.turn, world.apply])()
        if rng.random() < 0.1:
            run = OpenEnqueue(cast("Publisher", client), 0, "", "q", False, None)
            client.sent_messages.append(large(rng.choice(sizes[:4]), b"tx"))
            run.add([client.sent_messages[-1]])
            client.run = None
            world.submissions.commit(client.session, [run], client.connection.lane, lambda _: None)
    world.settle()
    for client in world.clients:
        assert client.came == client.sent_messages
        assert client.confirmed in (client.published, 0)
    check_counts(world)


@pytest.mark.parametrize("more", [3, 30])
def test_new_client_is_served_before_clients_already_served(more: int) -> None:
    world = World(1 + more)
    modest, *greedy = world.clients
    for number, client in enumerate(greedy):
        for each in range(10):
            world.publish(client, "amq.topic", dear_key(number * 10 + each), b"dear")
    for _ in range(10 + more):
        world.turn()
        world.apply()
    world.publish(modest, "", "q", b"x")
    before = world.applied
    while not modest.came:
        world.turn()
        world.apply()
    assert world.applied - before <= COST_IN_FLIGHT_MAX // BATCH_STEPS_MAX + 2  # under way, and its own


def test_expensive_routes_cost_a_second_client_no_batch() -> None:
    """Once a route outside the cache counted as a whole batch."""
    world = World(2)
    greedy, modest = world.clients
    world.publish(greedy, "amq.topic", dear_key(1), b"dear")
    world.publish(greedy, "amq.topic", dear_key(2), b"dear")
    for number in range(100):
        world.publish(modest, "amq.direct", f"new {number}", b"x")
    world.settle()
    assert len(world.batches) <= 4


def test_ack_does_not_overtake_an_earlier_message() -> None:
    world = World(1)
    [client] = world.clients
    lane = client.connection.lane
    for _ in range(4):
        world.publish(client, "", "q", bytes(BATCH_BYTES_MAX))
    world.turn()
    client.run = None
    world.submissions.settle(Settle, 7, 1, 1, lane)
    world.publish(
        client, "", "results", bytes(BATCH_BYTES_MAX - 300)
    )  # replies to the next acknowledged requests
    world.submissions.settle(Settle, 7, 2, 2, lane)
    world.settle()
    commands = [command for commands, _ in world.batches[4:] for command in commands]
    assert [type(command) for command in commands] == [Settle, Enqueue, Settle]


@pytest.fixture
def beside_floods() -> World:
    """Three clients with many requests, and one with a few now and then."""
    world = World(4)
    for client in world.clients[1:]:
        for _ in range(1000):
            world.publish(client, "", "q", bytes(20_000))
    world.turn()
    return world


def test_much_is_in_flight_while_all_clients_flood(beside_floods: World) -> None:
    world = beside_floods
    while world.applied < 40:
        assert world.under_way >= COST_IN_FLIGHT_MAX // FULL_OF_OCTETS
        world.apply()
        world.turn()
    world.settle()


def test_little_is_in_flight_ahead_of_a_modest_client(beside_floods: World) -> None:
    world = beside_floods
    modest = world.clients[0]
    while world.applied < 40:  # the floods have used more than the lead of an idle lane
        world.apply()
    for _ in range(20):
        world.publish(modest, "", "q", b"little")
        world.turn()
        for _ in range(20):
            world.apply()
        before = world.applied
        world.publish(modest, "", "q", b"little")
        world.turn()
        while len(modest.came) < len(modest.sent_messages):
            assert world.apply()
        assert world.applied - before <= COST_AT_ONCE // FULL_OF_OCTETS + 2
    world.settle()


def test_few_commands_are_in_flight_ahead_of_a_light_client() -> None:
    """Messages with ever new keys fill a batch with steps, and have few octets."""
    world = World(2)
    light, flood = world.clients
    for number in range(9000):
        world.publish(flood, "amq.direct", f"new {number}", b"x")
    world.turn()
    for _ in range(4):
        world.apply()
    for _ in range(10):
        world.publish(light, "", "q", b"little")
        world.turn()
        for _ in range(4):
            world.apply()
        before = world.applied
        world.publish(light, "", "q", b"little")
        world.turn()
        while len(light.came) < len(light.sent_messages):
            assert world.apply()
            world.turn()
        ahead = world.batches[before : world.applied]
        assert sum(len(commands) for commands, _ in ahead) <= 2 * COST_AT_ONCE // COMMAND_STEPS
    world.settle()


def keeping_pace(world: World) -> World:
    """A light client works beside the floods, and no more batches are in flight than that allows."""
    for _ in range(40):
        world.apply()
    world.publish(world.clients[0], "", "q", b"little")
    world.turn()
    while world.under_way > 2:
        world.apply()
    return world


def test_a_log_that_takes_long_gets_more_at_a_pace(beside_floods: World) -> None:
    world = keeping_pace(beside_floods)
    found = [world.under_way]
    for _ in range(30):
        world.wait(PACE_S)
        found.append(world.under_way)
    assert found == sorted(found)
    assert all(more - fewer <= 1 for fewer, more in pairwise(found))
    assert found[-1] >= COST_IN_FLIGHT_MAX // FULL_OF_OCTETS
    world.settle()


def test_pacing_ends_when_no_modest_client_was_seen_for_a_while(beside_floods: World) -> None:
    world = keeping_pace(beside_floods)
    world.wait(SPARING_S)
    world.apply()
    assert world.under_way >= COST_IN_FLIGHT_MAX // FULL_OF_OCTETS
    world.settle()


def test_lazy_command_joins_the_next_command() -> None:
    world = World(1)
    [client] = world.clients
    world.submissions.settle(Settle, 1, 1, 1, client.connection.lane, Urgency.WITH_NEXT_REQUEST)
    world.turn()
    assert not world.batches
    world.publish(client, "", "q", b"next")
    world.turn()
    assert [[type(command) for command in commands] for commands, _ in world.batches] == [[Settle, Enqueue]]


def test_lazy_command_is_submitted_after_a_moment() -> None:
    world = World(1)
    lane = world.clients[0].connection.lane
    for number in range(3):
        world.submissions.settle(Settle, 1, number, number, lane, Urgency.WITH_NEXT_REQUEST)
        world.submissions.credit(2, 1, lane, is_urgent=False)
    world.turn()
    world.wait(MOMENT_S / 2)
    assert not world.batches
    world.wait(MOMENT_S / 2)
    [(commands, _)] = world.batches
    assert commands == [Settle(1, 0, 2), *3 * [Credit(2, 1)]]


def test_settlement_for_the_next_entry_is_submitted_alone() -> None:
    world = World(1)
    lane = world.clients[0].connection.lane
    world.submissions.settle(Settle, 1, 1, 1, lane, Urgency.WITH_NEXT_ENTRY)
    world.turn()
    assert world.waiting == [True]
    world.submissions.settle(Settle, 1, 2, 2, lane, Urgency.WITH_NEXT_ENTRY)
    world.turn()
    assert world.waiting == [True], "a second batch waits at the leader"
    world.wait(MOMENT_S)
    assert world.waiting == [True, False]


def test_publish_does_not_wait_behind_a_batch_at_the_leader() -> None:
    world = World(1)
    [client] = world.clients
    world.submissions.settle(Settle, 1, 1, 1, client.connection.lane, Urgency.WITH_NEXT_ENTRY)
    world.turn()
    world.publish(client, "", "q", b"next")
    world.turn()
    assert world.waiting == [True, False]


def test_settlement_for_the_next_entry_does_not_delay_a_publish() -> None:
    world = World(1)
    [client] = world.clients
    world.submissions.settle(Settle, 1, 1, 1, client.connection.lane, Urgency.WITH_NEXT_ENTRY)
    world.publish(client, "", "q", b"next")
    world.turn()
    assert world.waiting == [False]
    assert [[type(command) for command in commands] for commands, _ in world.batches] == [[Settle, Enqueue]]


def test_next_settlement_may_wait_when_the_last_is_applied() -> None:
    world = World(1)
    lane = world.clients[0].connection.lane
    for number in range(3):
        world.submissions.settle(Settle, 1, number, number, lane, Urgency.WITH_NEXT_ENTRY)
        world.turn()
        world.apply()
    assert world.waiting == 3 * [True]


def test_urgent_command_takes_lazy_commands_with_it() -> None:
    world = World(1)
    lane = world.clients[0].connection.lane
    world.submissions.settle(Settle, 1, 1, 1, lane, Urgency.WITH_NEXT_REQUEST)
    world.submissions.settle(Settle, 1, 2, 2, lane)
    world.turn()
    [(commands, _)] = world.batches
    assert commands == [Settle(1, 1, 2)]


def test_partial_batch_follows_when_the_last_is_applied_or_late() -> None:
    world = World(1)
    [client] = world.clients
    for number in range(3):
        world.publish(client, "", "q", b"%d" % number)
        world.turn()
    assert world.under_way == 1
    world.apply()
    assert client.came == [b"0"]
    assert world.under_way == 1
    world.publish(client, "", "q", b"3")
    world.turn()
    world.wait(SPACING_S)
    assert world.under_way == BATCHES_IN_FLIGHT_MAX
    world.publish(client, "", "q", b"4")
    world.turn()
    world.wait(SPACING_S)
    assert world.under_way == BATCHES_IN_FLIGHT_MAX
    world.settle()
    assert client.came == client.sent_messages


def test_equal_shares_of_a_batch() -> None:
    world = World(4)
    for client in world.clients:
        for _ in range(BATCH_STEPS_MAX):
            world.publish(client, "", "q", bytes(1000))
    world.turn()
    while world.applied < 8:
        assert world.apply()
        world.turn()
    served = [len(client.came) for client in world.clients]
    assert max(served) - min(served) <= 2 * QUANTUM
    assert max(served) - min(served) <= AHEAD
    world.settle()


def tenants(world: World, first: int) -> None:
    """Put the first clients into one virtual host, and the rest into a second one."""
    for number, client in enumerate(world.clients):
        client.connection.lane.tenant = world.submissions.tenant("one" if number < first else "other")


@pytest.mark.parametrize("more", [1, 25])
def test_tenant_keeps_its_share_against_many_connections(more: int) -> None:
    world = World(1 + more)
    tenants(world, 1)
    for client in world.clients:
        for _ in range(3000 if client is world.clients[0] else 3000 // more):
            world.publish(client, "", "q", bytes(2000))
    world.turn()
    while world.applied < 20:
        assert world.apply()
        world.turn()
    mine, *theirs = [len(client.came) for client in world.clients]
    assert mine == pytest.approx(sum(theirs), rel=0.1)
    world.settle()
    assert all(client.came == client.sent_messages for client in world.clients)


@pytest.mark.parametrize("more", [1, 25])
def test_light_tenant_waits_equally_beside_1_and_25_floods(
    more: int,
) -> None:
    world = World(2 + more)
    tenants(world, 2)  # with a flood, so that the tenant has no slot reserved for it
    modest = world.clients[0]
    for client in world.clients[1:]:
        for _ in range(3000):
            world.publish(client, "", "q", bytes(2000))
    world.turn()
    while world.applied < 20:
        world.apply()
        world.turn()
    for _ in range(10):
        world.publish(modest, "", "q", b"little")
        before = world.applied
        while len(modest.came) < len(modest.sent_messages):
            world.turn()
            assert world.apply()
        # Those under way, the turn of the other tenant, its own.
        assert world.applied - before <= COST_IN_FLIGHT_MAX // FULL_OF_OCTETS + 4
        for _ in range(5):
            world.apply()


def test_tenant_is_forgotten_with_its_last_lane() -> None:
    world = World(2)
    tenants(world, 1)
    known = world.submissions._lanes
    world.publish(world.clients[0], "", "q", bytes(20_000))
    world.settle()
    assert known.tenant("one") is world.clients[0].connection.lane.tenant
    assert known.tenant("one").time > known.tenant("other").time
    del world.clients[1]
    gc.collect()
    assert list(known._tenants) == ["one"]


def test_too_expensive_transaction_is_refused_without_effect() -> None:
    world = World(1)
    client = world.clients[0]
    refused: list[int] = []
    runs: list[OpenEnqueue] = []
    for number in range(60):
        run = OpenEnqueue(cast("Publisher", client), 0, "amq.topic", dear_key(number), False, None)
        run.add([b"x"])
        runs.append(run)
    world.submissions.commit(client.session, runs, client.connection.lane, refused.append)
    world.settle()
    assert len(refused) == 1
    assert refused[0] > TRANSACTION_STEPS_MAX
    assert not world.batches
    check_counts(world)


def commit(world: World, client: Client, runs: Sequence[OpenEnqueue], refused: list[int]) -> None:
    world.submissions.commit(client.session, runs, client.connection.lane, refused.append)


def run_of(client: Client, exchange: str, key: str, messages: list[bytes]) -> OpenEnqueue:
    """Of a transaction."""
    run = OpenEnqueue(cast("Publisher", client), 0, exchange, key, False, None)
    run.add(messages)
    return run


def test_refused_transactions_do_not_delay_a_second_client() -> None:
    """A refusal costs only the check of its routes, which once was not counted."""
    world = World(2)
    greedy, modest = world.clients
    refused: list[int] = []
    for number in range(8):
        runs = [run_of(greedy, "amq.topic", dear_key(60 * number + each), [b"x"]) for each in range(60)]
        commit(world, greedy, runs, refused)
    world.publish(modest, "", "q", b"x")
    world.turn()
    world.apply()
    world.publish(modest, "amq.topic", "a.new.key", b"x")
    for _ in range(3):
        world.turn()
        world.apply()
    assert len(modest.came) == 2
    world.settle()
    assert len(refused) == 8
    check_counts(world)


def test_modest_client_precedes_large_transactions() -> None:
    world = World(9)
    modest, *greedy = world.clients
    for number in range(20):
        world.batches_until_served(modest, number)
    refused: list[int] = []
    for client in greedy:
        for _ in range(2):
            commit(world, client, [run_of(client, "", "q", [bytes(2_000_000)])], refused)
    for number in range(20, 30):
        assert world.batches_until_served(modest, number) <= 2  # the batch in flight, and its own
    world.settle()
    assert [len(client.came) for client in greedy] == [2] * len(greedy)
    assert not refused
    check_counts(world)


def test_cost_of_transactions_is_computed_in_several_turns() -> None:
    world = World(1)
    [client] = world.clients
    exchanges = [f"x{number}" for number in range(60)]
    commands = [
        command
        for name in exchanges
        for command in (
            DeclareExchange(1, name, "fanout", False, True, False, False, {}),
            BindExchange(1, name, "amq.headers", "", {}),
        )
    ]
    world.machine.apply_batch("n1", 2, 0, 7, b"".join(encode_batch(commands, [])))
    refused: list[int] = []
    for _ in range(10):
        commit(world, client, [run_of(client, "amq.headers", "", [EMPTY] * 100_000)], refused)
    world.turn()
    assert len(refused) == 1
    assert refused[0] < 2 * TRANSACTION_STEPS_MAX  # not all of its messages were looked into
    world.settle()
    assert len(refused) == 10
    check_counts(world)


def check_counts(world: World) -> None:
    """Assert that applied work is not counted any more."""
    submissions = world.submissions
    assert submissions.pending_bytes == 0
    assert submissions._cost_in_flight == 0
    assert [client.connection.uncommitted_bytes for client in world.clients] == [0] * len(world.clients)


def test_command_cost_is_that_at_its_submission() -> None:
    """While it waits, further clients may bind the queue that it deletes, a thousand times."""
    world = World(1)
    names = ["d0", "d1", "d2"]
    declared = [DeclareQueue(1, 1, name, False, True, False, False, False, {}) for name in names]
    world.machine.apply_batch("n2", 2, 0, 7, b"".join(encode_batch(declared, [])))
    for name in names:
        world.submissions.add(DeleteQueue(1, 1, name, False, False), world.clients[0].connection.lane)
    bindings = [
        BindQueue(1, 1, name, "amq.direct", f"{name}.{number}", {}) for name in names for number in range(300)
    ]
    world.machine.apply_batch("n2", 3, 0, 7, b"".join(encode_batch(bindings, [])))
    world.settle()
    assert [[command.name for command in commands] for commands, _ in world.batches] == [
        [name] for name in names
    ]


@pytest.mark.seeds
@pytest.mark.parametrize("seed", range(settings.default.max_examples // 5))
def test_submitted_commands_are_applied_once_in_order(seed: int) -> None:
    rng = random.Random(seed)
    world = World(rng.choice([1, 2, 5]))
    tenants(world, rng.choice([0, 1, 2]))
    called: list[int] = []
    barriers = 0
    sizes = [0, 12, 1000, 100_000, BATCH_BYTES_MAX, 3 * BATCH_BYTES_MAX]
    for _ in range(rng.choice([30, 200])):
        client = rng.choice(world.clients)
        lane = client.connection.lane
        match rng.randrange(10):
            case 0:
                world.publish(client, "amq.topic", dear_key(rng.getrandbits(64)), b"dear")
            case 1 | 2 | 3:
                key, attributes = rng.choice("qr"), None
                if rng.random() < 0.3:
                    attributes = Attributes((), NO_PRIORITY, NO_TTL, 0, "me", client.published)
                for number in range(rng.choice([1, 1, 10, 10, 1000])):
                    size = rng.choice(sizes) if number < 3 else 12
                    follows = attributes and attributes._replace(publish_seq=attributes.publish_seq + number)
                    world.publish(
                        client, "", key, b"%d-%d" % (len(client.sent_messages), size) + bytes(size), follows
                    )
            case 4:
                first = rng.randrange(100)
                for offset in range(rng.randrange(1, 4)):
                    kind = rng.choice([Settle, Discard])
                    world.submissions.settle(kind, 1, first + offset, first + offset, lane)
            case 5:
                world.submissions.add(Credit(1, 1), lane)
                client.run = None
            case 6:
                world.submissions.read_barrier(lambda: called.append(1), lane)
                barriers += 1
            case 7:
                run = OpenEnqueue(cast("Publisher", client), 0, "", "q", False, None)
                message = b"tx %d" % len(client.sent_messages)
                run.add([message])
                client.sent_messages.append(message)
                client.run = None
                world.submissions.commit(
                    client.session, [run, Settle(1, 1, 1)], client.connection.lane, called.append
                )
            case 8:
                world.turn()
            case _:
                world.apply()
        assert world.submissions._cost_in_flight <= COST_IN_FLIGHT_MAX + 2 * 4 * BATCH_STEPS_MAX
    world.settle()
    for client in world.clients:
        assert client.came == client.sent_messages
        assert client.confirmed in (client.published, 0)
    assert len(called) == barriers
    commits = [
        command for commands, _ in world.batches for command in commands if isinstance(command, Commit)
    ]
    assert all(commit.count == 2 for commit in commits)
    check_counts(world)


def test_commands_wait_until_lost_sessions_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the first command would have the cluster end all of that at once."""
    monkeypatch.setattr(core_module, "LOST_MAX", 1)
    world = World(1)
    machine = world.machine
    sent_messages = [
        Checkout(1, 1, 1, number, "q", f"t{number}", 1, *[False] * 5, 0, {}) for number in range(10)
    ]
    machine.apply_batch("n1", 2, 0, 7, b"".join(encode_batch(sent_messages, [])))
    machine.origin_down("n1", 7, evicted=True)
    world.publish(world.clients[0], "", "q", b"x")
    while machine.has_lost_sessions("n1"):
        world.turn()
        assert not world.batches
        machine.end_entry(7)
        world.submissions.entry_applied()
    world.settle()
    assert world.clients[0].came == [b"x"]


@pytest.mark.parametrize("is_submitted", [False, True])
def test_barriers_wait_for_the_next_incarnation_when_evicted(*, is_submitted: bool) -> None:
    """Before that, the node may lack entries, and a read after the barrier would show an old state."""
    world = World(1)
    called: list[bool] = []
    world.submissions.read_barrier(lambda: called.append(True), world.clients[0].connection.lane)
    if is_submitted:
        world.turn()
        assert world.under_way
    world.submissions.abandon()
    world.batches.clear()
    world.turn()
    assert not called
    world.submissions.applied(0)
    world.turn()
    assert world.under_way
    assert not called
    world.settle()
    assert called == [True]


def test_commands_wait_until_the_cluster_knows_the_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leftovers of an earlier process are unknown until then; the same holds after the end of this process."""
    monkeypatch.setattr(core_module, "LOST_MAX", 1)
    world = World(1)
    machine, submissions = world.machine, world.submissions
    sent_messages = [
        Checkout(1, 1, 1, number, "q", f"t{number}", 1, *[False] * 5, 0, {}) for number in range(10)
    ]
    machine.apply_batch("n1", 2, 0, 7, b"".join(encode_batch(sent_messages, [])))
    submissions.abandon()
    world.publish(world.clients[0], "", "q", b"x")
    world.turn()
    submissions.entry_applied()
    assert not world.batches
    machine.origin_down("n1", 7, evicted=False)  # by the first batch of the new life
    submissions.applied(0)
    assert not world.batches
    while machine.has_lost_sessions("n1"):
        machine.end_entry(7)
    submissions.entry_applied()
    assert len(world.batches) == 1
