"""What clients are told, and whether it is true.

Lives here: the messages of all clients: published, confirmed, in the log, delivered, settled. Not here: what can be
seen to be wrong by one client (amqp_client.py), the queues' own rules (queue_checks.py).

Law: who is told that a message is safe can rely on it: it is in the log by then, and somebody gets it. What nobody
knows the outcome of may go either way.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from chaos.sim.queue_checks import messages_of
from qq.stored.layout import frame_stop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Message = tuple[str, str]
"""Queue and identity."""


class Told:
    """The truth, as far as clients have to do with it. It is the `AppliedListener` of the checks."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        self.fail = fail
        self.draining = False
        """All that was under way has arrived: what comes now comes from the queues."""
        self.losses = 0
        """Connections that clients have lost."""
        self._fresh = count()
        self._queues: dict[str, tuple[str, ...]] = {}
        """Where each message was published to."""
        self._in_log: set[str] = set()
        self._confirmed: set[Message] = set()
        self._seen: set[Message] = set()
        self._seen_as_new: set[Message] = set()
        self._settled: set[Message] = set()

    def fresh(self) -> int:
        """A number for a name that nobody else has."""
        return next(self._fresh)

    @property
    def counts(self) -> dict[str, int]:
        """What was done in all."""
        return {
            "client messages": len(self._queues),
            "client confirms": len(self._confirmed),
            "client deliveries": len(self._seen),
            "client connections lost": self.losses,
        }

    # What clients do and are told

    def published(self, ident: str, queues: tuple[str, ...]) -> None:
        self._queues[ident] = queues

    def confirmed(self, ident: str, queues: tuple[str, ...]) -> None:
        if queues and ident not in self._in_log:
            self.fail(f"message {ident} is confirmed, and not in the log")
        self._confirmed.update((queue, ident) for queue in queues)

    def delivered(self, client: str, queue: str, ident: str, *, redelivered: bool) -> None:
        message = queue, ident
        if queue not in self._queues.get(ident, ()):
            self.fail(f"client {client} is given {ident} from {queue}, where nobody has published it")
        if not redelivered:
            if message in self._seen_as_new:
                self.fail(f"client {client} is given {ident} from {queue}, which is not new, as if it were")
            self._seen_as_new.add(message)
        if self.draining and message in self._settled:
            self.fail(f"client {client} is given {ident} from {queue}, which was acknowledged for good")
        self._seen.add(message)

    def settled(self, queue: str, ident: str) -> None:
        """A message was acknowledged, and the client was told that this has been carried out."""
        self._settled.add((queue, ident))

    def lost(self, _client: str) -> None:
        self.losses += 1

    def check_nothing_lost(self) -> None:
        """After the drain: whatever was confirmed has been seen."""
        lost = sorted(self._confirmed - self._seen)
        if lost:
            self.fail(f"{len(lost)} confirmed messages were never delivered, the first are {lost[:5]}")

    # AppliedListener

    def batch(
        self,
        machine: Any,  # noqa: ARG002
        origin: str,  # noqa: ARG002
        index: int,  # noqa: ARG002
        ordinal: int,  # noqa: ARG002
        time_ms: int,  # noqa: ARG002
        payload: memoryview,
        effects: Sequence[Any],  # noqa: ARG002
    ) -> None:
        for message in messages_of(bytes(payload)).values():
            body_at = frame_stop(message, 0) + 7
            self._in_log.add(message[body_at : message.index(b" ", body_at)].decode())

    def entry_ended(self, machine: Any, time_ms: int, effects: Sequence[Any]) -> None:
        """Nothing that clients are told by itself."""

    def origin_down(self, machine: Any, origin: str, time_ms: int, effects: Sequence[Any]) -> None:
        """Nothing that clients are told by itself."""
