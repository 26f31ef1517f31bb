"""The management API, through a real server and a real client, with a broker that the test sets."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import pytest

from qq.http.base.login import ADMINISTRATORS, MONITORS, POLICYMAKERS
from qq.machine.protocol.commands import LimitPublishers, PutPolicy, PutUser, SetPermissions
from qq.management.reports.queues import ConsumerStatus, QueueStatus
from tests.http.fakes import FakeManagement, message
from tests.http.http_node import Node

POLICY = {"pattern": "^a", "definition": {"max-length": 5}, "priority": 1, "apply-to": "queues"}
READERS = ["management", "monitoring", "policymaker", "administrator"]


@pytest.fixture
def node() -> Node[FakeManagement]:
    return Node(FakeManagement())


# --- queues and consumers


@pytest.mark.parametrize("path", ["queues", "consumers"])
@pytest.mark.parametrize("count", [0, 1, 49, 50, 51, 149])
def test_list_of_any_length_is_complete_json(node: Node[FakeManagement], path: str, count: int) -> None:
    node.management.queues.names = [f'q "{number}" é' for number in range(count)]
    answer = node.api(path)
    names = [thing["name"] if path == "queues" else thing["queue"]["name"] for thing in answer.json]
    assert names == (
        sorted(node.management.queues.names) if path == "queues" else node.management.queues.names
    )


def test_a_queue_has_the_fields_that_tools_read(node: Node[FakeManagement]) -> None:
    [listed] = node.api("queues").json
    assert listed == node.api("queues/%2F").json[0] == node.api("queues/detailed").json[0]
    details = {"consumer_details": [], "deliveries": [], "incoming": []}
    assert node.api("queues/%2F/orders").json == listed | details
    of_classic = {"exclusive_consumer_tag", "idle_since", "messages_paged_out", "message_bytes_paged_out"}
    of_classic |= {"messages_ready_ram", "messages_unacknowledged_ram"}
    of_others = of_classic | {"owner_pid_details"}  # of an exclusive queue
    assert list(listed) == [name for name in QueueStatus._fields if name not in of_others]
    assert listed["effective_policy_definition"] == {"max-length": 5}
    assert listed["message_stats"]["publish_details"] == {"rate": 0.4}


def test_a_consumer_has_the_fields_that_tools_read(node: Node[FakeManagement]) -> None:
    [consumer] = node.api("consumers/%2F").json
    assert list(consumer) == [name for name in ConsumerStatus._fields if name != "credit"]
    assert consumer["active"] is True
    assert consumer["queue"] == {"name": "orders", "vhost": "/"}


def test_consumer_shows_credit_only_with_a_limit(
    node: Node[FakeManagement], monkeypatch: pytest.MonkeyPatch
) -> None:
    """rabbitmqadmin v1 cannot make a table with a null."""
    [consumer] = node.api("consumers").json
    assert "credit" not in consumer
    assert None not in consumer.values()
    [known] = node.management.consumers.all("/")
    monkeypatch.setattr(node.management.consumers, "all", lambda _: [known._replace(credit=0)])
    assert node.api("consumers").json == [consumer | {"credit": 0}]


def test_a_queue_of_any_name_is_found(node: Node[FakeManagement]) -> None:
    node.management.queues.names = ["a/b c%é"]
    assert node.api("queues/%2F/a%2Fb%20c%25%C3%A9").json["name"] == "a/b c%é"


def test_arguments_of_any_amqp_type_become_json(node: Node[FakeManagement]) -> None:
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    values = [
        True,
        None,
        -5,
        2.5,
        float("nan"),
        float("inf"),
        Decimal("1.5"),
        moment,
        bytearray(b"\xff"),
        [{}],
    ]
    node.management.queues.arguments = {"x-values": values, "x-table": {"a": {"b": [moment]}}}
    expected = [True, None, -5, 2.5, "nan", "inf", "1.5", 1767225600, "�", [{}]]
    arguments = node.api("queues/%2F/orders").json["arguments"]
    assert arguments == {"x-values": expected, "x-table": {"a": {"b": [1767225600]}}}


@pytest.mark.parametrize(
    "path",
    [
        "queues/%2F/nothing",
        "queues/other",
        "users/nobody",
        "vhosts/other",
        "queues/other/orders",
        "queues/%2F/nothing/browse",
        "queues/empty/orders",
        "queues/empty/orders/browse",
        "policies/other/p",
        "consumers/other",
        "policies/other",
        "policies/%2F/nothing",
        "operator-policies/%2F/nothing",
        "global-parameters/nothing",
    ],
)
def test_missing_object_is_404_in_json(node: Node[FakeManagement], path: str) -> None:
    answer = node.api(path)
    assert answer.status == 404
    assert answer.json == {"error": "Object Not Found", "reason": "Not Found"}


@pytest.mark.parametrize(
    ("path", "reason"),
    [("queues/other/q", "vhost_not_found"), ("user-limits/u/max-channels", "user_not_found")],
)
def test_put_below_a_missing_parent_names_the_parent(
    node: Node[FakeManagement], path: str, reason: str
) -> None:
    assert node.api(path, "PUT", json={}).json == {"error": "not_found", "reason": reason}


@pytest.mark.parametrize(
    "path", ["connections", "queues", "queues/%2F", "queues/%2F/orders", "users/guest", "whoami"]
)
def test_slash_at_the_end_of_a_path_is_ignored(node: Node[FakeManagement], path: str) -> None:
    answer = node.api(f"{path}/")
    assert (answer.status, answer.json) == (200, node.api(path).json)


def test_a_virtual_host_has_its_own(node: Node[FakeManagement]) -> None:
    assert node.api("queues/empty").json == node.api("consumers/empty").json == []
    for path in ("policies", "operator-policies"):
        assert node.api(f"{path}/empty/p", "PUT", json=POLICY).status == 201
        assert node.api(f"{path}/%2F/p", "PUT", json=POLICY | {"priority": 2}).status == 201
        assert [policy["vhost"] for policy in node.api(path).json] == ["/", "empty"]
        assert [policy["priority"] for policy in node.api(f"{path}/empty").json] == [1]
        assert node.api(f"{path}/%2F/p", "DELETE").status == 204
        assert node.api(f"{path}/empty/p").json["vhost"] == "empty"
        assert node.api(f"{path}/other/p", "PUT", json=POLICY).status == 404
        assert node.api(f"{path}/other/p", "DELETE").status == 404


# --- browse


def test_browse_requests_the_given_range(node: Node[FakeManagement]) -> None:
    node.api("queues/%2F/orders/browse?offset=5&count=7")
    node.api("queues/%2F/orders/browse")
    assert node.management.queues.browsed == [("orders", 5, 7, 2**20), ("orders", 0, 50, 2**20)]


def test_a_browsed_message_is_as_rabbitmq_shows_messages(node: Node[FakeManagement]) -> None:
    died = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    headers = {"x-death": [{"time": died, "count": 1}]}
    node.management.queues.messages = [
        message(b"text \xc3\xa9", content_type="a/b", headers=headers, message_type="t")
    ]
    assert node.api("queues/%2F/orders/browse").json == [
        {
            "offset": 7,
            "payload_bytes": 7,
            "redelivered": False,
            "exchange": "exchange",
            "routing_key": "key",
            "properties": {
                "content_type": "a/b",
                "headers": {"x-death": [{"time": 1767225600, "count": 1}]},
                "type": "t",
            },
            "payload": "text é",
            "payload_encoding": "string",
        }
    ]


def test_body_is_base64_when_it_is_not_text_or_on_request(node: Node[FakeManagement]) -> None:
    node.management.queues.messages = [message(b"\xff\x00"), message(b"text")]
    answers = [
        node.api(f"queues/%2F/orders/browse?encoding={encoding}").json for encoding in ("auto", "base64")
    ]
    assert [[each["payload_encoding"] for each in answer] for answer in answers] == [
        ["base64", "string"],
        ["base64", "base64"],
    ]
    assert [base64.b64decode(each["payload"]) for each in answers[1]] == [b"\xff\x00", b"text"]


def test_of_a_large_body_a_part_is_shown_and_its_size(node: Node[FakeManagement]) -> None:
    node.management.queues.messages = [message(b"x" * (2**20 + 1))]
    [whole] = node.api("queues/%2F/orders/browse").json
    [short] = node.api("queues/%2F/orders/browse?truncate=3").json
    assert (whole["payload_bytes"], len(whole["payload"])) == (2**20 + 1, 2**20)
    assert (short["payload_bytes"], short["payload"]) == (2**20 + 1, "xxx")


@pytest.mark.parametrize(
    "query",
    [
        "offset=-1",
        "offset=x",
        "offset=",
        f"offset={'9' * 5000}",
        "count=1001",
        "count=1.5",
        "count=%D9%A3",
        "truncate=1048577",
        "encoding=latin1",
    ],
)
def test_a_parameter_out_of_range_is_400(node: Node[FakeManagement], query: str) -> None:
    answer = node.api(f"queues/%2F/orders/browse?{query}")
    assert (answer.status, answer.json["error"]) == (400, "bad_request")
    assert node.management.changes.applied == []


# --- policies


@pytest.mark.parametrize("kind", ["policies", "operator-policies"])
def test_a_policy_is_put_shown_replaced_and_deleted(node: Node[FakeManagement], kind: str) -> None:
    path = f"{kind}/%2F/my%2Fpolicy"
    shown = POLICY | {"name": "my/policy", "vhost": "/"}
    assert node.api(path, "PUT", json=POLICY).status == 201
    assert node.api(path).json == shown
    assert node.api(kind).json == node.api(f"{kind}/%2F").json == [shown]
    assert node.api(path, "PUT", json=POLICY | {"priority": 2}).status == 204
    assert node.api(path).json == shown | {"priority": 2}
    assert node.api(path, "DELETE").status == 204
    assert node.api(kind).json == []
    assert node.api(path, "DELETE").status == 404


def test_user_and_operator_policies_are_separate(node: Node[FakeManagement]) -> None:
    node.api("policies/%2F/p", "PUT", json=POLICY)
    node.api("operator-policies/%2F/p", "PUT", json=POLICY | {"priority": 7})
    assert [policy["priority"] for policy in node.api("policies").json] == [1]
    assert [policy["priority"] for policy in node.api("operator-policies").json] == [7]


def test_a_policy_has_rabbitmqs_defaults(node: Node[FakeManagement]) -> None:
    node.api("policies/%2F/p", "PUT", json={"pattern": "", "definition": {"expires": 1}, "name": "ignored"})
    assert node.management.changes.applied == [PutPolicy("/", "p", False, "", "all", 0, {"expires": 1})]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"definition": {"max-length": -1}}, "Validation failed\n\n-1 is not a valid maximum length\n"),
        ({"definition": {"max-length": 2**63}}, ""),
        ({"definition": {"nothing": 1}}, '[{<<"nothing">>,1}] are not recognised policy settings'),
        ({"definition": {}}, "no policy provided"),
        ({"definition": [1]}, "the definition is not an object"),
        ({"definition": {"a": nested(200)}}, ""),
        ({"pattern": "("}, "pattern should be regular expression but is invalid"),
        ({"pattern": 1}, "pattern should be a binary but was 1"),
        ({"priority": "1"}, 'priority should be a number, actually was <<"1">>'),
        ({"priority": 1.5}, "priority should be a number, actually was 1.5"),
        ({"priority": True}, "priority should be a number, actually was true"),
        ({"priority": 10**30}, "priority should be a number"),
        ({"priority": -(2**63) - 1}, "priority should be a number"),
        ({"apply-to": "everything"}, "apply-to 'everything' unrecognised"),
        ({"apply-to": ["queues"]}, "unrecognised"),
    ],
)
def test_a_policy_that_cannot_hold_is_refused_with_the_reason(
    node: Node[FakeManagement], change: dict[str, Any], reason: str
) -> None:
    answer = node.api("policies/%2F/p", "PUT", json=POLICY | change)
    assert (answer.status, answer.json["error"]) == (400, "bad_request")
    assert reason in answer.json["reason"]
    assert node.management.changes.applied == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        b"[1]",
        b"1",
        b"\xff",
        b"[" * 10_000,
        b'{"pattern": "", "definition": {"expires": ' + b"9" * 5000 + b"}}",
        b'{"pattern": "\\ud800", "definition": {"expires": 1}}',
        b'{"pattern": ""}',
        b'{"definition": {"expires": 1}}',
    ],
)
@pytest.mark.parametrize("path", ["policies/%2F/p", "global-parameters/publisher-deduplication"])
def test_malformed_body_is_400(node: Node[FakeManagement], path: str, body: bytes) -> None:
    answer = node.api(path, "PUT", data=body)
    assert (answer.status, answer.json["error"]) == (400, "bad_request")
    assert node.management.changes.applied == []


def test_a_body_that_is_too_large_is_413_in_json(node: Node[FakeManagement]) -> None:
    for path, method, limit in (
        ("policies/%2F/p", "PUT", 65_536),
        ("exchanges/%2F/amq.default/publish", "POST", 1_048_576),
    ):
        answer = node.api(path, method, data=io.BytesIO(b" " * (limit + 1)))
        reason = f"the body is larger than {limit} octets"
        assert (answer.status, answer.json) == (413, {"error": "request_entity_too_large", "reason": reason})


def test_a_change_that_is_not_applied_is_503_in_json(node: Node[FakeManagement]) -> None:
    node.management.changes.has_majority = False
    for path in ("policies/%2F/p", "operator-policies/%2F/p"):
        answer = node.api(path, "PUT", json=POLICY)
        assert (answer.status, answer.json) == (
            503,
            {"error": "service_unavailable", "reason": "no majority"},
        )
        assert node.api(path, "DELETE").status == 503


# --- parameters


def test_the_bounds_of_deduplication_are_shown_and_set(node: Node[FakeManagement]) -> None:
    path = "global-parameters/publisher-deduplication"
    assert node.api(path).json == {"name": "publisher-deduplication", "value": {"limit": 100, "age_ms": 1000}}
    assert node.api(path, "PUT", json={"value": {"limit": 1000, "age_ms": 60_000}}).status == 204
    assert node.api(path, "PUT", json={"value": {"age_ms": 60_001}}).status == 204
    assert node.management.changes.applied == [LimitPublishers(1000, 60_000), LimitPublishers(1000, 60_001)]
    assert node.api(path).json["value"] == {"limit": 1000, "age_ms": 60_001}


@pytest.mark.parametrize(
    "value",
    [
        1,
        {"limit": -1},
        {"limit": 0},
        {"limit": 999},
        {"limit": True},
        {"limit": 2000.0},
        {"limit": 1_000_001},
        {"age_ms": "70000"},
        {"age_ms": 0},
        {"age_ms": 59_999},
        {"x": 1},
    ],
)
def test_bounds_of_deduplication_that_make_no_sense_are_400(node: Node[FakeManagement], value: Any) -> None:
    answer = node.api("global-parameters/publisher-deduplication", "PUT", json={"value": value})
    assert (answer.status, answer.json["error"]) == (400, "bad_request")
    assert node.management.changes.applied == []


# --- permissions


def enter(node: Node[FakeManagement], user: str, *tags: str) -> None:
    """Add a user with these tags and all permissions in "/"."""
    node.view.tags = {user: list(tags)}
    node.management.make(PutUser(user, b"", b"", list(tags)), SetPermissions(user, "/", ".*", ".*", ".*"))


@pytest.mark.parametrize("tag", READERS)
def test_a_user_with_a_tag_of_rabbitmqs_may_read(node: Node[FakeManagement], tag: str) -> None:
    enter(node, "ann", "other", tag)
    for path in (
        "queues",
        "queues/%2F/orders",
        "consumers",
        "policies",
        "cluster",
        "queues/%2F/orders/browse",
    ):
        assert node.api(path, user="ann").status == 200


@pytest.mark.parametrize("tag", READERS)
@pytest.mark.parametrize(
    ("path", "may", "reason"),
    [
        ("users", ADMINISTRATORS, "Not administrator user"),
        ("user-limits", ADMINISTRATORS, "Not administrator user"),
        ("operator-policies/%2F/p", ADMINISTRATORS, "Not administrator user"),
        ("nodes", MONITORS, "Not monitor user"),
        ("user-limits/guest", MONITORS, "User not authorised to access object"),
        ("connections/username/guest", MONITORS, "User not authorised to access object"),
        ("global-parameters", POLICYMAKERS, "User not authorised to access object"),
        ("global-parameters/cluster_name", POLICYMAKERS, "User not authorised to access object"),
        ("policies/%2F/p", POLICYMAKERS, "User not authorised to access object"),
        ("parameters", POLICYMAKERS, "User not authorised to access object"),
    ],
)
def test_tags_decide_which_paths_a_user_may_read(
    node: Node[FakeManagement], tag: str, path: str, may: frozenset[str], reason: str
) -> None:
    enter(node, "ann", tag)
    answer = node.api(path, user="ann")
    if tag in may:
        assert answer.status in (200, 404)
    else:
        assert (answer.status, answer.json) == (401, {"error": "not_authorised", "reason": reason})


@pytest.mark.parametrize("path", ["queues", "cluster", "nothing"])
def test_user_without_a_tag_is_refused(
    node: Node[FakeManagement], path: str, caplog: pytest.LogCaptureFixture
) -> None:
    node.view.tags = {"ann": ["impersonator"]}
    answer = node.api(path, user="ann")
    assert caplog.messages == [
        "login of user 'ann' from 127.0.0.1 (HTTP) refused: the user has no tag for HTTP"
    ]
    assert (answer.status, answer.json) == (
        401,
        {"error": "not_authorised", "reason": "Not management user"},
    )


@pytest.mark.parametrize("tag", READERS)
def test_tags_decide_which_paths_a_user_may_change(node: Node[FakeManagement], tag: str) -> None:
    enter(node, "ann", tag)
    may_make_policies, is_administrator = tag in ("policymaker", "administrator"), tag == "administrator"
    for path, body, allowed in (
        ("policies/%2F/p", POLICY, may_make_policies),
        ("operator-policies/%2F/p", POLICY, is_administrator),
        ("global-parameters/publisher-deduplication", {"value": {"limit": 1000}}, is_administrator),
    ):
        assert node.api(path, "PUT", user="ann", data=json.dumps(body)).status in (
            (201, 204) if allowed else (401,)
        )
        if "policies" in path:
            assert node.api(path, "DELETE", user="ann").status == (204 if allowed else 401)


@pytest.mark.parametrize("method", ["POST", "OPTIONS", "PATCH"])
@pytest.mark.parametrize("path", ["queues", "policies/%2F/p", "queues/%2F/orders/browse"])
def test_foreign_page_gets_no_cors_permission(node: Node[FakeManagement], path: str, method: str) -> None:
    """Before a PUT or a DELETE browsers ask with OPTIONS; test_access.py has the POSTs that there are."""
    answer = node.api(path, method)
    assert answer.status == (200 if method == "OPTIONS" else 405)
    assert "Access-Control-Allow-Origin" not in answer.headers
