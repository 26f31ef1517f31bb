"""Composite values: described lists as named tuples, by one definition of their fields.

A named tuple with `@composite` is the definition: its fields are in the order of the wire, and their annotations say
which AMQP type they have. A field is mandatory if it may not be `None` and has no default. Both directions follow from
that.

Invariant: a decoded composite has the Python types of its annotations; input that does not raises `ConditionError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from qq.amqp10.conditions import InvalidFieldValue, UndecodableValue
from qq.amqp10.values import (
    DESCRIBED,
    SMALL_ULONG,
    Array,
    Byte,
    Described,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Uuid,
    Value,
    encode,
    encode_list,
    encode_symbols,
)

_MESSAGE_ID_TYPES = (ULong, Uuid, bytes, str, Long, UInt, Int, UShort, Short, UByte, Byte)
"""The types of message ids (section 3.2.4), and all other integers, which RabbitMQ accepts: go-amqp sends an `int` as a
long."""

TAG_BYTES_MAX = 32
"""Octets of a delivery tag, at most (section 2.8.7)."""


class FieldType(NamedTuple):
    """The AMQP type of a field, as the second argument of `Annotated`."""

    name: str
    convert: Callable[[Value], Any]
    """Returns the field's Python value for a decoded value that is not null. Raises `WrongType`, or `ValueError` for a
    value that the type allows and the protocol forbids."""
    encode: Callable[[Any], bytes]


class WrongType(Exception):
    """A value has another type than its field."""


def field_type(name: str, wire_type: Callable[[Any], Value], python_type: Callable[[Any], Any]) -> FieldType:
    """Return the type of fields that hold a single primitive type, or of those of its values that a class restricts."""

    def convert(value: Value) -> Any:
        if type(value) is not wire_type:
            raise WrongType
        return python_type(value)

    def encode_field(value: Any) -> bytes:
        return encode(wire_type(value))

    return FieldType(name, convert, encode_field)


def _symbols(value: Value) -> tuple[str, ...]:
    """Return the symbols of a field with several values, which may be a single symbol or an array of them."""
    elements = value.elements if isinstance(value, Array) else [value]
    if any(type(element) is not Symbol for element in elements):
        raise WrongType
    return tuple(str(element) for element in elements)


def _message_id(value: Value) -> Value:
    if type(value) not in _MESSAGE_ID_TYPES:
        raise WrongType
    return value


def _tag(octets: bytes) -> bytes:
    if len(octets) > TAG_BYTES_MAX:
        raise ValueError(f"longer than TAG_BYTES_MAX={TAG_BYTES_MAX} octets")
    return octets


Boolean: TypeAlias = Annotated[bool, field_type("boolean", bool, bool)]
OneOctet: TypeAlias = Annotated[int, field_type("ubyte", UByte, int)]
TwoOctets: TypeAlias = Annotated[int, field_type("ushort", UShort, int)]
FourOctets: TypeAlias = Annotated[int, field_type("uint", UInt, int)]
EightOctets: TypeAlias = Annotated[int, field_type("ulong", ULong, int)]
Time: TypeAlias = Annotated[int, field_type("timestamp", Timestamp, int)]
Octets: TypeAlias = Annotated[bytes, field_type("binary", bytes, bytes)]
Tag: TypeAlias = Annotated[bytes, field_type("binary", bytes, _tag)]
Text: TypeAlias = Annotated[str, field_type("string", str, str)]
Name: TypeAlias = Annotated[str, field_type("symbol", Symbol, str)]
Names: TypeAlias = Annotated[tuple[str, ...], FieldType("symbols", _symbols, encode_symbols)]
Fields: TypeAlias = Annotated[dict[Value, Value], field_type("map", dict, dict)]
MessageId: TypeAlias = Annotated[int | Uuid | bytes | str, FieldType("message id", _message_id, encode)]


class _Field(NamedTuple):
    name: str
    """The name on the wire, with hyphens."""
    type: FieldType
    is_mandatory: bool
    default: Any


class CompositeDefinition:
    """What a named tuple's annotations say: the fields of the list, behind its descriptor."""

    __slots__ = ("_cls", "_fields", "_head", "_is_complete", "name")

    def __init__(self, cls: Any, code: int, name: str, *, is_complete: bool) -> None:
        self.name = name
        """The symbolic descriptor."""
        self._cls = cls
        self._is_complete = is_complete
        self._head = bytes((DESCRIBED, SMALL_ULONG, code))
        self._fields = [
            _Field(
                field.replace("_", "-"),
                _type_of(annotation),
                field not in cls._field_defaults and type(None) not in get_args(annotation),
                cls._field_defaults.get(field),
            )
            for field, annotation in get_type_hints(cls, localns=_RECURSIVE, include_extras=True).items()
        ]

    def from_value(self, value: Value) -> Any:
        """Return the named tuple for the list, or for the map of names and values that may stand for it."""
        if isinstance(value, dict):
            value = self._in_order(value)
        if not isinstance(value, list):
            raise UndecodableValue(f"{self.name} is no list")
        fields = self._fields
        absent = len(fields) - len(value)
        if absent < 0:
            raise UndecodableValue(f"{self.name} has {len(value)} fields instead of {len(fields)}")
        return self._cls._make(map(self._field, fields, value + [None] * absent))

    def encode(self, composite: Any) -> bytes:
        """Encode the described list.

        Unless the list must be complete, it lacks the fields at its end that have their defaults.
        """
        encoded = [
            b"\x40" if value is None or value == field.default else field.type.encode(value)
            for field, value in zip(self._fields, composite, strict=True)
        ]
        while encoded and encoded[-1] == b"\x40" and not self._is_complete:
            encoded.pop()
        return self._head + encode_list(encoded)

    def _in_order(self, fields: dict[Value, Value]) -> list[Value]:
        """Return the values of a map in the order of the list."""
        names = [field.name for field in self._fields]
        unknown = [name for name in fields if name not in names]
        if unknown:
            raise UndecodableValue(f"{self.name} has no field {unknown[0]!r}")
        return [fields.get(name) for name in names]

    def _field(self, field: _Field, value: Value) -> Any:
        if value is None:
            if field.is_mandatory:
                raise InvalidFieldValue(f"{self.name}: {field.name} is missing")
            return field.default
        try:
            return field.type.convert(value)
        except WrongType:
            raise UndecodableValue(f"{self.name}: {field.name} is no {field.type.name}") from None
        except ValueError as error:
            raise InvalidFieldValue(f"{self.name}: {field.name} is {error}") from None


_BY_CODE: dict[Value, CompositeDefinition] = {}
_BY_NAME: dict[Value, CompositeDefinition] = {}
_BY_CLASS: dict[type, CompositeDefinition] = {}
_RECURSIVE = {"Array": Array, "Described": Described, "Value": Any}
"""The names in the alias `Value`, for modules that use it in annotations and do not import them."""

_Class = TypeVar("_Class", bound=type)


def composite(code: int, name: str, *, is_complete: bool = False) -> Callable[[_Class], _Class]:
    """Make a named tuple the definition of the composite with this descriptor, as a number and as a symbol.

    If it `is_complete`, it is encoded with all its fields.
    """

    def define(cls: _Class) -> _Class:
        definition = CompositeDefinition(cls, code, name, is_complete=is_complete)
        _BY_CLASS[cls] = _BY_CODE[code] = _BY_NAME[name] = definition
        return cls

    return define


def _type_of(annotation: Any) -> FieldType:
    """Return the AMQP type of an annotation: `Annotated`, or composites, perhaps with `None`."""
    candidates = [annotation, *get_args(annotation)]
    for candidate in candidates:
        if get_origin(candidate) is Annotated:
            return get_args(candidate)[1]
    return _composite_type(tuple(cls for cls in candidates if cls in _BY_CLASS or cls is Described))


def _composite_type(classes: tuple[type, ...]) -> FieldType:
    """Return the type of fields that hold any of these composites.

    `Described` among them stands for a value with an unknown descriptor.
    """

    def convert(value: Value) -> Any:
        if not isinstance(value, Described):
            raise WrongType
        known = from_described(value)
        if not isinstance(known, classes):
            raise WrongType
        return known

    names = [_BY_CLASS[cls].name for cls in classes if cls in _BY_CLASS]
    return FieldType(" or ".join(names), convert, encode_composite)


def from_described(value: Described) -> Any:
    """Return the composite with this descriptor, or the value itself if its descriptor is unknown."""
    descriptor = value.descriptor
    definitions = _BY_NAME if type(descriptor) is Symbol else _BY_CODE
    definition = definitions.get(descriptor) if type(descriptor) in (Symbol, ULong) else None
    return value if definition is None else definition.from_value(value.value)


def encode_composite(composite: Any) -> bytes:
    """Encode an instance of a class with `@composite`, or any other described value."""
    definition = _BY_CLASS.get(type(composite))
    return encode(composite) if definition is None else definition.encode(composite)
