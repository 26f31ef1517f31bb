"""The filter of a move or a search: which messages of a queue it is for.

The machine knows the dead-letter history of each message. Headers, properties and bodies are in the log only. So a
filter first judges the history, and reads a message only if that is not enough.

Invariant: pure. A move and a search with the same filter find the same messages.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from qq.stored.content import content_of
from qq.stored.editing import content
from qq.stored.kinds import has_sections, head_stop
from qq.stored.layout import FRAME_MAX
from qq.stored.to_frames import to_frames

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from qq.machine.protocol.death_history import History
    from qq.machine.queue.moves import MoveState

SEARCHED_BYTES = 1024 * 1024
"""First octets of a body that are searched for a text; a few milliseconds of work."""
SEARCHED_FRAMES_BYTES = SEARCHED_BYTES + SEARCHED_BYTES // 64
"""Octets of body frames that are read for these. They suffice unless frames are smaller than 512 octets."""


class MessageFilter(NamedTuple):
    """Conditions that messages must all fulfil; empty fields are no condition."""

    reason: str = ""
    """Reason of the last death."""
    from_queue: str = ""
    """Queue of the last death."""
    headers: Mapping[str, object] = {}
    """Headers with their values."""
    text: str = ""
    """Text in the body, in a property or in a header; capital and small letters are alike."""

    @property
    def reads_messages(self) -> bool:
        """Return whether the filter must read messages, because their history is not enough."""
        return bool(self.headers or self.text)

    def takes_history(self, history: History | None) -> bool:
        """Return whether messages with this history may match, judged by the history alone."""
        if history is None:
            return not (self.reason or self.from_queue)
        reason, queue, _ = history.last
        return self.reason in ("", reason) and self.from_queue in ("", queue)

    def takes_message(self, message: bytes) -> bool:
        """Return whether a stored message matches. For a filter without text its content header is enough."""
        return _has_headers(message, self.headers) and (not self.text or _has_text(message, self.text))


def filter_of(move: MoveState) -> MessageFilter:
    """Return the filter of a move."""
    return MessageFilter(move.reason, move.from_queue, move.headers, move.text)


def _has_headers(message: bytes, headers: Mapping[str, object]) -> bool:
    """Return whether a message has these headers, with these values."""
    if not headers:
        return True
    found = content_of(message, 0).headers
    return all(name in found and _is_equal(found[name], value) for name, value in headers.items())


def _is_equal(found: object, wanted: object) -> bool:
    """Return whether two values are equal, and not merely equal for Python as True and 1 are."""
    return found == wanted and isinstance(found, bool) == isinstance(wanted, bool)


def _has_text(message: bytes, text: str) -> bool:
    wanted = text.casefold()
    if has_sections(message):
        # Sections hold texts as they are, so the octets are searched from the first on.
        [header] = to_frames([message[: head_stop(message)]], 1, FRAME_MAX)
        properties, body = content(header).properties, message
    else:
        properties, body = content(message, SEARCHED_FRAMES_BYTES)
    if wanted in body[:SEARCHED_BYTES].decode(errors="replace").casefold():
        return True
    values = (getattr(properties, name) for name in properties.attributes() if name != "headers")
    texts = [*(value for value in values if isinstance(value, str)), *_texts(properties.headers or {})]
    return any(wanted in each.casefold() for each in texts)


def _texts(value: object) -> Iterator[str]:
    """Yield all names and values in a table of headers, as texts."""
    match value:
        case dict():
            for name, inside in value.items():
                yield str(name)
                yield from _texts(inside)
        case list():
            for inside in value:
                yield from _texts(inside)
        case str():
            yield value
        case bytes() | bytearray():
            yield value.decode(errors="replace")
        case bool() | int() | float() | None:
            yield json.dumps(value)
        case _:
            yield str(value)
