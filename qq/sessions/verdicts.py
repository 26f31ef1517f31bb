"""Commands that wait for the verdict on a node that may be dead.

The cluster gives a dead node up within some tenths of a second. A command that the node's claims bar meanwhile, such as
the declaration of an exclusive queue, waits for that: many clients take a refusal for final.

Invariant: a command waits only while the verdict is open, which takes a bounded time, or while claims of a dead node
end.
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
"""How many seconds pass between two looks at a command that waits."""


class Verdicts:
    """The commands of one node's clients that wait."""

    def __init__(
        self, node: str, machine: QueueMachine, undecided: Callable[[], Collection[str]], runtime: Runtime
    ) -> None:
        """`undecided` tells which nodes may be dead."""
        self._node = node
        self._machine = machine
        self._undecided = undecided
        self._runtime = runtime

    def when_known(self, command: Command, vhost: str, submit: Callable[[], None]) -> bool:
        """Call `submit` and return True, unless a claim of a node that may be dead bars the command.

        In that case `submit` is called when the cluster has given the node up, or the node turns out to live. It must
        check that the client still wants the command.
        """
        if self.are_awaited(command, vhost):
            self._runtime.call_later(LOOK_S, partial(self._look_again, command, vhost, submit))
            return False
        submit()
        return True

    def are_awaited(self, command: Command, vhost: str) -> bool:
        """Whether a claim of a node that may be dead bars the command, for a client in this virtual host."""
        nodes, claims = self._undecided(), self._machine.claims
        return bool(nodes or claims.is_any_leaving) and claims.bar(self._node, vhost, command, nodes)

    def _look_again(self, command: Command, vhost: str, submit: Callable[[], None]) -> None:
        self.when_known(command, vhost, submit)
