"""Policies and operator policies.

Invariant: operator policies restrict the policies of policymakers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from qq.http.base.login import ADMINISTRATORS, POLICYMAKERS, require
from qq.http.documents.lists import Listing, narrowed, write_listing
from qq.http.documents.parsing import put_policy, read_policy
from qq.http.documents.rendering import policy_document
from qq.http.documents.requests import (
    done,
    existing,
    find,
    named_vhost,
    put_answer,
    read_body,
    sees,
    vhost_if_named,
)
from qq.machine.protocol.commands import DeletePolicy

if TYPE_CHECKING:
    from qq.machine.policy.policies import Policy
    from qq.management.management import Management


class PolicyEndpoints:
    """Handlers for policies; with `operator`, for operator policies."""

    def __init__(self, management: Management, *, operator: bool) -> None:
        self._management = management
        self._operator = operator

    def routes(self) -> list[web.RouteDef]:
        base = "/api/operator-policies" if self._operator else "/api/policies"
        return [
            web.get(base, self.policies),
            web.get(f"{base}/{{vhost}}", self.policies),
            web.get(f"{base}/{{vhost}}/{{name}}", self.policy),
            web.put(f"{base}/{{vhost}}/{{name}}", self.put),
            web.delete(f"{base}/{{vhost}}/{{name}}", self.delete),
        ]

    async def policies(self, request: web.Request) -> web.StreamResponse:
        vhost, is_seen = await vhost_if_named(request, self._management), sees(request, self._management)
        policies = self._management.catalog.policies(vhost, operator=self._operator)
        seen = (policy_document(*each) for each in policies if is_seen(each[0]))
        return await write_listing(request, Listing(seen))

    async def policy(self, request: web.Request) -> web.Response:
        self._require_author(request)
        vhost, name = await named_vhost(request, self._management), request.match_info["name"]
        policy = await existing(self._management, lambda: self._find(vhost, name))
        return narrowed(request, policy_document(vhost, policy))

    async def put(self, request: web.Request) -> web.Response:
        self._require_author(request)
        vhost, name = await named_vhost(request, self._management), request.match_info["name"]
        policy = read_policy(name, await read_body(request), operator=self._operator)
        is_new = await find(self._management, lambda: self._find(vhost, name)) is None
        await self._management.changes.apply(put_policy(vhost, policy))
        return put_answer(is_new=is_new)

    async def delete(self, request: web.Request) -> web.Response:
        self._require_author(request)
        vhost, name = await named_vhost(request, self._management), request.match_info["name"]
        await existing(self._management, lambda: self._find(vhost, name))
        await self._management.changes.apply(DeletePolicy(vhost, name, self._operator))
        return done()

    def _find(self, vhost: str, name: str) -> Policy | None:
        policies = self._management.catalog.policies(vhost, operator=self._operator)
        return next((policy for _, policy in policies if policy.name == name), None)

    def _require_author(self, request: web.Request) -> None:
        require(request, ADMINISTRATORS if self._operator else POLICYMAKERS)
