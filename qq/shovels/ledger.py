"""Deduplication numbers, by which a target drops a message that it receives a second time.

A target with deduplication drops a message whose number is not above the highest number taken from that publisher
(docs/how-to/publish-exactly-once.md). After a shovel's connection or node is lost, the source delivers unacknowledged
messages again. The shovel does not know which of these messages the target has. So the shovel stores the number of each
message in the log of its own cluster before it first sends the message. The next run, on any node, gives the same
message the same number.

Invariant: each run of a shovel is a publisher of its own, so two runs never give the same number to two messages.
Within a run the numbers of a publisher ascend, except for messages that this run has sent before. A skipped number is
never used again. So when a target has taken a number, it has been sent all lower numbers still in use, in order and in
a single connection. Therefore the target has every message that it drops. A message that cannot get its old number gets
a new number, and may arrive twice.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

KEY_BYTES = 8
"""Bytes of the hash that identifies a message (outbound.py)."""
ENTRIES_MAX = 1300
"""Maximum number of remembered messages: with 8 bytes each they fit into a parameter. The oldest are forgotten
first."""


class Number(NamedTuple):
    """The publisher id and the number of a message."""

    publisher: str
    number: int


class Ledger:
    """The numbers given by a run of a shovel, and the numbers of earlier runs that may be needed again."""

    def __init__(self, publisher: str, entries: Iterable[tuple[bytes, Number]] = ()) -> None:
        """`publisher` is an id unique to this run; `entries` are the numbers left by the last run."""
        self._publisher = publisher
        self._entries = dict(entries)
        """Message key -> number of each message that the source may deliver again, oldest first."""
        self.is_changed = bool(self._entries)
        """Whether the stored ledger may be out of date: the last run may have ended before it was stored."""
        self._sent: set[bytes] = set()
        """Keys of messages to which this run has given a number."""
        self._number = 0
        """Last number given by this run; 0 before the first."""

    def entries(self) -> Iterator[tuple[bytes, Number]]:
        """Return the entries that the next run needs."""
        return iter(self._entries.items())

    def number(self, key: bytes, *, is_redelivered: bool) -> Number:
        """Return the number of a message; a redelivered message gets its old number if that is known.

        If `is_changed` is true afterwards, the ledger must be stored before the message is sent.
        """
        known = self._entries.get(key)
        if known is not None and is_redelivered:
            if key not in self._sent:
                self._drop_lower(known)
                self._sent.add(key)
            return known
        self._number += 1
        self._entries.pop(key, None)
        given = self._entries[key] = Number(self._publisher, self._number)
        self._sent.add(key)
        for oldest in list(islice(self._entries, max(0, len(self._entries) - ENTRIES_MAX))):
            self.forget(oldest)
        self.is_changed = True
        return given

    def forget(self, key: bytes) -> None:
        """Forget a message that the source will never deliver again."""
        self._entries.pop(key, None)
        self._sent.discard(key)

    def _drop_lower(self, taken: Number) -> None:
        """Drop the lower numbers of a publisher that this run has not used."""
        before = [
            key
            for key, (publisher, number) in self._entries.items()
            if publisher == taken.publisher and number < taken.number and key not in self._sent
        ]
        for key in before:
            del self._entries[key]
        self.is_changed |= bool(before)


# --- stored form


def encode_entries(entries: Iterable[tuple[bytes, Number]], shovel: str) -> str:
    """Encode entries as JSON: runs of consecutive numbers per publisher; `shovel` identifies the shovel."""
    runs: list[tuple[str, int, list[bytes]]] = []
    for key, (publisher, number) in entries:
        if runs and runs[-1][0] == publisher and runs[-1][1] + len(runs[-1][2]) == number:
            runs[-1][2].append(key)
        else:
            runs.append((publisher, number, [key]))
    encoded = [(publisher, first, b64encode(b"".join(keys)).decode()) for publisher, first, keys in runs]
    return json.dumps({"shovel": shovel, "runs": encoded}, separators=(",", ":"))


def decode_entries(text: str | None, shovel: str) -> list[tuple[bytes, Number]]:
    """Decode the ledger of a shovel; return an empty list for a missing text or a different shovel."""
    stored = json.loads(text) if text is not None else {}
    if stored.get("shovel") != shovel:
        return []
    entries: list[tuple[bytes, Number]] = []
    for publisher, first, keys in stored["runs"]:
        octets = b64decode(keys)
        for place in range(len(octets) // KEY_BYTES):
            key = octets[place * KEY_BYTES : (place + 1) * KEY_BYTES]
            entries.append((key, Number(publisher, first + place)))
    return entries
