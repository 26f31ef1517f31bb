"""Any JSON in a request is carried out or refused, and never causes an internal error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qq.machine.machine import QueueMachine
from tests.http.fakes import MachineManagement
from tests.http.http_node import GUEST, Answer, Client, Node, answer

PATHS = [
    ("vhosts/v", "PUT"),
    ("users/u", "PUT"),
    ("users/bulk-delete", "POST"),
    ("permissions/%2F/guest", "PUT"),
    ("topic-permissions/%2F/guest", "PUT"),
    ("vhost-limits/%2F/max-queues", "PUT"),
    ("user-limits/guest/max-channels", "PUT"),
    ("policies/%2F/p", "PUT"),
    ("operator-policies/%2F/p", "PUT"),
    ("global-parameters/publisher-deduplication", "PUT"),
    ("queues/%2F/q", "PUT"),
    ("queues/%2F/q/get", "POST"),
    ("queues/%2F/q/actions", "POST"),
    ("exchanges/%2F/amq.topic/publish", "POST"),
    ("exchanges/%2F/x", "PUT"),
    ("bindings/%2F/e/amq.topic/q/q", "POST"),
    ("cluster/leader", "PUT"),
    ("definitions", "POST"),
    ("definitions/%2F", "POST"),
]
KEYS = [
    *(
        "name",
        "vhost",
        "user",
        "users",
        "vhosts",
        "permissions",
        "topic_permissions",
        "parameters",
        "policies",
    ),
    *("queues", "exchanges", "bindings", "global_parameters", "description", "tags", "default_queue_type"),
    *("password", "password_hash", "hashing_algorithm", "limits", "metadata", "configure", "write", "read"),
    *("exchange", "value", "max-queues", "max-channels", "pattern", "definition", "priority", "apply-to"),
    *("durable", "auto_delete", "internal", "arguments", "type", "source", "destination", "routing_key"),
    *("destination_type", "component", "count", "ackmode", "encoding", "truncate", "limit", "age_ms", "to"),
    *(
        "x-max-length",
        "x-queue-type",
        "alternate-exchange",
        "x-dead-letter-exchange",
        "x-delayed-type",
        "hash-header",
    ),
]
VALUES = [
    *(
        "/",
        "guest",
        "q",
        "amq.topic",
        "queue",
        "exchange",
        "quorum",
        "topic",
        "headers",
        "x-delayed-message",
        "(",
    ),
    *(
        "vhost-limits",
        "operator_policy",
        "publisher-deduplication",
        "auto",
        "ack_requeue_true",
        "kI3G",
        "",
        "x" * 300,
    ),
]

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(VALUES)
    | st.text()
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(), inner, max_size=6)
    ),
    max_leaves=20,
)
bodies = st.dictionaries(st.sampled_from(KEYS), values, max_size=8)


def _merged(parts: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    return parts[0] | parts[1]


CATEGORIES = KEYS[KEYS.index("users") : KEYS.index("description")]
names = st.fixed_dictionaries(
    {"vhost": st.just("/"), "name": st.sampled_from(VALUES)},
    optional={
        "user": st.just("guest"),
        "source": st.just("amq.topic"),
        "destination": st.just("q"),
        "tags": st.just(""),
    }
    | {"destination_type": st.sampled_from(["queue", "exchange"]), "pattern": st.just("")}
    | {"component": st.sampled_from(["vhost-limits", "operator_policy"]), "type": st.sampled_from(VALUES)},
)
rows = st.tuples(bodies, names).map(_merged)
documents = st.dictionaries(st.sampled_from(CATEGORIES), st.lists(rows, max_size=2), max_size=3)


@pytest.mark.parametrize(("path", "method"), PATHS)
@settings(max_examples=max(5, settings.default.max_examples // 4), deadline=None)
@given(body=bodies)
def test_no_body_causes_an_internal_error(path: str, method: str, body: dict[str, Any]) -> None:
    check(path, method, body)


@settings(deadline=None)
@given(document=documents)
@example(document={"queues": [{"name": "q", "vhost": "/", "type": []}]})
def test_no_definitions_cause_an_internal_error(document: dict[str, Any]) -> None:
    check("definitions", "POST", document)


NOT_JSON = "json"
"""RabbitMQ's reason is "not_json", or "failed_to_parse_json" for definitions."""
STRANGE = {
    "[" * 2000 + "]" * 2000: "",
    '{"a":' * 45 + "{}" + "}" * 45: "the JSON is nested deeper than 40 levels",
    '{"pattern": ' + "[" * 900 + "]" * 900 + "}": "the JSON is nested deeper than 40 levels",
    '{"a": 1e999}': "a number is out of range",
    '{"a": NaN}': NOT_JSON,
    '{"a": -Infinity}': NOT_JSON,
    '{"a": "\\ud800"}': NOT_JSON,
    '{"a": ' + "9" * 5000 + "}": NOT_JSON,
    "\xff": NOT_JSON,
}
"""Bodies, and the texts of their refusals."""


@pytest.mark.parametrize("text", STRANGE)
@pytest.mark.parametrize("path", ["policies/%2F/p", "definitions", "queues/%2F/p"])
def test_json_that_cannot_be_stored_is_400(path: str, text: str) -> None:
    node = Node(MachineManagement())
    answer = node.api(path, "POST" if path == "definitions" else "PUT", data=text.encode("latin-1"))
    assert answer.status == 400
    assert STRANGE[text] in answer.json["reason"]
    assert node.management.changes.applied == []
    assert node.api("queues").json == []


def check(path: str, method: str, body: dict[str, Any]) -> None:
    node = Node(MachineManagement())

    async def send_all(client: Client) -> list[Answer]:
        return [
            await answer(client, f"/api/{path}", method, headers=GUEST, data=data)
            for path, method, data in (
                ("queues/%2F/q", "PUT", None),
                (path, method, json.dumps(body)),
                ("definitions", "GET", None),
            )
        ]

    _, answered, definitions = node.run(send_all)
    assert answered.status in (200, 201, 204, 400, 401, 404)
    assert definitions.status == 200
    machine, other = node.management.machine, QueueMachine()
    other.adopt(other.read(machine.dump()))
    assert other.dump() == machine.dump()
