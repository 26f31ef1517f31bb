"""The parts that all AMQP 1.0 connections of a node share.

Invariant: the composition root builds it completely, and it never changes.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

from qq.amqp10.values import Symbol
from qq.sasl import EXTERNAL, PASSWORD_MECHANISMS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qq.amqp10.connection import Settings10
    from qq.client_sockets.shared import ClientSockets
    from qq.sessions.broker import Broker

ANONYMOUS = "ANONYMOUS"
_CLUSTER_NAME = Symbol("cluster_name")


class Amqp10Server(NamedTuple):
    """The AMQP 1.0 side of a node."""

    broker: Broker
    settings: Settings10
    sockets: ClientSockets
    heartbeat_s: int
    """Seconds of silence after which a client counts as dead; 0: never."""
    anonymous_user: str
    """The user of clients on this machine that log in without a name; "": they may not."""
    permits_v1: bool
    """Whether termini may have addresses of version 1 (`addresses_v1.py`)."""
    members: Callable[[], Sequence[str]]
    """Returns the names of the cluster's members."""

    @property
    def current_settings(self) -> Settings10:
        """The settings, with the cluster name that operators have set."""
        name = self.broker.machine.catalog.cluster_name
        if name is None:
            return self.settings
        return replace(
            self.settings,
            container_id=name,
            properties={**self.settings.properties, _CLUSTER_NAME: name},
        )

    def mechanisms(self, client_host: str, vouched_for: str | None) -> tuple[str, ...]:
        """Return the mechanisms of SASL that a client may use, in the order of preference."""
        external = () if vouched_for is None else (EXTERNAL,)
        anonymous = (ANONYMOUS,) if self.anonymous_user and _is_loopback(client_host) else ()
        return *PASSWORD_MECHANISMS, *external, *anonymous


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
