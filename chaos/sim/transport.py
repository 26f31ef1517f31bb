"""What carries the clients of a recorded run to simulated nodes.

Lives here: connections that are as late and as mortal as real ones, and what clients say on them. Not here: what nodes
make of it (sessions.py), clients (chaos/workloads), which know nothing of this.

Law: what is on its way arrives in order, or not at all. Clients speak in commands of the log, and of AMQP there are
only the stored messages.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pamqp.frame
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from chaos.sim.queue_features import CHANNEL, publishes
from chaos.sim.sessions import NodeSessions, Sent, Session
from chaos.sim.workload import Generations
from chaos.workloads.messages import Delivery
from chaos.workloads.transport import LostError, Questions, RefusedError
from qq.machine.commands import (
    BindQueue,
    Cancel,
    Checkout,
    Command,
    Commit,
    DeclareQueue,
    DeleteQueue,
    Discard,
    Get,
    Return,
    Settle,
)
from qq.machine.effects import QueueDeclared, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from random import Random

    from chaos.sim.checks import Checks
    from chaos.sim.cluster import SimulatedCluster, SimulatedNode
    from chaos.sim.world import World
    from chaos.workloads.messages import Outgoing
    from chaos.workloads.transport import Endpoint, Mode, Outcome, Settling

T = TypeVar("T")

CONNECTION = 1
"""All are in the default virtual host, and own nothing."""
DELAY_MIN_S, DELAY_MAX_S = 0.0002, 0.005
"""Delay of what a client and its node say to each other."""
PREFETCH_MAX = 1_000_000
_SETTLED_BY = {"ack": Settle, "nack": Return, "reject": Discard}


class Wire:
    """One direction of a connection."""

    def __init__(
        self, world: World, random: Random, at: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self._world = world
        self._random = random
        self._at = at
        self._arrival_s = 0.0

    def send(self, callback: Callable[[], None]) -> None:
        delay_s = self._random.uniform(DELAY_MIN_S, DELAY_MAX_S)
        self._arrival_s = max(self._arrival_s, self._world.now_s + delay_s)
        self._at(self._arrival_s, callback)


class SimulatedTransport(Generations[NodeSessions]):
    """The transport to the simulated nodes; it hears of the nodes' lives, as the sessions on them do."""

    def __init__(self, world: World, cluster: SimulatedCluster, checks: Checks) -> None:
        super().__init__(checks)
        self.world = world
        self.random = world.random("transport")
        self.ids = count(CONNECTION + 1)
        """Numbers for sessions and consumers."""
        self._nodes = {node.name: node for node in cluster.nodes}

    async def connect(self, endpoint: Endpoint, lost: Callable[[str], None]) -> SimulatedConnection:
        await asyncio.sleep(self.random.uniform(DELAY_MIN_S, DELAY_MAX_S))
        node = self._nodes[endpoint.node]
        if not (node.up and node.has_started):
            raise LostError(f"{node.name} refuses connections")
        return SimulatedConnection(self, self.clients[node.name], lost)

    def is_present(self, sessions: NodeSessions) -> bool:
        """Whether these are the sessions of what the node is now."""
        return self.clients[sessions.node.name] is sessions and sessions.life == sessions.node.life

    def new_client(self, node: SimulatedNode, number: int) -> NodeSessions:
        return NodeSessions(node, number, self.checks)

    def ended(self, node: SimulatedNode) -> None:
        if node.name in self.clients:
            self.clients[node.name].break_off("the node has ended")

    def expelled(self, node: SimulatedNode) -> None:
        self.clients[node.name].break_off("the others have given the node up")
        super().expelled(node)


class SimulatedConnection:
    def __init__(
        self, transport: SimulatedTransport, sessions: NodeSessions, lost: Callable[[str], None]
    ) -> None:
        self.ids = transport.ids
        self.sessions = sessions
        sessions.connections[self] = None
        self._transport = transport
        self._lost = lost
        self._to_node = Wire(transport.world, transport.random, transport.world.at)
        self._to_client = Wire(transport.world, transport.random, asyncio.get_running_loop().call_at)
        self._channels: list[Session] = []
        self._questions = Questions()
        self._is_over = False

    async def open_channel(self, mode: Mode = "plain", prefetch: int = 0) -> SimulatedChannel:
        session = Session(next(self.ids), self)
        self._channels.append(session)
        self.say(partial(self.sessions.begin, session))
        return SimulatedChannel(self, session, len(self._channels), mode, prefetch or PREFETCH_MAX)

    async def close(self) -> None:
        for session in self._channels:
            self.say(partial(self.sessions.end, session))
        self._end("closed")

    # To the node

    def say(self, act: Callable[[], object]) -> None:
        """Have the node do something, unless it is in another life by then."""
        self._to_node.send(partial(self._heard, act))

    def _heard(self, act: Callable[[], object]) -> None:
        node = self.sessions.node

        def carry_out() -> None:
            if self._transport.is_present(self.sessions):
                act()

        node.runtime.enter(carry_out)

    async def ask(self, ask: Callable[[Callable[[T], None]], object]) -> T:
        """Have the node do something, and wait for what it tells. Raises LostError."""
        if self._is_over:
            raise LostError("the connection is gone")
        return await self._questions.ask(lambda hear: self.say(partial(ask, hear)))

    # To the client

    def tell(self, callback: Callable[..., None], *arguments: object) -> None:
        self._to_client.send(partial(self._told, callback, *arguments))

    def _told(self, callback: Callable[..., None], *arguments: object) -> None:
        if not self._is_over:
            callback(*arguments)

    def broken(self, why: str) -> None:
        self.tell(self._over, why)

    def _over(self, why: str) -> None:
        self._end(why)
        self._lost(why)

    def _end(self, why: str) -> None:
        self._is_over = True
        self.sessions.connections.pop(self, None)
        self._questions.fail(LostError(why))


class SimulatedChannel:
    def __init__(
        self, connection: SimulatedConnection, session: Session, number: int, mode: Mode, prefetch: int
    ) -> None:
        self.number = number
        self._connection = connection
        self._sessions = connection.sessions
        self._session = session
        self._mode: Mode = mode
        self._prefetch = prefetch
        self._published = 0
        self._tags = count(1)
        self._delivered: dict[int, tuple[int, int]] = {}
        """Consumer and message id of each delivery, by delivery tag."""
        self._consumers: dict[str, int] = {}
        self._content: list[Command] = []
        self._messages: list[bytes] = []
        """Messages of the transaction under way."""

    async def declare(self, queue: str, arguments: Mapping[str, Any]) -> None:
        await self._ask(self._declaration(queue, arguments, passive=False))

    async def count(self, queue: str) -> int:
        declared = await self._ask(self._declaration(queue, {}, passive=True))
        return cast("QueueDeclared", declared).messages

    async def bind(self, queue: str, exchange: str) -> None:
        await self._ask(BindQueue(self._session.number, CONNECTION, queue, exchange, queue, {}))

    async def delete(self, queue: str) -> None:
        await self._ask(DeleteQueue(self._session.number, CONNECTION, queue, if_unused=False, if_empty=False))

    async def publish(self, message: Outgoing, key: str, exchange: str = "") -> Outcome:
        in_transaction = self._mode == "transactions"
        self._published += not in_transaction
        first_seq = 0 if in_transaction else self._published
        messages = [stored_message(message)]
        commands = publishes(self._session.number, first_seq, exchange, key, messages, mandatory=True)
        if in_transaction:
            self._content += commands
            self._messages += messages
            return "sent"
        return await self._connection.ask(partial(self._sessions.publish, self._session, commands, messages))

    async def consume(
        self, queue: str, tag: str, receive: Callable[[Delivery], None], cancelled: Callable[[], None]
    ) -> None:
        consumer = self._consumers[tag] = next(self._connection.ids)
        self._session.receivers[consumer] = lambda sent: receive(self._received(sent))
        self._session.cancelled[consumer] = cancelled
        await self._ask(
            Checkout(
                self._session.number,
                CONNECTION,
                CHANNEL,
                consumer,
                queue,
                tag,
                self._prefetch,
                no_ack=False,
                exclusive=False,
                auto_credit=True,
                cancel_on_failover=False,
                can_be_cancelled=True,
                timeout_ms=0,
                arguments={},
            )
        )

    async def cancel(self, tag: str) -> None:
        await self._ask(Cancel(self._session.number, self._consumers[tag]))

    async def get(self, queue: str) -> Delivery | None:
        consumer = next(self._connection.ids)
        get = Get(self._session.number, CONNECTION, CHANNEL, consumer, queue, no_ack=False, timeout_ms=0)
        got = await self._ask(get)
        return self._received(got[0]) if isinstance(got, list) else None

    async def settle(self, tag: int, settling: Settling) -> None:
        consumer, message_id = self._delivered[tag]
        command = _SETTLED_BY[settling](consumer, message_id, message_id)
        if self._mode == "transactions":
            self._content.append(command)
        else:
            self._connection.say(partial(self._sessions.carry_out, command))

    async def commit(self) -> None:
        commit = Commit(self._session.number, len(self._content))
        content, messages = self._content, self._messages
        self._content, self._messages = [], []
        await self._ask(commit, *content, messages=messages)

    async def rollback(self) -> None:
        self._content, self._messages = [], []

    def _declaration(self, queue: str, arguments: Mapping[str, Any], *, passive: bool) -> DeclareQueue:
        flags = {"passive": passive, "durable": True, "exclusive": False, "auto_delete": False}
        number = self._session.number
        return DeclareQueue(number, CONNECTION, queue, **flags, server_named=False, arguments=dict(arguments))

    async def _ask(self, *commands: Command, messages: Sequence[bytes] = ()) -> Result | list[Sent]:
        def submit(hear: Callable[[Result | list[Sent] | None], None]) -> None:
            self._session.asked.append(hear)
            self._sessions.carry_out(*commands, messages=messages)

        answer = await self._connection.ask(submit)
        if answer is None:
            raise RefusedError("the node has closed the channel")
        return answer

    def _received(self, sent: Sent) -> Delivery:
        tag = next(self._tags)
        self._delivered[tag] = (sent.consumer, sent.message_id)
        return read_message(tag, sent)


def stored_message(message: Outgoing) -> bytes:
    """A message as its publisher sends it: content header and body."""
    properties = Basic.Properties(
        message_id=message.id,
        delivery_mode=2,
        priority=message.priority,
        headers=message.headers or None,
    )
    header = ContentHeader(body_size=len(message.body), properties=properties)
    return b"".join(pamqp.frame.marshal(frame, CHANNEL) for frame in (header, ContentBody(message.body)))


def read_message(tag: int, sent: Sent) -> Delivery:
    size, _, header = pamqp.frame.unmarshal(sent.stored)
    _, _, body = pamqp.frame.unmarshal(sent.stored[size:])
    properties = cast("ContentHeader", header).properties
    return Delivery(
        tag,
        properties.message_id,
        cast("ContentBody", body).value,
        properties.headers or {},
        sent.redelivered,
        properties.priority,
    )
