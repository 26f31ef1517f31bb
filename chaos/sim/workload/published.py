"""The messages that clients of both protocols publish to shared queues, and the octets that consumers must get.

Invariant: a consumer of AMQP 1.0 gets the bare message and the footer of a 1.0 publisher octet for octet. A consumer of
AMQP 0-9-1 gets the joined data sections of such a message; if its body has other sections, the sections themselves.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.history import Death
    from chaos.sim.workload.sections import Sections, Written

_IDENT = re.compile(rb"[al]\d+:\d+ ")
"""The name of a message in its body: its publisher and its number there."""


def ident_in(octets: bytes) -> str:
    """Return the name of the message with these octets; "" if they have none."""
    found = _IDENT.search(octets)
    return found[0][:-1].decode() if found is not None else ""


def deaths_in(entries: Any) -> list[Death] | None:
    """Return the deaths of a message in its queues, from its annotation or header; None without."""
    if not entries:
        return None
    return [
        {"queue": each["queue"], "reason": str(each["reason"]), "count": int(each["count"])}
        for each in entries
    ]


class Published:
    """The messages of a run. Each is checked at each delivery."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        self._fail = fail
        self._bodies: dict[str, bytes] = {}
        """The body that a consumer of AMQP 0-9-1 gets, by name."""
        self._bare: dict[str, bytes] = {}
        """The bare message and the footer of messages of AMQP 1.0."""
        self._settled_s: dict[tuple[str, str], float] = {}
        """When messages had certainly left their queues."""

    def add(self, ident: str, body: bytes) -> None:
        """Record a message of AMQP 0-9-1."""
        self._bodies[ident] = body

    def add10(self, ident: str, written: Written) -> None:
        """Record a message of AMQP 1.0."""
        self._bodies[ident] = written.body
        self._bare[ident] = written.sections.bare

    def settle(self, queue: str, ident: str, now_s: float) -> None:
        """Record that a message has certainly left a queue, because a consumer has accepted it."""
        self._settled_s.setdefault((queue, ident), now_s)

    def check_new(self, queue: str, ident: str, connected_s: float) -> None:
        """Check a delivery on a connection that was requested at this time."""
        if self._settled_s.get((queue, ident), connected_s) < connected_s:
            self._fail(f"message '{ident}' of {queue} is delivered after a consumer has accepted it")

    def check(self, ident: str, body: bytes) -> None:
        """Check a delivery to a consumer of AMQP 0-9-1."""
        if body != self._bodies.get(ident):
            self._fail(f"message '{ident}' is delivered with other octets: {body[:80]!r}")

    def check10(self, ident: str, delivered: Sections) -> None:
        """Check a delivery to a consumer of AMQP 1.0."""
        bare = self._bare.get(ident)
        if bare is not None:
            is_same = delivered.bare == bare
        else:
            message = delivered.decoded()
            is_same = message.inferred and message.body == self._bodies.get(ident)
        if not is_same:
            self._fail(f"message '{ident}' is delivered with other octets: {delivered.bare[:80]!r}")
