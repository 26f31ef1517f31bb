"""The numbers by which a target knows a message again that it gets a second time.

A cluster of this kind drops what a publisher has published before: a message whose number is not above the highest
that it has taken from that publisher (docs/how-to/publish-exactly-once.md). A source delivers again what was not
acknowledged when a shovel's connection or node was lost, and the shovel does not know what of it the target has. So a
shovel writes down, in the log of its own cluster, which number it gives to which message, before it sends the message
for the first time; and whoever carries the shovel out next gives the same message the same number.

Laws. Each run of a shovel is a publisher of its own, so two of them never give one number to two messages. Within a run
numbers of one publisher only ascend, but for messages that this run has sent before; a number that has been passed over
is never used again. So a target that has taken a number has been sent all lower ones that are still used, in their
order and in one connection: whatever it drops, it has. A message that cannot get its old number gets a new one, and may
be there twice.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

KEY_BYTES = 8
"""Octets by which messages are told apart (outbound.py)."""
ENTRIES_MAX = 1300
"""How many messages are remembered: with 8 octets each, they fit into a parameter. The oldest are forgotten first."""


class Number(NamedTuple):
    """What a message gets."""

    publisher: str
    number: int


class Ledger:
    """The numbers of one run of a shovel, and those of the runs before it that may be needed."""

    def __init__(self, publisher: str, entries: Iterable[tuple[bytes, Number]] = ()) -> None:
        """`publisher` is a name that no other run has; `entries` is what the last run has left."""
        self._publisher = publisher
        self._entries = dict(entries)
        """The numbers of messages that the source may deliver again, by their keys; the oldest first."""
        self.is_changed = bool(self._entries)
        """Whether there is something that may not be written down: the last run may have ended before it was."""
        self._sent: set[bytes] = set()
        """The keys of those that this run has given a number."""
        self._number = 0
        """The last number that this run has given."""

    def entries(self) -> Iterator[tuple[bytes, Number]]:
        """What the next run needs to know."""
        return iter(self._entries.items())

    def number(self, key: bytes, *, is_redelivered: bool) -> Number:
        """The number of a message. If `is_changed` then, it has to be written down before the message is sent."""
        known = self._entries.get(key)
        if known is not None and is_redelivered:
            if key not in self._sent:
                self._pass_over(known)
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

    def _pass_over(self, taken: Number) -> None:
        """Give up the lower numbers of a publisher that were not used in this run."""
        before = [
            key
            for key, (publisher, number) in self._entries.items()
            if publisher == taken.publisher and number < taken.number and key not in self._sent
        ]
        for key in before:
            del self._entries[key]
        self.is_changed |= bool(before)


# --- as it is written down


def written(entries: Iterable[tuple[bytes, Number]], shovel: str) -> str:
    """Entries as JSON: runs of consecutive numbers, each with its publisher; `shovel` says whose they are."""
    runs: list[tuple[str, int, list[bytes]]] = []
    for key, (publisher, number) in entries:
        if runs and runs[-1][0] == publisher and runs[-1][1] + len(runs[-1][2]) == number:
            runs[-1][2].append(key)
        else:
            runs.append((publisher, number, [key]))
    told = [(publisher, first, b64encode(b"".join(keys)).decode()) for publisher, first, keys in runs]
    return json.dumps({"shovel": shovel, "runs": told}, separators=(",", ":"))


def read(text: str | None, shovel: str) -> list[tuple[bytes, Number]]:
    """Read what was written of this shovel; nothing if it is of another one."""
    told = json.loads(text) if text is not None else {}
    if told.get("shovel") != shovel:
        return []
    entries: list[tuple[bytes, Number]] = []
    for publisher, first, keys in told["runs"]:
        octets = b64decode(keys)
        for place in range(len(octets) // KEY_BYTES):
            key = octets[place * KEY_BYTES : (place + 1) * KEY_BYTES]
            entries.append((key, Number(publisher, first + place)))
    return entries
