"""The trace context that a publisher sent with a message: W3C's headers `traceparent` and `tracestate`.

A publisher of AMQP 1.0 sends them as application properties or message annotations.

Invariant: most messages are not traced, and cost next to no time. A message without headers costs two checks of an
octet, and a message with an unsampled context costs a search. If a different header's value contains text that looks
like a context, the worst result is a span too many or too few.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from qq.stored import layout
from qq.stored.kinds import has_sections, head_stop

_HAS_HEADERS = layout.HEADERS >> 8
_PARENT = rb"([0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]([0-9a-f]))"


class _Patterns(NamedTuple):
    """How both values are found: length and text of the name, then type and length of the value."""

    parent: re.Pattern[bytes]
    state: re.Pattern[bytes]


# The type is a long string, or octets, as some clients send texts.
_IN_HEADERS = _Patterns(
    re.compile(rb"\x0btraceparent[Sx]\0\0\0[\x37-\xff]" + _PARENT),
    re.compile(rb"\x0atracestate[Sx](....)()", re.DOTALL),
)
# Application properties have strings, annotations also symbols; both have lengths of 1 or 4 octets.
_IN_SECTIONS = _Patterns(
    re.compile(rb"\x0btraceparent(?:[\xa1\xa3]|[\xb1\xb3]\0\0\0)[\x37-\xff]" + _PARENT),
    re.compile(rb"\x0atracestate(?:[\xa1\xa3](.)|[\xb1\xb3](....))", re.DOTALL),
)
_SAMPLED = b"13579bdf"
"""Last digits of the flags of a sampled trace."""


class TraceContext(NamedTuple):
    """The trace that a message belongs to."""

    is_sampled: bool
    traceparent: str = ""
    """The header, without the additions of later versions of the format; empty if the trace is not sampled."""
    tracestate: str = ""


_UNSAMPLED = TraceContext(is_sampled=False)


def trace_context(message: bytes) -> TraceContext | None:
    """Return the trace context of a stored message, or `None` if it has no context."""
    if has_sections(message):
        begin, stop, patterns = 0, head_stop(message), _IN_SECTIONS
    elif message[layout.FLAGS_AT] & _HAS_HEADERS:
        begin, stop, patterns = layout.PROPERTIES_AT, layout.frame_stop(message, 0), _IN_HEADERS
    else:
        return None
    parent = patterns.parent.search(message, begin, stop)
    if parent is None:
        return None
    if parent[2] not in _SAMPLED:
        return _UNSAMPLED
    state = patterns.state.search(message, begin, stop)
    return TraceContext(True, parent[1].decode(), "" if state is None else _sized(message, state, stop))


def _sized(message: bytes, found: re.Match[bytes], stop: int) -> str:
    """Return the text whose length was found in front of it."""
    size = int.from_bytes(found[1] or found[2])
    return message[found.end() : min(found.end() + size, stop)].decode("latin-1")
