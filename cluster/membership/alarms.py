"""Why publishers must wait: this node, or so many nodes that no majority can store, is low on disk or memory.

Invariant: what can be stored by a majority, this node among it, is never held up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.raft.messages import Alarm

if TYPE_CHECKING:
    from cluster.configuration.history import Configurations
    from cluster.log.free_space import Space
    from cluster.membership.peer_status import Peers

_NONE = Alarm(0)
RESOURCES = {Alarm.MEMORY: "memory", Alarm.DISK: "disk"}


class Alarms:
    """What publishers must wait for: what is short at this node, or at so many that no majority is left."""

    def __init__(self, configurations: Configurations, peers: Peers, space: Space) -> None:
        self.active = Alarm(0)
        """What this node, or more than a minority, was low on at the last `look`; empty if publishers need not wait."""
        self.low_on_memory = False
        self.lacks_space = False
        """Whether there was no space for a snapshot that this node needs. What came of it is removed again, so there is
        more free on its disk than when that was found."""
        self._configurations = configurations
        self._peers = peers
        self._space = space

    @property
    def free_bytes(self) -> int:
        """How many bytes are left on this node's disk."""
        return self._space.free_bytes

    def own(self, now_s: float) -> Alarm:
        """What this node itself is low on."""
        disk = Alarm.DISK if self.lacks_space or self._space.is_low(now_s) else _NONE
        return disk | Alarm.MEMORY if self.low_on_memory else disk

    def look(self, now_s: float) -> bool:
        """Find out anew what publishers must wait for; True if that has changed."""
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
        """Why publishers must wait, in RabbitMQ's words; None if they need not."""
        return reason_of(self.active)


def reason_of(active: Alarm) -> str | None:
    """Why publishers must wait while a cluster is low on this, in RabbitMQ's words; None if it is low on nothing."""
    short = [resource for alarm, resource in RESOURCES.items() if active & alarm]
    return f"low on {' & '.join(short)}" if short else None
