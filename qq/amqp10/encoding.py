"""Encodes the output of AMQP 1.0: frames, deliveries, outcomes.

Invariant: a message is sent unchanged; only the performative before it is packed.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from qq.amqp10.composites import encode_composite
from qq.amqp10.framing import HEADER_OCTETS, StreamStage
from qq.amqp10.performatives import (
    AcceptedState,
    CloseFrame,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    ErrorReply,
    ModifiedState,
    RejectedState,
    ReleasedState,
    TransferFrame,
)
from qq.octets import octets_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.amqp10.performatives import AmqpPerformative, SaslPerformative

ID_MASK = 2**32 - 1
"""Ids are serial numbers of 32 bits (RFC 1982)."""
_CUT = "..."
"""Stands for the rest of a description."""
HEARTBEAT = b"\x00\x00\x00\x08\x02\x00\x00\x00"
ACCEPTED = encode_composite(AcceptedState())
RELEASED = encode_composite(ReleasedState())

TRANSFER_OVERHEAD = 33
"""Octets of a transfer around its part of a message, at most."""

LAYOUTS_MAX = 256
"""Layouts of transfers that the node remembers, one for each size of heads."""

_HEADER = Struct(">IBBH")
_DOFF = 2
_TRANSFER_HEAD = Struct(">BBH6sBIB")
"""Header behind the size, descriptor and list, handle, constructor of the delivery id."""
_TRANSFER_LIST = b"\x00\x53\x14\xc0\x13\x05"
_UINT_CODE = 0x70
_TAG_HEAD = b"\xa0\x04"
_TAILS = {True: b"\x43\x41", False: b"\x43\x42"}
"""Message format 0, and whether the delivery is settled."""
_TAG = Struct(">I")
_IDS = Struct(">II2sI")
"""Size, delivery id, constructor of the tag, tag."""
_OUTCOME = Struct(">IBBH8sIBI5s")
_OUTCOME_LIST = b"\x00\x53\x15\xc0\x11\x05\x41\x70"
"""Descriptor and list, role of the receiver, constructor of the first id."""


def encode_frame(channel: int, performative: AmqpPerformative) -> bytes:
    """Encode a frame of a connection, without payload."""
    return _frame(StreamStage.AMQP, channel, encode_composite(performative))


def encode_short_frame(channel: int, performative: AmqpPerformative, frame_max: int) -> bytes:
    """Encode a frame of at most `frame_max` octets, if less of its error or of its outcome makes it so short."""
    frame = encode_frame(channel, performative)
    while len(frame) > frame_max:
        shorter = _shorter(performative, len(frame) - frame_max)
        if shorter == performative:
            break
        performative, frame = shorter, encode_frame(channel, shorter)
    return frame


def _shorter(performative: AmqpPerformative, excess: int) -> AmqpPerformative:
    """Return the performative with less of its error or of its outcome, or unchanged."""
    if isinstance(performative, DetachFrame | EndFrame | CloseFrame):
        return performative._replace(error=_shortened(performative.error, excess))
    if isinstance(performative, DispositionFrame):
        state = performative.state
        if isinstance(state, RejectedState):
            return performative._replace(state=RejectedState(_shortened(state.error, excess)))
        if isinstance(state, ModifiedState):
            return performative._replace(state=state._replace(message_annotations=None))
    return performative


def _shortened(error: ErrorReply | None, excess: int) -> ErrorReply | None:
    """Return the error without its info, or else with less of its description, or else none."""
    if error is None or error.info is not None:
        return error and error._replace(info=None)
    octets = octets_of(error.description or "")
    kept = len(octets) - excess - len(_CUT)
    return None if kept < 0 else ErrorReply(error.condition, octets[:kept].decode(errors="ignore") + _CUT)


def encode_sasl(performative: SaslPerformative) -> bytes:
    """Encode a frame of a login."""
    return _frame(StreamStage.SASL, 0, encode_composite(performative))


def _frame(stage: StreamStage, channel: int, body: bytes) -> bytes:
    return _HEADER.pack(HEADER_OCTETS + len(body), _DOFF, stage, channel) + body


def outcome_frame(channel: int, first: int, last: int, outcome: bytes) -> bytes:
    """Encode the disposition of a receiver that settles these deliveries as `ACCEPTED` or `RELEASED`."""
    return _OUTCOME.pack(
        _OUTCOME.size, _DOFF, 0, channel, _OUTCOME_LIST, first, _UINT_CODE, last, b"\x41" + outcome
    )


class Outgoing10(NamedTuple):
    """A link on which the server sends."""

    channel: int
    handle: int
    is_settled: bool
    """Whether each delivery is settled when it is sent."""
    frame_max: int
    """The largest frame that the client takes, in octets."""


def deliveries(
    link: Outgoing10, first_id: int, head: bytes, bodies: Sequence[bytes], out: list[bytes]
) -> None:
    """Append the transfers of messages to `out`. Delivery ids count from `first_id`; the tag is the id in octets.

    A message is a head (header and annotations, which the server writes) and a body (the bare message and footer).
    """
    begin = _TRANSFER_HEAD.pack(
        _DOFF, StreamStage.AMQP, link.channel, _TRANSFER_LIST, _UINT_CODE, link.handle, _UINT_CODE
    )
    tail = _TAILS[link.is_settled] + head
    sizes = list(map(len, bodies))
    largest, count, overhead = max(sizes), len(sizes), _IDS.size + len(begin) + len(tail)
    ids: Sequence[int] = range(first_id, first_id + count)
    if ids[-1] > ID_MASK:
        ids = [delivery_id & ID_MASK for delivery_id in ids]
    if overhead + largest >= link.frame_max:  # the transfer of a part may take an octet more
        for delivery_id, body in zip(ids, bodies, strict=True):
            delivery_in_parts(link, delivery_id, head + body, out)
        return
    # `map` and interleaved slices take less than half the time of a loop.
    frames = [b""] * (2 * count)
    around = ids, repeat(_TAG_HEAD), ids, repeat(tail)
    if sizes.count(largest) == count:
        begin = (overhead + largest).to_bytes(4, "big") + begin
        frames[::2] = map(_transfer_layout("", len(begin), len(tail)).pack, repeat(begin), *around)
    else:
        layout = _transfer_layout("I", len(begin), len(tail))
        frames[::2] = map(layout.pack, map(overhead.__add__, sizes), repeat(begin), *around)
    frames[1::2] = bodies
    out += frames


@lru_cache(LAYOUTS_MAX)
def _transfer_layout(size: str, begin: int, tail: int) -> Struct:
    """Return the layout of a transfer up to the body: the size, if it differs, and parts around id and tag."""
    return Struct(f">{size}{begin}sI2sI{tail}s")


def delivery_in_parts(link: Outgoing10, delivery_id: int, message: bytes, out: list[bytes]) -> None:
    """Append the transfers of a message that takes several frames, perhaps. Each item of `out` is a frame."""
    room = link.frame_max - TRANSFER_OVERHEAD
    tag = _TAG.pack(delivery_id)
    transfer = TransferFrame(link.handle, delivery_id, tag, 0, link.is_settled)
    for at in range(0, len(message) or 1, room):
        body = encode_composite(transfer._replace(more=at + room < len(message)))
        out.append(_frame(StreamStage.AMQP, link.channel, body + message[at : at + room]))
        transfer = TransferFrame(link.handle)
