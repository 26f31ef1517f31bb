"""The floods of AMQP 1.0, by kinds: each performative that a client may send, and requests without end."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from chaos.fuzz.conversations10 import FRAME_MAX, data, managed_request, opening10, transfer
from chaos.fuzz.flooder import Flood
from chaos.fuzz.legal10 import (
    ALL,
    IDS_MAX,
    flow10,
    flow_with,
    list_of,
    nulls,
    pair,
    receiver10,
    sender10,
    settled10,
)
from qq.amqp10.connection import AMQP_HEADER, SASL_HEADER
from qq.amqp10.encoding import HEARTBEAT, encode_frame, encode_sasl
from qq.amqp10.performatives import (
    AcceptedState,
    AttachFrame,
    BeginFrame,
    CloseFrame,
    DetachFrame,
    EndFrame,
    ModifiedState,
    OpenFrame,
    SaslInit,
    SaslResponse,
    SenderSettleMode,
    SourceTerminus,
)
from qq.amqp10.values import Symbol

if TYPE_CHECKING:
    from collections.abc import Iterator

QUEUE = "q"
"""A quorum queue of the flooding user."""
BEGUN = b"\x00\x53\x11"
"""The beginning of the answer to the begin of a session."""
_ADDRESS = f"/queues/{QUEUE}"
_ATTACHED = 20
"""Frames after which the node has answered an attach before them, because a step of its reader takes fewer."""
_DETACHES = [encode_frame(0, DetachFrame(handle, closed=True)) for handle in range(200)]


def _properties(value: bytes) -> bytes:
    """Return a flow with this value in its properties."""
    return flow_with(b"\xd1" + struct.pack(">II", 4 + 3 + len(value), 2) + b"\xa3\1x" + value)


def _published(count: int) -> Iterator[bytes]:
    """Yield frames that publish messages on many links in turn, each with fewer messages than a link has credit."""
    for handle in range(200):
        yield sender10(_ADDRESS, handle)
        yield from [HEARTBEAT] * _ATTACHED
        yield from (transfer(number, data(b"x"), handle, settled=number % 2 > 0) for number in range(count))
        yield _DETACHES[handle]


def _consumed() -> Iterator[bytes]:
    """Yield frames that attach links to consume, drain them, and detach them."""
    for handle in range(200):
        yield receiver10(_ADDRESS, handle)
        yield flow10(10, handle, drain=True, echo=True)
        yield _DETACHES[handle]


def kinds10() -> dict[str, Flood]:
    """Return the floods by name."""
    begin, end = encode_frame(0, BeginFrame(None, 0, 1000, 1000)), encode_frame(0, EndFrame())
    dynamic = SourceTerminus(dynamic=True, capabilities=("temporary-queue",))
    requests, answers = 0, 1
    request = transfer(0, managed_request(0, "GET", f"/queues/{QUEUE}", None), settled=True)
    lists = list_of(9_000, b"\x45" * 9_000)
    frames = {
        "heartbeat": [HEARTBEAT],
        "open again": [encode_frame(0, OpenFrame("c"))],
        "close": [encode_frame(0, CloseFrame())],
        "begin, end": [begin, end],
        "begin, many": [
            frame for channel in range(1, 64) for frame in (_in(channel, begin), _in(channel, end))
        ],
        "attach to publish, detach": [
            frame for handle in range(200) for frame in (sender10(_ADDRESS, handle), _DETACHES[handle])
        ],
        "attach to consume, flow, detach": [*_consumed()],
        "attach, refused": [
            frame
            for handle in range(200)
            for frame in (receiver10("/queues/none", handle), encode_frame(0, DetachFrame(handle)))
        ],
        "attach, dynamic": [
            frame
            for handle in range(200)
            for frame in (
                encode_frame(
                    0, AttachFrame(f"d{handle}", handle, True, SenderSettleMode.SETTLED, source=dynamic)
                ),
                _DETACHES[handle],
            )
        ],
        "transfer": [*_published(300)],
        "transfer, no link": [transfer(0, data(b"x")), begin],
        "transfer, no credit": [
            sender10(_ADDRESS),
            *[transfer(0, data(b"x"))] * 1000,
            _DETACHES[0],
            end,
            begin,
        ],
        "flow": [flow10(5, None)],
        "flow, echo": [flow10(5, None, echo=True)],
        "flow, many nulls": [_properties(nulls(9_000 + number, 0x44)) for number in range(900)],
        "flow, many lists": [_properties(lists)],
        "disposition": [settled10(first, first + IDS_MAX, AcceptedState()) for first in range(100)],
        "disposition, modified": [
            settled10(number, number, ModifiedState(True, False, {Symbol(f"x-{number}"): "a" * 4_000}))
            for number in range(100)
        ],
    }
    floods = {f"{name} 1.0": Flood(again, is_amqp10=True) for name, again in frames.items()}
    reads = Flood(
        [flow10(credit, drain=credit % 2 > 0, echo=True) for credit in range(1000)],
        [receiver10(_ADDRESS)],
        is_amqp10=True,
    )
    managed = Flood([request], [*pair(0, (requests, answers)), flow10(ALL, answers)], is_amqp10=True)
    login = opening10(FRAME_MAX, "none", "none")[1]
    return {
        **floods,
        "flow, drain 1.0": reads,
        "management requests 1.0": managed,
        "headers 1.0": Flood([AMQP_HEADER], opened=False, is_amqp10=True),
        "failed logins 1.0": Flood([HEARTBEAT], [SASL_HEADER, login], opened=False, is_amqp10=True),
        "sasl-init 1.0": Flood([encode_sasl(SaslInit("PLAIN"))], [SASL_HEADER], opened=False, is_amqp10=True),
        "sasl-response 1.0": Flood(
            [encode_sasl(SaslResponse(b"x"))], [SASL_HEADER], opened=False, is_amqp10=True
        ),
        "reconnects 1.0": Flood([HEARTBEAT], life_s=0.02, is_amqp10=True),
    }


def _in(channel: int, frame: bytes) -> bytes:
    return frame[:6] + channel.to_bytes(2) + frame[8:]
