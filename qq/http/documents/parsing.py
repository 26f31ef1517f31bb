"""Parsing of the JSON in requests, in RabbitMQ's format.

Invariant: input becomes either a valid value, or status 400 with RabbitMQ's reason if it has a reason for this. Values
that the log cannot hold (qq/tables.py) are refused.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from pamqp.commands import Basic

from qq.http.base.error_responses import bad_request, invalid
from qq.http.documents.rendering import HASHING
from qq.machine.catalog.limits import (
    ARGUMENTS_BYTES_MAX,
    DESCRIPTION_BYTES_MAX,
    RATES,
    TAGS_MAX,
    VALUE_BYTES,
    table_bytes,
)
from qq.machine.catalog.permissions import HASH_BYTES, MD5, SHA256
from qq.machine.handlers.declaring import stripped
from qq.machine.policy.patterns import InvalidPattern, Pattern
from qq.machine.policy.policies import InvalidPolicy, Policy, check_policy, erlang_term
from qq.machine.policy.value_checks import INTEGERS
from qq.machine.protocol.commands import (
    BeginMove,
    BeginTextMove,
    BindExchange,
    BindQueue,
    DeclareExchange,
    DeclareQueue,
    OpenGroup,
    PutHashedUser,
    PutPolicy,
    PutUser,
    PutVhost,
    SetPermissions,
    SetTopicPermissions,
)
from qq.machine.protocol.death_history import REASONS
from qq.machine.protocol.queue_types import MODULES, with_known_type
from qq.machine.queue.leases import ORDERS, READY
from qq.machine.queue.moves import TEXT_BYTES_MAX
from qq.management.reports.catalog import Deduplication
from qq.management.reports.messages import AckMode, NewMessage
from qq.sessions.message_filter import MessageFilter
from qq.stored.exact_tables import read_table
from qq.tables import NAME_BYTES_MAX, TABLE_DEPTH_MAX, InvalidTable, check_table, json_value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from qq.machine.protocol.commands import Table

Body = dict[str, Any]
T = TypeVar("T")

PUBLISHERS = range(1_000, 1_000_001)
"""Bounds for the number of remembered publishers. With few, all tenants would get duplicates; each takes 0.3 kB."""
AGES_MS = range(60_000, 315_360_000_001)
"""Bounds for the time that publishers are remembered: from a minute, enough for reconnecting, to ten years."""
JSON_DEPTH_MAX = TABLE_DEPTH_MAX + 8
"""Nesting depth of JSON at most: a table in the deepest place for a table, and some more."""
GET_COUNT_MAX = 1000
RATE_MAX = 1_000_000
"""Highest rate of a move, in messages per second: more than a cluster moves."""
ENCODED_ARGUMENTS = "arguments_base64"
"""Field of an object for arguments that JSON cannot hold: a field table in AMQP's encoding, in base64."""
SALT_BYTES = 4
"""Bytes of the salt of a password hashed in RabbitMQ's way."""

_UNSET_TYPES = (None, "undefined", "null", "nil")
"""Values that RabbitMQ's clients write for a missing default queue type."""


class GetBody(NamedTuple):
    """The messages to get, and their form in the answer."""

    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    ack_mode: AckMode
    as_base64: bool
    truncate: int | None


def read_object(raw: bytes | str, complaint: str = "not_json") -> Body:
    """Return the JSON object in a request. Raises Refusal, as do all functions here.

    As with RabbitMQ, no text and `null` stand for an empty object.
    """
    try:
        value = json.loads(raw, parse_constant=no_constant) if raw else None
        check_json(value)
    except (ValueError, RecursionError):
        raise bad_request(complaint) from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_request(complaint)
    return value


def no_constant(name: str) -> NoReturn:
    """Refuse NaN and infinities, which Python's parser accepts and JSON excludes."""
    raise ValueError(f"{name} is not JSON")


def check_json(value: Any) -> None:
    """Check that JSON can be stored and written again. Raises Refusal; ValueError for texts without a UTF-8 form."""
    depth, level = 0, _containers([value])
    while level:
        depth += 1
        if depth > JSON_DEPTH_MAX:
            raise bad_request(f"the JSON is nested deeper than {JSON_DEPTH_MAX} levels")
        level = [each for one in level for each in _containers(one)]
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise bad_request("a number is out of range") from None
    text.encode()  # fails for halves of surrogate pairs


def _containers(values: Body | list[Any]) -> list[Any]:
    """Return the members of an object or a list that are objects or lists themselves."""
    found = values.values() if isinstance(values, dict) else values
    return [each for each in found if isinstance(each, dict | list)]


# --- fields


def field(body: Body, name: str, kind: type[T], default: T | None = None) -> T:
    """Return a field of type `kind`, which must exist unless it has a default. Raises Refusal."""
    value = body.get(name)
    if value is None:
        value = default
    if value is None:
        raise bad_request(f"key_missing: {name}")
    if type(value) is not kind:
        raise bad_request(f"{name} should be a {_KINDS[kind]}, actually was {erlang_term(value)}")
    return value


_KINDS: dict[type, str] = {str: "string", int: "number", bool: "boolean", dict: "map", list: "list"}


def name_of(value: str, what: str = "name") -> str:
    """Return a name, which must fit into AMQP's short string."""
    if len(value.encode()) > NAME_BYTES_MAX:
        raise bad_request(f"{what} is longer than {NAME_BYTES_MAX} octets")
    return value


def _required_name(name: str, whose: str) -> str:
    """Return the name of an object that needs a name, because its path would be empty otherwise."""
    if not name:
        raise bad_request(f"{whose} has to have a name")
    return name_of(name)


def flag(body: Body, name: str, *, default: bool) -> bool:
    """Return a boolean, which RabbitMQ's clients may write as text."""
    value = body.get(name)
    return value == "true" if value in ("true", "false") else field(body, name, bool, default)


def table(body: Body, name: str = "arguments") -> Table:
    """Return a field table. An empty list is an empty table, because older versions of RabbitMQ wrote it so."""
    value = body.get(name) or {}
    try:
        check_table(value)
    except InvalidTable as error:
        raise bad_request(f"{name}: {error}") from None
    _check_size(name, value)
    return value


def _arguments(body: Body) -> Table:
    """Return the arguments of an object, which may be given in AMQP's encoding."""
    if ENCODED_ARGUMENTS not in body:
        return table(body)
    try:
        found = read_table(base64.b64decode(field(body, ENCODED_ARGUMENTS, str), validate=True))
        check_table(found)
    except ValueError as error:
        raise bad_request(f"{ENCODED_ARGUMENTS} should be a field table of AMQP in base64: {error}") from None
    if "arguments" in body and (body["arguments"] or {}) != json_value(found):
        raise bad_request(f"arguments and {ENCODED_ARGUMENTS} differ: change both, or give one of them")
    _check_size(ENCODED_ARGUMENTS, found)
    return found


def _check_size(what: str, value: Table) -> None:
    size = table_bytes(value)
    if size > ARGUMENTS_BYTES_MAX:
        raise bad_request(
            f"{what}: {size} bytes ({VALUE_BYTES} for each value and its octets), the limit is {ARGUMENTS_BYTES_MAX}"
        )


def _tags(value: Any, whose: str) -> list[str]:
    """Return tags from a list, or from a text with commas."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise bad_request("tags should be a list of strings, or a string with commas")
    tags = [name_of(tag, "a tag") for tag in dict.fromkeys(map(str.strip, value)) if tag]
    if len(tags) > TAGS_MAX:
        raise bad_request(f"{whose} can have at most {TAGS_MAX} tags (received {len(tags)})")
    return tags


def limits(value: Any, known: Collection[str]) -> Table:
    """Return limits of a user or a virtual host. Older versions of RabbitMQ write an empty list for an empty map."""
    value = value or {}
    if not isinstance(value, dict):
        raise bad_request("limits should be a map")
    for name in value:
        check_limit(name, known)
    return {name: read_limit(value, name, name) for name in value}


def read_limit(body: Body, name: str, key: str = "value") -> int:
    """Return the limit with this name. A negative number means no limit."""
    limit = field(body, key, int)
    if limit not in INTEGERS:
        raise invalid(f"{key} is out of range")
    if limit == 0 and name in RATES:
        raise invalid(
            f"{name} is 1 at least, or negative for no limit: what is above it waits, and would for ever"
        )
    return limit


def check_limit(name: str, known: Collection[str]) -> None:
    if name not in known:
        raise invalid(f"Unrecognised terms [{erlang_term(name)}]; there are {', '.join(known)}")


# --- virtual hosts, users, permissions


def read_vhost(name: str, body: Body, current_type: str = "") -> PutVhost:
    """Return the virtual host to create or change. An existing virtual host keeps its default queue type by default."""
    queue_type = body.get("default_queue_type", body.get("defaultqueuetype"))
    queue_type = current_type if queue_type in _UNSET_TYPES else _queue_type(queue_type)
    description = field(body, "description", str, "")
    if len(description.encode()) > DESCRIPTION_BYTES_MAX:
        raise bad_request(f"description is longer than {DESCRIPTION_BYTES_MAX} octets")
    return PutVhost(name_of(name), description, _tags(body.get("tags") or [], "A vhost"), queue_type)


def _queue_type(value: Any) -> str:
    if value == "":
        raise bad_request("default_queue_type must not be an empty string")
    for alias, module in MODULES.items():
        if value in (alias, module):
            return alias
    raise bad_request(f"{value} is not a valid queue type")


def read_user(
    name: str, body: Body, hash_password: Callable[[str], tuple[bytes, bytes]]
) -> PutUser | PutHashedUser:
    """Return the user to create or replace, with a password, a hash, or neither (for login with certificates only)."""
    if "tags" not in body:
        raise bad_request("tags_not_present")
    tags = _tags(body["tags"], "A user")
    name = _required_name(name, "a user")
    if "password_hash" not in body:
        return PutUser(name, *_password(body, hash_password), tags)
    if "password" in body:
        raise bad_request("both_password_and_password_hash_are_provided")
    hashing = _hashing(body)
    command = PutUser(name, *_salt_and_hash(body, hashing), tags)
    return command if hashing == SHA256 else PutHashedUser(*command, hashing)


def _password(body: Body, hash_password: Callable[[str], tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    """Return the salt and the hash of a password."""
    password = body.get("password", "")
    if not isinstance(password, str):
        raise bad_request("password should be a string")  # without the wrong value: it may be the password
    return hash_password(password) if password else (b"", b"")


def _hashing(body: Body) -> str:
    """Return the hashing of a user's password. Documents of RabbitMQ 3.5 do not name it: it is MD5 there."""
    algorithm = body.get("hashing_algorithm") or HASHING + (MD5 if _has_md5(body) else SHA256)
    for hashing in HASH_BYTES:
        if algorithm == HASHING + hashing:
            return hashing
    known = ", ".join(HASHING + hashing for hashing in HASH_BYTES)
    raise bad_request(f"hashing_algorithm {erlang_term(algorithm)} is not known; there are {known}")


def _has_md5(body: Body) -> bool:
    encoded = body["password_hash"]
    size = SALT_BYTES + HASH_BYTES[MD5]
    return isinstance(encoded, str) and len(encoded.rstrip("=")) == (size * 4 + 2) // 3


def _salt_and_hash(body: Body, hashing: str) -> tuple[bytes, bytes]:
    encoded = body["password_hash"]
    try:
        raw = base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError):
        raise bad_request("password_hash is not base64") from None
    if len(raw) not in (0, SALT_BYTES + HASH_BYTES[hashing]):
        raise bad_request(f"password_hash is not a salt and a hash of {HASHING}{hashing}")
    return raw[:SALT_BYTES], raw[SALT_BYTES:]


def read_permissions(user: str, vhost: str, body: Body) -> SetPermissions:
    return SetPermissions(user, vhost, *(_pattern(body, name) for name in ("configure", "write", "read")))


def read_topic_permissions(user: str, vhost: str, body: Body) -> SetTopicPermissions:
    exchange = name_of(field(body, "exchange", str), "exchange")
    return SetTopicPermissions(user, vhost, exchange, *(_pattern(body, name) for name in ("write", "read")))


def _pattern(body: Body, name: str) -> str:
    pattern = field(body, name, str)
    try:
        Pattern(pattern)
    except InvalidPattern as error:
        raise bad_request(f"invalid_regexp: {name} '{pattern}': {error}") from None
    return pattern


# --- moves


def read_move(vhost: str, move: str, user: str, body: Body) -> BeginMove | BeginTextMove:
    """Return the move to begin."""
    check_keys(body, ("source", "destination", "to_origin", "count", "rate", "filter"), "a move")
    source = _required_name(field(body, "source", str), "a source")
    to_origin = flag(body, "to_origin", default=False)
    destination = field(body, "destination", str, "")
    if bool(destination) == to_origin:
        raise bad_request(
            "either 'destination' has to name a queue, or 'to_origin' has to be true: then each message goes back to "
            "the queue in which it first died"
        )
    wanted = read_filter(field(body, "filter", dict, {}))
    fields: dict[str, Any] = {
        "vhost": vhost,
        "move": move,
        "user": user,
        "source": source,
        "destination": name_of(destination, "destination"),
        "count": _from_one(body, "count", INTEGERS.stop - 1),
        "rate": _from_one(body, "rate", RATE_MAX),
        "reason": wanted.reason,
        "from_queue": wanted.from_queue,
        "headers": wanted.headers,
    }
    if wanted.text:
        return BeginTextMove(**fields, text=wanted.text)
    return BeginMove(**fields, shovel="", is_endless=False)


def query_filter(query: Mapping[str, str]) -> MessageFilter:
    """Return the filter in the query of a request; its headers are a JSON object."""
    wanted: Body = {name: query[name] for name in ("reason", "from_queue", "text") if name in query}
    if query.get("headers"):
        wanted["headers"] = read_object(query["headers"], "headers must be a JSON object")
    return read_filter(wanted)


def read_filter(wanted: Body) -> MessageFilter:
    """Return the filter of a move or a search."""
    check_keys(wanted, MessageFilter._fields, "a filter")
    reason = field(wanted, "reason", str, "")
    if reason and reason not in REASONS:
        raise bad_request(
            f"there is no reason '{reason}' for which messages die; there are {', '.join(REASONS)}"
        )
    headers = table(wanted, "headers")
    for name, value in headers.items():
        if not isinstance(value, str | int | float):
            raise bad_request(f"header '{name}' of the filter should be a string, a number, true or false")
    text = field(wanted, "text", str, "")
    if len(text.encode()) > TEXT_BYTES_MAX:
        raise bad_request(f"the text of the filter is longer than {TEXT_BYTES_MAX} octets")
    from_queue = name_of(field(wanted, "from_queue", str, ""), "from_queue")
    return MessageFilter(reason, from_queue, headers, text)


def read_group(vhost: str, queue: str, group: str, user: str, body: Body) -> OpenGroup:
    """Return the command that opens a group."""
    check_keys(body, ("fence", "owner", "order", "exclusive", "expires_ms"), "a group")
    order = field(body, "order", str, READY)
    if order not in ORDERS:
        raise bad_request(f"order should be {' or '.join(ORDERS)}")
    return OpenGroup(
        vhost,
        queue,
        _required_name(group, "a group"),
        whole_number(body, "fence", 0),
        name_of(field(body, "owner", str, ""), "owner"),
        user,
        order,
        flag(body, "exclusive", default=False),
        whole_number(body, "expires_ms", 0, default=0),
    )


def whole_number(
    body: Body, name: str, least: int, most: int = INTEGERS.stop - 1, default: int | None = None
) -> int:
    """Return a number in a field, which must exist unless it has a default. Raises Refusal."""
    value = field(body, name, int, default)
    if not least <= value <= most:
        raise bad_request(f"{name} should be a whole number from {least} to {most}")
    return value


def check_keys(body: Body, known: Sequence[str], whose: str) -> None:
    """Raise Refusal if a body has a key that is unknown there."""
    for name in body:
        if name not in known:
            raise bad_request(f"{whose} has no '{name}'; there are {', '.join(known)}")


def _from_one(body: Body, name: str, highest: int) -> int:
    """Return a number from 1 on; 0 if the field is missing, which means no limit."""
    if body.get(name) is None:
        return 0
    number = field(body, name, int)
    if not 1 <= number <= highest:
        raise bad_request(f"{name} should be a number from 1 to {highest}")
    return number


# --- policies and parameters


def read_policy(name: str, body: Body, *, operator: bool) -> Policy:
    """Return the policy to create or replace."""
    for key in ("pattern", "definition"):
        if key not in body:
            raise bad_request(f"key_missing: {key}")
    pattern, definition, apply_to = body["pattern"], body["definition"], body.get("apply-to", "all")
    priority = body.get("priority", 0)
    if not isinstance(definition, dict):
        raise bad_request("the definition is not an object")
    try:
        check_table(definition)
    except InvalidTable as error:
        raise bad_request(str(error)) from None
    _check_size("definition", definition)
    if not isinstance(pattern, str):
        raise invalid(f"pattern should be a binary but was {erlang_term(pattern)}")
    if type(priority) is float and priority.is_integer():
        priority = int(priority)
    if type(priority) is not int or priority not in INTEGERS:
        raise invalid(f"priority should be a number, actually was {erlang_term(priority)}")
    name = _required_name(name, "a policy")
    policy = Policy(name, pattern, definition, priority, str(apply_to), operator)
    try:
        check_policy(policy)
    except InvalidPolicy as error:
        raise invalid(str(error)) from None
    return policy


def put_policy(vhost: str, policy: Policy) -> PutPolicy:
    name, pattern, definition, priority, apply_to, operator = policy
    return PutPolicy(vhost, name, operator, pattern, apply_to, priority, definition)


def read_deduplication(body: Body, current: Deduplication) -> Deduplication:
    """Return the new bounds of deduplication. Missing fields keep their values."""
    value = body.get("value")
    if not isinstance(value, dict):
        raise bad_request("key_missing: value")
    unknown = sorted(value.keys() - set(Deduplication._fields))
    if unknown:
        raise bad_request(f"publisher-deduplication has no '{unknown[0]}'; it has 'limit' and 'age_ms'")
    bounds = current._replace(**value)
    for name, allowed in (("limit", PUBLISHERS), ("age_ms", AGES_MS)):
        bound = getattr(bounds, name)
        if name in value and (type(bound) is not int or bound not in allowed):
            raise bad_request(f"'{name}' must be a whole number from {allowed[0]} to {allowed[-1]}")
    return bounds


# --- objects of a virtual host


def read_queue(name: str, body: Body) -> DeclareQueue:
    """Return the queue to declare."""
    durable, auto_delete = flag(body, "durable", default=True), flag(body, "auto_delete", default=False)
    name = _required_name(stripped(name), "a queue")
    return DeclareQueue(
        0, 0, name, False, durable, False, auto_delete, False, dict(with_known_type(_arguments(body)))
    )


def read_exchange(name: str, body: Body) -> DeclareExchange:
    """Return the exchange to declare."""
    durable, auto_delete = flag(body, "durable", default=True), flag(body, "auto_delete", default=False)
    internal = flag(body, "internal", default=False)
    kind = name_of(field(body, "type", str, "direct"), "type")
    return DeclareExchange(
        0, name_of(stripped(name)), kind, False, durable, auto_delete, internal, _arguments(body)
    )


def read_binding(source: str, destination: str, kind: str, body: Body) -> BindQueue | BindExchange:
    """Return the binding to make. `kind` is the kind of its destination."""
    routing_key = name_of(field(body, "routing_key", str, ""), "routing_key")
    source, destination = name_of(stripped(source), "source"), name_of(stripped(destination), "destination")
    arguments = _arguments(body)
    if kind == "queue":
        _required_name(destination, "a queue")
        return BindQueue(0, 0, destination, source, routing_key, arguments)
    if kind == "exchange":
        return BindExchange(0, destination, source, routing_key, arguments)
    raise bad_request(f"destination_type should be queue or exchange, actually was {kind}")


def read_get(body: Body) -> GetBody:
    """Return which messages to get. RabbitMQ's clients may write numbers as text."""
    for name in ("ackmode", "count", "encoding"):
        if name not in body:
            raise bad_request(f"key_missing: {name}")
    mode = body["ackmode"]
    if mode not in list(AckMode):
        raise bad_request(f"Invalid ackmode value: {mode}. Valid values are: {', '.join(AckMode)}")
    if body["encoding"] not in ("auto", "base64"):
        raise bad_request("Unsupported encoding. Please use auto or base64.")
    count = min(_get_count(body["count"]), GET_COUNT_MAX)
    truncate = body.get("truncate")
    if truncate is not None:
        truncate = _whole_number(truncate, "truncate", INTEGERS.stop - 1)
    return GetBody(count, AckMode(mode), body["encoding"] == "base64", truncate)


def _get_count(value: Any) -> int:
    """Return how many messages to get. RabbitMQ counts down to 0 and stops at the end of the queue.

    So below 0 is all messages.
    """
    if isinstance(value, str) and value.removeprefix("-").isdigit() and value.isascii():
        value = int(value[:20])
    is_negative = type(value) is int and value < 0
    return GET_COUNT_MAX if is_negative else _whole_number(value, "count", INTEGERS.stop - 1)


def read_publication(exchange: str, body: Body) -> NewMessage:
    """Return the message to publish."""
    for name in ("routing_key", "properties", "payload", "payload_encoding"):
        if name not in body:
            raise bad_request(f"key_missing: {name}")
    payload, encoding = body["payload"], body["payload_encoding"]
    if not isinstance(payload, str):
        raise bad_request("payload_not_string")
    if encoding == "base64":
        try:
            octets = base64.b64decode(payload, validate=True)
        except ValueError:
            raise bad_request("not_base64") from None
    elif encoding == "string":
        octets = payload.encode()
    else:
        raise bad_request(f"unsupported_encoding: {encoding}")
    routing_key = name_of(field(body, "routing_key", str), "routing_key")
    properties = _properties(field(body, "properties", dict))
    return NewMessage(exchange, routing_key, properties, octets)


def _properties(body: Body) -> Basic.Properties:
    """Return the properties of a message. Properties unknown to AMQP are ignored, as in RabbitMQ."""
    found: dict[str, Any] = {}
    for name, highest in (("delivery_mode", 255), ("priority", 255), ("timestamp", TIMESTAMP_MAX)):
        if name in body:
            if type(body[name]) is not int:
                raise bad_request(f"not_int: {name}")
            if not 0 <= body[name] <= highest:
                raise bad_request(f"{name} must be a whole number from 0 to {highest}")
            found[name] = body[name]
    for name in _TEXTS:
        if name in body:
            if not isinstance(body[name], str):
                raise bad_request(f"not_string: {name}")
            found[name] = name_of(body[name], name)
    if "headers" in body:
        found["headers"] = field(body, "headers", dict)
        _check_headers(found["headers"])
    if "timestamp" in found:
        found["timestamp"] = datetime.fromtimestamp(found["timestamp"], UTC)
    if "type" in found:
        found["message_type"] = found.pop("type")
    try:
        return Basic.Properties(**found)
    except ValueError as error:
        raise bad_request(str(error)) from None


_TEXTS = (
    *("content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id"),
    *("type", "user_id", "app_id", "cluster_id"),
)
TIMESTAMP_MAX = 253_402_300_799
"""The end of the year 9999, in seconds since 1970."""


def _check_headers(headers: Table) -> None:
    try:
        check_table(headers)
    except InvalidTable as error:
        raise bad_request(f"headers: {error}") from None
    if table_bytes(headers) > ARGUMENTS_BYTES_MAX:
        raise bad_request(f"headers are larger than {ARGUMENTS_BYTES_MAX} bytes")


def _whole_number(value: Any, name: str, highest: int) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:20])
    if type(value) is not int or not 0 <= value <= highest:
        raise bad_request(f"{name} must be a whole number from 0 to {highest}")
    return value
