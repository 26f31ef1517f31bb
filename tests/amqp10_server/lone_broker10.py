"""A lone broker that speaks AMQP 1.0, and a client of its management node."""

from __future__ import annotations

from typing import Any, NamedTuple

from qq.amqp10.composites import encode_composite, from_described
from qq.amqp10.connection import AMQP_HEADER, Settings10
from qq.amqp10.performatives import (
    AttachFrame,
    EndFrame,
    FlowFrame,
    OpenFrame,
    SenderSettleMode,
    SourceTerminus,
    TargetTerminus,
    TransferFrame,
)
from qq.amqp10.sections import MessageProperties
from qq.amqp10.values import Described, Symbol, ULong, Value, ValueReader, encode
from qq.amqp10_server.connection import served10
from qq.amqp10_server.server import Amqp10Server
from qq.client_sockets.listener import Tls
from tests.amqp10.amqp10_wire import frame
from tests.amqp10_server.socket_client import SocketClient
from tests.harness.lone_broker import NAME, LoneBroker

PAIRED: dict[Value, Value] = {Symbol("paired"): True}
REQUESTS, ANSWERS = 0, 1
"""Handles of the links to the management node."""


class LoneBroker10(LoneBroker):
    """A lone broker whose port speaks AMQP 1.0."""

    async def _listen(self, speaks_tls: Tls | None) -> int:
        sockets = self.server.sockets
        server = Amqp10Server(self.broker, Settings10(), sockets, 60, "guest", True, lambda: [NAME])
        self.served = [*self.served, served10(server)]
        self.broker._leader = NAME
        return await super()._listen(speaks_tls)


class ReadAnswer(NamedTuple):
    """An answer of the management node."""

    status: str | None
    body: Any
    correlation_id: Value
    application_properties: Any


def management_request(method: str, path: str, body: Value = None, message_id: Any = "id") -> bytes:
    """Return the message of a request."""
    properties = MessageProperties(message_id, subject=method, to=path, reply_to="$me")
    return encode_composite(properties) + encode(Described(ULong(0x77), body))


class ManagementClient(SocketClient):
    """A client with an open connection. `user` has a password of the same text."""

    def __init__(
        self, port: int, user: str = "guest", container: str = "client", vhost: str = "/", **fields: Any
    ) -> None:
        super().__init__(port)
        self._delivery_id = 0
        self.log_in(response=f"\0{user}\0{user}".encode())
        self.write(AMQP_HEADER + frame(OpenFrame(container, f"vhost:{vhost}", **fields)))
        assert self.read_octets(8) == AMQP_HEADER
        self.expect(OpenFrame)

    # The management node

    def manage(self, credit: int = 100, name: str = "pair") -> None:
        """Begin a session, and attach both links of a pair."""
        self.begin()
        self.attach_requests(name)
        self.expect(AttachFrame)
        self.expect(FlowFrame)
        self.attach_answers(name)
        self.expect(AttachFrame)
        self.give_credit(credit)

    def attach_requests(self, name: str = "pair", **fields: Any) -> None:
        given: dict[str, Any] = {
            "properties": PAIRED,
            "target": TargetTerminus("/management"),
            "source": SourceTerminus(),
        }
        given["snd_settle_mode"] = SenderSettleMode.SETTLED
        self.send(AttachFrame(name, REQUESTS, False, initial_delivery_count=0, **{**given, **fields}))

    def attach_answers(self, name: str = "pair", **fields: Any) -> None:
        given: dict[str, Any] = {
            "properties": PAIRED,
            "source": SourceTerminus("/management"),
            "target": TargetTerminus(),
        }
        given["snd_settle_mode"] = SenderSettleMode.SETTLED
        self.send(AttachFrame(name, ANSWERS, True, **{**given, **fields}))

    def give_credit(self, credit: int, window: int = 1000, **fields: Any) -> None:
        self.flow(window, handle=ANSWERS, link_credit=credit, **fields)

    def request(self, method: str, path: str, body: Value = None, message_id: Any = "id") -> ReadAnswer:
        """Send a request, and return its answer."""
        self.send_request(method, path, body, message_id)
        return self.answer()

    def send_request(
        self,
        method: str,
        path: str,
        body: Value = None,
        message_id: Any = "id",
        *,
        is_settled: bool = True,
    ) -> None:
        self.send_octets(management_request(method, path, body, message_id), is_settled=is_settled)

    def send_octets(self, message: bytes, *, is_settled: bool = True) -> None:
        transfer = TransferFrame(REQUESTS, self._delivery_id, b"tag", 0, is_settled)
        self._delivery_id += 1
        self.send(transfer, payload=message)

    def answer(self) -> ReadAnswer:
        """Return the next answer, which must come before the end of the session."""
        octets, more = b"", True
        while more:
            while not isinstance((received := self.receive()).performative, TransferFrame):
                assert not isinstance(received.performative, EndFrame), received
            assert received.performative.handle == ANSWERS
            octets, more = octets + received.payload, received.performative.more
        reader = ValueReader(octets, 0, len(octets))
        properties, named, body = [from_described(reader.read()) for _ in range(3)]
        assert reader.at == reader.end
        return ReadAnswer(properties.subject, body.value, properties.correlation_id, named.value)
