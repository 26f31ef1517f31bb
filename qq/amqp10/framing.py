"""Parses the frames of AMQP 1.0: turns a stream of bytes into events.

A link sends transfers whose performatives differ in delivery id and tag only. Dispositions and flows of a session
differ in a few numbers. The slow path makes a *template* of such a frame. The fast path reads frames that fit the
template.

Invariant: the fast paths take only complete frames that equal their template octet for octet, except in numbers and
tags. The slow path reads all other input, and alone reports errors. However the stream is cut, the same frames come
out. Memory is bounded by a single incomplete frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

from qq.amqp10.composites import from_described
from qq.amqp10.conditions import BadFrame, ConditionError, UndecodableValue
from qq.amqp10.performatives import (
    AcceptedState,
    AmqpPerformative,
    DispositionFrame,
    FlowFrame,
    ModifiedState,
    RejectedState,
    ReleasedState,
    SaslInit,
    SaslPerformative,
    SaslResponse,
    TransferFrame,
)
from qq.amqp10.values import LIST8, LIST32, Described, ValueReader, skip
from qq.octet_columns import has_columns
from qq.octet_stream import SteppedReader

FRAME_MAX_MIN = 512
"""The least max-frame-size of a peer, in octets (section 2.1)."""
FRAME_MAX_UNTUNED = 8192
"""The largest frame of a login and before open, in octets, as in RabbitMQ."""
STEP_WORK = 64 * 1024
"""Work of a step of the reader: the octets that it has parsed, and more for each frame of the slow path."""
VALUE_WORK = 2
"""Work of an octet of a performative in the slow path, besides that: it may be a value, which takes 0.3 µs."""
FRAME_WORK = 4096
"""Work of a frame of the slow path, besides its octets. Such a frame takes 0.1 ms to carry out, perhaps."""
TEMPLATES_MAX = 256
"""Links of a connection whose transfers have a template."""
ALIKE_MIN, ALIKE_MAX = 16, 256
"""Consecutive transfers of equal size behind which as many are read together, and the most that are read together. So
an attempt that fails costs no more than the transfers before it."""

HEADER_OCTETS = 8
"""Octets of a protocol header, and of the header of a frame."""
_HEADER = Struct(">IBBH")
_DOFF_MIN = 2
_LIST_AT = 11
"""Position of the constructor of a performative's list, in a frame that begins in the usual way."""
_FIELDS_AT = {LIST8: 14, LIST32: 20}
_TRANSFERS = {b"\x00\x53\x14\xc0": 16, b"\x00\x53\x14\xd0": 22}
"""Beginnings of transfers, each with the position behind the octets that tell links apart: a handle of two octets."""
_DISPOSITIONS = frozenset(b"\x00\x53\x15" + bytes((code,)) for code in (LIST8, LIST32))
_FLOWS = frozenset(b"\x00\x53\x13" + bytes((code,)) for code in (LIST8, LIST32))
_UINT_FORMATS = {0x52: "B", 0x70: "I"}
_BINARY8 = 0xA0


class StreamStage(IntEnum):
    """The kind of octets that comes next; for frames, the type octet of their headers."""

    AMQP = 0
    SASL = 1
    PROTOCOL_HEADER = 2


class ProtocolHeader(NamedTuple):
    """The 8 octets with which a peer begins, or which are no such header."""

    octets: bytes


class FrameReceived(NamedTuple):
    """A frame that no fast path takes."""

    channel: int
    performative: AmqpPerformative | SaslPerformative
    payload: bytes
    """The octets behind the performative: a message or a part of it."""


class Transfers(NamedTuple):
    """Consecutive transfers on a link, each a complete delivery."""

    channel: int
    performative: TransferFrame
    """An earlier transfer, from which these differ in delivery id and tag only."""
    ids: list[int]
    """The delivery ids."""
    tags: list[bytes]
    """The delivery tags."""
    messages: list[bytes]
    """The payloads."""


class Dispositions(NamedTuple):
    """Consecutive dispositions of a session with the same outcome."""

    channel: int
    performative: DispositionFrame
    """An earlier disposition, from which these differ in their ranges only."""
    ranges: list[tuple[int, int]]
    """First and last delivery id of each."""


class Heartbeat10(NamedTuple):
    """The peer is alive."""


class FrameFault(NamedTuple):
    """A frame whose performative is invalid. The stream goes on behind it."""

    channel: int
    error: ConditionError


class StreamFault(NamedTuple):
    """The stream no longer consists of valid frames. Always the last event."""

    error: BadFrame


FrameEvent = (
    ProtocolHeader | FrameReceived | Transfers | Dispositions | Heartbeat10 | FrameFault | StreamFault
)


@dataclass(slots=True, eq=False)
class _TransferTemplate:
    """Transfers of a link: `layout` divides the header and performative into the parts below."""

    layout: Struct
    """Size, head, delivery id, constructor of the tag, tag, tail."""
    values: str
    """The layout of the delivery id and the tag. The octets around them are skipped."""
    head: bytes
    tag_head: bytes
    tail: bytes
    fixed: tuple[tuple[int, int], ...]
    """Positions in a frame, each with the octet that stands there in all frames, except for the size."""
    channel: int
    performative: TransferFrame
    last_size: int = 0
    """The size of the last frame."""
    alike: int = 0
    """Consecutive frames of that size."""


class _DispositionTemplate(NamedTuple):
    """Dispositions of a session: `layout` divides a frame into the parts below."""

    layout: Struct
    """Head, first id and tail; if `is_range`, the constructor of the last id and that id precede the tail."""
    head: bytes
    is_range: bool
    last_head: bytes
    tail: bytes
    channel: int
    performative: DispositionFrame


class _FlowTemplate(NamedTuple):
    """Flows whose fields have the same encodings: `layout` divides a frame into constant parts and unsigned values."""

    layout: Struct
    """Constant parts and values in turn; it begins and ends with a constant part."""
    constants: tuple[bytes, ...]
    fields: tuple[int, ...]
    """Positions of the values among the fields of the performative."""
    channel: int
    performative: FlowFrame


class FrameReader10(SteppedReader[FrameEvent]):
    """Parses the byte stream of a connection into events.

    `stage` and `frame_max` may be changed between calls. With `stepwise`, a step ends after a single event. The
    handshake needs that, because an event can change how the next octets are read. A step also ends after a protocol
    header.
    """

    __slots__ = (
        "_disposition",
        "_flows",
        "_is_broken",
        "_transfers",
        "frame_max",
        "stage",
        "stepwise",
    )

    HEADER_OCTETS = HEADER_OCTETS

    def __init__(self) -> None:
        super().__init__()
        self.frame_max = FRAME_MAX_UNTUNED
        """The largest frame, in octets."""
        self.stage = StreamStage.PROTOCOL_HEADER
        self.stepwise = True
        self._is_broken = False
        self._transfers: dict[bytes, _TransferTemplate] = {}
        """By the beginnings of their frames, behind the size."""
        self._flows: dict[bytes, _FlowTemplate] = {}
        """By the sizes of their frames."""
        self._disposition: _DispositionTemplate | None = None

    def _read(self, data: bytes, at: int, events: list[FrameEvent]) -> int:
        end = len(data)
        if self._is_broken:
            return end
        work_end = at + STEP_WORK
        """Position at which the work of this step is done. Each frame of the slow path brings it nearer."""
        while end - at >= HEADER_OCTETS and at < work_end and not (events and self.stepwise):
            if self.stage is StreamStage.PROTOCOL_HEADER:
                events.append(ProtocolHeader(data[at : at + HEADER_OCTETS]))
                return at + HEADER_OCTETS
            reached = self._read_alike(data, at, work_end, events)
            if reached > at:
                at = reached
                work_end -= FRAME_WORK
                continue
            size, doff, kind, channel = _HEADER.unpack_from(data, at)
            if error := self._error_of(size, doff, kind):
                self._is_broken = True
                events.append(StreamFault(error))
                return end
            stop = at + size
            if stop > end:
                self._need = size
                break
            work_end -= FRAME_WORK
            work_end -= VALUE_WORK * self._read_frame(data[at:stop], 4 * doff, channel, events)
            at = stop
        return at

    def _error_of(self, size: int, doff: int, kind: int) -> BadFrame | None:
        """Return the error of a frame with this header."""
        if size > self.frame_max:
            return BadFrame(f"frame size ({size} bytes) > maximum frame size ({self.frame_max} bytes)")
        if size < HEADER_OCTETS:
            return BadFrame(f"frame size ({size} bytes) is less than {HEADER_OCTETS}")
        if doff < _DOFF_MIN or 4 * doff > size:
            return BadFrame(f"data offset {doff} of a frame of {size} bytes")
        if kind != self.stage:
            return BadFrame(f"frame type {kind} instead of {self.stage.value}")
        return None

    def _read_frame(self, frame: bytes, at: int, channel: int, events: list[FrameEvent]) -> int:
        """Read a complete frame whose performative begins at `at`. Return the octets of the performative."""
        if at == len(frame) and self.stage is StreamStage.AMQP:
            events.append(Heartbeat10())
            return 0
        try:
            performative, behind = _read_performative(frame, at, self.stage)
        except ConditionError as error:
            events.append(FrameFault(channel, error))
            return len(frame) - at
        if behind < len(frame) and type(performative) is not TransferFrame:
            events.append(FrameFault(channel, UndecodableValue("octets behind a performative")))
            return behind - at
        events.append(FrameReceived(channel, performative, frame[behind:]))
        if type(performative) is TransferFrame and performative.more:
            # The last part of the delivery may be like the transfers before.
            self._transfers.clear()
        elif at == HEADER_OCTETS:
            self._make_template(frame, behind, channel, performative)
        return behind - at

    # --- the fast paths

    def _make_template(self, frame: bytes, end: int, channel: int, performative: Any) -> None:
        """Remember a frame whose performative ends at `end`, if frames like it are likely to follow."""
        begin = frame[HEADER_OCTETS : _LIST_AT + 1]
        if begin in _TRANSFERS:
            if (template := _transfer_template(frame, end, channel, performative)) is not None:
                if len(self._transfers) >= TEMPLATES_MAX:
                    self._transfers.clear()
                self._transfers[frame[4 : _TRANSFERS[begin]]] = template
        elif begin in _DISPOSITIONS:
            if _has_small_state(performative):
                self._disposition = _disposition_template(frame, channel, performative)
        elif begin in _FLOWS and performative.properties is None:
            if len(self._flows) >= TEMPLATES_MAX:
                self._flows.clear()
            self._flows[frame[:4]] = _flow_template(frame, channel, performative)

    def _read_alike(self, data: bytes, at: int, work_end: int, events: list[FrameEvent]) -> int:
        """Read the frames at `at` that fit a template. Return the position behind them, or `at`."""
        begin = data[at + HEADER_OCTETS : at + _LIST_AT + 1]
        keys_end = _TRANSFERS.get(begin)
        if keys_end is not None:
            transfer = self._transfers.get(data[at + 4 : at + keys_end])
            return at if transfer is None else self._read_transfers(transfer, data, at, work_end, events)
        if begin in _DISPOSITIONS and self._disposition is not None:
            return _read_dispositions(self._disposition, data, at, work_end, events)
        if begin in _FLOWS and (flow := self._flows.get(data[at : at + 4])) is not None:
            return _read_flow(flow, data, at, events)
        return at

    def _read_transfers(
        self, template: _TransferTemplate, data: bytes, at: int, work_end: int, events: list[FrameEvent]
    ) -> int:
        head, tag_head, tail = template.head, template.tag_head, template.tail
        unpack, behind = template.layout.unpack_from, template.layout.size
        frame_max, end = self.frame_max, len(data)
        last = min(work_end - 1, end - behind)
        """Where a frame may begin."""
        taken = Transfers(template.channel, template.performative, [], [], [])
        _, _, ids, tags, messages = taken
        size, alike = template.last_size, template.alike
        while at <= last:
            if alike >= ALIKE_MIN:
                count = min(alike, ALIKE_MAX, (last - at) // size + 1, (end - at) // size)
                if count >= ALIKE_MIN:
                    if _read_equal(template, data[at : at + count * size], size, taken):
                        at += count * size
                        alike += count
                        continue
                    alike = 0
            its_size, its_head, delivery_id, its_tag_head, tag, its_tail = unpack(data, at)
            stop = at + its_size
            if its_head != head or its_tag_head != tag_head or its_tail != tail or stop > end:
                break
            if not behind <= its_size <= frame_max:
                break
            ids.append(delivery_id)
            tags.append(tag)
            messages.append(data[at + behind : stop])
            at = stop
            alike = alike + 1 if its_size == size else 1
            size = its_size
        template.last_size, template.alike = size, min(alike, ALIKE_MAX)
        if ids:
            events.append(taken)
        return at


def _read_equal(template: _TransferTemplate, frames: bytes, size: int, taken: Transfers) -> bool:
    """Add transfers, if all of them have this size and fit the template. Return whether that is so."""
    fixed = *enumerate(size.to_bytes(4, "big")), *template.fixed
    if not has_columns(frames, size, fixed):
        return False
    values = _frame_values(template.values, size - template.layout.size)
    ids, tags, messages = zip(*values.iter_unpack(frames), strict=True)
    taken.ids.extend(ids)
    taken.tags.extend(tags)
    taken.messages.extend(messages)
    return True


@lru_cache(TEMPLATES_MAX)
def _frame_values(values: str, payload: int) -> Struct:
    """Return the layout of the delivery id, the tag and the payload, which has this size, of a whole transfer."""
    return Struct(f"{values}{payload}s")


def _read_dispositions(
    template: _DispositionTemplate, data: bytes, at: int, work_end: int, events: list[FrameEvent]
) -> int:
    layout, head, is_range, last_head, tail, channel, performative = template
    count = (min(len(data), work_end + layout.size) - at) // layout.size
    frames = layout.iter_unpack(memoryview(data)[at : at + count * layout.size])
    ranges: list[tuple[int, int]] = []
    if is_range:
        for its_head, first, its_last_head, last, its_tail in frames:
            if its_head != head or its_last_head != last_head or its_tail != tail:
                break
            ranges.append((first, last))
    else:
        for its_head, first, its_tail in frames:
            if its_head != head or its_tail != tail:
                break
            ranges.append((first, first))
    if ranges:
        events.append(Dispositions(channel, performative, ranges))
    return at + len(ranges) * layout.size


def _read_flow(template: _FlowTemplate, data: bytes, at: int, events: list[FrameEvent]) -> int:
    layout, constants, fields, channel, performative = template
    if at + layout.size > len(data):
        return at
    parts = layout.unpack_from(data, at)
    if parts[::2] != constants:
        return at
    values = list(performative)
    for field, value in zip(fields, parts[1::2], strict=True):
        values[field] = value
    events.append(FrameReceived(channel, FlowFrame._make(values), b""))
    return at + layout.size


def _flow_template(frame: bytes, channel: int, flow: FlowFrame) -> _FlowTemplate:
    """Return the template of a flow, whose fields without octets and properties are constants."""
    at, constant_at, layout = _FIELDS_AT[frame[_LIST_AT]], 0, ">"
    fields: list[int] = []
    for field in range(len(flow)):
        if at == len(frame):
            break
        value_format = _UINT_FORMATS.get(frame[at])
        end = skip(frame, at, len(frame))
        if value_format is not None:
            layout += f"{at + 1 - constant_at}s{value_format}"
            fields.append(field)
            constant_at = end
        at = end
    divided = Struct(f"{layout}{len(frame) - constant_at}s")
    return _FlowTemplate(divided, divided.unpack(frame)[::2], tuple(fields), channel, flow)


def _transfer_template(
    frame: bytes, end: int, channel: int, transfer: TransferFrame
) -> _TransferTemplate | None:
    """Return the template of a transfer whose performative ends at `end`, or `None` if transfers are seldom like it."""
    if transfer.aborted or transfer.resume or transfer.state is not None:
        return None
    id_at = skip(frame, _FIELDS_AT[frame[_LIST_AT]], end)
    if transfer.delivery_id is None or transfer.delivery_tag is None or frame[id_at] not in _UINT_FORMATS:
        return None
    tag_at = skip(frame, id_at, end)
    tag = len(transfer.delivery_tag)
    tail_at = tag_at + 2 + tag
    if frame[tag_at] != _BINARY8:
        return None
    id_format = _UINT_FORMATS[frame[id_at]]
    layout = Struct(f">I{id_at - 3}s{id_format}2s{tag}s{end - tail_at}s")
    values = f">{id_at + 1}x{id_format}2x{tag}s{end - tail_at}x"
    head, tag_head, tail = frame[4 : id_at + 1], frame[tag_at : tag_at + 2], frame[tail_at:end]
    places = *range(4, id_at + 1), tag_at, tag_at + 1, *range(tail_at, end)
    fixed = tuple((at, frame[at]) for at in places)
    return _TransferTemplate(layout, values, head, tag_head, tail, fixed, channel, transfer)


def _has_small_state(disposition: DispositionFrame) -> bool:
    """Return whether the state of deliveries holds no map, which would take much memory."""
    match disposition.state:
        case ModifiedState(message_annotations=annotations):
            return annotations is None
        case None | AcceptedState() | ReleasedState() | RejectedState(error=None):
            return True
        case _:
            return False


def _disposition_template(
    frame: bytes, channel: int, disposition: DispositionFrame
) -> _DispositionTemplate | None:
    """Return the template of a disposition, or `None` if its ids have unusual encodings."""
    first_at = skip(frame, _FIELDS_AT[frame[_LIST_AT]], len(frame))
    first_format = _UINT_FORMATS.get(frame[first_at])
    if first_format is None:
        return None
    last_at = skip(frame, first_at, len(frame))
    head = frame[: first_at + 1]
    if disposition.last is None:
        layout = Struct(f">{len(head)}s{first_format}{len(frame) - last_at}s")
        return _DispositionTemplate(layout, head, False, b"", frame[last_at:], channel, disposition)
    last_format = _UINT_FORMATS.get(frame[last_at])
    if last_format is None:
        return None
    tail = frame[skip(frame, last_at, len(frame)) :]
    layout = Struct(f">{len(head)}s{first_format}1s{last_format}{len(tail)}s")
    last_head = frame[last_at : last_at + 1]
    return _DispositionTemplate(layout, head, True, last_head, tail, channel, disposition)


def _read_performative(frame: bytes, at: int, stage: StreamStage) -> tuple[Any, int]:
    """Return the performative at `at`, and the position behind it."""
    reader = ValueReader(frame, at, len(frame))
    value = reader.read()
    performative = from_described(value) if isinstance(value, Described) else value
    if type(performative) not in _EXPECTED[stage]:
        raise UndecodableValue(f"no performative of a frame of type {stage.value}")
    return performative, reader.at


_EXPECTED = {
    StreamStage.AMQP: frozenset(AmqpPerformative.__args__),
    StreamStage.SASL: frozenset((SaslInit, SaslResponse)),
}
