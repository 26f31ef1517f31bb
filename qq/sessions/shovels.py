"""Shovels: parameters of virtual hosts that say which queue's messages go to which other one, as long as they are set.

Lives here: what a shovel's value says, and the leader's part, which begins a move for each shovel that has none. Not
here: what values are valid (http/shovels.py), the moves (mover.py, machine/moving.py).

Law: a shovel has one move at a time. The machine stops that when the shovel is changed or deleted, and deletes a shovel
that is done, each in one step: so what is begun here is always for the shovel as it is now.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from qq.machine.commands import BeginMove
from qq.machine.errors import Refused
from qq.machine.moves import ID_BYTES, SHOVEL
from qq.sessions.lanes import Lane

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster.ports import Runtime
    from qq.machine.machine import QueueMachine
    from qq.sessions.submissions import Submissions

LOOK_S = 0.5
"""How often the leader looks for shovels that have no move."""
BEGUN_MAX = 20
"""How many moves are begun at a time."""

NEVER, WHEN_EMPTY = "never", "queue-length"
"""When a shovel is done: never, or when all messages that there were at first are moved. A number is the third way."""


class Shovel(NamedTuple):
    """What the value of a shovel says."""

    source: str
    destination: str
    delete_after: str | int
    """NEVER, WHEN_EMPTY, or how many messages."""

    @classmethod
    def of(cls, value: str) -> Shovel | None:
        """Read a value, as JSON; None if it says nothing that this program understands."""
        known = json.loads(value)
        match known:
            case {"src-queue": str(source), "dest-queue": str(destination)}:
                after = known.get("src-delete-after", known.get("delete-after", NEVER))
                return cls(source, destination, after)
            case _:
                return None

    def move(self, vhost: str, name: str, move: str) -> BeginMove:
        """The command that begins a move for a shovel of this name; `move` is what it is called."""
        count = self.delete_after if isinstance(self.delete_after, int) else 0
        is_endless = self.delete_after != WHEN_EMPTY
        return BeginMove(
            vhost, move, "", self.source, self.destination, count, 0, "", "", {}, name, is_endless
        )


class Shovels:
    """Has the messages of shovels moved, while this node is the leader."""

    def __init__(self, machine: QueueMachine, submissions: Submissions, runtime: Runtime) -> None:
        self._machine = machine
        self._submissions = submissions
        self._runtime = runtime
        self._lane = Lane()
        self._leads = False
        self._is_looking = False
        """Whether it will be looked again, or moves are being begun."""

    def lead(self, leads: bool) -> None:
        """Begin to see to shovels if this node leads now; else leave that to the node that leads."""
        self._leads = leads
        if leads and not self._is_looking:
            self._is_looking = True
            self._look()

    def _look(self) -> None:
        if not self._leads:
            self._is_looking = False
            return
        commands = list(self._commands())
        if not commands:
            self._look_later()
            return
        for command in commands:
            self._submissions.add(command, self._lane)
        # When these are applied, so that none is begun twice.
        self._submissions.read_barrier(self._look_later, self._lane)

    def _look_later(self) -> None:
        self._runtime.call_later(LOOK_S, self._look)

    def _commands(self) -> Iterator[BeginMove]:
        """The commands for those shovels that may have a move now and have none."""
        catalog, left = self._machine.catalog, BEGUN_MAX
        busy = {(move.vhost, move.shovel) for move in catalog.moves.running.values()}
        for vhost in catalog.vhosts.values():
            for (component, name), value in vhost.parameters.items():
                if component != SHOVEL or (vhost.name, name) in busy or not left:
                    continue
                shovel = Shovel.of(value)
                if shovel is None:
                    continue
                command = shovel.move(vhost.name, name, self._runtime.random.randbytes(ID_BYTES).hex())
                try:
                    catalog.check_room(command)
                except Refused:
                    continue  # a queue is not there yet, or there are too many moves
                left -= 1
                yield command
