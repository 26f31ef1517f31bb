"""Addresses of queues and exchanges in termini: version 1 of RabbitMQ's format.

Invariant: a name stands in its address as it is, except for a slash, which is `%2F`.
"""

from __future__ import annotations

from typing import NamedTuple

from qq.amqp10.addresses import EXCHANGES, QUEUES, TargetAddress, invalid_address

_TOPIC_EXCHANGE = "amq.topic"


class AddressV1(NamedTuple):
    """An address of version 1, of a source or of a target."""

    target: TargetAddress
    """The address as a target. A source that is an exchange is a queue with a binding from it."""
    declares_queue: bool
    """Whether the node declares the queue, if it does not exist."""


def is_version1(address: str) -> bool:
    """Return whether an address lacks the beginnings of version 2."""
    return not address.startswith((QUEUES, EXCHANGES))


def target_v1(address: str) -> AddressV1:
    """Parse the address of a target: that of a source, or `/queue` for the default exchange.

    Raises `InvalidFieldValue`.
    """
    if address == "/queue":
        return AddressV1(TargetAddress("", "", None, by_subject=True), declares_queue=False)
    return source_v1(address)


def source_v1(address: str) -> AddressV1:
    """Parse the address of a source. Raises `InvalidFieldValue`.

    `Q`, `/queue/Q` and `/amq/queue/Q` are queues. `/exchange/X`, `/exchange/X/KEY` and `/topic/KEY` are exchanges.
    """
    match address.split("/"):
        case [name] | ["", "queue", name] if name:
            return _queue(name, declares_queue=True)
        case ["", "amq", "queue", name] if name:
            return _queue(name, declares_queue=False)
        case ["", "topic", key] if key:
            return _exchange(_TOPIC_EXCHANGE, key)
        case ["", "exchange", name] if name:
            return _exchange(name, "")
        case ["", "exchange", name, key] if name:
            return _exchange(name, key)
        case _:
            raise invalid_address(address)


def _queue(name: str, *, declares_queue: bool) -> AddressV1:
    name = _unescaped(name)
    return AddressV1(TargetAddress("", name, name), declares_queue)


def _exchange(name: str, key: str) -> AddressV1:
    target = TargetAddress(_unescaped(name), _unescaped(key), None, by_subject=not key)
    return AddressV1(target, declares_queue=False)


def _unescaped(name: str) -> str:
    return name.replace("%2F", "/")
