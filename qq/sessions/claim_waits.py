"""Makes commands wait while a claim of a node that may be dead bars them.

The cluster evicts a dead node within some tenths of a second. A command that a claim of that node bars meanwhile, such
as the declaration of an exclusive queue, waits for the end of the claim, because many clients take a refusal for final.

A client may notice the death of its node before this node does, because the end of a socket tells both. So a command
whose queue is locked by a client of another node waits for `NOTICE_S` first, in which this node notices that a link
ended.

Invariant: a command waits only for `NOTICE_S`, while a node may be dead, or while claims of a dead node end, and for a
bounded time. Checks of waiting commands take a small part of the time, because thousands of clients may lose their node
at once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from cluster.runtime.ports import Runtime
    from qq.machine.machine import QueueMachine
    from qq.machine.protocol.commands import Command

CHECK_S = 0.02
"""Seconds between two checks of the waiting commands."""
NOTICE_S = 0.05
"""Seconds within which a node hears that a peer's process has ended; a locked queue is refused so much later."""
CHECK_WORK_S = 0.002
"""Seconds that a check of the waiting commands takes at most, about: some claims are slow to find among thousands."""
WAIT_MAX_S = 5.0
"""Seconds that a command waits at most. A link that comes and goes makes its node suspect again and again. Without a
majority, the claims of a dead node do not end."""


class _Waiting(NamedTuple):
    """A waiting command."""

    command: Command
    vhost: str
    submit: Callable[[], None]
    since_s: float
    """When the command began to wait, on the monotonic clock."""


class ClaimWaits:
    """The waiting commands of a node's clients."""

    def __init__(
        self, node: str, machine: QueueMachine, undecided: Callable[[], Collection[str]], runtime: Runtime
    ) -> None:
        """`undecided` returns the nodes that may be dead."""
        self._node = node
        self._machine = machine
        self._undecided = undecided
        self._runtime = runtime
        self._waiting: deque[_Waiting] = deque()
        """The waiting commands; the first was checked least recently."""

    def submit_when_free(self, command: Command, vhost: str, submit: Callable[[], None]) -> bool:
        """Call `submit` and return True, unless a claim of a node that may be dead bars the command.

        In that case `submit` is called when the cluster has evicted the node, or the node turns out to live. It must
        check that the client still wants the command.
        """
        if self.must_wait(command, vhost):
            if not self._waiting:
                self._runtime.call_later(CHECK_S, self._check)
            self._waiting.append(_Waiting(command, vhost, submit, self._runtime.monotonic()))
            return False
        submit()
        return True

    def must_wait(self, command: Command, vhost: str) -> bool:
        """Return whether a command of a client in this virtual host must wait.

        A claim of a node that may be dead bars the command, or a client of another node has locked the queue.
        """
        return self._bar(command, vhost, self._undecided()) or self._is_locked(command, vhost)

    def _is_locked(self, command: Command, vhost: str) -> bool:
        return self._machine.claims.is_locked(self._node, vhost, command)

    def _bar(self, command: Command, vhost: str, nodes: Collection[str]) -> bool:
        claims = self._machine.claims
        return bool(nodes or claims.is_any_leaving) and claims.bar(self._node, vhost, command, nodes)

    def _check(self) -> None:
        """Submit commands that must not wait longer. The next check continues where this one ran out of time."""
        waiting, nodes = self._waiting, self._undecided()
        now_s = self._runtime.monotonic()
        ready: list[Callable[[], None]] = []
        for _ in range(len(waiting)):
            oldest = waiting.popleft()
            waited_s = now_s - oldest.since_s
            if waited_s < WAIT_MAX_S and (
                self._bar(oldest.command, oldest.vhost, nodes)
                or (waited_s < NOTICE_S and self._is_locked(oldest.command, oldest.vhost))
            ):
                waiting.append(oldest)
            else:
                ready.append(oldest.submit)
            if self._runtime.monotonic() >= now_s + CHECK_WORK_S:
                break
        if waiting:
            self._runtime.call_later(CHECK_S, self._check)
        for submit in ready:
            submit()
