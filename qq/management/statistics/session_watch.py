"""Finds channels and links that limits of publishing hold up, with each sample of this node's sessions.

Invariant: bounded by the number of sessions; a check of a session costs a microsecond.
"""

from __future__ import annotations

from heapq import nsmallest
from operator import attrgetter
from typing import TYPE_CHECKING

from qq.diagnosis.lasting import Lasting
from qq.diagnosis.node_rules import REPORTED_MAX, ThrottledPublisher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.sessions.ports import Session
    from qq.sessions.session_info import SessionFacts
    from qq.sessions.throttle import Throttle

THROTTLED_MS = 60_000
"""Milliseconds that each sample must find a publisher held up before it is reported."""


class SessionWatch:
    """Findings about the sessions of this node."""

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self.throttled: Sequence[ThrottledPublisher] = ()
        """The publishers that have been held up for longest, as of the last pass."""
        self._held_up = Lasting[int]()
        """Sessions that a limit holds up."""
        self._found: list[ThrottledPublisher] = []

    def check(self, session: Session, facts: SessionFacts, now_ms: int) -> None:
        """Check a session, once in a pass."""
        limit = self._throttle.limit_of(session.session)
        if limit is None:
            return
        since_ms = self._held_up.since_ms(session.session, now_ms)
        if now_ms - since_ms >= THROTTLED_MS:
            name = f"channel {facts.number}" if facts.link is None else f"link '{facts.link.link_name}'"
            self._found.append(ThrottledPublisher(name, session.connection.name, *limit, since_ms))

    def end_pass(self) -> None:
        self.throttled = nsmallest(REPORTED_MAX, self._found, key=attrgetter("since_ms"))
        self._held_up.end_pass()
        self._found = []
