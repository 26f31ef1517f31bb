"""What all AMQP connections of a node share.

Invariant: built whole by the composition root, and never changed.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from cluster.net.log_throttle import Complaints
from qq.amqp_server.channel.channel import Channel

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.net.connection_slots import Places
    from qq.amqp.connection import Settings
    from qq.amqp_server.partial_messages import Unfinished
    from qq.amqp_server.ports import Carrier
    from qq.sessions.broker import Broker

COMPLAINTS_PER_S = 10
"""Lines about strangers that are logged in a second, of each kind."""


def complaints() -> Complaints:
    """Make the log of complaints about strangers: at most COMPLAINTS_PER_S lines a second of each kind."""
    return Complaints(logging.getLogger(__name__), COMPLAINTS_PER_S)


class AmqpServer(NamedTuple):
    """The AMQP side of a node."""

    broker: Broker
    settings: Settings
    """What connections tell their clients of the node, and what they agree on with them."""
    places: Places
    """Decides how many clients may be connected, and how many of them without having logged in."""
    complaints: Complaints
    """Logs what is wrong with clients that have not logged in."""
    unfinished: Unfinished
    """Decides whose messages go on while those that are not complete take too much memory."""
    make_channel: Callable[[Broker, Carrier, int], Channel] = Channel
    """Makes the channels: it is decided once, at the start of the node, whether they trace messages (traced.py)."""

    @property
    def current_settings(self) -> Settings:
        """The settings, with the name that operators have given the cluster."""
        name = self.broker.machine.catalog.cluster_name
        return self.settings if name is None else replace(self.settings, cluster_name=name)
