"""Commands that wait for the verdict on a node that may be dead.

The cluster evicts a dead node within some tenths of a second. A command that a claim of that node bars meanwhile, such
as the declaration of an exclusive queue, waits for the verdict, because many clients take a refusal for final.

A client may hear of the death of its node before this node does: both are told by the end of a socket. So a command
that a claim of any other node bars waits for `NOTICE_S` first, in which this node hears that a link has ended.

Invariant: a command waits only for `NOTICE_S`, while the verdict is pending, which takes a bounded time, or while
claims of an evicted node end.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container

    from cluster.runtime.ports import Runtime
    from qq.machine.machine import QueueMachine
    from qq.machine.protocol.commands import Command

LOOK_S = 0.02
"""Seconds between two checks of a command that waits."""
NOTICE_S = 0.05
"""Seconds within which a node hears that a peer's process has ended. A command that the log would refuse is refused so
much later."""


class Verdicts:
    """The waiting commands of a node's clients."""

    def __init__(
        self, node: str, machine: QueueMachine, undecided: Callable[[], Collection[str]], runtime: Runtime
    ) -> None:
        """`undecided` returns the nodes that may be dead."""
        self._node = node
        self._machine = machine
        self._undecided = undecided
        self._runtime = runtime
        self._peers: Container[str] = _AllBut(node)

    def when_known(self, command: Command, vhost: str, submit: Callable[[], None]) -> bool:
        """Call `submit` and return True, unless a claim of another node bars the command.

        In that case `submit` is called when the cluster has evicted that node, or the node turns out to live. It must
        check that the client still wants the command.
        """
        wait_s = self.wait_s(command, vhost)
        if wait_s:
            self._check_in(wait_s, command, vhost, submit)
            return False
        submit()
        return True

    def wait_s(self, command: Command, vhost: str, *, is_noticed: bool = False) -> float:
        """Return the seconds until a client's command must be checked again; 0 if it may be submitted now.

        `is_noticed`: the command has waited for `NOTICE_S`.
        """
        nodes, claims = self._undecided(), self._machine.claims
        if (nodes or claims.is_any_leaving) and claims.bar(self._node, vhost, command, nodes):
            return LOOK_S
        if not is_noticed and claims.bar(self._node, vhost, command, self._peers):
            return NOTICE_S
        return 0.0

    def _check_in(self, wait_s: float, command: Command, vhost: str, submit: Callable[[], None]) -> None:
        self._runtime.call_later(wait_s, partial(self._check, command, vhost, submit))

    def _check(self, command: Command, vhost: str, submit: Callable[[], None]) -> None:
        wait_s = self.wait_s(command, vhost, is_noticed=True)
        if wait_s:
            self._check_in(wait_s, command, vhost, submit)
        else:
            submit()


class _AllBut:
    """All names but one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __contains__(self, name: object) -> bool:
        return name != self._name
