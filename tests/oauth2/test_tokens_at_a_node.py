"""Tokens in place of passwords, at a real node, with keys from a real server: AMQP and HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Generator
from http.client import HTTPConnection
from typing import Any

import aio_pika
import aiormq
import pika
import pytest

from qq.amqp10.performatives import CloseFrame, EndFrame, ErrorReply
from qq.testing import ClusterNode, LocalCluster
from tests.amqp10_server.lone_broker10 import ManagementClient
from tests.amqp10_server.socket_client import SocketClient
from tests.oauth2.issuer import SERVICE, Issuer, new_key

ALL = ("configure:%2F", "write:%2F", "read:%2F")


@pytest.fixture(scope="module")
def issuer() -> Generator[Issuer]:
    with Issuer() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def node(issuer: Issuer) -> Generator[ClusterNode]:
    oauth2 = {"resource_server_id": SERVICE, "jwks_url": f"{issuer.url}/keys"}
    with LocalCluster(nodes=1, settings={"oauth2": oauth2}) as cluster:
        [node] = cluster.nodes
        while node.status()["version"] < 8:  # the first thing that a new cluster agrees on
            time.sleep(0.02)
        yield node


def connect(node: ClusterNode, token: str, vhost: str = "/", user: str = "app") -> pika.BlockingConnection:
    credentials = pika.PlainCredentials(user, token)
    parameters = pika.ConnectionParameters("127.0.0.1", node.amqp_port, vhost, credentials)
    return pika.BlockingConnection(parameters)


def request(
    node: ClusterNode, path: str, token: str, method: str = "GET", body: Any = None
) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", node.http_port, timeout=10)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, f"/api/{path}", text, {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        raw = answer.read()
        return answer.status, json.loads(raw) if raw else None
    finally:
        connection.close()


# --- AMQP


def test_client_with_a_token_is_limited_to_its_scopes(node: ClusterNode, issuer: Issuer) -> None:
    token = issuer.token(
        "configure:%2F/mine-*", "write:%2F/mine-*", "read:%2F/mine-*", "write:%2F/amq.default"
    )
    with connect(node, token) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("mine-1", durable=True)
        channel.basic_publish("", "mine-1", b"x", pika.BasicProperties(user_id="ann"))
        assert channel.basic_get("mine-1", auto_ack=True)[2] == b"x"
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            channel.queue_declare("yours", durable=True)
        assert refused.value.reply_code == 403
        assert (
            "configure access to queue 'yours' in vhost '/' refused for user 'ann'"
            in refused.value.reply_text
        )
        other = connection.channel()
        other.confirm_delivery()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="user_id property set to 'bob'"):
            other.basic_publish("", "mine-1", b"x", pika.BasicProperties(user_id="bob"))
    admin = issuer.token(*ALL, "tag:administrator")
    assert "ann" not in [user["name"] for user in request(node, "users", admin)[1]]


def test_routing_keys_are_restricted_at_topic_exchanges(node: ClusterNode, issuer: Issuer) -> None:
    with connect(node, issuer.token("write:%2F/*/eu.*")) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("amq.topic", "eu.berlin", b"")
        channel.basic_publish("amq.direct", "us.boston", b"")
        with pytest.raises(
            pika.exceptions.ChannelClosedByBroker, match=r"write access to topic 'us\.boston'"
        ):
            channel.basic_publish("amq.topic", "us.boston", b"")


@pytest.mark.parametrize(
    ("vhost", "scopes", "expected"),
    [
        ("/", ("read:other",), "access to vhost '/' refused for user 'ann'"),
        ("other", ALL, "access to vhost 'other' refused for user 'ann'"),
        ("nowhere", ("read:*",), "vhost nowhere not found"),
    ],
)
def test_a_virtual_host_has_to_be_in_a_scope(
    node: ClusterNode, issuer: Issuer, vhost: str, scopes: tuple[str, ...], expected: str
) -> None:
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=expected):
        connect(node, issuer.token(*scopes), vhost)


def test_invalid_token_is_refused_like_a_wrong_password(node: ClusterNode, issuer: Issuer) -> None:
    for bad in (issuer.token(*ALL, lifetime_s=-9), issuer.token(*ALL, key=new_key()), "eyJ.x.y"):
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            connect(node, bad)
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            connect(node, bad, user="guest")
    expected = node.log.read_text()
    assert "from 127.0.0.1 (PLAIN) refused: invalid token: " in expected
    assert "eyJ" not in expected
    # Passwords are good all the same.
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        assert connection.is_open


def expiring(node: ClusterNode, issuer: Issuer, lifetime_s: float, *scopes: str) -> str:
    """Return a token with this lifetime, less the second by which clocks may differ."""
    return issuer.token(*scopes, exp=time.time() + lifetime_s - 1)


def test_a_connection_ends_with_its_token(node: ClusterNode, issuer: Issuer) -> None:
    with connect(node, expiring(node, issuer, 2.0, *ALL)) as connection:
        connection.channel().queue_declare("short", durable=True)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            connection.sleep(10)
        assert closed.value.args == (320, "CONNECTION_FORCED - the token of user 'ann' has expired")


def test_connection_of_amqp10_ends_with_its_token(node: ClusterNode, issuer: Issuer) -> None:
    token = expiring(node, issuer, 2.0, *ALL)
    with SocketClient(node.amqp_port) as client:
        assert client.log_in(response=f"\0\0{token}".encode()).code == 0
        client.open_vhost("/")
        client.begin()
        error = client.until(CloseFrame).error
    assert error == ErrorReply("amqp:unauthorized-access", "credential expired")


def test_a_new_token_renews_a_connection_and_its_permissions(node: ClusterNode, issuer: Issuer) -> None:
    async def story() -> None:
        url = f"amqp://:{expiring(node, issuer, 2.0, *ALL)}@127.0.0.1:{node.amqp_port}/"
        connection = await aio_pika.connect(url)
        channel = await connection.channel()
        await channel.declare_queue("one", durable=True)
        await connection.update_secret(issuer.token("configure:%2F/two"))
        await asyncio.sleep(2.2)
        await channel.declare_queue("two", durable=True)
        with pytest.raises(aiormq.exceptions.ChannelAccessRefused):
            await channel.declare_queue("three", durable=True)
        await connection.close()

    asyncio.run(story())


def test_renewed_token_ends_forbidden_sessions_of_amqp10(node: ClusterNode, issuer: Issuer) -> None:
    token = issuer.token(*ALL)
    with connect(node, token) as connection:
        channel = connection.channel()
        for queue in ("kept10", "lost10"):
            channel.queue_declare(queue, durable=True)
        with ManagementClient(node.amqp_port, token) as client:
            client.manage()
            for number, queue in enumerate(("kept10", "lost10"), start=1):
                client.begin(number)
                client.attach_receiver(queue, number, number)
                client.credit(10, number, number)
            client.begin(3)
            client.attach_sender("/queues/kept10", 3, 3)
            newer = issuer.token("read:%2F/kept10")
            client.send_request("PUT", "/auth/tokens", newer.encode())
            ends: dict[int, str] = {}
            while len(ends) < 2:
                received = client.receive()
                if isinstance(received.performative, EndFrame):
                    ends[received.channel] = received.performative.error.condition
            assert ends == dict.fromkeys((2, 3), "amqp:unauthorized-access")
            channel.basic_publish("", "kept10", b"still here")
            channel.basic_publish("", "lost10", b"for nobody")
            transfer, _ = client.message()
            assert transfer.handle == 1


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"sub": "bob"}, "it is another user's"),
        ({"lifetime_s": -9}, "Signature has expired"),
        ({"scope": ""}, "access to vhost '/' refused for user 'ann'"),
    ],
)
def test_invalid_new_token_closes_the_connection(
    node: ClusterNode, issuer: Issuer, claims: dict[str, Any], expected: str
) -> None:
    with connect(node, issuer.token(*ALL)) as connection:
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=expected) as closed:
            connection.update_secret(issuer.token(*ALL, **claims), "renewal")
        assert closed.value.reply_code == 530


# --- HTTP


def test_token_decides_whoami_and_visible_vhosts(node: ClusterNode, issuer: Issuer) -> None:
    token = issuer.token("tag:management", "tag:other", "read:%2F/q*")
    assert request(node, "whoami", token) == (
        200,
        {
            "name": "ann",
            "tags": ["management", "other"],
            "is_internal_user": False,
            "auth_backend": "rabbit_auth_backend_oauth2",
        },
    )
    assert [each["name"] for each in request(node, "vhosts", token)[1]] == ["/"]
    assert request(node, "vhosts", issuer.token("tag:management", "read:other"))[1] == []
    assert request(node, "users", token)[0] == 401
    assert request(node, "whoami", issuer.token("read:%2F"))[0] == 401  # no tag
    assert request(node, "whoami", issuer.token("tag:management", lifetime_s=-9))[0] == 401
    assert request(node, "whoami", "nonsense")[0] == 401


def test_scopes_decide_permissions_over_http(node: ClusterNode, issuer: Issuer) -> None:
    token = issuer.token(
        "tag:management", "configure:%2F/h*", "read:%2F/h*", "write:%2F/h*", "write:%2F/amq.default"
    )
    durable = {"durable": True}
    assert request(node, "queues/%2F/h1", token, "PUT", durable)[0] == 201
    assert request(node, "queues/%2F/x1", token, "PUT", durable)[0] == 401
    message = {"properties": {}, "routing_key": "h1", "payload": "m", "payload_encoding": "string"}
    assert request(node, "exchanges/%2F/amq.default/publish", token, "POST", message) == (
        200,
        {"routed": True},
    )
    wanted = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    [got] = request(node, "queues/%2F/h1/get", token, "POST", wanted)[1]
    assert got["payload"] == "m"
    assert request(node, "queues/%2F/h1/browse", issuer.token("tag:management", "write:%2F"))[0] == 401
    assert request(node, "queues/%2F/h1", issuer.token("tag:administrator"), "DELETE")[0] == 401


def test_move_with_a_token_is_refused(node: ClusterNode, issuer: Issuer) -> None:
    token, moves = issuer.token(*ALL, "tag:administrator"), "moves/%2F"
    for queue in ("m1", "m2"):
        assert request(node, f"queues/%2F/{queue}", token, "PUT", {"durable": True})[0] == 201
    refused = request(node, moves, token, "POST", {"source": "m1", "destination": "m2"})
    assert refused == (
        403,
        {
            "error": "forbidden",
            "reason": "messages are moved with a password: a move goes on when a token has expired",
        },
    )
    assert request(node, moves, token) == (200, [])


def test_an_administrator_by_token(node: ClusterNode, issuer: Issuer) -> None:
    token = issuer.token("tag:administrator", "configure:*", sub="guest")
    assert request(node, "vhosts/by-token", token, "PUT", {})[0] == 201
    # guest has a password, and is a different user.
    assert request(node, "vhosts/by-token/permissions", token) == (200, [])
    assert request(node, "definitions", token, "POST", {})[0] == 403
    assert request(node, "login", token, "POST", {"username": "", "password": token})[0] in (400, 401)
    assert request(node, "vhosts/by-token", token, "DELETE")[0] == 204


# --- keys


def test_new_key_of_the_issuer_is_fetched_on_use(node: ClusterNode, issuer: Issuer) -> None:
    request(node, "whoami", issuer.token(*ALL))
    issuer.keys["new"] = new_key()
    deadline_s = time.monotonic() + 15  # the issuer may have been asked a moment ago
    while request(node, "whoami", issuer.token("tag:monitoring", number="new"))[0] != 200:
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
