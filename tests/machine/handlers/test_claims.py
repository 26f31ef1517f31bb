"""Claims of a node that may be dead bar commands of other clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from qq.machine.protocol.commands import (
    BindQueue,
    Connect,
    DeclareQueue,
    DeleteQueue,
    Get,
    OpenChannel,
    PurgeQueue,
    PutUser,
    PutVhost,
    SetPermissions,
    SetUserLimits,
    SetVhostLimits,
    UnbindQueue,
)
from qq.machine.protocol.effects import Failed
from qq.machine.protocol.work_meter import LOST_MAX, QUEUES_GONE_MAX
from tests.machine.machine_driver import Driver, consume, declare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.machine.protocol.commands import Command

GONE, OTHER = "n1", "n2"
CONNECTION, SESSION = 1, 2
"""The numbers that clients have, at either node."""


def own(name: str) -> DeclareQueue:
    return DeclareQueue(SESSION, CONNECTION, name, False, False, True, False, False, {})


def brief(name: str) -> DeclareQueue:
    return DeclareQueue(SESSION, CONNECTION, name, False, False, False, True, False, {})


def takes(queue: str, *, exclusive: bool = False, number: int = 1) -> Command:
    return consume(number, queue, 1, SESSION)._replace(exclusive=exclusive)


class Row(NamedTuple):
    held: list[Command]
    """The commands of the client at the dead node."""
    wanted: Command
    limits: Sequence[Command] = ()


SHARED = declare("q", SESSION)
ROWS = {
    "exclusive queue": Row([own("q")], own("q")),
    "exclusive queue, asked for": Row([own("q")], own("q")._replace(passive=True)),
    "exclusive queue, consumed": Row([own("q")], takes("q")),
    "exclusive queue, got from": Row([own("q")], Get(SESSION, CONNECTION, 1, 9, "q", True, 0)),
    "exclusive queue, purged": Row([own("q")], PurgeQueue(SESSION, CONNECTION, "q")),
    "exclusive queue, deleted": Row([own("q")], DeleteQueue(SESSION, CONNECTION, "q", False, False)),
    "exclusive queue, bound": Row([own("q")], BindQueue(SESSION, CONNECTION, "q", "amq.fanout", "", {})),
    "exclusive queue, unbound": Row([own("q")], UnbindQueue(SESSION, CONNECTION, "q", "amq.fanout", "", {})),
    "queue with its only consumer": Row([brief("q"), takes("q")], SHARED),
    "exclusive consumer": Row([SHARED, takes("q", exclusive=True)], takes("q")),
    "consumer": Row([SHARED, takes("q")], takes("q", exclusive=True)),
    "consumer that bars a deletion": Row(
        [SHARED, takes("q")], DeleteQueue(SESSION, CONNECTION, "q", True, False)
    ),
    "connection of a virtual host": Row(
        [], Connect(9, "/", "guest"), [SetVhostLimits("/", {"max-connections": 2})]
    ),
    "connection of a user": Row(
        [], Connect(9, "/", "guest"), [SetUserLimits("guest", {"max-connections": 2})]
    ),
    "channel of a user": Row([], OpenChannel(9, CONNECTION), [SetUserLimits("guest", {"max-channels": 2})]),
    "queue of a virtual host": Row(
        [own("mine")], declare("q", SESSION), [SetVhostLimits("/", {"max-queues": 1})]
    ),
    "queue that goes with its consumer": Row(
        [brief("mine"), takes("mine")], declare("q", SESSION), [SetVhostLimits("/", {"max-queues": 1})]
    ),
}
REFUSED_AFTERWARDS = {
    "exclusive queue, asked for",
    "exclusive queue, consumed",
    "exclusive queue, got from",
} | {f"exclusive queue, {done}" for done in ("purged", "bound")}
"""Rows in which the queue ends with its node: then the log refuses the command, because the queue is missing."""


def driver_of(row: Row) -> Driver:
    driver = Driver()
    driver.apply(
        PutUser("guest", b"", b"", []),
        SetPermissions("guest", "/", ".*", ".*", ".*"),
        PutVhost("other", "", [], ""),
        *row.limits,
    )
    for node in (GONE, OTHER):
        driver.apply(Connect(CONNECTION, "/", "guest"), OpenChannel(SESSION, CONNECTION), node=node)
    driver.apply(*row.held, node=GONE)
    return driver


def refusals(driver: Driver, command: Command) -> list[Failed]:
    return [effect for effect in driver.apply(command, node=OTHER) if isinstance(effect, Failed)]


@pytest.mark.parametrize("name", ROWS)
def test_claim_bars_a_command_until_its_node_is_evicted(name: str) -> None:
    row = ROWS[name]
    driver = driver_of(row)
    claims = driver.machine.claims
    assert claims.bar(OTHER, "/", row.wanted, {GONE})
    assert not claims.bar(OTHER, "/", row.wanted, set())
    assert not claims.bar(OTHER, "/", row.wanted, {"n3"})
    assert not claims.bar(OTHER, "other", row.wanted, {GONE}) or isinstance(row.wanted, Connect | OpenChannel)
    assert refusals(driver_of(row), row.wanted)
    driver.machine.origin_down(GONE, driver.time_ms, evicted=True)
    assert not claims.bar(OTHER, "/", row.wanted, {GONE})
    assert bool(refusals(driver, row.wanted)) == (name in REFUSED_AFTERWARDS)


def test_no_claim_bars_a_command_that_the_log_accepts() -> None:
    driver = driver_of(Row([SHARED, takes("q")], SHARED))
    for command in (
        SHARED,
        takes("q"),
        declare("new", SESSION),
        Connect(9, "/", "guest"),
        PutVhost("new", "", [], ""),
    ):
        assert not driver.machine.claims.bar(OTHER, "/", command, {GONE})


def test_claims_do_not_bar_a_second_consumer_of_a_quorum_queue() -> None:
    shared = declare("q", SESSION, x_queue_type="quorum")
    driver = driver_of(Row([shared, takes("q")], takes("q", exclusive=True)))
    wanted = takes("q", exclusive=True)
    assert not driver.machine.claims.bar(OTHER, "/", wanted, {GONE})
    assert not refusals(driver, wanted)


@pytest.mark.slow
def test_claims_ending_in_portions_bar_until_the_last_has_ended() -> None:
    """Very many consumers and queues of a node that was given up end in several entries."""
    row = Row([SHARED], takes("q", exclusive=True))
    driver = driver_of(row)
    driver.apply(
        *(takes("q", number=number)._replace(tag=f"t{number}") for number in range(2 * LOST_MAX)), node=GONE
    )
    driver.apply(*(own(f"mine{number}") for number in range(2 * QUEUES_GONE_MAX - 1)), node=GONE)
    driver.apply(SetVhostLimits("/", {"max-queues": 2}))
    machine = driver.machine
    assert not machine.claims.is_any_leaving
    machine.origin_down(GONE, driver.time_ms, evicted=True)
    assert machine.claims.is_any_leaving
    assert machine.claims.bar(OTHER, "/", row.wanted, set())
    assert machine.claims.bar(OTHER, "/", declare("new", SESSION), set())
    while machine.due_ms() is not None:
        driver.apply(node="n3")
    assert not machine.claims.is_any_leaving
    assert not machine.claims.bar(OTHER, "/", row.wanted, set())
    assert not machine.claims.bar(OTHER, "/", declare("new", SESSION), set())
