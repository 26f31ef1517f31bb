from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from machine_driver import Driver, batch, reloaded

from qq.machine.catalog import ROUTES_MAX
from qq.machine.codec import pack
from qq.machine.commands import (
    BindExchange,
    BindQueue,
    Checkout,
    Credit,
    DeclareExchange,
    DeclareQueue,
    DeleteQueue,
    DeleteUser,
    Enqueue,
    PutUser,
    Settle,
)
from qq.machine.effects import Deliver, QueueDeclared, Reply
from qq.machine.machine import QueueMachine
from qq.machine.queue import CREDIT_MAX
from qq.machine.state import MalformedDump
from qq.ranges import Range


def declare(name: str) -> DeclareQueue:
    return DeclareQueue(1, 1, name, False, True, False, False, {})


def consume(number: int, queue: str, credit: int) -> Checkout:
    return Checkout(1, 1, number, queue, str(number), credit, False, False, True, False, {})


def publish(count: int, key: str = "q", exchange: str = "") -> Enqueue:
    return Enqueue(1, 1, count, exchange, key, False, 1)


def test_one_consumer_gets_a_whole_run_as_one_range() -> None:
    driver = Driver()
    driver.apply(declare("q"), consume(1, "q", 1000))
    effects = driver.apply(publish(500), messages=[b"x"] * 500)
    assert effects == [Deliver("n1", 1, 1, 0, [Range(2, 0, 500, 0)])]
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
    machine.apply_batch("n1", 1, 0, 0, batch([declare("q"), consume(1, "q", 9)]))
    machine.apply_batch("n1", 1, 3, 0, batch([publish(2, "none"), publish(1)], [b"x"] * 3))
    assert machine.end_entry() == [Deliver("n1", 1, 1, 0, [Range(1, 3 << 24 | 2, 1, 0)])]


def test_a_backlog_costs_no_object_per_run() -> None:
    driver = Driver()
    driver.apply(declare("q"))
    runs = 5_000
    tracemalloc.start()
    # The interpreter keeps some freed tuples of each length; they are there after the first rounds.
    for _ in range(2_500):
        driver.apply(publish(1), messages=[b"x"])
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(runs):
        driver.apply(publish(1), messages=[b"x"])
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < runs * 20


def test_credit_does_not_grow_beyond_its_limit() -> None:
    driver = Driver()
    driver.apply(declare("q"), consume(1, "q", 2**64 - 1), *[Credit(1, 2**64 - 1)] * 3)
    assert driver.machine.consumers["n1", 1].credit == CREDIT_MAX
    reloaded(driver.machine)


def test_a_long_chain_of_auto_delete_exchanges_goes_at_once() -> None:
    driver = Driver()
    links = 3_000
    names = [f"x{link}" for link in range(links)]
    driver.apply(
        declare("q"), *(DeclareExchange(1, x, "fanout", False, False, True, False, {}) for x in names)
    )
    driver.apply(*(BindExchange(1, name, source, "", {}) for name, source in pairwise(names)))
    driver.apply(BindQueue(1, 1, "q", "x0", "", {}))
    driver.apply(publish(1, exchange=names[-1]), messages=[b""])
    assert driver.machine.queues["q"].ready == 1
    driver.apply(DeleteQueue(1, 1, "q", False, False))
    assert [name for name in driver.machine.exchanges if name.startswith("x")] == []
    assert driver.machine.bindings == []


def test_ever_new_routing_keys_do_not_fill_the_memory() -> None:
    driver = Driver()
    driver.apply(*(publish(1, str(i)) for i in range(ROUTES_MAX + 5)), messages=[b""] * (ROUTES_MAX + 5))
    assert len(driver.machine._catalog._routes) == 5


def test_line_ends_are_dropped_from_names() -> None:
    driver = Driver()
    assert driver.apply(declare("a\r\nb")) == [Reply("n1", 1, QueueDeclared("ab", 0, 0), 1)]
    assert driver.apply(declare("a\nb")) == [Reply("n1", 1, QueueDeclared("ab", 0, 0), 2)]


def test_users_are_put_replaced_and_deleted() -> None:
    driver = Driver()
    driver.apply(PutUser("u", b"s", b"1", ["administrator"]), PutUser("v", b"s", b"2", []))
    driver.apply(PutUser("u", b"t", b"3", []), DeleteUser("v"), DeleteUser("v"))
    machine = reloaded(driver.machine)
    assert [tuple(user) for user in machine.users.values()] == [("u", b"t", b"3", [])]


def test_the_predeclared_exchanges_are_there() -> None:
    machine = reloaded(QueueMachine())
    assert {name: exchange.type for name, exchange in machine.exchanges.items()} == {
        "": "direct",
        "amq.direct": "direct",
        "amq.fanout": "fanout",
        "amq.topic": "topic",
        "amq.headers": "headers",
        "amq.match": "headers",
        "amq.rabbitmq.trace": "topic",
    }


@pytest.mark.parametrize("data", [b"", b"\xc1", pack([]), pack({}), pack([99]), pack("state")])
def test_what_is_not_a_dump_is_refused(data: bytes) -> None:
    machine = QueueMachine()
    before = machine.digest()
    with pytest.raises(MalformedDump):
        machine.load(data)
    assert machine.digest() == before
