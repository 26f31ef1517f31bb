"""A node that reads a long log at its start answers that it is alive and not ready."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING

import aiohttp

from cluster.runtime.asyncio_runtime import RealDisk
from qq import config
from qq.cli.local_files import local_nodes, prepare
from qq.node import start
from qq.testing import _reserve_ports

if TYPE_CHECKING:
    from pathlib import Path


def test_node_that_reads_its_log_is_alive_and_not_ready(tmp_path: Path) -> None:
    reads, may_go_on = threading.Event(), threading.Event()

    class SlowDisk(RealDisk):
        def list_directory(self, path: str) -> list[str]:
            if path.endswith("/log"):
                reads.set()
                assert may_go_on.wait(20)
            return super().list_directory(path)

    async def statuses(session: aiohttp.ClientSession) -> dict[str, tuple[int, str]]:
        found: dict[str, tuple[int, str]] = {}
        for path in ("/livez", "/healthz", "/metrics", "/api/cluster", "/api/queues"):
            async with session.get(path) as answer:
                found[path] = answer.status, (await answer.text())
        return found

    async def begin(settings: config.NodeConfig) -> None:
        closing = AsyncExitStack()
        starting = asyncio.create_task(start(settings, closing, open_disk=SlowDisk))
        try:
            assert await asyncio.to_thread(reads.wait, 20)
            url = f"http://127.0.0.1:{settings.address.http_port}"
            async with aiohttp.ClientSession(url) as session:
                early = await statuses(session)
                assert early.pop("/livez")[0] == 200
                assert {status for status, _ in early.values()} == {503}
                assert all("the node reads its log" in reason for _, reason in early.values())
                may_go_on.set()
                await starting
                later = await statuses(session)
                assert [later[path][0] for path in ("/livez", "/metrics", "/api/cluster")] == [200, 200, 401]
        finally:
            may_go_on.set()
            await asyncio.wait([starting])
            await closing.aclose()

    with ExitStack() as cleanup:
        files = local_nodes(tmp_path, 1, _reserve_ports(1, cleanup))
        prepare(tmp_path, files, fresh=False)
        asyncio.run(begin(config.load(files[0].config, {})))
