"""The properties of a message that matter to exchanges and queues, read and checked before it is published.

Invariant: most messages have no such property, and cost next to no time. An invalid property is refused here, with an
error for its publisher, so all later code gets valid values only.
"""

from __future__ import annotations

import re
from math import isfinite
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from qq.octets import text_of
from qq.stored import layout
from qq.stored.editing import with_headers
from qq.stored.fields import FIXED, VALID_PROPERTIES_BYTES_MAX, VALID_PROPERTIES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

A = TypeVar("A")

NO_PRIORITY = 256
NO_TTL = 2**62
"""The `ttl_ms` of a message without the property `expiration`."""
DURATION_MAX_MS = 315_360_000_000
"""Ten years in milliseconds: RabbitMQ's largest expiration, and qq's largest delay."""
PLUGIN_DELAY_MAX_MS = 2**32 - 1
"""Largest delay of RabbitMQ's plugin in milliseconds, which is the limit of an Erlang timer."""
PUBLISHER_BYTES_MAX = 255

CC, BCC, DELAY, PUBLISHER_ID, PUBLISH_SEQ = b"CC", b"BCC", b"x-delay", b"x-publisher-id", b"x-publish-seq"
REPLY_TO = b"amq.rabbitmq.reply-to"
"""Value of the property `reply-to` that stands for the address of the channel's consumer of direct replies."""
KEYS_MAX = 256
"""Largest number of additional routing keys of a message, because each is looked up in every exchange on the way."""
_OURS = frozenset((CC, BCC, DELAY, PUBLISHER_ID, PUBLISH_SEQ))

_MATTERS = layout.HEADERS | layout.PRIORITY | layout.EXPIRATION
_CHANGES = _MATTERS | layout.REPLY_TO
"""Flags of properties that may have to be changed; the address in `reply-to` may have to be replaced, too."""
_STAMPED = layout.PRIORITY | layout.EXPIRATION

_U32 = Struct(">I")
_header_size = _U32.unpack_from
_C, _X, _DASH = b"Cx-"
_SEQUENCE_NAME = b"\x0dx-publish-seq"
"""Length and name of the header as they are in a table; the value's type and the value follow."""
_INTEGERS = {kind: FIXED[kind] for kind in b"bBsuIilL"}
_FLOATS = {kind: FIXED[kind] for kind in b"fd"}
_LONGSTR, _ARRAY, _BYTES = ord("S"), ord("A"), ord("x")
_TYPE_NAMES = {
    ord(kind): name
    for kind, name in {
        "t": "bool",
        "b": "byte",
        "B": "unsignedbyte",
        "s": "short",
        "u": "unsignedshort",
        "I": "signedint",
        "i": "unsignedint",
        "l": "long",
        "L": "long",
        "f": "float",
        "d": "double",
        "D": "decimal",
        "S": "longstr",
        "A": "array",
        "F": "table",
        "T": "timestamp",
        "V": "void",
        "x": "binary",
    }.items()
}
"""Names of field types in RabbitMQ's errors, by the octet of the type."""

_ERLANG_INTEGER = re.compile(r"([+-]?[0-9]+)(.*)", re.DOTALL)
"""Splits a text as Erlang's string:to_integer does: into a number and the rest."""
_ERLANG_PRINTABLE = re.compile(r"[\x08-\x0d\x1b -~\xa0-\xff]*")
_ERLANG_ESCAPES = (
    ("\\", "\\\\"),
    ('"', '\\"'),
    ("\b", "\\b"),
    ("\t", "\\t"),
    ("\n", "\\n"),
    ("\v", "\\v"),
    ("\f", "\\f"),
    ("\r", "\\r"),
    ("\x1b", "\\e"),
)
_DECIMAL = re.compile(rb"[+-]?[0-9]{1,32}")
"""A number of milliseconds in a string; more digits are too large or a mistake."""


class UnacceptableProperties(ValueError):  # named for the condition, without the suffix Error
    """The properties of a message are invalid; the text is for its publisher."""


class Attributes(NamedTuple):
    """The properties of a message that matter to queues."""

    more_keys: tuple[str, ...] = ()
    """Additional routing keys: from the header CC, then from the header BCC."""
    priority: int = NO_PRIORITY
    """Priority of the message, 0 to 255; NO_PRIORITY without the property."""
    ttl_ms: int = NO_TTL
    """Time to live in milliseconds, from the property `expiration`; NO_TTL without it."""
    delay_ms: int = 0
    """Delay in milliseconds, from the header x-delay; 0 without it."""
    publisher: str = ""
    """Name of the publisher, from the header x-publisher-id; "" without it."""
    publish_seq: int = 0
    """Sequence number of the publisher, from the header x-publish-seq; 0 without it."""


PLAIN = Attributes()

_UNKNOWN = Attributes(priority=-1)
_known: dict[bytes, Attributes | None] = {}
"""Property bytes -> attributes: a cache of a pure function, so its content changes no result."""
_known_delayed: dict[bytes, bytes] = {}
"""Property bytes of delayed messages -> property bytes for their consumers."""
_known_publishers: dict[bytes, Attributes] = {}
"""Property bytes without those of the sequence number, which differs each time -> attributes."""


def attributes(message: bytes) -> Attributes | None:
    """Return the attributes of a stored message, or `None` if it has only default values.

    Raises UnacceptableProperties.
    """
    present = message[layout.FLAGS_AT] << 8
    if not present & _MATTERS:
        return None
    properties = _properties(message)
    if not (present & _STAMPED or _may_have_ours(properties)):
        return None
    found = _known.get(properties, _UNKNOWN)
    if found is not _UNKNOWN:
        return found
    return _next_of_publisher(properties) or _read_new(message, properties)


def user_id(message: bytes) -> str | None:
    """Return the property `user-id` of a message, or `None` if it is missing."""
    if not message[20] & layout.USER_ID:
        return None
    return text_of(layout.short_string(message, layout.place(message, layout.USER_ID)))


def group(
    messages: list[bytes],
    flags: int,
    user: str | None = None,
    reply_name: bytes | None = None,
    delay_max_ms: int = DURATION_MAX_MS,
) -> Iterator[tuple[Attributes | None, list[bytes]]]:
    """Group consecutive messages with equal attributes; yield the attributes and the messages in their stored form.

    `flags` is the union of the flags of all messages; if no flag matters here, no message is read. Messages of the same
    publisher with consecutive sequence numbers have equal attributes: those of the first message. The stored form lacks
    the header BCC, which consumers must not see. Its header x-delay is negative: it says how long the message was
    delayed, so a client that publishes the message again does not delay it again. (The delayed message plugin does so,
    too.)

    `user` is the publishing user, and the only valid `user-id` of the messages; `None` allows any. `reply_name`
    replaces REPLY_TO; if it is `None`, REPLY_TO is refused. A delay above `delay_max_ms` counts as no delay.

    Raises UnacceptableProperties after it has yielded the messages before the invalid message; these are published.
    """
    if not flags & (_CHANGES if user is None else _CHANGES | layout.USER_ID):
        yield None, messages
        return
    first: Attributes | None = None
    alike: list[bytes] = []
    repeated: bytes | None = None
    """Properties with which a message may join the group without being read."""
    for message in messages:
        if repeated is not None and message.startswith(repeated, layout.FLAGS_AT):
            alike.append(message)
            continue
        wants_reply = _wants_direct_reply(message)
        try:
            if wants_reply and reply_name is None:
                raise _refusal("fast reply consumer does not exist")
            found = attributes(message)
            if found is not None and found.delay_ms > delay_max_ms:
                found = undelayed(found)
            _check_user(message, user)
        except UnacceptableProperties:
            if alike:
                yield first, alike
            raise
        if alike and not follows(first, len(alike), found):
            yield first, alike
            alike = []
        shown = _as_shown(message, found)
        if not alike:
            first = found
            distinct = found is not None and (found.publisher or found.more_keys)
            repeated = None if distinct or wants_reply or shown is not message else _properties(message)
        message = shown
        if wants_reply and reply_name is not None:
            message = _with_reply_to(message, reply_name)
        alike.append(message)
    if alike:
        yield first, alike


def follows(first: Attributes | None, count: int, found: Attributes | None) -> bool:
    """Return whether a message may join the `count` messages of a group."""
    if first is None or found is None:
        return first is found
    if first.publisher:
        return found[:5] == first[:5] and found.publish_seq == first.publish_seq + count
    return found is first or found == first


def _check_user(message: bytes, user: str | None) -> None:
    if user is None:
        return
    claimed = user_id(message)
    if claimed is not None and claimed != user:
        raise _refusal(f"user_id property set to '{claimed}' but authenticated user was '{user}'")


def _wants_direct_reply(message: bytes) -> bool:
    if not message[layout.FLAGS_AT] & layout.REPLY_TO >> 8:
        return False
    at = layout.place(message, layout.REPLY_TO)
    return message[at] == len(REPLY_TO) and message.startswith(REPLY_TO, at + 1)


def _with_reply_to(message: bytes, name: bytes) -> bytes:
    """Return the message with `name` in place of REPLY_TO."""
    at = layout.place(message, layout.REPLY_TO)
    size = _header_size(message, 3)[0] + len(name) - len(REPLY_TO)
    rest = message[at + 1 + len(REPLY_TO) :]
    return b"".join((message[:3], _U32.pack(size), message[7:at], bytes([len(name)]), name, rest))


def undelayed(found: Attributes) -> Attributes | None:
    """Return the attributes without the delay, or `None` if the rest has default values."""
    rest = found._replace(delay_ms=0)
    return None if rest == PLAIN else rest


def _as_shown(message: bytes, found: Attributes | None) -> bytes:
    """Return the message as its consumers see it."""
    if found is not None and found.delay_ms:
        return _as_delayed(message, found.delay_ms)
    # A header BCC without keys leaves no trace in the attributes, so the message is searched.
    if b"\x03BCC" not in message[: layout.frame_stop(message, 0)]:
        return message
    [stripped] = with_headers([message], removals=("BCC",))
    return stripped


def _as_delayed(message: bytes, delay_ms: int) -> bytes:
    properties = _properties(message)
    shown = _known_delayed.get(properties)
    if shown is None:
        [changed] = with_headers([message], additions={"x-delay": -delay_ms}, removals=("BCC",))
        shown = _properties(changed)
        if len(properties) <= VALID_PROPERTIES_BYTES_MAX:
            _remember(_known_delayed, properties, shown)
    size = _U32.pack(layout.FLAGS_AT - 7 + len(shown))
    rest = message[layout.FLAGS_AT + len(properties) :]
    return b"".join((message[:3], size, message[7 : layout.FLAGS_AT], shown, rest))


# --- reading


def _properties(message: bytes) -> bytes:
    """Return the flags and values of a message's properties.

    They encode their own length, so they are never a prefix of different properties.
    """
    return message[19 : 7 + _header_size(message, 3)[0]]


def _may_have_ours(properties: bytes) -> bool:
    """Return whether to search for qq's headers; the checks for single octets come first because they are fast."""
    if _C in properties and properties.find(b"CC") >= 0:
        return True
    return (
        _X in properties
        and _DASH in properties
        and (properties.find(b"x-delay") >= 0 or properties.find(b"x-publish") >= 0)
    )


def _next_of_publisher(properties: bytes) -> Attributes | None:
    """Return the attributes of properties that equal cached properties but for the sequence number, or `None`."""
    name_at = properties.find(_SEQUENCE_NAME)
    if name_at < 0:
        return None
    at = name_at + len(_SEQUENCE_NAME) + 1
    layout = _INTEGERS.get(properties[at - 1]) if at <= len(properties) else None
    if layout is None:
        return None
    # In the cached properties the name at this place belonged to a header with a value of this type, so here it does,
    # too.
    found = _known_publishers.get(properties[:at] + properties[at + layout.size :])
    if found is None:
        return None
    sequence = layout.unpack_from(properties, at)[0]
    return Attributes(*found[:5], sequence) if sequence > 0 else None


def _read_new(message: bytes, properties: bytes) -> Attributes | None:
    found, sequence_at = _read(message, properties)
    if len(properties) <= VALID_PROPERTIES_BYTES_MAX:
        if not found.publisher:
            _remember(_known, properties, None if found == PLAIN else found)
        elif sequence_at == properties.find(_SEQUENCE_NAME) + len(_SEQUENCE_NAME) + 1:
            # The bytes before the number say that it has this type, so the cache is valid for every number.
            size = _INTEGERS[properties[sequence_at - 1]].size
            _remember(_known_publishers, properties[:sequence_at] + properties[sequence_at + size :], found)
    return None if found == PLAIN else found


def _remember(known: dict[bytes, A], properties: bytes, found: A) -> None:
    if len(known) >= VALID_PROPERTIES_MAX:
        known.clear()
    known[properties] = found


def _read(message: bytes, properties: bytes) -> tuple[Attributes, int]:
    """Return the attributes of a message, and the offset of the sequence number in its properties, or 0."""
    present = layout.flags(message)
    priority, ttl_ms = NO_PRIORITY, NO_TTL
    if present & layout.PRIORITY:
        priority = message[layout.place(message, layout.PRIORITY)]
    if present & layout.EXPIRATION:
        ttl_ms = _expiration_ms(layout.short_string(message, layout.place(message, layout.EXPIRATION)))
    if not (present & layout.HEADERS and _may_have_ours(properties)):
        return Attributes((), priority, ttl_ms), 0
    values: dict[bytes, int] = {}
    """Offsets of the values of the headers that matter here; for a repeated name RabbitMQ takes the first header."""
    for name, _, value_at, _ in layout.pairs(message, layout.place(message, layout.HEADERS)):
        if name in _OURS:
            values.setdefault(name, value_at)
    keys = [key for name in (CC, BCC) if name in values for key in _keys(name, message, values[name])]
    if len(keys) > KEYS_MAX:
        raise _refusal(f"{len(keys)} routing keys in the headers CC and BCC, above the limit ({KEYS_MAX})")
    delay_ms = _delay_ms(message, values[DELAY]) if DELAY in values else 0
    publisher, sequence, sequence_at = "", 0, 0
    if PUBLISHER_ID in values or PUBLISH_SEQ in values:
        for name, other in ((PUBLISHER_ID, PUBLISH_SEQ), (PUBLISH_SEQ, PUBLISHER_ID)):
            if name not in values:
                raise _refusal(f"header '{other.decode()}' without header '{name.decode()}'")
        publisher = _publisher(message, values[PUBLISHER_ID])
        sequence = _publish_seq(message, values[PUBLISH_SEQ])
        sequence_at = values[PUBLISH_SEQ] + 1 - layout.FLAGS_AT
    return Attributes(tuple(keys), priority, ttl_ms, delay_ms, publisher, sequence), sequence_at


def _keys(name: bytes, message: bytes, at: int) -> Iterator[str]:
    if message[at] != _ARRAY:
        kind = _TYPE_NAMES[message[at]]
        raise _refusal(f'invalid message: {{unacceptable_type_in_header,"{name.decode()}",{kind}}}')
    stop = layout.value_stop(message, at)
    at += 5
    while at < stop:
        # RabbitMQ skips values that are not strings.
        if message[at] == _LONGSTR:
            yield text_of(_long_string(message, at))
        at = layout.value_stop(message, at)


def _delay_ms(message: bytes, at: int) -> int:
    """Return the delay in milliseconds, read as the delayed message plugin does; 0 if the value is unusable.

    Clients send integers, strings and even floating point numbers. An unusable value is no error, because other
    exchanges of RabbitMQ ignore this header.
    """
    kind = message[at]
    if kind in _INTEGERS:
        delay_ms = _INTEGERS[kind].unpack_from(message, at + 1)[0]
    elif kind in (_LONGSTR, _BYTES) and _DECIMAL.fullmatch(text := _long_string(message, at)):
        delay_ms = int(text)
    elif kind in _FLOATS and isfinite(number := _FLOATS[kind].unpack_from(message, at + 1)[0]):
        delay_ms = int(number)
    else:
        return 0
    return delay_ms if 0 < delay_ms <= DURATION_MAX_MS else 0


def _publisher(message: bytes, at: int) -> str:
    if message[at] == _LONGSTR:
        raw = _long_string(message, at)
        if 1 <= len(raw) <= PUBLISHER_BYTES_MAX:
            try:
                return raw.decode()
            except UnicodeDecodeError:
                pass
    raise _refusal("invalid header 'x-publisher-id': not a string of 1 to 255 octets of UTF-8")


def _publish_seq(message: bytes, at: int) -> int:
    layout = _INTEGERS.get(message[at])
    sequence = layout.unpack_from(message, at + 1)[0] if layout else 0
    if sequence < 1:
        raise _refusal("invalid header 'x-publish-seq': not an integer from 1 to 2^63-1")
    return sequence


def _long_string(message: bytes, at: int) -> bytes:
    return message[at + 5 : at + 5 + _U32.unpack_from(message, at + 1)[0]]


def _expiration_ms(raw: bytes) -> int:
    """Return an expiration in milliseconds, with the rules and errors of RabbitMQ's rabbit_basic:parse_expiration."""
    match = _ERLANG_INTEGER.fullmatch(raw.decode("latin-1"))
    if match is None:
        fault = "no_integer"
    elif match[2]:
        fault = f"{{leftover_string,{_erlang_text(match[2])}}}"
    elif (ttl_ms := int(match[1])) < 0:
        fault = f"{{value_negative,{ttl_ms}}}"
    elif ttl_ms > DURATION_MAX_MS:
        fault = f"{{value_too_large,{ttl_ms}}}"
    else:
        return ttl_ms
    raise _refusal(f"invalid expiration '{text_of(raw)}': {fault}")


def _erlang_text(text: str) -> str:
    """Return a list of characters as Erlang prints it: quoted if it is printable, otherwise as numbers."""
    if not _ERLANG_PRINTABLE.fullmatch(text):
        return f"[{','.join(str(ord(character)) for character in text)}]"
    for character, escaped in _ERLANG_ESCAPES:
        text = text.replace(character, escaped)
    return f'"{text}"'


def _refusal(explanation: str) -> UnacceptableProperties:
    return UnacceptableProperties(explanation)
