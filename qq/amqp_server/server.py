"""What all AMQP connections of a node share.

Lives here: that. Not here: one connection (connection.py), the ports on which they come (listener.py).

Law: built whole by the composition root, and never changed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from cluster.complaints import Complaints

if TYPE_CHECKING:
    from cluster.strangers import Places
    from qq.amqp.connection import Settings
    from qq.sessions.broker import Broker

COMPLAINTS_PER_S = 10
"""Lines in the log about strangers, of each kind."""


def complaints() -> Complaints:
    """What is said about strangers in the log."""
    return Complaints(logging.getLogger(__name__), COMPLAINTS_PER_S)


class AmqpServer(NamedTuple):
    """The AMQP side of a node."""

    broker: Broker
    settings: Settings
    """What connections tell their clients of the node, and what they agree on with them."""
    places: Places
    """How many may be connected, and how many of them without having logged in."""
    complaints: Complaints
    """About those who have not."""
