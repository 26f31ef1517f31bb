"""The parts that all AMQP connections of a node share.

Invariant: the composition root builds it completely, and it never changes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from qq.amqp_server.channel.channel import Channel

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.amqp.connection import Settings
    from qq.amqp_server.ports import Carrier
    from qq.client_sockets.shared import ClientSockets
    from qq.sessions.broker import Broker


class AmqpServer(NamedTuple):
    """The AMQP side of a node."""

    broker: Broker
    settings: Settings
    """The node's properties in connection.start, and its limits for connection.tune."""
    sockets: ClientSockets
    make_channel: Callable[[Broker, Carrier, int], Channel] = Channel
    """Makes the channels. Whether they trace messages (traced.py) is decided once, when the node starts."""

    @property
    def current_settings(self) -> Settings:
        """The settings, with the cluster name that operators have set."""
        name = self.broker.machine.catalog.cluster_name
        return self.settings if name is None else replace(self.settings, cluster_name=name)
