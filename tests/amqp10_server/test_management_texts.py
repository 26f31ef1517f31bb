"""The management node of a real node: defaults, texts of refusals, several pairs and clients."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread
from typing import Any
from urllib.parse import quote

import pytest

from qq.amqp10.performatives import AttachFrame, SenderSettleMode
from qq.amqp10.values import UInt, ULong
from qq.testing import ClusterNode
from tests.amqp10_server.lone_broker10 import PAIRED, ManagementClient, management_request
from tests.amqp10_server.messages import ACCEPTED, RELEASED, addressed, outcomes
from tests.amqp10_server.socket_client import SocketClient, receiver, sender
from tests.page.demo import api

NAME, BAD_NAME = "👌", "🤠\n😱"
REFUSED_NAME = f"Bad name '{BAD_NAME}': line feed and carriage return characters not allowed"
DEFAULT_EXCHANGE = "operation not permitted on the default exchange"
LOCKED = (
    f"cannot obtain exclusive access to locked queue '{NAME}' in vhost '/'. It could be originally declared on "
    "another connection or the exclusive property value does not match that of the original declaration."
)


def quoted(name: str) -> str:
    return quote(name, safe="")


@pytest.fixture
def management(node: ClusterNode) -> Iterator[ManagementClient]:
    with ManagementClient(node.amqp_port) as client:
        client.manage()
        yield client
        client.request("DELETE", f"/queues/{quoted(NAME)}")
        client.request("DELETE", f"/exchanges/{quoted(NAME)}")


@pytest.fixture
def publisher(node: ClusterNode) -> Iterator[SocketClient]:
    """A client with a link whose messages have addresses of their own."""
    with SocketClient(node.amqp_port) as client:
        client.open()
        client.begin()
        client.attach_sender(None)
        yield client


def refusal(management: ManagementClient, method: str, path: str, body: Any = None) -> tuple[Any, Any]:
    answer = management.request(method, path, body)
    return answer.status, answer.body


def test_queue_is_durable_by_default(management: ManagementClient, node: ClusterNode) -> None:
    assert management.request("PUT", f"/queues/{quoted(NAME)}", {}).status == "201"
    made = api(node, f"queues/%2F/{quoted(NAME)}")
    assert (made["durable"], made["auto_delete"], made["exclusive"]) == (True, False, False)


def test_queue_has_the_properties_of_its_request(management: ManagementClient, node: ClusterNode) -> None:
    properties = {"durable": False, "exclusive": True, "auto_delete": True}
    described = management.request("PUT", f"/queues/{quoted(NAME)}", properties).body
    assert {key: described[key] for key in properties} == properties
    made = api(node, f"queues/%2F/{quoted(NAME)}")
    assert {key: made[key] for key in properties} == properties


def test_exchange_is_direct_and_durable_by_default(management: ManagementClient, node: ClusterNode) -> None:
    assert management.request("PUT", f"/exchanges/{quoted(NAME)}", {}).status == "204"
    made = api(node, f"exchanges/%2F/{quoted(NAME)}")
    assert (made["type"], made["durable"], made["auto_delete"]) == ("direct", True, False)
    assert (made["internal"], made["arguments"]) == (False, {})


def test_queue_has_the_default_type_of_its_vhost(node: ClusterNode) -> None:
    api(node, "vhosts/typed10", "PUT", {"default_queue_type": "quorum"})
    api(node, "permissions/typed10/guest", "PUT", {"configure": ".*", "write": ".*", "read": ".*"})
    with ManagementClient(node.amqp_port, vhost="typed10") as client:
        client.manage()
        assert client.request("PUT", "/queues/q", {}).body["type"] == "quorum"
    api(node, "vhosts/typed10", "DELETE")


def test_topology_routes_until_it_is_removed(management: ManagementClient, publisher: SocketClient) -> None:
    queue, fanout, key = NAME, "my fanout exchange 🥳", "🗝️ 1"
    arguments = {"x-queue-type": "quorum"}
    assert management.request("PUT", f"/queues/{quoted(queue)}", {"arguments": arguments}).status == "201"
    properties: Any = {"type": "fanout", "durable": False, "auto_delete": True, "arguments": {"x-📥": "📮"}}
    to_queue: Any = {
        "source": "amq.direct",
        "destination_queue": queue,
        "binding_key": key,
        "arguments": {},
    }
    from_fanout: Any = {**to_queue, "source": fanout, "binding_key": "ignored"}
    to_fanout: Any = {
        "source": "amq.direct",
        "destination_exchange": fanout,
        "binding_key": "key 2",
        "arguments": {" 😬 ": " 😬 "},
    }
    for _ in range(2):  # each request may be repeated
        assert management.request("PUT", f"/exchanges/{quoted(fanout)}", properties).status == "204"
        for binding in (to_queue, from_fanout, to_fanout):
            assert management.request("POST", "/bindings", binding).status == "204"
    addresses = [
        f"/queues/{quoted(queue)}",
        f"/exchanges/amq.direct/{quoted(key)}",
        f"/exchanges/{quoted(fanout)}",
        "/exchanges/amq.direct/key%202",
    ]
    for number, address in enumerate(addresses):
        publisher.transfer(number, addressed(address))
    assert outcomes(publisher, 4) == [ACCEPTED] * 4
    listed = management.request(
        "GET", f"/bindings?src=amq.direct&dste={quoted(fanout)}&key={quoted('key 2')}"
    )
    (described,) = listed.body
    for _ in range(2):
        assert management.request("DELETE", described["location"]).status == "204"
        location = f"/bindings/src=amq.direct;dstq={quoted(queue)};key={quoted(key)};args="
        assert management.request("DELETE", location).status == "204"
    publisher.transfer(4, addressed(addresses[1]))
    publisher.transfer(5, addressed(addresses[3]))
    assert outcomes(publisher, 2) == [RELEASED] * 2
    for _ in range(2):
        assert management.request("DELETE", f"/exchanges/{quoted(fanout)}").status == "204"
    purged = management.request("DELETE", f"/queues/{quoted(queue)}/messages")
    assert (purged.status, purged.body) == ("200", {"message_count": ULong(4)})


def test_binding_has_arguments_of_each_type(management: ManagementClient, publisher: SocketClient) -> None:
    name = "my queue ~!@#$%^&*()_+🙈`-=[]\\;',./"
    assert management.request("PUT", f"/queues/{quoted(name)}", {"exclusive": True}).status == "201"
    arguments = {"key 1": "👏", "key 2": UInt(3), "key 3": True, "x-match": "all"}
    binding: Any = {
        "source": "amq.headers",
        "destination_queue": name,
        "binding_key": "",
        "arguments": arguments,
    }
    assert management.request("POST", "/bindings", binding).status == "204"
    named = {key: value for key, value in arguments.items() if key != "x-match"}
    fewer = {key: value for key, value in named.items() if key != "key 2"}
    publisher.transfer(0, addressed("/exchanges/amq.headers", named=named))
    publisher.transfer(1, addressed("/exchanges/amq.headers", named=fewer))
    assert set(outcomes(publisher, 1)) == {ACCEPTED}
    assert set(outcomes(publisher, 1)) == {RELEASED}
    (described,) = management.request("GET", f"/bindings?src=amq.headers&dstq={quoted(name)}&key=").body
    assert management.request("DELETE", described["location"]).status == "204"
    publisher.transfer(2, addressed("/exchanges/amq.headers", named=named))
    assert outcomes(publisher, 1) == [RELEASED]
    deleted = management.request("DELETE", f"/queues/{quoted(name)}")
    assert deleted.body == {"message_count": ULong(1)}


REFUSALS: dict[str, tuple[str, str, Any, str, str]] = {
    "bad_exchange_type": ("PUT", "/exchanges/e1", {"type": "🤷"}, "400", "unknown exchange type '🤷'"),
    "get_queue_not_found": (
        "GET",
        f"/queues/{quoted('🤷')}",
        None,
        "404",
        "queue '🤷' in vhost '/' not found",
    ),
    "declare_queue_empty_name": ("PUT", "/queues/", {}, "400", "declare queue with empty name not allowed"),
    "declare_queue_line_feed": ("PUT", f"/queues/{quoted(BAD_NAME)}", {}, "400", REFUSED_NAME),
    "declare_queue_amq_prefix": (
        "PUT",
        f"/queues/{quoted('amq.🎇')}",
        {},
        "403",
        "queue 'amq.🎇' in vhost '/' starts with reserved prefix 'amq.'",
    ),
    "declare_default_exchange": ("PUT", "/exchanges/", {}, "403", DEFAULT_EXCHANGE),
    "declare_exchange_amq_prefix": (
        "PUT",
        f"/exchanges/{quoted('amq.🎇')}",
        {},
        "403",
        "exchange 'amq.🎇' in vhost '/' starts with reserved prefix 'amq.'",
    ),
    "declare_exchange_line_feed": ("PUT", f"/exchanges/{quoted(BAD_NAME)}", {}, "400", REFUSED_NAME),
    "delete_default_exchange": ("DELETE", "/exchanges/", None, "403", DEFAULT_EXCHANGE),
    "delete_exchange_amq_prefix": (
        "DELETE",
        "/exchanges/amq.fanout",
        None,
        "403",
        "exchange 'amq.fanout' in vhost '/' starts with reserved prefix 'amq.'",
    ),
    "delete_exchange_carriage_return": (
        "DELETE",
        "/exchanges/x%0Dx",
        None,
        "400",
        "Bad name 'x\rx': line feed and carriage return characters not allowed",
    ),
    "bind_source_default_exchange": (
        "POST",
        "/bindings",
        {"source": "", "destination_queue": "none", "binding_key": "k", "arguments": {}},
        "403",
        DEFAULT_EXCHANGE,
    ),
    "bind_destination_default_exchange": (
        "POST",
        "/bindings",
        {"source": "amq.fanout", "destination_exchange": "", "binding_key": "k", "arguments": {}},
        "403",
        DEFAULT_EXCHANGE,
    ),
    "bind_source_line_feed": (
        "POST",
        "/bindings",
        {"source": BAD_NAME, "destination_exchange": "amq.fanout", "binding_key": "k", "arguments": {}},
        "400",
        REFUSED_NAME,
    ),
    "bind_destination_line_feed": (
        "POST",
        "/bindings",
        {"source": "amq.fanout", "destination_exchange": BAD_NAME, "binding_key": "k", "arguments": {}},
        "400",
        REFUSED_NAME,
    ),
    "bind_missing_queue": (
        "POST",
        "/bindings",
        {"source": "amq.direct", "destination_queue": "👀", "binding_key": "k", "arguments": {}},
        "400",
        "no queue '👀' in vhost '/'",
    ),
    "unbind_bad_binding_path_segment": (
        "DELETE",
        "/bindings/src=e1;dstq=q1;invalidkey=k1;args=",
        None,
        "400",
        "bad binding path segment 'src=e1;dstq=q1;invalidkey=k1;args='",
    ),
    "purge_non_existing_queue": (
        "DELETE",
        "/queues/none/messages",
        None,
        "404",
        "no queue 'none' in vhost '/'",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusal_has_the_text_of_rabbitmq(management: ManagementClient, case: str) -> None:
    method, path, body, status, text = REFUSALS[case]
    assert refusal(management, method, path, body) == (status, text)


@pytest.mark.parametrize("path", ["👎", "", "queues/q", "/", "/queues", "/nothing/here"])
def test_bad_path_is_refused_and_the_pair_goes_on(management: ManagementClient, path: str) -> None:
    answer = management.request("GET", path)
    assert answer.status in {"400", "404"}
    assert management.request("GET", "/queues/none").status == "404"


@pytest.mark.parametrize("kind", ["queue", "exchange"])
def test_unknown_property_is_refused(management: ManagementClient, kind: str) -> None:
    status, text = refusal(management, "PUT", f"/{kind}s/my-object", {"unknown": "bla"})
    assert status == "400"
    assert text.startswith(f"bad {kind} property ")
    assert "unknown" in text


@pytest.mark.parametrize("kind", ["queue", "exchange"])
def test_other_properties_are_a_conflict(management: ManagementClient, kind: str) -> None:
    path = f"/{kind}s/{quoted(NAME)}"
    argument, first, second = (
        ("auto_delete", False, True) if kind == "queue" else ("type", "direct", "fanout")
    )
    assert management.request("PUT", path, {argument: first}).status in {"201", "204"}
    status, text = refusal(management, "PUT", path, {argument: second})
    words = [str(value).lower() for value in (second, first)]
    where = f"{kind} '{NAME}' in vhost '/'"
    assert (status, text) == (
        "409",
        f"inequivalent arg '{argument}' for {where}: received '{words[0]}' but current is '{words[1]}'",
    )


def test_exclusive_queue_is_locked(management: ManagementClient, node: ClusterNode) -> None:
    path = f"/queues/{quoted(NAME)}"
    binding: Any = {
        "source": "amq.direct",
        "destination_queue": NAME,
        "binding_key": "🗝️",
        "arguments": {},
    }
    assert management.request("PUT", path, {"exclusive": True}).status == "201"
    assert refusal(management, "PUT", path, {"exclusive": False}) == ("400", LOCKED)
    assert management.request("POST", "/bindings", binding).status == "204"
    with ManagementClient(node.amqp_port) as other:
        other.manage()
        assert refusal(other, "POST", "/bindings", binding) == ("400", LOCKED)
        assert refusal(other, "DELETE", path) == ("400", LOCKED)
        assert refusal(other, "DELETE", path + "/messages") == ("400", LOCKED)


def test_queues_are_declared_by_two_clients_at_once(node: ClusterNode) -> None:
    statuses: list[Any] = []

    def declare() -> None:
        with ManagementClient(node.amqp_port) as client:
            client.manage()
            statuses.extend(client.request("PUT", f"/queues/both10-{each}", {}).status for each in range(5))

    threads = [Thread(target=declare) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(statuses) == 10
    assert set(statuses) <= {"200", "201"}
    with ManagementClient(node.amqp_port) as client:
        client.manage()
        deleted = [client.request("DELETE", f"/queues/both10-{each}").status for each in range(5)]
    assert deleted == ["200"] * 5


def test_session_may_have_several_pairs(node: ClusterNode) -> None:
    with SocketClient(node.amqp_port) as client:
        client.open()
        client.begin()
        fields: Any = {"snd_settle_mode": SenderSettleMode.SETTLED, "properties": PAIRED}
        attaches = [
            sender("/management", 10, name="first", **fields),
            receiver("/management", 11, name="first", **fields),
            receiver("/management", 21, name="second", **fields),  # the other half first
            sender("/management", 20, name="second", **fields),
        ]
        for attach in attaches:
            client.send(attach)
            assert client.until(AttachFrame).name == attach.name
        for number, (handle, method) in enumerate([(10, "PUT"), (20, "DELETE")]):
            client.credit(1, handle=handle + 1)
            body: Any = {} if method == "PUT" else None
            request = management_request(method, "/queues/paired10", body)
            client.transfer(number, request, handle, settled=True)
            transfer, _ = client.message()
            assert transfer.handle == handle + 1
        for handle in (10, 11, 21, 20):
            assert client.detach(handle).error is None
        assert client.end().error is None
