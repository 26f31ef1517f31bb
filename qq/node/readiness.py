"""Readiness of a node: whether it serves clients, and the reason if it does not."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.group.group import Group
    from cluster.transport.peer_links import PeerLinks
    from qq.management.nodes.maintenance import ClientDrain

log = logging.getLogger(__name__)

WAITING_NOTICE_S = 2.0
"""Seconds after which a node that does not serve yet logs the reason, and again when that changes.

In a running cluster a node needs less.
"""

ROUND_S = 1.0
"""Seconds for applying all entries committed so far, below which a node has caught up."""
POLL_S = 0.02


async def catch_up(
    is_live: Callable[[], bool],
    have_applied: Callable[[Callable[[], None]], None],
    monotonic: Callable[[], float],
) -> None:
    """Wait until this node has applied all entries committed at its start, and has caught up with later entries.

    `is_live` returns whether it has the former. `have_applied` calls back when all entries that are committed now are
    applied. The state of an installed snapshot is old, and a client that connects would wait for the rest. A node that
    gets no nearer to the end is as near as the load allows.
    """
    began_s = monotonic()
    await _until(is_live)
    last_s, took_s = math.inf, monotonic() - began_s
    while ROUND_S < took_s < last_s:
        is_applied = asyncio.Event()
        began_s = monotonic()
        have_applied(is_applied.set)
        await is_applied.wait()
        # It is also called back if the cluster has evicted this node in the meantime.
        await _until(is_live)
        last_s, took_s = took_s, monotonic() - began_s


async def _until(is_true: Callable[[], bool]) -> None:
    # The group is not asynchronous: it has no event to wait for.
    while not is_true():  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)


class Readiness:
    """Says why a node does not serve clients, after it has read its log."""

    def __init__(
        self,
        name: str,
        group: Group,
        links: PeerLinks,
        maintenance: ClientDrain,
        why_stuck: Callable[[], str | None],
    ) -> None:
        """`name` is the name of the node; `why_stuck` returns why the log takes in no request of it, or None."""
        self._name = name
        self._group = group
        self._links = links
        self._maintenance = maintenance
        self._why_stuck = why_stuck
        self.is_serving = self.is_stopping = False

    def why_not(self) -> str | None:
        """Return why the node does not serve clients, or None if it does."""
        if self.is_stopping:
            return "the node stops"
        unable = self._why_unable()
        if self._maintenance.is_on:
            maintained = f"the node is under maintenance; `qq revive {self._name}` ends it"
            return f"{maintained}; {unable}" if unable else maintained
        if unable is None and not self.is_serving:
            short = ", and its disk has no space for what it lacks" if self._group.alarms.lacks_space else ""
            return f"the node is catching up with the cluster{short}"
        return unable

    def _why_unable(self) -> str | None:
        """Return why the node could serve no client, apart from maintenance; None if it could."""
        under_repair = self._group.own_status.flaw()
        apart = self._links.why_apart
        missing = f"no connection with {apart}" if apart else None
        if under_repair is not None:
            # A new directory that learned of a cluster is refused by other clusters until its next start.
            return self._links.why_not_joined or "; ".join(filter(None, [under_repair, missing]))
        if self._group.leader is None:
            return f"no leader is known: {missing or self._group.why_undecided()}"
        return self._group.why_undecided() or (None if self._is_behind() else self._why_stuck())

    def _is_behind(self) -> bool:
        """Return whether a node that does not serve yet still applies entries that a majority has.

        Its first request is among the last of them, so the cluster holds nothing up.
        """
        if self.is_serving:
            return False
        own = self._group.own_status.now()
        return own.applied_index < own.commit_index

    async def log_changes(self) -> None:
        """Log why the node does not serve yet, when that changes, until cancelled."""
        logged = None
        while True:
            await asyncio.sleep(WAITING_NOTICE_S)
            if (reason := self.why_not()) != logged:
                logged = reason
                log.info("not serving yet: %s", reason)
