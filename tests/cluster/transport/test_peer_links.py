from __future__ import annotations

import asyncio
import errno
import gc
import logging
import random
import re
import socket
import ssl
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from struct import pack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from cluster.configuration.configuration import Configuration, Member, PeerAddress, Versions
from cluster.configuration.history import Configurations
from cluster.net.resolver import Resolver
from cluster.transport import admission
from cluster.transport import connection as connection_module
from cluster.transport import peer_links as links_module
from cluster.transport.connection import FrameBuffer, FrameTooLargeError, LinkBacklog, LinkLimits
from cluster.transport.handshake import (
    NO_ID,
    AlreadyLinkedError,
    DiallerHandshake,
    HandshakeError,
    OtherDirectoryError,
    RejectedError,
    SecondProcessError,
    TooManyNonMembersError,
    VersionMismatchError,
)
from cluster.transport.peer_links import LinkConfig, PeerLinks, PeerTls

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable
    from pathlib import Path

SECRET = b"the secret of the cluster"
GROUP = 7
PORTS = range(23_000, 32_000)
"""Ports that the system never gives to outgoing connections."""

Run = Callable[[Coroutine[Any, Any, None]], None]


LOOPS = [pytest.param("asyncio", marks=pytest.mark.slow), "uvloop"]  # nodes have the second


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_on_loop(story: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(story, 20))

    return run_on_loop


class Recorder:
    """The events of a group, in order."""

    def __init__(self) -> None:
        self.records: list[tuple[Any, ...]] = []
        self.parts = 0

    def peer_connected(self, peer: str) -> None:
        self.records.append(("connected", peer))

    def peer_lost(self, peer: str, *, dead: bool) -> None:
        self.records.append(("lost", peer, dead))

    def peer_drained(self, peer: str) -> None:
        self.records.append(("drained", peer))

    def part_received(self, peer: str) -> None:
        self.parts += 1

    def frame_received(self, peer: str, frame: bytes) -> None:
        self.records.append(("frame", peer, frame))

    def frames(self, peer: str) -> list[bytes]:
        return [record[2] for record in self.records if record[:2] == ("frame", peer)]

    def events(self) -> list[tuple[Any, ...]]:
        return [record for record in self.records if record[0] != "frame"]


class Node:
    def __init__(
        self, links: PeerLinks, members: list[Member], version: int, member_id: bytes = NO_ID
    ) -> None:
        self.links = links
        self.member_id = member_id
        self.configure(members, version=version)
        self.recorder = Recorder()
        links.register(GROUP, self.recorder)

    def configure(self, members: list[Member], cluster_id: bytes = b"", version: int = 7) -> None:
        configuration = Configuration.of(version, members, cluster_id)
        self.links.configure(self.member_id, Configurations(configuration))

    def cut(self, peer: str) -> None:
        self.links._links[peer].abort()


def free_ports(count: int) -> list[int]:
    ports: list[int] = []
    with ExitStack() as held:
        for port in random.sample(PORTS, len(PORTS)):
            with suppress(OSError):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
                ports.append(port)
            if len(ports) == count:
                break
    return ports


def make_nodes(
    count: int,
    *,
    limits: LinkLimits | None = None,
    tls: PeerTls | None = None,
    secrets: Mapping[str, tuple[bytes, ...]] = MappingProxyType({}),
    versions: dict[str, int] | None = None,
    unknown: dict[str, list[str]] | None = None,
) -> dict[str, Node]:
    """Return linked nodes; `unknown`: members that only some of them list."""
    names = [f"n{number}" for number in range(1, count + 1)]
    addresses = {name: ("127.0.0.1", port) for name, port in zip(names, free_ports(count), strict=True)}
    nowhere = ("127.0.0.1", 1)
    return {
        name: Node(
            PeerLinks(
                LinkConfig(name, "c", addresses[name], Versions(*[(versions or {}).get(name, 7)] * 2)),
                secrets.get(name, (SECRET,)),
                tls=tls,
                limits=limits,
            ),
            members(addresses | dict.fromkeys((unknown or {}).get(name, ()), nowhere)),
            (versions or {}).get(name, 7),
        )
        for name in names
    }


def members(addresses: Mapping[str, tuple[str, int]]) -> list[Member]:
    return [Member(name, PeerAddress(*address)) for name, address in addresses.items()]


@asynccontextmanager
async def started(nodes: dict[str, Node]) -> AsyncGenerator[None]:
    for node in nodes.values():
        await node.links.start()
    try:
        yield
    finally:
        for node in nodes.values():
            await node.links.stop()


@asynccontextmanager
async def cluster(count: int, **options: Any) -> AsyncGenerator[dict[str, Node]]:
    nodes = make_nodes(count, **options)
    async with started(nodes):
        await until(lambda: all(meshed(node, nodes) for node in nodes.values()))
        yield nodes


def meshed(node: Node, nodes: dict[str, Node]) -> bool:
    return all(node.links.connected(peer) for peer in nodes if nodes[peer] is not node)


async def until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 (many conditions, one of them a log)
            await asyncio.sleep(0.002)


def address(node: Node) -> tuple[str, int]:
    return node.links._bind


class Impersonator:
    """A handmade peer, which may send messages that a real peer never sends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def left_alone(self) -> bytes:
        """Return the bytes that it receives until the other side hangs up."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""
        finally:
            self.writer.close()


async def unauthenticated(node: Node) -> Impersonator:
    return Impersonator(*await asyncio.open_connection(*address(node)))


async def impersonate(name: str, node: Node, process: bytes = bytes(16), **terms: Any) -> Impersonator:
    one = await unauthenticated(node)
    own = node.links._credentials([SECRET])
    identity = own._replace(node=name, terms=own.terms._replace(process=process, **terms))
    handshake = DiallerHandshake(identity, own.node, random.randbytes(32), lambda *_: None)
    one.send(handshake.opening())
    try:
        while not handshake.authenticated:
            data = await one.reader.read(1000)
            assert data
            one.send(handshake.receive(data))
    except HandshakeError:
        one.writer.close()
        raise
    return one


class ReleaseThatSpeaksVersion3:
    """Answers of a node of release 0.1 to a HELLO of version 4."""

    def __init__(self) -> None:
        self.answers_to: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if hello := await reader.read(1000):
                self.answers_to.append(hello)
                writer.write(pack("<4sHBB", b"qqPL", 3, 5, VersionMismatchError.reason))
        finally:
            writer.close()


def framed(body: bytes, group_id: int = GROUP) -> bytes:
    return pack("<IH", len(body), group_id) + body


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# Frames.


def random_frames(seed: int) -> list[bytes]:
    rng = random.Random(seed)
    sizes = [rng.choice([0, 1, 5, 100, 1000, 70_000, 500_000]) + rng.randrange(3) for _ in range(120)]
    sizes[50] = 5 << 20
    return [rng.randbytes(size) for size in sizes]


def test_frames_of_any_size_arrive_in_order_both_ways(run: Run) -> None:
    async def story() -> None:
        async with cluster(2) as nodes:
            one, two = nodes["n1"], nodes["n2"]
            there, back = random_frames(1), random_frames(2)
            for number, (to_two, to_one) in enumerate(zip(there, back, strict=True)):
                one.links.send("n2", GROUP, [to_two[:10], memoryview(to_two)[10:]])
                two.links.send("n1", GROUP, [bytearray(to_one)])
                if number % 20 == 0:
                    await asyncio.sleep(0)
            await until(lambda: len(two.recorder.frames("n1")) == len(there))
            await until(lambda: len(one.recorder.frames("n2")) == len(back))
            assert two.recorder.frames("n1") == there
            assert one.recorder.frames("n2") == back
            assert all(type(frame) is bytes for frame in two.recorder.frames("n1"))

    run(story())


def test_frames_go_to_their_group_and_unknown_groups_are_dropped(run: Run) -> None:
    async def story() -> None:
        async with cluster(2) as nodes:
            other_group = Recorder()
            nodes["n2"].links.register(8, other_group)
            for group_id in (9, 8, GROUP):
                nodes["n1"].links.send("n2", group_id, [b"to %d" % group_id])
            await until(lambda: nodes["n2"].recorder.frames("n1") == [b"to 7"])
            assert other_group.frames("n1") == [b"to 8"]

    run(story())


def test_a_frame_above_the_limit_ends_the_epoch_and_says_so(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """Later messages must not arrive without it; the sender, in the middle of a turn, gets no error."""

    async def story() -> None:
        async with cluster(2, limits=LinkLimits(frame_bytes_max=1000)) as nodes:
            one, two = nodes["n1"], nodes["n2"]
            one.links.send("n2", GROUP, [b"x" * 1000, b"x"])
            one.links.send("n2", GROUP, [b"behind it"])
            await until(lambda: ("lost", "n2", False) in one.recorder.events())
            await until(lambda: one.links.connected("n2") and two.links.connected("n1"))
            one.links.send("n2", GROUP, [b"y" * 1000])
            await until(lambda: two.recorder.frames("n1") == [b"y" * 1000])

    run(story())
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.CRITICAL]
    assert len(lines) == 1
    assert lines[0].startswith("cannot send to peer n2: a frame of 1001 bytes is above the limit of 1000")


def test_frame_larger_than_any_queue_arrives_in_reported_parts(run: Run) -> None:
    async def story() -> None:
        limits = LinkLimits(high_water_bytes=64 << 10, low_water_bytes=16 << 10, queued_bytes_max=1 << 20)
        async with cluster(2, limits=limits) as nodes:
            one, two = nodes["n1"], nodes["n2"]
            large = random.Random(1).randbytes(48 << 20)
            one.links.send("n2", GROUP, [large])
            assert one.links.congested("n2")
            for number in range(100):
                one.links.send("n2", GROUP, [b"behind it %d" % number])
            await until(lambda: len(two.recorder.frames("n1")) == 101)
            assert two.recorder.frames("n1")[0] == large
            assert two.recorder.parts > 3
            assert [record[0] for record in one.recorder.events()] == ["connected", "drained"]

    run(story())


def test_frame_to_an_absent_peer_is_dropped(run: Run) -> None:
    async def story() -> None:
        nodes = make_nodes(2)
        async with started({"n1": nodes["n1"]}):
            nodes["n1"].links.send("n2", GROUP, [b"x"])
            assert not nodes["n1"].links.connected("n2")
            assert not nodes["n1"].links.congested("n2")

    run(story())


@given(
    st.lists(st.tuples(st.integers(0, 65535), st.binary(max_size=200)), max_size=30),
    st.lists(st.integers(1, 150), min_size=1),
)
def test_any_cut_of_the_stream_gives_the_same_frames(
    frames: list[tuple[int, bytes]], reads: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection_module, "_RECEIVE_BYTES", 64)
        patch.setattr(connection_module, "_MOVED_BYTES_MAX", 16)
        buffer = FrameBuffer(200)
        stream = b"".join(framed(body, group_id) for group_id, body in frames)
        received: list[tuple[int, bytes]] = []
        turn = 0
        while stream:
            space = buffer.space()
            assert len(space) > 0
            count = min(reads[turn % len(reads)], len(space), len(stream))
            space[:count] = stream[:count]
            stream = stream[count:]
            received += buffer.advance(count)
            turn += 1
        assert received == frames
        assert len(buffer.space()) == 64


def test_a_frame_above_the_limit_is_noticed_by_its_header() -> None:
    buffer = FrameBuffer(200)
    buffer.space()[:6] = pack("<IH", 201, GROUP)
    with pytest.raises(FrameTooLargeError):
        buffer.advance(6)


# Epochs.


def test_reconnect_is_a_new_epoch_without_earlier_frames(run: Run) -> None:
    async def story() -> None:
        async with cluster(2) as nodes:
            one, two = nodes["n1"], nodes["n2"]
            for epoch in range(4):
                await until(lambda: one.links.connected("n2") and two.links.connected("n1"))
                for number in range(50):
                    one.links.send("n2", GROUP, [b"%d %d " % (epoch, number), bytes(100_000)])
                await asyncio.sleep(0.01)
                begun = len([record for record in two.recorder.events() if record[0] == "connected"])
                assert begun == epoch + 1
                (one if epoch % 2 else two).cut("n1" if epoch % 2 == 0 else "n2")
                await until(lambda: not one.links.connected("n2") and not two.links.connected("n1"))
            seen_epoch = -1
            expected = 0
            for record in two.recorder.records:
                if record[0] == "connected":
                    seen_epoch += 1
                    expected = 0
                elif record[0] == "frame":
                    assert [int(part) for part in record[2].split()[:2]] == [seen_epoch, expected]
                    expected += 1
            assert two.recorder.events()[:2] == [("connected", "n1"), ("lost", "n1", False)]

    run(story())


def test_new_connection_of_a_peer_replaces_the_old(run: Run) -> None:
    async def story() -> None:
        node = make_nodes(2)["n2"]
        async with started({"n2": node}):
            old = await impersonate("n1", node)
            old.send(framed(b"old 1"))
            await until(lambda: node.recorder.frames("n1") == [b"old 1"])
            old.send(pack("<IH", 5, GROUP) + b"old")
            new = await impersonate("n1", node)
            old.send(b" 2" + framed(b"old 3"))
            new.send(framed(b"new 1"))
            assert await old.left_alone() == b""
            await until(lambda: node.recorder.frames("n1") == [b"old 1", b"new 1"])
            assert node.links.connected("n1")
            node.links.send("n1", GROUP, [b"answer"])
            assert await new.reader.readexactly(12) == framed(b"answer")
            assert node.recorder.records == [
                ("connected", "n1"),
                ("frame", "n1", b"old 1"),
                ("lost", "n1", False),
                ("connected", "n1"),
                ("frame", "n1", b"new 1"),
            ]
            new.writer.close()

    run(story())


def test_delivery_ends_when_a_frame_makes_the_receiver_hang_up(run: Run) -> None:
    async def story() -> None:
        node = make_nodes(2)["n2"]

        class HangsUp(Recorder):
            def frame_received(self, peer: str, frame: bytes) -> None:
                super().frame_received(peer, frame)
                node.links.begin(successor)

        async with started({"n2": node}):
            recorder = HangsUp()
            node.links.register(8, recorder)
            first = await impersonate("n1", node)
            successor = node.links._links["n1"]
            second = await impersonate("n1", node)
            second.send(framed(b"1", 8) + framed(b"2", 8))
            await second.left_alone()
            assert recorder.frames("n1") == [b"1"]
            await first.left_alone()

    run(story())


# Death.


@pytest.mark.parametrize(("ended", "survivor"), [("n1", "n2"), ("n2", "n1")])
def test_a_peer_that_no_longer_listens_is_reported_dead(run: Run, ended: str, survivor: str) -> None:
    async def story() -> None:
        async with cluster(2) as nodes:
            await nodes[ended].links.stop()
            recorder = nodes[survivor].recorder
            await until(lambda: len(recorder.events()) == 3, timeout_s=1)
            assert recorder.events() == [
                ("connected", ended),
                ("lost", ended, False),
                ("lost", ended, True),
            ]

    run(story())


@pytest.mark.slow
@pytest.mark.parametrize(("absent", "survivor"), [("n1", "n2"), ("n2", "n1")])
def test_absent_peer_is_reported_dead_once_and_awaited(
    run: Run, caplog: pytest.LogCaptureFixture, absent: str, survivor: str
) -> None:
    caplog.set_level(logging.INFO)

    async def story() -> None:
        nodes = make_nodes(2)
        recorder = nodes[survivor].recorder
        async with started({survivor: nodes[survivor]}):
            await until(lambda: bool(recorder.records))
            async with started({absent: nodes[absent]}):
                await until(lambda: len(recorder.records) == 2)
            assert recorder.records[:2] == [("lost", absent, True), ("connected", absent)]
            host, port = address(nodes[absent])
            await until(lambda: f"peer {absent} is dead: nobody listens at {host}:{port}" in caplog.messages)
            assert caplog.messages.count(f"waiting for peer {absent}: nobody listens at {host}:{port}") == 1
            assert not [line for line in caplog.messages if line.startswith("cannot connect")]

    run(story())


def test_a_peer_that_still_listens_is_lost_but_not_dead(run: Run) -> None:
    async def story() -> None:
        async with cluster(2) as nodes:
            nodes["n1"].cut("n2")
            for name, peer in (("n1", "n2"), ("n2", "n1")):
                recorder = nodes[name].recorder
                await until(lambda recorder=recorder: len(recorder.events()) == 3)
                assert recorder.events() == [("connected", peer), ("lost", peer, False), ("connected", peer)]

    run(story())


def test_acceptor_checks_when_the_listener_of_a_dialler_dies(run: Run) -> None:
    async def story() -> None:
        nodes = make_nodes(2)
        node = nodes["n2"]
        async with started({"n2": node}):
            listener = socket.create_server(address(nodes["n1"]))
            dialler = await impersonate("n1", node)
            await until(lambda: node.links.connected("n1"))
            dialler.writer.close()
            listener.setblocking(False)
            probe, _ = await asyncio.get_running_loop().sock_accept(listener)
            assert node.recorder.events()[-1] == ("lost", "n1", False)
            probe.close()
            listener.close()
            await until(lambda: node.recorder.events()[-1] == ("lost", "n1", True), timeout_s=2)

    run(story())


def test_a_frozen_peer_that_is_killed_later_is_found_dead_then(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links_module, "_PROBE_DELAYS_S", (0.0, 0.0))
    monkeypatch.setattr(links_module, "_PROBE_INTERVAL_S", 0.05)

    async def story() -> None:
        nodes = make_nodes(2)
        node = nodes["n2"]
        loop = asyncio.get_running_loop()
        async with started({"n2": node}):
            listener = socket.create_server(address(nodes["n1"]))
            listener.setblocking(False)
            dialler = await impersonate("n1", node)
            await until(lambda: node.links.connected("n1"))
            dialler.writer.close()
            for _ in range(4):  # its kernel still accepts, long after the first quick questions
                probe, _ = await loop.sock_accept(listener)
                probe.close()
            assert node.recorder.events()[-1] == ("lost", "n1", False)
            listener.close()
            await until(lambda: node.recorder.events()[-1] == ("lost", "n1", True), timeout_s=2)

    run(story())


def test_a_host_that_refuses_for_a_moment_is_not_dead(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "_PROBE_DELAYS_S", (0.0,))
    monkeypatch.setattr(links_module, "_PROBE_INTERVAL_S", 0.01)
    monkeypatch.setattr(links_module, "_REFUSES_FOR_S", 0.4)

    async def story() -> None:
        nodes = make_nodes(2)
        node = nodes["n2"]
        async with started({"n2": node}):
            listener = socket.create_server(address(nodes["n1"]))
            dialler = await impersonate("n1", node)
            await until(lambda: node.links.connected("n1"))
            listener.close()
            dialler.writer.close()
            await until(lambda: "n1" in node.links._refused_since_s)
            with socket.create_server(address(nodes["n1"])):
                await until(lambda: "n1" not in node.links._refused_since_s)
            began_s = time.monotonic()
            assert node.recorder.events()[-1] == ("lost", "n1", False)
            await until(lambda: node.recorder.events()[-1] == ("lost", "n1", True), timeout_s=5)
            assert time.monotonic() - began_s >= 0.4

    run(story())


@pytest.mark.parametrize("is_refused_first", [True, False])
def test_unreachable_host_is_dead_if_it_refused_before(
    run: Run, monkeypatch: pytest.MonkeyPatch, *, is_refused_first: bool
) -> None:
    """So it is with a container that was killed: its address is taken away a moment later."""
    attempts: list[str] = []

    async def connect(_names: Resolver, host: str, _port: int) -> socket.socket:
        attempts.append(host)
        if is_refused_first and len(attempts) == 1:
            raise ConnectionRefusedError
        raise OSError(errno.EHOSTUNREACH, "no route")

    async def story() -> None:
        nodes = make_nodes(2)
        node = nodes["n2"]
        async with started({"n2": node}):
            dialler = await impersonate("n1", node)
            await until(lambda: node.links.connected("n1"))
            monkeypatch.setattr(links_module, "connect", connect)
            dialler.writer.close()
            if is_refused_first:
                await until(lambda: node.recorder.events()[-1] == ("lost", "n1", True))
            else:
                await until(lambda: len(attempts) >= 6)
                assert node.recorder.events()[-1] == ("lost", "n1", False)

    run(story())


class Proxy:
    """Stands before a node, and can break."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._writers: list[asyncio.StreamWriter] = []

    async def listen(self, port: int) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", port)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection(*self._target)
        self._writers += [writer, other_writer]
        with suppress(ConnectionError):
            await asyncio.gather(self._pump(reader, other_writer), self._pump(other_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    def break_down(self) -> None:
        """Refuse connections, and reset those that there are."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()


@pytest.mark.slow
@pytest.mark.parametrize(("hidden", "other"), [("n1", "n2"), ("n2", "n1")])
def test_peer_behind_a_broken_proxy_is_seen_to_be_alive(
    run: Run, monkeypatch: pytest.MonkeyPatch, hidden: str, other: str
) -> None:
    monkeypatch.setattr(links_module, "_BRIEF_S", 0.0)  # the links are old enough not to be unwanted

    async def story() -> None:
        nodes = make_nodes(2)
        proxy, [port] = Proxy(address(nodes[hidden])), free_ports(1)
        await proxy.listen(port)
        nodes[other].configure(members({other: address(nodes[other]), hidden: ("127.0.0.1", port)}))
        async with started(nodes):
            await until(lambda: meshed(nodes[hidden], nodes) and meshed(nodes[other], nodes))
            await asyncio.sleep(admission._PATIENCE_S + 0.1)  # the side that does not dial first was waiting
            proxy.break_down()
            nodes[other].cut(hidden)  # also if the hidden node has dialled
            await until(lambda: ("lost", hidden, False) in nodes[other].recorder.events())
            await until(lambda: meshed(nodes[other], nodes), timeout_s=1)

    run(story())


def test_a_peer_that_was_never_there_is_not_reported(run: Run) -> None:
    async def story() -> None:
        nodes = make_nodes(2, limits=LinkLimits(retry_first_s=0.005, retry_max_s=0.01))
        async with started({"n1": nodes["n1"]}):
            await asyncio.sleep(0.05)
            assert nodes["n1"].recorder.records == []
            await nodes["n2"].links.start()
            await until(lambda: nodes["n1"].recorder.records == [("connected", "n2")])
            await nodes["n2"].links.stop()

    run(story())


# Strangers.


def talk(nodes: dict[str, Node], text: bytes) -> Awaitable[None]:
    nodes["n1"].links.send("n2", GROUP, [text])
    nodes["n2"].links.send("n1", GROUP, [text])
    return until(
        lambda: (
            nodes["n1"].recorder.frames("n2")[-1:] == [text]
            and nodes["n2"].recorder.frames("n1")[-1:] == [text]
        )
    )


@pytest.mark.slow
def test_unauthenticated_flood_logs_few_lines_and_peers_go_on(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        # So long that no other handshake takes longer on a machine that is busy.
        async with cluster(2, limits=LinkLimits(handshake_timeout_s=1.5)) as nodes:
            target = nodes["n2"]
            silent = await unauthenticated(target)
            for number in range(40):
                rude = await unauthenticated(target)
                rude.send(random.Random(number).randbytes(20_000))
                assert await rude.left_alone() == b""
                await talk(nodes, b"still here %d" % number)
            assert await silent.left_alone() == b""
            left = await unauthenticated(target)
            left.writer.close()
            wrong = await unauthenticated(target)
            guessing = target.links._credentials([b"guess"])._replace(node="n1")
            handshake = DiallerHandshake(guessing, "n2", bytes(32), lambda *_: None)
            wrong.send(handshake.opening())
            wrong.send(handshake.receive(await wrong.reader.readexactly(167)))
            assert len(await wrong.left_alone()) == 8
            await talk(nodes, b"and still")
            for node in nodes.values():
                assert [record[0] for record in node.recorder.events()] == ["connected"]

    begun_s = time.monotonic()
    run(story())
    lines = warnings_in(caplog)
    rude = len([line for line in lines if "this is not a qq peer" in line])
    assert 1 <= rude <= 1 + (time.monotonic() - begun_s)  # one line in a second: a busy machine takes several
    assert len([line for line in lines if "no answer in time" in line]) == 1
    assert len([line for line in lines if "node 'n1' has proved no secret" in line]) == 1
    assert len(lines) <= rude + 2


def test_peer_with_too_large_a_frame_is_dropped_alone(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        nodes = make_nodes(3)
        del nodes["n1"]
        async with started(nodes):
            await until(lambda: nodes["n2"].links.connected("n3"))
            broken = await impersonate("n1", nodes["n2"])
            broken.send(framed(b"good") + pack("<IH", 0xFFFFFFFF, GROUP))
            assert await broken.left_alone() == b""
            await until(lambda: not nodes["n2"].links.connected("n1"))
            nodes["n3"].links.send("n2", GROUP, [b"fine"])
            await until(lambda: nodes["n2"].recorder.frames("n3") == [b"fine"])

    run(story())
    assert any("peer n1: a frame of 4294967295 bytes" in line for line in warnings_in(caplog))


def test_idle_unauthenticated_connections_are_limited(run: Run) -> None:
    async def story() -> None:
        node = make_nodes(2, limits=LinkLimits(unauthenticated_max=4, unauthenticated_fair_s=60.0))["n2"]
        async with started({"n2": node}):
            idle = [await unauthenticated(node) for _ in range(12)]
            for refused in idle[3:]:
                assert await refused.left_alone() == b""
            slots = node.links._unauthenticated
            assert slots.unauthenticated == 3
            slots.limits = replace(slots.limits, fair_s=0.0)
            more = [await unauthenticated(node) for _ in range(2)]
            peer = await impersonate("n1", node)
            await until(lambda: node.links.connected("n1"))
            for pushed_out in idle[:3]:
                assert await pushed_out.left_alone() == b""
            for one in [*more, peer]:
                one.writer.close()

    run(story())


def test_flood_from_an_address_evicts_no_peer_from_elsewhere(run: Run) -> None:
    async def story() -> None:
        node = make_nodes(2, limits=LinkLimits(unauthenticated_max=4))["n2"]
        async with started({"n2": node}):
            slow = await unauthenticated(node)
            flood = [
                await asyncio.open_connection(*address(node), local_addr=("127.0.0.2", 0)) for _ in range(20)
            ]
            assert await flood[-1][0].read() == b""
            assert not slow.reader.at_eof()
            for _, writer in flood:
                writer.close()
            slow.writer.close()

    run(story())


def test_node_with_a_different_secret_is_named_in_both_logs(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        nodes = make_nodes(2, secrets={"n2": (b"another",)})
        async with started(nodes):
            await until(lambda: len(warnings_in(caplog)) >= 2)
            await asyncio.sleep(0.3)
            assert nodes["n1"].recorder.records == nodes["n2"].recorder.records == []

    run(story())
    lines = warnings_in(caplog)
    assert (
        len([line for line in lines if "node 'n1' has proved no secret that this node accepts" in line]) == 1
    )
    dialler_lines = [line for line in lines if line.startswith("cannot connect to peer n2")]
    assert len(dialler_lines) == 1
    assert dialler_lines[0].endswith("the peer rejects this node: its cluster secret differs")


OLD, NEW = b"the secret until now", b"the secret from now on"
STAGES = {"old": (OLD,), "old, new": (OLD, NEW), "new, old": (NEW, OLD), "new": (NEW,)}


@pytest.mark.parametrize("of_acceptor", STAGES)
@pytest.mark.parametrize("of_dialler", STAGES)
def test_nodes_connect_if_they_have_a_secret_in_common(
    run: Run, caplog: pytest.LogCaptureFixture, of_dialler: str, of_acceptor: str
) -> None:
    secrets = {"n1": STAGES[of_dialler], "n2": STAGES[of_acceptor]}

    async def story() -> None:
        nodes = make_nodes(2, secrets=secrets)
        async with started(nodes):
            if set(secrets["n1"]) & set(secrets["n2"]):
                await until(lambda: all(meshed(node, nodes) for node in nodes.values()))
                await talk(nodes, b"hello")
            else:
                await until(lambda: any("its cluster secret differs" in line for line in warnings_in(caplog)))
                assert nodes["n1"].recorder.records == nodes["n2"].recorder.records == []

    run(story())


def test_other_secrets_count_for_the_connections_that_begin_then(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with cluster(3, secrets=dict.fromkeys(("n1", "n2", "n3"), (OLD,))) as nodes:
            for renewed in ((OLD, NEW), (NEW,)):
                for node in nodes.values():
                    node.links.renew_secrets(renewed)
                    await talk(nodes, b"still here")
                    assert [record[0] for record in node.recorder.events()] == ["connected", "connected"]
            assert warnings_in(caplog) == []
            nodes["n1"].links.renew_secrets([OLD])
            nodes["n1"].cut("n2")
            await until(lambda: any("its cluster secret differs" in line for line in warnings_in(caplog)))
            assert not nodes["n1"].links.connected("n2")
            assert nodes["n1"].links.connected("n3")
            nodes["n1"].links.renew_secrets([OLD, NEW])
            await until(lambda: all(meshed(node, nodes) for node in nodes.values()))

    run(story())


OTHERS = (
    "node {!r} is at version {} of the state and can run {}, this node is at {} and can run {}: start a program on "
    "both that can run both"
)
LISTS = (
    "node {!r} has another list of members ({} names) than this node ({}): put the same list into the configuration "
    "of all nodes"
)
REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "another version": (
        {"versions": {"n2": 6}},
        [OTHERS.format("n1", 7, 7, 6, 6), OTHERS.format("n2", 6, 6, 7, 7)],
    ),
    "another list": (
        {"unknown": {"n1": ["n3", "n4"]}},
        [LISTS.format("n1", 4, 2), LISTS.format("n2", 2, 4)],
    ),
}


@pytest.mark.parametrize("difference", REFUSED)
def test_disagreeing_members_stay_apart_and_log_it_once(
    run: Run, caplog: pytest.LogCaptureFixture, difference: str
) -> None:
    options, (accepting, dialling) = REFUSED[difference]

    async def story() -> None:
        nodes = make_nodes(2, limits=LinkLimits(retry_first_s=0.005, retry_max_s=0.01), **options)
        async with started(nodes):
            await until(lambda: len(warnings_in(caplog)) >= 2)
            await asyncio.sleep(0.2)
            assert nodes["n1"].recorder.records == nodes["n2"].recorder.records == []
            assert not nodes["n1"].links.connected("n2")
            assert not nodes["n2"].links.connected("n1")

    run(story())
    lines = [line for line in warnings_in(caplog) if "n3" not in line and "n4" not in line]
    host, port = "127.0.0.1", "[0-9]+"
    assert len(lines) == 2
    assert f"refused a connection from {host}: {accepting}" in lines
    assert any(
        re.fullmatch(f"cannot connect to peer n2 at {host}:{port}: {re.escape(dialling)}", line)
        for line in lines
    )


def test_second_process_of_a_name_that_keeps_trying_is_known(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A started copy of a data directory would take the member's place as soon as the member ends."""
    monkeypatch.setattr(links_module, "_SECOND_PROCESS_AFTER_S", 0.3)

    async def story() -> None:
        node = make_nodes(2)["n2"]

        async def second() -> None:
            first.send(framed(b"here"))
            with pytest.raises(RejectedError, match="another process with this node's name"):
                await impersonate("n1", node, b"second of the na")

        async with started({"n2": node}):
            first = await impersonate("n1", node, b"first of that na")
            await until(lambda: node.links.connected("n1"))
            await second()
            assert not node.links.is_twice("n1"), "it may be the next life of one whose host is lost"
            while not node.links.is_twice("n1"):  # else the time of the test is over
                await asyncio.sleep(0.05)
                await second()
            await until(lambda: not node.links.is_twice("n1"))
            first.writer.close()

    run(story())


def test_second_process_of_a_name_is_refused_while_first_works(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_GONE_AFTER_S", 0.3)

    async def story() -> None:
        node = make_nodes(2)["n2"]
        async with started({"n2": node}):
            first = await impersonate("n1", node, b"first of that na")
            await until(lambda: node.links.connected("n1"))
            for _ in range(3):
                first.send(framed(b"here"))
                with pytest.raises(RejectedError, match="another process with this node's name") as caught:
                    await impersonate("n1", node, b"second of the na")
                assert caught.value.cause is SecondProcessError
            await until(lambda: len(node.recorder.frames("n1")) == 3)
            assert node.recorder.events() == [("connected", "n1")]
            await asyncio.sleep(0.4)  # its host is gone, and TCP has not noticed yet
            second = await impersonate("n1", node, b"second of the na")
            await until(lambda: node.recorder.events()[1:] == [("lost", "n1", False), ("connected", "n1")])
            first.writer.close()
            second.writer.close()

    run(story())
    why = "another process calls itself node 'n1', which is connected; stop one of the two"
    assert warnings_in(caplog) == [f"refused a connection from 127.0.0.1: {why}"]


# Admission, once a log has the members.

CLUSTER = b"the first cluster"[:16]


def newcomer(
    name: str,
    *seeds: tuple[str, int],
    secret: bytes = SECRET,
    cluster: str = "c",
    bind: tuple[str, int] | None = None,
) -> Node:
    """Return a node that knows only itself and the seeds."""
    bind = bind or ("127.0.0.1", free_ports(1)[0])
    versions, limits = Versions(7, 7), LinkLimits(retry_first_s=0.005, retry_max_s=0.01)
    links = PeerLinks(LinkConfig(name, cluster, bind, versions, seeds=seeds), [secret], limits=limits)
    return Node(links, members({name: bind}), 7, name.encode() * 8)


def all_members(*nodes: Node) -> list[Member]:
    return members({node.links._node: address(node) for node in nodes})


def test_node_of_the_same_cluster_is_admitted_under_any_name(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def story() -> None:
        nodes = make_nodes(2)
        node = nodes["n2"]
        node.configure(all_members(*nodes.values()), CLUSTER)
        async with started({"n2": node}):
            emptied = await impersonate("n1", node, cluster=NO_ID, member=b"another director")
            lagging = await impersonate("x1", node, cluster=CLUSTER, member=b"a directory of x")
            await until(lambda: node.links.connected("n1") and node.links.connected("x1"))
            assert node.links.peer_id("n1") == b"another director"
            assert node.links.peer_id("x1") == b"a directory of x"
            lagging.send(framed(b"hello"))
            await until(lambda: node.recorder.frames("x1") == [b"hello"])
            node.links.send("x1", GROUP, [b"you lag"])
            assert await lagging.reader.readexactly(13) == framed(b"you lag")
            with pytest.raises(HandshakeError):
                await impersonate("x2", node, cluster=b"another cluster!")
            with pytest.raises(RejectedError, match="the node names do not fit"):
                await impersonate("n2", node)
            lagging.writer.close()
            await until(lambda: node.recorder.events()[-1] == ("lost", "x1", False))
            assert "x1" not in node.links._probes, "nobody knows where to ask whether it is dead"
            emptied.writer.close()

    run(story())


def test_member_replaces_a_process_with_its_name_at_once(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """A process with an empty directory had kept the member out, as "another process with this node's name"."""

    async def story() -> None:
        nodes = make_nodes(2)
        node = nodes["n2"]
        known = [replace(member, id=member.name.encode() * 8) for member in all_members(*nodes.values())]
        node.configure(known, CLUSTER)
        async with started({"n2": node}):
            false_terms = {"process": b"false process n1", "cluster": NO_ID, "member": b"another director"}
            false = await impersonate("n1", node, **false_terms)
            await until(lambda: node.links.connected("n1"))
            false.send(framed(b"I am n1"))
            real = await impersonate("n1", node, b"true process, n1", cluster=CLUSTER, member=b"n1" * 8)
            await until(lambda: node.links.peer_id("n1") == b"n1" * 8)
            assert await false.left_alone() == b""
            events = [record for record in node.recorder.events() if record[1] == "n1"]
            assert events == [("connected", "n1"), ("lost", "n1", False), ("connected", "n1")]
            real.send(framed(b"truth"))
            with pytest.raises(
                RejectedError, match="has another data directory; stop this process"
            ) as caught:
                await impersonate("n1", node, **false_terms)
            assert caught.value.cause is OtherDirectoryError
            real.send(framed(b"truth"))
            await until(lambda: node.recorder.frames("n1")[-2:] == [b"truth"] * 2)
            real.writer.close()

    run(story())
    why = (
        "a process with another data directory calls itself node 'n1', which is connected; stop that process"
    )
    replaced, refused = warnings_in(caplog)
    assert replaced.startswith("node n1 has connected with the data directory of the member: ")
    assert refused == f"refused a connection from 127.0.0.1: {why}"


def test_member_is_dialled_while_its_namesake_is_linked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Perhaps only this side can dial; and the clients of a dead member must be released."""
    monkeypatch.setattr(admission, "_PATIENCE_S", 100.0)
    monkeypatch.setattr(links_module, "_FALSE_S", 0.05)

    async def story() -> None:
        nodes = make_nodes(2)
        one, two = nodes["n1"], nodes["n2"]
        known = [replace(member, id=member.name.encode() * 8) for member in all_members(one, two)]
        two.member_id = b"n2" * 8
        for node in (one, two):
            node.configure(known, CLUSTER)
        async with started({"n1": one}):
            false = await impersonate("n2", one, cluster=NO_ID, member=b"another director")
            await until(lambda: one.links.connected("n2"))
            await until(lambda: ("lost", "n2", True) in one.recorder.events())
            assert one.links.peer_id("n2") == b"another director"
            async with started({"n2": two}):
                await until(lambda: one.links.peer_id("n2") == b"n2" * 8)
                assert await false.left_alone() == b""
                await talk(nodes, b"here")

    run(story())


def test_process_dialled_with_a_false_name_keeps_its_link(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An emptied member waits at its address until the cluster takes it in."""
    monkeypatch.setattr(links_module, "_FALSE_S", 0.02)

    async def story() -> None:
        nodes = make_nodes(2)
        one, two = nodes["n1"], nodes["n2"]
        known = [replace(member, id=member.name.encode() * 8) for member in all_members(one, two)]
        one.configure(known, CLUSTER)
        async with started({"n1": one, "n2": two}):
            await until(lambda: one.links.connected("n2"))
            await asyncio.sleep(0.3)
            assert [event for event in one.recorder.events() if event[0] != "frame"] == [("connected", "n2")]

    run(story())


def test_removed_member_keeps_its_link_and_is_not_dialled_again(run: Run) -> None:
    async def story() -> None:
        async with cluster(3) as nodes:
            one, two, three = nodes.values()
            for those in ((one, two, three), (one, two)):
                for node in nodes.values():
                    node.configure(all_members(*those), CLUSTER)
            await asyncio.sleep(0.05)
            assert one.links.connected("n3")
            assert not [
                record for node in nodes.values() for record in node.recorder.events() if record[0] == "lost"
            ]
            one.cut("n3")
            await until(lambda: ("lost", "n3", False) in one.recorder.events())
            await asyncio.sleep(0.3)
            assert "n3" not in {*one.links._dialling, *one.links._probes}
            assert not one.links.connected("n3")
            three.configure(all_members(one, two, three), CLUSTER)
            for node in (one, two):
                node.configure(all_members(one, two, three), CLUSTER)
            await until(lambda: all(meshed(node, nodes) for node in nodes.values()))

    run(story())


def test_non_member_that_became_a_member_is_dialled_when_lost(run: Run) -> None:
    async def story() -> None:
        node, joining = make_nodes(1)["n1"], newcomer("n2")
        node.configure(all_members(node), CLUSTER)
        async with started({"n1": node}):
            non_member = await impersonate("n2", node)
            await until(lambda: node.links.connected("n2"))
            node.configure(all_members(node, joining), CLUSTER)
            assert "n2" not in node.links._probes
            non_member.writer.close()
            await until(lambda: ("lost", "n2", True) in node.recorder.events())
            async with started({"n2": joining}):
                await until(lambda: node.links.connected("n2"))

    run(story())


def test_connected_non_members_are_limited(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        node = make_nodes(2, limits=LinkLimits(non_members_max=2))["n2"]
        node.configure(all_members(node, newcomer("n1")), CLUSTER)
        async with started({"n2": node}):
            non_members = [await impersonate(name, node) for name in ("a1", "a2")]
            for name in ("a3", "a4", "a3"):
                with pytest.raises(RejectedError, match="too many nodes") as caught:
                    await impersonate(name, node)
                assert caught.value.cause is TooManyNonMembersError
            non_members.append(await impersonate("n1", node))
            non_members.append(await impersonate("a1", node))  # which comes again
            await until(lambda: node.recorder.events()[-1] == ("connected", "a1"))
            for non_member in non_members:
                non_member.writer.close()

    run(story())
    assert [line.partition(": ")[2] for line in warnings_in(caplog)] == [
        f"node '{name}' is no member, and 2 nodes are connected that are none, either"
        for name in ("a3", "a4")
    ]


def test_memory_of_refused_nodes_is_bounded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "_REASONS_MAX", 3)

    async def story() -> None:
        node = make_nodes(2)["n2"]
        async with started({"n2": node}):
            for number in range(6):
                with pytest.raises(HandshakeError):
                    await impersonate(f"x{number}", node, members_digest=bytes(32))
            assert list(node.links._logged_reasons) == ["x3", "x4", "x5"]

    run(story())


# Dialling.


def test_either_side_dials_where_only_it_knows_the_address(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_PATIENCE_S", 0.05)

    async def story() -> None:
        for unheard in ("n1", "n2"):
            nodes = make_nodes(2)
            elsewhere = {name: address(node) for name, node in nodes.items()} | {unheard: ("127.0.0.1", 1)}
            for node in nodes.values():
                node.configure(members(elsewhere))
            async with started(nodes):
                await until(lambda nodes=nodes: all(meshed(node, nodes) for node in nodes.values()))
                await talk(nodes, b"hello")

    run(story())


def test_two_nodes_that_dial_at_once_end_up_with_a_single_link(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admission, "_PATIENCE_S", 0.0)

    async def story() -> None:
        limits = LinkLimits(retry_first_s=0.002, retry_max_s=0.002)
        async with cluster(3, limits=limits) as nodes:
            for _ in range(10):
                for node in nodes.values():
                    for peer in list(node.links._links):
                        node.cut(peer)
                await asyncio.sleep(0.02)
                await until(lambda: all(meshed(node, nodes) for node in nodes.values()))
            await asyncio.sleep(0.1)  # pending dials are over
            records = [list(node.recorder.events()) for node in nodes.values()]
            await asyncio.sleep(0.3)
            assert [node.recorder.events() for node in nodes.values()] == records
            await talk(nodes, b"still here")

    run(story())
    assert warnings_in(caplog) == []


@pytest.mark.parametrize("name", ["n1", "n3"])
def test_working_connection_is_replaced_by_the_smaller_name_only(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setattr(admission, "_SILENT_AFTER_S", 0.2)

    async def story() -> None:
        node = make_nodes(3)["n2"]
        async with started({"n2": node}):
            first = await impersonate(name, node)
            await until(lambda: node.links.connected(name))
            if name == "n3":
                with pytest.raises(RejectedError) as caught:
                    await impersonate(name, node)
                assert caught.value.cause is AlreadyLinkedError
                await asyncio.sleep(0.3)  # it has lost the first link, which TCP has not noticed here
            second = await impersonate(name, node)
            assert await first.left_alone() == b""
            events = [record for record in node.recorder.events() if record[1] == name]
            assert events == [("connected", name), ("lost", name, False), ("connected", name)]
            second.writer.close()

    run(story())
    assert warnings_in(caplog) == []


def test_node_of_the_last_release_is_not_dialled_in_its_version(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It refuses dials, though its own name is the smaller name."""
    monkeypatch.setattr(admission, "_PATIENCE_S", 0.0)
    old = ReleaseThatSpeaksVersion3()

    async def story() -> None:
        nodes = make_nodes(2, limits=LinkLimits(retry_first_s=0.005, retry_max_s=0.01))
        async with await asyncio.start_server(old.serve, *address(nodes["n1"])), started({"n2": nodes["n2"]}):
            await until(lambda: len(old.answers_to) > 3)

    run(story())
    assert {hello[4] for hello in old.answers_to} == {4}
    assert warnings_in(caplog) == []


def test_injected_rejection_causes_no_older_protocol_version(
    run: Run,
) -> None:
    """REJECT is not authenticated, and version 3 tells no ids."""

    async def story() -> None:
        nodes = make_nodes(2)
        one, two = nodes.values()
        rejected: list[bytes] = []

        async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if not rejected:
                rejected.append(await reader.read(1000))
                writer.write(pack("<4sHBB", b"qqPL", 3, 5, VersionMismatchError.reason))
                writer.close()
                return
            there, back = await asyncio.open_connection(*address(two))
            await asyncio.gather(pipe(reader, back), pipe(there, writer))

        async def pipe(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                target.write(data)
            target.close()

        async with await asyncio.start_server(between, "127.0.0.1", 0) as server:
            one.member_id, two.member_id = b"1" * 16, b"2" * 16
            known = members({"n1": address(one), "n2": server.sockets[0].getsockname()})
            for node in nodes.values():
                node.configure(known, CLUSTER)
            async with started(nodes):
                await until(lambda: one.links.connected("n2") and two.links.connected("n1"))
                assert rejected
                assert (one.links.protocol("n2"), one.links.peer_id("n2")) == (4, two.member_id)

    run(story())


def test_peer_that_ends_each_link_at_once_does_not_fill_the_log(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The smaller name refuses the directory of the other node, after the WELCOME if it dials: then the link has
    begun.

    Both dial, and the other node gets each refusal, also between two brief links.
    """
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(links_module, "_BRIEF_S", 0.2)
    monkeypatch.setattr(admission, "_PATIENCE_S", 0.0)

    async def story() -> None:
        nodes = make_nodes(2, limits=LinkLimits(retry_first_s=0.005, retry_max_s=0.01))
        one, two = nodes.values()
        known = all_members(one, two)
        one.configure([replace(member, id=member.name.encode() * 8) for member in known], CLUSTER)
        old = Configurations(Configuration.of(7, known))
        old.has_past = True
        two.links.configure(b"of an early life", old)
        async with started(nodes):
            await until(lambda: len(two.recorder.events()) > 40)
            assert len(lines()) <= 8, lines()
            two.configure(known, CLUSTER)
            await until(lambda: lines()[-1] == "peer n1 is connected")

    def lines() -> list[str]:
        return [line for record in caplog.records if "n1" in (line := record.getMessage())]

    run(story())


def test_a_dial_that_is_reset_at_once_closes_its_own_socket_only(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    async def connect_and_be_reset(_names: Resolver, host: str, port: int) -> socket.socket:
        sock = socket.create_connection((host, port))
        sock.setblocking(False)
        accepted, _ = listener.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        accepted.close()
        return sock

    monkeypatch.setattr(links_module, "connect", connect_and_be_reset)

    async def story() -> None:
        node = make_nodes(2)["n1"]
        for _ in range(3):
            with pytest.raises(OSError):
                await node.links._dial("n2", listener.getsockname())
            with socket.socket() as next_one:  # it reuses the file number of the closed socket
                gc.collect()
                next_one.getsockname()

    run(story())
    listener.close()


# Seeds.


def test_a_node_finds_the_cluster_through_a_seed(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with cluster(2) as nodes:
            one, two = nodes.values()
            for node in (one, two):
                node.configure(all_members(one, two), CLUSTER)
            joining = newcomer("a-new-one", address(two))
            async with started({"a-new-one": joining}):
                for _ in range(2):
                    await until(lambda: joining.links.connected("n2") and two.links.connected("a-new-one"))
                    assert not joining.links.connected("n1")
                    two.cut("a-new-one")
                    await until(lambda: not joining.links.connected("n2"))
                for node in (one, two, joining):
                    node.configure(all_members(one, two, joining), CLUSTER)
                assert list(joining.links._dialling) == ["n1", "n2"]
                everybody = nodes | {"a-new-one": joining}
                await until(lambda: all(meshed(node, everybody) for node in everybody.values()))
                joining.configure(all_members(joining))
                assert list(joining.links._dialling) == [address(two)]
                assert warnings_in(caplog) == []

    run(story())


@pytest.mark.parametrize("name", ["a-new-one", "x-new-one"])
def test_two_addresses_of_the_same_node_become_a_single_seed(
    run: Run, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    async def story() -> None:
        node = make_nodes(1)["n1"]
        node.configure(all_members(node), CLUSTER)
        host, port = address(node)
        joining = newcomer(name, (host, port), ("localhost", port))
        async with started({"n1": node, name: joining}):
            await until(lambda: joining.links.connected("n1"))
            await asyncio.sleep(0.2)
            records = len(node.recorder.events())
            assert records <= 3
            await asyncio.sleep(0.2)
            assert len(node.recorder.events()) == records
            assert warnings_in(caplog) == []

    run(story())


def test_node_is_reached_only_where_it_listens_under_its_name(run: Run) -> None:
    async def story() -> None:
        async with cluster(2) as nodes:
            one, two = nodes.values()
            for node in (one, two):
                node.configure(all_members(one, two), CLUSTER)
            new, other_secret = newcomer("x1"), newcomer("x2", secret=b"another")
            other_cluster, other_incarnation = newcomer("x3", cluster="d"), newcomer("x4")
            other_incarnation.configure(all_members(other_incarnation), b"another cluster!")
            other_nodes = {
                node.links._node: node for node in (new, other_secret, other_cluster, other_incarnation)
            }
            amqp = await asyncio.start_server(speaks_amqp, "127.0.0.1", 0)
            async with amqp, started(other_nodes):
                for node, name, why in [
                    (two, "zz", "a node that is not 'zz' listens there"),
                    (one, "zz", "a node that is not 'zz' listens there"),
                    (new, "zz", "a node that is not 'zz' listens there"),
                    (other_secret, "x2", "its cluster secret differs"),
                    (other_cluster, "x3", "it belongs to another cluster"),
                    (other_incarnation, "x4", "node 'x4' belongs to another cluster"),
                ]:
                    with pytest.raises(HandshakeError, match=why):
                        await one.links.reach(name, PeerAddress(*address(node)))
                with pytest.raises(HandshakeError, match="this is not a qq peer"):
                    await one.links.reach("x1", amqp.sockets[0].getsockname())
                with pytest.raises(ConnectionRefusedError):
                    await one.links.reach("x1", ("127.0.0.1", free_ports(1)[0]))
                before = len(two.recorder.events())
                for _ in range(2):
                    assert await one.links.reach("x1", address(new)) == new.member_id
                assert one.links.connected("x1")
                assert one.links.connected("n2")
                assert len(two.recorder.events()) == before, "the links of the members stay as they are"

    run(story())


def test_future_member_is_reached_at_its_listed_address(run: Run) -> None:
    """At its own address no process listens, seen from here."""

    async def story() -> None:
        new = newcomer("x1")
        listed = {"x1": PeerAddress(*address(new))}
        one = PeerLinks(
            LinkConfig("n1", "c", ("127.0.0.1", 0), Versions(7, 7), listed=listed, prefers_listed=True),
            (SECRET,),
        )
        nodes = {"n1": Node(one, members({"n1": ("127.0.0.1", 1)}), 7), "x1": new}
        nodes["n1"].configure(members({"n1": ("127.0.0.1", 1)}), CLUSTER)
        async with started(nodes):
            place = one.dial_address("x1", PeerAddress("127.0.0.1", free_ports(1)[0]))
            assert place == listed["x1"]
            for _ in range(3):  # each request to add it
                await one.reach("x1", place)
            assert one.connected("x1")
            assert nodes["n1"].recorder.events() == [("connected", "x1")]
            elsewhere = PeerAddress("127.0.0.1", free_ports(1)[0])
            with pytest.raises(ConnectionRefusedError):
                await one.reach("x1", elsewhere)

    run(story())


def test_new_node_drops_frames_of_the_second_cluster(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        own, other = newcomer("a1"), newcomer("b1")
        new = newcomer("x1", address(own), address(other))
        own.configure(all_members(own), CLUSTER)
        other.configure(all_members(other), b"another cluster!")
        async with started({"a1": own, "b1": other, "x1": new}):
            await until(lambda: new.links.connected("a1") and new.links.connected("b1"))
            new.configure(all_members(own, new), CLUSTER)
            other.links.send("x1", GROUP, [b"of another cluster"])
            await until(lambda: not new.links.connected("b1") and not other.links.connected("x1"))
            assert new.links.connected("a1")
            assert new.recorder.frames("b1") == []
            assert "dropped the connection of peer b1: it is no member of this node's cluster" in warnings_in(
                caplog
            )

    run(story())


def test_new_nodes_that_join_two_clusters_lose_their_link(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither has reported its cluster: they were to begin a cluster together, and an operator added them elsewhere."""
    monkeypatch.setattr(admission, "_PATIENCE_S", 0.05)

    async def story() -> None:
        one, two = newcomer("x1"), newcomer("x2")
        for node in (one, two):
            node.configure([*all_members(one, two), *members({"x3": ("127.0.0.1", 1)})])
        async with started({"x1": one, "x2": two}):
            await until(lambda: one.links.connected("x2") and two.links.connected("x1"))
            one.configure(all_members(one), CLUSTER)
            two.links.send("x1", GROUP, [b"from one that may have joined another cluster"])
            await until(lambda: ("lost", "x2", False) in one.recorder.events())
            await until(lambda: one.links.connected("x2"))  # it seeks its cluster, and this may be it
            assert one.recorder.frames("x2") == []
            two.configure(all_members(two), b"another cluster!")
            await until(lambda: not one.links.connected("x2") and not two.links.connected("x1"))

    run(story())


async def speaks_amqp(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(8)
    writer.write(b"AMQP\0\0\x09\x01")
    writer.close()


def test_a_node_that_cannot_join_knows_why(run: Run) -> None:
    async def story() -> None:
        [member] = make_nodes(1).values()
        member.configure(all_members(member), CLUSTER)
        host, port = seed = address(member)
        joining = newcomer("x1", seed)
        async with started({"x1": joining}):
            assert joining.links.why_not_joined is None, "it has not tried yet"
            why = f"cannot join the cluster at {host}:{port}: [Errno 111] nobody listens"
            await until(lambda: joining.links.why_not_joined == why)
            async with started({"n1": member}):
                await until(lambda: joining.links.connected("n1"))
                assert joining.links.why_not_joined is None
        lone = newcomer("x2")
        assert lone.links.why_not_joined is None

    run(story())


def test_refused_node_knows_the_peer_and_the_reason(run: Run) -> None:
    async def story() -> None:
        nodes = make_nodes(2, secrets={"n1": (b"another",)})
        refused, other = nodes.values()
        assert refused.links.why_apart is None
        async with started({"n1": refused}):
            async with started({"n2": other}):
                why = "n2 (the peer rejects this node: its cluster secret differs)"
                await until(lambda: refused.links.why_apart == why)
            await until(lambda: refused.links.why_apart is None)  # that port is closed now

    run(story())


def test_useless_seeds_cost_a_line_each(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        host = "127.0.0.1"
        own, old, unused = ((host, port) for port in free_ports(3))
        without_list = newcomer("x1")
        other_secret, other_cluster = newcomer("x2", secret=b"another"), newcomer("x3", cluster="d")
        for node in (other_secret, other_cluster):
            node.configure(all_members(node), CLUSTER)
        seeds = {
            own: "node 'joining' answers there, which is the name of this node",
            old: "the peer rejects this node: it speaks another version of the peer protocol: 3, this node 3 and 4; "
            "a node of release 0.1 lets no new members in",
            unused: "[Errno 111] nobody listens",
            address(
                without_list
            ): "the node there is of no cluster that can be joined: it waits for one, as this node "
            "does, or not all members of its cluster run this release",
            address(other_secret): "the peer rejects this node: its cluster secret differs",
            address(other_cluster): "the peer rejects this node: it belongs to another cluster",
        }
        lines = [f"cannot join the cluster at {host}:{port}: {why}" for (_, port), why in seeds.items()]
        joining = newcomer("joining", *seeds, bind=own)
        other_nodes = {
            node.links._node: node for node in (without_list, other_secret, other_cluster, joining)
        }
        async with await asyncio.start_server(ReleaseThatSpeaksVersion3().serve, *old), started(other_nodes):
            await until(lambda: len(log_lines(caplog)) >= len(seeds))
            await asyncio.sleep(0.2)
            assert joining.recorder.records == []
            assert sorted(log_lines(caplog)) == sorted(lines)
            # A line a second of each kind about refused connections follows.
            assert len(warnings_in(caplog)) <= len(lines) + 4

    def log_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
        return [line for line in warnings_in(caplog) if line.startswith("cannot join")]

    run(story())


# Congestion.

SMALL_BUFFERS = LinkLimits(high_water_bytes=4 << 20, low_water_bytes=1 << 20, queued_bytes_max=12 << 20)
on_loops_that_pause = pytest.mark.parametrize(
    "run", LOOPS if sys.version_info < (3, 12) else LOOPS[1:], indirect=True
)
"""That of asyncio, in CPython 3.12 and 3.13.0, does not have a protocol pause that writes many buffers at once."""


@on_loops_that_pause
def test_a_congested_link_reports_when_it_has_room_again(run: Run) -> None:
    async def story() -> None:
        node = make_nodes(2, limits=SMALL_BUFFERS)["n2"]
        async with started({"n2": node}):
            slow = await impersonate("n1", node)
            await until(lambda: node.links.connected("n1"))
            sent = 0
            while not node.links.congested("n1"):
                node.links.send("n1", GROUP, [bytes(1 << 20)])
                sent += 1
                await asyncio.sleep(0)
            assert sent < 64
            assert node.recorder.events() == [("connected", "n1")]
            await slow.reader.readexactly(sent * (6 + (1 << 20)))
            await until(lambda: node.recorder.events()[1:] == [("drained", "n1")])
            assert not node.links.congested("n1")
            slow.writer.close()

    run(story())


def test_backlog_takes_a_frame_of_any_size_and_then_a_bound() -> None:
    backlog = LinkBacklog(LinkLimits(queued_bytes_max=100))
    assert backlog.admits(10**9, 0)
    assert backlog.admits(10, 10**9)
    assert backlog.admits(10, 10**9 + 100)
    assert not backlog.admits(10, 10**9 + 101)
    assert backlog.admits(10, 0)  # it was free meanwhile
    assert backlog.admits(10, 110)
    assert not backlog.admits(10, 111)


@on_loops_that_pause
def test_a_peer_that_never_reads_is_dropped_at_the_limit(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        node = make_nodes(2, limits=SMALL_BUFFERS)["n2"]
        async with started({"n2": node}):
            stuck = await impersonate("n1", node)
            await until(lambda: node.links.connected("n1"))
            for _ in range(64):
                node.links.send("n1", GROUP, [bytes(1 << 20)])
                await asyncio.sleep(0)
            await until(lambda: ("lost", "n1", False) in node.recorder.events())
            assert not node.links.congested("n1")
            stuck.writer.close()

    run(story())
    assert "peer n1 does not read: its connection is dropped" in warnings_in(caplog)


# Start, stop, configuration.


def test_stopped_node_sends_queued_frames_and_reports_no_loss(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 60 MiB take more than a second on a busy machine.
    monkeypatch.setattr(links_module, "_FLUSH_ON_STOP_S", 30.0)

    async def story() -> None:
        async with cluster(2) as nodes:
            one, two = nodes["n1"], nodes["n2"]
            for _ in range(20):
                one.links.send("n2", GROUP, [bytes(1 << 20)])
            one.links.send("n2", GROUP, [bytes(40 << 20)])
            await one.links.stop()
            await until(lambda: len(two.recorder.frames("n1")) == 21)
            assert one.recorder.events() == [("connected", "n2")]
            assert not one.links.connected("n2")
            assert not one.links._tasks

    run(story())


@pytest.mark.parametrize("passes", range(6))
def test_a_connection_that_comes_as_a_node_stops_is_closed(run: Run, passes: int) -> None:
    """Whichever pass of the event loop the stop meets it in."""

    async def story() -> None:
        node = make_nodes(2)["n2"]
        async with started({"n2": node}):
            await asyncio.sleep(0.01)
            # Not of the loop: it is there at once.
            comes = socket.create_connection(address(node))
            for _ in range(passes):
                await asyncio.sleep(0)
        comes.close()

    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always", ResourceWarning)
        run(story())
        gc.collect()
    assert [str(warning.message) for warning in records] == []


def test_a_port_in_use_is_an_error_of_start(run: Run) -> None:
    async def story() -> None:
        node = make_nodes(1)["n1"]
        with socket.create_server(address(node)), pytest.raises(OSError, match="in use"):
            await node.links.start()

    run(story())


def test_impossible_configurations_are_refused() -> None:
    here = ("127.0.0.1", 1)
    with pytest.raises(ValueError, match="at least 231"):
        PeerLinks(
            LinkConfig("n1", "c", here, Versions(7, 7)),
            [SECRET],
            limits=LinkLimits(unauthenticated_bytes_max=100),
        )
    links = PeerLinks(LinkConfig("n1", "c", here, Versions(7, 7)), [SECRET])
    links.register(GROUP, Recorder())
    with pytest.raises(ValueError, match="group 7 is registered already"):
        links.register(GROUP, Recorder())


# TLS.


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> PeerTls:
    directory: Path = tmp_path_factory.mktemp("tls")
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=qq"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificate))
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=str(certificate))
    for context in (server, client):
        context.load_cert_chain(certificate, key)
    return PeerTls(server, client)


def test_links_work_over_tls(run: Run, tls: PeerTls) -> None:
    async def story() -> None:
        async with cluster(3, tls=tls) as nodes:
            frames = random_frames(3)
            for frame in frames:
                nodes["n3"].links.send("n1", GROUP, [frame])
            await until(lambda: len(nodes["n1"].recorder.frames("n3")) == len(frames))
            assert nodes["n1"].recorder.frames("n3") == frames
            nodes["n1"].cut("n3")
            await until(lambda: nodes["n3"].recorder.events()[-1] == ("connected", "n1"))
            await nodes["n2"].links.stop()
            await until(lambda: ("lost", "n2", True) in nodes["n1"].recorder.events())
            await until(lambda: ("lost", "n2", True) in nodes["n3"].recorder.events())

    run(story())


def test_large_frame_over_tls_does_not_hold_up_the_loop(run: Run, tls: PeerTls) -> None:
    """It is encrypted as it leaves, and not all at once."""

    async def story() -> None:
        async with cluster(2, tls=tls) as nodes:
            one, two = nodes["n1"], nodes["n2"]
            large = random.Random(1).randbytes(1 << 20) * 48
            one.links.send("n2", GROUP, [b"before it", large])
            one.links.send("n2", GROUP, [b"behind it"])
            assert one.links.congested("n2")
            connection = one.links._links["n2"]
            assert connection._pieces_bytes > len(large) / 2
            await until(lambda: len(two.recorder.frames("n1")) == 2)
            assert two.recorder.frames("n1") == [b"before it" + large, b"behind it"]
            await until(lambda: one.recorder.events() == [("connected", "n2"), ("drained", "n2")])
            assert not one.links.congested("n2")
            assert connection._pieces_bytes == 0

    run(story())


def test_connection_without_tls_is_dropped(run: Run, tls: PeerTls, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with cluster(2, tls=tls) as nodes:
            rude = await unauthenticated(nodes["n2"])
            rude.send(b"GET / HTTP/1.1\r\n\r\n")
            await rude.left_alone()
            silent = [await unauthenticated(nodes["n2"]) for _ in range(3)]
            for one in silent:
                one.writer.close()
            await talk(nodes, b"still here")

    run(story())
    assert len(warnings_in(caplog)) <= 1


@pytest.mark.parametrize("host", ["db..example.com", "a" * 64 + ".example.com", ".", "a\0b"])
def test_member_with_an_invalid_host_is_merely_down(host: str) -> None:
    """Configurations refuse such hosts. If a log has one all the same, the link is merely down."""

    async def story() -> None:
        unhandled: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        async with cluster(2) as nodes:
            known = members({name: address(node) for name, node in nodes.items()})
            nodes["n1"].configure([*known, Member("n9", PeerAddress(host, 5680))])
            await asyncio.sleep(0.5)
        assert not unhandled

    asyncio.run(asyncio.wait_for(story(), 20))
