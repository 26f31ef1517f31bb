"""Parameters, the cluster's name and protection from deletion over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from qq.http.base.error_responses import bad_request
from qq.http.endpoints import parameters
from qq.machine.catalog.limits import PARAMETER_BYTES_MAX
from qq.machine.protocol.commands import ProtectVhost, PutGlobalParameter, PutVhost
from tests.http.fakes import MachineManagement
from tests.http.http_node import Node

Machine = Node[MachineManagement]
DEDUPLICATION = {"name": "publisher-deduplication", "value": {"limit": 100_000, "age_ms": 604_800_000}}
CLUSTER_ID = {"name": "internal_cluster_id", "value": (b"c" * 16).hex()}


@pytest.fixture
def node() -> Machine:
    return Node(MachineManagement())


@pytest.fixture
def test_component(monkeypatch: pytest.MonkeyPatch) -> str:
    """A component whose parameters may have any name, and any value except 13."""

    def check(_vhost: str, name: str, value: Any) -> None:
        if value == 13:
            raise bad_request(f"{name} may not be 13")

    monkeypatch.setitem(parameters.COMPONENTS, "test", check)
    return "test"


# --- global parameters


def test_a_global_parameter_is_set_shown_replaced_and_deleted(node: Machine) -> None:
    path = "global-parameters/a%2Fb"
    assert node.api("global-parameters").json == [CLUSTER_ID, DEDUPLICATION]
    assert node.api(path, "PUT", json={"value": {"list": [1, None, "é"]}}).status == 201
    assert node.api(path).json == {"name": "a/b", "value": {"list": [1, None, "é"]}}
    assert node.api(path, "PUT", json={"value": "text", "name": "ignored"}).status == 204
    shown = {"name": "a/b", "value": "text"}
    assert node.api("global-parameters").json == [shown, CLUSTER_ID, DEDUPLICATION]
    assert node.api("definitions").json["global_parameters"] == [DEDUPLICATION, shown]
    assert node.api(path, "DELETE").status == 204
    assert node.api(path).status == node.api(path, "DELETE").status == 404


def test_global_parameter_set_at_a_different_node_is_found(node: Machine) -> None:
    node.management.make_elsewhere(PutGlobalParameter("elsewhere", "1"))
    assert node.api("global-parameters/elsewhere").json["value"] == 1


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("a", {}, "key_missing: value"),
        ("a", [], "not_json"),
        ("x" * 256, {"value": 1}, "name is longer than 255 octets"),
        ("cluster_name", {"value": 7}, "the name of a cluster should be a string, and not empty"),
        ("cluster_name", {"value": ""}, "the name of a cluster should be a string, and not empty"),
        ("internal_cluster_id", {"value": "x"}, "internal_cluster_id is given by the cluster itself"),
        (
            "a",
            {"value": "x" * PARAMETER_BYTES_MAX},
            (f"the value takes {PARAMETER_BYTES_MAX + 2} bytes, the limit is {PARAMETER_BYTES_MAX}"),
        ),
    ],
)
def test_a_global_parameter_that_cannot_be_is_400(node: Machine, path: str, body: Any, reason: str) -> None:
    answer = node.api(f"global-parameters/{path}", "PUT", json=body)
    assert (answer.status, answer.json["reason"]) == (400, reason)
    assert node.api("global-parameters").json == [CLUSTER_ID, DEDUPLICATION]


@pytest.mark.parametrize("name", ["publisher-deduplication", "internal_cluster_id"])
def test_built_in_global_parameter_cannot_be_deleted(node: Machine, name: str) -> None:
    assert node.api(f"global-parameters/{name}", "DELETE").status == 400


def test_policymaker_sets_only_global_parameters_of_its_own(node: Machine) -> None:
    node.add_user("ann", "policymaker")
    node.add_user("eve", "monitoring")
    for user, path, status in (
        ("ann", "a", 201),
        ("ann", "cluster_name", 401),
        ("ann", "publisher-deduplication", 401),
        ("eve", "b", 401),
    ):
        assert node.api(f"global-parameters/{path}", "PUT", user=user, json={"value": "1"}).status == status
    assert node.api("global-parameters/a", "DELETE", user="eve").status == 401
    assert node.api("cluster-name", "PUT", user="ann", json={"name": "x"}).status == 401


def test_the_cluster_is_given_a_name(node: Machine) -> None:
    assert node.api("cluster-name").json == {"name": "qq"}
    assert node.api("cluster-name", "PUT", json={"name": "blue"}).status == 204
    assert node.api("cluster-name/").json == {"name": "blue"}
    assert node.api("overview").json["cluster_name"] == "blue"
    assert node.api("global-parameters/cluster_name").json["value"] == "blue"
    assert node.api("definitions").json["original_cluster_name"] == "blue"
    assert node.api("cluster-name", "PUT", json={"name": 1}).status == 400
    assert node.api("cluster-name", "PUT", json={}).json["reason"] == "key_missing: name"
    assert node.api("global-parameters/cluster_name", "DELETE").status == 204
    assert node.api("cluster-name").json == {"name": "qq"}


def test_request_above_the_state_version_is_refused(node: Machine) -> None:
    node.management.machine.raise_to(7)
    for path, method, body in (
        ("cluster-name", "PUT", {"name": "x"}),
        ("vhosts/%2F/deletion/protection", "POST", None),
    ):
        answer = node.api(path, method, json=body)
        assert answer.status == 400
        assert (
            "from version 8 of the state on, and the cluster has agreed on version 7" in answer.json["reason"]
        )


# --- parameters of virtual hosts


def test_a_parameter_is_set_shown_replaced_and_deleted(node: Machine, test_component: str) -> None:
    path = f"parameters/{test_component}/%2F/a"
    assert node.api("parameters").json == []
    assert node.api(path, "PUT", json={"value": {"b": 1}}).status == 201
    assert node.api(path, "PUT", json={"value": [2]}).status == 204
    shown = {"vhost": "/", "component": "test", "name": "a", "value": [2]}
    assert node.api(path).json == shown
    for listed in ("parameters", "parameters/test", "parameters/test/%2F"):
        assert node.api(listed).json == [shown]
    assert node.api("parameters/other").json == node.api("parameters/other/%2F").json == []
    assert node.api(path, "DELETE").status == 204
    assert node.api(path).status == node.api(path, "DELETE").status == 404


def test_limits_and_operator_policies_are_parameters(node: Machine) -> None:
    policy = {"pattern": "^a", "definition": {"max-length": 5}, "priority": 1, "apply-to": "queues"}
    assert node.api("parameters/operator_policy/%2F/p", "PUT", json={"value": policy}).status == 201
    assert (
        node.api("parameters/vhost-limits/%2F/limits", "PUT", json={"value": {"max-queues": 5}}).status == 201
    )
    assert node.api("operator-policies/%2F/p").json["definition"] == {"max-length": 5}
    assert node.api("vhost-limits/%2F").json == [{"vhost": "/", "value": {"max-queues": 5}}]
    listed = node.api("parameters").json
    assert [each["component"] for each in listed] == ["vhost-limits", "operator_policy"]
    assert node.api("definitions").json["parameters"] == listed
    for each in listed:
        path = f"parameters/{each['component']}/%2F/{each['name']}"
        assert node.api(path).json == each
        assert node.api(path, "DELETE").status == 204
    assert node.api("parameters").json == node.api("operator-policies").json == []
    assert node.api("vhost-limits").json == []


@pytest.mark.parametrize(
    ("component", "body", "status", "reason"),
    [
        (
            "federation-upstream",
            {"value": {}},
            400,
            "Validation failed\n\ncomponent federation-upstream not found\n",
        ),
        ("policy", {"value": {}}, 400, "policies may not be set using this method"),
        ("operator_policy", {"value": 7}, 400, "value should be a map"),
        ("operator_policy", {"value": {}}, 400, "key_missing: pattern"),
        (
            "vhost-limits",
            {"value": {}},
            400,
            "Validation failed\n\nthe parameter of vhost-limits is 'limits'\n",
        ),
        ("test", {}, 400, "key_missing: value"),
        ("test", {"value": 13}, 400, "a may not be 13"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused(
    node: Machine, test_component: str, component: str, body: Any, status: int, reason: str
) -> None:
    answer = node.api(f"parameters/{component}/%2F/a", "PUT", json=body)
    assert (answer.status, answer.json["reason"]) == (status, reason)
    assert node.api("parameters").json == []
    answer = node.api(f"parameters/{test_component}/other/a", "PUT", json={"value": 1})
    assert (answer.status, answer.json["reason"]) == (404, "vhost_not_found")


def test_policymaker_sees_and_sets_parameters_of_its_vhosts(node: Machine, test_component: str) -> None:
    node.management.make(PutVhost("v", "", [], ""))
    node.add_user("ann", "policymaker", vhosts=("v",))
    node.add_user("eve", "monitoring", vhosts=("v",))
    mine, other = f"parameters/{test_component}/v/a", f"parameters/{test_component}/%2F/a"
    assert node.api(mine, "PUT", user="ann", json={"value": 1}).status == 201
    assert node.api(other, "PUT", json={"value": 1}).status == 201
    assert node.api(other, "PUT", user="ann", json={"value": 1}).status == 404
    assert [each["vhost"] for each in node.api("parameters", user="ann").json] == ["v"]
    assert node.api("parameters", user="eve").status == node.api(mine, "DELETE", user="eve").status == 401
    for component in ("operator_policy", "vhost-limits"):
        path = f"parameters/{component}/v/limits"
        assert node.api(path, "PUT", user="ann", json={"value": {}}).status == 401


# --- protection


def test_a_protected_virtual_host_is_not_deleted(node: Machine) -> None:
    node.api("vhosts/v", "PUT")
    path = "vhosts/v/deletion/protection"
    assert node.api("vhosts/v").json["protected_from_deletion"] is False
    assert node.api(path, "POST").status == 204
    assert node.api(path).json == {"protected_from_deletion": True}
    shown = node.api("vhosts/v").json
    assert shown["protected_from_deletion"] is shown["metadata"]["protected_from_deletion"] is True
    answer = node.api("vhosts/v", "DELETE")
    assert (answer.status, answer.json) == (
        412,
        {
            "error": "precondition_failed",
            "reason": "Refusing to delete virtual host 'v' because it is protected from deletion",
        },
    )
    assert node.api(path, "DELETE").status == 204
    assert node.api("vhosts/v", "DELETE").status == 204
    assert node.api(path, "POST").status == node.api(path, "DELETE").status == node.api(path).status == 404


def test_protection_set_at_a_different_node_counts(node: Machine) -> None:
    node.api("vhosts/v", "PUT")
    node.management.make_elsewhere(ProtectVhost("v", True))
    assert node.api("vhosts/v", "DELETE").status == 412
    assert node.api("vhosts/v").status == 200


def test_only_administrators_protect(node: Machine) -> None:
    node.add_user("ann", "monitoring", vhosts=("/",))
    path = "vhosts/%2F/deletion/protection"
    assert node.api(path, "POST", user="ann").status == node.api(path, "DELETE", user="ann").status == 401


# --- definitions


def test_definitions_carry_parameters_names_and_protection(node: Machine, test_component: str) -> None:
    node.api("vhosts/v", "PUT", json={"description": "d"})
    node.api("vhosts/v/deletion/protection", "POST")
    node.api("cluster-name", "PUT", json={"name": "blue"})
    node.api("global-parameters/other", "PUT", json={"value": [1]})
    node.api(f"parameters/{test_component}/v/a", "PUT", json={"value": {"b": 1}})
    for path in ("definitions", "all-configuration"):
        document = node.api(path).json
        other = Node(MachineManagement())
        assert other.api(path, "POST", json=document).status == 204
        for shown in ("vhosts/v", "cluster-name", "global-parameters", "parameters"):
            assert other.api(shown).json == node.api(shown).json
        applied_before = len(other.management.changes.applied)
        assert other.api(path, "POST", json=document).status == 204
        assert len(other.management.changes.applied) == applied_before
    [parameter] = node.api("definitions/v").json["parameters"]
    assert parameter == {"component": "test", "name": "a", "value": {"b": 1}}


def test_import_skips_parameters_of_unsupported_components(
    node: Machine,
) -> None:
    upstream = {"vhost": "/", "component": "federation-upstream", "name": "u", "value": {"uri": "amqp://x"}}
    document = {
        "global_parameters": [{"name": "internal_cluster_id", "value": "rabbitmq-cluster-id-x"}],
        "parameters": [upstream],
    }
    answer = node.api("definitions", "POST", json=document)
    assert answer.json["left_out"] == [
        {
            "object": "parameter 'u' of federation-upstream in vhost '/'",
            "reason": "there is no federation-upstream here",
        }
    ]
    assert node.api("parameters").json == []
    assert node.api("global-parameters").json == [CLUSTER_ID, DEDUPLICATION]


def test_import_with_an_invalid_parameter_has_no_effect(node: Machine) -> None:
    good, large = {"name": "good", "value": 1}, {"name": "large", "value": "x" * PARAMETER_BYTES_MAX}
    answer = node.api(
        "definitions", "POST", json={"vhosts": [{"name": "v"}], "global_parameters": [good, large]}
    )
    assert answer.status == 400
    assert answer.json["reason"] == (
        f"global_parameters[1] (name 'large'): the value takes {PARAMETER_BYTES_MAX + 2} bytes, the limit is "
        f"{PARAMETER_BYTES_MAX}; nothing is imported"
    )
    assert node.management.changes.applied == []
