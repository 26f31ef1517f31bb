"""Diagnosis of the cluster over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from qq.diagnosis.findings import document_of
from qq.http.base.login import MONITORS, require

if TYPE_CHECKING:
    from qq.management.management import Management


class DoctorEndpoint:
    """Handler for the diagnosis."""

    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/api/doctor", self.show)]

    async def show(self, request: web.Request) -> web.Response:
        require(request, MONITORS)
        return web.json_response(document_of(await self._management.doctor.diagnosis()))
