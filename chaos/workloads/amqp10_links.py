"""Links of a client of AMQP 1.0: they publish, consume, and ask the management node.

Invariant: a request on a link ends when its condition holds, or with an error when the node detaches the link.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from proton import Delivery, Endpoint, Link, Message, Receiver, Sender, symbol

from chaos.workloads.transport import LostError, PendingRequests, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chaos.workloads.amqp10_engine import LinkEvents
    from chaos.workloads.transport import Outcome, Settling

MANAGEMENT = "/management"
"""Address of the management node."""
MANAGEMENT_CREDIT = 8
"""Answers that the management node may send."""
NULL_BODY = b"\x00\x53\x77\x40"
"""The section of a body that is null, which Proton leaves out."""
BAD_REQUEST = 400
DELETED = "amqp:resource-deleted"

_OUTCOMES: Mapping[Any, Outcome] = {Delivery.ACCEPTED: "confirmed", Delivery.RELEASED: "returned"}
_STATES: Mapping[Settling, int] = {
    "ack": Delivery.ACCEPTED,
    "nack": Delivery.RELEASED,
    "reject": Delivery.REJECTED,
}


class LinkSession(Protocol):
    """The session of links."""

    def attach(self, link: Link, owner: LinkEvents) -> None: ...

    def flush(self) -> None:
        """Write all frames that are ready."""

    def end(self, reason: str) -> None:
        """End the connection because the node has refused a request."""


class OwnedLink:
    """A link and its pending requests."""

    end_means: type[LostError] = RefusedError
    """The error of pending requests when the node detaches the link."""

    def __init__(self, session: LinkSession, link: Link, deleted: Callable[[], object] | None = None) -> None:
        """`deleted` is called when the node detaches the link because its queue is deleted."""
        self.session = session
        self._link = link
        self._deleted = deleted
        self._requests = PendingRequests()
        self._conditions: list[tuple[Callable[[], object], Callable[[None], None]]] = []
        """Condition and callback of each request."""
        self._failure: LostError | None = None

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition holds. Raises LostError or RefusedError if the link ends before that."""
        self.session.flush()
        if self._failure is not None:
            raise self._failure
        if not condition():
            await self._requests.request(lambda answered: self._conditions.append((condition, answered)))

    async def close(self) -> None:
        """Detach the link."""
        self._link.close()
        await self.until(lambda: bool(self._link.state & Endpoint.REMOTE_CLOSED))

    def fail(self, failure: LostError) -> None:
        """Fail all requests, pending and future."""
        self._failure = self._failure or failure
        self._requests.fail(failure)

    # Events

    def opened(self) -> None:
        self._check()

    def flowed(self) -> None:
        self._check()

    def delivered(self, _: Delivery, /) -> None:
        self._check()

    def closed(self, condition: str, reason: str) -> None:
        if self.is_closed:
            self._check()
        else:
            self._link.close()
            text = f"{condition}: {reason}"
            if condition == DELETED and self._deleted is not None:
                self.fail(LostError(text))
                self._deleted()
            else:
                self.fail(self.end_means(text))
                self.session.end(text)

    @property
    def is_closed(self) -> bool:
        return bool(self._link.state & Endpoint.LOCAL_CLOSED)

    def _check(self) -> None:
        """Answer the requests whose conditions hold."""
        waiting, self._conditions = self._conditions, []
        for condition, answered in waiting:
            if condition():
                answered(None)
            else:
                self._conditions.append((condition, answered))


class SendingLink(OwnedLink):
    """A link that publishes, to an address or to the address of each message.

    Without an address, each message has its own.
    """

    end_means = LostError

    def __init__(
        self,
        session: LinkSession,
        sender: Sender,
        address: str | None,
        deleted: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(session, sender, deleted)
        self._sender = sender
        self._tags = count(1)
        if address is not None:
            sender.target.address = address
        session.attach(sender, self)

    async def publish(self, message: Message) -> Outcome:
        """Publish and return the outcome. Messages leave in the order of the calls, when the link has credit."""
        delivery = message.send(self._sender, str(next(self._tags)))
        await self.until(lambda: delivery.settled)
        delivery.settle()
        return _OUTCOMES.get(delivery.remote_state, "nacked")


class ReceivingLink(OwnedLink):
    """A link that receives messages of an address."""

    def __init__(
        self,
        session: LinkSession,
        receiver: Receiver,
        receive: Callable[[Delivery, Message], None],
        deleted: Callable[[], object] | None = None,
    ) -> None:
        self._receiver = receiver
        self._receive = receive
        self._held = 0
        """Deliveries that are not settled."""
        self._is_refilled = False
        """Whether each settled delivery gives its credit back."""
        super().__init__(session, receiver, deleted)

    async def open(self, address: str, credit: int = 0) -> None:
        """Attach the link and give credit for this many unsettled messages. Raises RefusedError."""
        self._receiver.source.address = address
        self.session.attach(self._receiver, self)
        self._is_refilled = credit > 0
        if credit:
            self._receiver.flow(credit)
        await self.until(lambda: self._receiver.remote_source.address)

    async def get(self) -> None:
        """Give credit for a single message, and wait until it came or the queue had none."""
        self._receiver.drain(1)
        await self.until(lambda: not self._receiver.credit)

    async def cancel(self) -> None:
        """Take the credit back, wait until all messages are settled, and detach the link."""
        self._is_refilled = False
        if self._receiver.credit:
            self._receiver.drain(0)
        await self.until(lambda: not (self._receiver.credit or self._held))
        await self.close()

    async def settle(self, delivery: Delivery, settling: Settling, *, is_confirmed: bool) -> None:
        """Settle a delivery; if it is confirmed, wait until the node has settled it.

        A returned message is released, or modified if it is confirmed: a node counts both returns.
        """
        if self.is_closed:
            return  # the queue is deleted
        state = _STATES[settling]
        if is_confirmed and settling == "nack":
            state, delivery.local.failed = Delivery.MODIFIED, True
        delivery.update(state)
        if is_confirmed:
            await self.until(lambda: delivery.settled)
        delivery.settle()
        self._held -= 1
        if self._is_refilled:
            self._receiver.flow(1)
        self.session.flush()
        self._check()

    def delivered(self, delivery: Delivery, /) -> None:
        if delivery.readable and not delivery.partial:
            message = Message()
            message.decode(self._receiver.recv(delivery.pending) or b"")
            self._receiver.advance()
            self._held += 1
            self._receive(delivery, message)
        self._check()


class ManagementLinks:
    """The pair of links to the management node."""

    def __init__(self, session: LinkSession, sender: Sender, receiver: Receiver) -> None:
        """Sender and receiver have the same name."""
        self._session = session
        self._sender = sender
        self._receiver = receiver
        self._receiving = ReceivingLink(session, receiver, self._answer)
        self._numbers = count(1)
        self._answers: dict[Any, Message] = {}
        """Answers by number of the request."""

    async def open(self) -> None:
        for link in (self._sender, self._receiver):
            link.properties = {symbol("paired"): True}
            link.snd_settle_mode = Link.SND_SETTLED
        self._sender.target.address = MANAGEMENT
        self._session.attach(self._sender, OwnedLink(self._session, self._sender))
        await self._receiving.open(MANAGEMENT, MANAGEMENT_CREDIT)

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        """Carry out a request and return the body of the answer. Raises RefusedError."""
        number = next(self._numbers)
        request = Message(body, id=number, subject=method, address=path, reply_to="$me")
        octets = bytes(request.encode()) + (NULL_BODY if body is None else b"")
        delivery = self._sender.delivery(str(number))
        self._sender.stream(octets)
        self._sender.advance()
        delivery.settle()
        await self._receiving.until(lambda: number in self._answers)
        answer = self._answers.pop(number)
        if int(answer.subject or 0) >= BAD_REQUEST:
            reason = f"{method} {path}: {answer.subject} {answer.body}"
            self._session.end(reason)
            raise RefusedError(reason)
        return answer.body

    def fail(self, failure: LostError) -> None:
        self._receiving.fail(failure)

    def _answer(self, _: Delivery, answer: Message) -> None:
        self._answers[answer.correlation_id] = answer
        self._receiver.flow(1)
