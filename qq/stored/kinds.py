"""The two kinds of stored messages: frames of AMQP 0-9-1, and sections of AMQP 1.0.

Invariant: the first octet tells the kind. A content header frame begins with its type, 2; a section begins with the
constructor of a described value, 0. A message has no octets if all of it is stored in fragments; then it has sections.
"""

from __future__ import annotations

from qq.amqp10.sections import DATA, first_from
from qq.stored import layout

SECTIONS_CHANNEL = 0
"""Channel number in a command that publishes sections. Frames of messages have other numbers."""


def has_sections(message: bytes) -> bool:
    """Return whether a stored message consists of sections."""
    return not message or message[0] != layout.FRAME_HEADER


def head_of(message: bytes) -> bytes:
    """Return the octets from which headers and properties of a message are read."""
    return message[0 if has_sections(message) else layout.FLAGS_AT : head_stop(message)]


def head_stop(message: bytes) -> int:
    """Return the end of the content header, or of the sections before the body. The body may be cut off."""
    return first_from(message, DATA) if has_sections(message) else layout.frame_stop(message, 0)
