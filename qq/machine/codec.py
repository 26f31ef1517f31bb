"""A batch as bytes: the commands of a node, and the messages that they publish.

    batch = message count u32 | commands length u32 | message size u32... | commands (msgpack) | message...

All integers are little endian. A command is [opcode, field...]. A message is its content header frame and body frames
as the publisher sent them, envelopes included.

Law: a machine reads only the commands, so what apply costs does not depend on the number or size of messages. Bytes
are believed only after every count, size, opcode and field type has been checked.
"""

from __future__ import annotations

import datetime as dt
import struct
from bisect import bisect_right
from decimal import Decimal
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, get_origin, get_type_hints

import msgpack

from qq.machine.commands import OPCODES, Command, Enqueue
from qq.ranges import MESSAGES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Buffer = bytes | bytearray | memoryview

TABLE_DEPTH_MAX = 64
"""Nesting of a field table: deeper ones would exhaust the packers' recursion."""

_HEAD = struct.Struct("<II")
_EXT_DECIMAL = 1
_DECIMAL = struct.Struct(">Bi")


class MalformedBatch(ValueError):
    """The bytes are not a batch, or hold a command that is none."""


class Batch(NamedTuple):
    """A decoded batch for those who want its messages."""

    commands: list[Command]
    enqueues: list[Enqueue]
    first_messages: list[int]
    """Ordinal of the first message of each of `enqueues`."""
    offsets: list[int]
    """Where in the payload each message begins, and at the end the payload's length."""

    def enqueue_of(self, message: int) -> Enqueue:
        """The command that published the message with this ordinal."""
        return self.enqueues[bisect_right(self.first_messages, message) - 1]


def encode_batch(commands: Sequence[Command], messages: Sequence[Buffer]) -> list[Buffer]:
    """Build a batch, as buffers to be written one after the other."""
    packed = pack([[OPCODES[type(command)], *command] for command in commands])
    sizes = struct.pack(f"<{len(messages)}I", *map(len, messages))
    return [_HEAD.pack(len(messages), len(packed)), sizes, packed, *messages]


def decode_commands(payload: Buffer) -> list[Command]:
    """The commands of a batch. The sizes and the messages are not looked at. Raises MalformedBatch."""
    view = memoryview(payload)
    messages, start, end = _layout(view)
    try:
        rows = unpack(view[start:end])
    except ValueError as error:
        raise MalformedBatch(f"commands are not readable: {error}") from error
    if type(rows) is not list:
        raise MalformedBatch("commands are not a list")
    commands = [_command(row) for row in rows]
    published = 0
    for command in commands:
        if type(command) is Enqueue:
            if command.count < 1:
                raise MalformedBatch("an enqueue of no messages")
            published += command.count
    if published != messages:
        raise MalformedBatch(f"{published} messages are published and {messages} are there")
    return commands


def decode_batch(payload: Buffer) -> Batch:
    """A whole batch, with the place of each message. Raises MalformedBatch."""
    commands = decode_commands(payload)
    count, _, body = _layout(memoryview(payload))
    sizes = struct.unpack_from(f"<{count}I", payload, _HEAD.size)
    offsets = list(accumulate(sizes, initial=body))
    if offsets[-1] != len(payload):
        raise MalformedBatch(f"messages end at {offsets[-1]} of {len(payload)} bytes")
    enqueues = [command for command in commands if type(command) is Enqueue]
    ends = accumulate((enqueue.count for enqueue in enqueues), initial=0)
    return Batch(commands, enqueues, list(ends)[:-1], offsets)


def check_table(table: object, depth: int = TABLE_DEPTH_MAX) -> None:
    """Raise MalformedBatch unless this is a field table that the machine can hold."""
    if type(table) is not dict:
        raise MalformedBatch("a field table is not a map")
    for name, value in table.items():
        if type(name) is not str:
            raise MalformedBatch("a field of a table has no name")
        _check_value(value, depth - 1)


def pack(value: Any) -> bytes:
    """Msgpack, including what field tables may hold; names that are not UTF-8 survive."""
    packed = msgpack.packb(value, default=_pack_extension, datetime=True, unicode_errors="surrogateescape")
    assert packed is not None
    return packed


def unpack(data: Buffer) -> Any:
    """Read what `pack` wrote; raises ValueError for anything that it cannot have written."""
    try:
        return msgpack.unpackb(
            data, ext_hook=_unpack_extension, timestamp=3, unicode_errors="surrogateescape"
        )
    except ValueError:
        raise
    except (msgpack.UnpackException, OverflowError, TypeError) as error:
        raise ValueError(f"not msgpack: {error}") from error


def _layout(view: memoryview) -> tuple[int, int, int]:
    """Message count, start and end of the commands."""
    if len(view) < _HEAD.size:
        raise MalformedBatch("the head is cut short")
    messages, length = _HEAD.unpack_from(view)
    start = _HEAD.size + 4 * messages
    end = start + length
    if messages > MESSAGES_MAX:
        raise MalformedBatch(f"{messages} messages in one batch")
    if end > len(view):
        raise MalformedBatch("the commands are cut short")
    return messages, start, end


def _command(row: object) -> Command:
    if type(row) is not list or not row or type(row[0]) is not int:
        raise MalformedBatch("a command has no opcode")
    shape = _SHAPE_OF_OPCODE.get(row[0])
    if shape is None:
        raise MalformedBatch(f"unknown opcode {row[0]}")
    if tuple(map(type, row)) != shape.types:
        raise MalformedBatch(f"fields of {shape.command.__name__} have the wrong number or types")
    # The opcode is one of the integers, so there are always two of them and itemgetter gives a tuple.
    if min(shape.integers(row)) < 0:
        raise MalformedBatch(f"a negative number in {shape.command.__name__}")
    for position in shape.tables:
        if row[position]:
            check_table(row[position])
    for position in shape.lists:
        if any(type(item) is not str for item in row[position]):
            raise MalformedBatch(f"a list of {shape.command.__name__} holds something that is not text")
    return shape.command._make(row[1:])


class _Shape(NamedTuple):
    """What the row of a command must look like. Positions count the opcode as 0."""

    command: type[Command]
    types: tuple[type, ...]
    integers: Callable[[list[Any]], tuple[int, ...]]
    tables: list[int]
    lists: list[int]


def _shape(command: type[Command]) -> _Shape:
    hints = get_type_hints(command)
    types = (int, *((get_origin(hints[field]) or hints[field]) for field in command._fields))
    positions = [position for position, kind in enumerate(types) if kind is int]
    return _Shape(
        command,
        types,
        itemgetter(*positions, 0),
        [position for position, kind in enumerate(types) if kind is dict],
        [position for position, kind in enumerate(types) if kind is list],
    )


_SHAPE_OF_OPCODE = {opcode: _shape(command) for command, opcode in OPCODES.items()}
_LEAVES = (type(None), bool, int, float, str, bytes, Decimal, dt.datetime)


def _check_value(value: object, depth: int) -> None:
    if depth < 1:
        raise MalformedBatch(f"a field table is nested deeper than {TABLE_DEPTH_MAX}")
    if type(value) is list:
        for item in value:
            _check_value(item, depth - 1)
    elif type(value) is dict:
        check_table(value, depth)
    elif type(value) not in _LEAVES:
        raise MalformedBatch(f"a field table holds a {type(value).__name__}")


def _pack_extension(value: object) -> msgpack.ExtType:
    """AMQP's decimal: a scale and a signed 32-bit number."""
    if isinstance(value, Decimal) and value.is_finite():
        exponent = int(value.as_tuple().exponent)
        scale = max(-exponent, 0)
        return msgpack.ExtType(_EXT_DECIMAL, _DECIMAL.pack(scale, int(value.scaleb(scale))))
    raise TypeError(f"a field table cannot hold {value!r}")


def _unpack_extension(code: int, data: bytes) -> Decimal:
    if code != _EXT_DECIMAL or len(data) != _DECIMAL.size:
        raise ValueError(f"unknown extension {code} of {len(data)} bytes")
    scale, number = _DECIMAL.unpack(data)
    return Decimal(number).scaleb(-scale)
