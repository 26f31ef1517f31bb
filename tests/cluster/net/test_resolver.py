from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from cluster.net import resolver as host_names
from cluster.net import sockets
from cluster.net.resolver import Resolver

PORT = 5672


class SystemResolver:
    """In place of the system's resolver: addresses of names, and names without an answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.addresses: dict[str, str] = {}
        self.requested: list[str] = []
        self.answers = threading.Event()
        self.answers.set()
        self._real = socket.getaddrinfo
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(socket, "getaddrinfo", self._lookup)

    def _lookup(self, host: str, port: int, *, type: int, flags: int = 0) -> Any:  # noqa: A002
        if flags & socket.AI_NUMERICHOST:
            return self._real(host, port, type=type, flags=flags)
        self.requested.append(host)
        if host.startswith("slow"):
            self.answers.wait(20)
        if host not in self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return self._real(self.addresses[host], port, type=type)

    @contextmanager
    def silent(self) -> Generator[None]:
        """Names that begin with `slow` are not answered for, which is not waited for long."""
        self.answers.clear()
        with self.waited_for(0.02):
            yield
        self.answers.set()

    @contextmanager
    def waited_for(self, answer_s: float) -> Generator[None]:
        with self._monkeypatch.context() as patch:
            patch.setattr(host_names, "_PATIENCE_S", answer_s)
            patch.setattr(host_names, "_ANSWER_S", answer_s)
            yield


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Generator[SystemResolver]:
    resolver = SystemResolver(monkeypatch)
    with resolver.waited_for(10.0):
        yield resolver
    resolver.answers.set()


def test_name_is_resolved_again_once_threads_can_start(
    resolver: SystemResolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver.addresses["a"] = "127.0.0.1"

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def story() -> None:
        names = Resolver()
        with monkeypatch.context() as short:
            short.setattr(threading.Thread, "start", start)
            with pytest.raises(OSError, match="no thread can be started to look up the name a"):
                await names.resolve("a", PORT)
        assert (await names.resolve("a", PORT)).is_current
        with monkeypatch.context() as short:
            short.setattr(threading.Thread, "start", start)
            assert not (await names.resolve("a", PORT)).is_current

    asyncio.run(story())


def test_addresses_are_resolved_anew_each_time(resolver: SystemResolver) -> None:
    async def story() -> None:
        names = Resolver()
        for address in ("10.0.0.1", "10.0.0.2"):
            resolver.addresses["n1"] = address
            found = await names.resolve("n1", PORT)
            assert found == ([(socket.AF_INET, (address, PORT))], True)
        assert (await names.resolve("10.0.0.3", PORT)).found == [(socket.AF_INET, ("10.0.0.3", PORT))]
        assert resolver.requested == ["n1", "n1"]

    asyncio.run(story())


def test_unknown_name_is_not_resolved_again_at_once(
    resolver: SystemResolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_names, "UNKNOWN_S", 0.05)

    async def story() -> None:
        names = Resolver()
        for times in (1, 2):
            for _ in range(20):
                with pytest.raises(socket.gaierror):
                    await names.resolve("nobody", PORT)
            assert resolver.requested == times * ["nobody"]
            await asyncio.sleep(0.1)
        resolver.addresses["nobody"] = "10.0.0.1"
        assert (await names.resolve("nobody", PORT)).is_current

    asyncio.run(story())


def test_name_is_resolved_once_at_a_time_and_waits_for_no_name(resolver: SystemResolver) -> None:
    async def story() -> None:
        names = Resolver()
        resolver.addresses = {"n1": "10.0.0.1", "slow1": "10.0.0.9"}
        with resolver.silent():
            for number in range(16):
                for _ in range(2):
                    with pytest.raises(TimeoutError, match=f"the name slow{number} is still being looked up"):
                        await names.resolve(f"slow{number}", PORT)
            with resolver.waited_for(10.0):
                assert (await names.resolve("n1", PORT)).is_current
        assert len(resolver.requested) == 17
        assert (await names.resolve("slow1", PORT)).found == [(socket.AF_INET, ("10.0.0.9", PORT))]

    asyncio.run(story())


def test_pending_and_remembered_names_are_bounded(
    resolver: SystemResolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_names, "REMEMBERED_MAX", 2)

    async def story() -> None:
        names = Resolver()
        for name in ("n1", "n2", "n3"):
            resolver.addresses[name] = "10.0.0.1"
            await names.resolve(name, PORT)
        with resolver.silent():
            requested = [names.resolve(f"slow{number}", PORT) for number in range(host_names.LOOKUPS_MAX)]
            await asyncio.gather(*requested, return_exceptions=True)
            with pytest.raises(OSError, match="64 other names are still being looked up"):
                await names.resolve("n1", PORT)
            assert not (await names.resolve("n3", PORT)).is_current
        assert resolver.requested.count("n1") == 1

    asyncio.run(story())


@pytest.mark.parametrize("failure", ["silence", "error"])
def test_remembered_address_is_used_while_a_name_is_unresolvable(
    resolver: SystemResolver, failure: str
) -> None:
    async def story() -> None:
        names = Resolver()
        resolver.addresses["slow"] = "10.0.0.1"
        found = (await names.resolve("slow", PORT)).found
        with resolver.silent():
            if failure == "error":
                resolver.answers.set()
                resolver.addresses.clear()
            assert await names.resolve("slow", PORT) == (found, False)

    asyncio.run(story())


def test_a_name_that_is_unknown_or_impossible_is_an_error(resolver: SystemResolver) -> None:
    async def story() -> None:
        with pytest.raises(socket.gaierror):
            await Resolver().resolve("nobody", PORT)
        with pytest.raises(OSError, match="is no host name"):
            await Resolver().resolve("a" * 64, PORT)

    asyncio.run(story())


def test_refusal_at_a_remembered_address_does_not_prove_death(resolver: SystemResolver) -> None:
    """The name may have a new address by now."""

    async def story() -> None:
        names = Resolver()
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            resolver.addresses["slow"] = "127.0.0.1"
            (await sockets.connect(names, "slow", port)).close()
        with pytest.raises(ConnectionRefusedError):
            await sockets.connect(names, "slow", port)
        with resolver.silent(), pytest.raises(OSError, match="nobody listens where it was") as refused:
            await sockets.connect(names, "slow", port)
        assert not isinstance(refused.value, ConnectionRefusedError)

    asyncio.run(story())


def test_process_ends_during_a_name_lookup() -> None:
    program = """
import asyncio, socket, sys, time, uvloop
sys.path.insert(0, sys.argv[1])
from cluster.net.resolver import Resolver
socket.getaddrinfo = lambda *_, type, flags=0: time.sleep(60) if not flags else exec("raise socket.gaierror()")
async def main():
    asyncio.get_running_loop().create_task(Resolver().resolve("slow", 1))
    await asyncio.sleep(0.05)
uvloop.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, str(host_names.__file__).rsplit("/", 2)[0]], check=False, timeout=20
    )
    assert ended.returncode == 0
