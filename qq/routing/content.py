"""The parts of a message that routing may read, besides its routing keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Content(NamedTuple):
    """Headers and properties of a message, for routers."""

    headers: Mapping[str, object]
    properties: Mapping[str, str]
    """Properties of the message that are in `HASH_PROPERTIES` (hashing.py); the timestamp in decimal digits."""
    number: int
    """Number that differs from message to message, and is the same on every node."""


class NeedsContent(Exception):
    """Raised when the route depends on a message's content and no content was given; route each message by itself."""
