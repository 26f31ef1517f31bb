"""Commands that wait for the verdict on a node that may be dead.

The cluster gives a dead node up within some tenths of a second. A command that the node's claims bar meanwhile, such as
the declaration of an exclusive queue, waits for that: many clients take a refusal for final.

Lives here: which commands wait, and how. Not here: which claims bar a command (qq/machine/claims.py), when the cluster
gives a node up (cluster/expulsions.py).

Law: a command waits only while the verdict is open, or while claims of a dead node end, and for a bounded time.
However many wait, looking at them takes a small part of the time: thousands of clients may lose their node at once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from cluster.ports import Runtime
    from qq.machine.commands import Command
    from qq.machine.machine import QueueMachine

LOOK_S = 0.02
"""How many seconds pass between two looks at the commands that wait."""
LOOKING_S = 0.002
"""How many seconds a look takes, about. Some claims bar a command together with thousands of others."""
WAIT_MAX_S = 5.0
"""How long a command waits at most. A link that comes and goes opens the verdict again and again. Without a majority,
the claims of a dead node do not end, and a client that waits for the log is told so after a while."""


class _Waiting(NamedTuple):
    """A command that waits."""

    command: Command
    vhost: str
    submit: Callable[[], None]
    until_s: float


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
        self._waiting: deque[_Waiting] = deque()
        """The commands that wait; the first one was not looked at for the longest time."""

    def when_known(self, command: Command, vhost: str, submit: Callable[[], None]) -> bool:
        """Call `submit` and return True, unless a claim of a node that may be dead bars the command.

        In that case `submit` is called when the cluster has given the node up, or the node turns out to live. It must
        check that the client still wants the command.
        """
        if self.are_awaited(command, vhost):
            if not self._waiting:
                self._runtime.call_later(LOOK_S, self._look)
            until_s = self._runtime.monotonic() + WAIT_MAX_S
            self._waiting.append(_Waiting(command, vhost, submit, until_s))
            return False
        submit()
        return True

    def are_awaited(self, command: Command, vhost: str) -> bool:
        """Whether a claim of a node that may be dead bars the command, for a client in this virtual host."""
        return self._bar(command, vhost, self._undecided())

    def _bar(self, command: Command, vhost: str, nodes: Collection[str]) -> bool:
        claims = self._machine.claims
        return bool(nodes or claims.is_any_leaving) and claims.bar(self._node, vhost, command, nodes)

    def _look(self) -> None:
        """Submit commands that need not wait any more; those that there is no time for have the next look."""
        waiting, nodes = self._waiting, self._undecided()
        now_s = self._runtime.monotonic()
        free: list[Callable[[], None]] = []
        for _ in range(len(waiting)):
            known = waiting.popleft()
            if now_s < known.until_s and self._bar(known.command, known.vhost, nodes):
                waiting.append(known)
            else:
                free.append(known.submit)
            if self._runtime.monotonic() >= now_s + LOOKING_S:
                break
        if waiting:
            self._runtime.call_later(LOOK_S, self._look)
        for submit in free:
            submit()
