"""Messages of AMQP 1.0 for tests: made of sections, or drawn at random in any encoding."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import strategies as st

from qq.amqp10.composites import encode_composite
from qq.amqp10.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    MessageHeader,
    MessageProperties,
)
from qq.amqp10.values import Described, Long, Symbol, Timestamp, UByte, UInt, ULong, Uuid, encode
from tests.amqp10.amqp10_values import encode_anyhow, primitives, texts, values

BODY = [(DATA, b"body")]


def section(code: int, value: Any) -> bytes:
    return encode(Described(ULong(code), value))


def message10(
    header: MessageHeader | None = None,
    annotations: dict[str, Any] | None = None,
    properties: MessageProperties | None = None,
    named: dict[str, Any] | None = None,
    body: list[tuple[int, Any]] = BODY,
    footer: dict[str, Any] | None = None,
) -> bytes:
    """Make a message; `named` are its application properties."""
    parts = [encode_composite(header)] if header is not None else []
    if annotations is not None:
        parts.append(section(MESSAGE_ANNOTATIONS, {Symbol(key): value for key, value in annotations.items()}))
    if properties is not None:
        parts.append(encode_composite(properties))
    if named is not None:
        parts.append(section(APPLICATION_PROPERTIES, named))
    parts += [section(code, value) for code, value in body]
    if footer is not None:
        parts.append(section(FOOTER, {Symbol(key): value for key, value in footer.items()}))
    return b"".join(parts)


_uints = st.integers(0, 2**32 - 1).map(UInt)
_names = st.sampled_from(
    ["x-a", "x-b", "x-opt-c", "x-" + "n" * 300, "x-exchange", "x-basic-type", "x-opt-deaths"]
)
_ours = st.fixed_dictionaries(
    {},
    optional={
        Symbol("x-cc"): st.lists(texts, max_size=3),
        Symbol("x-delay"): values,
        Symbol("x-death"): values,
    },
)
_publishers = st.just({}) | st.integers(1, 2**63 - 1).map(
    lambda number: {Symbol("x-publisher-id"): "p", Symbol("x-publish-seq"): Long(number)}
)
_annotations = st.tuples(st.dictionaries(_names.map(Symbol), values, max_size=3), _ours, _publishers).map(
    lambda drawn: {**drawn[0], **drawn[1], **drawn[2]}
)
_ids = st.one_of(
    st.none(),
    texts,
    st.binary(max_size=300),
    st.integers(0, 2**64 - 1).map(ULong),
    st.binary(min_size=16, max_size=16).map(Uuid),
)
_maybe_text = st.none() | texts | st.sampled_from(["/queues/q%20q", "/queues/", "/exchanges/x"])
_symbols = st.none() | st.text(st.characters(max_codepoint=127), max_size=300).map(Symbol)
_times = st.none() | st.integers(-(2**63), 2**63 - 1).map(Timestamp)
_header = st.tuples(
    st.none() | st.booleans(),
    st.none() | st.integers(0, 255).map(UByte),
    st.none() | _uints,
    st.none() | st.booleans(),
    st.none() | _uints,
).map(list)
_properties = st.tuples(
    _ids,
    st.none() | st.just(b"me") | st.binary(max_size=300),
    _maybe_text,
    _maybe_text,
    _maybe_text,
    _ids,
    _symbols,
    _symbols,
    _times,
    _times,
    _maybe_text,
    st.none() | _uints,
    _maybe_text,
).map(list)
_body = st.one_of(
    st.lists(st.binary(max_size=300), min_size=1, max_size=3).map(
        lambda parts: [(DATA, part) for part in parts]
    ),
    st.lists(st.lists(values, max_size=3), min_size=1, max_size=3).map(
        lambda parts: [(SEQUENCE, part) for part in parts]
    ),
    values.map(lambda value: [(VALUE, value)]),
)


def _absent(chance: int, strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, chance).flatmap(lambda drawn: strategy if drawn else st.none())


@st.composite
def messages10(draw: st.DrawFn) -> bytes:
    """Draw a message that is accepted from user "me" or from any user, in any encoding."""
    rnd = Random(draw(st.integers(0, 2**32)))
    parts = [
        (HEADER, draw(_absent(3, _header))),
        (DELIVERY_ANNOTATIONS, draw(_absent(1, st.dictionaries(_names.map(Symbol), primitives, max_size=2)))),
        (MESSAGE_ANNOTATIONS, draw(_absent(3, _annotations))),
        (PROPERTIES, draw(_absent(3, _properties))),
        (APPLICATION_PROPERTIES, draw(_absent(3, st.dictionaries(texts, values, max_size=4)))),
        *draw(_body),
        (FOOTER, draw(_absent(1, st.dictionaries(_names.map(Symbol), values, max_size=2)))),
    ]
    written = [(code, value) for code, value in parts if value is not None or code == VALUE]
    return b"".join(encode_anyhow(Described(ULong(code), value), rnd) for code, value in written)
