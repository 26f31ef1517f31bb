"""Waiting for the version of the state at which a command may be proposed."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

from qq.machine.protocol.codec import InvalidCommand
from qq.machine.protocol.commands import SINCE
from qq.management.errors import NOT_CARRIED_OUT, Unavailable

if TYPE_CHECKING:
    from cluster.group.group import Group
    from qq.machine.machine import QueueMachine
    from qq.machine.protocol.commands import Command

VERSION_WAIT_S = 5.0
"""Seconds that a request waits for the version of the state at which its command exists."""
VERSION_CHECK_S = 0.05


async def wait_for_version(machine: QueueMachine, group: Group, kind: type[Command], things: str) -> None:
    """Wait until the cluster has agreed on a version of the state with a kind of command, if all members can run it.

    A new cluster begins with the previous release's version, and raises it when all members are connected. `things` is
    the plural noun for the objects of the command. Raises InvalidCommand if a member cannot run it, Unavailable.
    """
    needed, until_s = SINCE[kind], monotonic() + VERSION_WAIT_S
    while machine.version < needed:
        reason = f"{things} need version {needed} of the state, and the cluster has version {machine.version}"
        for name in group.members.names:
            versions = group.versions_of(name)
            if versions is not None and versions.high < needed:
                raise InvalidCommand(
                    f"{reason}: node '{name}' runs an older release; start this release there; {NOT_CARRIED_OUT}"
                )
        if monotonic() >= until_s:
            raise Unavailable(f"{reason}: it has not agreed on a higher version yet; {NOT_CARRIED_OUT}")
        await asyncio.sleep(VERSION_CHECK_S)
