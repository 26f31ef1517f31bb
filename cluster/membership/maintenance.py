"""Members under maintenance: they lead only if no other member can.

A member under maintenance that its leader asks to take over does so at once, because the leader asks such a member only
if it must.

Invariant: a cluster whose only live members are under maintenance also elects a leader, a little later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.configuration.history import Configurations

PATIENCE_S = 2.0
"""Seconds without a known leader after which a node under maintenance campaigns. Its peers need an election timeout."""


class Maintenance:
    """The members under maintenance, by the newest configuration."""

    def __init__(self, name: str, configurations: Configurations, now_s: float) -> None:
        self._name = name
        self._configurations = configurations
        self._led_s = now_s
        """When a leader was last known, on the monotonic clock."""

    @property
    def members(self) -> frozenset[str]:
        """The names of the members under maintenance."""
        return frozenset(member.name for member in self._configurations.newest.members if member.is_drained)

    def record_leader(self, leader: str | None, now_s: float) -> None:
        """Record the time if a leader is known."""
        if leader is not None:
            self._led_s = now_s

    def leaves_leading(self, now_s: float) -> bool:
        """Return whether this node must not campaign now, because it is under maintenance and its peers may lead."""
        return self._name in self.members and now_s - self._led_s < PATIENCE_S
