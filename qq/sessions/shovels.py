"""Shovels within a virtual host: while such a parameter is set, messages move from its source to its destination queue.

Invariant: a shovel has a single move at a time. When a shovel is changed or deleted, the machine ends its move in the
same step; when a shovel is done, the machine deletes it in the same step. So a move begun here always belongs to the
present definition of the shovel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.machine.protocol.commands import BeginMove
from qq.machine.protocol.refusals import Refused
from qq.machine.queue.moves import ID_BYTES
from qq.sessions.lanes import Lane
from qq.shovels.definition import WHEN_EMPTY, shovels_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster.runtime.ports import Runtime
    from qq.machine.machine import QueueMachine
    from qq.sessions.submissions import Submissions
    from qq.shovels.definition import Definition

POLL_S = 0.5
"""Seconds between the leader's checks for shovels without a move."""
BEGUN_MAX = 20
"""Moves to begin in a check, at most."""


def move_for(vhost: str, name: str, shovel: Definition, move: str) -> BeginMove:
    """Return the command that begins a move with the id `move` for the shovel `name`."""
    after = shovel.delete_after
    count, is_endless = after if isinstance(after, int) else 0, after != WHEN_EMPTY
    source, destination = shovel.source.queue, shovel.target.queue
    return BeginMove(vhost, move, "", source, destination, count, 0, "", "", {}, name, is_endless)


class Shovels:
    """Begins moves for shovels while this node is the leader."""

    def __init__(self, machine: QueueMachine, submissions: Submissions, runtime: Runtime) -> None:
        self._machine = machine
        self._submissions = submissions
        self._runtime = runtime
        self._lane = Lane()
        self._leads = False
        self._is_polling = False
        """Whether a check is scheduled, or moves are being begun."""

    def set_leading(self, leads: bool) -> None:
        """Start serving shovels if this node is the leader now; otherwise stop."""
        self._leads = leads
        if leads and not self._is_polling:
            self._is_polling = True
            self._poll()

    def _poll(self) -> None:
        if not self._leads:
            self._is_polling = False
            return
        commands = list(self._commands())
        if not commands:
            self._poll_later()
            return
        for command in commands:
            self._submissions.add(command, self._lane)
        # Wait until these commands are applied, so that no move is begun twice.
        self._submissions.read_barrier(self._poll_later, self._lane)

    def _poll_later(self) -> None:
        self._runtime.call_later(POLL_S, self._poll)

    def _commands(self) -> Iterator[BeginMove]:
        """Yield the commands for shovels that have no move and may have a move now."""
        catalog, left = self._machine.catalog, BEGUN_MAX
        busy = {(move.vhost, move.shovel) for move in catalog.moves.running.values()}
        for vhost, name, _, shovel in shovels_of(catalog.vhosts.values()):
            if not shovel.is_move or (vhost, name) in busy or not left:
                continue
            command = move_for(vhost, name, shovel, self._runtime.random.randbytes(ID_BYTES).hex())
            try:
                catalog.check_room(command)
            except Refused:
                continue  # a queue does not exist yet, or there are too many moves
            left -= 1
            yield command
