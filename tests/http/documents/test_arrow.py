"""Streams of leased messages: what they keep in memory, and their turns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

import pytest

from qq.http.documents.arrow import BATCH_BYTES, ArrowMessages
from qq.http.documents.sink_tables import _message
from qq.http.endpoints.leases import LeaseEndpoints
from qq.management.changes.leases import LeasedMessages
from qq.management.time_slices import Slices
from qq.stored.fields import join_properties

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from weakref import ReferenceType

    from qq.management.management import Management

pa: Any = pytest.importorskip("pyarrow")


class Messages(list[bytes]):
    """A list that can have weak references."""


def test_stream_that_waits_for_its_client_keeps_no_message() -> None:
    references: list[ReferenceType[Messages]] = []

    def made(body: bytes) -> LeasedMessages:
        messages = Messages([_message(join_properties({}), body)])
        references.append(ref(messages))
        return LeasedMessages(0, 0, "", "q", False, 0, messages)

    async def leased() -> AsyncGenerator[LeasedMessages]:
        for _ in range(2):
            yield made(b"x" * BATCH_BYTES)

    async def read() -> None:
        stream = ArrowMessages(pa, "q", ["body"]).parts(leased(), Slices())
        schema = await anext(stream)
        before = pa.system_memory_pool().bytes_allocated()
        batch = await anext(stream)
        assert [reference() for reference in references] == [None]
        assert len(batch) <= pa.system_memory_pool().bytes_allocated() - before < 1.1 * len(batch)
        octets = b"".join((schema, batch, await anext(stream), await anext(stream)))
        assert pa.ipc.open_stream(octets).read_all()["body"].to_pylist() == [b"x" * BATCH_BYTES] * 2

    asyncio.run(read())


def test_streams_take_turns_at_the_node() -> None:
    working = most = 0

    async def stream() -> AsyncGenerator[memoryview]:
        nonlocal working, most
        for _ in range(3):
            working += 1
            most = max(most, working)
            await asyncio.sleep(0)
            working -= 1
            yield memoryview(b"x")

    async def read(endpoints: LeaseEndpoints) -> int:
        mine, count = stream(), 0
        while await endpoints._next_of(mine):
            count += 1
            await asyncio.sleep(0)
        return count

    async def read_all() -> list[int]:
        endpoints = LeaseEndpoints(cast("Management", None), 4)
        return await asyncio.gather(*(read(endpoints) for _ in range(4)))

    assert asyncio.run(read_all()) == [3] * 4
    assert most == 1
