"""Floods: clients that send what the protocol allows, or not, as fast as a node takes it, and a light client beside.

Invariant: the light client has a user and a virtual host of its own. Each of its requests must be answered before the
node has used WAIT_CPU_S of processor time, however many connections flood, and after they have hung up.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import struct
import subprocess
import sys
import time
from base64 import b64encode
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import pamqp.frame
import trustme
from pamqp import commands, header

from chaos.fuzz.conversations import HEARTBEAT, PROTOCOL_HEADER, marshal
from chaos.fuzz.conversations10 import FRAME_MAX, opening10
from chaos.fuzz.flooder import Flood, Plan
from chaos.fuzz.floods10 import BEGUN, QUEUE, kinds10
from chaos.fuzz.legal import method, opening, publish
from qq.amqp10.encoding import HEARTBEAT as HEARTBEAT10
from qq.cli.local_files import HOST, PASSWORD
from qq.cli.local_files import USER as ADMINISTRATOR

if TYPE_CHECKING:
    from collections.abc import Generator
    from random import Random

    from pamqp.base import Frame

    from qq.testing import ClusterNode

Basic, Channel, Confirm, Connection = commands.Basic, commands.Channel, commands.Confirm, commands.Connection
Exchange, Queue, Tx = commands.Exchange, commands.Queue, commands.Tx

WAIT_CPU_S = 0.05
"""Seconds of the node's processor between a request of the light client and its answer, at most."""
HEAVY, LIGHT = "heavy", "light"
"""Users, with passwords and virtual hosts of the same names."""
BLOB_BYTES = 128 * 1024
"""Octets of repeated frames that are written together, at least."""
PATIENCE_S = 60.0
RETRY_S = 0.5
MIXED_FRAMES_MAX = 2000
"""Frames of a kind in a mixed flood, at most, before they are repeated."""
LIVES_S = (0.0, 0.0, 0.05, 0.5)
"""Lives of the connections of mixed floods, in seconds; 0: for ever."""
REST_S = 0.02
"""Seconds between an answer to the light client and its next request."""
_BYE = (200, "bye", 0, 0)
_FRAME_HEAD = struct.Struct(">BHI")


def _on(*frames: Frame, channel: int = 1) -> list[bytes]:
    return [marshal(channel, frame) for frame in frames]


def _raw(kind: int, channel: int, payload: bytes) -> bytes:
    return _FRAME_HEAD.pack(kind, channel, len(payload)) + payload + b"\xce"


def _header(size: int) -> bytes:
    return pamqp.frame.marshal(header.ContentHeader(0, size, Basic.Properties()), 1)


_REFUSED = _on(Channel.CloseOk(), Channel.Open())
"""Frames that follow a request that closes the channel."""
_QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}
_WIDE: Any = {f"key-{number}": number for number in range(500)}
_NEW_KEYS = [f"key.{number}" for number in range(20_000)]
"""Routing keys, more than a node remembers."""
_TUNE_OK, _OPEN = Connection.TuneOk(2047, 131_072, 0), Connection.Open(HEAVY)


def _declare(name: str = QUEUE, **fields: Any) -> Frame:
    return method(Queue.Declare, queue=name, durable=True, arguments=_QUORUM, **fields)


def kinds() -> dict[str, Flood]:
    """Return the floods by name: each method of each class that a client may send, and all other frames."""
    return {
        "heartbeat": Flood([HEARTBEAT]),
        "heartbeat before the login": Flood([HEARTBEAT], [PROTOCOL_HEADER], opened=False),
        "protocol header of another protocol": Flood([b"GET / HTTP/1.1\r\n\r\n"], opened=False),
        "header frame alone": Flood([_header(5)]),
        "body frame alone": Flood([_raw(3, 1, b"x")]),
        "empty body frames": Flood([_raw(3, 1, b"")], [*_on(Basic.Publish(routing_key=QUEUE)), _header(5)]),
        "frame of an unknown type": Flood([_raw(9, 1, b"")]),
        "frame on a closed channel": Flood(_on(Basic.Qos(), channel=9)),
        "unknown method": Flood([_raw(1, 1, bytes((0, 60, 0, 99)))]),
        "truncated method": Flood([_raw(1, 1, bytes((0, 50, 0, 10, 0)))]),
        "connection openings": Flood(_on(Connection.Close(*_BYE), channel=0)),
        "failed logins": Flood([HEARTBEAT], opening(HEAVY, HEAVY)[:1] + _bad_login(), opened=False),
        "connection.start-ok": Flood([opening(HEAVY, HEAVY)[1]]),
        "connection.secure-ok": Flood(_on(Connection.SecureOk("x"), channel=0)),
        "connection.tune-ok": Flood(_on(_TUNE_OK, channel=0)),
        "connection.open": Flood(_on(_OPEN, channel=0)),
        "connection.close-ok": Flood(_on(Connection.CloseOk(), channel=0)),
        "connection.close after an error": Flood(
            _on(Connection.Close(*_BYE), channel=0), [_raw(1, 0, bytes((0, 60, 0, 99)))]
        ),
        "connection.update-secret": Flood(_on(Connection.UpdateSecret("x", "y"), channel=0)),
        "connection.blocked": Flood(_on(Connection.Blocked("x"), channel=0)),
        "channel.open, close": Flood(_on(Channel.Open(), Channel.Close(*_BYE), channel=2)),
        "channel.open, many": Flood([marshal(number, Channel.Open()) for number in range(2, 2000)]),
        "channel.flow": Flood(_on(Channel.Flow(True))),
        "channel.close-ok": Flood(_on(Channel.CloseOk())),
        "access.request": Flood([_raw(1, 1, bytes((0, 30, 0, 10, 1)) + b"x\x00")]),
        "exchange.declare": Flood(_on(Exchange.Declare(exchange="e"))),
        "exchange.declare, passive": Flood(_on(Exchange.Declare(exchange="amq.direct", passive=True))),
        "exchange.declare, refused": Flood(_on(Exchange.Declare(exchange="none", passive=True)) + _REFUSED),
        "exchange.declare, delete": Flood(_on(Exchange.Declare(exchange="f"), Exchange.Delete(exchange="f"))),
        "exchange.bind, unbind": Flood(
            _on(
                Exchange.Bind(destination="amq.topic", source="amq.direct", routing_key="k"),
                Exchange.Unbind(destination="amq.topic", source="amq.direct", routing_key="k"),
            )
        ),
        "queue.declare": Flood(_on(_declare())),
        "queue.declare, passive": Flood(_on(_declare(passive=True)), _on(_declare())),
        "queue.declare, refused": Flood(_on(_declare("none", passive=True)) + _REFUSED),
        "queue.declare, large arguments": Flood(
            _on(method(Queue.Declare, queue=QUEUE, passive=True, arguments=_WIDE)), _on(_declare())
        ),
        "queue.declare, delete": Flood(_on(_declare("gone"), Queue.Delete(queue="gone"))),
        "queue.bind, unbind": Flood(
            _on(
                Queue.Bind(queue=QUEUE, exchange="amq.topic", routing_key="a.b"),
                Queue.Unbind(queue=QUEUE, exchange="amq.topic", routing_key="a.b"),
            ),
            _on(_declare()),
        ),
        "queue.purge": Flood(_on(Queue.Purge(queue=QUEUE)), _on(_declare())),
        "basic.qos": Flood(_on(Basic.Qos(prefetch_count=10))),
        "basic.consume, cancel": Flood(
            _on(Basic.Consume(queue=QUEUE, consumer_tag="c"), Basic.Cancel("c")), _on(_declare())
        ),
        "basic.cancel": Flood(_on(Basic.Cancel("none"))),
        "basic.publish": Flood([publish("", QUEUE)], _on(_declare("q", auto_delete=False))),
        "basic.publish, unroutable": Flood([publish("", "nowhere")]),
        "basic.publish, mandatory": Flood(
            [marshal(1, Basic.Publish(routing_key="nowhere", mandatory=True)), _header(0)]
        ),
        "basic.publish, ever new keys": Flood([publish("amq.topic", key) for key in _NEW_KEYS]),
        "basic.publish, ever new keys, bound": Flood(
            [publish("amq.topic", key) for key in _NEW_KEYS],
            _on(_declare(), Queue.Bind(queue=QUEUE, exchange="amq.topic", routing_key="#.9")),
        ),
        "basic.publish, ever new expirations": Flood(
            [publish("", QUEUE, expiration=str(number)) for number in range(1000)], _on(_declare())
        ),
        "basic.publish, confirmed": Flood([publish("", QUEUE)], [*_on(_declare()), *_on(Confirm.Select())]),
        "basic.publish, large headers": Flood([publish("", "nowhere", headers=_WIDE)]),
        "basic.publish, in tiny frames": Flood(
            [*_on(Basic.Publish(routing_key="nowhere")), _header(2000), *[_raw(3, 1, b"x")] * 2000]
        ),
        "basic.publish, large": Flood([publish("", "nowhere", bytes(1_000_000))]),
        "basic.publish, no exchange": Flood([publish("none", "x"), *_REFUSED]),
        "basic.get": Flood(_on(Basic.Get(queue=QUEUE)), _on(_declare())),
        "basic.publish, get, ack": Flood(
            [publish("", QUEUE), *_on(Basic.Get(queue=QUEUE), Basic.Ack(0, True))], _on(_declare())
        ),
        "basic.ack": Flood(_on(Basic.Ack(0, True))),
        "basic.ack, refused": Flood(_on(Basic.Ack(9)) + _REFUSED),
        "basic.nack": Flood(_on(Basic.Nack(0, True))),
        "basic.reject": Flood(_on(Basic.Reject(9)) + _REFUSED),
        "basic.recover": Flood(_on(Basic.Recover(requeue=True))),
        "basic.recover-async": Flood([_raw(1, 1, bytes((0, 60, 0, 100, 1)))]),
        "tx.select": Flood(_on(Tx.Select())),
        "tx.commit": Flood([publish("", "nowhere"), *_on(Tx.Commit())], _on(Tx.Select())),
        "tx.rollback": Flood([publish("", "nowhere"), *_on(Tx.Rollback())], _on(Tx.Select())),
        "confirm.select": Flood(_on(Confirm.Select())),
        "reconnects": Flood([HEARTBEAT], life_s=0.02),
        "reconnects, many channels": Flood(
            [marshal(number, Channel.Open()) for number in range(2, 2000)], life_s=0.1
        ),
    }


def _bad_login() -> list[bytes]:
    return [marshal(0, Connection.StartOk({}, "PLAIN", "\0heavy\0wrong", "en_US"))]


def plan(flood: Flood, connections: int) -> Plan:
    """Return the octets of a flood over some connections."""
    if flood.is_amqp10:
        begin, awaited = opening10(FRAME_MAX, HEAVY, HEAVY), BEGUN
    else:
        begin = [*opening(HEAVY, HEAVY), marshal(1, Channel.Open())]
        awaited = Connection.OpenOk.index.to_bytes(4, "big")
    if not flood.opened:
        begin, awaited = [], b""
    once = b"".join(flood.again)
    again = once * (1 + BLOB_BYTES // len(once))
    return Plan(b"".join((*begin, *flood.before)), awaited, again, connections, flood.life_s)


def mixed(random: Random) -> Flood:
    """Draw a flood that mixes the frames of several kinds."""
    is_amqp10 = random.random() < 1 / 3
    all_kinds = list((kinds10() if is_amqp10 else kinds()).values())
    chosen = [each for each in random.sample(all_kinds, random.randint(2, 5)) if each.opened]
    again: list[bytes] = []
    for each in chosen:
        frames = each.again[: random.randint(1, MIXED_FRAMES_MAX)]
        again += [*frames] * (1 + random.choice((0, 10, 100)) // len(frames))
    before = [frame for each in chosen for frame in each.before]
    again = again or [HEARTBEAT10 if is_amqp10 else HEARTBEAT]
    return Flood(again, before, life_s=random.choice(LIVES_S), is_amqp10=is_amqp10)


class Tls(NamedTuple):
    """The TLS of a cluster's AMQP ports."""

    settings: dict[str, dict[str, str]]
    """Settings of the nodes."""
    authority: Path
    """The file with the certificate of the authority."""


def make_tls(directory: Path) -> Tls:
    """Issue a certificate for the nodes of a cluster."""
    authority = trustme.CA()
    issued = authority.issue_cert(HOST)
    files = Tls({"tls": {}}, directory / "ca.pem")
    authority.cert_pem.write_to_path(files.authority)
    for key, blob in (("cert", issued.cert_chain_pems[0]), ("key", issued.private_key_pem)):
        file = directory / f"{key}.pem"
        blob.write_to_path(file)
        files.settings["tls"][key] = str(file)
    return files


@contextmanager
def flooding(node: ClusterNode, plan: Plan, tls: Tls | None = None) -> Generator[None]:
    """Flood a node during the block, over TLS if that is given. At its end all connections hang up at once."""
    where = [str(node.amqp_port)] if tls is None else [str(node.amqps_port), str(tls.authority)]
    command = [sys.executable, "-m", "chaos.fuzz.flooder", *where]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    try:
        if process.stdin is not None:
            process.stdin.write(plan.dump())
            process.stdin.close()
        yield
    finally:
        process.kill()
        process.wait()


class Waited(NamedTuple):
    """The longest waits of the light client."""

    cpu_s: float = 0.0
    """Seconds of the processor of the node's main thread."""
    clock_s: float = 0.0
    requests: int = 0

    def also(self, cpu_s: float, clock_s: float) -> Waited:
        return Waited(max(self.cpu_s, cpu_s), max(self.clock_s, clock_s), self.requests + 1)


_NOT_WAITED = Waited()


class LightClient:
    """A client that sends a request, waits for the answer, and rests."""

    def __init__(self, node: ClusterNode, tls: Tls | None = None) -> None:
        self._usage = Path(f"/proc/{node.pid}/task/{node.pid}/schedstat")
        port = node.amqp_port if tls is None else node.amqps_port
        self._socket = socket.create_connection((HOST, port), PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            context = ssl.create_default_context(cafile=tls.authority)
            self._socket = context.wrap_socket(self._socket, server_hostname=HOST)
        self._file = self._socket.makefile("rb")
        header_octets, *frames = opening(LIGHT, LIGHT)
        self._socket.sendall(header_octets)
        self._await(Connection.Start)
        self._socket.sendall(b"".join(frames))
        self._await(Connection.OpenOk)
        for frame, answer in (
            (Channel.Open(), Channel.OpenOk),
            (_declare(), Queue.DeclareOk),
            (Confirm.Select(), Confirm.SelectOk),
        ):
            self._socket.sendall(marshal(1, frame))
            self._await(answer)
        self._requests = (
            (marshal(1, _declare(passive=True)), Queue.DeclareOk),
            (publish("", QUEUE, delivery_mode=2), Basic.Ack),
            (marshal(1, Queue.Purge(queue=QUEUE)), Queue.PurgeOk),
        )

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def wait(self, seconds: float, waited: Waited = _NOT_WAITED) -> Waited:
        """Send requests for some seconds, and return the longest waits for their answers."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            for request, answer in self._requests:
                began_s, used_s = time.monotonic(), self._used_s()
                self._socket.sendall(request)
                self._await(answer)
                waited = waited.also(self._used_s() - used_s, time.monotonic() - began_s)
                time.sleep(REST_S)
        return waited

    def _used_s(self) -> float:
        return int(self._usage.read_text().split()[0]) / 1e9

    def _await(self, answer: type[Frame]) -> None:
        while True:
            start = self._file.read(7)
            if len(start) < 7:
                raise EOFError("the light client's connection is closed")
            _, _, size = _FRAME_HEAD.unpack(start)
            payload = self._file.read(size + 1)
            if start[0] == 1 and payload[:4] == answer.index.to_bytes(4, "big"):
                return


def connect(node: ClusterNode, tls: Tls | None = None) -> LightClient:
    """Connect a light client, after the log has taken in large messages of earlier floods that fill the node."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return LightClient(node, tls)
        except EOFError:
            if time.monotonic() > until_s:
                raise
            time.sleep(RETRY_S)


def prepare(node: ClusterNode) -> None:
    """Create the users and virtual hosts of the clients, and an empty queue of the flooding user."""
    for name in (HEAVY, LIGHT):
        _put(node, f"users/{name}", {"password": name, "tags": ""})
        _put(node, f"vhosts/{name}", {})
        _put(node, f"permissions/{name}/{name}", dict.fromkeys(("configure", "write", "read"), ".*"))
    _put(node, f"queues/{HEAVY}/{QUEUE}", {"durable": True, "arguments": _QUORUM})


def clear(node: ClusterNode) -> None:
    """Delete the virtual host of the flooding user, and create it again."""
    _request(node, "DELETE", f"vhosts/{HEAVY}", None)
    _put(node, f"vhosts/{HEAVY}", {})
    _put(node, f"permissions/{HEAVY}/{HEAVY}", dict.fromkeys(("configure", "write", "read"), ".*"))
    _put(node, f"queues/{HEAVY}/{QUEUE}", {"durable": True, "arguments": _QUORUM})


def _put(node: ClusterNode, path: str, document: Any) -> None:
    _request(node, "PUT", path, document)


def _request(node: ClusterNode, verb: str, path: str, document: Any) -> None:
    connection = http.client.HTTPConnection(HOST, node.http_port, timeout=PATIENCE_S)
    try:
        login = b64encode(f"{ADMINISTRATOR}:{PASSWORD}".encode()).decode()
        body = None if document is None else json.dumps(document)
        connection.request(verb, f"/api/{quote(path)}", body, {"Authorization": f"Basic {login}"})
        answer = connection.getresponse()
        answer.read()
        if answer.status >= 400:
            raise RuntimeError(f"{verb} {path}: {answer.status}")
    finally:
        connection.close()
