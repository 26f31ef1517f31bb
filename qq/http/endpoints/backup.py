"""A backup of the cluster over HTTP."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from aiohttp import hdrs, web

from qq.http.base.login import ADMINISTRATORS, require

if TYPE_CHECKING:
    from qq.management.management import Management

log = logging.getLogger(__name__)


class BackupEndpoint:
    """Handler for backups."""

    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/api/cluster/backup", self.backup, allow_head=False)]

    async def backup(self, request: web.Request) -> web.StreamResponse:
        require(request, ADMINISTRATORS)
        async with self._management.backups.make() as backup:
            response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "application/x-tar"})
            await response.prepare(request)
            try:
                async for part in backup.stream():
                    await response.write(part)
                await response.write_eof()
            except OSError as error:
                if isinstance(error, ConnectionError):
                    log.info(
                        "a client has disconnected before its backup ended; on this machine `qq backup` links files"
                    )
                else:
                    log.warning("a backup has failed: %s", error)
                if request.transport is not None:
                    request.transport.abort()  # otherwise the archive would look complete
        return response
