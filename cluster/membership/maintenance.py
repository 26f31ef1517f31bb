"""Members under maintenance: they lead only where nobody else can.

One that its leader asks to take over does so at once: the leader asks nobody else if it need not.

Invariant: a cluster in which only members under maintenance are up has a leader all the same, a little later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.configuration.history import Configurations

PATIENCE_S = 2.0
"""A node under maintenance stands for leader once none was known for so long. The others need one election timeout."""


class Maintenance:
    """The members under maintenance, as one node sees them."""

    def __init__(self, name: str, configurations: Configurations, now_s: float) -> None:
        self._name = name
        self._configurations = configurations
        self._led_s = now_s
        """When a leader was last known."""

    @property
    def members(self) -> frozenset[str]:
        """The names of the members under maintenance."""
        return frozenset(member.name for member in self._configurations.newest.members if member.is_drained)

    def look(self, leader: str | None, now_s: float) -> None:
        """Note when a leader is known."""
        if leader is not None:
            self._led_s = now_s

    def leaves_leading(self, now_s: float) -> bool:
        """Whether this node does not stand for leader, because it is under maintenance and others may lead."""
        return self._name in self.members and now_s - self._led_s < PATIENCE_S
