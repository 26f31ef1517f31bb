"""The management node of a connection: pairs of links on which the client sends requests and gets answers.

Invariant: a connection has a single request under way, so its requests are carried out in the order of each pair. A
request begins only if the socket and the window of its session take the answer. Requests that wait have at most
WAITING_BYTES_MAX octets, and those of a pair are at most twice LINK_CREDIT.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.amqp10.conditions import Condition, ConditionError
from qq.amqp10.performatives import AcceptedState
from qq.amqp10.receiving_link import ReceivingLink
from qq.amqp10_server.attaching import PAIRED
from qq.amqp10_server.errors import error_reply, reply_to, unauthorized
from qq.amqp10_server.management_answers import ANSWER_BYTES_MAX, TOO_LARGE, ManagementAnswer, encode_answer
from qq.amqp10_server.management_execution import ManagedCarrier, RequestExecution
from qq.amqp10_server.management_requests import ManagementRefused, open_envelope, read_request
from qq.sessions.access import Access, AccessRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.amqp10.performatives import AttachFrame, ErrorReply
    from qq.amqp10.receiving_link import Deliveries
    from qq.amqp10.sending_link import CreditSet, SendingLink
    from qq.amqp10.session import Session10
    from qq.amqp10.values import Value
    from qq.amqp10_server.command_session import ConnectionCommands
    from qq.amqp10_server.management_requests import ManagementRequest
    from qq.scopes import Scopes

ADDRESS = "/management"
LINK_CREDIT = 8
"""Requests that a client may send on a link after a flow, as in RabbitMQ."""
REQUEST_BYTES_MAX = 256 * 1024
"""Octets of a request. A field table has half of that at most, as AMQP 0-9-1 encodes it."""
WAITING_BYTES_MAX = 1024 * 1024
"""Octets of a connection's requests without an answer. A session whose client sends more ends."""
REQUEST_OVERHEAD = 500
"""Octets of memory for a waiting request, beside its message."""


def is_management(attach: AttachFrame) -> bool:
    """Return whether the client attaches a link to the management node."""
    terminus = attach.source if attach.role else attach.target
    return terminus is not None and getattr(terminus, "address", None) == ADDRESS


class _PairRequest(NamedTuple):
    """A request that waits, or is under way."""

    octets: bytes
    pair: _Pair
    requests: ReceivingLink
    answers: SendingLink

    @property
    def size(self) -> int:
        """Octets of memory, about."""
        return len(self.octets) + REQUEST_OVERHEAD


class _Pair:
    """Two links of the same name in a session."""

    __slots__ = ("answers", "engine", "is_queued", "name", "owed", "requests", "waiting", "wants_drain")

    def __init__(self, engine: Session10, name: str) -> None:
        self.engine = engine
        self.name = name
        self.requests: ReceivingLink | None = None
        self.answers: SendingLink | None = None
        self.waiting: deque[_PairRequest] = deque()
        """Requests that are not under way."""
        self.owed = 0
        """Answers that the client still gets on `answers`."""
        self.wants_drain = False
        """Whether the credit for answers ends when all of them are sent."""
        self.is_queued = False
        """Whether the pair is in the queue of its node."""

    @property
    def may_begin(self) -> bool:
        """Whether a request waits, and the client's window takes its answer. A link that has ended takes any."""
        return bool(self.waiting) and (self.answers is None or not self.engine.deliveries.is_waiting)


class ManagementLink:
    """A link of a pair, as its connection keeps it."""

    __slots__ = ("_link", "_node", "_pair")

    address = ADDRESS

    def __init__(self, node: ManagementNode, pair: _Pair, link: ReceivingLink | SendingLink) -> None:
        self._node = node
        self._pair = pair
        self._link = link

    @property
    def is_busy(self) -> bool:
        """Whether requests of the client have no answer yet."""
        return self._pair.owed > 0

    def publish(self, event: Deliveries) -> None:
        """Take requests of the client."""
        self._node.receive(self._pair, event)

    def credit_set(self, event: CreditSet) -> None:
        """Take the client's credit for answers."""
        self._node.credit_set(self._pair, event)

    def pump(self) -> None:
        """Go on with the requests of the pair, because the client's window is open."""
        self._node.resume(self._pair)

    def renew(self, scopes: Scopes) -> None:
        """Take the scopes of a newer token. Each request is checked by itself."""
        self._node.access.renew(scopes)

    def finish(self, then: Callable[[], None]) -> None:
        """Call `then`, because the client detaches the link. Requests that it has sent are still carried out."""
        then()

    def end(self) -> None:
        self._node.detached(self._pair, self._link)


class ManagementNode:
    """The management node of a connection."""

    __slots__ = (
        "_carrier",
        "_commands",
        "_current",
        "_is_over",
        "_is_running",
        "_pairs",
        "_queue",
        "_waiting_bytes",
        "access",
    )

    def __init__(self, carrier: ManagedCarrier, connection_commands: ConnectionCommands) -> None:
        self._carrier = carrier
        self._commands = connection_commands
        self.access = Access(carrier.broker.machine, carrier.user, carrier.vhost, carrier.scopes)
        self._pairs: dict[tuple[Session10, str], _Pair] = {}
        self._queue: deque[_Pair] = deque()
        """Pairs with waiting requests."""
        self._current: _PairRequest | None = None
        """The request under way."""
        self._is_running = False
        """Whether `_run` begins a request, which may end at once."""
        self._is_over = False
        self._waiting_bytes = 0

    # Links

    def attach(
        self, link: ReceivingLink | SendingLink, session: Session10
    ) -> tuple[ManagementLink, Callable[[], list[Any]]] | None:
        """Return a link of a pair, and the function that accepts it; None if the session has to end."""
        attach = link.attach
        if (attach.properties or {}).get(PAIRED) is not True:
            text = "Link property 'paired' is not set to boolean value 'true'"
            return self._end_session(session, error_reply(Condition.INVALID_FIELD, text))
        pair = self._pairs.get((session, attach.name)) or _Pair(session, attach.name)
        if (pair.answers if attach.role else pair.requests) is not None:
            text = f"received invalid attach for management link pair '{attach.name}'"
            return self._end_session(session, error_reply(Condition.PRECONDITION_FAILED, text))
        self._pairs[session, attach.name] = pair
        if isinstance(link, ReceivingLink):
            pair.requests = link
            link.limit(LINK_CREDIT, REQUEST_BYTES_MAX)
        else:
            pair.answers, pair.owed, pair.wants_drain = link, 0, False
            link.outgoing = link.outgoing._replace(is_settled=True)
        return ManagementLink(self, pair, link), partial(link.accept, properties=attach.properties)

    def detached(self, pair: _Pair, link: ReceivingLink | SendingLink) -> None:
        """Forget a link of a pair, because it ends."""
        if pair.requests is link:
            pair.requests = None
        elif pair.answers is link:
            pair.answers, pair.owed = None, 0
        if pair.requests is pair.answers is None:
            self._pairs.pop((pair.engine, pair.name), None)
        self.resume(pair)

    def _end_session(self, session: Session10, error: ErrorReply) -> None:
        self._carrier.end_session(session, error)

    def end(self) -> None:
        """Drop all requests, because the connection ends."""
        self._is_over = True
        self._queue.clear()

    # From the client

    def receive(self, pair: _Pair, event: Deliveries) -> None:
        """Take requests. The session ends if the client has not prepared for their answers."""
        for octets in event.messages:
            answers = pair.answers
            if answers is None:
                text = "received transfer on half open management link pair"
                self._end_session(pair.engine, error_reply(Condition.PRECONDITION_FAILED, text))
                break
            if self._waiting_bytes > WAITING_BYTES_MAX:
                text = f"more than WAITING_BYTES_MAX={WAITING_BYTES_MAX} octets of management requests wait"
                self._end_session(pair.engine, error_reply(Condition.RESOURCE_LIMIT_EXCEEDED, text))
                break
            if answers.credit <= pair.owed:
                text = "insufficient credit (0) for management link from server to client"
                self._end_session(pair.engine, error_reply(Condition.PRECONDITION_FAILED, text))
                break
            pair.owed += 1
            request = _PairRequest(octets, pair, event.link, answers)
            pair.waiting.append(request)
            self._waiting_bytes += request.size
        self.resume(pair)

    def credit_set(self, pair: _Pair, event: CreditSet) -> None:
        """Take the credit for answers, and end it behind the last answer if the client drains it."""
        pair.wants_drain = event.is_drain
        if event.is_drain:
            self._drain(pair)
        elif event.wants_state:
            event.link.send_state(0)
            self._carrier.schedule_flush()

    def _drain(self, pair: _Pair) -> None:
        if pair.wants_drain and not pair.owed and pair.answers is not None:
            pair.wants_drain = False
            pair.answers.drained(0)
            self._carrier.schedule_flush()

    # The queue of requests

    def resume(self, pair: _Pair) -> None:
        """Go on with the requests of a pair."""
        if pair.may_begin and not pair.is_queued:
            pair.is_queued = True
            self._queue.append(pair)
        self.pump()

    def pump(self) -> None:
        """Begin the next requests, as far as the socket takes their answers."""
        if self._is_running:
            return
        self._is_running = True
        try:
            self._run()
        except Exception as error:  # noqa: BLE001  # it is logged; other clients must get their answers
            self._carrier.unexpected(error)
        finally:
            self._is_running = False

    def _run(self) -> None:
        while self._current is None and (pair := self._next_pair()) is not None:
            request = self._current = pair.waiting.popleft()
            if pair.waiting:
                pair.is_queued = True
                self._queue.append(pair)
            self._begin(request)

    def _next_pair(self) -> _Pair | None:
        """Remove pairs from the queue up to a pair that may begin a request. `resume` puts a pair back."""
        while self._queue and not self._is_over:
            if not self._carrier.has_room:
                self._carrier.pump_later(self)
                return None
            pair = self._queue.popleft()
            pair.is_queued = False
            if pair.may_begin:
                return pair
        return None

    def _begin(self, request: _PairRequest) -> None:
        try:
            envelope = open_envelope(request.octets)
        except ConditionError as error:
            self._carrier.detach(request.requests, reply_to(error))
            self._finish(request)
            return
        try:
            wanted = read_request(envelope)
        except ManagementRefused as refused:
            self._answer(request, envelope.message_id, ManagementAnswer(refused.status, refused.text))
            return
        # A request of any node that was answered before this request came is applied here first.
        carrier = self._carrier
        carry_out = partial(self._carry_out, request, envelope.message_id, wanted)
        carrier.broker.submissions.read(carrier.guarded(carry_out), carrier.lane)

    def _carry_out(self, request: _PairRequest, message_id: Value, wanted: ManagementRequest) -> None:
        if self._is_over:
            return
        answer = partial(self._answer, request, message_id)
        self.access.certain = True
        try:
            RequestExecution(self._carrier, self._commands, self.access, answer).carry_out(wanted)
        except ManagementRefused as refused:
            answer(ManagementAnswer(refused.status, refused.text))
        except AccessRefused as refused:
            self._end_session(request.pair.engine, unauthorized(str(refused)).error)
            self._finish(request)
        finally:
            self.access.certain = False

    def _answer(self, request: _PairRequest, message_id: Value, answer: ManagementAnswer) -> None:
        """Send the answer to the request under way."""
        if self._is_over:
            return
        message = encode_answer(message_id, answer)
        if len(message) > ANSWER_BYTES_MAX:
            message = encode_answer(message_id, ManagementAnswer(400, TOO_LARGE))
        limit = request.answers.attach.max_message_size
        if limit and len(message) > limit:
            text = f"message size ({len(message)} bytes) > maximum message size ({limit} bytes)"
            self._end_session(request.pair.engine, error_reply(Condition.MESSAGE_SIZE_EXCEEDED, text))
        else:
            request.answers.deliver(0, b"", [message])
            request.requests.settle(1, AcceptedState())
        self._finish(request)

    def _finish(self, request: _PairRequest) -> None:
        """End the request under way, and begin the next."""
        self._current = None
        self._waiting_bytes -= request.size
        pair = request.pair
        if request.answers is pair.answers:
            pair.owed -= 1
            self._drain(pair)
        self._carrier.schedule_flush()
        self.pump()
