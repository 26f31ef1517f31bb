"""Requests and answers of the management node as values, for any input."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qq.amqp10.composites import encode_composite
from qq.amqp10.conditions import ConditionError
from qq.amqp10.sections import MessageProperties
from qq.amqp10.values import Described, Float, Long, Symbol, Timestamp, ULong, Value, encode
from qq.amqp10_server.management_answers import ManagementAnswer, bindings_body, encode_answer
from qq.amqp10_server.management_requests import (
    BindingDeletion,
    BindingEnds,
    BindingsQuery,
    ManagementRefused,
    QueueDeclaration,
    QueueDeletion,
    QueuePurge,
    RequestEnvelope,
    TokenRenewal,
    open_envelope,
    read_request,
)
from qq.machine.catalog.vhost import arguments_hash
from qq.machine.protocol.codec import pack
from qq.routing.routers import Binding, Destination, DestinationKind
from qq.stored.exact_tables import encode_table, read_table
from qq.tables import InvalidTable, check_table
from tests.amqp10.amqp10_values import values
from tests.harness.any_tables import tables

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=60)
METHODS = st.sampled_from(["GET", "PUT", "POST", "DELETE", "PATCH"])
PATHS = st.sampled_from(
    [
        "/queues/q",
        "/queues/q/messages",
        "/exchanges/x",
        "/bindings",
        "/bindings/src=a;dstq=b;key=;args=",
        "/auth/tokens",
    ]
)


def refusal_of(method: str, target: str, body: Value) -> ManagementRefused | None:
    try:
        read(method, target, body)
    except ManagementRefused as refused:
        return refused
    return None


def read(method: str, target: str, body: Value = None) -> Any:
    return read_request(RequestEnvelope(None, method, target, body))


@given(NAMES)
def test_name_of_a_queue_survives_its_path(name: str) -> None:
    path = f"/queues/{quote(name, safe='')}"
    assert read("DELETE", path) == QueueDeletion(name)
    assert read("DELETE", f"{path}/messages") == QueuePurge(name)


@given(NAMES, st.sampled_from(DestinationKind), NAMES, NAMES, st.dictionaries(st.text("ab"), st.text("cd")))
def test_location_of_a_binding_is_its_path(
    source: str, kind: DestinationKind, name: str, key: str, arguments: dict[str, str]
) -> None:
    ends = BindingEnds(source, Destination(kind, name), key)
    binding = Binding(*ends, pack(arguments) if arguments else b"")
    body: Any = bindings_body([binding])
    assert read("DELETE", body[0]["location"]) == BindingDeletion(ends, arguments_hash(binding))
    destination = "dste" if kind is DestinationKind.EXCHANGE else "dstq"
    query = "&".join(
        f"{field}={quote(value, safe='')}"
        for field, value in (("src", source), (destination, name), ("key", key))
    )
    assert read("GET", f"/bindings?{query}") == BindingsQuery(ends)


@given(METHODS, PATHS | st.text(), values)
def test_any_request_is_read_or_refused(method: str, target: str, body: Value) -> None:
    refused = refusal_of(method, target, body)
    if refused is not None:
        assert refused.status in {400, 403, 404}
        assert encode_answer(None, ManagementAnswer(refused.status, refused.text))


@given(st.dictionaries(st.text(max_size=20), values, max_size=3))
@example({"before 1970": Timestamp(-1000)})
def test_arguments_become_a_table_or_are_refused(arguments: dict[Any, Any]) -> None:
    """A table that the log can hold can also be in definitions."""
    refused = refusal_of("PUT", "/queues/q", {"arguments": arguments})
    if refused is not None:
        assert refused.text.startswith("unsupported argument")
        return
    table = read("PUT", "/queues/q", {"arguments": arguments}).arguments
    with suppress(InvalidTable):
        check_table(table)
        assert repr(read_table(encode_table(table))) == repr(table)


@given(tables)
def test_arguments_survive_answer_and_request(table: Any) -> None:
    check_table(table)
    binding = Binding("x", Destination(DestinationKind.QUEUE, "q"), "k", pack(table) if table else b"")
    body: Any = bindings_body([binding])
    assert encode(body)


@given(st.binary())
def test_any_message_is_opened_or_a_condition(octets: bytes) -> None:
    try:
        envelope = open_envelope(octets)
    except ConditionError:
        return
    assert isinstance(envelope, RequestEnvelope)


def test_sections_may_have_any_order() -> None:
    properties = encode_composite(MessageProperties("id", subject="GET", to="/queues/q"))
    body = encode(Described(ULong(0x77), None))
    assert open_envelope(body + properties) == open_envelope(properties + body)
    named = encode(Described(Symbol("amqp:amqp-value:*"), "text"))
    assert open_envelope(named).body == "text"


def test_values_have_the_types_of_field_tables() -> None:
    arguments: dict[Any, Any] = {
        "text": "t",
        "symbol": Symbol("s"),
        "number": Long(-3),
        "real": Float(0.5),
        "time": Timestamp(1_500),
        "octets": b"\xff",
        "list": [None, True],
        "map": {Symbol("k"): ULong(1)},
    }
    assert read("PUT", "/queues/q", {"arguments": arguments}) == QueueDeclaration(
        "q",
        True,
        False,
        False,
        {
            "text": "t",
            "symbol": "s",
            "number": -3,
            "real": 0.5,
            "time": dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC),
            "octets": "\udcff",
            "list": [None, True],
            "map": {"k": 1},
        },
    )


def test_token_must_be_binary() -> None:
    assert read("PUT", "/auth/tokens", b"token") == TokenRenewal(b"token")
    with pytest.raises(ManagementRefused):
        read("PUT", "/auth/tokens", "token")


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("PUT", f"/queues/{'n' * 256}", {}),
        ("PUT", f"/exchanges/{'n' * 256}", {}),
        ("POST", "/bindings", {"source": "x", "destination_queue": "q", "binding_key": "é" * 128}),
    ],
)
def test_name_must_fit_into_a_delivery_of_amqp_0_9_1(method: str, target: str, body: Any) -> None:
    refused = refusal_of(method, target, body)
    assert refused is not None
    assert refused.status == 400
    assert "longer than 255 octets" in refused.text
