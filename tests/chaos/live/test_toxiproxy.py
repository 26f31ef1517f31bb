"""The Toxiproxy server: its location, its installation and its commands."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chaos.live import toxiproxy
from chaos.live.cluster import free_ports
from chaos.live.toxiproxy import Route, Toxiproxy, ToxiproxyError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

HOST = "127.0.0.1"


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without the server, and an empty directory that is its PATH."""
    monkeypatch.delenv(toxiproxy.VARIABLE, raising=False)
    monkeypatch.setattr(toxiproxy, "GO_HOME", str(tmp_path))
    monkeypatch.setattr(toxiproxy, "TOOLS", tmp_path / "tools")
    (tmp_path / "path").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return tmp_path / "path"


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_missing_toxiproxy_is_reported_with_the_remedy(
    nowhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert toxiproxy.main([]) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "make toxiproxy" in errors
    assert "$TOXIPROXY_SERVER" in errors


def test_server_is_searched_in_environment_then_path_then_tools(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = program(tmp_path / "tools" / toxiproxy.BINARY, "")
    assert toxiproxy.find_server() == tool
    on_path = program(nowhere / toxiproxy.BINARY, "")
    assert toxiproxy.find_server() == on_path
    named = program(tmp_path / "named", "")
    monkeypatch.setenv(toxiproxy.VARIABLE, str(named))
    assert toxiproxy.find_server() == named


def test_environment_variable_without_a_program_is_an_error(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(toxiproxy.VARIABLE, str(tmp_path / "missing"))
    with pytest.raises(ToxiproxyError, match="is not a program"):
        toxiproxy.find_server()


def test_toxiproxy_is_built_once_with_go(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program(
        nowhere / "go", 'echo "$@" >> "$GOBIN/asked"; echo > "$GOBIN/server"; /bin/chmod +x "$GOBIN/server"'
    )
    assert toxiproxy.main(["--install"]) == 0
    assert toxiproxy.main(["--install"]) == 0
    tools = tmp_path / "tools"
    assert (tools / "asked").read_text() == f"install {toxiproxy.MODULE}@{toxiproxy.VERSION}\n"
    assert sorted(tools.iterdir()) == [tools / "asked", tools / toxiproxy.BINARY]


def test_failed_build_is_reported_in_a_single_line(nowhere: Path) -> None:
    with pytest.raises(ToxiproxyError, match="no `go` on PATH"):
        toxiproxy.install()
    program(nowhere / "go", "echo fetching >&2; echo no network >&2; exit 1")
    with pytest.raises(ToxiproxyError, match=r"failed: no network$"):
        toxiproxy.install()


def test_server_that_fails_to_start_raises_an_error(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(toxiproxy.VARIABLE, str(program(tmp_path / "server", "exit 3")))
    with pytest.raises(ToxiproxyError, match="ended with status 3"):
        asyncio.run(Toxiproxy(next(free_ports()), tmp_path / "log").start())


@asynccontextmanager
async def echo_behind_proxy(directory: Path) -> AsyncGenerator[tuple[Toxiproxy, Route]]:
    """A server that says everything twice, and the way to it."""
    answering: list[asyncio.Task[None]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.append(asyncio.current_task())
        with suppress(ConnectionError):
            while data := await reader.read(100):
                writer.write(data + data)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    ports = free_ports()
    route = Route("echo", next(ports), next(ports))
    server = Toxiproxy(next(ports), directory / "log")
    async with await asyncio.start_server(answer, HOST, route.upstream):
        await server.start()
        try:
            server.add(route)
            yield server, route
        finally:
            await server.stop()
            # The proxy is gone, so every connection ends; a loop that ends before it would lose the socket.
            await asyncio.gather(*answering)


def test_a_proxy_passes_drops_and_refuses(tmp_path: Path) -> None:
    async def check() -> None:
        async with echo_behind_proxy(tmp_path) as (server, route):
            reader, writer = await asyncio.open_connection(HOST, route.listen)
            writer.write(b"one")
            assert await reader.readexactly(6) == b"oneone"
            server.add_toxic("echo", "mute", "timeout", "downstream", timeout=0)
            assert server.toxics() == [("echo", "mute")]
            writer.write(b"two")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.1)
            server.remove_toxic("echo", "mute")
            assert await reader.read() == b""
            writer.close()
            server.disable("echo")
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(HOST, route.listen)
            server.enable("echo")
            reader, writer = await asyncio.open_connection(HOST, route.listen)
            writer.write(b"three")
            assert await reader.readexactly(10) == b"threethree"
            writer.close()

    asyncio.run(check())


def test_refused_request_to_toxiproxy_raises_an_error(tmp_path: Path) -> None:
    async def check() -> None:
        async with echo_behind_proxy(tmp_path) as (server, route):
            with pytest.raises(ToxiproxyError, match="already exists"):
                server.add(route)
            with pytest.raises(ToxiproxyError, match="InvalidToxic"):
                server.add_toxic("echo", "bad", "no such toxic", "upstream")

    asyncio.run(check())


def test_occupied_port_of_a_proxy_raises_an_error(tmp_path: Path) -> None:
    async def check() -> None:
        async with echo_behind_proxy(tmp_path) as (server, route):
            with socket.create_server((HOST, 0)) as other:
                port = other.getsockname()[1]
                with pytest.raises(ToxiproxyError, match=f"cannot listen on {HOST}:{port}"):
                    server.add(Route("other", port, route.upstream))

    asyncio.run(check())


def test_server_ends_with_its_starter(tmp_path: Path) -> None:
    starter = """
        import asyncio, pathlib, sys
        from chaos.live.toxiproxy import Toxiproxy

        async def start():
            server = Toxiproxy(int(sys.argv[1]), pathlib.Path(sys.argv[2]))
            await server.start()
            print(server._process.pid, flush=True)
            await asyncio.sleep(60)

        asyncio.run(start())
    """
    port = str(next(free_ports()))
    command = [sys.executable, "-c", textwrap.dedent(starter), port, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        server = int(process.stdout.readline())
        descriptor = os.pidfd_open(server)
        process.send_signal(signal.SIGKILL)
        assert_ends(descriptor)


def assert_ends(descriptor: int) -> None:
    async def ended() -> None:
        loop = asyncio.get_running_loop()
        has_ended = asyncio.Event()
        loop.add_reader(descriptor, has_ended.set)  # readable when the process has ended
        await asyncio.wait_for(has_ended.wait(), 10)
        loop.remove_reader(descriptor)

    asyncio.run(ended())
    os.close(descriptor)
