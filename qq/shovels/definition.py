"""What the value of a shovel says: RabbitMQ's parameters of dynamic shovels, with both ends AMQP 0-9-1.

Invariant: pure. What RabbitMQ's shovels have and these have not is refused with what there is instead; it is never done
in another way in silence.
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
"""When a message is acknowledged at its source: when the target has confirmed it, when it is sent, or at once."""
LOCAL = "local"
PROTOCOLS = ("amqp091", LOCAL)
NEVER, WHEN_EMPTY = "never", "queue-length"
"""When a shovel is done: never, or when all messages that there were at first are there. A number is the third way."""
PREFETCH = 1000
RECONNECT_DELAY_S = 5
URIS_MAX = 16
"""How many URIs an end may have: to read one takes a tenth of a millisecond."""
DEFINITIONS_REMEMBERED = 10_000
"""How many values are remembered with what they say."""
READ_CHARS = 64 * 1024
"""How much of values that were not read before is read in one look: that takes some 50 ms at most."""
_COUNTS = range(2**31)
_OLD_NAMES = {
    "delete-after": "src-delete-after",
    "prefetch-count": "src-prefetch-count",
    "add-forward-headers": "dest-add-forward-headers",
    "add-timestamp-header": "dest-add-timestamp-header",
    "publish-properties": "dest-publish-properties",
}
"""RabbitMQ's older names of some keys; those of today go before them."""


class InvalidShovel(ValueError):
    """The value says nothing that could be carried out. The text has no part of a URI."""


class NotSupported(InvalidShovel):
    """It is valid in RabbitMQ, and not carried out here: it speaks another protocol, or leads to where it begins."""


class End(NamedTuple):
    """Where messages come from, or go to."""

    uris: tuple[BrokerUri, ...]
    """The brokers; one of them is taken, and another one if it cannot be reached."""
    queue: str
    exchange: str | None
    """The exchange, if it is one and not a queue. A target may be neither: then messages keep what they have."""
    key: str | None
    """The routing key, or the key of the binding; None if none is given."""
    queue_args: Table
    """With which arguments the queue is declared if it is not there."""
    is_predeclared: bool
    """Whether the queue has to be there already."""


class Definition(NamedTuple):
    """What the value of a shovel says."""

    source: End
    target: End
    is_move: bool
    """Whether it is carried out in the log: both ends are queues of its virtual host, and messages stay as they are."""
    ack_mode: str
    prefetch: int
    """How many messages may be on their way; 0: as many as memory is set aside for."""
    delete_after: str | int
    """NEVER, WHEN_EMPTY, or how many messages."""
    consumer_tag: str
    consumer_args: Table
    forwards_headers: bool
    """Whether messages are told which way they have come (`x-shovelled`)."""
    tells_time: bool
    """Whether they are told when (`x-shovelled-timestamp`)."""
    properties: Mapping[str, str | int]
    """Properties that all messages get."""
    reconnect_delay_s: float
    """How long to wait after a failure; 0: for ever."""


_remembered: dict[tuple[str, str], Definition | None] = {}


def read_shovel(vhost: str, text: str) -> Definition | None:
    """Read the value of a shovel, as JSON; None if it says nothing that this program understands."""
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
    """All shovels that this program understands: virtual host, name, value, and what that says.

    A new leader reads them all. Where that would take long, some are left for the next look.
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
    """Read the value of a shovel of this virtual host. Raises InvalidShovel."""
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
    """Properties by the names that they have here: one has another in RabbitMQ."""
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
    if may_lack and not all(uri.is_own for uri in uris):
        raise InvalidShovel(f"{key} should have no host and no user, because the protocol is {LOCAL}")
    return uris


def _is_move(vhost: str, source: End, target: End, known: Mapping[str, Any]) -> bool:
    is_here = all(uri.is_own and uri.vhost == vhost for uri in source.uris + target.uris)
    return is_here and bool(source.queue and target.queue) and not any(known.get(key) for key in _CHANGING)


_CHANGING = (
    "src-consumer-args",
    "src-queue-args",
    "dest-queue-args",
    "dest-add-forward-headers",
    "dest-add-timestamp-header",
    "dest-publish-properties",
)
"""What has messages changed, queues declared, or asks for a client's way to take messages."""


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
    """A map; RabbitMQ's page writes an empty list for an empty one."""
    return {} if value in (None, []) else value


def _any(_key: str, _value: Any) -> None:
    """Accept what is checked elsewhere."""


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
