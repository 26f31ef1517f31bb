"""What of a message routing may look at, besides its routing keys.

Lives here: the form in which a router gets it. Not here: how it is read from a message's bytes (the caller does that,
and only when a router asks for it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Content(NamedTuple):
    """What routers see of one message."""

    headers: Mapping[str, object]
    properties: Mapping[str, str]
    """Those of `HASH_PROPERTIES` (hashing.py) that the message has; the timestamp in decimal digits."""
    number: int
    """Differs from message to message; the same on every node."""


class NeedsContent(Exception):
    """The route depends on the message, and none was given: route each message by itself."""
