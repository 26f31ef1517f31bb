"""The HTTP port of a node, which listens before the HTTP library is imported."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import ExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING

import aiohttp
import pytest

from qq.cli.local_files import local_nodes, prepare
from qq.config import load
from qq.http.base.listener import HttpLimits
from qq.node import http_port
from qq.node.http_port import HttpPort
from qq.testing import _reserve_ports

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

HERE = "127.0.0.1"
LONG_S = 60.0


def run(story: Callable[[HttpPort, asyncio.Future[BaseException]], Awaitable[None]]) -> None:
    async def begin() -> None:
        failed = asyncio.Future[BaseException]()
        port = await HttpPort.open(HERE, 0, HttpLimits(), failed.set_result)
        try:
            await asyncio.wait_for(story(port, failed), LONG_S)
        finally:
            await port.close()

    asyncio.run(begin())


@pytest.fixture
def to_import(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that has not been imported, in place of those that answer."""
    name = "qq.not_there"
    monkeypatch.setattr(http_port, "ANSWERING", (name,))
    return name


async def status(port: HttpPort, path: str) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{HERE}:{port.number}{path}") as answer,
    ):
        return answer.status


def test_serve_command_does_not_import_the_http_library() -> None:
    """It is half of all that a node imports, and clients of AMQP would wait for it."""
    program = (
        "import sys, qq.cli.local.serve; print(sorted({'aiohttp', 'prometheus_client'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_early_http_request_is_answered_once_the_node_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        http_port, "ANSWERING", (*http_port.ANSWERING, "this")
    )  # prints, and has no other use
    monkeypatch.delitem(sys.modules, "this", raising=False)
    monkeypatch.setattr(http_port, "PATIENCE_S", LONG_S)

    async def story(port: HttpPort, _: asyncio.Future[BaseException]) -> None:
        request = asyncio.create_task(status(port, "/early"))
        await asyncio.sleep(0.1)
        assert not request.done()
        port.begin()
        assert await request == HTTPStatus.SERVICE_UNAVAILABLE

    run(story)


def test_a_node_that_does_not_serve_answers_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "ANSWERING", (*http_port.ANSWERING, "this"))
    monkeypatch.delitem(sys.modules, "this", raising=False)
    monkeypatch.setattr(http_port, "PATIENCE_S", 0.05)

    async def story(port: HttpPort, _: asyncio.Future[BaseException]) -> None:
        assert await status(port, "/healthz") == HTTPStatus.SERVICE_UNAVAILABLE

    run(story)


@pytest.mark.usefixtures("to_import")
def test_failed_import_of_the_http_port_is_reported_to_the_node() -> None:
    async def story(port: HttpPort, failed: asyncio.Future[BaseException]) -> None:
        port.begin()
        assert isinstance(await failed, ModuleNotFoundError)

    run(story)


@pytest.mark.usefixtures("to_import")
def test_port_closed_before_its_answer_reports_no_failure() -> None:
    async def story(port: HttpPort, failed: asyncio.Future[BaseException]) -> None:
        request = asyncio.create_task(status(port, "/early"))
        await asyncio.sleep(0.05)
        await port.close()
        with pytest.raises(aiohttp.ClientError):
            await request
        assert not failed.done()

    run(story)


def test_a_node_of_a_process_of_its_own_answers(tmp_path: Path) -> None:
    """Those of other tests are forked from a process that has imported everything."""
    with ExitStack() as cleanup:
        files = local_nodes(tmp_path, 1, _reserve_ports(1, cleanup))
        prepare(tmp_path, files, fresh=False)
        port = load(files[0].config, {}).address.http_port
    command = [sys.executable, "-m", "qq", "serve", "--config", str(files[0].config)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as node:
        try:
            asyncio.run(asyncio.wait_for(until_healthy(f"http://{HERE}:{port}/healthz"), LONG_S))
        finally:
            node.terminate()
        assert node.wait(LONG_S) == 0


async def until_healthy(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(url) as answer:
                    if answer.status == HTTPStatus.OK:
                        return
            except aiohttp.ClientConnectorError:
                pass
            await asyncio.sleep(0.05)
