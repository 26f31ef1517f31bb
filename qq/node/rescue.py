"""Makes a user an administrator at the request of an operator of this machine, who needs no login.

`qq rescue-admin` writes the request into the node's data directory.

Invariant: only the user that runs the node, and root, can make a request. A request is carried out once, and never
contains a password, only its hash.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from qq.machine.catalog.permissions import ADMINISTRATOR
from qq.machine.protocol.commands import PutUser
from qq.management.errors import RequestRefused, Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from qq.management.management import Management

log = logging.getLogger(__name__)

REQUEST_FILE = "rescue-admin"
"""Name of the file with the request, in the data directory."""
CHECK_INTERVAL_S = 1.0
"""Seconds between two checks for a request."""
_BYTES_MAX = 64 * 1024


class RescueRequest(NamedTuple):
    """A user that becomes an administrator, and the hash of the new password."""

    name: str
    salt: bytes
    hash: bytes

    def encode(self) -> bytes:
        return json.dumps([self.name, self.salt.hex(), self.hash.hex()]).encode()

    @classmethod
    def decode(cls, content: bytes) -> RescueRequest:
        """Read a request. Raises ValueError."""
        match json.loads(content):
            case [str(name), str(salt), str(hashed)] if name and salt and hashed:
                return cls(name, bytes.fromhex(salt), bytes.fromhex(hashed))
            case _:
                raise ValueError("is no request of `qq rescue-admin`")


async def watch_requests(data_dir: Path, management: Management) -> None:
    """Carry out requests in the data directory, until cancelled."""
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        file = data_dir / REQUEST_FILE
        try:
            # The disk may hang, and the event loop must not.
            if await asyncio.to_thread(os.path.lexists, file):
                await _carry_out(file, management)
        except Unavailable:
            continue  # the next attempt may find a majority
        except (OSError, ValueError, RequestRefused) as error:
            log.error("%s: not carried out: %s", file, error)  # noqa: TRY400 -- the operator's fault
            with suppress(OSError):
                await asyncio.to_thread(file.unlink)


async def _carry_out(file: Path, management: Management) -> None:
    request = RescueRequest.decode(await asyncio.to_thread(_content_of, file))
    await management.changes.wait_applied()
    known = management.catalog.users().get(request.name)
    tags = [ADMINISTRATOR, *(tag for tag in (known.tags if known else ()) if tag != ADMINISTRATOR)]
    await management.changes.apply(PutUser(request.name, request.salt, request.hash, tags))
    await asyncio.to_thread(file.unlink)
    log.warning(
        "user '%s' is an administrator and has a new password: `qq rescue-admin` was used", request.name
    )


def _content_of(file: Path) -> bytes:
    """Read the request. Raises ValueError if another user could have written it, and OSError."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as opened:
        found = os.fstat(descriptor)
        is_hidden = not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and stat.S_ISREG(found.st_mode)
        if found.st_uid not in (os.geteuid(), 0) or not is_hidden:
            raise ValueError("must be a file that only the node's user or root can write")
        return opened.read(_BYTES_MAX)
