"""Commands that wait until it is known whether a node is gone whose clients hold what is in the way.

A node that has died is given up within some tenths of a second. What would be refused meanwhile for the sake of its
clients, such as the declaration of an exclusive queue, waits for that: many clients take a refusal for final.

Lives here: what waits, and for how long. Not here: what is in the way (qq/machine/claims.py), when a node is given up
(cluster/expulsions.py).

Law: a command waits for a node only while that is undecided, which takes a bounded time, or while what it has left goes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from cluster.ports import Runtime
    from qq.machine.commands import Command
    from qq.machine.machine import QueueMachine

LOOK_S = 0.02
"""How often it is looked whether a command that waits may go on."""


class Verdicts:
    """The commands of one node's clients that wait."""

    def __init__(
        self, node: str, machine: QueueMachine, undecided: Callable[[], Collection[str]], runtime: Runtime
    ) -> None:
        """`undecided` tells which nodes may be gone."""
        self._node = node
        self._machine = machine
        self._undecided = undecided
        self._runtime = runtime

    def when_known(self, command: Command, vhost: str, submit: Callable[[], None]) -> bool:
        """Have `submit` called at once, and return True, unless something of a node that may be gone is in the way.

        Then it is called as soon as the node is given up, or turns out to live: who submits has to see to it that the
        command is still wanted.
        """
        nodes, claims = self._undecided(), self._machine.claims
        if (nodes or claims.is_any_leaving) and claims.bar(self._node, vhost, command, nodes):
            self._runtime.call_later(LOOK_S, partial(self._look_again, command, vhost, submit))
            return False
        submit()
        return True

    def _look_again(self, command: Command, vhost: str, submit: Callable[[], None]) -> None:
        self.when_known(command, vhost, submit)
