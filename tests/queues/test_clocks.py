"""Wall clocks that jump: delays, expirations and timeouts stay as long as requested."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import pytest

from cluster.runtime.asyncio_runtime import AsyncioRuntime
from tests.queues.clients import Taker, declare, get, publish, ready, wait_until
from tests.queues.nodes_here import ClusterHere
from tests.queues.world import World

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
SHORT_MS = 500


@contextmanager
def jumped(cluster: ClusterHere, nodes: Iterable[Any], jump_ms: int) -> Generator[None]:
    runtimes = [node.node.runtime for node in nodes]
    wall_ms = AsyncioRuntime.wall_ms
    for runtime in runtimes:
        cluster.call(setattr, runtime, "wall_ms", lambda: wall_ms(runtimes[0]) + jump_ms)
    yield
    for runtime in runtimes:
        cluster.call(delattr, runtime, "wall_ms")


@pytest.mark.parametrize(
    ("affected", "days"), [("leader", 1), ("leader", -1), ("all", 100_000), ("all", -100_000)]
)
@pytest.mark.parametrize("world", ["handover"], indirect=True)
def test_delays_and_expirations_are_kept_when_clocks_jump(
    world: World,
    checked_cluster: ClusterHere,
    queue: str,
    affected: str,
    days: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = [f"{queue}-{name}" for name in ("soon", "later", "lives", "held")]
    soon, later, stays, held = names
    channel, slow = world.channel(1), world.channel(2)
    for name in names:
        declare(channel, name, {"x-consumer-timeout": SHORT_MS} if name == held else {})
    publish(channel, stays, "a", expiration=str(HOUR_MS))
    publish(channel, later, "a", headers={"x-delay": HOUR_MS})

    def delay() -> None:
        publish(channel, soon, "a", headers={"x-delay": SHORT_MS})
        assert get(channel, soon) is None
        wait_until(lambda: get(channel, soon) is not None)

    hurt = world.nodes[:1] if affected == "leader" else world.nodes
    delay()
    with jumped(checked_cluster, hurt, days * DAY_MS):
        publish(channel, held, "a")
        Taker(slow, held).wait(1)
        delay()
        world.change_leader()
        delay()
        wait_until(lambda: ready(channel, held) == 1)
        for node in hurt:
            text = f"the clock of node {node.name} is "  # pyright: ignore[reportAttributeAccessIssue]
            wait_until(lambda: any(text in line for line in caplog.messages))  # noqa: B023
    delay()
    assert [ready(channel, name) for name in (stays, later)] == [1, 0]
