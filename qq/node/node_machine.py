"""The queue machine as a node runs it: beside an event loop that nothing may hold up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.machine.machine import QueueMachine
from qq.process import garbage

if TYPE_CHECKING:
    from qq.machine.handlers.core import Core


class NodeMachine(QueueMachine):
    """Reads states on other threads than the event loop's."""

    def read(self, data: bytes) -> Core:
        # As much is let go of as is made, so the collector counts next to nothing, until it walks all that was made: a
        # quarter of a second, twice, with a million messages that were delivered each by itself.
        with garbage.none_expected():
            return super().read(data)
