"""Requests for commands of a new version of the state wait until a new cluster has agreed on that version."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from qq.management.errors import NOT_CARRIED_OUT, Unavailable

if TYPE_CHECKING:
    from cluster.group.group import Group
    from qq.machine.machine import QueueMachine

WAIT_S = 5.0
"""Seconds that a request waits."""
CHECK_S = 0.05


async def wait_for_version(group: Group, machine: QueueMachine, needed: int, subject: str) -> None:
    """Wait until the cluster has agreed on a version of the state, if all members can run it.

    A new cluster begins with the previous release's version, and raises it when all members are connected. `subject`
    is what needs the version, in the plural. Raises Unavailable.
    """
    now_s = asyncio.get_running_loop().time
    until_s = now_s() + WAIT_S
    while machine.version < needed and _can_run(group, needed):
        if now_s() >= until_s:
            raise Unavailable(
                f"{subject} need version {needed} of the state, and the cluster has not agreed on it yet: it has "
                f"version {machine.version}; {NOT_CARRIED_OUT}"
            )
        await asyncio.sleep(CHECK_S)


def _can_run(group: Group, version: int) -> bool:
    """Return whether no member is known to lack this version of the state."""
    found = map(group.versions_of, group.members.names)
    return all(versions is None or versions.high >= version for versions in found)
