"""RabbitMQ's JSON: what is answered, and what is understood.

Lives here: how values become JSON, and which JSON is a policy or a parameter. Not here: which policies are valid
(machine/policies.py), requests (api.py).

Law: what a client sends ends here as a good value or as status 400 with RabbitMQ's reason, where it has one.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from qq.http.errors import bad_request
from qq.http.view import Deduplication
from qq.machine.codec import MalformedBatch, check_table
from qq.machine.policies import INTEGERS, InvalidPolicy, Policy, check_policy, erlang_term

if TYPE_CHECKING:
    from qq.http.view import ConsumerStatus, Message, QueueStatus

COUNT_MAX = 2**31
"""Of publishers that are remembered. The memory is bounded by less, but that is for the operator to say."""
AGE_MS_MAX = 315_360_000_000
"""Ten years, as with all times."""


# --- what is answered


def plain(value: Any) -> Any:
    """Make JSON of what AMQP tables hold."""
    match value:
        case bool() | int() | str() | None:
            return value
        case Mapping():
            return {name: plain(item) for name, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case datetime():
            return int(value.timestamp())
        case float() if math.isfinite(value):
            return value
        case float() | Decimal():
            return str(value)
        case _:  # octets
            return bytes(value).decode("utf-8", "replace")


def queue_document(queue: QueueStatus) -> dict[str, Any]:
    return queue._asdict() | {"arguments": plain(queue.arguments)}


def consumer_document(consumer: ConsumerStatus) -> dict[str, Any]:
    return consumer._asdict() | {"arguments": plain(consumer.arguments)}


def policy_document(vhost: str, policy: Policy) -> dict[str, Any]:
    return {
        "vhost": vhost,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": policy.definition,
        "priority": policy.priority,
    }


def message_document(message: Message, *, as_base64: bool, truncate: int) -> dict[str, Any]:
    """A message as RabbitMQ's POST .../get tells it; of the body at most `truncate` octets."""
    payload, encoding = _payload(message.body[:truncate], as_base64=as_base64)
    return {
        "offset": message.offset,
        "payload_bytes": len(message.body),
        "redelivered": message.redelivered,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "properties": _properties(message),
        "payload": payload,
        "payload_encoding": encoding,
    }


def _payload(body: bytes, *, as_base64: bool) -> tuple[str, str]:
    if not as_base64:
        try:
            return body.decode(), "string"
        except UnicodeDecodeError:
            pass
    return b64encode(body).decode(), "base64"


def _properties(message: Message) -> dict[str, Any]:
    properties = message.properties
    names = {name: "type" if name == "message_type" else name for name in properties.attributes()}
    values = {told: getattr(properties, name) for name, told in names.items()}
    return {name: plain(value) for name, value in values.items() if value not in (None, "")}


# --- what is understood


def read_object(raw: bytes) -> dict[str, Any]:
    """The JSON object that a request brings. Raises Refusal."""
    try:
        value = json.loads(raw)
        # Halves of surrogate pairs are no text, and nothing here could store them.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise bad_request("not_json") from None
    if not isinstance(value, dict):
        raise bad_request("not_json")
    return value


def read_policy(name: str, body: dict[str, Any], *, operator: bool) -> Policy:
    """The policy that is to be put. Raises Refusal."""
    for key in ("pattern", "definition"):
        if key not in body:
            raise bad_request(f"key_missing: {key}")
    pattern, definition, apply_to = body["pattern"], body["definition"], body.get("apply-to", "all")
    priority = body.get("priority", 0)
    if not isinstance(definition, dict):
        raise bad_request("the definition is not an object")
    try:
        check_table(definition)
    except MalformedBatch as error:
        raise bad_request(str(error)) from None
    if not isinstance(pattern, str):
        raise _invalid(f"pattern should be a binary but was {erlang_term(pattern)}")
    # The log has no negative numbers in this place.
    if type(priority) is not int or priority < 0 or priority not in INTEGERS:
        raise _invalid(f"priority should be a number, actually was {erlang_term(priority)}")
    policy = Policy(name, pattern, definition, priority, str(apply_to), operator)
    try:
        check_policy(policy)
    except InvalidPolicy as error:
        raise _invalid(str(error)) from None
    return policy


def _invalid(text: str) -> Exception:
    return bad_request(f"Validation failed\n\n{text}\n")


def read_deduplication(body: dict[str, Any], current: Deduplication) -> Deduplication:
    """The bounds that are to be set; what is not given stays. Raises Refusal."""
    value = body.get("value")
    if not isinstance(value, dict):
        raise bad_request("key_missing: value")
    unknown = sorted(value.keys() - set(Deduplication._fields))
    if unknown:
        raise bad_request(f"publisher-deduplication has no '{unknown[0]}'; it has 'limit' and 'age_ms'")
    bounds = current._replace(**value)
    for name, highest in (("limit", COUNT_MAX), ("age_ms", AGE_MS_MAX)):
        number = getattr(bounds, name)
        if type(number) is not int or not 0 <= number <= highest:
            raise bad_request(f"'{name}' must be a whole number from 0 to {highest}")
    return bounds
