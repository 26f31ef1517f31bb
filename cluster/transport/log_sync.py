"""Syncs of the log, and the messages that may leave after each.

Invariant: only a single sync runs at a time, and the next begins when it ends. A message that waits for a sync leaves
after that sync (hazard H1).
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
"""Seconds after which a running sync counts as hanging: the disk will not be of use soon."""
STALL_S = 1.0
"""Seconds above which a stall of this node, as when its process was stopped, does not count as time of the disk."""


class Syncing:
    """Starts syncs of the journal, and sends the engine's messages."""

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
        """Whether a sync hangs, so that this node acknowledges no entry."""
        return self._journal.sync_in_flight and self.look() - self._began_s > HANGS_S

    def look(self) -> float:
        """Return the monotonic time without this node's stalls; must be called in each heartbeat interval."""
        return self._awake.read(self._runtime.monotonic())

    def begin(self) -> None:
        """Begin a sync if the journal has unsynced changes and no sync is running."""
        if self._journal.dirty and not self._journal.sync_in_flight:
            self._start()

    def ask_for_turn(self) -> None:
        """Ask for a turn after the running sync, or the next sync, has ended."""
        self._turn_is_asked = True

    def try_again(self) -> None:
        """Begin a sync even without new changes, because the disk was full at the last attempt."""
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
        """Send the engine's messages; acknowledgements of unsynced entries wait in the outbox (hazard H1)."""
        outbox, self._engine.outbox = self._engine.outbox, []
        self._outbox.send(outbox, self._journal.synced)
