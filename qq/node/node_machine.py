"""The queue machine of a node, which must not delay the node's event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.machine.machine import QueueMachine
from qq.process import garbage

if TYPE_CHECKING:
    from qq.machine.handlers.core import Core


class NodeMachine(QueueMachine):
    """A queue machine that reads states on a thread, without garbage collections."""

    def read(self, data: bytes) -> Core:
        # Reading frees as many objects as it makes, so the collector counts hardly any, until a collection walks all of
        # them: a quarter of a second, twice, with a million messages that were delivered individually.
        with garbage.none_expected():
            return super().read(data)
