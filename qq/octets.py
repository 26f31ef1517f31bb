"""Text of AMQP clients that may contain octets which are not UTF-8: routing keys, and names of fields in tables.

Invariant: such an octet is half of a surrogate pair in a `str` (Python's `surrogateescape`). So the text is stored,
compared and sent as the octets that the client sent. Every form for people, JSON or logs goes through `readable`.
"""

from __future__ import annotations


def text_of(octets: bytes) -> str:
    """Decode octets; `octets_of` returns the same octets again."""
    return octets.decode(errors="surrogateescape")


def octets_of(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def is_utf8(text: str) -> bool:
    """Return whether the octets of the text are UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def readable(text: str) -> str:
    """Return the text with U+FFFD in place of octets that are not UTF-8."""
    return text if text.isascii() else octets_of(text).decode(errors="replace")


def as_latin(text: str) -> str:
    """Return the text; if its octets are not UTF-8, read each of them as a character, as RabbitMQ's texts do."""
    return text if is_utf8(text) else octets_of(text).decode("latin-1")
