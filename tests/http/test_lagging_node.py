"""Changes that a lagging node has not applied yet are found by its requests, and kept."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from qq.machine.protocol import commands as c
from qq.machine.protocol.codec import encode_batch
from tests.http.fakes import MachineManagement
from tests.http.http_node import GUEST, Node, answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from qq.management.reports.logins import WebLogin
    from tests.http.http_node import Client

Machine = Node[MachineManagement]

VHOST = c.PutVhost("v", "", [], "")
USER = c.PutUser("ann", b"salt", b"h" * 32, [])
QUEUE = c.DeclareQueue(1, 1, "q", False, True, False, False, False, {"x-queue-type": "quorum"})
EXCHANGE = c.DeclareExchange(1, "x", "fanout", False, True, False, False, {})
BINDING = c.BindQueue(1, 1, "q", "amq.direct", "k", {})
PERMISSIONS = c.SetPermissions("ann", "/", "^a", ".*", "")
TOPIC = c.SetTopicPermissions("ann", "/", "amq.topic", "^a", "^b")
POLICY = c.PutPolicy("/", "p", False, "^q", "all", 0, {"max-length": 5})
OPERATOR_POLICY = POLICY._replace(operator=True)
CONNECTION = c.Connect(7, "/", "guest")

ROW = {"configure": "", "write": "", "read": ""}
POLICY_BODY = {"pattern": "x", "definition": {"max-length": 3}}


@pytest.fixture
def node() -> Machine:
    return Node(MachineManagement())


@pytest.mark.parametrize(
    ("made", "path", "method", "body", "status"),
    [
        ([VHOST], "vhosts/v", "GET", None, 200),
        ([VHOST], "vhosts/v", "DELETE", None, 204),
        ([VHOST], "vhosts/v", "PUT", {}, 204),
        ([VHOST], "vhosts/v/permissions", "GET", None, 200),
        ([VHOST], "vhosts/v/connections", "GET", None, 200),
        ([VHOST], "vhost-limits/v", "GET", None, 200),
        ([VHOST], "vhost-limits/v/max-queues", "PUT", {"value": 1}, 204),
        ([VHOST], "vhost-limits/v/max-queues", "DELETE", None, 204),
        ([VHOST], "permissions/v/guest", "PUT", ROW, 201),
        ([VHOST], "queues/v", "GET", None, 200),
        ([VHOST], "consumers/v", "GET", None, 200),
        ([VHOST], "exchanges/v", "GET", None, 200),
        ([VHOST], "exchanges/v/amq.topic", "GET", None, 200),
        ([VHOST], "bindings/v", "GET", None, 200),
        ([VHOST], "policies/v", "GET", None, 200),
        ([VHOST], "policies/v/p", "PUT", POLICY_BODY, 201),
        ([VHOST], "definitions/v", "GET", None, 200),
        ([VHOST], "definitions/v", "POST", {}, 204),
        ([VHOST, USER], "definitions", "POST", {"permissions": [ROW | {"user": "ann", "vhost": "v"}]}, 204),
        ([USER], "users/ann", "GET", None, 200),
        ([USER], "users/ann", "DELETE", None, 204),
        ([USER], "users/ann", "PUT", {"tags": ""}, 204),
        ([USER], "users/ann/permissions", "GET", None, 200),
        ([USER], "user-limits/ann", "GET", None, 200),
        ([USER], "user-limits/ann/max-channels", "PUT", {"value": 1}, 204),
        ([USER], "user-limits/ann/max-channels", "DELETE", None, 204),
        ([USER], "permissions/%2F/ann", "PUT", ROW, 201),
        ([USER, PERMISSIONS], "permissions/%2F/ann", "GET", None, 200),
        ([USER, PERMISSIONS], "permissions/%2F/ann", "DELETE", None, 204),
        ([USER, PERMISSIONS], "permissions/%2F/ann", "PUT", ROW, 204),
        ([USER, TOPIC], "topic-permissions/%2F/ann", "GET", None, 200),
        ([USER, TOPIC], "topic-permissions/%2F/ann/amq.topic", "DELETE", None, 204),
        ([QUEUE], "queues/%2F/q", "GET", None, 200),
        ([QUEUE], "queues/%2F/q", "DELETE", None, 204),
        ([QUEUE], "queues/%2F/q", "PUT", {"arguments": QUEUE.arguments}, 204),
        ([QUEUE], "queues/%2F/q/contents", "DELETE", None, 204),
        ([QUEUE], "queues/%2F/q/bindings", "GET", None, 200),
        ([QUEUE], "queues/%2F/q/browse", "GET", None, 200),
        (
            [QUEUE],
            "queues/%2F/q/get",
            "POST",
            {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"},
            200,
        ),
        ([EXCHANGE], "exchanges/%2F/x", "GET", None, 200),
        ([EXCHANGE], "exchanges/%2F/x", "DELETE", None, 204),
        ([EXCHANGE], "exchanges/%2F/x", "PUT", {"type": "fanout"}, 204),
        ([QUEUE, BINDING], "bindings/%2F/e/amq.direct/q/q/k", "GET", None, 200),
        ([QUEUE, BINDING], "bindings/%2F/e/amq.direct/q/q/k", "DELETE", None, 204),
        ([POLICY], "policies/%2F/p", "GET", None, 200),
        ([POLICY], "policies/%2F/p", "DELETE", None, 204),
        ([POLICY], "policies/%2F/p", "PUT", POLICY_BODY, 204),
        ([OPERATOR_POLICY], "operator-policies/%2F/p", "DELETE", None, 204),
        ([CONNECTION], "connections/n2:7", "GET", None, 200),
        ([CONNECTION], "connections/n2:7", "DELETE", None, 204),
    ],
)
def test_object_made_at_a_different_node_is_found(
    node: Machine, made: list[c.Command], path: str, method: str, body: Any, status: int
) -> None:
    node.management.make_elsewhere(*made)
    assert node.api(path, method, json=body).status == status


@pytest.mark.parametrize("names_generation", [True, False])
def test_lease_of_a_reopened_group_is_found(node: Machine, names_generation: bool) -> None:
    """The node that lags still has a lease of the earlier group with this number."""

    def opened(fence: int) -> list[c.Command]:
        group = "/", "q", "g"
        return [
            c.OpenGroup(*group, fence, "o", "guest", "ready", False, 0),
            c.LeaseMessages(*group, fence, 0, fence, 2**20),
        ]

    path = "queues/%2F/q/groups/g"
    node.management.make(QUEUE)
    node.management.keep(encode_batch([c.Enqueue(99, 0, 2, "", "q", False, 1)], [b"abc"] * 2))
    node.management.make(*opened(1))
    assert node.api(f"{path}/leases/0").json["messages"] == 1
    node.management.make_elsewhere(c.CloseGroup("/", "q", "g", 1, True), *opened(2))
    earlier = node.api(path).json["generation"]
    # The number is the index of the entry, which is the next but one here.
    query = f"?generation={earlier + 2}" if names_generation else ""
    assert node.api(f"{path}/leases/0{query}").json["messages"] == 2
    assert node.api(path).json["generation"] == earlier + 2
    assert node.api(f"{path}/leases/0?generation={earlier}").status == 409


def test_permission_granted_at_a_different_node_counts(node: Machine) -> None:
    node.add_user("ann", "management")
    node.management.make_elsewhere(PERMISSIONS)
    assert node.api("queues/%2F", user="ann").status == 200


def test_connections_of_a_user_close_including_unapplied_rows(node: Machine) -> None:
    node.management.make_elsewhere(CONNECTION)
    assert node.api("connections/username/guest", "DELETE").status == 204
    [row] = node.management.machine.catalog.connections.values()
    assert row.closing


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("vhosts/v", "GET"),
        ("queues/%2F/q", "DELETE"),
        ("policies/%2F/p", "DELETE"),
        ("users/ann", "GET"),
        ("connections/none", "GET"),
        ("exchanges/%2F/x", "GET"),
    ],
)
def test_missing_object_without_a_majority_is_503(node: Machine, path: str, method: str) -> None:
    assert node.api(path, method).status == 404
    node.management.changes.has_majority = False
    assert node.api(path, method).status == 503
    assert node.api("vhosts/%2F").status == 200
    assert node.management.changes.applied == []


# --- fields that stay when a second field is changed

LIMITS = [
    ("vhost-limits/%2F", "max-queues", c.SetVhostLimits("/", {"max-connections": 5})),
    ("user-limits/guest", "max-channels", c.SetUserLimits("guest", {"max-connections": 5})),
]


@pytest.mark.parametrize(("base", "limit", "made"), LIMITS)
def test_limit_set_at_a_different_node_is_kept(node: Machine, base: str, limit: str, made: c.Command) -> None:
    node.management.make_elsewhere(made)
    assert node.api(f"{base}/{limit}", "PUT", json={"value": 3}).status == 204
    assert node.api(base).json[0]["value"] == {"max-connections": 5, limit: 3}
    node.management.make_elsewhere(made)
    assert node.api(f"{base}/{limit}", "DELETE").status == 204
    assert node.api(base).json[0]["value"] == {"max-connections": 5}


async def put_together(client: Client, first: tuple[str, Any], second: tuple[str, Any]) -> list[int]:
    """Send two PUTs to a node: the body of the first arrives when the second is done. Return the statuses."""
    is_done = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b" "
        await is_done.wait()
        yield json.dumps(first[1]).encode()

    slow = asyncio.create_task(answer(client, first[0], "PUT", data=slowly(), headers=GUEST))
    await asyncio.sleep(0.05)
    fast = await answer(client, second[0], "PUT", json=second[1], headers=GUEST)
    is_done.set()
    return [(await slow).status, fast.status]


@pytest.mark.parametrize(("base", "limit"), [(base, limit) for base, limit, _ in LIMITS])
def test_two_limits_set_concurrently_are_both_kept(node: Machine, base: str, limit: str) -> None:
    path = f"/api/{base}"
    requests = (f"{path}/max-connections", {"value": 5}), (f"{path}/{limit}", {"value": 3})
    assert node.run(lambda client: put_together(client, *requests)) == [204, 204]
    assert node.api(base).json[0]["value"] == {"max-connections": 5, limit: 3}


def test_concurrent_updates_of_a_virtual_host_are_merged(node: Machine) -> None:
    node.management.make(VHOST)
    path = "/api/vhosts/v"
    requests = (path, {"description": "orders"}), (path, {"default_queue_type": "quorum"})
    assert node.run(lambda client: put_together(client, *requests)) == [204, 204]
    assert node.api("vhosts/v").json["metadata"] == {
        "description": "orders",
        "tags": [],
        "default_queue_type": "quorum",
    }


@pytest.mark.parametrize("count", [2, 5])
def test_concurrent_partial_updates_are_serialized(node: Machine, count: int) -> None:
    """Each finds the result of its predecessor."""
    node.management.make(VHOST)

    async def put_all(client: Client, path: str, bodies: list[Any]) -> list[int]:
        answers = (answer(client, path, "PUT", json=body, headers=GUEST) for body in bodies)
        return [each.status for each in await asyncio.gather(*answers)]

    path = "/api/global-parameters/publisher-deduplication"
    bodies = [{"value": {"limit": 3000}}, {"value": {"age_ms": 70_000}}] * count
    assert set(node.run(lambda client: put_all(client, path, bodies))) == {204}
    assert node.management.machine.catalog.publishers_bounds == (3000, 70_000)
    bodies = [{"default_queue_type": "quorum"}] + [{"tags": "t"}] * count
    assert set(node.run(lambda client: put_all(client, "/api/vhosts/v", bodies))) == {204}
    assert node.api("vhosts/v").json["default_queue_type"] == "quorum"


def test_updated_virtual_host_grants_no_new_permissions(node: Machine) -> None:
    made = c.PutVhost("v", "", [], "quorum")
    node.management.make_elsewhere(made)
    assert node.api("vhosts/v", "PUT", json={"description": "orders"}).status == 204
    assert node.management.machine.catalog.access.permissions("guest", "v") is None
    assert node.api("vhosts/v").json["default_queue_type"] == "quorum"
    # Nor by definitions.
    other = Node(MachineManagement())
    other.management.make_elsewhere(made)
    assert other.api("definitions", "POST", json={"vhosts": [{"name": "v"}]}).status == 204
    assert other.management.machine.catalog.access.permissions("guest", "v") is None
    assert other.api("vhosts/v").json["default_queue_type"] == "quorum"


def test_deduplication_bounds_set_at_a_different_node_are_kept(node: Machine) -> None:
    node.management.make_elsewhere(c.LimitPublishers(5, 7))
    path = "global-parameters/publisher-deduplication"
    assert node.api(path, "PUT", json={"value": {"limit": 9000}}).status == 204
    assert node.api(path).json["value"] == {"limit": 9000, "age_ms": 7}


def test_definitions_keep_a_queue_declared_at_a_different_node(node: Machine) -> None:
    node.management.make_elsewhere(QUEUE)
    row = {"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {"x-max-length": 1}}
    assert node.api("definitions", "POST", json={"queues": [row]}).status == 204
    assert node.api("queues/%2F/q").json["arguments"] == QUEUE.arguments


def test_bulk_delete_ends_sessions_of_users_created_at_a_peer(node: Machine) -> None:
    async def begun() -> WebLogin | None:
        peer = MachineManagement()
        peer.make(USER)
        return peer.sessions.begin("ann")

    session = asyncio.run(begun())
    assert session is not None
    node.management.make_elsewhere(USER)
    assert node.api("users/bulk-delete", "POST", json={"users": ["ann"]}).status == 204
    node.management.make(USER)
    assert asyncio.run(node.management.sessions.find(session.token, "::1")) is None
