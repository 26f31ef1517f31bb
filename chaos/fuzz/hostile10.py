"""A hostile client of AMQP 1.0: it sends the items of an act as fast as the node takes them.

Invariant: the client keeps to the credit and the windows that the node has given, and uses a handle again when both
sides have detached. Each error of the node is counted; an error of the node's own raises `HarmError`.
"""

from __future__ import annotations

import select
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from chaos.fuzz.answers import Answers10, HarmError
from chaos.fuzz.conversations10 import FRAME_MAX, framed, opening10
from chaos.fuzz.legal10 import Message, Received
from qq.amqp10.composites import encode_composite
from qq.amqp10.encoding import encode_frame
from qq.amqp10.performatives import (
    AttachFrame,
    BeginFrame,
    CloseFrame,
    DetachFrame,
    EndFrame,
    FlowFrame,
    TransferFrame,
)
from qq.amqp10.values import Described, ValueReader

if TYPE_CHECKING:
    import socket
    from collections import Counter
    from collections.abc import Callable, Iterable

    from chaos.fuzz.legal10 import Item10

PATIENCE_S = 60.0
SEND_BYTES = 256 * 1024
WINDOW = 1000
"""Transfers that the client takes in its first session after a flow."""
_MASK = 2**32 - 1
_TAG_BYTES = 4
_BEGIN, _ATTACH, _DETACH = 0x11, 0x12, 0x16
"""Codes of performatives."""


class _Session:
    """The client's view of a session."""

    def __init__(self, first_id: int) -> None:
        self.next_id = first_id
        """The transfer id of the next transfer."""
        self.next_delivery = first_id
        self.window_end = first_id
        self.received = 0
        """Transfers of the node."""
        self.credit: dict[int, int] = {}
        """By the handles of links on which the client publishes."""
        self.sent: dict[int, int] = {}
        """Delivery counts by the same handles, from their first flow on."""
        self.detaching: set[int] = set()
        """Handles whose detach the node has not answered."""

    @property
    def window(self) -> int:
        room = (self.window_end - self.next_id) & _MASK
        return room if room < 2**31 else 0


class _Reader(Answers10):
    """Passes the frames of the node on to the client."""

    def __init__(self, closes: Counter[str], take: Callable[[int, Any], None]) -> None:
        super().__init__(closes, FRAME_MAX)
        self._pass_on = take

    def _take(self, channel: int, body: bytes) -> None:
        self._channel = channel
        super()._take(channel, body)

    def _count(self, performative: Any) -> None:
        super()._count(performative)
        self._pass_on(self._channel, performative)


class HostileClient10:
    """A connection of a hostile client."""

    def __init__(self, client: socket.socket, answers: Counter[str]) -> None:
        self._socket = client
        self._reader = _Reader(answers, self._take)
        self._sessions: dict[int, _Session] = {}
        self._out = bytearray()
        self._transfers = 0
        """Transfers that the node has sent."""
        self._is_closed = False

    def run(self, user: str, vhost: str, items: Iterable[Item10], *, closes: bool) -> None:
        """Send all items, and then close the connection if `closes`. Raises HarmError."""
        with suppress(BrokenPipeError, ConnectionResetError):  # earlier answers are lost with the connection
            self._sessions[0] = _Session(0)
            self._send(b"".join(opening10(FRAME_MAX, user, vhost)))
            self._pump(lambda: 0 in self._sessions and self._sessions[0].window > 0)
            for item in items:
                if self._is_closed:
                    return
                self._send_item(item)
            self._pump(lambda: True)
            if closes and not self._is_closed:
                self._send(encode_frame(0, CloseFrame()))
                self._pump(lambda: self._is_closed)

    def _send_item(self, item: Item10) -> None:
        match item:
            case bytes():
                self._note(int.from_bytes(item[6:8]), item[10], item)
                self._send(item)
                if len(self._out) >= SEND_BYTES:
                    self._pump(lambda: True)
            case Received(transfers):
                self._pump(lambda: self._transfers >= transfers or 0 not in self._sessions)
            case Message():
                self._publish(item)

    def _note(self, channel: int, code: int, frame: bytes) -> None:
        """Record the beginning of a session or of a link."""
        if code == _BEGIN:
            self._sessions[channel] = _Session(_fields_of(frame)[1])
        elif code == _ATTACH and (session := self._sessions.get(channel)):
            handle = _fields_of(frame)[1]
            self._pump(lambda: handle not in session.detaching or channel not in self._sessions)
            session.credit.pop(handle, None)
            session.sent.pop(handle, None)
        elif code == _DETACH and (session := self._sessions.get(channel)):
            session.detaching.add(_fields_of(frame)[0])

    def _publish(self, message: Message) -> None:
        """Send a message when link and session have room, unless they have ended."""
        channel, handle = message.channel, message.handle

        def is_over() -> bool:
            return self._is_closed or channel not in self._sessions

        def may_send() -> bool:
            return is_over() or self._sessions[channel].credit.get(handle, 0) != 0

        self._pump(may_send)
        if is_over() or self._sessions[channel].credit[handle] < 0:
            return
        session = self._sessions[channel]
        delivery, session.next_delivery = session.next_delivery, (session.next_delivery + 1) & _MASK
        session.credit[handle] -= 1
        session.sent[handle] = (session.sent[handle] + 1) & _MASK
        tag = delivery.to_bytes(_TAG_BYTES)
        transfer = TransferFrame(handle, delivery, tag, 0, message.is_settled)
        octets, part = message.octets, message.part
        for at in range(0, len(octets), part):
            if not session.window or len(self._out) >= SEND_BYTES:
                self._pump(lambda: is_over() or self._sessions[channel].window > 0)
                if is_over():
                    return
            more = at + part < len(octets) or not message.is_complete
            body = encode_composite(transfer._replace(more=more)) + octets[at : at + part]
            self._send(framed(body, channel))
            session.next_id = (session.next_id + 1) & _MASK
            transfer = TransferFrame(handle)

    # The node's frames

    def _take(self, channel: int, performative: Any) -> None:
        session = self._sessions.get(channel)
        if isinstance(performative, CloseFrame):
            self._is_closed = True
        elif session is None:
            return
        elif isinstance(performative, BeginFrame):
            session.window_end = (session.next_id + performative.incoming_window) & _MASK
        elif isinstance(performative, FlowFrame):
            _update(session, performative)
        elif isinstance(performative, AttachFrame) and performative.role:
            session.credit[performative.handle] = 0
        elif isinstance(performative, DetachFrame):
            handle = performative.handle
            if handle in session.detaching:
                session.detaching.discard(handle)
            else:
                session.credit[handle] = -1
                self._send(encode_frame(channel, DetachFrame(handle, closed=True)))
        elif isinstance(performative, EndFrame):
            del self._sessions[channel]
            if performative.error is not None:
                self._send(encode_frame(channel, EndFrame()))
        elif isinstance(performative, TransferFrame):
            self._transfers += 1
            session.received += 1
            if channel == 0 and session.received % (WINDOW // 2) == 0:
                self._send(encode_frame(0, FlowFrame(session.received, WINDOW, session.next_id, 0)))

    # The socket

    def _send(self, octets: bytes) -> None:
        self._out += octets

    def _pump(self, done: Callable[[], bool]) -> None:
        """Write all output and read the answers until `done` returns true, or the connection is closed.

        Raises HarmError after a long silence.
        """
        client = self._socket
        client.setblocking(False)
        while (self._out or not done()) and not self._is_closed:
            readable, writable, _ = select.select([client], [client] if self._out else [], [], PATIENCE_S)
            if not readable and not writable:
                raise HarmError(f"a hostile client has heard nothing for {PATIENCE_S:g} s")
            if readable:
                octets = client.recv(SEND_BYTES)
                if not octets:
                    raise HarmError("a hostile client was hung up on without a word")
                self._reader.add(octets)
            if writable:
                with suppress(BlockingIOError):
                    del self._out[: client.send(memoryview(self._out)[:SEND_BYTES].tobytes())]


def _fields_of(frame: bytes) -> list[Any]:
    """Return the fields of the performative in a frame of the client."""
    described = ValueReader(frame, 8, len(frame)).read()
    fields = described.value if isinstance(described, Described) else None
    return fields if isinstance(fields, list) else []


def _update(session: _Session, flow: FlowFrame) -> None:
    session.window_end = ((flow.next_incoming_id or 0) + flow.incoming_window) & _MASK
    handle = flow.handle
    if handle is not None and session.credit.get(handle, -1) >= 0:
        count = flow.delivery_count or 0
        used = (session.sent.setdefault(handle, count) - count) & _MASK
        session.credit[handle] = max(0, (flow.link_credit or 0) - used)
