"""The parts of a message that routing may look at, besides its routing keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Content(NamedTuple):
    """What routers see of one message."""

    headers: Mapping[str, object]
    properties: Mapping[str, str]
    """The message's properties that are in `HASH_PROPERTIES` (hashing.py); the timestamp in decimal digits."""
    number: int
    """A number that differs from message to message, and is the same on every node."""


class NeedsContent(Exception):
    """The route depends on the message, and none was given: route each message by itself."""
