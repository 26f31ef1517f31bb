"""The trace context that a publisher sent with a message: W3C's headers `traceparent` and `tracestate`.

Invariant: most messages are not traced, and cost next to no time. A message without headers costs a check of an octet,
and a message with an unsampled context costs a search. If a different header's value contains text that looks like a
context, the worst result is a span too many or too few.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import NamedTuple

from qq.stored import layout

_HAS_HEADERS = layout.HEADERS >> 8
# Length and text of the name, then the type (a long string, or octets, as some clients send texts), then the length of
# the value.
_TRACEPARENT = re.compile(
    rb"\x0btraceparent[Sx]\0\0\0[\x37-\xff]([0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]([0-9a-f]))"
)
_TRACESTATE = re.compile(rb"\x0atracestate[Sx](....)", re.DOTALL)
_U32 = Struct(">I")
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
    if not message[layout.FLAGS_AT] & _HAS_HEADERS:
        return None
    stop = layout.frame_stop(message, 0)
    parent = _TRACEPARENT.search(message, layout.PROPERTIES_AT, stop)
    if parent is None:
        return None
    if parent[2] not in _SAMPLED:
        return _UNSAMPLED
    return TraceContext(True, parent[1].decode(), _tracestate(message, stop))


def _tracestate(message: bytes, stop: int) -> str:
    state = _TRACESTATE.search(message, layout.PROPERTIES_AT, stop)
    if state is None:
        return ""
    [size] = _U32.unpack(state[1])
    return message[state.end() : min(state.end() + size, stop)].decode("latin-1")
