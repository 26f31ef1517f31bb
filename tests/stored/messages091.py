"""Messages of AMQP 0-9-1 for tests, drawn at random with every type that a table can hold."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from qq.stored.editing import body_frames
from qq.stored.fields import join_properties

if TYPE_CHECKING:
    from collections.abc import Mapping

FIXED = {
    "b": 1,
    "B": 1,
    "s": 2,
    "u": 2,
    "I": 4,
    "i": 4,
    "l": 8,
    "L": 8,
    "f": 4,
    "d": 8,
    "T": 8,
    "D": 5,
    "V": 0,
}
SHORT = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "message_id",
    "message_type",
    "user_id",
)


def sized(octets: bytes) -> bytes:
    return struct.pack(">I", len(octets)) + octets


def short(octets: bytes) -> bytes:
    return bytes((len(octets),)) + octets


def frames(properties: Mapping[str, bytes], body: bytes, part: int = 4096) -> bytes:
    """Make a message with properties that are already encoded."""
    octets = join_properties(properties)
    head = struct.pack(">BHIHHQ", 2, 1, 12 + len(octets), 60, 0, len(body))
    return head + octets + b"\xce" + body_frames(body, 1, part)


_octets = st.binary(max_size=20)
_strings = _octets | st.text(max_size=20).map(str.encode)
_names = st.sampled_from([b"a", b"b", b"x-a", b"x-b", b"", b"\xff", b"x-" + b"n" * 253]) | _octets
_fixed = st.sampled_from(sorted(FIXED)).flatmap(
    lambda kind: st.binary(min_size=FIXED[kind], max_size=FIXED[kind]).map(
        lambda value: kind.encode() + value
    )
)
fields = st.recursive(
    _fixed | st.sampled_from([b"t\x00", b"t\x01"]) | _strings.map(lambda text: b"S" + sized(text)),
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda values: b"A" + sized(b"".join(values)))
        | st.lists(st.tuples(_names, inner), max_size=4).map(lambda pairs: b"F" + table(pairs))
        | _octets.map(lambda octets: b"x" + sized(octets))
    ),
    max_leaves=10,
)


def table(pairs: list[tuple[bytes, bytes]]) -> bytes:
    return sized(b"".join(short(name) + value for name, value in pairs))


_keys = st.lists(_strings.map(lambda text: b"S" + sized(text)), max_size=3).map(
    lambda values: (b"CC", b"A" + sized(b"".join(values)))
)
_tables = st.lists(st.tuples(_names, fields) | _keys, max_size=5).map(table)
_optional = {name: _strings.map(lambda text: short(text[:255])) for name in (*SHORT, "app_id", "cluster_id")}
properties091 = st.fixed_dictionaries(
    {},
    optional=_optional
    | {
        "headers": _tables,
        "delivery_mode": st.sampled_from([b"\1", b"\2"]),
        "priority": st.binary(min_size=1, max_size=1),
        "timestamp": st.binary(min_size=8, max_size=8) | st.integers(0, 2**40).map(lambda at: at.to_bytes(8)),
        "expiration": st.integers(0, 315_360_000_000).map(lambda ms: short(str(ms).encode())),
    },
)
messages091 = st.builds(frames, properties091, st.binary(max_size=600), st.sampled_from([20, 4096]))
