"""The node of stub_qq.py, which only listens on its ports, and answers commands (stub_answers.py) if it shall."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from cluster.storage.directory import REMOVED
from qq.errors import StartError

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import AsyncGenerator

    from qq.config import NodeConfig

WELL = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
)


async def answer_ok(reader: StreamReader, writer: StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(WELL)
    writer.close()


@asynccontextmanager
async def listening(config: NodeConfig) -> AsyncGenerator[None]:
    async with await asyncio.start_server(answer_ok, config.http_host, config.address.http_port):
        yield


async def run(config: NodeConfig) -> None:
    if os.environ.get("STUB_REFUSES") == config.name:
        raise StartError(f"{config.data_dir}: belongs to another node")
    if os.environ.get("STUB_REMOVED") == config.name:
        group = config.data_dir / "groups" / "0"
        group.mkdir(parents=True, exist_ok=True)
        (group / REMOVED).touch()
        raise StartError("removed from the cluster")
    if "STUB_LISTENS" in os.environ:
        http = listening
    else:
        from tests.cli.stub_answers import answering as http  # noqa: PLC0415 -- most of what a stub needs to start
    with socket.create_server(("127.0.0.1", config.address.amqp_port)):
        async with http(config):
            print(f"{config.name} serves", flush=True)
            if os.environ.get("STUB_HANGS") == config.name:
                time.sleep(60)  # noqa: ASYNC251 - a disk does not ask the event loop, either
            if os.environ.get("STUB_CHATTY") == config.name:
                sys.stderr.write("chatter\n" * 100_000)
            try:
                await asyncio.Event().wait()
            finally:
                if os.environ.get("STUB_STUBBORN") == config.name:
                    await asyncio.sleep(60)
