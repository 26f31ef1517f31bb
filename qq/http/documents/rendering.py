"""Rendering of the JSON in answers, in RabbitMQ's format.

Invariant: password hashes appear only in documents of users; passwords never appear.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.http.base.payloads import payload_of
from qq.machine.catalog.limits import in_force
from qq.machine.protocol.queue_types import CLASSIC, QUORUM
from qq.octets import readable
from qq.tables import json_value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pamqp.commands import Basic

    from qq.http.base.login import Operator
    from qq.machine.catalog.permissions import User
    from qq.machine.policy.policies import Policy
    from qq.management.reports.catalog import (
        BindingStatus,
        Deduplication,
        ExchangeStatus,
        MoveStatus,
        VhostStatus,
    )
    from qq.management.reports.clients import Client
    from qq.management.reports.messages import Message
    from qq.management.reports.queues import ConsumerStatus, QueueStatus
    from qq.management.reports.rows import ThingRows

DEDUPLICATION = "publisher-deduplication"
HASHING = "rabbit_password_hashing_"
"""RabbitMQ's prefix for the names of password hashing algorithms."""


def queue_document(queue: QueueStatus) -> dict[str, Any]:
    document = queue._asdict() | {"arguments": json_value(queue.arguments)}
    return dict(without_other_types(document, queue.type, is_exclusive=queue.exclusive))


_ONLY_OF_QUORUM_QUEUES = frozenset({"delivery_limit", "leader", "members", "online"})
_ONLY_OF_CLASSIC_QUEUES = frozenset(
    {
        *("exclusive_consumer_tag", "idle_since", "messages_ready_ram", "messages_unacknowledged_ram"),
        *("messages_paged_out", "message_bytes_paged_out"),
    }
)
_ONLY_OF_EXCLUSIVE_QUEUES = frozenset({"owner_pid_details"})
_ONLY_OF_IDLE_QUEUES = frozenset({"idle_since"})


def without_other_types(document: Mapping[str, Any], kind: str, *, is_exclusive: bool) -> Mapping[str, Any]:
    """Return a queue's document without the fields that RabbitMQ shows only for queues of a different type."""
    hidden = _ONLY_OF_CLASSIC_QUEUES if kind == QUORUM else _ONLY_OF_QUORUM_QUEUES
    if not is_exclusive:
        hidden |= _ONLY_OF_EXCLUSIVE_QUEUES
    if document.get("idle_since") is None:
        hidden |= _ONLY_OF_IDLE_QUEUES
    return {name: value for name, value in document.items() if name not in hidden}


_ONLY_IF_SET = ("policy", "user_who_performed_action")


def without_unset(exchange: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an exchange's document without the fields that RabbitMQ leaves out when they have no value."""
    unset = [name for name in _ONLY_IF_SET if exchange.get(name, "") is None]
    return {name: value for name, value in exchange.items() if name not in unset} if unset else exchange


def fields_of(kind: type[NamedTuple]) -> dict[str, Callable[[Any], Any]]:
    """Return the functions for the fields of an object that has `arguments`, by field name."""
    fields = {name: attrgetter(name) for name in kind._fields}
    return {**fields, "arguments": lambda thing: json_value(thing.arguments)}


def row_fields(rows: ThingRows) -> dict[str, Callable[[Any], Any]]:
    """Return the functions for the fields of these objects, by field name."""
    arguments = rows.fields["arguments"]
    return {**rows.fields, "arguments": lambda thing: json_value(arguments(thing))}


QUEUE_BASICS = (
    *(
        "name",
        "vhost",
        "type",
        "durable",
        "exclusive",
        "auto_delete",
        "arguments",
        "policy",
        "operator_policy",
    ),
    *("effective_policy_definition", "state", "node", "leader", "members", "online"),
)
"""Fields of a queue that are no statistics."""
QUEUE_TOTALS = ("messages", "messages_ready", "messages_unacknowledged")


Channels = Mapping[tuple[str, int], "Client"]
"""Channels by node and id."""


_OF_CONNECTION = ("peer_host", "peer_port", "user_provided_name")


def consumer_document(consumer: ConsumerStatus, channels: Channels) -> dict[str, Any]:
    """Return the document of a consumer. For a consumer of a different node, its channel is looked up in `channels`."""
    details = {name: value for name, value in consumer.channel_details.items() if name != "id"}
    channel = channels.get((details["node"], consumer.channel_details.get("id", 0)))
    if channel is not None:
        connection = channel["connection_details"]
        details |= {
            "name": channel["name"],
            "connection_name": connection["name"],
            "user": channel["user"],
            **{name: connection[name] for name in _OF_CONNECTION if name in connection},
        }
    document = consumer._asdict() | {"channel_details": details, "arguments": json_value(consumer.arguments)}
    if consumer.credit is None:  # rabbitmqadmin v1 cannot make tables of null
        del document["credit"]
    return document


def by_place(channels: Sequence[Client]) -> Channels:
    return {(channel["node"], channel["id"]): channel for channel in channels}


def policy_document(vhost: str, policy: Policy) -> dict[str, Any]:
    return {
        "vhost": vhost,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": policy.definition,
        "priority": policy.priority,
    }


def exchange_document(exchange: ExchangeStatus) -> dict[str, Any]:
    return dict(without_unset(exchange._asdict() | {"arguments": json_value(exchange.arguments)}))


def binding_document(binding: BindingStatus) -> dict[str, Any]:
    return binding._asdict() | {"arguments": json_value(binding.arguments)}


def client_document(client: Client) -> dict[str, Any]:
    """Return the document of a connection or a channel, without its internal id."""
    return {name: value for name, value in client.items() if name != "id"}


def vhost_document(vhost: VhostStatus, states: Mapping[str, str]) -> dict[str, Any]:
    """Return the document of a virtual host; `states` has the state of the virtual hosts at each node."""
    metadata = vhost_metadata(vhost)
    return {
        "name": vhost.name,
        "default_queue_type": CLASSIC,
        **metadata,
        "metadata": metadata,
        "effective_limits": in_force(vhost.limits),
        "cluster_state": dict(states),
        "tracing": False,
        "protected_from_deletion": vhost.is_protected,
    }


def vhost_metadata(vhost: VhostStatus) -> dict[str, Any]:
    metadata: dict[str, Any] = {"description": vhost.description, "tags": vhost.tags}
    if vhost.default_queue_type:
        metadata["default_queue_type"] = vhost.default_queue_type
    if vhost.is_protected:
        metadata["protected_from_deletion"] = True
    return metadata


def user_document(user: User, limits: Mapping[str, int]) -> dict[str, Any]:
    """Return the document of a user with the password hash, for administrators and for other clusters."""
    return {
        "name": user.name,
        "password_hash": b64encode(user.salt + user.hash if user.hash else b"").decode(),
        "hashing_algorithm": HASHING + user.hashing,
        "tags": user.tags,
        "limits": dict(limits),
    }


def whoami_document(login: Operator) -> dict[str, Any]:
    tags = sorted(login.tags)
    return {
        "name": login.user,
        "tags": tags,
        "is_internal_user": login.scopes is None,
        "auth_backend": f"rabbit_auth_backend_{'internal' if login.scopes is None else 'oauth2'}",
    }


def deduplication_document(bounds: Deduplication) -> dict[str, Any]:
    return {"name": DEDUPLICATION, "value": bounds._asdict()}


def move_document(move: MoveStatus) -> dict[str, Any]:
    """Return the document of a move. Times are in milliseconds since 1970."""
    wanted = {
        "headers": move.headers,
        "reason": move.reason,
        "from_queue": move.from_queue,
        "text": move.text,
    }
    return {
        "vhost": move.vhost,
        "id": move.id,
        "user": move.user,
        "source": move.source,
        "destination": move.destination or None,
        "to_origin": not move.destination,
        "count": move.count or None,
        "rate": move.rate or None,
        "filter": {name: value for name, value in wanted.items() if value},
        "state": move.state,
        "waits_for": move.waits_for or None,
        "error": move.error or None,
        "ready": move.ready,
        "examined": move.examined,
        "moved": move.moved,
        "skipped": move.examined - move.moved,
        "begun_at": move.begun_ms,
        "ended_at": move.ended_ms or None,
    }


def browsed_document(message: Message, *, as_base64: bool, truncate: int | None) -> dict[str, Any]:
    """Return the document of a message with at most `truncate` octets of its body."""
    payload, encoding = payload_of(message.body[:truncate], as_base64=as_base64)
    shown = {"payload": payload, "payload_encoding": encoding}
    return {"offset": message.offset} | _message_document(message) | shown


def got_document(message: Message) -> dict[str, Any]:
    """Return the document of a message without its body."""
    return {"message_count": message.message_count} | _message_document(message)


def _message_document(message: Message) -> dict[str, Any]:
    """Return RabbitMQ's fields of a message, without its body."""
    return {
        "payload_bytes": len(message.body),
        "redelivered": message.redelivered,
        "exchange": message.exchange,
        "routing_key": readable(message.routing_key),
        "properties": properties_document(message.properties),
    }


def properties_document(properties: Basic.Properties) -> dict[str, Any]:
    """Return the properties that a message has, by RabbitMQ's names."""
    names = {name: "type" if name == "message_type" else name for name in properties.attributes()}
    values = {shown: getattr(properties, name) for name, shown in names.items()}
    return {name: json_value(value) for name, value in values.items() if value not in (None, "")}
