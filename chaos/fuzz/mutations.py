"""Damages a conversation of AMQP 0-9-1 before it is sent, and of AMQP 1.0 with the changes in mutations10.py.

Invariant: a mutated conversation is a function of its random numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING

import pamqp.frame
from pamqp import exceptions
from pamqp.base import Frame

from chaos.fuzz.conversations import CLASSIC, PAUSE, QUEUE, SOURCE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from chaos.fuzz.conversations import Conversation

CHANGES_MAX = 4
CHANGED_BYTES_MAX = 4
COPIES_MAX = 50
"""Copies of a repeated frame, at most."""
RUBBISH_BYTES_MAX = 300
IN_OPENING = 0.15
"""Probability of damage in the handshake; rare, because more frames follow it."""
_NUMBERS = (
    b"\0",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\0\0",
    b"\xff\xff",
    b"\0" * 4,
    b"\xff" * 4,
    b"\x7f" + b"\xff" * 7,
)
"""Values that replace lengths, numbers and tags."""
_NAMES = (
    "",
    QUEUE,
    CLASSIC,
    SOURCE,
    "amq.direct",
    "amq.mine",
    "nobody",
    "amq.rabbitmq.reply-to",
    "x" * 255,
    "\r\n",
    "#",
)
_ARGUMENTS = (
    "alternate-exchange",
    "x-consumer-timeout",
    "x-dead-letter-exchange",
    "x-delayed-type",
    "x-delivery-limit",
    "x-expires",
    "x-match",
    "x-max-length",
    "x-max-priority",
    "x-message-ttl",
    "x-overflow",
    "x-priority",
    "x-queue-type",
    "x-single-active-consumer",
)
_VALUES: tuple[object, ...] = (
    0,
    1,
    -1,
    2**62,
    True,
    None,
    "",
    "quorum",
    "classic",
    "reject-publish",
    "all",
    {},
    [1],
)
_FRAME = struct.Struct(">BHI")
_OVERHEAD = 8
_RECOVER_ASYNC = b"\x00\x3c\x00\x64"
"""pamqp warns about this method, because it is deprecated."""


Change = Callable[["Random", list[bytes], int], None]
"""Changes frames from an index on, which is that of a frame."""


def mutate(random: Random, all_of: Sequence[Conversation], changes: Sequence[Change]) -> list[bytes]:
    """Draw a conversation and return its damaged bytes, divided where the client waits for the node.

    `changes` are those of the protocol, besides those that frames of any protocol have.
    """
    conversation = random.choice(all_of)
    changes = (*COMMON_CHANGES, *changes)
    frames = list(conversation.frames)
    first = 0 if random.random() < IN_OPENING else conversation.opening
    for _ in range(random.randint(1, CHANGES_MAX)):
        if first < len(frames):
            random.choice(changes)(random, frames, first)
        if random.random() < 1 / CHANGES_MAX:
            _splice(random, frames, first, random.choice(all_of))
    return divided(frames)


def divided(frames: Sequence[bytes]) -> list[bytes]:
    """Return the bytes of a conversation, divided at its pauses."""
    return [b"".join(group) for is_pause, group in groupby(frames, PAUSE.__eq__) if not is_pause]


def _drop(random: Random, frames: list[bytes], first: int) -> None:
    del frames[random.randrange(first, len(frames))]


def _copy(random: Random, frames: list[bytes], first: int) -> None:
    at = random.randrange(first, len(frames))
    frames[at:at] = [frames[at]] * random.choice((1, 1, 1, COPIES_MAX))


def _swap(random: Random, frames: list[bytes], first: int) -> None:
    one, other = (random.randrange(first, len(frames)) for _ in range(2))
    frames[one], frames[other] = frames[other], frames[one]


def _shuffle(random: Random, frames: list[bytes], first: int) -> None:
    rest = frames[first:]
    random.shuffle(rest)
    frames[first:] = rest


def _cut(random: Random, frames: list[bytes], first: int) -> None:
    """End the conversation in the middle of a frame."""
    at = random.randrange(first, len(frames))
    frames[at:] = [frames[at][: random.randrange(len(frames[at]) + 1)]]


def _change_bytes(random: Random, frames: list[bytes], first: int) -> None:
    """Change bytes of a frame, including its envelope."""
    at = random.randrange(first, len(frames))
    frames[at] = changed_octets(random, frames[at])


def _change_payload(random: Random, frames: list[bytes], first: int) -> None:
    """Change octets of a frame's payload: the result is again a complete frame."""
    at = random.randrange(first, len(frames))
    if len(frames[at]) >= _OVERHEAD:
        kind, channel, _ = _FRAME.unpack_from(frames[at])
        frames[at] = _frame(kind, channel, changed_octets(random, frames[at][7:-1]))


def _change_field(random: Random, frames: list[bytes], first: int) -> None:
    """Change a field of a method; usually the method stays readable, with a new meaning."""
    at = random.randrange(first, len(frames))
    if len(frames[at]) <= _OVERHEAD or frames[at][0] != 1 or frames[at][7:11] == _RECOVER_ASYNC:
        return
    try:
        _, channel, method = pamqp.frame.unmarshal(frames[at])
        fields = (
            [name for name, value in method if isinstance(value, bool | int | str | dict)]
            if isinstance(method, Frame)
            else []
        )
        if fields:
            name = random.choice(fields)
            setattr(method, name, _other(random, getattr(method, name)))
            frames[at] = pamqp.frame.marshal(method, channel)
    except (exceptions.PAMQPException, ValueError, TypeError, struct.error, AttributeError):
        return  # the frame was damaged before, or the new value cannot be encoded


def _other(
    random: Random, value: bool | int | str | dict[str, object]
) -> bool | int | str | dict[str, object]:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice((0, 1, 2, 3, 255, 65_535, value + 1))
    if isinstance(value, str):
        return random.choice(_NAMES)
    return value | {random.choice(_ARGUMENTS): random.choice(_VALUES)}


def _change_envelope(random: Random, frames: list[bytes], first: int) -> None:
    """Change the type of a frame, or its channel."""
    at = random.randrange(first, len(frames))
    if len(frames[at]) >= _OVERHEAD:
        kind, channel, _ = _FRAME.unpack_from(frames[at])
        if random.random() < 1 / 2:
            kind = random.choice((1, 2, 3, 8))
        else:
            channel = random.choice((0, 1, 2, 3, 2047, 2048, 65535))
        frames[at] = _frame(kind, channel, frames[at][7:-1])


def _rubbish(random: Random, frames: list[bytes], first: int) -> None:
    rubbish = random.randbytes(random.randint(1, RUBBISH_BYTES_MAX))
    if random.random() < 1 / 2:
        rubbish = _frame(1, random.choice((0, 1)), rubbish)
    frames.insert(random.randrange(first, len(frames) + 1), rubbish)


COMMON_CHANGES: tuple[Change, ...] = (_drop, _copy, _swap, _shuffle, _cut, _change_bytes)
CHANGES_091: tuple[Change, ...] = (
    _change_payload,
    _change_payload,
    *[_change_field] * 8,
    _change_envelope,
    _rubbish,
)


def _splice(random: Random, frames: list[bytes], first: int, other: Conversation) -> None:
    """Continue with frames of a second conversation."""
    at = random.randrange(min(first, len(frames)), len(frames) + 1)
    frames[at:] = other.frames[random.randrange(other.opening, len(other.frames)) :]


def changed_octets(random: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(random.randint(1, CHANGED_BYTES_MAX)):
        at = random.randrange(len(changed) + 1)
        new = random.choice(_NUMBERS) if random.random() < 1 / 2 else random.randbytes(1)
        # Replace bytes, insert bytes, or remove a byte.
        old = random.choice((len(new), len(new), 0, 1))
        changed[at : at + old] = new if old != 1 else b""
    return bytes(changed)


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, channel, len(payload)) + payload + b"\xce"
