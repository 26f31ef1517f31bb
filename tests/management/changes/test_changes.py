"""Results of concurrent changes by several operators."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from qq.machine.protocol.commands import DeleteVhost, PutPolicy, PutUser, PutVhost
from qq.management.changes.changes import Changes, is_made
from qq.management.errors import RequestRefused, Unavailable
from tests.harness.lone_broker import LoneBroker


@pytest.fixture
def broker() -> Iterator[LoneBroker]:
    with LoneBroker() as broker:
        yield broker


def policy(number: int, vhost: str = "/") -> PutPolicy:
    return PutPolicy(vhost, "p", False, "x", "queues", 0, {"max-length": number})


async def outcomes(broker: LoneBroker, *changes: Any) -> list[BaseException | None]:
    """Request all changes at once, and return their outcomes."""
    made = Changes(broker.broker)
    return await asyncio.gather(*map(made.apply, changes), return_exceptions=True)


def test_last_of_concurrent_changes_wins_and_all_succeed(broker: LoneBroker) -> None:
    changes = [*map(policy, range(6)), *(PutUser("u", b"s", b"h", [f"t{number}"]) for number in range(6))]
    assert broker.await_on_loop(outcomes(broker, *changes)) == [None] * 12
    policies = broker.machine.vhosts["/"].policies
    assert len(policies) == 1
    assert is_made(broker.machine.catalog, policy(5))
    assert broker.machine.users["u"].tags == ["t5"]


def test_change_in_a_deleted_virtual_host_is_refused(broker: LoneBroker) -> None:
    vhost = PutVhost("v", "", [], "")
    results = broker.await_on_loop(outcomes(broker, vhost, policy(1, "v"), DeleteVhost("v")))
    assert results[::2] == [None, None] or isinstance(results[0], Unavailable)
    assert isinstance(results[1], RequestRefused)
    assert "no vhost 'v': it was deleted meanwhile" in results[1].explanation


def test_change_of_an_evicted_node_is_reported_as_unknown(broker: LoneBroker) -> None:
    async def evicted() -> list[BaseException | None]:
        broker.group.holding = True
        waiting = asyncio.ensure_future(outcomes(broker, policy(1)))
        while not broker.group._held:  # noqa: ASYNC110 - a group has no event
            await asyncio.sleep(0)
        broker.evict()
        return await waiting

    [results] = broker.await_on_loop(evicted())
    assert isinstance(results, Unavailable)
