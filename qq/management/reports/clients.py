"""Connections and channels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Client = Mapping[str, Any]
"""A connection or a channel, with the field names that tools for RabbitMQ read. `node` and `id` identify it in the log;
the id is the number of the connection or of the channel's session.
"""


class ConnectionHead(NamedTuple):
    """Part of a connection that all nodes know at once, for connections of all nodes."""

    node: str
    id: int
    """`node` and `id` identify the connection in the log."""
    name: str
    vhost: str
    user: str
    client: str = ""
    """Name that the client has given its connection."""


class ChannelHead(NamedTuple):
    """Part of a channel that all nodes know after its node has sent its name."""

    node: str
    id: int
    """`node` and `id` identify the channel in the log."""
    name: str
    vhost: str
    user: str
    connection: str
    """Name of its connection."""
    client: str = ""
    """Name that the client has given its connection."""
