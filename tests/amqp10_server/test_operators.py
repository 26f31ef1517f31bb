"""What operators see of AMQP 1.0 clients: connections, sessions and links."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

import pytest
from hypothesis import given

from qq.amqp10.performatives import (
    DispositionFrame,
    FlowFrame,
    SenderSettleMode,
    SourceTerminus,
    TargetTerminus,
)
from qq.amqp10.values import Symbol, ULong, Value
from qq.config import NodeLimits
from qq.tables import json_value
from qq.testing import ClusterNode
from tests.amqp10.amqp10_values import values
from tests.amqp10_server.socket_client import SocketClient, data, receiver, sender
from tests.page.demo import api


def sessions_of(node: ClusterNode, container: str) -> list[dict[str, Any]]:
    [name] = [each["name"] for each in api(node, "connections") if each.get("container_id") == container]
    return api(node, f"connections/{quote(name, safe='')}/sessions")


def test_properties_of_a_client_may_have_any_keys(node: ClusterNode) -> None:
    with SocketClient(node.amqp_port) as client:
        client.open(properties={Symbol("x"): {True: ULong(1), ULong(2): None, b"3": "", "y": {None: ""}}})
        [shown] = [each for each in api(node, "connections") if each.get("container_id") == "client"]
    assert shown["client_properties"]["x"] == {"True": 1, "2": None, "b'3'": "", "y": {"None": ""}}


@given(values)
def test_any_value_of_amqp10_is_shown_as_json(value: Value) -> None:
    assert json.dumps(json_value({"x": value}))


def test_operators_see_connections_and_links(client: SocketClient, node: ClusterNode, queue: str) -> None:
    client.attach_sender(f"/queues/{queue}")
    client.attach_receiver(queue)
    client.credit(7, echo=True)
    client.until(FlowFrame)
    connections = {each["container_id"]: each for each in api(node, "connections") if "container_id" in each}
    shown = [connections["client"][name] for name in ("protocol", "channels", "links")]
    assert shown == ["AMQP 1-0", 1, 2]
    links = [each for each in api(node, "channels") if each.get("link_address") == f"/queues/{queue}"]
    shown = {each["link_role"]: (each["link_name"], each["link_credit"]) for each in links}
    assert shown == {"sender": ("sender 0", NodeLimits().link_credit), "receiver": ("receiver 1", 7)}


def test_client_may_name_its_connection(node: ClusterNode) -> None:
    for properties, name in (({Symbol("connection_name"): "mine"}, "mine"), ({}, None)):
        with SocketClient(node.amqp_port) as client:
            client.open(properties=properties)
            names = [each.get("user_provided_name") for each in api(node, "connections")]
            client.close()
        assert name in names


def test_sessions_list_links_with_address_and_credit(
    client: SocketClient, node: ClusterNode, channel: Any, queue: str
) -> None:
    client.attach_sender(f"/queues/{queue}", max_message_size=5)
    client.attach_sender(None, 2, snd_settle_mode=SenderSettleMode.SETTLED)
    client.transfer(0, data(b"first"))
    client.until(DispositionFrame)
    client.attach_receiver(queue, max_message_size=5000)
    client.credit(7)
    client.message()
    client.begin(4, window=50)
    client.credit(0, echo=True)
    client.until(FlowFrame)
    first, second = sessions_of(node, "client")
    assert [link["handle"] for link in first["incoming_links"]] == [0, 2]
    sending, anonymous = first["incoming_links"]
    assert sending == {
        "handle": 0,
        "link_name": "sender 0",
        "target_address": f"/queues/{queue}",
        "snd_settle_mode": "mixed",
        "max_message_size": 16 * 1024 * 1024,
        "delivery_count": 1,
        "credit": NodeLimits().link_credit - 1,
        "unconfirmed_messages": 0,
    }
    assert (anonymous["target_address"], anonymous["snd_settle_mode"]) == (None, "settled")
    assert first["outgoing_links"] == [
        {
            "handle": 1,
            "link_name": "receiver 1",
            "source_address": f"/queues/{queue}",
            "queue_name": queue,
            "send_settled": False,
            "max_message_size": 5000,
            "delivery_count": 1,
            "credit": 0,
            "unsettled_deliveries": 1,
        }
    ]
    windows = {name: value for name, value in first.items() if not name.endswith("_links")}
    assert windows == {
        "channel_number": 0,
        "handle_max": 255,
        "next_incoming_id": 0,
        "incoming_window": NodeLimits().session_incoming_window - 1,
        "next_outgoing_id": 1,
        "remote_incoming_window": 10_000,
        "remote_outgoing_window": 10_000,
        "outgoing_unsettled_deliveries": 1,
    }
    assert (second["channel_number"], second["remote_incoming_window"]) == (4, 50)
    assert second["incoming_links"] == second["outgoing_links"] == []


def test_long_names_of_links_are_cut_off_for_operators(client: SocketClient, node: ClusterNode) -> None:
    client.attach_sender(None, 0, name="x" * 255)
    client.attach_sender(None, 1, name="y" * 100_000)
    [session] = sessions_of(node, "client")
    shown = ["x" * 255, "y" * 255 + "..."]
    assert [link["link_name"] for link in session["incoming_links"]] == shown
    assert {each["link_name"] for each in api(node, "channels") if "link_name" in each} == set(shown)


def test_sessions_list_links_of_the_management_node(client: SocketClient, node: ClusterNode) -> None:
    paired = {
        "snd_settle_mode": SenderSettleMode.SETTLED,
        "properties": {Symbol("paired"): True},
        "name": "pair",
    }
    client.send(sender("/management", 0, source=SourceTerminus("me"), **paired))
    client.send(receiver("/management", 1, target=TargetTerminus("me"), **paired))
    client.credit(3, echo=True)
    client.until(FlowFrame, lambda flow: flow.handle == 1)
    [session] = sessions_of(node, "client")
    [requests], [answers] = session["incoming_links"], session["outgoing_links"]
    assert (requests["target_address"], requests["credit"]) == ("/management", 8)
    shown = [answers[name] for name in ("source_address", "queue_name", "credit", "max_message_size")]
    assert shown == ["/management", "", 3, "unlimited"]


def test_sessions_are_shown_to_their_user_and_to_monitors(client: SocketClient, node: ClusterNode) -> None:
    for name, tags in (("tenant", "management"), ("monitor", "monitoring")):
        api(node, f"users/{name}", "PUT", {"password": name, "tags": tags})
    [name] = [each["name"] for each in api(node, "connections") if each.get("container_id") == "client"]
    path = f"connections/{quote(name, safe='')}/sessions"
    assert [each["channel_number"] for each in api(node, path, user="monitor")] == [0]
    with pytest.raises(HTTPError) as refused:
        api(node, path, user="tenant")
    refused.value.close()
    assert refused.value.code == 401


def test_sessions_of_amqp_091_are_a_bad_request(node: ClusterNode, channel: Any) -> None:
    [name] = {each["name"] for each in api(node, "connections") if each["protocol"] == "AMQP 0-9-1"}
    with pytest.raises(HTTPError) as refused:
        api(node, f"connections/{quote(name, safe='')}/sessions")
    assert refused.value.code == 400
    assert b"does not use AMQP 1.0" in refused.value.read()
