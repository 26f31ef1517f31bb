"""The floods cover the protocol, and a flooder writes the frames of its plan."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from contextlib import closing, contextmanager
from random import Random
from typing import TYPE_CHECKING

from pamqp import commands

from chaos.fuzz.conversations import PROTOCOL_HEADER
from chaos.fuzz.flooder import Flood, Plan
from chaos.fuzz.floods import kinds, make_tls, mixed, plan
from chaos.fuzz.floods10 import kinds10
from chaos.fuzz.legal import opening

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

SENT_BY_SERVERS = {
    "Basic.ConsumeOk",
    "Basic.Deliver",
    "Basic.GetEmpty",
    "Basic.GetOk",
    "Basic.Return",
    "Connection.Secure",
    "Connection.Start",
    "Connection.Tune",
}


def methods_of(octets: bytes) -> set[str]:
    """The names of the methods in these frames."""
    found = set[str]()
    octets = octets.removeprefix(PROTOCOL_HEADER)
    while len(octets) >= 11:
        size = 8 + int.from_bytes(octets[3:7], "big")
        method = commands.INDEX_MAPPING.get(int.from_bytes(octets[7:11], "big"))
        if octets[0] == 1 and method is not None:
            found.add(method.name)
        octets = octets[size:]
    return found


def test_floods_contain_every_method_that_clients_send() -> None:
    found = set[str]()
    for flood in kinds().values():
        for frame in (*flood.before, *flood.again):
            found |= methods_of(frame)
    wanted = {
        method.name
        for method in commands.INDEX_MAPPING.values()
        if not method.name.endswith("Ok") and method.name not in SENT_BY_SERVERS
    }
    wanted |= {f"Connection.{name}" for name in ("StartOk", "SecureOk", "TuneOk", "CloseOk")}
    wanted -= {"Connection.Unblocked"}  # like blocked
    assert wanted - found == set()


def test_floods_contain_every_performative_that_clients_send() -> None:
    found = {
        frame[10]
        for flood in kinds10().values()
        for frame in (*flood.before, *flood.again)
        if frame[8:10] == b"\x00\x53"
    }
    assert found == {*range(0x10, 0x19), 0x41, 0x43}


def test_plan_of_amqp10_waits_for_a_session() -> None:
    made = plan(kinds10()["heartbeat 1.0"], 7)
    assert made.opening.startswith(b"AMQP\x03")
    assert made.awaited == b"\x00\x53\x11"


def test_plan_repeats_whole_frames() -> None:
    made = plan(Flood([b"abc", b"de"]), 7)
    assert len(made.again) % 5 == 0
    assert made.again.startswith(b"abcdeabcde")
    assert made.opening.startswith(opening("heavy", "heavy")[0])
    assert Plan.load(made.dump()) == made


def test_mixed_floods_are_a_function_of_the_seed() -> None:
    assert mixed(Random(5)) == mixed(Random(5))
    assert mixed(Random(5)) != mixed(Random(6))


@contextmanager
def flooded(plan: Plan, *authority: str) -> Generator[socket.socket]:
    """Yield a socket that the connection of a flooder has been accepted on."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        command = [sys.executable, "-m", "chaos.fuzz.flooder", str(listener.getsockname()[1]), *authority]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
        try:
            assert process.stdin is not None
            process.stdin.write(plan.dump())
            process.stdin.close()
            with listener.accept()[0] as client:
                yield client
        finally:
            process.kill()
            process.wait()


def test_flooder_waits_for_the_answer_before_it_repeats() -> None:
    with flooded(Plan(b"opening", b"go", b"again", 1)) as client:
        assert client.recv(100) == b"opening"
        client.sendall(b"--g")
        client.sendall(b"o--")
        assert client.recv(7, socket.MSG_WAITALL) == b"againag"


def test_flooder_floods_over_tls(tmp_path: Path) -> None:
    tls = make_tls(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls.settings["tls"]["cert"], tls.settings["tls"]["key"])
    with (
        flooded(Plan(b"opening", b"go", b"again" * 100_000, 1), str(tls.authority)) as plain,
        context.wrap_socket(plain, server_side=True) as client,
    ):
        assert client.recv(100) == b"opening"
        client.sendall(b"go")
        octets = sum(len(client.recv(65_536)) for _ in range(100))
        assert octets > 500_000
