"""A simulated client of AMQP 1.0 that works at random: it publishes and consumes on links, and breaks connections.

Invariant: each operation and each answer is a row of the history. A link is a channel of the history, because the order
of messages holds within a link.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import proton

from chaos.sim.workload.amqp10_client import Amqp10Client
from chaos.sim.workload.published import deaths_in, ident_in
from chaos.sim.workload.sections import Written, split, write
from chaos.sim.workload.shared_queues import MORE_QUEUES, SINGLE_ACTIVE, SMALL, TO_ALL
from chaos.sim.workload.simulated_client import RecordedClient

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from chaos.history import Call, Operation, Process
    from chaos.sim.workload.published import Published
    from chaos.sim.workload.simulated_client import ConnectionHooks
    from chaos.sim.world.world import SimulatedWorld

ACCEPTED, REJECTED, RELEASED, MODIFIED = (
    proton.Delivery.ACCEPTED,
    proton.Delivery.REJECTED,
    proton.Delivery.RELEASED,
    proton.Delivery.MODIFIED,
)
QUEUES = MORE_QUEUES.names
NOWHERE = "/queues/nowhere"
"""The address of no queue."""
SENDERS_MAX, RECEIVERS_MAX = 3, 4
UNSETTLED_MAX = 40
THINKING_MAX_S = 0.8
PAUSED_MAX_S = 0.5
"""Seconds between the parts of a message."""
DRAIN_CREDIT = 200
RESOURCES, INTERNAL, PRECONDITION = (
    "amqp:resource-limit-exceeded",
    "amqp:internal-error",
    "amqp:precondition-failed",
)
"""Conditions of rejected messages: a full queue, an unknown outcome, no address."""


class Knowledge(NamedTuple):
    """Facts of the run that the workload has for its clients."""

    check_logged: Callable[[str], None]
    """Checks that an accepted message is in the log."""
    ready: Callable[[str], int]
    """Returns how many messages of a queue wait for consumers, at the node with the fewest."""
    published: Published


class Unsettled(NamedTuple):
    """A published message without an outcome."""

    delivery: Any
    ident: str
    queues: tuple[str, ...]
    """The queues of the message."""
    calls: list[Call]
    """The operations in the history, a publish for each queue."""


@dataclass(slots=True, eq=False)
class Sender:
    """A link on which the client publishes."""

    number: int
    link: Any
    queues: tuple[str, ...] | None
    """The queues of its target; None if each message has an address of its own."""
    is_open: bool = False
    unsettled: deque[Unsettled] = field(default_factory=deque)
    """In the order of their publishing."""
    told: set[Any] = field(default_factory=set)
    """Deliveries with an outcome that has just come."""
    is_amid: bool = False
    """Whether a part of a message has left, and the rest has not."""


@dataclass(slots=True, eq=False)
class Receiver:
    """A link on which the client consumes."""

    number: int
    name: str
    link: Any
    queue: str
    top_up: int
    """The credit after each use; 0 if the client does not raise it by itself."""
    is_open: bool = False
    is_draining: bool = False
    granted: int = 0
    """Messages for which the client has given credit, with those that a drain has taken back."""
    peak: int = 0
    """The most of them since the node has answered a drain; it may have used credit that the client has lowered."""
    received: int = 0
    drained: int = 0
    parts: bytes = b""
    """The octets of a message that has not arrived completely."""
    is_amid: bool = False
    """Whether a part of a message has arrived, and the rest has not."""
    held: dict[Any, str] = field(default_factory=dict)
    """Names of the messages without an outcome, by delivery."""
    accepted: list[str] = field(default_factory=list)
    """Names of the messages that the client has accepted."""
    unsettled: dict[Any, str] = field(default_factory=dict)
    """Names of accepted messages that the node has to settle, by delivery."""

    @property
    def used(self) -> int:
        return self.received + self.drained

    @property
    def credit(self) -> int:
        return max(0, self.granted - self.used)


class LinkingClient(RecordedClient, Amqp10Client):
    """An application that publishes and consumes on links of AMQP 1.0."""

    def __init__(
        self,
        name: str,
        world: SimulatedWorld,
        process: Process,
        knowledge: Knowledge,
        hooks: ConnectionHooks,
        interval_s: float,
    ) -> None:
        self._process = process
        self._knowledge = knowledge
        self._last = 0
        """Number of the last message."""
        self._numbers = count(1)
        """Numbers of links."""
        self._messages_random: Random = world.random(f"messages of {name}")
        super().__init__(name, world, hooks, interval_s)

    def _reset(self) -> None:
        super()._reset()
        self._session: Any = None
        self._senders: dict[str, Sender] = {}
        self._receivers: dict[str, Receiver] = {}
        """Links by their names, until the node has answered their end."""
        self._ending: set[str] = set()
        """Links that the client has detached."""

    # Its course

    @property
    def problem(self) -> str:
        return next(filter(None, self._problems()), "")

    def _problems(self) -> Any:
        waits = f"client {self.name} waits for"
        if not self._is_ready:
            yield f"client {self.name} is not connected"
        if self._ending:
            yield f"{waits} the end of links {sorted(self._ending)}"
        for name in self._states.awaited:
            yield f"{waits} the state of {name}"
        for sender in self._senders.values():
            if not sender.is_open:
                yield f"{waits} the attach of a sender"
            elif sender.unsettled:
                yield f"{waits} {len(sender.unsettled)} outcomes"
            elif sender.is_amid or sender.link.credit <= 0:
                yield f"{waits} credit to publish"
        for receiver in self._receivers.values():
            if not receiver.is_open:
                yield f"{waits} the attach of a receiver"
            elif receiver.is_draining:
                yield f"{waits} the end of a drain"
            elif (
                receiver.credit and receiver.queue != SINGLE_ACTIVE and self._knowledge.ready(receiver.queue)
            ):
                yield f"{waits} messages of {receiver.queue}, and has credit for {receiver.credit}"

    def settle(self) -> None:
        """Keep on: deliveries get their outcomes in their time, now always the same."""
        self._draining = True

    def _opened(self) -> None:
        self._session = self._engine.session()
        if self._random.random() < 0.5:
            self._session.incoming_capacity = self._random.choice((1, 4)) * self._transport_frame
        self._session.open()
        self._attach_sender("c1")
        if self._draining:
            for queue in QUEUES:
                self._attach_receiver(queue, DRAIN_CREDIT, DRAIN_CREDIT)

    @property
    def _transport_frame(self) -> int:
        assert self._transport is not None
        return self._transport.max_frame_size

    # Operations

    def _do_something(self) -> None:
        random = self._random
        choice = random.random()
        if choice < 0.42:
            self._publish_some()
        elif choice < 0.50:
            self._attach_sender(random.choice((*QUEUES, TO_ALL, None)))
        elif choice < 0.64:
            self._attach_receiver(random.choice(QUEUES), random.choice((0, 1, 3, 20)), random.choice((0, 5)))
        elif choice < 0.80:
            self._set_credit()
        elif choice < 0.84:
            self._detach(self._senders)
        elif choice < 0.91:
            self._detach(self._receivers)
        elif choice < 0.95:
            self._stop_reading()
        elif choice < 0.97:
            self._close()
        elif choice < 0.98:
            self._finish()
        else:
            self._drop()
        self._write()

    def publish_once(self) -> None:
        """Publish some messages if the client is connected."""
        if self._is_ready and not self._closing:
            self._publish_some()
            self._write()

    def _pick(self, links: dict[str, Any]) -> Any:
        """Return a random open link, or `None`."""
        usable = [link for name, link in links.items() if link.is_open and name not in self._ending]
        return self._random.choice(usable) if usable else None

    def _detach(self, links: dict[str, Any]) -> None:
        """End a link, perhaps while the client holds messages or waits for outcomes."""
        link = self._pick(links)
        if link is None or (links is self._senders and (link.is_amid or len(links) == 1)):
            return
        if links is self._receivers and self._session.incoming_capacity:
            return  # Proton sends flows without a handle for such a link
        if links is self._receivers and self._random.random() < 0.3:
            for delivery in list(link.held):
                self._accept(link, delivery)
        self._ending.add(link.link.name)
        link.link.close()
        if links is self._receivers and self._random.random() < 0.5:
            self._write()
            self._attach_receiver(link.queue, 3, 0)  # Proton uses the handle of the detached link again

    # Publishing

    def _attach_sender(self, target: str | None) -> None:
        """Attach a link to a queue, to all queues, or without a target."""
        if len(self._senders) >= SENDERS_MAX:
            return
        number = next(self._numbers)
        name = f"{self.name}.{number}"
        link = self._session.sender(name)
        link.source.address = name
        if target == TO_ALL:
            link.target.address, queues = f"/exchanges/{TO_ALL}", QUEUES
        elif target is not None:
            link.target.address, queues = f"/queues/{target}", (target,)
        else:
            queues = None
        link.open()
        self._senders[name] = Sender(number, link, queues)

    def _publish_some(self) -> None:
        sender = self._pick(self._senders)
        if sender is None or sender.is_amid or len(sender.unsettled) > UNSETTLED_MAX:
            return
        for _ in range(self._random.randint(1, 8)):
            if sender.link.credit <= 0 or sender.is_amid:
                return
            self._publish(sender)

    def _publish(self, sender: Sender) -> None:
        random = self._messages_random
        self._last += 1
        ident, priority = f"{self.name}:{self._last}", random.choice((4, 4, 4, 0, 9))
        address, queues = None, sender.queues
        if queues is None:
            address, queues = self._address(random)
        about = self._on(sender.number, id=ident, publisher=self.name, sequence=self._last, attempt=1)
        about |= {"priority": 1 if priority > 4 else 0}
        calls = [self._process.invoke("publish", **(about | {"queue": queue})) for queue in queues]
        written = write(ident, priority, address, random)
        self._knowledge.published.add10(ident, written)
        delivery, form = sender.link.delivery(ident), random.random()
        if form < 0.1:
            self._send_in_parts(sender, written)
        else:
            sender.link.send(written.sections.octets)
            sender.link.advance()
        if form > 0.95 and (address or queues):
            delivery.settle()  # the node tells no outcome
        else:
            sender.unsettled.append(Unsettled(delivery, ident, queues, calls))

    def _address(self, random: Random) -> tuple[str | None, tuple[str, ...]]:
        """Return a random address for a message, and the queues that it leads to."""
        choice = random.random()
        if choice < 0.1:
            return None, ()
        if choice < 0.2:
            return NOWHERE, ()
        if choice < 0.3:
            return f"/exchanges/{TO_ALL}/any", QUEUES
        queue = random.choice(QUEUES)
        return f"/queues/{queue}", (queue,)

    def _send_in_parts(self, sender: Sender, written: Written) -> None:
        octets = written.sections.octets
        at = self._messages_random.randrange(len(octets))
        sender.is_amid = True
        sender.link.send(octets[:at])

        def send_rest() -> None:
            sender.is_amid = False
            sender.link.send(octets[at:])
            sender.link.advance()
            self._write()

        self._while_connected(self._random.uniform(0.0, PAUSED_MAX_S), send_rest)

    def _read(self) -> None:
        """Take the outcomes of published messages, which come in the order of the messages.

        Proton tells those of a disposition in any order.
        """
        for sender in self._senders.values():
            unsettled, told = sender.unsettled, sender.told
            while unsettled and unsettled[0].delivery in told:
                first = unsettled.popleft()
                told.remove(first.delivery)
                self._outcome(first)
            if told:
                self._fail(f"is told the outcome of {told.pop().tag} before that of {unsettled[0].ident}")

    def _outcome(self, first: Unsettled) -> None:
        delivery = first.delivery
        state, condition = delivery.remote_state, delivery.remote.condition
        name = condition.name if condition is not None else ""
        if not delivery.settled:
            self._fail(f"is told {state} of {first.ident}, which is not settled")
        if state == ACCEPTED:
            if not first.queues:
                self._fail(f"has {first.ident} accepted, which no queue got")
            self._knowledge.check_logged(first.ident)
            for call in first.calls:
                call.ok()
        elif state == RELEASED or (state == REJECTED and name == RESOURCES and first.queues == (SMALL,)):
            for call in first.calls:
                call.fail(str(state))
        elif state != REJECTED or not self._may_reject(name, first):
            self._fail(f"is told {state} {condition} of {first.ident}")
        delivery.settle()

    def _may_reject(self, name: str, message: Unsettled) -> bool:
        """Return whether a node may reject the message for this reason."""
        if name == RESOURCES:
            return SMALL in message.queues
        return name == INTERNAL or (name == PRECONDITION and not message.queues)

    # Consuming

    def _attach_receiver(self, queue: str, credit: int, top_up: int) -> None:
        if len(self._receivers) >= RECEIVERS_MAX and not self._draining:
            return
        number = next(self._numbers)
        name = f"{queue} {self.name}.{number}"
        link = self._session.receiver(name)
        link.source.address = f"/queues/{queue}"
        link.snd_settle_mode = proton.Link.SND_UNSETTLED
        if self._random.random() < 0.3:
            priority = proton.int32(self._random.choice((-1, 5)))
            if queue != SINGLE_ACTIVE:  # a consumer of higher priority would replace the active consumer
                link.properties = {proton.symbol("rabbitmq:priority"): priority}
        link.open()
        receiver = self._receivers[name] = Receiver(number, name, link, queue, top_up)
        self._process.invoke("consume", **self._on(number, queue=queue, consumer=name))
        if credit:
            self._give(receiver, credit)

    def _give(self, receiver: Receiver, credit: int, *, drains: bool = False) -> None:
        """Raise the credit, or lower it if `credit` is negative."""
        receiver.granted += credit
        receiver.peak = max(receiver.peak, receiver.granted)
        receiver.is_draining = drains
        if drains:
            receiver.link.drain(credit)
        else:
            receiver.link.flow(credit)

    def _set_credit(self) -> None:
        """Raise, lower or drain the credit of a link."""
        receiver = self._pick(self._receivers)
        if receiver is None or receiver.is_draining:
            return
        choice = self._random.random()
        if choice < 0.4:
            self._give(receiver, self._random.randint(1, 10))
        elif choice < 0.55 and receiver.credit:
            self._give(receiver, -self._random.randint(1, receiver.credit))
        else:
            self._give(receiver, self._random.choice((0, 1, 5)), drains=True)
            self._end_drain(receiver)

    def _top_up(self, receiver: Receiver) -> None:
        if not receiver.is_draining and receiver.credit * 2 < receiver.top_up:
            self._give(receiver, receiver.top_up - receiver.credit)

    def _flowed(self, link: Any) -> None:
        receiver = self._receivers.get(link.name)
        if receiver is not None and link.name not in self._ending:
            taken_back = link.drained()
            receiver.drained += taken_back
            self._check_credit(receiver)
            self._end_drain(receiver, is_answered=taken_back > 0)

    def _check_credit(self, receiver: Receiver) -> None:
        if receiver.used > receiver.peak:
            self._fail(
                f"has given {receiver.name} credit for {receiver.peak} messages; the node has sent "
                f"{receiver.received} and taken {receiver.drained} back"
            )

    def _end_drain(self, receiver: Receiver, *, is_answered: bool = False) -> None:
        """End a drain if all credit is used or taken back.

        Messages for credit that the client has lowered may follow, unless the node has answered the drain behind them.
        """
        if receiver.is_draining and receiver.used >= receiver.granted:
            receiver.is_draining = False
            receiver.granted = receiver.used
            receiver.peak = receiver.used if is_answered else max(receiver.peak, receiver.used)
            self._top_up(receiver)

    def _arrived(self, receiver: Receiver, delivery: Any) -> None:
        """Take a part of a message."""
        link = receiver.link
        if not receiver.is_amid and link.name not in self._ending:
            self._count(receiver)
        receiver.parts += link.recv(delivery.pending) or b"" if delivery.pending else b""
        receiver.is_amid = delivery.partial
        if receiver.is_amid:
            return
        octets, receiver.parts = receiver.parts, b""
        link.advance()
        if link.name in self._ending:
            return  # the node has sent it before it read the detach
        if delivery.settled:
            self._fail(f"gets a settled delivery on {receiver.name}")
        sections = split(octets)
        ident = ident_in(sections.bare)
        message, published = sections.decoded(), self._knowledge.published
        deaths = deaths_in((message.annotations or {}).get("x-opt-deaths"))
        published.check10(ident, sections)
        if deaths is None:
            published.check_new(receiver.queue, ident, self._connected_s)
        self._process.event(
            "deliver",
            **self._on(
                receiver.number,
                queue=receiver.queue,
                id=ident,
                consumer=receiver.name,
                redelivered=not message.first_acquirer,
                deaths=deaths,
            ),
        )
        receiver.held[delivery] = ident
        delay_s = 0.0 if self._draining else self._random.uniform(0.0, THINKING_MAX_S)
        self._while_connected(delay_s, partial(self._decide, receiver, delivery))
        self._end_drain(receiver)
        self._top_up(receiver)

    def _count(self, receiver: Receiver) -> None:
        """Count a message whose first part has arrived."""
        receiver.received += 1
        self._check_credit(receiver)
        # A node that did not know of lowered credit yet has sent it, and Proton must have no negative credit.
        if receiver.used > receiver.granted:
            self._give(receiver, 1, drains=receiver.is_draining)

    def _decide(self, receiver: Receiver, delivery: Any) -> None:
        """Usually accept a delivery; sometimes give it a different outcome, or keep it for long."""
        if delivery not in receiver.held or receiver.link.name in self._ending:
            return
        choice = 0.0 if self._draining else self._random.random()
        if choice < 0.5:
            self._accept(receiver, delivery)
        elif choice < 0.65:
            for held in list(receiver.held):
                self._accept(receiver, held)
                if held == delivery:
                    break
        elif choice < 0.80:
            self._end(receiver, delivery, "nack", RELEASED)
        elif choice < 0.85:
            delivery.local.failed = True
            self._end(receiver, delivery, "nack", MODIFIED)
        elif choice < 0.88:
            delivery.local.undeliverable = True
            self._end(receiver, delivery, "reject", MODIFIED)
        elif choice < 0.92:
            self._end(receiver, delivery, "reject", REJECTED)
        else:
            self._while_connected(self._random.uniform(0.5, 3.0), partial(self._decide, receiver, delivery))
        self._write()

    def _accept(self, receiver: Receiver, delivery: Any) -> None:
        ident = receiver.held[delivery]
        receiver.accepted.append(ident)
        self._end(receiver, delivery, "ack", ACCEPTED)
        if not delivery.settled:
            receiver.unsettled[delivery] = ident

    def _end(self, receiver: Receiver, delivery: Any, op: Operation, state: Any) -> None:
        """Tell the outcome of a delivery: settled, or to be settled by the node."""
        ident = receiver.held.pop(delivery)
        self._process.invoke(op, **self._on(receiver.number, queue=receiver.queue, id=ident))
        delivery.update(state)
        if self._random.random() < 0.7:
            delivery.settle()

    # Answers

    def _link_answered(self, link: Any) -> None:
        ours = self._senders.get(link.name) or self._receivers.get(link.name)
        terminus = link.remote_target if isinstance(ours, Sender) else link.remote_source
        if ours is None or terminus.type == proton.Terminus.UNSPECIFIED:
            return  # the end follows
        ours.is_open = True
        if isinstance(ours, Receiver):
            self._top_up(ours)
        if not self._is_ready:
            self._ready()

    def _link_ended(self, link: Any) -> None:
        name = link.name
        self._read()
        if name not in self._ending or link.remote_condition is not None:
            self._fail(f"has link {name} detached: {link.remote_condition}")
        self._ending.discard(name)
        receiver = self._receivers.pop(name, None)
        if receiver is not None:
            receiver.held.clear()
            for ident in receiver.accepted:
                self._left(receiver, ident)
        sender = self._senders.pop(name, None)
        if sender is not None and sender.unsettled:
            self._fail(f"has link {name} detached before the outcomes of {len(sender.unsettled)} messages")
        link.free()

    def _changed(self, delivery: Any) -> None:
        link = delivery.link
        sender, receiver = self._senders.get(link.name), self._receivers.get(link.name)
        if sender is not None:
            if delivery.updated:
                sender.told.add(delivery)
        elif delivery.readable and receiver is not None:
            self._arrived(receiver, delivery)
        elif delivery.updated and delivery.settled:
            if receiver is not None and delivery in receiver.unsettled:
                self._left(receiver, receiver.unsettled.pop(delivery))
            delivery.settle()

    def _left(self, receiver: Receiver, ident: str) -> None:
        """Record that an accepted message has certainly left its queue."""
        self._knowledge.published.settle(receiver.queue, ident, self._world.now_s)
