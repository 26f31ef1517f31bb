"""Rights of users: links, messages and requests to the management node; limits of connections; logins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from qq.amqp10.connection import AMQP_HEADER, SASL_HEADER
from qq.amqp10.performatives import CloseFrame, EndFrame, ErrorReply, OpenFrame, SaslOutcome
from qq.testing import ClusterNode
from tests.amqp10.amqp10_wire import frame
from tests.amqp10_server.lone_broker10 import ManagementClient
from tests.amqp10_server.messages import RELEASED, addressed, outcomes
from tests.amqp10_server.socket_client import SocketClient, receiver, sender
from tests.page.demo import api

VHOST, USER = "test vhost", "test user"
QUEUE, EXCHANGE, INTERNAL, TOPIC = "🍿", "📮", "my internal exchange", "a.b.🐇"
NOTHING = ("", "", "")


def quoted(name: str) -> str:
    return quote(name, safe="")


def permit(node: ClusterNode, configure: str, write: str, read: str) -> None:
    rights = {"configure": configure, "write": write, "read": read}
    api(node, f"permissions/{quoted(VHOST)}/{quoted(USER)}", "PUT", rights)


def permit_topics(node: ClusterNode, write: str, read: str) -> None:
    permit(node, ".*", ".*", ".*")
    rights = {"exchange": "amq.topic", "write": write, "read": read}
    api(node, f"topic-permissions/{quoted(VHOST)}/{quoted(USER)}", "PUT", rights)


@pytest.fixture
def vhost(node: ClusterNode) -> Iterator[None]:
    """A virtual host with a user, queues, exchanges and bindings. The user has no rights."""
    where = quoted(VHOST)
    api(node, f"vhosts/{where}", "PUT", {})
    api(node, f"users/{quoted(USER)}", "PUT", {"password": USER, "tags": ""})
    permit(node, *NOTHING)
    api(node, f"queues/{where}/{quoted(QUEUE)}", "PUT", {"durable": True})
    api(node, f"exchanges/{where}/{quoted(EXCHANGE)}", "PUT", {"type": "direct"})
    api(node, f"exchanges/{where}/{quoted(INTERNAL)}", "PUT", {"type": "direct", "internal": True})
    api(node, f"bindings/{where}/e/amq.direct/q/{quoted(QUEUE)}", "POST", {"routing_key": "key"})
    api(node, f"bindings/{where}/e/amq.topic/e/amq.direct", "POST", {"routing_key": TOPIC})
    yield
    api(node, f"vhosts/{where}", "DELETE")
    api(node, f"users/{quoted(USER)}", "DELETE")


@pytest.fixture
def client(node: ClusterNode, vhost: None) -> Iterator[SocketClient]:
    """A connection of the user to the virtual host, without a session."""
    with SocketClient(node.amqp_port) as client:
        assert client.log_in(response=f"\0{USER}\0{USER}".encode()).code == 0
        client.open_vhost(VHOST)
        yield client


def refused(what: str) -> ErrorReply:
    return ErrorReply(
        "amqp:unauthorized-access", f"{what} in vhost 'test vhost' refused for user 'test user'"
    )


def end_of(client: SocketClient) -> ErrorReply | None:
    """Return the error in the end of the session."""
    error = client.until(EndFrame).error
    client.send(EndFrame())
    return error


@pytest.mark.parametrize(
    ("attach", "rights", "what"),
    [
        (receiver(f"/queues/{quoted(QUEUE)}"), (QUEUE, QUEUE, ""), f"read access to queue '{QUEUE}'"),
        (sender(f"/queues/{quoted(QUEUE)}"), (QUEUE, "", ""), "write access to exchange 'amq.default'"),
        (sender("/exchanges/amq.fanout"), NOTHING, "write access to exchange 'amq.fanout'"),
        (sender("/exchanges/amq.fanout/some-key"), NOTHING, "write access to exchange 'amq.fanout'"),
    ],
    ids=["source-queue", "target-queue", "target-exchange", "target-exchange-and-key"],
)
def test_attach_ends_the_session_when_a_right_is_missing(
    node: ClusterNode, client: SocketClient, attach: Any, rights: tuple[str, str, str], what: str
) -> None:
    permit(node, *rights)
    client.begin()
    client.send(attach)
    assert end_of(client) == refused(what)
    client.begin()  # the connection goes on


def test_message_ends_the_session_when_its_topic_is_refused(node: ClusterNode, client: SocketClient) -> None:
    address = f"/exchanges/amq.topic/{quoted(VHOST)}.{quoted(USER)}.a.b"
    permit_topics(node, "^$", "^$")
    client.begin()
    client.attach_sender(address)
    client.transfer(0, addressed(None), settled=True)
    what = "write access to topic 'test vhost.test user.a.b' in exchange 'amq.topic'"
    assert end_of(client) == refused(what)
    permit_topics(node, r"^{vhost}\.{username}\.a\.b$", "^$")
    client.begin()
    client.attach_sender(address)
    client.transfer(0, addressed(None))
    assert outcomes(client, 1) == [RELEASED]  # permitted, and no queue is bound


@pytest.mark.parametrize(
    ("permitted", "address", "error"),
    [
        (
            "/exchanges/amq.fanout",
            f"/queues/{quoted(QUEUE)}",
            refused("write access to exchange 'amq.default'"),
        ),
        (
            "/exchanges/amq.fanout",
            f"/exchanges/{quoted(INTERNAL)}",
            ErrorReply(
                "amqp:unauthorized-access",
                f"forbidden to publish to internal exchange '{INTERNAL}' in vhost '{VHOST}'",
            ),
        ),
        (
            "/exchanges/amq.topic/.a",
            "/exchanges/amq.topic/.a.b",
            refused("write access to topic '.a.b' in exchange 'amq.topic'"),
        ),
    ],
    ids=["default-exchange", "internal", "topic"],
)
@pytest.mark.parametrize("is_settled", [True, False])
def test_message_ends_the_session_when_its_address_is_refused(
    node: ClusterNode,
    client: SocketClient,
    permitted: str,
    address: str,
    error: ErrorReply,
    is_settled: bool,
) -> None:
    permit_topics(node, r"^\.a$", "^$")
    permit(node, "", r"amq\.(fanout|topic)|internal", "")
    client.begin()
    client.attach_sender(None)
    client.transfer(0, addressed(permitted))
    assert outcomes(client, 1) == [RELEASED]
    client.transfer(1, addressed(address), settled=is_settled)
    assert end_of(client) == error


DEAD_LETTERED = {"arguments": {"x-dead-letter-exchange": "📥"}}
TO_QUEUE = {"source": "amq.direct", "destination_queue": QUEUE, "binding_key": "other", "arguments": {}}
TO_EXCHANGE = {
    "source": "amq.fanout",
    "destination_exchange": "amq.direct",
    "binding_key": "k",
    "arguments": {},
}
OF_QUEUE = f"/bindings/src=amq.direct;dstq={quoted(QUEUE)};key=key;args="
OF_TOPIC = f"/bindings/src=amq.topic;dste=amq.direct;key={quoted(TOPIC)};args="
TOPIC_READ = f"read access to topic '{TOPIC}' in exchange 'amq.topic'"
REQUESTS_WITHOUT_RIGHT = {
    "declare_exchange": (NOTHING, "PUT", "/exchanges/new", {}, "configure access to exchange 'new'"),
    "delete_exchange": (
        NOTHING,
        "DELETE",
        f"/exchanges/{quoted(EXCHANGE)}",
        None,
        f"configure access to exchange '{EXCHANGE}'",
    ),
    "declare_queue": (NOTHING, "PUT", "/queues/new", {}, "configure access to queue 'new'"),
    "declare_queue_dlx_queue": (
        ("new", "📥", ""),
        "PUT",
        "/queues/new",
        DEAD_LETTERED,
        "read access to queue 'new'",
    ),
    "declare_queue_dlx_exchange": (
        ("new", "", "new"),
        "PUT",
        "/queues/new",
        DEAD_LETTERED,
        "write access to exchange '📥'",
    ),
    "delete_queue": (
        NOTHING,
        "DELETE",
        f"/queues/{quoted(QUEUE)}",
        None,
        f"configure access to queue '{QUEUE}'",
    ),
    "purge_queue": (
        (QUEUE, "", ""),
        "DELETE",
        f"/queues/{quoted(QUEUE)}/messages",
        None,
        f"read access to queue '{QUEUE}'",
    ),
    "bind_queue_source": (
        (QUEUE, QUEUE, QUEUE),
        "POST",
        "/bindings",
        TO_QUEUE,
        "read access to exchange 'amq.direct'",
    ),
    "bind_queue_destination": (
        (QUEUE, "", "amq.direct"),
        "POST",
        "/bindings",
        TO_QUEUE,
        f"write access to queue '{QUEUE}'",
    ),
    "bind_exchange_source": (
        ("", "amq.direct", ""),
        "POST",
        "/bindings",
        TO_EXCHANGE,
        "read access to exchange 'amq.fanout'",
    ),
    "bind_exchange_destination": (
        ("", "", "amq.fanout"),
        "POST",
        "/bindings",
        TO_EXCHANGE,
        "write access to exchange 'amq.direct'",
    ),
    "bind_to_topic_exchange": (
        None,
        "POST",
        "/bindings",
        {**TO_EXCHANGE, "source": "amq.topic", "binding_key": TOPIC},
        TOPIC_READ,
    ),
    "unbind_queue_source": (
        (QUEUE, QUEUE, "^$"),
        "DELETE",
        OF_QUEUE,
        None,
        "read access to exchange 'amq.direct'",
    ),
    "unbind_queue_target": (
        (QUEUE, "^$", "amq.direct"),
        "DELETE",
        OF_QUEUE,
        None,
        f"write access to queue '{QUEUE}'",
    ),
    "unbind_from_topic_exchange": (None, "DELETE", OF_TOPIC, None, TOPIC_READ),
}


@pytest.mark.parametrize("case", REQUESTS_WITHOUT_RIGHT)
def test_request_ends_the_session_when_a_right_is_missing(node: ClusterNode, vhost: None, case: str) -> None:
    rights, method, path, body, what = REQUESTS_WITHOUT_RIGHT[case]
    if rights is None:
        permit_topics(node, ".*", "wrong.topic")
    else:
        permit(node, *rights)
    with ManagementClient(node.amqp_port, USER, vhost=VHOST) as client:
        client.manage()
        client.send_request(method, path, body)
        assert end_of(client) == refused(what)


def test_queue_is_refused_when_its_vhost_is_full(node: ClusterNode, vhost: None) -> None:
    permit(node, "q1", "", "")
    api(node, f"vhost-limits/{quoted(VHOST)}/max-queues", "PUT", {"value": 0})
    with ManagementClient(node.amqp_port, USER, vhost=VHOST) as client:
        client.manage()
        answer = client.request("PUT", "/queues/q1", {})
    assert (answer.status, answer.body) == (
        "403",
        "cannot declare queue 'q1': queue limit in vhost 'test vhost' (0) is reached",
    )


# Connections


def close_of(port: int, user: str, vhost: str) -> ErrorReply | None:
    """Return the node's error for a refused connection."""
    with SocketClient(port) as client:
        client.log_in(response=f"\0{user}\0{user}".encode())
        client.write(AMQP_HEADER + frame(OpenFrame("refused", f"vhost:{vhost}")))
        assert client.read_octets(8) == AMQP_HEADER
        return client.until(CloseFrame).error


def test_open_is_refused_when_the_vhost_is_missing(node: ClusterNode) -> None:
    error = close_of(node.amqp_port, "guest", "this vhost does not exist")
    assert error is not None
    assert error.condition == "amqp:unauthorized-access"


def test_open_is_refused_when_the_vhost_is_full(node: ClusterNode, client: SocketClient) -> None:
    api(node, f"vhost-limits/{quoted(VHOST)}/max-connections", "PUT", {"value": 1})
    error = close_of(node.amqp_port, USER, VHOST)
    assert error is not None
    assert error.condition == "amqp:resource-limit-exceeded"
    for _ in range(2):
        with SocketClient(node.amqp_port) as other:
            other.open()


def test_open_is_refused_when_the_user_has_too_many(node: ClusterNode, client: SocketClient) -> None:
    api(node, f"user-limits/{quoted(USER)}/max-connections", "PUT", {"value": 1})
    error = close_of(node.amqp_port, USER, VHOST)
    assert error is not None
    assert error.condition == "amqp:resource-limit-exceeded"
    with SocketClient(node.amqp_port) as other:
        other.open()


@pytest.mark.parametrize(
    ("mechanism", "response", "code"),
    [
        ("PLAIN", b"\0guest\0guest", 0),
        ("ANONYMOUS", b"anonymous", 0),
        ("ANONYMOUS", None, 0),
        ("PLAIN", b"\0guest\0wrong password", 1),
    ],
)
def test_login_has_an_outcome(node: ClusterNode, mechanism: str, response: bytes | None, code: int) -> None:
    with SocketClient(node.amqp_port) as client:
        outcome: SaslOutcome = client.log_in(mechanism, response)
        assert outcome.code == code
        if code:
            assert client.read_octets(1) == b""
        else:
            client.open_vhost("/")


def test_connection_without_a_login_ends(node: ClusterNode) -> None:
    with SocketClient(node.amqp_port) as client:
        client.write(AMQP_HEADER + frame(OpenFrame("no login", "vhost:/")))
        assert client.read_octets(9) == SASL_HEADER
