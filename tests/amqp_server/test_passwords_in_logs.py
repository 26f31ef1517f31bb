"""A node's log after logins of every kind, right and wrong: no password is in it, in no form."""

from __future__ import annotations

import base64
import contextlib
import http.client
import struct
from collections.abc import Generator
from pathlib import Path

import pika
import pika.exceptions
import pytest
from pamqp import commands

from qq.cli.local_files import HOST
from qq.testing import ClusterNode, LocalCluster
from tests.harness.certificates import Authority
from tests.harness.raw_client import HEADER, RawClient, frame_bytes, marshal

Connection = commands.Connection
USER, RIGHT, WRONG = "guest", "right-4f8a-sesame", "wrong-93bd-sesame"
LETTERS = 8
"""So many of a password in a row are not to be seen."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def node(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[tuple[ClusterNode, int]]:
    """A node that logs all it can, with a password of its own; and its port for TLS."""
    server = authority.issue("server")
    for name, value in (
        ("NODE_LOG_LEVEL", "debug"),
        ("USERS_DEFAULT_PASSWORD", RIGHT),
    ):
        monkeypatch.setenv(f"QQ_{name}", value)
    settings = {"tls": {"cert": str(server.cert), "key": str(server.key)}}
    with LocalCluster(nodes=1, directory=tmp_path / "cluster", settings=settings) as cluster:
        [node] = cluster.nodes
        assert node.amqps_port is not None
        yield node, node.amqps_port


def amqplain(password: str) -> str:
    fields = ((b"LOGIN", USER.encode()), (b"PASSWORD", password.encode()))
    return b"".join(
        bytes([len(name)]) + name + b"S" + len(value).to_bytes(4, "big") + value for name, value in fields
    ).decode()


def answer_to(port: int, *frames: bytes) -> type:
    """Return the type of the node's answer to these frames after the header."""
    with RawClient(port, handshake=False) as client:
        client.write(HEADER)
        client.expect(Connection.Start)
        client.write(b"".join(frames))
        return type(client.receive()[1])


def introduced(mechanism: str, response: str) -> bytes:
    return marshal(0, RawClient.start_ok(response, mechanism))


def opened(port: int) -> RawClient:
    client = RawClient(port, handshake=False)
    client.write(HEADER)
    client.expect(Connection.Start)
    client.send(
        0,
        client.start_ok(f"\0{USER}\0{RIGHT}"),
        Connection.TuneOk(10, 8192, 0),
        Connection.Open("/"),
    )
    client.expect(Connection.Tune)
    client.expect(Connection.OpenOk)
    return client


def status_over_http(port: int, password: str) -> int:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    credentials = base64.b64encode(f"{USER}:{password}".encode()).decode()
    with contextlib.closing(connection):
        connection.request("GET", "/api/whoami", headers={"Authorization": f"Basic {credentials}"})
        return connection.getresponse().status


def forms(password: str) -> set[str]:
    """Return texts that would reveal a password: any eight letters, plain, as numbers, in hexadecimal or base64."""
    octets = password.encode()
    parts = [octets[at : at + LETTERS] for at in range(len(octets) - LETTERS + 1)]
    found = {part.decode() for part in parts} | {part.hex() for part in parts}
    found |= {",".join(map(str, part)) for part in parts} | {", ".join(map(str, part)) for part in parts}
    # The three alignments of base64.
    for shift in range(3):
        encoded = base64.b64encode(bytes(shift) + octets).decode()
        found |= {encoded[at : at + 11] for at in range(4, len(encoded) - 14)}
    return found


def test_no_password_is_in_the_log(node: tuple[ClusterNode, int], authority: Authority) -> None:
    this, amqps_port = node
    port = this.amqp_port
    for mechanism, response in (("PLAIN", f"\0{USER}\0{{}}"), ("AMQPLAIN", None)):
        for password, answer in ((RIGHT, Connection.Tune), (WRONG, Connection.Close)):
            sent = amqplain(password) if response is None else response.format(password)
            assert answer_to(port, introduced(mechanism, sent)) is answer
    # Unreadable responses, an unknown mechanism, and a frame with a wrong end.
    for broken in (
        introduced("PLAIN", RIGHT),
        introduced("AMQPLAIN", f"\x05LOGINS{RIGHT}"),
        introduced("OTHER", RIGHT),
        introduced("PLAIN", f"\0{USER}\0{RIGHT}")[:-1] + b"\0",
        frame_bytes(1, 0, b"\0\x0a\0\x0b" + struct.pack(">I", 0) + b"\x05PLAIN" + RIGHT.encode()),
    ):
        assert answer_to(port, broken) is Connection.Close

    for secret in (RIGHT, WRONG):
        with opened(port) as client:
            client.call(0, Connection.UpdateSecret(secret, "renewal"), Connection.UpdateSecretOk)
    with opened(port) as client:
        client.write(marshal(0, Connection.UpdateSecret(RIGHT, "renewal"))[:-1] + b"\0")
        client.expect(Connection.Close)

    for scheme, at in (("amqp", port), ("amqps", amqps_port)):
        for password in (RIGHT, WRONG):
            parameters = pika.URLParameters(f"{scheme}://{USER}:{password}@localhost:{at}/")
            if scheme == "amqps":
                parameters.ssl_options = pika.SSLOptions(authority.context(), "localhost")
            with contextlib.suppress(pika.exceptions.ProbableAuthenticationError):
                pika.BlockingConnection(parameters).close()
                assert password == RIGHT
    assert [status_over_http(this.http_port, password) for password in (RIGHT, WRONG)] == [200, 401]

    log = this.log.read_text()
    assert log.count("refused") >= 4
    assert log.count(f"user {USER} from 127.0.0.1") >= 4
    for password in (RIGHT, WRONG):
        assert [form for form in forms(password) if form in log] == []
