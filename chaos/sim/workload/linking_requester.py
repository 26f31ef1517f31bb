"""A simulated client of AMQP 1.0 that requests through a queue, and judges the replies on its link for direct replies.

It shares the queue with clients of AMQP 0-9-1 (`requesting_client.py`), and all of them answer all requests.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import proton

from chaos.sim.workload.amqp10_client import Amqp10Client
from chaos.sim.workload.requesting_client import (
    PREFETCH,
    REPLIES_MAX,
    REQUESTS,
    REQUESTS_MAX,
    THINKING_MAX_S,
    Replies,
    Reply,
    ReplyConsumer,
)

if TYPE_CHECKING:
    from chaos.sim.workload.simulated_client import ConnectionHooks
    from chaos.sim.world.world import SimulatedWorld

CAPABILITIES: Any = proton.Array(
    cast("Any", proton.UNDESCRIBED), proton.Data.SYMBOL, proton.symbol("rabbitmq:volatile-queue")
)
QUEUES = "/queues/"
CREDIT = 200
SET_UP_S = 0.2
"""Seconds between attempts to find the queue of requests."""


class LinkingRequester(Amqp10Client):
    """A client that requests, and checks the replies that it gets."""

    def __init__(
        self, name: str, world: SimulatedWorld, hooks: ConnectionHooks, interval_s: float, replies: Replies
    ) -> None:
        self._replies = replies
        self._numbers = count(1)
        """Numbers for requests and links."""
        super().__init__(name, world, hooks, interval_s)

    def _reset(self) -> None:
        super()._reset()
        self._session: Any = None
        self._sender: Any = None
        """The link for requests."""
        self._replier: Any = None
        """The link for replies to other clients, without a target."""
        self._server: Any = None
        """The link that gets requests."""
        self._consumers: dict[str, ReplyConsumer] = {}
        """The links for replies by their names, until the node has answered their end."""
        self._current: Any = None
        """The link that gets the replies to new requests."""
        self._ending: set[str] = set()
        self._awaited: set[str] = set()
        """Requests after the last fault that have no reply yet."""

    # Its course

    @property
    def problem(self) -> str:
        if not self._is_ready:
            return f"client {self.name} is not connected"
        if self._awaited or self._ending:
            return f"client {self.name} waits for replies to {self._awaited} and ends of {self._ending}"
        return ""

    def publish_once(self) -> None:
        if self._is_ready and not self._closing:
            self._request()
            self._write()

    def settle(self) -> None:
        """Request once more: without further faults each request gets its reply."""
        self._draining = True
        self.publish_once()

    def drain(self) -> None:
        """Keep on: the replies are taken as they come."""

    def _do_something(self) -> None:
        choice = self._random.random()
        if choice < 0.92:
            self._request()
        elif choice < 0.95:
            self._replace_link()
        elif choice < 0.97:
            self._stop_reading()
        elif choice < 0.985:
            self._close()
        else:
            self._drop()
        self._write()

    def _opened(self) -> None:
        self._session = self._engine.session()
        self._session.open()
        self._set_up()

    def _set_up(self) -> None:
        """Attach the links as soon as the queue of requests exists."""
        if not self._replies.is_served:
            self._while_connected(SET_UP_S, self._set_up)
            return
        self._sender = self._session.sender(f"{self._connection} requests")
        self._sender.target.address = f"{QUEUES}{REQUESTS}"
        self._sender.open()
        self._replier = self._session.sender(f"{self._connection} replier")
        self._replier.open()
        self._server = self._session.receiver(f"{self._connection} server")
        self._server.source.address = f"{QUEUES}{REQUESTS}"
        self._server.open()
        self._server.flow(PREFETCH)
        self._attach()
        self._write()

    # Requests

    def _attach(self) -> None:
        """Attach a link for replies."""
        link = self._current = self._session.receiver(f"{self._connection} replies {next(self._numbers)}")
        link.source.dynamic = True
        link.source.expiry_policy = proton.Terminus.EXPIRE_WITH_LINK
        link.source.capabilities.put_py_array(CAPABILITIES)
        link.snd_settle_mode = proton.Link.SND_SETTLED
        link.open()
        link.flow(CREDIT)
        self._consumers[link.name] = ReplyConsumer(link.name)

    def _replace_link(self) -> None:
        """End the link for replies, and attach another at once."""
        self._is_ready = False
        self._ending.add(self._current.name)
        self._current.close()
        self._attach()

    def _request(self) -> None:
        if self._sender.credit <= 0:
            return
        consumer = self._consumers[self._current.name]
        for _ in range(min(self._random.randint(1, REQUESTS_MAX), self._sender.credit)):
            number = next(self._numbers)
            request = f"{self._connection}-{number}"
            consumer.requests.add(request)
            message = proton.Message(f"{request} ".encode(), inferred=True)
            message.reply_to = self._current.remote_source.address
            self._sender.delivery(str(number))
            self._sender.send(message.encode())
            self._sender.advance()
            if self._draining:
                self._awaited.add(request)

    # Answers

    def _link_answered(self, link: Any) -> None:
        if link.name == self._current.name:
            if not (link.remote_source.address or "").startswith(QUEUES):
                self._fail(f"has a link for replies with address {link.remote_source.address}")
            self._ready()
            if self._draining:
                self.publish_once()

    def _link_ended(self, link: Any) -> None:
        if link.name not in self._ending:
            self._fail(f"has link {link.name} detached: {link.remote_condition}")
        self._ending.discard(link.name)
        self._consumers.pop(link.name, None)
        link.free()

    def _changed(self, delivery: Any) -> None:
        link = delivery.link
        if link.is_sender:
            if delivery.updated and delivery.remote_state not in (
                proton.Delivery.ACCEPTED,
                proton.Delivery.REJECTED,  # its outcome is unknown
            ):
                self._fail(f"has a message {delivery.remote_state}")
            delivery.settle()
            return
        if delivery.partial:
            return
        message = proton.Message()
        message.decode(link.recv(delivery.pending) or b"")
        body: Any = message.body
        link.advance()
        if link.name == self._server.name:
            delay_s = 0.0 if self._draining else self._random.uniform(0.0, THINKING_MAX_S)
            request = bytes(body).decode().split(" ")[0]
            self._while_connected(delay_s, partial(self._serve, delivery, message.reply_to or "", request))
            return
        if not delivery.settled:
            self._fail("gets a reply that is not settled")
        delivery.settle()
        if link.credit < CREDIT // 2:
            link.flow(CREDIT)
        self._check_reply(link, Reply.unpacked(bytes(body)))

    def _serve(self, delivery: Any, address: str, request: str) -> None:
        """Reply to a request as soon as there is credit, and accept it."""
        if self._replier.credit <= 0:
            self._while_connected(SET_UP_S, partial(self._serve, delivery, address, request))
            return
        name = address.removeprefix(QUEUES)
        self._replies.addresses.append(name)
        for _ in range(min(self._random.randint(1, REPLIES_MAX), self._replier.credit)):
            number = next(self._numbers)
            body = Reply(request, f"{self._connection}/replier", number, name).packed()
            message = proton.Message(body, inferred=True, address=address)
            self._replier.delivery(str(number))
            self._replier.send(message.encode())
            self._replier.advance()
        delivery.update(proton.Delivery.ACCEPTED)
        delivery.settle()
        self._server.flow(1)
        self._write()

    def _check_reply(self, link: Any, reply: Reply) -> None:
        problem = self._consumers[link.name].problem_of(
            reply, link.remote_source.address.removeprefix(QUEUES)
        )
        if problem:
            self._fail(problem)
        self._awaited.discard(reply.request)
        self._replies.delivered += 1

    def _flowed(self, link: Any) -> None:
        """Ignored: the client looks at its credit when it publishes."""

    def _read(self) -> None:
        """Ignored: each event is handled by itself."""
