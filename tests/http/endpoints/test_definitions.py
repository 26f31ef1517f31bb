"""Definitions: export, import, import from RabbitMQ, and invalid definitions."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import logging
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import FormData
from hypothesis import given
from hypothesis import strategies as st

from qq.http.documents import requests
from qq.http.documents.large_bodies import LargeList, read_large_object
from qq.http.endpoints import definitions
from qq.machine.catalog import limits
from qq.machine.protocol.commands import (
    BindExchange,
    BindQueue,
    DeclareExchange,
    DeclareQueue,
    DeleteQueue,
    DeleteUser,
    DeleteVhost,
    LimitPublishers,
    PutGlobalParameter,
    PutHashedUser,
    PutPolicy,
    PutUser,
    PutVhost,
    SetPermissions,
    SetTopicPermissions,
    SetUserLimits,
    SetVhostLimits,
)
from qq.machine.protocol.versions import VERSIONS
from qq.management.changes import changes
from qq.management.errors import RequestRefused, Unavailable
from qq.stored.exact_tables import encode_table
from tests.harness.any_tables import tables
from tests.http.fakes import MachineManagement
from tests.http.http_node import GUEST, Client, Node, answer

Machine = Node[MachineManagement]

# As RabbitMQ 4.1 exports them (GET /api/definitions), with the keys of its plugins.
OF_ANOTHER_PROTOCOL = {
    "src-uri": "amqp://",
    "src-queue": "a",
    "dest-protocol": "amqp10",
    "dest-uri": "amqp://user:secret@elsewhere",
    "dest-address": "/queues/b",
}
RABBITMQ: dict[str, Any] = {
    "rabbit_version": "4.1.0",
    "rabbitmq_version": "4.1.0",
    "product_name": "RabbitMQ",
    "product_version": "4.1.0",
    "rabbitmq_definition_format": "cluster",
    "original_cluster_name": "rabbit@host",
    "explanation": "Definitions of cluster 'rabbit@host'",
    "users": [
        {
            "name": "ann",
            "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": ["management"],
            "limits": {"max-channels": 7},
        },
        # Of clusters with a different password_hashing_module, now or earlier.
        {
            "name": "bob",
            "password_hash": "c2FsdPag9wkKIC5LCZbCc/EFFTlYm3n4cZgXJZNxqVzUrXGfZvnfclvoe/oEeRUwp3tDktmG"
            "THu7xqqYqziRkVmy3xo=",
            "hashing_algorithm": "rabbit_password_hashing_sha512",
            "tags": [],
            "limits": {},
        },
        {
            "name": "cid",
            "password_hash": "c2FsdNx76ggKI4dTMW+A9Ya+WjY=",
            "hashing_algorithm": "rabbit_password_hashing_md5",
            "tags": [],
            "limits": {},
        },
    ],
    "vhosts": [
        {
            "name": "/",
            "description": "Default virtual host",
            "tags": [],
            "default_queue_type": "classic",
            "limits": [],
            "metadata": {"description": "Default virtual host", "tags": [], "default_queue_type": "classic"},
        },
        {"name": "v", "limits": {"max-queues": 5}, "metadata": {"description": "", "tags": ["t"]}},
    ],
    "permissions": [{"user": "ann", "vhost": "v", "configure": "^a", "write": ".*", "read": ""}],
    "topic_permissions": [
        {"user": "ann", "vhost": "v", "exchange": "amq.topic", "write": "^a", "read": ".*"}
    ],
    "parameters": [
        {"value": {"max-queues": 1}, "vhost": "v", "component": "vhost-limits", "name": "limits"},
        {
            "value": {"pattern": "", "definition": {"max-length": 9}, "priority": 1, "apply-to": "queues"},
            "vhost": "v",
            "component": "operator_policy",
            "name": "o",
        },
        {"value": OF_ANOTHER_PROTOCOL, "vhost": "v", "component": "shovel", "name": "s"},
    ],
    "global_parameters": [{"name": "internal_cluster_id", "value": "rabbitmq-cluster-id-x"}],
    "policies": [
        {
            "vhost": "v",
            "name": "p",
            "pattern": "^q",
            "apply-to": "all",
            "definition": {"max-length": 5},
            "priority": 0,
        }
    ],
    "queues": [
        {
            "name": "q",
            "vhost": "v",
            "type": "quorum",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": "quorum"},
        },
        {
            "name": "c",
            "vhost": "v",
            "type": "classic",
            "durable": True,
            "auto_delete": False,
            "arguments": [],
        },
        {"name": "amq.gen-1", "vhost": "v", "durable": True, "auto_delete": False, "arguments": {}},
    ],
    "exchanges": [
        {
            "name": "x",
            "vhost": "v",
            "type": "headers",
            "durable": True,
            "auto_delete": False,
            "arguments": {},
        },
        {
            "name": "y",
            "vhost": "v",
            "type": "fanout",
            "durable": True,
            "auto_delete": False,
            "internal": False,
        }
        | {"arguments": {"alternate-exchange": "x"}},
    ],
    "bindings": [
        {
            "source": "x",
            "vhost": "v",
            "destination": "q",
            "destination_type": "queue",
            "routing_key": "",
            "arguments": {"x-match": "any", "n": 1},
        },
        {
            "source": "y",
            "vhost": "v",
            "destination": "x",
            "destination_type": "exchange",
            "routing_key": "k",
            "arguments": {},
        },
        {
            "source": "x",
            "vhost": "v",
            "destination": "amq.gen-1",
            "destination_type": "queue",
            "routing_key": "",
            "arguments": {},
        },
    ],
}


@pytest.fixture
def node() -> Machine:
    return Node(MachineManagement())


def export(node: Machine, path: str = "definitions") -> dict[str, Any]:
    return node.api(path).json


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [row["name"] for row in rows]


def test_rabbitmq_definitions_are_imported(node: Machine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "qq")
    answer = node.api("definitions", "POST", json=RABBITMQ)
    left_out = {each["object"]: each["reason"] for each in answer.json["left_out"]}
    assert "dest-protocol amqp10 is not supported" in left_out["parameter 's' of shovel in vhost 'v'"]
    assert answer.status == 200
    assert "parameter 's' of shovel in vhost 'v'" in caplog.text
    catalog = node.management.machine.catalog
    ann = catalog.access.users["ann"]
    assert (ann.tags, catalog.access.limits["ann"]) == (["management"], {"max-channels": 7})
    users = {name: (row.hash, row.hashing) for name, row in catalog.access.users.items()}
    assert users["bob"] == (hashlib.sha512(b"salttest12").digest(), "sha512")
    assert users["cid"] == (hashlib.md5(b"salttest12").digest(), "md5")
    written = [row for row in export(node)["users"] if row["name"] != "guest"]
    assert written == RABBITMQ["users"]
    vhost = catalog.vhosts["v"]
    assert (vhost.tags, vhost.limits) == (["t"], {"max-queues": 1})
    assert list(vhost.queues) == ["q", "c", "amq.gen-1"]
    assert [queue.kind for queue in vhost.queues.values()] == ["quorum", "classic", "classic"]
    assert {"x", "y"} < set(vhost.exchanges)
    assert len(vhost.bindings) == 3
    assert [policy.name for policy in vhost.policies.rows()] == ["p", "o"]
    assert [policy.name for policy in vhost.queues["q"].policies if policy] == ["p", "o"]
    assert catalog.access.permissions("ann", "v") == ("ann", "v", "^a", ".*", "")
    assert catalog.access.topic_permissions("ann", "v", "amq.topic") is not None
    assert catalog.access.permissions("guest", "v") is not None  # as in RabbitMQ, its creator has permissions
    assert list(catalog.connections) == []


def test_repeated_import_changes_no_state(node: Machine) -> None:
    node.api("definitions", "POST", json=RABBITMQ)
    before, index = node.management.machine.dump(), export(node)
    node.management.changes.applied.clear()
    assert node.api("definitions", "POST", json=RABBITMQ).status == 200
    assert node.management.changes.applied == []
    assert export(node) == index
    assert node.management.machine.dump() == before


def test_password_of_an_old_release_is_md5(node: Machine) -> None:
    """RabbitMQ 3.5 names no hashing algorithm."""
    hashed = base64.b64encode(b"salt" + hashlib.md5(b"salttest12").digest()).decode()
    body = {
        "rabbit_version": "3.5.7",
        "users": [{"name": "old", "password_hash": hashed, "tags": "management"}],
    }
    assert node.api("definitions", "POST", json=body).status == 204
    user = node.management.machine.catalog.access.users["old"]
    assert (user.hashing, user.tags) == ("md5", ["management"])


def fill(node: Machine) -> None:
    node.management.make(
        PutUser("ann", b"salt", b"h" * 32, ["management"]),
        PutUser("nobody", b"", b"", []),
        PutHashedUser("old", b"salt", b"h" * 16, [], "md5"),
        PutVhost("v", "a description", ["t"], "quorum"),
        SetPermissions("ann", "v", "a", "b", "c"),
        SetPermissions("guest", "v", ".*", ".*", ".*"),
        SetTopicPermissions("ann", "v", "x", "a", "b"),
        SetUserLimits("ann", {"max-connections": 3}),
        SetVhostLimits("v", {"max-queues": 9}),
        LimitPublishers(5000, 600_000),
        PutPolicy("v", "p", False, "^q", "queues", 3, {"expires": 60_000}),
        PutPolicy("v", "o", True, "^q", "queues", 3, {"max-length": 60_000}),
        DeclareQueue(
            1, 1, "q", False, True, False, False, False, {"x-max-length": 5, "x-queue-type": "quorum"}
        ),
        DeclareQueue(1, 1, "mine", False, False, True, False, False, {}),
        DeclareExchange(1, "x", "topic", False, True, False, True, {"alternate-exchange": "amq.fanout"}),
        BindQueue(1, 1, "q", "x", "a.#", {"n": 1}),
        BindQueue(1, 1, "mine", "x", "a.#", {}),
        BindExchange(1, "x", "amq.topic", "k", {}),
    )


def test_exported_definitions_recreate_the_cluster(node: Machine) -> None:
    fill(node)
    written = export(node)
    other = Node(MachineManagement())
    assert other.api("definitions", "POST", json=written).status == 204
    assert export(other) == written


declared_names = st.text(min_size=1, max_size=8).filter(lambda name: not name.startswith("amq."))
exchange_kinds = st.sampled_from(["direct", "fanout", "topic", "headers", "x-random"])
exchanges = st.builds(
    DeclareExchange,
    *(st.just(1), declared_names, exchange_kinds, st.just(value=False)),
    *(st.booleans(), st.booleans(), st.booleans(), tables),
)
queues = st.builds(
    DeclareQueue,
    *(st.just(1), st.just(1), declared_names, st.just(value=False)),
    *(st.booleans(), st.just(value=False), st.booleans(), st.just(value=False), tables),
)
KEYS = st.text(max_size=8)


@given(st.data(), st.lists(exchanges, max_size=3), st.lists(queues, max_size=3))
def test_any_topology_is_the_same_after_export_and_import(
    data: st.DataObject, new_exchanges: list[DeclareExchange], new_queues: list[DeclareQueue]
) -> None:
    """Also if arguments hold octets that are not UTF-8, or values that JSON lacks. A second import adds nothing."""
    node = Node(MachineManagement())
    node.management.make(*new_exchanges, *new_queues)
    vhost = node.management.machine.vhosts["/"]
    sources = st.sampled_from(sorted(set(vhost.exchanges) - {""}))
    if vhost.queues:
        to_queue = st.builds(
            BindQueue, *map(st.just, (1, 1)), st.sampled_from(sorted(vhost.queues)), sources, KEYS, tables
        )
        node.management.make(*data.draw(st.lists(to_queue, max_size=4)))
    to_exchange = st.builds(BindExchange, st.just(1), sources, sources, KEYS, tables)
    node.management.make(*data.draw(st.lists(to_exchange, max_size=4)))
    written, other = export(node), Node(MachineManagement())
    for _ in range(2):
        assert other.api("definitions", "POST", json=written).status == 204
        assert topology(other) == topology(node)
    assert export(other) == written


def topology(node: Machine) -> list[str]:
    """Return all queues, exchanges and bindings; values of arguments with their types."""
    management, found = node.management, list[str]()
    found += (repr(each[:8]) for each in management.catalog.exchanges(None))
    found += (
        repr((each.vhost, each.name, each.type, each.durable, each.auto_delete, each.arguments))
        for each in management.queues.all(None)
    )
    found += map(repr, management.catalog.bindings(None))
    return sorted(found)


def test_octets_of_names_are_kept_by_export_and_import(node: Machine) -> None:
    node.management.make(DeclareQueue(1, 1, "q", False, True, False, False, False, {}))
    for name in ("caf\udce9", "caf\udcea"):
        node.management.make(BindQueue(1, 1, "q", "amq.headers", "", {name: b"\xe9"}))
    written = export(node)
    assert [row["arguments"] for row in written["bindings"]] == [{"caf\ufffd": "\ufffd"}] * 2
    assert len({row["arguments_base64"] for row in written["bindings"]}) == 2
    assert "arguments_base64" not in written["queues"][0]
    other = Node(MachineManagement())
    assert other.api("definitions", "POST", json=written).status == 204
    assert topology(other) == topology(node)


@pytest.mark.parametrize(
    ("arguments", "encoded", "reason"),
    [
        ({}, "AAAAAA", "arguments_base64 should be a field table of AMQP in base64"),
        ({}, "AAAAAQ==", "arguments_base64 should be a field table of AMQP in base64"),
        ({}, 7, "arguments_base64 should be a string"),
        ({"a": 1}, "AAAAAA==", "arguments and arguments_base64 differ"),
        ({}, "", "arguments_base64 should be a field table of AMQP in base64"),
    ],
)
def test_wrong_encoded_arguments_are_refused(
    node: Machine, arguments: dict[str, Any], encoded: Any, reason: str
) -> None:
    body = {"queues": [{"name": "q", "vhost": "/", "arguments": arguments, "arguments_base64": encoded}]}
    answer = node.api("definitions", "POST", json=body)
    assert (answer.status, reason in answer.json["reason"]) == (400, True)


def test_arguments_of_the_largest_size_are_imported_again(node: Machine) -> None:
    """Each octet of them is six characters of JSON."""
    name, key = "\1" * 255, "\1" * 255
    arguments = {"\udcff": b"\xff" * (limits.ARGUMENTS_BYTES_MAX - 2 * limits.VALUE_BYTES)}
    while limits.table_bytes(arguments) > limits.ARGUMENTS_BYTES_MAX:
        arguments = {name: value[:-1] for name, value in arguments.items()}
    node.management.make(
        DeclareExchange(1, name, "headers", False, True, False, False, {}),
        BindExchange(1, name, name, key, arguments),
    )
    written, other = export(node), Node(MachineManagement())
    assert len(written["bindings"]) == 1
    assert other.api("definitions", "POST", json=written).status == 204
    assert topology(other) == topology(node)


def test_export_collects_lists_in_slices(node: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(node)
    sliced: list[dict[str, Any]] = []
    slice_of = requests._slice

    def counted(documents: Iterator[Mapping[str, Any] | None]) -> list[Mapping[str, Any] | None]:
        part = slice_of(documents)
        assert len(part) <= requests.DOCUMENTS_PER_SLICE
        sliced.extend(dict(each) for each in part if each is not None)
        return part

    monkeypatch.setattr(requests, "_slice", counted)
    written = export(node)
    of_one = ("global_parameters",)
    for name, rows in written.items():
        if isinstance(rows, list) and name not in of_one:
            assert rows
            assert all(row in sliced for row in rows), name


def test_export_counts_skipped_objects_in_its_slices(node: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exclusive queues, and the bindings of the default exchange and of exclusive queues, are not written."""
    management, count = node.management, 3 * requests.DOCUMENTS_PER_SLICE
    for number in range(count):
        management.make(
            DeclareQueue(1, 1, f"q{number}", False, False, True, False, False, {}),
            BindQueue(1, 1, f"q{number}", "amq.direct", "k", {}),
        )
    visited = {"queues": 0, "bindings": 0}
    begun: list[tuple[int, ...]] = [(0, 0)]
    for name, part, method in (
        ("queues", management.queues, "all"),
        ("bindings", management.catalog, "bindings"),
    ):
        things = getattr(part, method)

        def counted(vhost: str | None, things: Any = things, name: str = name) -> Iterator[Any]:
            for each in things(vhost):
                visited[name] += 1
                yield each

        monkeypatch.setattr(part, method, counted)
    next_slice = requests.next_slice

    async def recorded() -> None:
        begun.append(tuple(visited.values()))
        await next_slice()

    monkeypatch.setattr(requests, "next_slice", recorded)
    written = export(node)
    assert (written["queues"], written["bindings"]) == ([], [])
    assert visited == {"queues": count, "bindings": 2 * count}
    steps = [sum(after) - sum(before) for before, after in pairwise(begun)]
    assert max(steps) <= requests.DOCUMENTS_PER_SLICE


def test_export_is_a_consistent_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """During concurrent changes: a binding whose queue is missing could not be imported anywhere."""
    next_slice, slices, changed_in = requests.next_slice, 0, 0

    async def changing() -> None:
        nonlocal slices
        slices += 1
        if slices == changed_in:
            node.management.make(
                DeleteVhost("v"),
                DeleteUser("ann"),
                PutGlobalParameter("g", "1"),
                PutVhost("w", "", [], ""),
                DeleteQueue(1, 1, "q", False, False),
                DeclareExchange(1, "y", "topic", False, True, False, False, {}),
                BindExchange(1, "y", "amq.topic", "k", {}),
            )
        await next_slice()

    monkeypatch.setattr(requests, "next_slice", changing)
    node = Node(MachineManagement())
    fill(node)
    export(node)
    for number in range(1, slices + 1):
        node, changed_in = Node(MachineManagement()), 0
        fill(node)
        before = export(node)
        slices, changed_in = 0, number
        assert export(node) == before
        assert export(node) != before


def test_export_has_the_fields_of_rabbitmq(node: Machine) -> None:
    fill(node)
    written = export(node)
    assert set(RABBITMQ) == set(written)
    assert (written["rabbit_version"], written["rabbitmq_version"]) == ("4.0.0", "4.0.0")
    assert written["rabbitmq_definition_format"] == "cluster"
    for category, rows in RABBITMQ.items():
        if isinstance(rows, list) and category != "global_parameters":
            assert {key for row in written[category] for key in row} <= (
                {key for row in rows for key in row} | {"internal"}
            )
    assert names(written["queues"]) == ["q"]  # "mine" goes with its connection
    assert names(written["exchanges"]) == ["x"]
    assert [row["destination"] for row in written["bindings"]] == ["q", "x"]
    assert [row["component"] for row in written["parameters"]] == ["vhost-limits", "operator_policy"]
    assert names(written["users"]) == ["ann", "guest", "nobody", "old"]
    metadata = {"description": "a description", "tags": ["t"], "default_queue_type": "quorum"}
    assert written["vhosts"][1] == {
        "name": "v",
        "limits": {"max-queues": 9},
        "metadata": metadata,
        **metadata,
    }


def test_export_of_a_virtual_host_is_imported_under_a_new_name(node: Machine) -> None:
    node.api("definitions", "POST", json=RABBITMQ)
    written = export(node, "definitions/v")
    assert written["rabbitmq_definition_format"] == "single_virtual_host"
    assert not [row for rows in written.values() if isinstance(rows, list) for row in rows if "vhost" in row]
    assert "users" not in written
    node.api("vhosts/w", "PUT")
    assert node.api("definitions/w", "POST", json=written).status == 204
    again = export(node, "definitions/w")
    lists = [category for category, rows in written.items() if isinstance(rows, list)]
    assert {category: again[category] for category in lists} == {
        category: written[category] for category in lists
    }
    answer = node.api("definitions", "POST", json=written)
    assert (answer.status, "no vhost: definitions of a single virtual host" in answer.json["reason"]) == (
        400,
        True,
    )
    assert node.api("definitions/nothing", "POST", json=written).status == 404


BINDING = {"source": "amq.topic", "vhost": "v", "destination": "q", "destination_type": "queue"}
POLICY = {"vhost": "/", "pattern": "x", "definition": {"max-length": 1}}


@pytest.mark.parametrize(
    ("category", "row", "reason"),
    [
        ("users", {"name": "bob"}, "users[0] (name 'bob'): tags_not_present"),
        ("users", {"tags": ""}, "users[0]: key_missing: name"),
        ("users", 7, "users[0] should be a map"),
        (
            "vhosts",
            {"name": "w", "default_queue_type": "x"},
            "vhosts[0] (name 'w'): x is not a valid queue type",
        ),
        ("vhosts", {"name": ""}, "vhosts[0] (name ''): a virtual host has to have a name"),
        (
            "permissions",
            {"user": "bob", "vhost": "/", "configure": "", "write": "", "read": ""},
            "permissions[0] (user 'bob'): user 'bob' not found",
        ),
        (
            "permissions",
            {"user": "guest", "vhost": "w", "configure": "", "write": "", "read": ""},
            "permissions[0] (user 'guest'): vhost 'w' not found",
        ),
        ("topic_permissions", {"user": "guest", "vhost": "/"}, "key_missing: exchange"),
        (
            "policies",
            {"name": "p", "vhost": "/", "pattern": "(", "definition": {}},
            "policies[0] (name 'p'): Validation",
        ),
        (
            "parameters",
            {"name": "limits", "component": "vhost-limits", "vhost": "/", "value": {"x": 1}},
            "parameters[0]",
        ),
        ("queues", {"name": "q", "vhost": "w"}, "queues[0] (name 'q'): vhost 'w' not found"),
        (
            "queues",
            {"name": "q", "vhost": "/", "arguments": {"x": 2**64}},
            "queues[0] (name 'q'): arguments: a number in a field table is out of range",
        ),
        ("queues", {"vhost": "/"}, "queues[0]: key_missing: name"),
        ("queues", {"vhost": "/", "name": "\r\n"}, "a queue has to have a name"),
        ("policies", {**POLICY, "name": ""}, "policies[0] (name ''): a policy has to have a name"),
        (
            "bindings",
            {"source": "amq.topic", "vhost": "/", "destination": "", "destination_type": "queue"},
            "bindings[0] (source 'amq.topic'): a queue has to have a name",
        ),
        (
            "exchanges",
            {"name": "x", "vhost": "/", "durable": 5},
            "exchanges[0] (name 'x'): durable should be",
        ),
        (
            "bindings",
            {"source": "x", "vhost": "/", "destination": "q"},
            "bindings[0] (source 'x'): key_missing",
        ),
        (
            "bindings",
            {"source": "x", "vhost": "/", "destination": "q", "destination_type": "z"},
            "destination_type should be queue or exchange, actually was z",
        ),
        ("global_parameters", {"name": "publisher-deduplication", "value": {"limit": -1}}, "'limit' must be"),
        (
            "queues",
            {"name": "q", "vhost": "v", "type": "quorum", "arguments": {"x-max-length": -1}},
            "queue 'q' in vhost 'v': invalid arg 'x-max-length' for queue 'q'",
        ),
        (
            "queues",
            {"name": "q", "vhost": "v", "arguments": {"x-max-length": "a"}},
            "queue 'q' in vhost 'v': invalid arg 'x-max-length' for queue 'q'",
        ),
        ("queues", {"name": "q", "vhost": "/", "arguments": {"x-queue-type": "stream"}}, "x-queue-type"),
        ("exchanges", {"name": "x", "vhost": "v", "type": "x-recent-history"}, "x-recent-history"),
        ("bindings", BINDING, "no queue 'q' in vhost 'v'"),
        ("bindings", {**BINDING, "source": "x"}, "no exchange 'x' in vhost 'v'"),
        ("bindings", {**BINDING, "destination_type": "exchange"}, "no exchange 'q' in vhost 'v'"),
    ],
)
def test_invalid_definition_is_named_and_import_has_no_effect(
    node: Machine, category: str, row: Any, reason: str
) -> None:
    body = {"users": [{"name": "ann", "tags": ""}], "vhosts": [{"name": "v"}]} | {category: [row]}
    answer = node.api("definitions", "POST", json=body)
    assert (answer.status, answer.json["error"]) == (400, "bad_request")
    assert reason in answer.json["reason"]
    assert "nothing is imported" in answer.json["reason"]
    assert node.management.changes.applied == []


@pytest.mark.parametrize(
    "body",
    [
        *(
            b" ",
            b"null",
            b"x",
            b"[]",
            b"{",
            b'{"a"',
            b'{"a":',
            b'{"a":1',
            b'{"a":1,}',
            b'{"a":1} x',
            b"{1:1}",
            b'{"a" 1}',
        ),
        *(
            b'{"a":[',
            b'{"a":[1',
            b'{"a":[1,',
            b'{"a":[1,]}',
            b'{"a":[1 2]}',
            b'{"a":["\\ud800"]}',
            b"\xff",
            b"[" * 10_000,
        ),
        *(
            b'{"a":' + b"[" * 10_000,
            b'{"users": {"name": 1}}',
            b'{"queues": "x"}',
            b'{"a":' + b"9" * 5000 + b"}",
        ),
    ],
)
def test_malformed_definitions_document_is_400(node: Machine, body: bytes) -> None:
    assert node.api("definitions", "POST", data=body).status == 400
    assert node.management.changes.applied == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(
    body=st.dictionaries(st.text(), json_values),
    indent=st.sampled_from([None, 0, 3]),
    ascii_only=st.booleans(),
)
def test_large_object_is_read_like_a_small_object(
    body: dict[str, Any], indent: int | None, *, ascii_only: bool
) -> None:
    raw = json.dumps(body, indent=indent, ensure_ascii=ascii_only).encode()
    for octets in (raw, b"\xef\xbb\xbf " + raw + b" \r\n"):
        read = asyncio.run(read_large_object(octets))
        assert {
            name: list(value) if isinstance(value, LargeList) else value for name, value in read.items()
        } == body


async def run_beside(work: Awaitable[object]) -> int:
    """Return the number of passes of a second task meanwhile."""
    turns, task = 0, asyncio.ensure_future(work)
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    await task
    return turns


@pytest.mark.parametrize("value", ["0", "[]", "[0,0,0]"])
def test_reading_a_large_document_yields_to_further_tasks(value: str) -> None:
    raw = ("{" + ",".join(f'"{number}": {value}' for number in range(10_000)) + "}").encode()
    assert asyncio.run(run_beside(read_large_object(raw))) > 10


@pytest.mark.parametrize("value", [[0] * 70_000, {str(number): 0 for number in range(20_000)}, "x" * 140_000])
def test_a_value_that_would_take_long_to_read_is_refused(node: Machine, value: Any) -> None:
    answer = node.api("definitions", "POST", json={"x": [value]})
    assert answer.status == 400
    assert "longer than 131072 characters" in answer.json["reason"]


@pytest.mark.parametrize("length", [10, 2047, 2048, 2049, 4000])
def test_long_number_is_read_whole_across_pieces(length: int) -> None:
    number = "1" * length
    assert asyncio.run(read_large_object(f'{{"a":{number} }}'.encode())) == {"a": int(number)}


def test_document_of_any_size_takes_little_memory(node: Machine) -> None:
    """An import of 20 MiB with 40,000 bindings takes a fraction of its size, because its objects are read in turn."""
    row = {"source": "amq.direct", "vhost": "/", "destination": "q", "destination_type": "queue"}
    queue = {"name": "q", "vhost": "/", "arguments": {"x-queue-type": "classic"}}
    pad = {"pad": "x" * 400}
    bindings = [row | {"routing_key": str(number % 100), "arguments": pad} for number in range(40_000)]
    raw = json.dumps({"queues": [queue], "bindings": bindings}).encode()
    assert len(raw) > 20_000_000
    tracemalloc.start()
    try:
        answer = node.api("definitions", "POST", data=io.BytesIO(raw))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.status == 204, answer.text
    assert len(node.management.machine.vhosts["/"].bindings) == 100
    assert most < 2 * len(raw), most


def test_failed_import_names_the_object_and_imported_counts(node: Machine) -> None:
    body = {
        "vhosts": [{"name": "v", "default_queue_type": "quorum"}],
        "queues": [
            {"name": "a", "vhost": "v"},
            {"name": "b", "vhost": "v", "arguments": {"x-queue-mode": "lazy"}},
            {"name": "c", "vhost": "v"},
        ],
    }
    answer = node.api("definitions", "POST", json=body)
    assert answer.status == 400
    assert answer.json["reason"].startswith(
        "queue 'b' in vhost 'v': invalid arg 'x-queue-mode' for queue 'b'"
    )
    assert answer.json["reason"].endswith("; imported before: 1 vhosts, 1 queues")
    assert list(node.management.machine.vhosts["v"].queues) == ["a"]
    assert list(node.management.machine.catalog.connections) == []


def test_binding_to_a_missing_queue_is_named(node: Machine) -> None:
    row = {"source": "amq.topic", "vhost": "/", "destination": "q", "destination_type": "queue"}
    answer = node.api("definitions", "POST", json={"bindings": [row]})
    assert answer.status == 400
    assert answer.json["reason"].startswith("binding of exchange 'amq.topic' to queue 'q' in vhost '/'")
    assert "no queue 'q' in vhost '/'" in answer.json["reason"]


def test_import_needs_permissions_in_the_virtual_host(node: Machine) -> None:
    node.management.make(PutVhost("v", "", [], ""))
    body: dict[str, Any] = {"queues": [{"name": "a", "vhost": "v"}], "users": [{"name": "ann", "tags": ""}]}
    answer = node.api("definitions", "POST", json=body)
    assert (answer.status, "user 'guest' needs permissions in vhost 'v'" in answer.json["reason"]) == (
        400,
        True,
    )
    assert node.management.changes.applied == []
    body["permissions"] = [{"user": "guest", "vhost": "v", "configure": "", "write": "", "read": ""}]
    assert node.api("definitions", "POST", json=body).status == 204
    assert list(node.management.machine.vhosts["v"].queues) == ["a"]


def test_many_objects_are_taken_over_in_parts(node: Machine) -> None:
    body: dict[str, list[Any]] = {
        "users": [{"name": f"u{number}", "tags": ""} for number in range(250)],
        "queues": [{"name": f"q{number}", "vhost": "/", "arguments": {}} for number in range(250)],
    }
    assert len(json.dumps(body)) < 64 * 1024
    body["users"][0]["comment"] = "x" * 100_000  # more than other requests may have
    assert node.api("definitions", "POST", json=body).status == 204
    assert len(node.management.machine.vhosts["/"].queues) == 250
    assert len(node.management.machine.users) == 251
    assert len(export(node)["queues"]) == 250


def test_a_document_that_is_too_large_is_413(node: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "DEFINITIONS_BYTES_MAX", 2**20)
    answer = node.api("definitions", "POST", data=io.BytesIO(b" " * (2**20 + 1)))
    assert (answer.status, answer.json["reason"]) == (413, "the body is larger than 1048576 octets")


def test_interrupted_import_reports_its_progress(node: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def declare(*_: Any) -> None:
        raise Unavailable("no majority")

    monkeypatch.setattr(node.management.operations, "declare", declare)
    body = {"users": [{"name": "ann", "tags": ""}], "queues": [{"name": "q", "vhost": "/"}]}
    answer = node.api("definitions", "POST", json=body)
    assert answer.status == 503
    assert answer.json["reason"] == (
        "queue 'q' in vhost '/', or one after it: no majority; imported before: 1 users"
    )


@pytest.mark.parametrize("done", [0, 1, 2])
def test_deleted_virtual_host_during_an_import_is_reported(
    node: Machine, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    async def declare(*_: Any) -> None:
        raise RequestRefused(530, "vhost '/' is deleted", done)

    monkeypatch.setattr(node.management.operations, "declare", declare)
    body = {"users": [{"name": "ann", "tags": ""}], "queues": queues(2)}
    answer = node.api("definitions", "POST", json=body)
    assert answer.status == 400
    assert "vhost '/' is deleted; imported before: 1 users" in answer.json["reason"]


def test_limit_reached_during_an_import_is_reported(node: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    change = node.management.changes.apply

    async def change_some(*changes: Any) -> None:
        if isinstance(changes[0], PutPolicy):
            raise RequestRefused(406, "limit max-policies (1) of vhost '/' is reached")
        await change(*changes)

    monkeypatch.setattr(node.management.changes, "apply", change_some)
    body = {"users": [{"name": "ann", "tags": ""}], "policies": [{**POLICY, "name": "p"}]}
    answer = node.api("definitions", "POST", json=body)
    assert answer.status == 400
    assert answer.json["reason"] == (
        "policy 'p' in vhost '/', or one after it: limit max-policies (1) of vhost '/' is reached; "
        "imported before: 1 users"
    )


def test_names_with_equal_descriptions_are_distinct(node: Machine) -> None:
    names = [("b", "x' in vhost 'a"), ("a' in vhost 'b", "x")]
    body = {
        "vhosts": [{"name": vhost} for vhost, _ in names],
        "queues": [{"vhost": vhost, "name": name} for vhost, name in names],
    }
    assert node.api("definitions", "POST", json=body).status == 204
    assert [list(node.management.machine.vhosts[vhost].queues) for vhost, _ in names] == [
        [name] for _, name in names
    ]


def test_line_ends_are_no_part_of_names_as_with_amqp(node: Machine) -> None:
    """Existing objects are found under the normalized name, and two equal names are one."""
    node.management.make(DeclareExchange(1, "x", "direct", False, True, False, False, {}))
    body = {
        "exchanges": [{"name": "x\n", "type": "topic", "vhost": "/"}, {"name": "\namq.x", "vhost": "/"}],
        "queues": [
            {"name": "q", "durable": False, "vhost": "/"},
            {"name": "q\r", "durable": True, "vhost": "/"},
            {"name": "\namq.q", "vhost": "/"},
        ],
        "bindings": [{"source": "x\n", "vhost": "/", "destination": "q\n", "destination_type": "queue"}],
    }
    answer = node.api("definitions", "POST", json=body)
    assert [each["object"] for each in answer.json["left_out"]] == ["exchange 'amq.x' in vhost '/'"]
    vhost = node.management.machine.vhosts["/"]
    queues = [(each.name, each.durable) for each in vhost.queues.values()]
    assert queues == [("q", True), ("amq.q", True)]
    assert len(vhost.bindings) == 1


def test_cost_per_virtual_host_does_not_depend_on_their_number(
    node: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[str] = []

    def count(name: str) -> None:
        read = getattr(node.management.catalog, name)

        def counted() -> Any:
            requested.append(name)
            return read()

        monkeypatch.setattr(node.management.catalog, name, counted)

    count("vhosts")
    count("users")
    body = {"vhosts": [{"name": f"v{number}"} for number in range(50)]}
    assert node.api("definitions", "POST", json=body).status == 204
    assert len(requested) < 10


@pytest.mark.parametrize(
    ("queue", "reason"),
    [
        ({"name": "q", "type": "quorum", "durable": False}, "invalid property 'non-durable'"),
        ({"name": "q", "arguments": {"x-queue-type": "quorum"}, "auto_delete": True}, "'auto-delete'"),
        ({"name": "amq.rabbitmq.reply-to"}, "consumers of direct replies"),
        ({"name": "amq.rabbitmq.reply-to.a"}, "consumers of direct replies"),
    ],
)
def test_queues_that_rabbitmq_leaves_out_are_named(node: Machine, queue: dict[str, Any], reason: str) -> None:
    answer = node.api(
        "definitions", "POST", json={"queues": [{"vhost": "/", **queue}, {"vhost": "/", "name": "r"}]}
    )
    [left_out] = answer.json["left_out"]
    assert left_out["object"] == f"queue '{queue['name']}' in vhost '/'"
    assert reason in left_out["reason"]
    assert list(node.management.machine.vhosts["/"].queues) == ["r"]


def test_queue_of_undefined_type_is_classic(node: Machine) -> None:
    """As some definitions of RabbitMQ 3.11 and 3.12 have it."""
    queue = {"vhost": "/", "name": "q", "arguments": {"x-queue-type": "undefined"}}
    assert node.api("definitions", "POST", json={"queues": [queue]}).status == 204
    assert node.management.machine.vhosts["/"].queues["q"].kind == "classic"


def test_definitions_are_imported_from_a_form(node: Machine) -> None:
    """As `curl -F file=@definitions.json` and RabbitMQ's page send it."""
    form = FormData({"note": "x"})
    form.add_field("file", json.dumps(RABBITMQ), filename="d.json", content_type="application/json")
    assert node.api("definitions", "POST", data=form).status == 200
    assert list(node.management.machine.catalog.vhosts["v"].queues) == ["q", "c", "amq.gen-1"]


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"x", b"--b", b"--b\r\n", b"--b--", b"--b\r\n\r\n{}\r\n--b--", b"--b\r\nx\r\n\r\n"),
        b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\n{}',
        b'--b\r\ncontent-disposition: form-data; name="_charset_"\r\n\r\n' + b"x" * 40 + b"\r\n--b--",
        b"x" * 1_000_000,
    ],
)
def test_malformed_form_is_400(node: Machine, body: bytes) -> None:
    headers = GUEST | {"Content-Type": "multipart/form-data; boundary=b"}
    assert node.request("/api/definitions", "POST", data=body, headers=headers).status == 400


def test_imports_run_in_sequence(node: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, most = 0, 0
    change = node.management.changes.apply

    async def slowly(*changes: Any) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.05)
        await change(*changes)
        under_way -= 1

    monkeypatch.setattr(node.management.changes, "apply", slowly)

    async def story(client: Client) -> list[int]:
        documents = [{"users": [{"name": f"u{number}", "tags": ""}]} for number in range(5)]
        posts = [answer(client, "/api/definitions", "POST", json=each, headers=GUEST) for each in documents]
        return [each.status for each in await asyncio.gather(*posts)]

    assert node.run(story) == [204] * 5
    assert most == 1
    assert len(node.management.machine.users) == 6


def test_slow_upload_of_definitions_holds_up_no_import(node: Machine) -> None:
    async def story(client: Client) -> list[int]:
        received, sent = asyncio.Event(), asyncio.Event()

        async def slow_body() -> AsyncIterator[bytes]:
            yield b"{"
            received.set()
            await sent.wait()
            yield b"}"

        slow = asyncio.ensure_future(
            answer(client, "/api/definitions", "POST", data=slow_body(), headers=GUEST)
        )
        await received.wait()
        await asyncio.sleep(0.05)
        document = {"users": [{"name": "quick", "tags": ""}]}
        async with asyncio.timeout(5):
            quick = await answer(client, "/api/definitions", "POST", json=document, headers=GUEST)
        sent.set()
        return [quick.status, (await slow).status]

    assert node.run(story) == [204, 204]


def test_later_duplicate_in_a_document_wins(node: Machine) -> None:
    users = [{"name": "ann", "tags": tag} for tag in ("a", "b")]
    assert node.api("definitions", "POST", json={"users": users}).status == 204
    assert node.management.machine.users["ann"].tags == ["b"]


# --- limits


def queues(count: int) -> list[dict[str, Any]]:
    return [{"name": f"q{number}", "vhost": "/"} for number in range(count)]


def bindings(count: int) -> list[dict[str, Any]]:
    ends = {"vhost": "/", "source": "amq.direct", "destination": "amq.fanout", "destination_type": "exchange"}
    return [{**ends, "routing_key": f"k{number}", "arguments": {}} for number in range(count)]


def limited(**limits: int) -> dict[str, Any]:
    value = {name.replace("_", "-"): limit for name, limit in limits.items()}
    return {"name": "limits", "component": "vhost-limits", "vhost": "/", "value": value}


TOO_MUCH: dict[str, tuple[str, int, dict[str, Any]]] = {
    "queues": ("max-queues", 2, {"queues": queues(3)}),
    "exchanges": (
        "max-exchanges",
        8,
        {"exchanges": [{"name": name, "vhost": "/", "type": "direct"} for name in "ab"]},
    ),
    "bindings": ("max-bindings", 2, {"bindings": bindings(3)}),
    "bindings-of-exchange": ("max-bindings-per-exchange", 2, {"bindings": bindings(3)}),
    "bindings-to-destination": ("max-bindings-per-queue", 2, {"bindings": bindings(3)}),
    "policies": ("max-policies", 1, {"policies": [{**POLICY, "name": name} for name in "ab"]}),
    "arguments": (
        "max-argument-bytes",
        500,
        {"queues": [{**each, "arguments": {"x": "y" * 200}} for each in queues(2)]},
    ),
}


@pytest.mark.parametrize(("name", "limit", "document"), TOO_MUCH.values(), ids=list(TOO_MUCH))
def test_document_above_a_limit_in_total_has_no_effect(
    node: Machine, name: str, limit: int, document: dict[str, Any]
) -> None:
    node.management.make(SetVhostLimits("/", {name: limit}))
    before = node.management.machine.digest()
    whole = {**document, "users": [{"name": "ann", "tags": ""}]}
    answer = node.api("definitions", "POST", json=whole)
    assert answer.status == 400
    assert f"limit {name} ({limit}) of " in answer.json["reason"]
    assert answer.json["reason"].endswith("would be exceeded; nothing is imported")
    assert node.management.machine.digest() == before
    node.management.make(SetVhostLimits("/", {}))
    assert node.api("definitions", "POST", json=whole).status == 204
    node.management.make(SetVhostLimits("/", {name: limit}))
    assert node.api("definitions", "POST", json=whole).status == 204  # it is there already


def test_document_above_a_cluster_limit_is_refused(node: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "USERS_MAX", 2)
    answer = node.api("definitions", "POST", json={"users": [{"name": name, "tags": ""} for name in "ab"]})
    assert (answer.status, "limit max-users (2) of the cluster" in answer.json["reason"]) == (400, True)
    assert node.management.changes.applied == []


def test_higher_limit_in_a_document_applies_to_its_import(node: Machine) -> None:
    node.management.make(SetVhostLimits("/", {"max-queues": 1, "max-bindings": 5}))
    document = {
        "queues": queues(3),
        "parameters": [limited(max_queues=3, max_bindings=1)],
        "bindings": bindings(2),
    }
    assert node.api("definitions", "POST", json=document).status == 204
    vhost = node.management.machine.vhosts["/"]
    assert (len(vhost.queues), len(vhost.bindings)) == (3, 2)
    assert vhost.limits == {"max-queues": 3, "max-bindings": 1}
    answer = node.api(
        "definitions", "POST", json={"queues": queues(5), "parameters": [limited(max_queues=4)]}
    )
    assert (answer.status, "limit max-queues (4) of vhost '/'" in answer.json["reason"]) == (400, True)
    assert vhost.limits == {"max-queues": 3, "max-bindings": 1}


def test_a_new_virtual_host_has_the_defaults(node: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(limits._DEFAULTS, "max-queues", 2)
    rows = [{**row, "vhost": "new"} for row in queues(3)]
    answer = node.api("definitions", "POST", json={"vhosts": [{"name": "new"}], "queues": rows})
    assert (answer.status, "limit max-queues (2) of vhost 'new'" in answer.json["reason"]) == (400, True)
    assert list(node.management.machine.vhosts) == ["/"]
    assert (
        node.api("definitions", "POST", json={"vhosts": [{"name": "new"}], "queues": rows[:2]}).status == 204
    )


@pytest.mark.parametrize(("path", "method"), [("definitions/%2F", "POST"), ("queues/%2F/q", "PUT")])
def test_octets_of_names_wait_for_their_version(
    node: Machine, monkeypatch: pytest.MonkeyPatch, path: str, method: str
) -> None:
    """Nodes of the last release could not match them."""
    monkeypatch.setattr(changes, "OCTETS_SINCE", VERSIONS[1] + 1)
    queue = {"name": "q", "arguments_base64": base64.b64encode(encode_table({"\udce9": 1})).decode()}
    answer = node.api(path, method, json={"queues": [queue]} if method == "POST" else queue)
    assert (answer.status, "octets that are not UTF-8 need version" in answer.json["reason"]) == (400, True)
    assert not node.management.machine.vhosts["/"].queues
