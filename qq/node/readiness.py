"""Whether a node serves clients, and what it waits for if not."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.group.group import Group
    from cluster.transport.peer_links import PeerLinks
    from qq.management.maintenance import ClientDrain

log = logging.getLogger(__name__)

WAITING_NOTICE_S = 2.0
"""A node that does not serve after this time says what it waits for, and again when that changes; one whose cluster is
there needs less."""

ROUND_S = 1.0
"""A node has caught up when it applies what is committed now within this time."""
POLL_S = 0.02


async def catch_up(
    is_live: Callable[[], bool],
    have_applied: Callable[[Callable[[], None]], None],
    monotonic: Callable[[], float],
) -> None:
    """Wait until this node has applied what was committed at its start, and has caught up with what came since.

    `is_live` tells whether it has the former; `have_applied` calls back when all is applied that is committed by now.
    A node that was given a snapshot has it as of long before: who connected would wait until it has the rest. One that
    does not get nearer any more has come as near as the load allows.
    """
    began_s = monotonic()
    await _until(is_live)
    last_s, took_s = math.inf, monotonic() - began_s
    while ROUND_S < took_s < last_s:
        is_applied = asyncio.Event()
        began_s = monotonic()
        have_applied(is_applied.set)
        await is_applied.wait()
        # It is called back, too, if the cluster has stopped waiting for this node meanwhile.
        await _until(is_live)
        last_s, took_s = took_s, monotonic() - began_s


async def _until(is_true: Callable[[], bool]) -> None:
    # The group is not asynchronous: it has no event to wait for.
    while not is_true():  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)


class Readiness:
    """Knows why a node does not serve clients, once it has read its log."""

    def __init__(self, name: str, group: Group, links: PeerLinks, maintenance: ClientDrain) -> None:
        """`name` is the node's."""
        self._name = name
        self._group = group
        self._links = links
        self._maintenance = maintenance
        self.is_serving = self.is_stopping = False

    def why_not(self) -> str | None:
        """Say why the node does not serve; None if it does."""
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
        """Why the node could serve nobody, whether it is under maintenance or not; None if it could."""
        under_repair = self._group.own_status.flaw()
        apart = self._links.why_apart
        missing = f"no connection with {apart}" if apart else None
        if under_repair is not None:
            # A new directory that was told of one cluster is refused by those of another one, until its next start.
            return self._links.why_not_joined or "; ".join(filter(None, [under_repair, missing]))
        if self._group.leader is None:
            return f"no leader is known: {missing or self._group.why_undecided()}"
        return self._group.statuses.why_nothing_is_stored()

    async def tell(self) -> None:
        """Log what the node waits for until it serves, until cancelled."""
        told = None
        while True:
            await asyncio.sleep(WAITING_NOTICE_S)
            if (reason := self.why_not()) != told:
                told = reason
                log.info("not serving yet: %s", reason)
