"""Simulated AMQP clients that request and reply by direct reply-to, and judge the replies that they get.

Each client requests through a queue, and answers the requests that the queue delivers to it. A reply's body names the
request, the responder's channel, the number of the reply on that channel, and the address.

Invariant: a requester gets a reply at most once, in the order of its responder's channel, only to its own requests, and
only while the consumer that made the request consumes. A message to an address in the form of reply names is never
returned, any other message to no queue is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from pamqp import commands

from chaos.sim.workload.amqp_client import AmqpClient
from chaos.sim.world.brokers import GUEST, Login

if TYPE_CHECKING:
    from chaos.sim.workload.amqp_client import ClientChannel, Content
    from chaos.sim.workload.simulated_client import ConnectionHooks
    from chaos.sim.world.world import SimulatedWorld

Basic, Channel, Confirm, Queue, Tx = (
    commands.Basic,
    commands.Channel,
    commands.Confirm,
    commands.Queue,
    commands.Tx,
)

REPLY_TO = "amq.rabbitmq.reply-to"
ADDRESS_LETTERS = 22
"""Characters behind the prefix of each address."""
REQUESTS = "requests"
FOREIGN = Login("foreign", "foreigner", "secret")
REQUESTING, REPLYING, SERVING = 1, 2, 3
"""Channel numbers. Replies leave on the second channel, with confirms or transactions or neither, and on the third."""
PREFETCH = 5
"""Requests that a client answers at a time."""
REQUESTS_MAX = 2
REPLIES_MAX = 3
THINKING_MAX_S = 0.05
LOGGED, LARGE = 0.15, 0.02
"""Shares of the replies that go through the log, and of large replies."""
LARGE_BYTES = 70_000
"""Such a reply is too large for a message between nodes, so it goes through the log."""


class Reply(NamedTuple):
    """The content of a reply."""

    request: str
    channel: str
    """The responder's channel, unique in the run."""
    number: int
    """Number of the reply on that channel."""
    address: str

    def packed(self) -> bytes:
        return " ".join(map(str, self)).encode() + b" "

    @classmethod
    def unpacked(cls, body: bytes) -> Reply:
        request, channel, number, address, *_ = body.decode().split(" ")
        return cls(request, channel, int(number), address)


@dataclass(slots=True)
class Replies:
    """The shared knowledge of the clients of a run."""

    addresses: list[str] = field(default_factory=list)
    """The addresses of all requests that a responder has got."""
    delivered: int = 0
    is_served: bool = False
    """Whether the queue of requests exists."""

    def serve(self) -> None:
        self.is_served = True


@dataclass(slots=True)
class ReplyConsumer:
    """A consumer of direct replies."""

    tag: str
    requests: set[str] = field(default_factory=set)
    last: dict[str, int] = field(default_factory=dict)
    """Number of the last reply from each channel of a responder."""

    def problem_of(self, reply: Reply, address: str) -> str:
        """Return the promise that a reply to an address breaks, or "". Count the reply."""
        last = self.last.get(reply.channel, 0)
        self.last[reply.channel] = reply.number
        if reply.request not in self.requests:
            return f"gets a reply to {reply.request}, which is no request of consumer '{self.tag}'"
        if address != reply.address:
            return f"gets a reply to address {reply.address} at {address}"
        if reply.number <= last:
            return f"gets reply {reply.number} of {reply.channel} after reply {last}"
        return ""


class ReplyingClient(AmqpClient):
    """A client that publishes messages to the addresses of requesters."""

    _unconfirmed: dict[int, str]

    def __init__(
        self,
        name: str,
        world: SimulatedWorld,
        hooks: ConnectionHooks,
        interval_s: float,
        replies: Replies,
        login: Login = GUEST,
    ) -> None:
        self._replies = replies
        self._numbers = count(1)
        """Numbers for requests, replies and consumers."""
        super().__init__(name, world, hooks, interval_s, login)

    def _reset(self) -> None:
        super()._reset()
        self._mode = self._random.choice((Confirm.Select, Tx.Select, None))
        """How replies leave on their own channel."""
        self._unroutable: set[str] = set()
        """Messages to no queue that have not been returned yet."""

    def _open_replying(self) -> None:
        self._open_channel(REPLYING)
        if self._mode is not None:
            self._call(REPLYING, self._mode(), (Confirm.SelectOk, Tx.SelectOk))

    def _reply(self, number: int, address: str, request: str, *, large: bool = False) -> None:
        """Publish a reply on a channel."""
        reply = Reply(request, f"{self._connection}/{number}", next(self._numbers), address)
        has_form = address.startswith(f"{REPLY_TO}.") and len(address) == len(REPLY_TO) + 1 + ADDRESS_LETTERS
        publish = Basic.Publish(routing_key=address, mandatory=self._random.random() < 0.5)
        # A reply with an expiration goes through the log.
        logged = Basic.Properties(expiration="60000") if self._random.random() < LOGGED else None
        self._send_message(number, publish, reply.packed().ljust(LARGE_BYTES if large else 0, b"."), logged)
        if publish.mandatory and not has_form:
            self._unroutable.add(request)
        channel = self._channels[number]
        if number == REPLYING and self._mode is Confirm.Select:
            channel.published += 1
            self._unconfirmed[channel.published] = request
        elif number == REPLYING and self._mode is Tx.Select:
            self._call(REPLYING, Tx.Commit(), Tx.CommitOk)

    def _guess(self, address: str) -> None:
        """Reply, without a request, to an address that leads to no requester."""
        if self._channels[REPLYING].is_open and not self._blocked:
            self._reply(REPLYING, address, f"guess-{self._connection}-{next(self._numbers)}")

    def _confirmed(self, tag: int, *, refused: bool) -> None:
        message = self._unconfirmed.pop(tag)
        if message in self._unroutable and not refused:
            self._fail(f"is confirmed {message}, which no queue got, before it is returned")

    def _returned(self, content: Content) -> None:
        if content.ident not in self._unroutable:
            self._fail(f"is returned {content.ident}, which has the address of a requester")
        self._unroutable.discard(content.ident)


class RequestingClient(ReplyingClient):
    """A client that requests, replies, and checks the replies that it gets."""

    def _reset(self) -> None:
        super()._reset()
        self._consumers: dict[str, ReplyConsumer] = {}
        """The consumers of replies by tag, until the node has confirmed their end."""
        self._current: ReplyConsumer | None = None
        """The consumer that gets the replies to new requests."""
        self._awaited: set[str] = set()
        """Requests after the last fault that have no reply yet."""

    # Its course

    @property
    def problem(self) -> str:
        if self._is_ready and self._awaited:
            return f"client {self.name} waits for a reply to {self._awaited}"
        return super().problem

    def publish_once(self) -> None:
        self._request()

    def settle(self) -> None:
        """Request once more: without further faults each request gets its reply."""
        self._draining = True
        if self._current is None:
            self._consume_again()
        else:
            self._request()

    def drain(self) -> None:
        """Keep on: the client consumes requests until the end."""

    def _do_something(self) -> None:
        choice = self._random.random()
        if self._current is None:
            self._consume_again()
        elif choice < 0.92:
            self._request()
        elif choice < 0.935:
            self._cancel()
        elif choice < 0.945:
            self._close_requesting()
        elif choice < 0.96:
            self._stop_reading()
        elif choice < 0.99:
            self._guess(REPLY_TO + "." + "x" * self._random.choice((0, 10, ADDRESS_LETTERS)))
        elif choice < 0.995:
            self._close()
        else:
            self._drop()

    def _opened(self) -> None:
        self._open_replying()
        self._open_channel(SERVING)
        declare = Queue.Declare(queue=REQUESTS, durable=True, arguments={"x-queue-type": "quorum"})
        self._call(SERVING, declare, Queue.DeclareOk, lambda _: self._replies.serve())

        def serving(_: Any) -> None:
            self._channels[SERVING].consumers[REQUESTS] = REQUESTS

        self._call(SERVING, Basic.Qos(prefetch_count=PREFETCH), Basic.QosOk)
        consume = Basic.Consume(queue=REQUESTS, consumer_tag=REQUESTS)
        self._call(SERVING, consume, Basic.ConsumeOk, serving)
        self._begin_requesting()

    # Requests

    def _begin_requesting(self) -> None:
        self._open_channel(REQUESTING)
        self._consumers.clear()
        self._consume()

    def _consume(self) -> None:
        consumer = ReplyConsumer(f"replies {next(self._numbers)}")
        channel = self._channels[REQUESTING]

        def consuming(_: Any) -> None:
            channel.consumers[consumer.tag] = REPLY_TO
            self._current = self._consumers[consumer.tag] = consumer
            self._ready()
            if self._draining:
                self._request()

        consume = Basic.Consume(queue=REPLY_TO, consumer_tag=consumer.tag, no_ack=True)
        self._call(REQUESTING, consume, Basic.ConsumeOk, consuming)

    def _consume_again(self) -> None:
        channel = self._channels.get(REQUESTING)
        if channel is not None and channel.is_open and not channel.calls:
            self._consume()

    def _request(self) -> None:
        if self._current is None or self._blocked:
            return
        for _ in range(self._random.randint(1, REQUESTS_MAX)):
            request = f"{self._connection}-{next(self._numbers)}"
            self._current.requests.add(request)
            publish = Basic.Publish(routing_key=REQUESTS)
            self._send_message(
                REQUESTING, publish, f"{request} ".encode(), Basic.Properties(reply_to=REPLY_TO)
            )
            if self._draining:
                self._awaited.add(request)

    def _cancel(self) -> None:
        """Cancel the consumer of replies; perhaps begin the next at once."""
        consumer, self._current = self._current, None
        if consumer is None:
            return
        channel = self._channels[REQUESTING]

        def cancelled(_: Any) -> None:
            del channel.consumers[consumer.tag], self._consumers[consumer.tag]

        self._call(REQUESTING, Basic.Cancel(consumer.tag), Basic.CancelOk, cancelled)
        if self._random.random() < 0.5:
            self._consume()

    def _close_requesting(self) -> None:
        channel = self._channels[REQUESTING]
        if channel.is_open and not channel.calls:
            self._current = None
            channel.is_open = False
            close = Channel.Close(200, "", 0, 0)
            self._call(REQUESTING, close, Channel.CloseOk, lambda _: self._begin_requesting())

    # Messages

    def _arrived(self, channel: ClientChannel, content: Content) -> None:
        if isinstance(content.frame, Basic.Return):
            self._returned(content)
        elif channel.number == SERVING:
            delay_s = 0.0 if self._draining else self._random.uniform(0.0, THINKING_MAX_S)
            address = content.properties.reply_to or ""
            self._replies.addresses.append(address)
            tag = content.frame.delivery_tag
            self._while_connected(delay_s, partial(self._serve, tag, address, content.ident))
        else:
            self._check_reply(self._consumers[content.frame.consumer_tag], content)

    def _serve(self, tag: int, address: str, request: str) -> None:
        """Reply to a request, and acknowledge it."""
        for _ in range(self._random.randint(1, REPLIES_MAX)):
            number = self._random.choice((REPLYING, SERVING))
            if self._channels[number].is_open:
                self._reply(number, address, request, large=self._random.random() < LARGE)
        self._send(SERVING, Basic.Ack(tag))

    def _check_reply(self, consumer: ReplyConsumer, content: Content) -> None:
        reply = Reply.unpacked(content.body)
        problem = consumer.problem_of(reply, content.frame.routing_key)
        if problem:
            self._fail(problem)
        self._awaited.discard(reply.request)
        self._replies.delivered += 1


class ForeignClient(ReplyingClient):
    """A client of a second virtual host, which publishes to the addresses of requesters of the first."""

    def publish_once(self) -> None:
        self._do_something()

    def settle(self) -> None:
        """Keep on: each message is confirmed in its time."""

    def drain(self) -> None:
        """Keep on: the client has no consumers."""

    def _do_something(self) -> None:
        if self._is_ready and self._replies.addresses:
            recent = self._replies.addresses[-20:]
            self._guess(self._random.choice(recent))

    def _opened(self) -> None:
        self._open_channel(REPLYING)
        self._mode = Confirm.Select
        self._call(REPLYING, Confirm.Select(), Confirm.SelectOk, lambda _: self._ready())

    def _arrived(self, channel: ClientChannel, content: Content) -> None:
        if isinstance(content.frame, Basic.Return):
            self._returned(content)
        else:
            self._fail(f"gets {content.ident} on channel {channel.number}, on which it does not consume")
