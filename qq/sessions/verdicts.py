"""Delays commands that are barred by a node that may be dead, until the cluster has decided about that node.

The cluster evicts a dead node within some tenths of a second. Meanwhile the claims of that node may bar a command, such
as the declaration of an exclusive queue. The command waits, because many clients take a refusal for final.

Invariant: a command waits only while the decision is pending, which takes a bounded time, or while the claims of an
evicted node end.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from cluster.runtime.ports import Runtime
    from qq.machine.machine import QueueMachine
    from qq.machine.protocol.commands import Command

LOOK_S = 0.02
"""Seconds between two checks of a waiting command."""


class Verdicts:
    """The waiting commands of a node's clients."""

    def __init__(
        self, node: str, machine: QueueMachine, undecided: Callable[[], Collection[str]], runtime: Runtime
    ) -> None:
        """Create an empty set. `undecided` returns the nodes that may be dead."""
        self._node = node
        self._machine = machine
        self._undecided = undecided
        self._runtime = runtime

    def when_known(self, command: Command, vhost: str, submit: Callable[[], None]) -> bool:
        """Call `submit` and return True, unless a claim of a node that may be dead bars the command.

        If the command is barred, return False, and call `submit` when the cluster has evicted the node or the node
        turns out to live. Then `submit` must check that the client still wants the command.
        """
        if self.are_awaited(command, vhost):
            self._runtime.call_later(LOOK_S, partial(self._look_again, command, vhost, submit))
            return False
        submit()
        return True

    def are_awaited(self, command: Command, vhost: str) -> bool:
        """Return whether a claim of a node that may be dead bars the command for a client in this virtual host."""
        nodes, claims = self._undecided(), self._machine.claims
        return bool(nodes or claims.is_any_leaving) and claims.bar(self._node, vhost, command, nodes)

    def _look_again(self, command: Command, vhost: str, submit: Callable[[], None]) -> None:
        self.when_known(command, vhost, submit)
