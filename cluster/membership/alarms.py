"""Alarms that block publishers: memory or disk is low on this node, or on too many nodes for a majority to store.

Invariant: alarms never block a publish that a majority with this node in it can store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.raft.messages import Alarm

if TYPE_CHECKING:
    from cluster.configuration.history import Configurations
    from cluster.log.free_space import FreeSpace
    from cluster.membership.peer_status import Peers

_NONE = Alarm(0)
RESOURCES = {Alarm.MEMORY: "memory", Alarm.DISK: "disk"}


class Alarms:
    """The resource alarms that block publishers, computed from this node's resources and the alarms of its peers."""

    def __init__(self, configurations: Configurations, peers: Peers, space: FreeSpace) -> None:
        self.active = Alarm(0)
        """Resources that blocked publishers at the last `update`; empty if publishers may publish."""
        self.low_on_memory = False
        self.lacks_space = False
        """Whether the disk had no space for a snapshot that this node needs.

        The partial snapshot is removed again, so the disk has more free bytes than when the lack was found.
        """
        self._configurations = configurations
        self._peers = peers
        self._space = space

    @property
    def free_bytes(self) -> int:
        """The free bytes of this node's disk."""
        return self._space.free_bytes

    @property
    def disk_free_limit_bytes(self) -> int:
        """The free bytes below which the disk counts as full."""
        return self._space.limit_bytes

    @disk_free_limit_bytes.setter
    def disk_free_limit_bytes(self, limit_bytes: int) -> None:
        self._space.limit_bytes = limit_bytes

    def own(self, now_s: float) -> Alarm:
        """Return the resources that are low on this node itself."""
        disk = Alarm.DISK if self.lacks_space or self._space.is_low(now_s) else _NONE
        return disk | Alarm.MEMORY if self.low_on_memory else disk

    def update(self, now_s: float) -> bool:
        """Recompute the alarms that block publishers, and return whether they have changed."""
        active = self.own(now_s)
        membership = self._configurations.membership
        for alarm in RESOURCES:
            short = self._peers.alarmed(alarm)
            if short and not membership.has_majority_without(short):
                active |= alarm
        has_changed = active != self.active
        self.active = active
        return has_changed

    @property
    def reason(self) -> str | None:
        """The reason to block publishers, in RabbitMQ's words; None if publishers may publish."""
        return reason_of(self.active)


def reason_of(active: Alarm) -> str | None:
    """Return the reason to block publishers for these alarms, in RabbitMQ's words, or None without an alarm."""
    short = [resource for alarm, resource in RESOURCES.items() if active & alarm]
    return f"low on {' & '.join(short)}" if short else None
