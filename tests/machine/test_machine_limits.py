from __future__ import annotations

import tracemalloc
from itertools import pairwise
from typing import Any

import pytest

from qq.machine.catalog.vhost import ROUTES_MAX
from qq.machine.machine import QueueMachine
from qq.machine.protocol import commands as c
from qq.machine.protocol.codec import pack
from qq.machine.protocol.commands import (
    BindExchange,
    BindQueue,
    Credit,
    DeclareExchange,
    DeclareQueue,
    DeleteQueue,
    DeleteUser,
    PutUser,
    Settle,
)
from qq.machine.protocol.effects import Deliver, QueueDeclared, Reply
from qq.machine.queue.consumers import CREDIT_MAX
from qq.machine.snapshot.state import MalformedDump
from qq.ranges import Range
from tests.machine.machine_driver import Driver, batch, consume, declare, publish, reloaded


def test_consumer_gets_a_whole_run_as_a_single_range() -> None:
    driver = Driver()
    driver.apply(declare("q"), consume(1, "q", 1000))
    effects = driver.apply(publish(500), messages=[b"x"] * 500)
    assert effects == [Deliver("n1", 1, 1, 0, [Range(2, 0, 500, size=500)], {}, None)]
    assert driver.apply(Settle(1, 0, 499)) == []


def test_a_great_backlog_is_shared_out_in_few_ranges() -> None:
    driver = Driver()
    driver.apply(declare("q"))
    driver.apply(publish(8_000), messages=[b""] * 8_000)
    effects = driver.apply(*(consume(number, "q", CREDIT_MAX) for number in range(4)))
    delivered = [effect for effect in effects if isinstance(effect, Deliver)]
    assert [sum(r.count for r in effect.ranges) for effect in delivered] == [2_000] * 4
    assert [len(effect.ranges) for effect in delivered] == [8] * 4


def test_slots_name_the_batch_and_the_message() -> None:
    machine = QueueMachine()
    machine.apply_batch("n1", 1, 0, 9, batch([declare("q"), consume(1, "q", 9)]))
    machine.apply_batch("n1", 1, 3, 9, batch([publish(2, "none"), publish(1)], [b"xx", b"x", b"xxx"]))
    assert machine.end_entry(9) == [Deliver("n1", 1, 1, 0, [Range(1, 3 << 24 | 2, 1, size=3)], {}, None)]


def traced_bytes(message: c.Command, *, arguments: dict[str, Any]) -> float:
    """Return the memory of each of many messages in a queue."""
    machine = QueueMachine()
    machine.apply_batch(
        "n1", 1, 0, 1_000, batch([DeclareQueue(1, 1, "q", False, True, False, False, False, arguments)])
    )
    payload = batch([message], [b"x"])
    warm, runs = 2_500, 5_000
    tracemalloc.start()
    before = 0
    for step in range(warm + runs):
        # The interpreter keeps some freed tuples of each length; they are there after the first rounds.
        if step == warm:
            before, _ = tracemalloc.get_traced_memory()
        machine.apply_batch("n1", 2 + step, 0, 1_000 + step, payload)
        machine.end_entry(1_000 + step)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert machine.vhosts["/"].queues["q"].messages == warm + runs
    return (after - before) / runs


def test_a_backlog_costs_no_object_per_run() -> None:
    assert traced_bytes(publish(1), arguments={}) < 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        (publish(1, delay_ms=60_000), {}),
        (publish(1, ttl_ms=60_000), {}),
        (publish(1), {"x-message-ttl": 60_000}),
        (publish(1, priority=9), {"x-queue-type": "quorum"}),
    ],
    ids=["delayed", "own-ttl", "queue-ttl", "high"],
)
def test_waiting_message_costs_a_bounded_number_of_octets(
    message: c.Command, arguments: dict[str, Any]
) -> None:
    assert traced_bytes(message, arguments=arguments) < 150


def test_credit_does_not_grow_beyond_its_limit() -> None:
    driver = Driver()
    driver.apply(declare("q"), consume(1, "q", 2**64 - 1), *[Credit(1, 2**64 - 1)] * 3)
    assert driver.machine.consumers["n1", 1].credit == CREDIT_MAX
    reloaded(driver.machine)


def test_long_chain_of_auto_delete_exchanges_is_deleted_at_once() -> None:
    driver = Driver()
    links = 3_000
    names = [f"x{link}" for link in range(links)]
    driver.apply(
        declare("q"), *(DeclareExchange(1, x, "fanout", False, False, True, False, {}) for x in names)
    )
    driver.apply(*(BindExchange(1, name, source, "", {}) for name, source in pairwise(names)))
    driver.apply(BindQueue(1, 1, "q", "x0", "", {}))
    driver.apply(publish(1, exchange=names[-1]), messages=[b""])
    assert driver.machine.vhosts["/"].queues["q"].ready == 1
    driver.apply(DeleteQueue(1, 1, "q", False, False))
    assert [name for name in driver.machine.vhosts["/"].exchanges if name.startswith("x")] == []
    assert driver.machine.vhosts["/"].bindings == {}


def test_ever_new_routing_keys_do_not_fill_the_memory() -> None:
    driver = Driver()
    driver.apply(*(publish(1, str(i)) for i in range(ROUTES_MAX + 5)), messages=[b""] * (ROUTES_MAX + 5))
    assert len(driver.machine.vhosts["/"]._routes) == 5


def test_line_ends_are_dropped_from_names() -> None:
    driver = Driver()
    assert driver.apply(declare("a\r\nb")) == [Reply("n1", 1, QueueDeclared("ab", 0, 0), 1)]
    assert driver.apply(declare("a\nb")) == [Reply("n1", 1, QueueDeclared("ab", 0, 0), 2)]


def test_users_are_put_replaced_and_deleted() -> None:
    driver = Driver()
    driver.apply(PutUser("u", b"s", b"1", ["administrator"]), PutUser("v", b"s", b"2", []))
    driver.apply(PutUser("u", b"t", b"3", []), DeleteUser("v"), DeleteUser("v"))
    machine = reloaded(driver.machine)
    assert [tuple(user) for user in machine.users.values()] == [("u", b"t", b"3", [], "sha256")]


def test_predeclared_exchanges_exist() -> None:
    machine = reloaded(QueueMachine())
    assert {name: exchange.type for name, exchange in machine.vhosts["/"].exchanges.items()} == {
        "": "direct",
        "amq.direct": "direct",
        "amq.fanout": "fanout",
        "amq.topic": "topic",
        "amq.headers": "headers",
        "amq.match": "headers",
        "amq.rabbitmq.trace": "topic",
    }


@pytest.mark.parametrize("data", [b"", b"\xc1", pack([]), pack({}), pack([99]), pack("state")])
def test_invalid_dump_is_refused(data: bytes) -> None:
    machine = QueueMachine()
    before = machine.digest()
    with pytest.raises(MalformedDump):
        machine.adopt(machine.read(data))
    assert machine.digest() == before
