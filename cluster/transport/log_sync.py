"""The log on its way to the disk, and what may leave once it is there.

Invariant: one sync at a time, the next one begins when it ends, and nothing that waits for it leaves before (hazard
H1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.raft.failure_detector import AwakeClock

if TYPE_CHECKING:
    from cluster.engine.engine import Engine
    from cluster.log.journal import SegmentedJournal
    from cluster.runtime.ports import Runtime
    from cluster.runtime.turn_timer import TurnTimer
    from cluster.transport.outbox import PeerOutbox

HANGS_S = 3.0
"""A disk that has not ended a sync after this time hangs, or will not be of use soon."""
STALL_S = 1.0
"""A longer stall of this node, as when its process was stopped, is no time that the disk takes."""


class Syncing:
    """Has the journal's writes made durable, and sends what the engine has to say."""

    def __init__(
        self,
        engine: Engine,
        journal: SegmentedJournal,
        outbox: PeerOutbox,
        turns: TurnTimer,
        runtime: Runtime,
    ) -> None:
        self._engine = engine
        self._journal = journal
        self._outbox = outbox
        self._turns = turns
        self._runtime = runtime
        self._awake = AwakeClock(runtime.monotonic(), STALL_S)
        self._began_s = 0.0
        self._turn_is_asked = False

    @property
    def hangs(self) -> bool:
        """Whether the disk does not come to the end of a sync, so that this node acknowledges nothing."""
        return self._journal.sync_in_flight and self.look() - self._began_s > HANGS_S

    def look(self) -> float:
        """The time of this node without its stalls, which it would not notice unless this is asked for at each beat."""
        return self._awake.read(self._runtime.monotonic())

    def begin(self) -> None:
        """Begin a sync if there is anything to be synced and none is under way."""
        if self._journal.dirty and not self._journal.sync_in_flight:
            self._start()

    def ask_for_turn(self) -> None:
        """Have a turn when the next sync has ended, whatever it was of."""
        self._turn_is_asked = True

    def try_again(self) -> None:
        """Begin a sync although there may be nothing new: the disk was full when it was last tried."""
        if not self._journal.sync_in_flight:
            self._start()

    def _start(self) -> None:
        self._began_s = self.look()
        self._journal.start_sync(self._synced)

    def _synced(self) -> None:
        if self._turns.is_on:
            self._engine.synced()
            self.begin()
            self.send()
            if self._turn_is_asked or self._engine.wants_turn:
                self._turn_is_asked = False
                self._turns.ask()

    def send(self) -> None:
        """Send what may leave: everything at once, except acknowledgements of what is not yet synced (hazard H1)."""
        outbox, self._engine.outbox = self._engine.outbox, []
        self._outbox.send(outbox, self._journal.synced)
