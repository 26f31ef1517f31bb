"""AMQP over TLS on real sockets: admission, the user of a certificate, and replaced certificates."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import ssl
import subprocess
import warnings
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aio_pika
import pika
import pika.credentials
import pika.exceptions
import pytest
import uvloop
from pamqp import commands

from qq import testing
from qq.cli.local_files import PEER_PORT_OFFSET
from qq.config import ClientTls, TlsFiles
from qq.errors import StartError
from qq.testing import LocalCluster
from qq.tls import contexts
from tests.harness.certificates import Authority, Files
from tests.harness.lone_broker import LoneBroker, wait_until
from tests.harness.raw_client import HEADER, RawClient, publish

Connection = commands.Connection
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
REFUSED = (ssl.SSLError, ConnectionError, EOFError)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def server_files(authority: Authority) -> Files:
    return authority.issue("server")


@pytest.fixture(params=LOOPS)
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    return LOOPS[request.param]


@pytest.fixture
def broker(server_files: Files, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> Generator[LoneBroker]:
    """A broker without client certificates, on both event loops."""
    with LoneBroker(tls=ClientTls(*server_files), new_loop=new_loop) as broker:
        yield broker


@pytest.fixture
def mutual(authority: Authority, server_files: Files) -> ClientTls:
    return ClientTls(*server_files, authority.file, verify_peer=True, fail_if_no_peer_cert=True)


def pika_parameters(port: int, context: ssl.SSLContext, **more: Any) -> pika.ConnectionParameters:
    options = pika.SSLOptions(context, "localhost")
    return pika.ConnectionParameters("127.0.0.1", port, ssl_options=options, **more)


def round_trip(connection: Any, body: bytes = b"m" * 300_000) -> None:
    channel = connection.channel()
    channel.queue_declare("q")
    channel.confirm_delivery()
    channel.basic_publish("", "q", body)
    assert channel.basic_get("q", auto_ack=True)[2] == body
    connection.close()


def refused(port: int, context: ssl.SSLContext) -> None:
    with pytest.raises(REFUSED):
        greet(port, context)


def greet(port: int, context: ssl.SSLContext) -> None:
    """TLS 1.3 tells a client of its refusal with the first data that it reads."""
    with RawClient(port, tls=context, handshake=False) as client:
        client.write(HEADER)
        client.expect(Connection.Start)


# Clients


def test_pika_works_over_tls(broker: LoneBroker, authority: Authority) -> None:
    round_trip(pika.BlockingConnection(pika_parameters(broker.amqps_port, authority.context())))


def test_aio_pika_works_over_tls(broker: LoneBroker, authority: Authority) -> None:
    async def work() -> None:
        connection = await aio_pika.connect(
            host="localhost", port=broker.amqps_port, ssl=True, ssl_context=authority.context()
        )
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("q")
            await channel.default_exchange.publish(aio_pika.Message(b"m" * 300_000), "q")
            message = await queue.get(no_ack=True)
            assert message.body == b"m" * 300_000

    asyncio.run(work())


def test_plain_port_works_beside_tls(broker: LoneBroker) -> None:
    round_trip(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port)))


def test_consumer_that_does_not_read_is_not_written_to(broker: LoneBroker, authority: Authority) -> None:
    count, size = 12, 1_000_000
    with (
        RawClient(broker.amqp_port) as publisher,
        RawClient(broker.amqps_port, tls=authority.context()) as consumer,
    ):
        publisher.open_channel(1)
        publisher.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        consumer.open_channel(1)
        consumer.call(1, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk)
        for number in range(count):
            publisher.write(publish(1, "q", bytes([number]) * size))
        publisher.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        broker.pass_some_time()
        [connection] = [
            one for one in broker.broker.connections.values() if one._certificate_name is not None
        ]
        assert not broker.call(lambda: connection.has_room)
        assert broker.call(connection._transport.get_write_buffer_size) < 5_000_000
        for number in range(count):
            assert consumer.expect_message()[2] == bytes([number]) * size


@pytest.mark.parametrize("with_tls", [True, False])
def test_messages_of_a_client_that_hung_up_are_published(
    broker: LoneBroker, authority: Authority, with_tls: bool
) -> None:
    """Unconfirmed messages have no promise, but many programs only publish, and end."""
    count = 1000
    port, context = (broker.amqps_port, authority.context()) if with_tls else (broker.amqp_port, None)
    with RawClient(broker.amqp_port) as other, RawClient(port, tls=context) as client:
        for each in (client, other):
            each.open_channel(1)
        client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        client.write(publish(1, "q", bytes(3000)) * count)
        client.socket.shutdown(socket.SHUT_WR)

        def messages() -> int:
            answer = other.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
            return answer.message_count

        wait_until(lambda: messages() == count, "all that was sent")


def test_client_of_a_different_authority_rejects_the_server(broker: LoneBroker, tmp_path: Path) -> None:
    with (
        pytest.raises(ssl.SSLCertVerificationError),
        RawClient(broker.amqps_port, tls=Authority(tmp_path / "other").context()),
    ):
        pass


def exchange(port: int, context: ssl.SSLContext) -> None:
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as client,
    ):
        client.settimeout(10)
        client.sendall(b"hello")
        if not client.recv(1000):
            raise EOFError


# Which TLS


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_newer_tls_versions_are_accepted(
    broker: LoneBroker, authority: Authority, version: ssl.TLSVersion
) -> None:
    context = authority.context()
    context.minimum_version = context.maximum_version = version
    with RawClient(broker.amqps_port, tls=context) as client:
        client.close()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_tls_1_1_is_refused(broker: LoneBroker, authority: Authority) -> None:
    context = authority.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    refused(broker.amqps_port, context)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with RawClient(broker.amqps_port, tls=context) as client:
        client.close()


def test_tls_1_2_can_be_refused_and_ciphers_chosen(authority: Authority, server_files: Files) -> None:
    old = authority.context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with LoneBroker(tls=ClientTls(*server_files, minimum_version="1.3")) as broker:
        refused(broker.amqps_port, old)
        with RawClient(broker.amqps_port, tls=authority.context()) as client:
            client.close()
    chosen = "ECDHE-ECDSA-AES256-GCM-SHA384"
    with (
        LoneBroker(tls=ClientTls(*server_files, ciphers=chosen)) as broker,
        RawClient(broker.amqps_port, tls=old) as client,
    ):
        assert isinstance(client.socket, ssl.SSLSocket)
        cipher = client.socket.cipher()
        assert cipher is not None
        assert cipher[0] == chosen


# Certificates of clients


def test_client_needs_a_certificate_of_the_right_authority(
    authority: Authority,
    mutual: ClientTls,
    tmp_path: Path,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with LoneBroker(tls=mutual, new_loop=new_loop) as broker:
        refused(broker.amqps_port, authority.context())
        client = Authority(tmp_path / "other").issue("anna")
        refused(broker.amqps_port, authority.context(client))
        context = authority.context(authority.issue("anna"))
        round_trip(pika.BlockingConnection(pika_parameters(broker.amqps_port, context)))


def test_client_without_a_certificate_needs_a_password(authority: Authority, mutual: ClientTls) -> None:
    with LoneBroker(tls=replace(mutual, fail_if_no_peer_cert=False)) as broker:
        broker.add_user("CN=anna,OU=unit,O=orders", None)
        for client_files, mechanisms in (
            (None, "AMQPLAIN PLAIN"),
            (authority.issue("anna"), "AMQPLAIN PLAIN EXTERNAL"),
        ):
            with RawClient(broker.amqps_port, tls=authority.context(client_files), handshake=False) as client:
                client.write(HEADER)
                assert client.expect(Connection.Start).mechanisms == mechanisms
        round_trip(pika.BlockingConnection(pika_parameters(broker.amqps_port, authority.context())))
        with RawClient(broker.amqps_port, tls=authority.context(), handshake=False) as client:
            client.write(HEADER)
            client.expect(Connection.Start)
            client.send(0, client.start_ok(mechanism="EXTERNAL", response=""))
            client.expect_close(503, "COMMAND_INVALID - invalid authentication mechanism 'EXTERNAL'")


def test_certificate_that_was_not_requested_is_ignored(broker: LoneBroker, authority: Authority) -> None:
    context = authority.context(authority.issue("anna"))
    with RawClient(broker.amqps_port, tls=context, handshake=False) as client:
        client.write(HEADER)
        assert client.expect(Connection.Start).mechanisms == "AMQPLAIN PLAIN"


@pytest.mark.parametrize(
    ("login_from", "user"),
    [("distinguished_name", "CN=anna,OU=unit,O=orders"), ("common_name", "anna")],
)
def test_external_logs_in_the_user_of_the_certificate(
    authority: Authority,
    mutual: ClientTls,
    login_from: str,
    user: str,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    context = authority.context(authority.issue("anna"))
    with LoneBroker(tls=replace(mutual, cert_login_from=login_from), new_loop=new_loop) as broker:
        parameters = pika_parameters(
            broker.amqps_port, context, credentials=pika.credentials.ExternalCredentials()
        )
        with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="mechanism EXTERNAL"):
            pika.BlockingConnection(parameters)
        broker.add_user(user, None)
        connection = pika.BlockingConnection(parameters)
        assert [known.user for known in broker.broker.connections.values()] == [user]
        round_trip(connection)
        # No password is good for such a user.
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            pika.BlockingConnection(
                pika_parameters(
                    broker.amqps_port, context, credentials=pika.credentials.PlainCredentials(user, "")
                )
            )


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ((), None),
        (((("organizationName", "o"),),), "O=o"),
        (((("countryName", "DE"),), (("commonName", "a, b"),)), "CN=a\\, b,C=DE"),
        (((("commonName", " #a "),),), "CN=\\ #a\\ "),
        (((("commonName", '#a\\b+c<d>;"=e'),),), 'CN=\\#a\\\\b\\+c\\<d\\>\\;\\"=e'),
        (((("commonName", "ä\n"),),), "CN=\\C3\\A4\\0A"),
        (((("userId", "7"), ("commonName", "a")),), "UID=7+CN=a"),
        (((("domainComponent", "org"),), (("domainComponent", "example"),)), "DC=example,DC=org"),
        (((("1.2.3.4", "x"),),), "1.2.3.4=x"),
    ],
)
def test_a_distinguished_name_is_written_as_rabbitmq_writes_it(subject: Any, name: str | None) -> None:
    assert contexts.name_in({"subject": subject}, "distinguished_name") == name


def test_several_common_names_are_joined() -> None:
    subject = ((("commonName", "a"),), (("organizationName", "o"),), (("commonName", "b"),))
    assert contexts.name_in({"subject": subject}, "common_name") == "a,b"
    assert contexts.name_in({"subject": subject[1:2]}, "common_name") is None


# Certificates that are replaced


def serial_of(port: int, context: ssl.SSLContext) -> str:
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as client,
    ):
        certificate = client.getpeercert()
        assert certificate is not None
        return str(certificate["serialNumber"])


def test_new_certificate_is_shown_to_new_connections(broker: LoneBroker, authority: Authority) -> None:
    context = authority.context()
    before = serial_of(broker.amqps_port, context)
    with RawClient(broker.amqps_port, tls=context) as client:
        assert not broker.call(broker.certificates.reload)
        authority.issue("server")
        assert broker.call(broker.certificates.reload)
        assert not broker.call(broker.certificates.reload)
        after = serial_of(broker.amqps_port, context)
        assert before != after
        client.open_channel(1)
        client.close()


def test_replaced_authority_is_trusted_instead_of_the_old(
    authority: Authority, mutual: ClientTls, tmp_path: Path
) -> None:
    old, other = authority.context(authority.issue("anna")), Authority(tmp_path / "other")
    new = authority.context(other.issue("anna"))
    with LoneBroker(tls=mutual) as broker:
        with RawClient(broker.amqps_port, tls=old) as client:
            client.close()
        refused(broker.amqps_port, new)
        authority.file.write_bytes(other.file.read_bytes())
        assert broker.call(broker.certificates.reload)
        with RawClient(broker.amqps_port, tls=new) as client:
            client.close()
        refused(broker.amqps_port, old)


@pytest.mark.parametrize("damage", ["another key", "rubbish", "missing"])
def test_invalid_replacement_files_are_ignored_and_logged_once(
    broker: LoneBroker,
    authority: Authority,
    server_files: Files,
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = serial_of(broker.amqps_port, authority.context())
    good = server_files.key.read_bytes()
    match damage:
        case "another key":
            server_files.key.write_bytes(authority.issue("other").key.read_bytes())
        case "rubbish":
            server_files.key.write_bytes(b"rubbish")
        case _:
            server_files.key.unlink()
    for _ in range(3):
        assert not broker.call(broker.certificates.reload)
    assert serial_of(broker.amqps_port, authority.context()) == before
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    expected = f"TLS for clients cannot be set up from {server_files.cert}: "
    if damage == "missing":
        expected = f"{server_files.key} cannot be read: No such file or directory; "
    assert len(warnings) == 1
    assert warnings[0].startswith(expected)
    server_files.key.write_bytes(good)
    assert broker.call(broker.certificates.reload)


def test_invalid_tls_files_stop_the_start(server_files: Files, tmp_path: Path) -> None:
    with pytest.raises(StartError) as caught:
        contexts.for_clients(ClientTls(server_files.cert, server_files.cert))
    assert str(caught.value).startswith(f"TLS for clients cannot be set up from {server_files.cert}: ")
    with pytest.raises(StartError, match="cannot be set up"):
        contexts.for_clients(ClientTls(*server_files, ciphers="no such cipher"))
    empty = tmp_path / "ca.pem"
    empty.touch()
    with pytest.raises(StartError, match=f"the authorities in {empty} cannot be used"):
        contexts.for_clients(ClientTls(*server_files, ca=empty, verify_peer=True))
    with pytest.raises(StartError, match=f"the authorities in {empty} cannot be used"):
        contexts.for_peers(TlsFiles(*server_files, empty))


# Keys that are encrypted


def encrypt(key: Path, passphrase: str) -> None:
    """Encrypt the key in this file."""
    command = ["openssl", "pkcs8", "-topk8", "-in", key, "-passout", f"pass:{passphrase}"]
    encrypted = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    key.write_bytes(encrypted)


@pytest.fixture
def passphrase(server_files: Files, tmp_path: Path) -> Path:
    """Encrypt the server's key; the file with its passphrase."""
    encrypt(server_files.key, "a passphrase")
    file = tmp_path / "passphrase"
    file.write_text("a passphrase\n")
    return file


def makers(files: Files, ca: Path, passphrase: Path | None) -> list[Callable[[], Any]]:
    """Return functions that make the contexts for clients and for peers."""
    return [
        lambda: contexts.for_clients(ClientTls(*files, key_password_file=passphrase)),
        lambda: contexts.for_peers(TlsFiles(*files, ca, passphrase)),
    ]


def test_a_key_may_be_encrypted(authority: Authority, server_files: Files, passphrase: Path) -> None:
    for make in makers(server_files, authority.file, passphrase):
        make()
    with LoneBroker(tls=ClientTls(*server_files, key_password_file=passphrase)) as broker:
        before = serial_of(broker.amqps_port, authority.context())
        encrypt(authority.issue("server").key, "another one")
        assert not broker.call(broker.certificates.reload)
        passphrase.write_text("another one")
        assert broker.call(broker.certificates.reload)
        assert serial_of(broker.amqps_port, authority.context()) != before


@pytest.mark.parametrize("wrong", [b"wrong", b"w" * 2000])
def test_missing_or_wrong_passphrase_is_reported(
    authority: Authority, server_files: Files, passphrase: Path, wrong: bytes
) -> None:
    for make in makers(server_files, authority.file, None):
        with pytest.raises(StartError) as caught:
            make()
        assert str(caught.value) == (
            f"{server_files.key} is encrypted: name the file with its passphrase as key_password_file"
        )
    passphrase.write_bytes(wrong)
    for make in makers(server_files, authority.file, passphrase):
        with pytest.raises(StartError) as caught:
            make()
        expected = f"{server_files.key} cannot be decrypted with the passphrase in {passphrase}: "
        assert str(caught.value).startswith(expected)


def test_key_of_a_wrong_certificate_is_no_passphrase_error(
    authority: Authority, server_files: Files, passphrase: Path
) -> None:
    other = authority.issue("other").key
    encrypt(other, passphrase.read_text().strip())
    files = server_files._replace(key=other)
    for make in makers(files, authority.file, passphrase):
        with pytest.raises(StartError, match="KEY_VALUES_MISMATCH") as caught:
            make()
        assert "passphrase" not in str(caught.value).replace(str(passphrase.parent), "")


def test_unneeded_passphrase_is_ignored(authority: Authority, server_files: Files, tmp_path: Path) -> None:
    for make in makers(server_files, authority.file, tmp_path / "passphrase"):
        make()


# Strangers


def test_client_that_does_not_speak_tls_is_dropped(
    broker: LoneBroker, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    for stream in (
        HEADER,
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01" + os.urandom(300),
        os.urandom(1000),
        b"",
    ):
        with socket.create_connection(("127.0.0.1", broker.amqps_port)) as client:
            client.settimeout(10)
            client.sendall(stream)
            client.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while client.recv(1000):
                    pass
    round_trip(pika.BlockingConnection(pika_parameters(broker.amqps_port, authority.context())))
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_pending_tls_handshakes_count_as_connections(broker: LoneBroker, authority: Authority) -> None:
    broker.slots.limits = replace(broker.slots.limits, unauthenticated_max=10)
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", broker.amqps_port))) for _ in range(30)
        ]
        for client in clients[8:]:
            client.settimeout(5)
            with contextlib.suppress(ConnectionError):
                assert client.recv(1) == b""
        assert broker.slots.unauthenticated == 8
        broker.slots.limits = replace(broker.slots.limits, fair_s=0.0)
        round_trip(pika.BlockingConnection(pika_parameters(broker.amqps_port, authority.context())))
    testing._wait_until(lambda: broker.slots.unauthenticated == 0, lambda: "they are still counted")
    assert broker.slots.authenticated == 0


def test_unfinished_tls_handshake_is_dropped(server_files: Files) -> None:
    with (
        LoneBroker(tls=ClientTls(*server_files), tls_handshake_timeout_s=0.3) as broker,
        socket.create_connection(("127.0.0.1", broker.amqps_port)) as client,
    ):
        client.settimeout(5)
        client.sendall(b"\x16\x03\x01")
        with contextlib.suppress(ConnectionError):
            assert client.recv(1000) == b""


def test_proxy_header_precedes_tls(
    authority: Authority, mutual: ClientTls, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    context = authority.context(authority.issue("anna"))
    header = b"PROXY TCP6 2001:db8::7 2001:db8::1 40000 5671\r\n"
    with LoneBroker(tls=mutual, new_loop=new_loop, proxies=["127.0.0.1"]) as broker:
        for end in (len(header), 3, 20):
            plain = socket.create_connection(("127.0.0.1", broker.amqps_port))
            with plain:
                plain.sendall(header[:end])
                broker.pass_some_time()
                plain.sendall(header[end:])
                with context.wrap_socket(plain, server_hostname="localhost") as client:
                    client.sendall(HEADER)
                    assert client.recv(1) == b"\1"
                    [connection] = broker.broker.connections.values()
                    assert (connection.peer_host, connection.peer_port) == ("2001:db8::7", 40_000)
            testing._wait_until(lambda: not broker.broker.connections, lambda: "it is still there")
        refused(broker.amqps_port, context)


# Nodes


@pytest.mark.parametrize("passes", range(6))
def test_connection_accepted_while_the_listener_stops_is_closed(broker: LoneBroker, passes: int) -> None:
    """Whichever pass of the event loop the stop meets it in."""

    async def story() -> None:
        with socket.create_connection(("127.0.0.1", broker.amqps_port)):
            for _ in range(passes):
                await asyncio.sleep(0)
            await broker.stop_listening()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        broker.await_on_loop(story())
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_node_serves_tls_and_plain_and_reloads_certificates(
    authority: Authority, server_files: Files, tmp_path: Path
) -> None:
    settings = {"tls": {"cert": str(server_files.cert), "key": str(server_files.key)}}
    context = authority.context()
    with LocalCluster(nodes=1, directory=tmp_path / "cluster", settings=settings) as cluster:
        [node] = cluster.nodes
        amqps_port = node.amqps_port
        assert amqps_port is not None
        round_trip(pika.BlockingConnection(pika.URLParameters(node.url)))
        round_trip(pika.BlockingConnection(pika_parameters(amqps_port, context)))
        for stream in (HEADER, os.urandom(1000)):
            with socket.create_connection(("127.0.0.1", amqps_port)) as client:
                client.sendall(stream)
        before = serial_of(amqps_port, context)
        authority.issue("server")
        testing._wait_until(
            lambda: serial_of(amqps_port, context) != before, lambda: "the certificate is the old one"
        )
        assert node.running


def test_peer_certificates_can_be_replaced(
    authority: Authority, server_files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, file in (("CERT", server_files.cert), ("KEY", server_files.key), ("CA", authority.file)):
        monkeypatch.setenv(f"QQ_PEER_TLS_{key}", str(file))
    with LocalCluster(nodes=3, directory=tmp_path) as cluster:
        round_trip(pika.BlockingConnection(pika.URLParameters(cluster.urls[0])))
        other = Authority(tmp_path / "other")
        for node in cluster.nodes:
            peer_port = node.amqp_port + PEER_PORT_OFFSET
            for files in (None, other.issue("stranger")):
                with pytest.raises(REFUSED):
                    exchange(peer_port, authority.context(files))
        fresh = other.issue("server")
        authority.file.write_bytes(other.file.read_bytes())
        server_files.cert.write_bytes(fresh.cert.read_bytes())
        server_files.key.write_bytes(fresh.key.read_bytes())
        for node in cluster.nodes:
            testing._wait_until(
                lambda node=node: "read again: " in node.log.read_text(), lambda: "nothing is read again"
            )
        restarted = cluster.followers()[0]
        restarted.stop()
        restarted.start()
        restarted.wait_ready()
        round_trip(pika.BlockingConnection(pika.URLParameters(restarted.url)))
