"""Clients of a node that run in its own process."""

from __future__ import annotations

import asyncio

import uvloop

from qq.amqp_server import in_process_clients
from tests.harness.lone_broker import LoneBroker, wait_until


def test_cancelled_connect_leaves_no_connection() -> None:
    """A shovel may be stopped at any moment, as when its node leads no more."""
    with LoneBroker(new_loop=uvloop.new_event_loop) as broker:  # as a node

        async def wait_closed(passes: int) -> bool:
            connecting = asyncio.create_task(in_process_clients.connect(broker.server, "/", 2**16))
            for _ in range(passes):
                await asyncio.sleep(0)
            is_done = connecting.done()
            connecting.cancel()
            await asyncio.wait([connecting])
            if is_done:
                connecting.result()[1].transport.abort()
            return is_done

        passes = 0
        while not broker.await_on_loop(wait_closed(passes)):
            passes += 1
        assert passes > 2
        wait_until(
            lambda: not broker.call(lambda: len(broker.broker.connections)), "the end of all connections"
        )
