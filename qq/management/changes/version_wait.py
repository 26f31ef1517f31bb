"""Requests for commands of a new version of the state wait until a new cluster has agreed on that version."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from qq.machine.protocol.codec import InvalidCommand
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
    is what needs the version, in the plural. Raises InvalidCommand if a member cannot run it, Unavailable.
    """
    now_s = asyncio.get_running_loop().time
    until_s = now_s() + WAIT_S
    while machine.version < needed:
        reason = f"{subject} need version {needed} of the state, and the cluster"
        for name in group.members.names:
            versions = group.versions_of(name)
            if versions is not None and versions.high < needed:
                raise InvalidCommand(
                    f"{reason} has version {machine.version}: node '{name}' runs an older release; start this release "
                    f"there; {NOT_CARRIED_OUT}"
                )
        if now_s() >= until_s:
            raise Unavailable(
                f"{reason} has not agreed on it yet: it has version {machine.version}; {NOT_CARRIED_OUT}"
            )
        await asyncio.sleep(CHECK_S)
