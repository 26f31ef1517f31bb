"""Simulated AMQP clients that declare and delete queues of their own, and look for the queues of other clients.

Invariant: a passive declaration, which needs no entry, shows each change that was confirmed before it began. Then that
queue is the default of the channel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pamqp import commands

from chaos.sim.workload.amqp_client import AmqpClient

if TYPE_CHECKING:
    from chaos.sim.workload.amqp_client import ClientChannel, Content
    from chaos.sim.workload.simulated_client import ConnectionHooks
    from chaos.sim.world.world import SimulatedWorld

Basic, Channel, Queue = commands.Basic, commands.Channel, commands.Queue

OWNING, LOOKING = 1, 2
"""Channel numbers."""
NOT_FOUND = 404


@dataclass(slots=True)
class KnownQueue:
    """A queue, as the answers to its owner show it."""

    name: str
    exists: bool | None = None
    """`None` while the owner waits for an answer."""
    changes: int = 0

    def change(self, *, exists: bool | None) -> None:
        self.exists = exists
        self.changes += 1


@dataclass(slots=True)
class KnownQueues:
    """The queues of all declaring clients, by owner."""

    by_owner: dict[str, KnownQueue] = field(default_factory=dict)


class Look(NamedTuple):
    """A passive declaration, and the certain knowledge at its beginning."""

    queue: KnownQueue
    exists: bool | None
    changes: int

    @property
    def is_certain(self) -> bool:
        """Whether the queue did not change meanwhile."""
        return self.exists is not None and self.queue.changes == self.changes


class DeclaringClient(AmqpClient):
    """A client with a queue of its own for each connection: the fate of a request on a lost connection is unknown."""

    def __init__(
        self,
        name: str,
        world: SimulatedWorld,
        hooks: ConnectionHooks,
        interval_s: float,
        queues: KnownQueues,
    ) -> None:
        self._queues = queues
        super().__init__(name, world, hooks, interval_s)

    def _reset(self) -> None:
        super()._reset()
        self._own: KnownQueue | None = None
        self._look: Look | None = None

    # Its course

    def publish_once(self) -> None:
        """Look for a queue."""
        if self._is_ready:
            self._look_for_one()

    def settle(self) -> None:
        """Keep on: each request is answered in its time."""

    def drain(self) -> None:
        """Keep on: the queues are empty."""

    def _opened(self) -> None:
        self._own = self._queues.by_owner[self.name] = KnownQueue(f"own-{self._connection}")
        self._open_channel(OWNING)
        self._open_channel(LOOKING, self._ready)

    def _do_something(self) -> None:
        choice = self._random.random()
        if choice < 0.4:
            self._change()
        elif choice < 0.93:
            self._look_for_one()
        elif choice < 0.97:
            self._close()
        else:
            self._drop()

    # Requests

    def _change(self) -> None:
        """Declare the own queue, or delete it."""
        own, channel = self._own, self._channels[OWNING]
        if own is None or channel.calls:
            return
        exists = bool(own.exists)
        own.change(exists=None)

        def changed(_: Any) -> None:
            own.change(exists=not exists)

        if exists:
            self._call(OWNING, Queue.Delete(queue=own.name), Queue.DeleteOk, changed)
        else:
            declare = Queue.Declare(queue=own.name, durable=True, arguments={"x-queue-type": "quorum"})
            self._call(OWNING, declare, Queue.DeclareOk, changed)

    def _look_for_one(self) -> None:
        channel = self._channels[LOOKING]
        if not channel.is_open or channel.calls or not self._queues.by_owner:
            return
        queue = self._random.choice(list(self._queues.by_owner.values()))
        self._look = Look(queue, queue.exists, queue.changes)
        declare = Queue.Declare(queue=queue.name, passive=True)
        self._call(LOOKING, declare, Queue.DeclareOk, lambda _: self._found(queue))

    def _found(self, queue: KnownQueue) -> None:
        self._check_look(exists=True)
        self._look = Look(queue, queue.exists, queue.changes)
        self._call(LOOKING, Basic.Get(queue="", no_ack=True), Basic.GetEmpty, lambda _: self._checked())

    def _checked(self) -> None:
        self._check_look(exists=True)

    def _channel_closed(self, number: int, frame: Any) -> None:
        look = self._look
        if number != LOOKING or frame.reply_code != NOT_FOUND or look is None:
            super()._channel_closed(number, frame)
            return
        self._check_look(exists=False)
        if look.queue.name not in frame.reply_text:
            self._fail(f"is told '{frame.reply_text}', and its default queue is {look.queue.name}")
        self._send(LOOKING, Channel.CloseOk())
        self._open_channel(LOOKING)

    def _check_look(self, *, exists: bool) -> None:
        look, self._look = self._look, None
        if look is not None and look.is_certain and look.exists is not exists:
            self._fail(f"is told that {look.queue.name} {'exists' if exists else 'does not exist'}")

    # Not used

    def _confirmed(self, tag: int, *, refused: bool) -> None:
        self._fail(f"is confirmed {tag}, refused {refused}, and publishes nothing")

    def _arrived(self, channel: ClientChannel, content: Content) -> None:
        self._fail(f"gets {content.ident} on channel {channel.number} from an empty queue")
