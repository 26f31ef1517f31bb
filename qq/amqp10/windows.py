"""The windows of a session: how many transfers each side may send (section 2.5.6).

Invariant: ids and windows count transfers, so each part of a message counts. Ids are serial numbers of 32 bits. The
server sends no transfer beyond the client's window, and a client that exceeds the server's window is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.amqp10.conditions import Condition, SessionFailure
from qq.amqp10.encoding import ID_MASK, deliveries, encode_short_frame
from qq.amqp10.performatives import MAX_UINT, BeginFrame, FlowFrame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.amqp10.encoding import Outgoing10
    from qq.amqp10.performatives import SessionPerformative
    from qq.amqp10.values import Value

HALF_OF_IDS = 2**31
"""A serial number is ahead of another by less than that, or it is behind it (RFC 1982)."""


class SessionWindows:
    """The windows of both directions, and the output of the session."""

    __slots__ = (
        "_next_incoming_id",
        "_next_outgoing_id",
        "_out",
        "_room",
        "channel",
        "client_outgoing_window",
        "client_room",
        "frame_max",
        "is_closed",
        "partial_bytes",
        "size",
    )

    def __init__(self, channel: int, begin: BeginFrame, size: int, frame_max: int, out: list[bytes]) -> None:
        self.channel = channel
        self.size = size
        """Transfers that the client may send after a flow."""
        self.frame_max = frame_max
        """The largest frame for the client, in octets."""
        self.is_closed = False
        """Whether the client is told that it may send no transfers."""
        self.partial_bytes = 0
        """Octets of incomplete deliveries of the client. The links count them."""
        self._out = out
        self._room = size
        """Transfers that the client may still send. While the window is closed, these may be under way."""
        self._next_incoming_id = begin.next_outgoing_id
        self._next_outgoing_id = 0
        self.client_room = begin.incoming_window
        """Transfers that the server may send."""
        self.client_outgoing_window = begin.outgoing_window
        """Transfers that the client can send, as it has said."""

    def begin(self, handle_max: int) -> None:
        """Answer the client's begin."""
        window = 0 if self.is_closed else self.size
        self.write(BeginFrame(self.channel, 0, window, MAX_UINT, handle_max))

    # --- the direction of the client

    def received(self, count: int) -> None:
        """Count transfers of the client. Raises `SessionFailure` if there are more than its window allows."""
        self._next_incoming_id = (self._next_incoming_id + count) & ID_MASK
        self._room -= count
        if self._room < 0:
            raise SessionFailure(
                Condition.WINDOW_VIOLATION, f"incoming window violation by {-self._room} transfers"
            )
        if self._room <= self.size // 2 and not self.is_closed:
            self._room = self.size
            self.send_flow()

    def close(self) -> None:
        """Let the client send no transfers. The transfers that are under way are still accepted."""
        if not self.is_closed:
            self.is_closed = True
            self.send_flow()

    def open(self) -> None:
        """Let the client send transfers again."""
        if self.is_closed:
            self.is_closed = False
            self._room = self.size
            self.send_flow()

    # --- the direction of the server

    def send_deliveries(self, link: Outgoing10, first_id: int, head: bytes, bodies: Sequence[bytes]) -> None:
        """Send deliveries of a transfer each, at most `client_room`."""
        deliveries(link, first_id, head, bodies, self._out)
        self._count_sent(len(bodies))

    def send_transfers(self, frames: Sequence[bytes]) -> None:
        """Send encoded transfers, at most `client_room`."""
        self._out += frames
        self._count_sent(len(frames))

    def _count_sent(self, count: int) -> None:
        self._next_outgoing_id = (self._next_outgoing_id + count) & ID_MASK
        self.client_room -= count

    def update(self, flow: FlowFrame) -> None:
        """Take over the client's windows. Raises `SessionFailure` for ids that the server has not used yet."""
        # A client that has not read the server's begin knows no id. The first id is 0.
        under_way = (self._next_outgoing_id - (flow.next_incoming_id or 0)) & ID_MASK
        if under_way >= HALF_OF_IDS:
            raise SessionFailure(
                Condition.INVALID_FIELD, f"next-incoming-id {flow.next_incoming_id} was not sent yet"
            )
        self.client_room = max(0, flow.incoming_window - under_way)
        self._next_incoming_id = flow.next_outgoing_id
        self.client_outgoing_window = flow.outgoing_window

    # --- for operators

    @property
    def next_incoming_id(self) -> int:
        return self._next_incoming_id

    @property
    def next_outgoing_id(self) -> int:
        return self._next_outgoing_id

    @property
    def incoming_window(self) -> int:
        """Transfers that the client may send, as it was told."""
        return 0 if self.is_closed else self._room

    # --- output

    def write(self, performative: SessionPerformative) -> None:
        self._out.append(self.encode(performative))

    def encode(self, performative: SessionPerformative) -> bytes:
        """Encode a frame, whose error is cut off where the client's largest frame ends."""
        return encode_short_frame(self.channel, performative, self.frame_max)

    def write_encoded(self, frames: Sequence[bytes]) -> None:
        self._out += frames

    def send_flow(
        self,
        handle: int | None = None,
        delivery_count: int | None = None,
        link_credit: int | None = None,
        available: int | None = None,
        *,
        drain: bool = False,
        properties: dict[Value, Value] | None = None,
    ) -> None:
        """Send the windows, and with a handle the state of a link."""
        windows = (
            self._next_incoming_id,
            self.incoming_window,
            self._next_outgoing_id,
            MAX_UINT,
        )
        self.write(
            FlowFrame(
                *windows, handle, delivery_count, link_credit, available, drain=drain, properties=properties
            )
        )
