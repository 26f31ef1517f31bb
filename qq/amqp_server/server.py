"""The parts that all AMQP connections of a node share.

Invariant: the composition root builds it completely, and it never changes.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from cluster.net.log_throttle import ThrottledLog
from qq.amqp_server.channel.channel import Channel

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.net.connection_slots import ConnectionSlots
    from qq.amqp.connection import Settings
    from qq.amqp_server.partial_messages import PartialMessages
    from qq.amqp_server.ports import Carrier
    from qq.sessions.broker import Broker

LOG_LINES_PER_S = 10
"""Log lines about unauthenticated connections, per second and kind."""


def connection_log() -> ThrottledLog:
    """Return a log for events of unauthenticated connections: at most LOG_LINES_PER_S lines a second of each kind."""
    return ThrottledLog(logging.getLogger(__name__), LOG_LINES_PER_S)


class AmqpServer(NamedTuple):
    """The AMQP side of a node."""

    broker: Broker
    settings: Settings
    """The node's properties in connection.start, and its limits for connection.tune."""
    slots: ConnectionSlots
    """The connection slots: limit the clients, and the clients that have not authenticated."""
    throttled_log: ThrottledLog
    """The rate-limited log for events of clients that have not authenticated."""
    partial_messages: PartialMessages
    """Gives connections their turn while partly received messages take too much memory."""
    make_channel: Callable[[Broker, Carrier, int], Channel] = Channel
    """Makes the channels. Whether they trace messages (traced.py) is decided once, when the node starts."""

    @property
    def current_settings(self) -> Settings:
        """The settings, with the cluster name that operators have set."""
        name = self.broker.machine.catalog.cluster_name
        return self.settings if name is None else replace(self.settings, cluster_name=name)
