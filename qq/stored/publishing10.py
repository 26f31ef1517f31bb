"""Messages of AMQP 1.0 before they are published: their sections checked, their attributes read.

Invariant: every reader of stored messages can decode the sections before the body of an accepted message, and its
annotations have no reserved key. Most messages of a link have equal octets before the body, or differ in the values of
some properties only. Such a message is compared with the link's last decoded message instead of being decoded.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from qq.amqp10.conditions import Condition, ConditionError, UndecodableValue
from qq.amqp10.sections import (
    APPLICATION_PROPERTIES,
    LONG_DATA,
    PROPERTIES,
    SHORT_DATA,
    MessageProperties,
    Sections,
    decode_section,
    find_sections,
    first_from,
    section_items,
)
from qq.amqp10.values import FREE, STRINGS, VARIABLE, Item, Symbol
from qq.octet_columns import begin_alike
from qq.octets import octets_of, text_of
from qq.stored.attributes10 import PUBLISH_SEQ, SEQUENCE_MAX, attributes_of
from qq.stored.known import remembers
from qq.stored.properties import DURATION_MAX_MS, follows, undelayed
from qq.stored.similar import VALUES_MAX, Skeleton, skeleton_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from qq.stored.properties import Attributes

SHAPE_BYTES_MAX = 2048
"""Octets before the body of the longest message that a link remembers, which bounds the memory of very many links."""
_USER_ID = MessageProperties._fields.index("user_id")
_SEQUENCE_NAME = PUBLISH_SEQ.encode()
_U32 = Struct(">I")
_NO_PROPERTIES = MessageProperties()


class ForeignUser(ConditionError):
    """The property `user-id` of a message names a user that is not its publisher."""

    condition = Condition.UNAUTHORIZED_ACCESS


class _LinkShape(NamedTuple):
    """The common octets of the messages of a link that need no decoding."""

    head: bytes
    """The octets up to the size of its data section, which is its body."""
    skeleton: Skeleton
    texts: tuple[slice, ...]
    """Values that must be ASCII. Other texts might not be UTF-8."""
    is_short: bool
    """Whether the size of the data section is an octet."""
    cut: tuple[int, int]
    """The delivery annotations, which are not stored."""
    attributes: Attributes | None
    sequence: Item | None
    """The value of the annotation `x-publish-seq`."""
    is_plain: bool
    """Whether the stored form of such messages is that of the link, and all have the same attributes."""

    def fits(self, message: bytes) -> bool:
        """Return whether all sections before the body are valid, because they are like those of the shape."""
        body = len(self.head)
        if not message.startswith(self.head):
            if not self.skeleton.fits(message):
                return False
            for text in self.texts:
                if not message[text].isascii():
                    return False
        rest = len(message) - body
        if self.is_short:
            return rest > 0 and 1 + message[body] == rest
        return rest >= 4 and 4 + _U32.unpack_from(message, body)[0] == rest

    def fits_all(self, messages: Sequence[bytes]) -> bool:
        """Return whether messages of the same size fit, and have the same octets before the body."""
        first = messages[0]
        return self.fits(first) and begin_alike(
            messages, first[: len(self.head) + (1 if self.is_short else 4)]
        )


class PublishedSections:
    """Reads the messages of a link on which a user publishes."""

    __slots__ = ("_shape", "_user")

    def __init__(self, user: str | None) -> None:
        """`user` is the only valid `user-id` of the messages; `None` allows any."""
        self._user = user
        self._shape: _LinkShape | None = None
        """The shape of the last message that was decoded."""

    def group(
        self, messages: list[bytes], delay_max_ms: int = DURATION_MAX_MS
    ) -> Iterator[tuple[Attributes | None, list[bytes]]]:
        """Group consecutive messages with equal attributes; yield the attributes and the messages as they are stored.

        Messages of the same publisher with consecutive sequence numbers have equal attributes: those of the first
        message. Delivery annotations are not stored. A delay above `delay_max_ms` counts as no delay.

        Raises a `ConditionError` after it has yielded the messages before the invalid message; these are published.
        """
        first: Attributes | None = None
        alike: list[bytes] = []
        shape = self._shape
        if shape is not None and shape.is_plain and shape.fits_all(messages):
            yield shape.attributes, messages
            return
        for message in messages:
            if shape is not None and shape.is_plain and shape.fits(message):
                found, stored = shape.attributes, message
                if alike and found is first:
                    alike.append(message)
                    continue
            else:
                try:
                    found, stored = self._read(message)
                except ConditionError:
                    if alike:
                        yield first, alike
                    raise
                shape = self._shape
            if found is not None and found.delay_ms > delay_max_ms:
                found = undelayed(found)
            if not alike:
                first = found
            elif not follows(first, len(alike), found):
                yield first, alike
                first, alike = found, []
            alike.append(stored)
        if alike:
            yield first, alike

    def _read(self, message: bytes) -> tuple[Attributes | None, bytes]:
        """Return the attributes of a message, and its stored form."""
        shape = self._shape
        if shape is not None and shape.fits(message):
            found, sequence = shape.attributes, shape.sequence
            begin, end = shape.cut
            if sequence is not None and found is not None:
                number = sequence.number_in(message)
                if number is None or not 1 <= number <= SEQUENCE_MAX:
                    return self._read_new(message)
                found = found._replace(publish_seq=number)
            return found, message[:begin] + message[end:] if begin < end else message
        return self._read_new(message)

    def _read_new(self, message: bytes) -> tuple[Attributes | None, bytes]:
        sections = find_sections(message)
        self._check(message, sections)
        cut = sections.delivery_annotations, sections.message_annotations
        leading = message[: cut[0]] + message[cut[1] : sections.properties]
        found = attributes_of(leading)
        shape = _shape_of(message, sections, found)
        if shape is not None:
            self._shape = shape
        return found, message[: cut[0]] + message[cut[1] :]

    def _check(self, message: bytes, sections: Sections) -> None:
        """Raise a `ConditionError` unless the sections before the body are those of a message of the user."""
        _, annotations, properties, application_properties, body, _, _ = sections
        for begin, end in ((sections.delivery_annotations, annotations), (annotations, properties)):
            if begin < end:
                _check_annotations(message[begin:end])
        if properties < application_properties:
            claimed = decode_properties(message[properties:application_properties]).user_id
            if claimed is not None and self._user is not None and claimed != octets_of(self._user):
                raise ForeignUser(
                    f"user_id property set to '{text_of(claimed)}' but authenticated user was '{self._user}'"
                )
        if application_properties < body:
            decode_section(message[application_properties:body])


def _check_annotations(section: bytes) -> None:
    for key in decode_section(section):
        if not isinstance(key, Symbol) or not key.startswith("x-"):
            raise UndecodableValue(f"reserved key {key!r:.100} of annotations")


def properties_of(message: bytes) -> MessageProperties:
    """Return the properties of a message, checked or not. Raises a `ConditionError`."""
    begin = first_from(message, PROPERTIES)
    end = first_from(message, APPLICATION_PROPERTIES)
    return decode_properties(message[begin:end])


@remembers
def decode_properties(section: bytes) -> MessageProperties:
    """Decode a section of properties, which may be absent. Raises a `ConditionError`."""
    return decode_section(section) if section else _NO_PROPERTIES


def _shape_of(message: bytes, sections: Sections, found: Attributes | None) -> _LinkShape | None:
    """Return the shape of a message, or `None` if it is not remembered: its body must be a usual data section."""
    body = sections.body + 4
    begin = message[sections.body : body]
    if begin not in (SHORT_DATA, LONG_DATA) or sections.footer or body > SHAPE_BYTES_MAX:
        return None
    is_short = begin == SHORT_DATA
    if body + (1 + message[body] if is_short else 4 + _U32.unpack_from(message, body)[0]) != len(message):
        return None
    sequence = _sequence_of(message, sections) if found is not None and found.publisher else None
    values = [] if sequence is None else [sequence]
    values += _values_of(message, sections)
    if len(values) > VALUES_MAX:
        values = []
    return _LinkShape(
        message[:body],
        skeleton_of(message, body, [(value.at, value.end) for value in values]),
        tuple(slice(value.at, value.end) for value in values if value.code in STRINGS),
        is_short,
        (sections.delivery_annotations, sections.message_annotations),
        found,
        sequence,
        sections.delivery_annotations == sections.message_annotations
        and (found is None or not (found.publisher or found.delay_ms)),
    )


def _sequence_of(message: bytes, sections: Sections) -> Item | None:
    """Return the place of the annotation `x-publish-seq`, if its value has octets."""
    found = section_items(message, sections.message_annotations, sections.properties)
    for key, value in zip(found[::2], found[1::2], strict=True):
        if message[key.at : key.end] == _SEQUENCE_NAME and value.code in FREE:
            return value
    return None


def _values_of(message: bytes, sections: Sections) -> list[Item]:
    """Return the values of properties and application properties that may differ in a message of the same shape."""
    properties = section_items(message, sections.properties, sections.application_properties)
    named = section_items(message, sections.application_properties, sections.body)
    values = [*properties[:_USER_ID], *properties[_USER_ID + 1 :], *named[1::2]]
    return [value for value in values if value.code in FREE or value.code in VARIABLE]
