"""A client of the sans-IO connection for tests: it writes frames, and reads those of the server."""

from __future__ import annotations

from typing import Any

from qq.amqp10.connection import (
    AMQP_HEADER,
    SASL_HEADER,
    LoginRequested,
    OpenRequested,
    ServerConnection10,
    SessionBegun,
    Settings10,
)
from qq.amqp10.framing import Heartbeat10
from qq.amqp10.performatives import (
    AttachFrame,
    BeginFrame,
    FlowFrame,
    OpenFrame,
    SaslInit,
    SourceTerminus,
    TargetTerminus,
)
from qq.amqp10.session import LinkRequested
from tests.amqp10.amqp10_wire import StreamStage, flat, frame, read_all, reader_of_frames

LOGIN = frame(SaslInit("PLAIN", b"\0u\0p"), stage=StreamStage.SASL)
OPEN = frame(OpenFrame("client", "vhost:/"))
PIPELINED = SASL_HEADER + LOGIN + AMQP_HEADER + OPEN


class Client10:
    """A client with an open connection."""

    def __init__(self, settings: Settings10 | None = None, open_frame: bytes = OPEN) -> None:
        self.server = ServerConnection10(settings or Settings10(), ("PLAIN", "ANONYMOUS"))
        (login,) = self.server.receive(SASL_HEADER + LOGIN + AMQP_HEADER + open_frame)
        assert login == LoginRequested("PLAIN", b"\0u\0p")
        self.opened = self.server.accept_login()
        octets = b"".join(self.server.out)
        self.server.out[:] = [octets[octets.index(AMQP_HEADER) + len(AMQP_HEADER) :]]
        for event in self.opened:
            assert isinstance(event, OpenRequested)
            assert not self.server.accept_open()

    def send(self, performative: Any, channel: int = 0, payload: bytes = b"") -> list[Any]:
        return self.send_octets(frame(performative, channel, payload))

    def send_octets(self, octets: bytes) -> list[Any]:
        events: list[Any] = list(self.server.receive(octets))
        while self.server.has_more:
            events += self.server.receive(b"")
        return events

    def read(self) -> list[Any]:
        """Return the performatives that the server has sent since the last call."""
        octets = b"".join(self.server.out)
        self.server.out.clear()
        frames = flat(read_all(reader_of_frames(), [octets]))
        return [each if isinstance(each, Heartbeat10) else each.performative for each in frames]

    def begin(self, channel: int = 0, window: int = 1000) -> Any:
        (event,) = self.send(BeginFrame(None, 0, window, 1000), channel)
        assert isinstance(event, SessionBegun)
        self.read()
        return event.session

    def attach_sender(self, channel: int = 0, **fields: Any) -> Any:
        """Attach a link on which the client sends; the server accepts it."""
        link = self.request_sender(channel, **fields)
        assert not link.accept()
        self.read()
        return link

    def request_sender(self, channel: int = 0, **fields: Any) -> Any:
        fields = {
            "name": "s",
            "handle": 0,
            "initial_delivery_count": 0,
            "target": TargetTerminus("/q"),
            **fields,
        }
        (event,) = self.send(AttachFrame(role=False, source=SourceTerminus(), **fields), channel)
        assert isinstance(event, LinkRequested)
        return event.link

    def attach_receiver(self, channel: int = 0, **fields: Any) -> Any:
        """Attach a link on which the client receives; the server accepts it."""
        link = self.request_receiver(channel, **fields)
        assert not link.accept()
        self.read()
        return link

    def request_receiver(self, channel: int = 0, **fields: Any) -> Any:
        fields = {"name": "r", "handle": 0, "source": SourceTerminus("/q"), **fields}
        (event,) = self.send(AttachFrame(role=True, target=TargetTerminus(), **fields), channel)
        assert isinstance(event, LinkRequested)
        return event.link

    def flow(
        self, channel: int = 0, window: int = 1000, next_incoming_id: int = 0, **fields: Any
    ) -> list[Any]:
        return self.send(FlowFrame(next_incoming_id, window, 0, 1000, **fields), channel)
