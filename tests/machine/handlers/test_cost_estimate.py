"""Cost limits of an entry: refusals in apply for costs that were unknown when the command was proposed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from pamqp.commands import Basic
from pamqp.common import FieldTable, FieldValue
from pamqp.header import ContentHeader

from qq.machine.catalog.vhost import ROUTES_WIDTH_MAX, VirtualHost
from qq.machine.handlers.cost_estimate import BATCH_STEPS_MAX, PASS_STEPS_MAX
from qq.machine.machine import QueueMachine
from qq.machine.protocol.commands import (
    BindExchange,
    BindQueue,
    Command,
    Commit,
    ConnectionDown,
    DeadLetter,
    DeclareExchange,
    DeleteVhost,
    Get,
    PutVhost,
)
from qq.machine.protocol.effects import Failed
from qq.machine.protocol.work_meter import CONTENT_STEPS, COPIES_MAX, ROUTING_STEPS_MAX
from qq.routing.exchanges import ROUTE_STEPS_MAX
from qq.stored.content import content_of
from tests.machine.machine_driver import Driver, batch, consume, declare, publish, reloaded

WIDE = 1250


def wide() -> QueueMachine:
    """Each message to amq.fanout reaches 1250 queues."""
    machine = QueueMachine()
    names = [f"q{number}" for number in range(WIDE)]
    fanout = [BindQueue(1, 1, name, "amq.fanout", "", {}) for name in names]
    machine.apply_batch("n1", 1, 0, 7, batch([*map(declare, names), *fanout]))
    machine.end_entry(7)
    return machine


def test_messages_of_an_entry_reach_a_limited_number_of_queues() -> None:
    machine = wide()
    publishes = [publish(1, str(number % 2), "amq.fanout", session=number) for number in range(2, 10)]
    effects = machine.apply_batch(
        "n1", 2, 0, 7, batch([*publishes, publish(1, "q0", session=20)], [b"x"] * 9)
    )
    fit = COPIES_MAX // WIDE
    assert [effect.session for effect in effects if isinstance(effect, Failed)] == list(range(2 + fit, 10))
    assert "reach more queues at once than the limit (5000)" in str(effects[0])
    machine.end_entry(7)
    assert machine.vhosts["/"].queues["q0"].ready == fit + 1
    effects = machine.apply_batch("n1", 3, 0, 7, batch([publish(1, "", "amq.fanout")], [b"x"]))
    assert effects == []  # a new entry


def test_transaction_reaches_a_limited_number_of_queues() -> None:
    machine = wide()
    commands = [publish(1, str(number % 2), "amq.fanout", first_seq=0) for number in range(5)]
    [failed] = machine.apply_batch("n1", 2, 0, 7, batch([Commit(1, 5), *commands], [b"x"] * 5))
    assert isinstance(failed, Failed)
    assert "the messages of a transaction reach more queues than the limit (5000)" in failed.text
    assert machine.vhosts["/"].queues["q0"].ready == 0
    effects = machine.apply_batch("n1", 3, 0, 7, batch([Commit(2, 4), *commands[:4]], [b"x"] * 4))
    assert not any(isinstance(effect, Failed) for effect in effects)


PATTERNS = 2000
KEYS = 100


def dear() -> QueueMachine:
    """Each message to amq.topic with a long key goes a dear way, and each to amq.headers is looked into."""
    machine = QueueMachine()
    patterns = [".".join(["#", "ab"[number % 2]] * 31) + f".{number}" for number in range(PATTERNS)]
    # To some queues, since each may have so many.
    bound = [
        BindQueue(1, 1, f"p{number % 2}", "amq.topic", pattern, {}) for number, pattern in enumerate(patterns)
    ]
    fanout = DeclareExchange(1, "f", "fanout", False, True, False, False, {})
    machine.apply_batch("n1", 1, 0, 7, batch([*map(declare, ("q", "p0", "p1")), *bound, fanout]))
    machine.end_entry(7)
    return machine


def dear_key(number: int) -> str:
    return ".".join(["a"] * 120 + [f"x{number}"])


def refused_by(machine: QueueMachine, *commands: Command, messages: int) -> list[int]:
    """The sessions that an entry refuses because of the ways of its messages."""
    effects = machine.apply_batch("n1", 2, 0, 7, batch(commands, [b"x"] * messages))
    failed = [effect for effect in effects if isinstance(effect, Failed)]
    text = f"the ways of messages in vhost '/' take more steps at once than the limit ({ROUTING_STEPS_MAX})"
    assert all(effect.text.endswith(text) for effect in failed)
    return [effect.session for effect in failed]


BIND_TOPIC, BIND_HEADERS = (
    BindExchange(1, "amq.topic", "f", "", {}),
    BindExchange(1, "amq.headers", "f", "", {}),
)
TO_TOPIC = [publish(1, dear_key(number), "f", session=number) for number in range(2, 2 + KEYS)]
ALL_ELSE = publish(1, "q", session=999)


@pytest.mark.parametrize("remembered", [False, True])
def test_routes_that_became_expensive_are_refused_at_the_limit(remembered: bool) -> None:
    machine = dear()
    if remembered:
        for number in range(KEYS):
            machine.vhosts["/"].route("amq.topic", dear_key(number))
        to_topic = [command._replace(exchange="amq.topic") for command in TO_TOPIC]
        refused = refused_by(machine, *to_topic, ALL_ELSE, messages=KEYS + 1)
    else:
        refused = refused_by(machine, BIND_TOPIC, *TO_TOPIC, ALL_ELSE, messages=KEYS + 1)
    assert 10 < len(refused) < KEYS - 5
    assert refused == [number for number, _ in enumerate(TO_TOPIC, 2)][-len(refused) :]
    assert machine._core.work.route_steps["/"] < ROUTING_STEPS_MAX + ROUTE_STEPS_MAX
    machine.end_entry(7)
    assert machine.vhosts["/"].queues["q"].ready == 1
    assert refused_by(machine, publish(1, dear_key(0), "amq.topic"), messages=1) == []  # a new entry


def test_cached_routes_do_not_change_the_refusals() -> None:
    machine = dear()
    for number in range(0, KEYS, 3):
        machine.vhosts["/"].route("amq.topic", dear_key(number))
    other = reloaded(machine)
    entry = [command._replace(exchange="amq.topic") for command in TO_TOPIC]
    found = refused_by(machine, *entry, *entry, messages=2 * KEYS)
    assert found == refused_by(other, *entry, *entry, messages=2 * KEYS)
    assert machine._core.work == other._core.work
    for each in (machine, other):
        each.end_entry(7)
    assert machine.digest() == other.digest()


def test_route_is_counted_again_after_bindings_changed() -> None:
    machine = dear()
    pairs = [(declare(f"new{number}"), TO_TOPIC[0]) for number in range(KEYS)]
    commands = [command for pair in pairs for command in pair]
    assert refused_by(machine, BIND_TOPIC, *commands, messages=KEYS) == [TO_TOPIC[0].session]


def test_content_routing_above_the_step_limit_is_refused() -> None:
    machine = dear()
    count = ROUTING_STEPS_MAX // CONTENT_STEPS + 1
    run = publish(count, "", "f", session=2)
    late = publish(1, "", "f", session=3)
    assert refused_by(machine, BIND_HEADERS, run, late, ALL_ELSE, messages=count + 2) == [2, 3]
    machine.end_entry(7)
    assert machine.vhosts["/"].queues["q"].ready == 1


def test_transaction_with_too_expensive_routes_has_no_effect() -> None:
    machine = dear()
    commands = [publish(1, "q", first_seq=0), *(command._replace(first_seq=0) for command in TO_TOPIC)]
    assert refused_by(machine, BIND_TOPIC, Commit(1, 1 + KEYS), *commands, messages=1 + KEYS) == [1]
    machine.end_entry(7)
    assert machine.vhosts["/"].queues["q"].ready == 0


def test_message_with_too_long_a_route_fails_its_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qq.routing.exchanges.QUEUES_MAX", 2)
    driver = Driver()
    headers = [BindQueue(1, 1, name, "amq.headers", "", {}) for name in "abc"]
    driver.apply(*map(declare, "abc"), *headers)
    for exchange in ("amq.headers", "amq.fanout"):
        driver.apply(*(BindQueue(1, 1, name, "amq.fanout", "", {}) for name in "abc"))
        [failed] = driver.apply(publish(1, "", exchange, session=9), messages=[b"x"])
        assert isinstance(failed, Failed)
        assert failed.text == "the message reaches 3 queues, above the limit (2)"
        driver.machine._core.sessions.clear()


def test_remembered_routes_do_not_fill_the_memory() -> None:
    machine = wide()
    vhost = machine.vhosts["/"]
    for key in range(2 * ROUTES_WIDTH_MAX // WIDE):
        vhost.route("amq.fanout", str(key))
        assert sum(map(len, vhost._routes.values())) <= ROUTES_WIDTH_MAX


def test_deleting_a_virtual_host_does_not_visit_its_bindings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver()
    driver.apply(*map(declare, "abc"), *(consume(number, "a", 5) for number in range(3)))
    driver.apply(DeclareExchange(1, "x", "fanout", False, True, True, False, {}))
    driver.apply(BindExchange(1, "x", "amq.fanout", "", {}), BindQueue(1, 1, "a", "x", "", {}))
    driver.apply(publish(2, "a"), Get(1, 1, 1, 9, "a", False, 0), messages=[b"x"] * 2)
    vhost = driver.machine.vhosts["/"]
    monkeypatch.setattr(VirtualHost, "_remove", None)
    driver.apply(DeleteVhost("/"))
    assert not driver.machine.consumers
    assert not list(driver.machine.queues())
    driver.lead()
    assert driver.machine.due_ms() is None
    assert not vhost.bindings
    driver.apply(PutVhost("/", "", [], ""), declare("new", session=2), ConnectionDown(1))
    assert list(driver.machine.vhosts["/"].queues) == ["new"]


def test_entry_moves_dead_letters_to_a_bounded_number_of_queues() -> None:
    """Each dead letter is routed by itself: 1000 of them, in a single command, once went to 10,000 queues each at
    once.
    """
    machine = wide()
    to_all = [BindQueue(1, 1, f"q{number}", "amq.headers", "", {}) for number in range(WIDE)]
    source = declare("source", x_dead_letter_exchange="amq.headers", x_message_ttl=1)
    machine.apply_batch("n1", 2, 0, 7, batch([*to_all, source]))
    machine.apply_batch("n1", 3, 0, 7, batch([publish(6, "source")], [b"x"] * 6))
    machine.end_entry(7)
    machine.end_entry(8)
    machines = machine, reloaded(machine)
    index, steps = 3, list[int]()
    while queues := list(machine.pending_dead_letters(500)):
        [dead] = queues
        left = sum(part.count for _, part in dead.parts)
        command = DeadLetter(
            "/", "source", dead.number, dead.parts[0][0], left, "", "source", [], [], "", 255, True, {}, {}
        )
        index += 1
        for each in machines:
            each.apply_batch("n1", index, 0, 8, batch([command]))
            each.end_entry(8)
        steps.append(machine.vhosts["/"].queues["q7"].ready)
    assert steps == [3, 6]
    assert machine.digest() == machines[1].digest()
    assert machine.vhosts["/"].queues["source"].dead_count == 0


def test_route_cost_of_dead_letters_counts_in_leader_and_apply() -> None:
    driver = Driver()
    keys = [f"{key}." + ".".join(["#", "*"] * 60) for key in range(20)]
    driver.apply(
        *(declare(name) for name in "ab"), *(BindQueue(1, 1, "a", "amq.topic", key, {}) for key in keys)
    )
    driver.apply(declare("source", x_dead_letter_exchange="amq.topic", x_message_ttl=1))
    driver.apply(publish(20, "source"), messages=[b"x"] * 20)
    driver.time_ms += 10
    driver.apply()
    machine = driver.machine
    [dead] = machine.pending_dead_letters(500)
    commands = [
        DeadLetter(
            "/",
            "source",
            dead.number,
            dead.parts[0][0] + n,
            1,
            "",
            f"{n}" + ".a" * 118,
            [],
            [],
            "",
            255,
            False,
            {},
            {},
        )
        for n in range(20)
    ]
    costs = [machine.costs.steps("n1", command) for command in commands]
    assert min(costs) >= BATCH_STEPS_MAX
    machine.apply_batch("n1", 99, 0, driver.time_ms, batch(commands))
    machine.end_entry(driver.time_ms)
    assert 0 < machine.vhosts["/"].queues["a"].ready < 10


def test_values_within_routed_headers_count_as_cost() -> None:
    machine = QueueMachine(content_of)
    costs = machine.costs
    prices: list[int] = []
    for inside in (0, 400, 40_000):
        costs.begin_pass()
        voids: list[FieldValue] = [None] * inside
        values: list[FieldValue] = [{}, voids]
        price = costs.message_steps("/", "amq.headers", ("",), message({"t": values}))
        assert price is not None
        prices.append(price)
        assert costs.is_budget_spent is (price > PASS_STEPS_MAX)
    assert prices[1] == prices[0] + 200
    assert prices[2] == prices[0] + 20_000 > BATCH_STEPS_MAX
    assert costs.message_steps("/", "amq.headers", ("",), message({})) is None  # until the next pass


def message(headers: FieldTable) -> bytes:
    """The stored form of an empty message."""
    payload = ContentHeader(0, 0, Basic.Properties(headers=headers)).marshal()
    return b"\x02\x00\x01" + len(payload).to_bytes(4, "big") + payload + b"\xce"


def test_death_history_of_a_dead_letter_counts_as_cost() -> None:
    names = [f"d{number}" for number in range(101)]
    driver = Driver()
    for name, following in pairwise([*names, "end"]):
        driver.apply(
            declare(name, x_dead_letter_exchange="", x_dead_letter_routing_key=following, x_message_ttl=1)
        )
    driver.apply(publish(1, names[0]))
    prices: list[int] = []
    for number in range(100):
        driver.time_ms += 1
        driver.apply()
        [dead] = driver.machine.pending_dead_letters(500)
        command = DeadLetter(
            "/", names[number], dead.number, dead.parts[0][0], 1, "", "", [], [], "", 255, False, {}, {}
        )
        prices.append(driver.machine.costs.steps("n1", command))
        assert driver.machine.costs.steps("n1", command._replace(first=dead.parts[0][0] + 1)) == prices[0]
        driver.apply(command)
    assert prices == sorted(prices)
    assert prices[99] > prices[0] + 50
