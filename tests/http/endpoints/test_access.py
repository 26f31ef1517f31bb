"""Virtual hosts, users, permissions and limits over HTTP, with a machine that applies commands at once."""

from __future__ import annotations

import base64
import hashlib
import logging
from typing import Any

import pytest

from cluster.log.entry import batches_of
from qq.http.base.login import Operator
from qq.machine.catalog import catalog
from qq.machine.catalog.limits import ARGUMENTS_BYTES_MAX, RATES, VHOST_LIMITS
from qq.machine.protocol.codec import decode_commands
from qq.machine.protocol.commands import DeleteUser, PutVhost, SetUserLimits, SetVhostLimits
from tests.http.fakes import MachineManagement
from tests.http.http_node import GUEST, Node

Machine = Node[MachineManagement]

PERMISSIONS = {"configure": "^a", "write": ".*", "read": ""}


@pytest.fixture
def node() -> Machine:
    return Node(MachineManagement())


def names(answer: Any) -> list[str]:
    return [each["name"] for each in answer.json]


# --- virtual hosts


def test_virtual_host_is_created_updated_and_deleted(node: Machine) -> None:
    body = {"description": "orders", "tags": "a, b,,a", "default_queue_type": "quorum"}
    path = "vhosts/a%2Fb%20%C3%A9"
    assert node.api(path, "PUT", json=body).status == 201
    metadata = {"description": "orders", "tags": ["a", "b"], "default_queue_type": "quorum"}
    shown = node.api(f"{path}?disable_stats=true").json
    assert shown == {
        "name": "a/b é",
        **metadata,
        "metadata": metadata,
        "effective_limits": dict(VHOST_LIMITS),
        "cluster_state": {"n1": "running", "n2": "running", "n3": "nodedown"},
        "tracing": False,
        "protected_from_deletion": False,
    }
    assert shown in node.api("vhosts?disable_stats=true").json
    assert names(node.api("vhosts")) == ["/", "a/b é"]
    assert node.api(path, "PUT", json={"tags": ["c"]}).status == 204
    # As in RabbitMQ: the queue type stays, the rest does not.
    assert node.api(path).json["metadata"] == {
        "description": "",
        "tags": ["c"],
        "default_queue_type": "quorum",
    }
    assert node.api(path, "DELETE").status == 204
    assert node.api(path).status == node.api(path, "DELETE").status == 404


def test_created_virtual_host_permits_its_creator(node: Machine) -> None:
    assert node.api("vhosts/v", "PUT").status == 201
    granted = {"user": "guest", "vhost": "v", "configure": ".*", "write": ".*", "read": ".*"}
    assert node.api("vhosts/v/permissions").json == [granted]
    node.api("permissions/v/guest", "DELETE")
    assert node.api("vhosts/v", "PUT").status == 204
    assert node.api("vhosts/v/permissions").json == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"default_queue_type": "nothing"}, "nothing is not a valid queue type"),
        ({"default_queue_type": ""}, "default_queue_type must not be an empty string"),
        ({"default_queue_type": 7}, "7 is not a valid queue type"),
        ({"description": 1}, "description should be a string, actually was 1"),
        ({"tags": [1]}, "tags should be a list of strings, or a string with commas"),
        ([], "not_json"),
    ],
)
def test_a_virtual_host_that_cannot_be_is_400(node: Machine, body: Any, reason: str) -> None:
    answer = node.api("vhosts/v", "PUT", json=body)
    assert answer.status == 400
    assert (answer.json["error"], answer.json["reason"]) == ("bad_request", reason)
    assert node.management.changes.applied == []


@pytest.mark.parametrize("unset", [None, "undefined"])
def test_null_default_queue_type_means_unset(node: Machine, unset: str | None) -> None:
    assert node.api("vhosts/v", "PUT", json={"default_queue_type": unset}).status == 201
    shown = node.api("vhosts/v").json
    assert shown["default_queue_type"] == "classic"
    assert "default_queue_type" not in shown["metadata"]
    assert node.api("vhosts/v", "PUT", json={"default_queue_type": "rabbit_quorum_queue"}).status == 204
    assert node.api("vhosts/v").json["default_queue_type"] == "quorum"


def test_name_longer_than_255_octets_is_400(node: Machine) -> None:
    for path in ("vhosts/", "users/"):
        assert node.api(path + "x" * 256, "PUT", json={"tags": ""}).status == 400
        assert node.api(path + "x" * 255, "PUT", json={"tags": ""}).status == 201


# --- users


def test_a_user_is_created_replaced_and_deleted(node: Machine) -> None:
    body = {"password": "secret", "tags": "management,policymaker"}
    assert node.api("users/ann%2Fb", "PUT", json=body).status == 201
    user = node.management.machine.users["ann/b"]
    assert hashlib.sha256(user.salt + b"secret").digest() == user.hash
    shown = node.api("users/ann%2Fb").json
    assert shown == {
        "name": "ann/b",
        "password_hash": base64.b64encode(user.salt + user.hash).decode(),
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": ["management", "policymaker"],
        "limits": {},
    }
    assert names(node.api("users")) == ["ann/b", "guest"]
    assert names(node.api("users/without-permissions")) == ["ann/b"]
    assert node.api("users/ann%2Fb", "PUT", json={"password": "new", "tags": []}).status == 204
    replaced = node.management.machine.users["ann/b"]
    assert (replaced.salt != user.salt, replaced.tags) == (True, [])
    assert node.api("users/ann%2Fb", "DELETE").status == 204
    assert node.api("users/ann%2Fb", "DELETE").status == node.api("users/ann%2Fb").status == 404


def test_a_user_can_be_given_the_hash_that_rabbitmq_has_exported(node: Machine) -> None:
    # rabbitmqctl hash_password of RabbitMQ's documentation: the password is "test12".
    encoded = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
    assert node.api("users/ann", "PUT", json={"password_hash": encoded, "tags": ""}).status == 201
    user = node.management.machine.users["ann"]
    assert hashlib.sha256(user.salt + b"test12").digest() == user.hash
    assert node.api("users/ann").json["password_hash"] == encoded


@pytest.mark.parametrize("hashing", ["sha512", "md5"])
def test_user_keeps_the_hash_algorithm_until_a_new_password(node: Machine, hashing: str) -> None:
    hashed = hashlib.new(hashing, b"salt" + b"secret").digest()
    expected = {
        "password_hash": base64.b64encode(b"salt" + hashed).decode(),
        "hashing_algorithm": f"rabbit_password_hashing_{hashing}",
    }
    assert node.api("users/ann", "PUT", json={**expected, "tags": ""}).status == 201
    assert node.management.machine.users["ann"] == ("ann", b"salt", hashed, [], hashing)
    shown = node.api("users/ann").json
    assert {name: shown[name] for name in expected} == expected
    assert node.api("users/ann", "PUT", json={"password": "new", "tags": ""}).status == 204
    assert node.api("users/ann").json["hashing_algorithm"] == "rabbit_password_hashing_sha256"


@pytest.mark.parametrize(
    "body", [{}, {"password_hash": ""}, {"password": ""}, {"password": "", "limits": {}}]
)
def test_user_without_a_password_matches_no_password(node: Machine, body: dict[str, Any]) -> None:
    assert node.api("users/ann", "PUT", json={"tags": "", **body}).status == 201
    user = node.management.machine.users["ann"]
    assert (user.salt, user.hash) == (b"", b"")
    assert node.api("users/ann").json["password_hash"] == ""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"password": "x"}, "tags_not_present"),
        ({"password": "x", "password_hash": "", "tags": ""}, "both_password_and_password_hash_are_provided"),
        ({"password": 123456, "tags": ""}, "password should be a string"),
        ({"password": None, "tags": ""}, "password should be a string"),
        ({"password_hash": "é", "tags": ""}, "password_hash is not base64"),
        ({"password_hash": 5, "tags": ""}, "password_hash is not base64"),
        (
            {"password_hash": "YWJj", "tags": ""},
            "password_hash is not a salt and a hash of rabbit_password_hashing_sha256",
        ),
        (
            {"password_hash": "YWJj", "hashing_algorithm": "rabbit_password_hashing_md5", "tags": ""},
            "password_hash is not a salt and a hash of rabbit_password_hashing_md5",
        ),
        (
            {"password_hash": "", "hashing_algorithm": "my_own", "tags": ""},
            (
                'hashing_algorithm <<"my_own">> is not known; there are rabbit_password_hashing_sha256, '
                "rabbit_password_hashing_sha512, rabbit_password_hashing_md5"
            ),
        ),
        ({"tags": 5}, "tags should be a list of strings, or a string with commas"),
        ({"tags": ",".join(map(str, range(33)))}, "A user can have at most 32 tags (received 33)"),
        ({"tags": "", "limits": [1]}, "limits should be a map"),
    ],
)
def test_a_user_that_cannot_be_is_400(node: Machine, body: dict[str, Any], reason: str) -> None:
    answer = node.api("users/ann", "PUT", json=body)
    assert answer.status == 400
    assert (answer.json["error"], answer.json["reason"]) == ("bad_request", reason)
    assert node.management.changes.applied == []


def test_several_users_are_deleted_at_once(node: Machine) -> None:
    for name in "abc":
        node.add_user(name)
    assert node.api("users/bulk-delete", "POST", json={"users": ["a", "c", "nobody"]}).status == 204
    assert names(node.api("users")) == ["b", "guest"]
    assert node.api("users/bulk-delete", "POST", json={"users": []}).status == 204
    for body in ({}, {"users": "a"}, {"users": [1]}):
        assert node.api("users/bulk-delete", "POST", json=body).status == 400


LAST = "user 'guest' is the last administrator that has a password"


@pytest.mark.parametrize(
    ("path", "method", "body"),
    [
        ("users/guest", "DELETE", None),
        ("users/bulk-delete", "POST", {"users": ["eve", "guest"]}),
        ("users/guest", "PUT", {"tags": "monitoring", "password": "x"}),
        ("users/guest", "PUT", {"tags": "administrator"}),
        ("users/guest", "PUT", {"tags": "administrator", "password_hash": ""}),
        ("definitions", "POST", {"users": [{"name": "guest", "tags": [], "password_hash": ""}]}),
    ],
)
def test_last_administrator_goes_only_when_forced(node: Machine, path: str, method: str, body: Any) -> None:
    node.add_user("eve", "monitoring")
    answer = node.api(path, method, json=body)
    assert answer.status == 400
    assert LAST in answer.json["reason"]
    assert node.management.machine.users["guest"].is_administrator
    assert "eve" in node.management.machine.users
    assert node.api(f"{path}?force=true", method, json=body).status == 204
    assert not node.management.machine.catalog.access.administrators


def test_import_may_replace_the_last_administrator(node: Machine) -> None:
    users = [
        {"name": "guest", "tags": [], "password": "guest"},
        {"name": "boss", "tags": ["administrator"], "password": "x"},
    ]
    assert node.api("definitions", "POST", json={"users": users}).status == 204
    assert node.management.machine.catalog.access.administrators == {"boss"}


def test_two_nodes_cannot_delete_both_administrators_at_once(node: Machine) -> None:
    node.add_user("ann", "administrator")
    delete = node.management.broker.submissions.add

    def delete_elsewhere_first(*command: Any) -> Any:
        node.management.make(DeleteUser("ann"))
        return delete(*command)

    node.management.broker.submissions.add = delete_elsewhere_first  # type: ignore[method-assign]
    answer = node.api("users/guest", "DELETE")
    assert (answer.status, LAST in answer.json["reason"]) == (400, True)
    assert node.management.machine.catalog.access.administrators == {"guest"}


def test_no_password_and_no_hash_is_ever_logged(node: Machine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    node.api("users/ann", "PUT", json={"password": "sesame", "tags": ""})
    encoded = node.api("users/ann").json["password_hash"]
    for body in ({"password": ["sesame"], "tags": ""}, {"password_hash": encoded + "sesame", "tags": ""}):
        assert "sesame" not in node.api("users/ann", "PUT", json=body).text
    assert "sesame" not in caplog.text
    assert encoded not in caplog.text


def test_whoami_returns_the_current_user(node: Machine) -> None:
    node.view.tags["ann"] = ["monitoring", "x"]
    assert node.api("whoami", user="ann").json == {
        "name": "ann",
        "tags": ["monitoring", "x"],
        "is_internal_user": True,
        "auth_backend": "rabbit_auth_backend_internal",
    }
    assert Operator("ann", frozenset({"a"})).has_one_of(["b", "a"])


# --- permissions


def test_permissions_are_set_shown_and_cleared(node: Machine) -> None:
    node.add_user("ann")
    path = "permissions/%2F/ann"
    assert node.api(path).status == 404
    assert node.api(path, "PUT", json=PERMISSIONS).status == 201
    shown = {"user": "ann", "vhost": "/", **PERMISSIONS}
    assert node.api(path).json == shown
    assert node.api("users/ann/permissions").json == [shown]
    assert shown in node.api("vhosts/%2F/permissions").json
    assert len(node.api("permissions").json) == 2
    assert node.api(path, "PUT", json=PERMISSIONS | {"read": "x"}).status == 204
    assert node.api(path).json["read"] == "x"
    assert node.api(path, "DELETE").status == 204
    assert node.api(path, "DELETE").status == 404


def test_topic_permissions_are_set_shown_and_cleared(node: Machine) -> None:
    node.add_user("ann")
    path = "topic-permissions/%2F/ann"
    assert node.api(path).status == node.api(path, "DELETE").status == 404
    for exchange, status in (("amq.topic", 201), ("other", 204)):
        body = {"exchange": exchange, "write": "^a", "read": "^b"}
        assert node.api(path, "PUT", json=body).status == status
    shown = {"user": "ann", "vhost": "/", "exchange": "amq.topic", "write": "^a", "read": "^b"}
    assert node.api(path).json == [shown, shown | {"exchange": "other"}]
    assert node.api(f"{path}/amq.topic").json == [shown]
    assert node.api(f"{path}/amq.topic", "PUT", json=shown).status == 204
    assert node.api(f"{path}/amq.topic").json == [shown]
    assert node.api("users/ann/topic-permissions").json == node.api("topic-permissions").json
    assert node.api(f"{path}/other", "DELETE").status == 204
    assert node.api("vhosts/%2F/topic-permissions").json == [shown]
    assert node.api(path, "DELETE").status == 204
    assert node.api("topic-permissions").json == []


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("permissions/%2F/nobody", PERMISSIONS, 400),
        ("permissions/nothing/guest", PERMISSIONS, 400),
        ("permissions/%2F/guest", {"configure": "", "write": ""}, 400),
        ("permissions/%2F/guest", PERMISSIONS | {"write": "("}, 400),
        ("permissions/%2F/guest", PERMISSIONS | {"write": 1}, 400),
        ("permissions/%2F/guest", PERMISSIONS | {"write": "x" * 1025}, 400),
        ("topic-permissions/%2F/guest", {"write": "", "read": ""}, 400),
        ("topic-permissions/%2F/nobody", {"exchange": "x", "write": "", "read": ""}, 400),
    ],
)
def test_permissions_that_cannot_be_are_400(node: Machine, path: str, body: Any, status: int) -> None:
    assert node.api(path, "PUT", json=body).status == status
    assert node.management.changes.applied == []


@pytest.mark.parametrize(
    "path", ["users/nobody/permissions", "vhosts/nothing/permissions", "permissions/nothing/guest"]
)
def test_permissions_of_a_missing_object_are_404(node: Machine, path: str) -> None:
    assert node.api(path).status == 404


# --- limits


@pytest.mark.parametrize(
    ("base", "one", "limit"),
    [("vhost-limits", {"vhost": "/"}, "max-queues"), ("user-limits", {"user": "guest"}, "max-channels")],
)
def test_limits_are_set_shown_and_lifted(node: Machine, base: str, one: dict[str, str], limit: str) -> None:
    path = f"{base}/{'%2F' if 'vhost' in one else 'guest'}"
    assert node.api(base).json == node.api(path).json == []
    assert node.api(f"{path}/max-connections", "PUT", json={"value": 5}).status == 204
    assert node.api(f"{path}/{limit}", "PUT", json={"value": -1}).status == 204
    shown = [{**one, "value": {"max-connections": 5, limit: -1}}]
    assert node.api(base).json == node.api(path).json == shown
    assert node.api(f"{path}/{limit}", "DELETE").status == 204
    assert node.api(path).json == [{**one, "value": {"max-connections": 5}}]
    assert node.api(f"{path}/max-connections", "DELETE").status == 204
    assert node.api(base).json == []
    for name, body in (
        (limit, {"value": "5"}),
        (limit, {"value": True}),
        (limit, {"value": 2**63}),
        (limit, {}),
        ("other", {"value": 5}),
    ):
        assert node.api(f"{path}/{name}", "PUT", json=body).status == 400
    assert node.api(f"{base}/nothing/{limit}", "PUT", json={"value": 1}).status == 404
    assert node.api(f"{base}/nothing").status == 404


@pytest.mark.parametrize("name", RATES)
def test_a_limit_of_publishing_is_not_zero_and_no_fraction(node: Machine, name: str) -> None:
    for base in ("vhost-limits/%2F", "user-limits/guest"):
        refused = node.api(f"{base}/{name}", "PUT", json={"value": 0})
        assert refused.status == 400
        assert f"{name} is 1 at least" in refused.json["reason"]
        for value in (0.5, 2**63, "1", None):
            assert node.api(f"{base}/{name}", "PUT", json={"value": value}).status == 400
        assert node.api(base).json == []
        for value in (1, 2**63 - 1, -1):
            assert node.api(f"{base}/{name}", "PUT", json={"value": value}).status == 204
    exported = node.api("definitions").json
    assert node.api(f"vhost-limits/%2F/{name}", "DELETE").status == 204
    assert node.api("definitions", "POST", json=exported).status == 204
    assert node.api("vhost-limits").json == [{"vhost": "/", "value": {name: -1}}]
    refused = node.api("users/ann", "PUT", json={"tags": "", "limits": {name: 0}})
    assert refused.status == 400
    assert f"{name} is 1 at least" in refused.json["reason"]


def test_limits_of_a_user_are_set_with_the_user(node: Machine) -> None:
    body = {"tags": "", "limits": {"max-channels": 3}}
    assert node.api("users/ann", "PUT", json=body).status == 201
    assert node.api("users/ann").json["limits"] == {"max-channels": 3}


# --- limits of numbers


def test_the_limits_in_force_are_shown(node: Machine) -> None:
    assert node.api("vhost-limits/%2F/max-bindings", "PUT", json={"value": 7}).status == 204
    assert node.api("vhost-limits/%2F/max-queues", "PUT", json={"value": -5}).status == 204
    shown = node.api("vhosts/%2F").json["effective_limits"]
    assert shown == {**VHOST_LIMITS, "max-bindings": 7, "max-queues": -1}
    assert node.api("vhost-limits").json == [{"vhost": "/", "value": {"max-bindings": 7, "max-queues": -5}}]


@pytest.mark.parametrize("name", VHOST_LIMITS)
def test_each_limit_of_a_virtual_host_can_be_set(node: Machine, name: str) -> None:
    assert node.api(f"vhost-limits/%2F/{name}", "PUT", json={"value": 12}).status == 204
    assert node.api("vhosts/%2F").json["effective_limits"][name] == 12
    assert node.api(f"vhost-limits/%2F/{name}", "DELETE").status == 204
    assert node.api("vhosts/%2F").json["effective_limits"] == VHOST_LIMITS


POLICY = {"pattern": "x", "definition": {"max-length": 1}}
AT_A_LIMIT: dict[str, tuple[str, str, str, Any, str]] = {
    "vhosts": ("VHOSTS_MAX", "vhosts/{}", "PUT", {}, "create vhost 'b': limit max-vhosts (2) of the cluster"),
    "users": (
        "USERS_MAX",
        "users/{}",
        "PUT",
        {"tags": ""},
        "create user 'b': limit max-users (2) of the cluster",
    ),
    "permissions": (
        "PERMISSIONS_MAX",
        "permissions/{}/guest",
        "PUT",
        PERMISSIONS,
        "set permissions of user 'guest': limit max-permissions (2) of the cluster",
    ),
    "topic-permissions": (
        "TOPIC_PERMISSIONS_MAX",
        "topic-permissions/{}/guest",
        "PUT",
        {"exchange": "x", "write": "", "read": ""},
        "set topic permissions of user 'guest': limit max-topic-permissions (1) of the cluster",
    ),
}


@pytest.mark.parametrize(
    ("constant", "path", "method", "body", "refused"), AT_A_LIMIT.values(), ids=list(AT_A_LIMIT)
)
def test_request_at_a_cluster_limit_is_400_and_not_logged(
    node: Machine,
    constant: str,
    path: str,
    method: str,
    body: Any,
    refused: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "permissions" in path:
        node.management.make(PutVhost("a", "", [], ""), PutVhost("b", "", [], ""))
    monkeypatch.setattr(catalog, constant, 1 if constant == "TOPIC_PERMISSIONS_MAX" else 2)
    assert node.api(path.format("a"), method, json=body).status == 201
    logged = dict(node.management.entries)
    answer = node.api(path.format("b"), method, json=body)
    assert (answer.status, answer.json["reason"]) == (400, f"cannot {refused} is reached")
    for index, entry in node.management.entries.items():
        if index not in logged:  # empty: only to look whether it is there
            [batch] = batches_of(entry)
            assert decode_commands(entry[batch.start : batch.end]) == []
    assert node.api(path.format("a"), method, json=body).status == 204


def test_request_at_a_virtual_host_limit_is_400(node: Machine) -> None:
    for name, value in (("max-policies", 1), ("max-queues", 1), ("max-exchanges", 8), ("max-bindings", 1)):
        node.api(f"vhost-limits/%2F/{name}", "PUT", json={"value": value})
    for path, method, body, refused in (
        (
            "policies/%2F/{}",
            "PUT",
            POLICY,
            "create policy 'b': limit max-policies (1) of vhost '/' is reached",
        ),
        (
            "queues/%2F/{}",
            "PUT",
            {},
            "declare queue 'b': queue limit in vhost '/' (1) is reached",
        ),
        (
            "exchanges/%2F/{}",
            "PUT",
            {"type": "direct"},
            "declare exchange 'b': limit max-exchanges (8) of vhost '/' is reached",
        ),
        (
            "bindings/%2F/e/amq.direct/q/a",
            "POST",
            {"routing_key": "{}"},
            "bind queue 'a': limit max-bindings (1) of vhost '/' is reached",
        ),
    ):
        first, second = (
            node.api(
                path.format(each),
                method,
                json={**body, **({"routing_key": each} if "routing_key" in body else {})},
            )
            for each in "ab"
        )
        assert (first.status, second.status) == (201, 400), path
        assert second.json["reason"] == f"cannot {refused}"


def test_oversized_request_is_400(node: Machine) -> None:
    large = {"a": "x" * ARGUMENTS_BYTES_MAX}
    for path, method, body, reason in (
        ("queues/%2F/q", "PUT", {"arguments": large}, f"the limit is {ARGUMENTS_BYTES_MAX}"),
        (
            "exchanges/%2F/x",
            "PUT",
            {"type": "direct", "arguments": large},
            f"the limit is {ARGUMENTS_BYTES_MAX}",
        ),
        (
            "bindings/%2F/e/amq.direct/q/q",
            "POST",
            {"arguments": large},
            f"the limit is {ARGUMENTS_BYTES_MAX}",
        ),
        ("policies/%2F/p", "PUT", POLICY | {"definition": large}, f"the limit is {ARGUMENTS_BYTES_MAX}"),
        (f"policies/%2F/{'p' * 256}", "PUT", POLICY, "name is longer than 255 octets"),
        ("vhosts/v", "PUT", {"description": "x" * 1025}, "description is longer than 1024 octets"),
        ("vhosts/v", "PUT", {"tags": ["x" * 256]}, "a tag is longer than 255 octets"),
        (
            "vhosts/v",
            "PUT",
            {"tags": [str(number) for number in range(33)]},
            "A vhost can have at most 32 tags",
        ),
        ("users/u", "PUT", {"tags": ["x" * 256]}, "a tag is longer than 255 octets"),
    ):
        answer = node.api(path, method, json=body)
        assert (answer.status, reason in answer.json["reason"]) == (400, True), (path, answer.json)
    assert node.management.changes.applied == []


# --- permissions


CHANGES: list[tuple[str, str, Any]] = [
    ("vhosts/v", "PUT", {}),
    ("vhosts/%2F", "DELETE", None),
    ("users/ann", "PUT", {"tags": ""}),
    ("users/guest", "DELETE", None),
    ("users/bulk-delete", "POST", {"users": ["guest"]}),
    ("permissions/%2F/guest", "PUT", PERMISSIONS),
    ("permissions/%2F/guest", "DELETE", None),
    ("topic-permissions/%2F/guest", "PUT", {"exchange": "x", "write": "", "read": ""}),
    ("topic-permissions/%2F/guest", "DELETE", None),
    ("vhost-limits/%2F/max-queues", "PUT", {"value": 1}),
    ("vhost-limits/%2F/max-queues", "DELETE", None),
    ("user-limits/guest/max-channels", "PUT", {"value": 1}),
    ("user-limits/guest/max-channels", "DELETE", None),
    ("operator-policies/%2F/p", "PUT", POLICY),
    ("global-parameters/publisher-deduplication", "PUT", {"value": {"limit": 1000}}),
    ("definitions", "POST", {}),
    ("definitions/%2F", "POST", {}),
]


@pytest.mark.parametrize(("path", "method", "body"), CHANGES)
@pytest.mark.parametrize("tag", ["management", "policymaker", "monitoring"])
def test_only_administrators_change_access(
    node: Machine, path: str, method: str, body: Any, tag: str
) -> None:
    node.add_user("ann", tag, vhosts=("/",))
    assert node.api(path, method, user="ann", json=body).status == 401
    assert node.management.changes.applied == []


@pytest.mark.parametrize(("path", "method", "body"), CHANGES)
def test_a_change_that_is_not_applied_is_503(node: Machine, path: str, method: str, body: Any) -> None:
    node.management.make(SetVhostLimits("/", {"max-queues": 5}), SetUserLimits("guest", {"max-channels": 5}))
    node.management.changes.has_majority = False
    if path.startswith("definitions"):
        body = {"users": [{"name": "a", "tags": ""}], "parameters": [PARAMETER]}
    assert node.api(path, method, json=body).status == 503


PARAMETER = {"vhost": "/", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 1}}


@pytest.mark.parametrize(
    "path",
    [
        "users",
        "users/guest",
        "permissions",
        "users/ann/permissions",
        "topic-permissions",
        "user-limits",
        "user-limits/guest",
        "definitions",
    ],
)
def test_users_and_permissions_are_shown_only_to_administrators(node: Machine, path: str) -> None:
    node.add_user("ann", "management", "policymaker", vhosts=("/",))
    assert node.api(path, user="ann").status == 401
    assert node.api(path).status == 200


def test_user_limits_are_shown_to_their_user_and_to_monitors(node: Machine) -> None:
    node.add_user("ann", "management")
    node.add_user("bob", "monitoring")
    node.management.make(SetUserLimits("ann", {"max-channels": 1}))
    for user in ("ann", "bob", "guest"):
        assert node.api("user-limits/ann", user=user).json == [{"user": "ann", "value": {"max-channels": 1}}]


def test_plain_user_sees_only_virtual_hosts_with_permissions(node: Machine) -> None:
    node.management.make(PutVhost("a", "", [], ""), PutVhost("b", "", [], ""))
    node.management.make(SetVhostLimits("a", {"max-queues": 1}), SetVhostLimits("b", {"max-queues": 1}))
    node.add_user("ann", "management", vhosts=("a",))
    node.add_user("bob", "monitoring", vhosts=("a",))
    assert names(node.api("vhosts", user="ann")) == ["a"]
    assert names(node.api("vhosts", user="bob")) == names(node.api("vhosts")) == ["/", "a", "b"]
    assert [each["vhost"] for each in node.api("vhost-limits", user="ann").json] == ["a"]
    assert [each["vhost"] for each in node.api("vhost-limits", user="bob").json] == ["a", "b"]
    assert {each["vhost"] for each in node.api("exchanges", user="ann").json} == {"a"}
    assert {each["vhost"] for each in node.api("exchanges", user="bob").json} == {"a"}
    assert {each["vhost"] for each in node.api("exchanges").json} == {"/", "a", "b"}
    for path in ("vhosts/b", "vhost-limits/b"):
        assert (node.api(path, user="ann").status, node.api(path, user="bob").status) == (404, 200)
    for path in ("queues/b", "consumers/b", "policies/b", "exchanges/b", "bindings/b"):
        assert node.api(path, user="ann").status == node.api(path, user="bob").status == 404
        assert node.api(path.replace("/b", "/a"), user="ann").status == 200


def test_policymaker_sets_policies_only_in_permitted_vhosts(node: Machine) -> None:
    node.management.make(PutVhost("a", "", [], ""))
    node.add_user("ann", "policymaker", vhosts=("a",))
    policy = {"pattern": "", "definition": {"expires": 1}}
    assert node.api("policies/a/p", "PUT", user="ann", json=policy).status == 201
    assert node.api("policies/%2F/p", "PUT", user="ann", json=policy).status == 404
    assert node.api("policies/%2F/p").status == 404


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://[", "https://127.0.0.1:1"])
@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_request_from_a_foreign_origin_changes_no_state(node: Machine, origin: str, method: str) -> None:
    """A browser sends some POSTs of other sites without asking first, with the password that it remembers."""
    path = "/api/users/bulk-delete" if method == "POST" else "/api/vhosts/v"
    answer = node.request(path, method, headers=GUEST | {"Origin": origin}, data='{"users": ["guest"]}')
    assert (answer.status, answer.json["error"]) == (403, "forbidden")
    assert node.management.changes.applied == []
    assert node.request("/api/vhosts", headers=GUEST | {"Origin": origin}).status == 200


def test_request_from_the_own_origin_is_accepted(node: Machine) -> None:
    headers = GUEST | {"Origin": "http://node:15672", "Host": "node:15672"}
    assert node.request("/api/vhosts/v", "PUT", headers=headers).status == 201
