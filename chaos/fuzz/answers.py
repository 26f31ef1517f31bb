"""The answers of a node to a damaged client of each protocol, as far as they must be right.

Invariant: octets of the node that no client may get raise `HarmError`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Protocol

import pamqp.frame
from pamqp import commands, exceptions

from chaos.fuzz.conversations import PROTOCOL_HEADER
from qq.amqp10.composites import from_described
from qq.amqp10.conditions import Condition, ConditionError
from qq.amqp10.connection import AMQP_HEADER, SASL_HEADER
from qq.amqp10.performatives import (
    AttachFrame,
    CloseFrame,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    RejectedState,
    SaslOutcome,
    TransferFrame,
)
from qq.amqp10.values import Described, ValueReader

if TYPE_CHECKING:
    from collections import Counter

    from pamqp.frame import FrameTypes

INTERNAL_ERROR = 541
"""The reply code for an error of the node's own; a lone node never lacks a majority."""
_HEADERS10 = (SASL_HEADER, AMQP_HEADER)
_CONDITIONS = {condition.value for condition in Condition}
_HEADER_OCTETS = 8


class HarmError(Exception):
    """A required property does not hold."""


class Answers(Protocol):
    """Reads the octets of a node, and counts the closes among them."""

    def add(self, data: bytes, /) -> None:
        """Read octets. Raises HarmError."""
        ...

    @property
    def rest(self) -> bytes:
        """The beginning of an incomplete frame."""
        ...


class Answers091:
    """Reads the answers to a client of AMQP 0-9-1."""

    def __init__(self, closes: Counter[str]) -> None:
        self._closes = closes
        self._frames = Frames091()
        self._ended = False

    def add(self, data: bytes) -> None:
        self._frames.add(data)
        while (frame := self._frames.next()) is not None:
            count_close(frame, self._closes, closed=self._ended)
            self._ended = self._ended or isinstance(frame, commands.Connection.Close)

    @property
    def rest(self) -> bytes:
        return b"" if self._frames.rest == PROTOCOL_HEADER else self._frames.rest


class Frames091:
    """Splits the bytes from the node into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, data: bytes) -> None:
        self._rest += data

    @property
    def rest(self) -> bytes:
        return self._rest

    def next(self) -> FrameTypes | None:
        """Return the next frame, or None if it is not complete. Raises HarmError for other bytes."""
        if not self._rest or PROTOCOL_HEADER.startswith(self._rest):
            return None
        try:
            size, _, frame = pamqp.frame.unmarshal(self._rest)
        except exceptions.UnmarshalingException as error:
            if _is_begun(self._rest):
                return None
            raise HarmError(f"the node has sent {self._rest[:40]!r}: {error}") from None
        if not size:
            return None
        self._rest = self._rest[size:]
        return frame


def _is_begun(data: bytes) -> bool:
    """Return whether these octets begin an incomplete frame."""
    if len(data) < 7:
        return True
    (size,) = struct.unpack_from(">I", data, 3)
    return data[0] in (1, 2, 3, 8) and len(data) < size + 8


def count_close(frame: FrameTypes, closes: Counter[str], *, closed: bool) -> None:
    """Count a frame that closes a channel or the connection; `closed` says whether it comes behind such a frame."""
    if closed and not isinstance(frame, commands.Connection.CloseOk):
        raise HarmError(f"behind its connection.close the node has sent {frame!r}")
    if isinstance(frame, commands.Connection.Close | commands.Channel.Close):
        closes[f"{frame.name.split('.')[0].lower()} {frame.reply_code}"] += 1
        if frame.reply_code == INTERNAL_ERROR:
            raise HarmError(f"a client was told {frame.reply_text}")


class Answers10:
    """Reads the answers to a client of AMQP 1.0."""

    def __init__(self, closes: Counter[str], frame_max: int) -> None:
        """`frame_max` is the largest frame that the client takes, in octets."""
        self._closes = closes
        self._frame_max = frame_max
        self._ended = False
        self._rest = b""
        self.has_links = False
        """Whether the node has answered an attach."""

    @property
    def rest(self) -> bytes:
        return self._rest

    def add(self, data: bytes) -> None:
        self._rest += data
        while len(self._rest) >= _HEADER_OCTETS:
            if self._rest.startswith(b"AMQP"):
                header, self._rest = self._rest[:_HEADER_OCTETS], self._rest[_HEADER_OCTETS:]
                if header not in _HEADERS10:
                    raise HarmError(f"the node has sent the header {header!r}")
                continue
            size, doff, kind, channel = struct.unpack_from(">IBBH", self._rest)
            if not _HEADER_OCTETS <= size <= self._frame_max or doff != 2 or kind > 1:
                text = f"size {size} instead of {self._frame_max} at most"
                raise HarmError(f"the node has sent a frame of {text}: {self._rest[:80]!r}")
            if len(self._rest) < size:
                return
            body, self._rest = self._rest[_HEADER_OCTETS:size], self._rest[size:]
            if body:
                self._take(channel, body)

    def _take(self, channel: int, body: bytes) -> None:
        values = ValueReader(body, 0, len(body))
        try:
            described = values.read()
            performative: Any = from_described(described) if isinstance(described, Described) else None
        except ConditionError as error:
            raise HarmError(f"the node has sent {body[:80]!r}: {error}") from None
        if performative is described or performative is None:
            raise HarmError(f"the node has sent {described!r}")
        if values.at < len(body) and not isinstance(performative, TransferFrame):
            raise HarmError(f"behind a performative the node has sent {body[values.at :][:80]!r}")
        if self._ended:
            raise HarmError(f"behind its close the node has sent {performative!r} in channel {channel}")
        self._ended = isinstance(performative, CloseFrame)
        self.has_links = self.has_links or isinstance(performative, AttachFrame)
        self._count(performative)

    def _count(self, performative: Any) -> None:
        error = None
        if isinstance(performative, DetachFrame | EndFrame | CloseFrame):
            error = performative.error
        elif isinstance(performative, DispositionFrame) and isinstance(performative.state, RejectedState):
            error = performative.state.error
        elif isinstance(performative, SaslOutcome) and performative.code:
            self._closes["login refused"] += 1
        if error is None:
            return
        if error.condition not in _CONDITIONS or error.condition == Condition.INTERNAL_ERROR.value:
            raise HarmError(f"a client was told {error}")
        kind = type(performative).__name__.removesuffix("Frame").lower()
        self._closes[f"{kind} {error.condition}"] += 1
