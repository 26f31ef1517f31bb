"""Parses the value of a shovel: RabbitMQ's parameters of dynamic shovels, with both ends AMQP 0-9-1.

Invariant: pure. Features of RabbitMQ's shovels that are missing here are refused with an error that names the supported
values. They are never silently replaced.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.machine.policy.policies import erlang_term
from qq.machine.queue.moves import SHOVEL
from qq.shovels.uris import BrokerUri, InvalidUri, parse_uri
from qq.tables import NAME_BYTES_MAX, InvalidTable, Table, check_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from qq.machine.catalog.vhost import VirtualHost

ON_CONFIRM, ON_PUBLISH, NO_ACK = "on-confirm", "on-publish", "no-ack"
ACK_MODES = (ON_CONFIRM, ON_PUBLISH, NO_ACK)
"""When a message is acknowledged at its source: after the target's confirm, after sending, or on delivery."""
LOCAL = "local"
PROTOCOLS = ("amqp091", LOCAL)
NEVER, WHEN_EMPTY = "never", "queue-length"
"""Values of `delete-after`: never, or after all messages present at the start. The third form is a number of
messages."""
PREFETCH = 1000
RECONNECT_DELAY_S = 5
URIS_MAX = 16
"""Maximum number of URIs of an end: parsing a URI takes a tenth of a millisecond."""
DEFINITIONS_REMEMBERED = 10_000
"""Maximum number of parsed values in the cache."""
READ_CHARS = 64 * 1024
"""Characters of uncached values that are parsed in a poll, which takes some 50 ms at most."""
_COUNTS = range(2**31)
_OLD_NAMES = {
    "delete-after": "src-delete-after",
    "prefetch-count": "src-prefetch-count",
    "add-forward-headers": "dest-add-forward-headers",
    "add-timestamp-header": "dest-add-timestamp-header",
    "publish-properties": "dest-publish-properties",
}
"""RabbitMQ's older names of some keys; the current name takes precedence."""


class InvalidShovel(ValueError):
    """The value of a shovel is invalid. The text contains no part of a URI."""


class NotSupported(InvalidShovel):
    """The value is valid in RabbitMQ and refused here.

    It names an unsupported protocol, or the source and the target are the same queue.
    """


class End(NamedTuple):
    """The source or the target of a shovel."""

    uris: tuple[BrokerUri, ...]
    """Addresses of brokers, tried in random order until a login succeeds."""
    queue: str
    exchange: str | None
    """Name of the exchange; `None` for a queue. A target may have neither: messages then keep their exchange."""
    key: str | None
    """Routing key of a target or binding key of a source; `None` if the value gives no key."""
    queue_args: Table
    """Arguments with which the queue is declared if it is missing."""
    is_predeclared: bool
    """Whether the queue must exist already."""


class Definition(NamedTuple):
    """The parsed value of a shovel."""

    source: End
    target: End
    is_move: bool
    """Whether it is a move in the log: both ends are queues of its virtual host, and messages stay unchanged."""
    ack_mode: str
    prefetch: int
    """Maximum number of messages in flight; 0: only the memory budget limits them."""
    delete_after: str | int
    """`NEVER`, `WHEN_EMPTY`, or a number of messages."""
    consumer_tag: str
    consumer_args: Table
    forwards_headers: bool
    """Whether messages get the header `x-shovelled`, which lists the shovels they have passed."""
    tells_time: bool
    """Whether messages get the header `x-shovelled-timestamp`."""
    properties: Mapping[str, str | int]
    """Properties set on every message."""
    reconnect_delay_s: float
    """Seconds to wait after a failure; 0: until an operator restarts the shovel."""


_remembered: dict[tuple[str, str], Definition | None] = {}


def read_shovel(vhost: str, text: str) -> Definition | None:
    """Parse the JSON value of a shovel, with a cache; return `None` if this program does not understand it."""
    key = vhost, text
    if key not in _remembered:
        if len(_remembered) >= DEFINITIONS_REMEMBERED:
            del _remembered[next(iter(_remembered))]
        try:
            _remembered[key] = definition_of(vhost, json.loads(text))
        except InvalidShovel:
            _remembered[key] = None
    return _remembered[key]


def shovels_of(vhosts: Iterable[VirtualHost]) -> Iterator[tuple[str, str, str, Definition]]:
    """Yield the virtual host, name, value and definition of each shovel that this program understands.

    A new leader parses all values. After `READ_CHARS` characters the uncached rest waits for the next poll.
    """
    left = READ_CHARS
    for vhost in vhosts:
        for (component, name), text in vhost.parameters.items():
            if component != SHOVEL:
                continue
            if (vhost.name, text) not in _remembered:
                if left <= 0:
                    continue
                left -= len(text)
            shovel = read_shovel(vhost.name, text)
            if shovel is not None:
                yield vhost.name, name, text, shovel


def definition_of(vhost: str, value: Any) -> Definition:
    """Parse the value of a shovel of this virtual host. Raises InvalidShovel."""
    if not isinstance(value, dict):
        raise InvalidShovel("the value of a shovel should be a map")
    known: dict[str, Any] = {_OLD_NAMES[key]: each for key, each in value.items() if key in _OLD_NAMES}
    known |= {key: each for key, each in value.items() if key not in _OLD_NAMES}
    for key in ("src-protocol", "dest-protocol"):
        _check_protocol(key, known.get(key, PROTOCOLS[0]))
    if unknown := [key for key in known if key not in _CHECKS]:
        raise InvalidShovel(f"Unrecognised terms [{erlang_term(unknown[0])}] in shovel")
    for key, check in _CHECKS.items():
        if key in known:
            check(key, known[key])
    source, target = _end(vhost, "src", known), _end(vhost, "dest", known)
    _check_source(known)
    if not target.queue and target.exchange is None and not all(uri.host for uri in target.uris):
        raise InvalidShovel(
            "Must specify 'dest-exchange' or 'dest-queue', because the target is this cluster"
        )
    is_move = _is_move(vhost, source, target, known)
    if is_move and source.queue == target.queue:
        raise NotSupported(f"messages of queue '{source.queue}' are where they would be moved to")
    return Definition(
        source=source,
        target=target,
        is_move=is_move,
        ack_mode=known.get("ack-mode", ON_CONFIRM),
        prefetch=known.get("src-prefetch-count", PREFETCH),
        delete_after=known.get("src-delete-after", NEVER),
        consumer_tag=known.get("src-consumer-name", ""),
        consumer_args=_table(known.get("src-consumer-args")),
        forwards_headers=known.get("dest-add-forward-headers", False),
        tells_time=known.get("dest-add-timestamp-header", False),
        properties=_named(_table(known.get("dest-publish-properties"))),
        reconnect_delay_s=known.get("reconnect-delay", RECONNECT_DELAY_S),
    )


def _named(properties: Table) -> Table:
    """Rename properties from RabbitMQ's names to the names used here: `type` becomes `message_type`."""
    return {"message_type" if name == "type" else name: value for name, value in properties.items()}


def _end(vhost: str, side: str, known: Mapping[str, Any]) -> End:
    if known.get(f"{side}-exchange") is not None and known.get(f"{side}-queue") is not None:
        raise InvalidShovel(f"Cannot specify '{side}-exchange' and '{side}-queue'")
    return End(
        _uris(vhost, f"{side}-uri", known, may_lack=known.get(f"{side}-protocol") == LOCAL),
        known.get(f"{side}-queue", ""),
        known.get(f"{side}-exchange"),
        known.get(f"{side}-exchange-key"),
        _table(known.get(f"{side}-queue-args")),
        known.get(f"{side}-predeclared", False),
    )


def _check_source(known: Mapping[str, Any]) -> None:
    if not known.get("src-queue") and known.get("src-exchange") is None:
        raise InvalidShovel("Must specify 'src-exchange' or 'src-queue'")
    if known.get("ack-mode") == NO_ACK and isinstance(known.get("src-delete-after"), int):
        raise InvalidShovel("Cannot specify 'no-ack' and numerical 'delete-after'")
    if known.get("src-delete-after") == WHEN_EMPTY and not known.get("src-queue"):
        raise InvalidShovel("Cannot specify 'queue-length' without 'src-queue'")


def _uris(vhost: str, key: str, known: Mapping[str, Any], *, may_lack: bool) -> tuple[BrokerUri, ...]:
    if may_lack and key not in known:
        own = parse_uri("amqp://")
        return (own._replace(vhost=vhost),)
    if key not in known:
        raise InvalidShovel(f'Key "{key}" not found in shovel')
    value = known[key]
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise InvalidShovel(f"{key} should be a URI, or a list of URIs")
    if len(texts) > URIS_MAX:
        raise InvalidShovel(f"{key} should be a list of {URIS_MAX} URIs at most")
    try:
        uris = tuple(map(parse_uri, texts))
    except InvalidUri as invalid:
        raise InvalidShovel(f"{key}: {invalid}") from None
    if may_lack and not all(uri.is_local for uri in uris):
        raise InvalidShovel(f"{key} should have no host and no user, because the protocol is {LOCAL}")
    return uris


def _is_move(vhost: str, source: End, target: End, known: Mapping[str, Any]) -> bool:
    is_here = all(uri.is_local and uri.vhost == vhost for uri in source.uris + target.uris)
    return is_here and bool(source.queue and target.queue) and not any(known.get(key) for key in _CHANGING)


_CHANGING = (
    "src-consumer-args",
    "src-queue-args",
    "dest-queue-args",
    "dest-add-forward-headers",
    "dest-add-timestamp-header",
    "dest-publish-properties",
)
"""Keys that change messages, declare queues, or need an AMQP consumer. A shovel with such a key is no move."""


# --- checks


def _check_protocol(key: str, value: Any) -> None:
    if value == "amqp10":
        raise NotSupported(f"{key} amqp10 is not supported: {' or '.join(PROTOCOLS)}")
    _one_of(*PROTOCOLS)(key, value)


def _one_of(*values: str) -> Callable[[str, Any], None]:
    def check(key: str, value: Any) -> None:
        if value not in values:
            raise InvalidShovel(
                f"{key} should be one of {', '.join(values)}, actually was {erlang_term(value)}"
            )

    return check


def _name(key: str, value: Any) -> None:
    if not isinstance(value, str):
        raise InvalidShovel(f"{key} should be a string, actually was {erlang_term(value)}")
    if len(value.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
        raise InvalidShovel(f"{key} is longer than {NAME_BYTES_MAX} octets")


def _count(key: str, value: Any) -> None:
    if type(value) is not int or value not in _COUNTS:
        raise InvalidShovel(f"{key} should be a number of 0 or more, actually was {erlang_term(value)}")


def _seconds(key: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _COUNTS.stop:
        raise InvalidShovel(f"{key} should be a number of 0 or more, actually was {erlang_term(value)}")


def _flag(key: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidShovel(f"{key} should be a boolean, actually was {erlang_term(value)}")


def _delete_after(key: str, value: Any) -> None:
    if value not in (NEVER, WHEN_EMPTY) and (type(value) is not int or not 0 < value < 2**63):
        raise InvalidShovel(f'{key} should be a number greater than 0, "{NEVER}" or "{WHEN_EMPTY}"')


def _arguments(key: str, value: Any) -> None:
    try:
        check_table(_table(value))
    except InvalidTable as invalid:
        raise InvalidShovel(f"{key}: {invalid}") from None


def _properties(key: str, value: Any) -> None:
    _arguments(key, value)
    for name, each in _table(value).items():
        if name not in PROPERTIES:
            raise InvalidShovel(f"Unrecognised terms [{erlang_term(name)}] in {key}")
        if PROPERTIES[name] is str:
            _name(f"{name} in {key}", each)
        elif type(each) is not int or each not in range(256 if name != "timestamp" else 2**63):
            raise InvalidShovel(f"{name} in {key} should be a number, actually was {erlang_term(each)}")


def _table(value: Any) -> Any:
    """Return a table; `None` and the empty list of RabbitMQ's page become an empty table."""
    return {} if value in (None, []) else value


def _any(_key: str, _value: Any) -> None:
    """Accept any value: a later check covers this key."""


PROPERTIES: Mapping[str, type] = {
    "content_type": str,
    "content_encoding": str,
    "delivery_mode": int,
    "priority": int,
    "correlation_id": str,
    "reply_to": str,
    "expiration": str,
    "message_id": str,
    "timestamp": int,
    "type": str,
    "user_id": str,
    "app_id": str,
    "cluster_id": str,
}
_CHECKS: Mapping[str, Callable[[str, Any], None]] = {
    "src-protocol": _any,
    "dest-protocol": _any,
    "src-uri": _any,
    "dest-uri": _any,
    "src-queue": _name,
    "dest-queue": _name,
    "src-exchange": _name,
    "src-exchange-key": _name,
    "dest-exchange": _name,
    "dest-exchange-key": _name,
    "src-prefetch-count": _count,
    "src-delete-after": _delete_after,
    "src-consumer-name": _name,
    "src-consumer-args": _arguments,
    "src-queue-args": _arguments,
    "dest-queue-args": _arguments,
    "src-predeclared": _flag,
    "dest-predeclared": _flag,
    "dest-add-forward-headers": _flag,
    "dest-add-timestamp-header": _flag,
    "dest-publish-properties": _properties,
    "ack-mode": _one_of(*ACK_MODES),
    "reconnect-delay": _seconds,
}
