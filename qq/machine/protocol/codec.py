"""The encoding of a batch: the commands of a node, and the messages that they publish.

    batch = message count u32 | commands length u32 | message size u32... | commands (msgpack) | message...

A command is [opcode, field...]. A message is its content header frame and body frames as the publisher sent them,
envelopes included. Log compaction reduces an old batch to the messages that are still needed:

    kept  = "KEP" 0xFF | head length u32 | head (msgpack) | message size u32... | message...
    head  = [[publication...], [[ordinal of the first message, count, place of its publication]...]]

Read as a message count, the first bytes of `kept` exceed the maximum of a batch. All integers are little endian.

Invariant: a machine reads only the commands. So the cost of apply does not depend on the number or size of messages,
except for exchanges that look into them (core.py, `contents`). Every count, size, opcode and field type is checked
before it is used. A command that `check_command` accepts can be packed and read back, so an unreadable batch would be a
bug in qq. A command is proposed and carried out only after the log has agreed on a version of the state that has it.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from decimal import Decimal
from functools import cache
from io import BytesIO
from itertools import accumulate, chain, groupby, pairwise, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, get_args, get_origin, get_type_hints

import msgpack

from qq.machine.protocol import versions
from qq.machine.protocol.commands import (
    NEGATIVE_SINCE,
    OPCODES,
    SINCE,
    Command,
    Commit,
    CommitLeases,
    Discard,
    Enqueue,
    JoinFragments,
    Publish,
    Reject,
    Return,
    Settle,
    StageMessages,
    StoreFragment,
)
from qq.ranges import MESSAGES_MAX
from qq.tables import InvalidTable, check_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Buffer = bytes | bytearray | memoryview

COMMAND_BYTES_MAX = 1024 * 1024
"""Maximum bytes of a packed command. A field table of the maximum size fits, even in its longest encoding."""

_HEAD = struct.Struct("<II")
_KEPT_HEAD = struct.Struct("<4sI")
_KEPT_MAGIC = b"KEP\xff"
"""The first bytes of the result of `keep`; read as a number they are greater than MESSAGES_MAX."""
_EXT_DECIMAL = 1
_DECIMAL = struct.Struct(">Bi")


class MalformedBatch(ValueError):
    """The bytes are not a batch, or hold an invalid command."""


class InvalidCommand(ValueError):
    """The log cannot hold the command, or not yet; the text names the limit, or the version of the state."""


class DecodedBatch(NamedTuple):
    """A decoded batch with the position of each message."""

    commands: list[Command]
    offsets: list[int]
    """Start of each message in the payload, and at the end the payload's length, in bytes."""


class Publication(NamedTuple):
    """Exchange, keys and channel that consecutive messages of a batch share."""

    exchange: str
    routing_key: str
    frames_channel: int
    more_keys: tuple[str, ...] = ()
    """Routing keys from the headers CC and BCC."""
    goes_on: bool = False
    """Whether the batch stores only the beginning of each message, because the rest is in fragments."""


class StoredPiece(NamedTuple):
    """Consecutive messages of a batch with the same publication."""

    first: int
    """The ordinal of the first message, in the batch as it was submitted."""
    publication: Publication
    offsets: list[int]
    """Start of each message in the payload, and at the end the end of the last message, in bytes."""

    @property
    def count(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
        return len(self.offsets) - 1


def check_command(command: Command, version: int) -> int:
    """Return the size in bytes of a command in a batch. Raise InvalidCommand if no batch may hold it.

    `version` is the agreed version of the state: a command of a later version is refused. The check must be made where
    an input becomes a command. When a batch is built it is too late, because all other commands in it would suffer.
    """
    row = _row(command)
    try:
        _command(row, _shapes(version))
        size = len(pack(row))
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidCommand(f"{type(command).__name__}: {error}") from error
    if size > COMMAND_BYTES_MAX:
        raise InvalidCommand(
            f"{type(command).__name__} of {size} bytes is larger than {COMMAND_BYTES_MAX} bytes"
        )
    return size


def encode_batch(commands: Sequence[Command], messages: Sequence[Buffer]) -> list[Buffer]:
    """Return a batch, as buffers to be written in order. `check_command` must have accepted all commands."""
    packed = pack([_row(command) for command in commands])
    sizes = struct.pack(f"<{len(messages)}I", *map(len, messages))
    return [_HEAD.pack(len(messages), len(packed)), sizes, packed, *messages]


def decode_commands(payload: Buffer, version: int = versions.VERSIONS[1]) -> list[Command]:
    """Return the commands of a batch; all must be known to `version`. Raise MalformedBatch.

    The sizes and the messages are not checked.
    """
    view = memoryview(payload)
    messages, start, end = _layout(view)
    try:
        rows = unpack(view[start:end])
    except ValueError as error:
        raise MalformedBatch(f"commands are not readable: {error}") from error
    if type(rows) is not list:
        raise MalformedBatch("commands are not a list")
    shapes = _shapes(version)
    commands = [_command(row, shapes) for row in rows]
    published = 0
    for position, command in enumerate(commands):
        if type(command) is Enqueue or type(command) is Publish or type(command) is StageMessages:
            if command.count < 1:
                raise MalformedBatch("an enqueue of no messages")
            published += command.count
        elif type(command) is StoreFragment:
            published += 1
        elif type(command) is JoinFragments:
            if not isinstance(
                commands[position + 1] if position + 1 < len(commands) else None,
                Enqueue | Publish | StageMessages,
            ):
                raise MalformedBatch("fragments are joined to nothing")
        elif type(command) is Commit:
            content = commands[position + 1 : position + 1 + command.count]
            if len(content) < command.count or not all(type(part) in _TRANSACTIONAL for part in content):
                raise MalformedBatch("a transaction of what cannot be in one")
    if published != messages:
        raise MalformedBatch(f"{published} messages are published and {messages} are there")
    return commands


def decode_batch(payload: Buffer) -> DecodedBatch:
    """Return the commands of a batch, and the position of each message. Raise MalformedBatch."""
    return DecodedBatch(decode_commands(payload), _offsets(payload))


def messages_of(command: Command) -> int:
    """Return how many of the next messages of its batch a command publishes or stores."""
    if isinstance(command, Enqueue | Publish | StageMessages):
        return command.count
    return 1 if isinstance(command, StoreFragment) else 0


def message_sizes(payload: Buffer) -> tuple[array[int], int]:
    """Return the size of each message of a batch and their total, in bytes. `decode_commands` must accept the batch."""
    count, commands = _HEAD.unpack_from(payload)
    sizes = array("I")
    if not count:
        return sizes, 0
    start = _HEAD.size + 4 * count
    sizes.frombytes(memoryview(payload)[_HEAD.size : start])
    if sys.byteorder == "big":
        sizes.byteswap()
    return sizes, len(payload) - start - commands


def is_kept(payload: Buffer) -> bool:
    """Return whether the payload is a result of `keep` instead of a batch."""
    return payload[:4] == _KEPT_MAGIC


def keep(payload: Buffer, messages: Sequence[tuple[int, int]]) -> bytes:
    """Reduce a batch to some of its messages: (first ordinal, count), ascending and without overlap.

    `payload` may be the result of an earlier call; messages that it no longer holds are left out. Raises
    MalformedBatch.
    """
    pieces = stored_pieces(payload)
    view = memoryview(payload)
    places: dict[Publication, int] = {}
    rows: list[tuple[int, int, int]] = []
    sizes: list[int] = []
    bodies: list[Buffer] = []
    for piece in _common(pieces, messages):
        place = places.setdefault(piece.publication, len(places))
        rows.append((piece.first, piece.count, place))
        sizes.extend(end - start for start, end in pairwise(piece.offsets))
        bodies.append(view[piece.offsets[0] : piece.offsets[-1]])
    # Few messages have fragments. A row without the flag means no fragments, as in payloads of earlier versions.
    head = pack([[each if each.goes_on else each[:-1] for each in places], rows])
    size_column = struct.pack(f"<{len(sizes)}I", *sizes)
    return b"".join([_KEPT_HEAD.pack(_KEPT_MAGIC, len(head)), head, size_column, *bodies])


def stored_pieces(payload: Buffer) -> list[StoredPiece]:
    """Return the messages of a batch or of a result of `keep`, ascending. Raise MalformedBatch.

    The machine must have applied the batch before, because its commands are not checked again.
    """
    return decode_kept(payload) if is_kept(payload) else _pieces(payload)


def decode_kept(payload: Buffer) -> list[StoredPiece]:
    """Return the messages in a result of `keep`, ascending. Raise MalformedBatch."""
    try:
        magic, length = _KEPT_HEAD.unpack_from(payload)
        start = _KEPT_HEAD.size + length
        publications, rows = unpack(memoryview(payload)[_KEPT_HEAD.size : start])
        total = sum(count for _, count, _ in rows)
        sizes = struct.unpack_from(f"<{total}I", payload, start)
        offsets = list(accumulate(sizes, initial=start + 4 * total))
        pieces: list[StoredPiece] = []
        done = 0
        for first, count, place in rows:
            exchange, routing_key, frames_channel, more_keys, *goes_on = publications[place]
            publication = Publication(exchange, routing_key, frames_channel, tuple(more_keys), *goes_on)
            pieces.append(StoredPiece(first, publication, offsets[done : done + count + 1]))
            done += count
    except (struct.error, ValueError, TypeError, IndexError) as error:
        raise MalformedBatch(f"kept messages are not readable: {error}") from error
    if magic != _KEPT_MAGIC or offsets[-1] != len(payload):
        raise MalformedBatch(f"kept messages end at {offsets[-1]} of {len(payload)} bytes")
    return pieces


def pack(value: Any) -> bytes:
    """Return a value as msgpack. It may hold all that field tables hold; names that are not UTF-8 survive."""
    packed = msgpack.packb(value, default=_pack_extension, datetime=True, unicode_errors="surrogateescape")
    assert packed is not None
    return packed


def make_packer() -> Any:
    """Return a msgpack.Packer that packs as `pack` does, piece by piece; its `bytes()` is the whole result."""
    return msgpack.Packer(
        default=_pack_extension, datetime=True, unicode_errors="surrogateescape", autoreset=False
    )


_READING = {"timestamp": 3, "unicode_errors": "surrogateescape"}
_LISTS = frozenset(bytes([head]) for head in (*range(0x90, 0xA0), 0xDC, 0xDD))
"""The possible first bytes of a msgpack list."""


def unpack(data: Buffer) -> Any:
    """Return a value that `pack` wrote. Raise ValueError for bytes that it cannot have written."""
    try:
        return msgpack.unpackb(data, ext_hook=_unpack_extension, **_READING)
    except ValueError:
        raise
    except (msgpack.UnpackException, OverflowError, TypeError) as error:
        raise ValueError(f"not msgpack: {error}") from error


def unpack_list(data: bytes, levels: Sequence[int]) -> Any:
    """Read like `unpack`, with many short calls, so that different threads can run between the calls.

    `levels` has a number for each part of the list: the part is divided so many levels deep, with a call for each piece
    at that depth. Parts beyond the end of `levels` are read with one call each.
    """
    unpacker = msgpack.Unpacker(BytesIO(data), max_buffer_size=0, ext_hook=_unpack_extension, **_READING)
    try:
        if not _is_list(data, 0):
            return unpack(data)
        # The header may claim any number of parts. Objects are made only for parts that are present.
        places = range(unpacker.read_array_header())
        parts = [
            _unpack_levels(unpacker, data, deep)
            for _, deep in zip(places, chain(levels, repeat(0)), strict=False)
        ]
    except ValueError:
        raise
    except (msgpack.UnpackException, OverflowError, TypeError) as error:
        raise ValueError(f"not msgpack: {error}") from error
    if unpacker.tell() != len(data):
        raise ValueError("not msgpack: there is something behind it")
    return parts


def _unpack_levels(unpacker: Any, data: bytes, levels: int) -> Any:
    if levels and _is_list(data, unpacker.tell()):
        count = unpacker.read_array_header()
        if levels == 1:
            return [unpacker.unpack() for _ in range(count)]
        return [_unpack_levels(unpacker, data, levels - 1) for _ in range(count)]
    return unpacker.unpack()


def _is_list(data: bytes, at: int) -> bool:
    return data[at : at + 1] in _LISTS


def _offsets(payload: Buffer) -> list[int]:
    """Return the start of each message, and at the end the payload's length."""
    count, _, body = _layout(memoryview(payload))
    sizes = struct.unpack_from(f"<{count}I", payload, _HEAD.size)
    offsets = list(accumulate(sizes, initial=body))
    if offsets[-1] != len(payload):
        raise MalformedBatch(f"messages end at {offsets[-1]} of {len(payload)} bytes")
    return offsets


def _layout(view: memoryview) -> tuple[int, int, int]:
    """Return the message count of a batch, and the start and end of its commands. Raise MalformedBatch."""
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


def _pieces(payload: Buffer) -> list[StoredPiece]:
    """Return the pieces of a whole batch.

    Consecutive messages with the same publication form a single piece, even from different sessions.
    """
    _, first, stop = _layout(memoryview(payload))
    offsets = _offsets(payload)
    pieces: list[StoredPiece] = []
    start = end = 0
    try:
        rows = unpack(memoryview(payload)[first:stop])
        for publication, alike in groupby(_publications(rows), _first_of):
            end += sum(map(_second_of, alike))
            pieces.append(StoredPiece(start, publication, offsets[start : end + 1]))
            start = end
    except (ValueError, TypeError, IndexError) as error:
        raise MalformedBatch(f"commands are not readable: {error}") from error
    return pieces


def _common(pieces: Sequence[StoredPiece], messages: Sequence[tuple[int, int]]) -> Iterator[StoredPiece]:
    """Yield the parts of the pieces that are among `messages`, which are given as (first ordinal, count)."""
    firsts = [piece.first for piece in pieces]
    for first, count in messages:
        for position in range(max(bisect_right(firsts, first) - 1, 0), bisect_left(firsts, first + count)):
            piece = pieces[position]
            start = max(first, piece.first) - piece.first
            end = min(first + count - piece.first, piece.count)
            if start < end:
                yield StoredPiece(piece.first + start, piece.publication, piece.offsets[start : end + 1])


def _row(command: Command) -> list[Any]:
    return [OPCODES[type(command)], *command]


def _command(row: object, shapes: _Shapes) -> Command:
    if type(row) is not list or not row or type(row[0]) is not int:
        raise MalformedBatch("a command has no opcode")
    shape = shapes[row[0]]
    if tuple(map(type, row)) != shape.types:
        raise MalformedBatch(f"fields of {shape.command.__name__} have the wrong number or types")
    # The opcode is among the integers, so itemgetter has at least two items and returns a tuple.
    if min(shape.natural(row)) < 0:
        raise MalformedBatch(shapes.why_not_negative(shape.command, row))
    for position in shape.tables:
        if row[position]:
            try:
                check_table(row[position])
            except InvalidTable as error:
                raise MalformedBatch(str(error)) from None
    for position, kind in shape.lists:
        if any(type(item) is not kind for item in row[position]):
            raise MalformedBatch(
                f"a list of {shape.command.__name__} holds something that is no {kind.__name__}"
            )
        if kind is int and min(row[position], default=0) < 0:
            raise MalformedBatch(f"a negative number in {shape.command.__name__}")
    return shape.command._make(row[1:])


class _Shape(NamedTuple):
    """The required form of a command's row. Positions count the opcode as 0."""

    command: type[Command]
    types: tuple[type, ...]
    natural: Callable[[list[Any]], tuple[int, ...]]
    """Returns the numbers of a row that must not be negative."""
    tables: list[int]
    lists: list[tuple[int, type]]
    """Position and item type of each list."""


@cache
def _shape(command: type[Command], version: int) -> _Shape:
    hints = get_type_hints(command)
    types = (int, *((get_origin(hints[field]) or hints[field]) for field in command._fields))
    positions = [
        position
        for position, (field, kind) in enumerate(zip(("", *command._fields), types, strict=True))
        if kind is int and version < NEGATIVE_SINCE.get((command, field), version + 1)
    ]
    return _Shape(
        command,
        types,
        itemgetter(*positions, 0),
        [position for position, kind in enumerate(types) if kind is dict],
        [
            (position, get_args(hints[field])[0])
            for position, field in enumerate(command._fields, 1)
            if types[position] is list
        ],
    )


class _Shapes(dict[int, _Shape]):
    """Opcode -> form of the row, for the commands of a version of the state."""

    def __init__(self, version: int) -> None:
        super().__init__(
            (opcode, _shape(command, version))
            for command, opcode in OPCODES.items()
            if SINCE[command] <= version
        )
        self._agreed = f"the cluster has agreed on version {version}"

    def why_not_negative(self, command: type[Command], row: list[Any]) -> str:
        """Return the error text for a row that holds a negative number where the version allows none."""
        for (known, field), since in NEGATIVE_SINCE.items():
            if known is command and row[1 + command._fields.index(field)] < 0:
                return f"{field} may be negative from version {since} of the state on, and {self._agreed}"
        return f"a negative number in {command.__name__}"

    def __missing__(self, opcode: int) -> NoReturn:
        agreed = self._agreed
        for command, known in OPCODES.items():
            if known == opcode:
                name, since = command.__name__, SINCE[command]
                raise MalformedBatch(
                    f"command {opcode} ({name}) may be proposed from version {since} of the state on, and {agreed}"
                )
        raise MalformedBatch(
            f"command {opcode} is not known to this program, which can run versions {versions.known()} of the state; "
            f"{agreed}"
        )


_shapes = cache(_Shapes)


def _publications(rows: list[Any]) -> Iterator[tuple[Publication, int]]:
    """Yield the publications of a batch's commands in order, with the number of messages of each."""
    goes_on = False
    for row in rows:
        opcode = row[0]
        if opcode in _PUBLISHING:
            publication, count = _publication(row), row[_COUNT]
            if goes_on:
                yield publication._replace(goes_on=True), 1
                count -= 1
            if count:
                yield publication, count
        elif opcode == _STAGE:
            staged = StageMessages._make(row[1:])
            place = staged.exchange, staged.routing_key, staged.frames_channel
            yield Publication(*place, tuple(staged.more_keys), goes_on), staged.count
        elif opcode == _STORE_FRAGMENT:
            yield _FRAGMENT, 1
        goes_on = opcode == _JOIN_FRAGMENTS


def _publication(row: list[Any]) -> Publication:
    _, _, _, _, exchange, routing_key, _, frames_channel, *more = row
    return Publication(exchange, routing_key, frames_channel, tuple(more[0]) if more else ())


_TRANSACTIONAL = frozenset((Enqueue, Publish, Settle, Return, Reject, Discard, CommitLeases))
_PUBLISHING = (OPCODES[Enqueue], OPCODES[Publish])
_STAGE = OPCODES[StageMessages]
_STORE_FRAGMENT, _JOIN_FRAGMENTS = OPCODES[StoreFragment], OPCODES[JoinFragments]
_FRAGMENT = Publication("", "", 0)
_COUNT = 1 + Enqueue._fields.index("count")  # the opcode comes first
_first_of, _second_of = itemgetter(0), itemgetter(1)


def _pack_extension(value: object) -> msgpack.ExtType:
    """Pack a decimal of AMQP: a scale and a signed 32-bit number. Raise TypeError for any other value."""
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
