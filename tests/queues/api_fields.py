"""The fields of every answer of the HTTP API, with their types, in each state of the objects that it shows.

    python -m tests.queues.api_fields amqp://guest:guest@HOST:PORT/ http://HOST:PORT >tests/queues/api_fields.json

records the fields of a RabbitMQ with its management plugin. The command makes the virtual host `api-fields` and deletes
it. A field is named by its path: `[].` is an element of a list.
"""

from __future__ import annotations

import base64
import http.client
import json
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pika
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

VHOST = "api-fields"
STATISTICS_S = 12.0
"""Seconds until RabbitMQ shows a change: it collects statistics every five seconds."""
MESSAGES = 20
STATES = 3
OPAQUE = ("arguments", "client_properties", "value", "definition", "effective_policy_definition", "metadata")
"""Fields whose parts are the clients' own, or depend on them."""
QUEUES: Mapping[str, Mapping[str, Any]] = {
    "classic": {"durable": True},
    "quorum": {"durable": True, "arguments": {"x-queue-type": "quorum"}},
    "exclusive": {"exclusive": True},
}
Fields = dict[str, dict[str, dict[str, str]]]
"""Path of the API -> field -> state -> types of the field's values in that state, such as "null string"."""
RECORDED = Path(__file__).with_name("api_fields.json")


class Api:
    """The HTTP API of a broker, and its AMQP port."""

    def __init__(self, amqp_url: str, http_url: str, statistics_s: float = STATISTICS_S) -> None:
        self.amqp_url = amqp_url.removesuffix("/")
        self.statistics_s = statistics_s
        self._address = urlsplit(http_url)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Return the document of an answer, or its status if it is not 2xx."""
        connection = http.client.HTTPConnection(self._address.netloc, timeout=30)
        credentials = base64.b64encode(b"guest:guest").decode()
        headers = {"Authorization": f"Basic {credentials}", "Content-Type": "application/json"}
        try:
            connection.request(method, f"/api/{path}", None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status >= http.HTTPStatus.MULTIPLE_CHOICES:
            return answer.status
        return json.loads(content) if content else None

    def connect(self) -> BlockingConnection:
        parameters = pika.URLParameters(f"{self.amqp_url}/{VHOST}")
        parameters.client_properties = {"connection_name": "fields"}
        return pika.BlockingConnection(parameters)


def types_of(document: Any, path: str = "") -> Iterable[tuple[str, str]]:
    """Yield each field of a document with its type."""
    match document:
        case dict():
            yield path, "object"
            if path.rpartition(".")[2] not in OPAQUE:
                for name, value in document.items():
                    yield from types_of(value, f"{path}.{name}" if path else name)
        case list():
            yield path, "array"
            for value in document:
                yield from types_of(value, f"{path}[]")
        case bool():
            yield path, "boolean"
        case int() | float():
            yield path, "number"
        case None:
            yield path, "null"
        case _:
            yield path, "string"


def _add(fields: Fields, path: str, state: str, document: Any) -> None:
    found: dict[str, set[str]] = {}
    for field, kind in types_of(document):
        if field:
            found.setdefault(field, set()).add(kind)
    for field, kinds in sorted(found.items()):
        fields.setdefault(path, {}).setdefault(field, {})[state] = " ".join(sorted(kinds))


def record(api: Api) -> Fields:
    """Return the fields of all answers, in each state."""
    api.request("DELETE", f"vhosts/{VHOST}")
    _set_up(api)
    fields: Fields = {}
    try:
        with api.connect() as connection:
            own = connection.channel()
            for name, declared in QUEUES.items():
                own.queue_declare(name, **declared)
                own.queue_bind(name, "amq.direct", name)
            for name in ("direct", "fanout", "topic", "headers"):
                own.exchange_declare(f"x-{name}", name, durable=True)
            _wait(api, connection)
            _collect(api, "new", fields)
            channel = connection.channel()
            _use(channel)
            _wait(api, connection)
            _use(channel)
            _collect(api, "used", fields)
            _wait(api, connection)
            _collect(api, "idle", fields)
    finally:
        api.request("DELETE", f"vhosts/{VHOST}")
        api.request("DELETE", "users/api-fields")
    return fields


def _set_up(api: Api) -> None:
    api.request("PUT", f"vhosts/{VHOST}", {"description": "a virtual host", "tags": "one,two"})
    everything = dict.fromkeys(("configure", "write", "read"), ".*")
    api.request("PUT", f"permissions/{VHOST}/guest", everything)
    api.request("PUT", "users/api-fields", {"password": "p", "tags": "monitoring"})
    api.request("PUT", f"permissions/{VHOST}/api-fields", everything)
    topic = {"exchange": "amq.topic", "write": "^a", "read": ".*"}
    api.request("PUT", f"topic-permissions/{VHOST}/api-fields", topic)
    policy = {"pattern": "^q", "apply-to": "queues", "definition": {"max-length": 1000}, "priority": 1}
    api.request("PUT", f"policies/{VHOST}/p", policy)
    api.request("PUT", f"operator-policies/{VHOST}/o", policy)
    api.request("PUT", f"vhost-limits/{VHOST}/max-queues", {"value": 100})
    api.request("PUT", "user-limits/api-fields/max-channels", {"value": 100})


def _use(channel: BlockingChannel) -> None:
    """Publish, deliver, get, acknowledge and return messages of each queue; some stay unacknowledged."""
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=5)
    for name in QUEUES:
        for _ in range(MESSAGES):
            channel.basic_publish("amq.direct", name, b"m")
        method, _, _ = channel.basic_get(name)
        channel.basic_nack(method.delivery_tag)
        method, _, _ = channel.basic_get(name)
        channel.basic_ack(method.delivery_tag)
        channel.basic_get(name, auto_ack=True)
        if f"tag-{name}" not in channel.consumer_tags:
            channel.basic_consume(name, lambda *_: None, consumer_tag=f"tag-{name}")
    channel.basic_publish("x-topic", "nowhere", b"m")
    channel.connection.process_data_events(0.2)


def _wait(api: Api, connection: BlockingConnection) -> None:
    end_s = time.monotonic() + api.statistics_s
    while time.monotonic() < end_s:
        connection.process_data_events(0.1)


def _collect(api: Api, state: str, fields: Fields) -> None:
    node = api.request("GET", "overview")["node"]
    [connection] = [row["name"] for row in api.request("GET", f"vhosts/{VHOST}/connections")]
    names = {"NODE": node, "CONNECTION": connection, "VHOST": VHOST}
    channels = sorted(row["name"] for row in api.request("GET", f"vhosts/{VHOST}/channels"))
    for path in PATHS:
        shown = path
        for name, value in names.items():
            shown = shown.replace(name, quote(value, safe=""))
        _add(fields, path, state, api.request("GET", shown))
    for name in channels:
        number = name.rpartition("(")[2]
        _add(fields, f"channels/({number}", state, api.request("GET", f"channels/{quote(name, safe='')}"))


PATHS = (
    *("overview", "cluster-name", "nodes", "nodes/NODE", "nodes/NODE/memory", "extensions", "whoami"),
    *("definitions", "definitions/VHOST", "parameters", "global-parameters"),
    *("policies/VHOST", "policies/VHOST/p", "operator-policies/VHOST", "operator-policies/VHOST/o"),
    *("vhost-limits/VHOST", "user-limits/api-fields", "feature-flags", "deprecated-features"),
    *("connections", "connections/CONNECTION", "connections/CONNECTION/channels", "vhosts/VHOST/connections"),
    *("connections/username/guest", "channels", "vhosts/VHOST/channels", "consumers", "consumers/VHOST"),
    *("exchanges/VHOST", *(f"exchanges/VHOST/{name}" for name in ("x-direct", "x-topic", "amq.direct"))),
    *("exchanges/VHOST/amq.direct/bindings/source", "exchanges/VHOST/x-fanout/bindings/destination"),
    *("queues", "queues/VHOST", "queues/detailed", *(f"queues/VHOST/{name}" for name in QUEUES)),
    *("queues/VHOST?page=1&page_size=10", "exchanges/VHOST?page=1", "connections?page=1", "channels?page=1"),
    *("queues/VHOST/quorum/bindings", "bindings", "bindings/VHOST", "bindings/VHOST/e/amq.direct/q/quorum"),
    *("vhosts", "vhosts/VHOST", "vhosts/VHOST/permissions", "vhosts/VHOST/topic-permissions"),
    *("users", "users/api-fields", "users/without-permissions", "users/api-fields/permissions"),
    *("users/api-fields/topic-permissions", "permissions", "permissions/VHOST/guest", "topic-permissions"),
    *("health/checks/alarms", "health/checks/local-alarms", "health/checks/virtual-hosts"),
    *("health/checks/node-is-quorum-critical", "health/checks/port-listener/1", "auth/attempts/NODE"),
    *("health/checks/protocol-listener/amqp", "aliveness-test/VHOST", "vhosts/VHOST/deletion/protection"),
    "health/checks/certificate-expiration/1/months",
)


def written(fields: Fields) -> str:
    """Return fields as JSON, with a line for each path. A field that is the same in each state has its types only."""
    rows = {
        path: {
            field: kinds["new"] if len(kinds) == STATES and len(set(kinds.values())) == 1 else kinds
            for field, kinds in of_path.items()
        }
        for path, of_path in fields.items()
    }
    lines = (f"{json.dumps(path)}: {json.dumps(of_path)}" for path, of_path in sorted(rows.items()))
    return "{\n" + ",\n".join(lines) + "\n}"


def recorded() -> Fields:
    """Return the recorded fields of RabbitMQ."""
    rows = json.loads(RECORDED.read_text())
    return {
        path: {
            field: kinds if isinstance(kinds, dict) else dict.fromkeys(("new", "used", "idle"), kinds)
            for field, kinds in of_path.items()
        }
        for path, of_path in rows.items()
    }


if __name__ == "__main__":
    print(written(record(Api(*sys.argv[1:3]))))
