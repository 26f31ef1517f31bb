"""Addresses of queues and exchanges in termini and messages: version 2 of RabbitMQ's format.

Invariant: a name is percent-encoded UTF-8 (RFC 3986), so each name has an address, and a slash only separates names.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from qq.amqp10.conditions import InvalidFieldValue

QUEUES, EXCHANGES = "/queues/", "/exchanges/"
"""The beginnings of all addresses of version 2."""
_SEGMENT = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*")
"""A segment of a path (RFC 3986, 3.3)."""
_DEFAULT_EXCHANGE = frozenset(("", "amq.default"))
"""Names of the default exchange, which only addresses of queues stand for."""


class TargetAddress(NamedTuple):
    """Where messages go to."""

    exchange: str
    routing_key: str
    queue: str | None
    """The name of the queue, if the address names a queue. The exchange is then the default exchange."""
    by_subject: bool = False
    """Whether the subject of each message replaces the routing key: only in version 1 of the addresses."""


def target_address(address: str) -> TargetAddress:
    """Parse `/queues/Q`, `/exchanges/X` or `/exchanges/X/KEY`. Raises `InvalidFieldValue`."""
    if address.startswith(QUEUES):
        queue = source_queue(address)
        return TargetAddress("", queue, queue)
    exchange, *keys = address.removeprefix(EXCHANGES).split("/")
    if not address.startswith(EXCHANGES) or exchange in _DEFAULT_EXCHANGE or len(keys) > 1:
        raise invalid_address(address)
    return TargetAddress(_unquoted(exchange, address), _unquoted(keys[0], address) if keys else "", None)


def source_queue(address: str) -> str:
    """Return the queue of `/queues/Q`. Raises `InvalidFieldValue`."""
    name = address.removeprefix(QUEUES)
    if name == address or not name:
        raise invalid_address(address)
    return _unquoted(name, address)


def queue_address(queue: str) -> str:
    """Return the address of a queue."""
    return QUEUES + _quoted(queue)


def _quoted(name: str) -> str:
    return quote(name, safe="", errors="surrogateescape")


def _unquoted(segment: str, address: str) -> str:
    if not _SEGMENT.fullmatch(segment):
        raise invalid_address(address)
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise invalid_address(address) from None


def invalid_address(address: str) -> InvalidFieldValue:
    """Return the error for an address that names no queue and no exchange."""
    return InvalidFieldValue(f"invalid address '{address}'")
