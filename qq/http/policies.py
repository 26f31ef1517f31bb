"""Policies, operator policies, and global parameters.

Lives here: their paths and statuses. Not here: which policies are valid (machine/policies.py).

Law: what operators set binds those who make policies.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from qq.http.bodies import put_policy, read_deduplication, read_policy
from qq.http.documents import DEDUPLICATION, deduplication_document, policy_document
from qq.http.errors import not_found
from qq.http.lists import Listing, narrowed, write_listing
from qq.http.login import ADMINISTRATORS, POLICYMAKER, require
from qq.http.requests import (
    done,
    existing,
    find,
    named_vhost,
    put_answer,
    read_body,
    sees,
    vhost_if_named,
)
from qq.machine.commands import DeletePolicy, LimitPublishers

if TYPE_CHECKING:
    from qq.http.view import ManagementView
    from qq.machine.policies import Policy

POLICYMAKERS = ADMINISTRATORS | {POLICYMAKER}


class PolicyEndpoints:
    """The handlers for policies; with `operator`, for operator policies."""

    def __init__(self, management: ManagementView, *, operator: bool) -> None:
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
        policies = self._management.policies(vhost, operator=self._operator)
        seen = (policy_document(*each) for each in policies if is_seen(each[0]))
        return await write_listing(request, Listing(seen))

    async def policy(self, request: web.Request) -> web.Response:
        vhost, name = await named_vhost(request, self._management), request.match_info["name"]
        policy = await existing(self._management, lambda: self._find(vhost, name))
        return narrowed(request, policy_document(vhost, policy))

    async def put(self, request: web.Request) -> web.Response:
        self._require_author(request)
        vhost, name = await named_vhost(request, self._management), request.match_info["name"]
        policy = read_policy(name, await read_body(request), operator=self._operator)
        is_new = await find(self._management, lambda: self._find(vhost, name)) is None
        await self._management.change(put_policy(vhost, policy))
        return put_answer(is_new=is_new)

    async def delete(self, request: web.Request) -> web.Response:
        self._require_author(request)
        vhost, name = await named_vhost(request, self._management), request.match_info["name"]
        await existing(self._management, lambda: self._find(vhost, name))
        await self._management.change(DeletePolicy(vhost, name, self._operator))
        return done()

    def _find(self, vhost: str, name: str) -> Policy | None:
        policies = self._management.policies(vhost, operator=self._operator)
        return next((policy for _, policy in policies if policy.name == name), None)

    def _require_author(self, request: web.Request) -> None:
        require(request, ADMINISTRATORS if self._operator else POLICYMAKERS)


class ParameterEndpoints:
    """The handlers for global parameters. There is one: the bounds of deduplication.

    Only administrators set it, as it is every tenant's; RabbitMQ lets policymakers set what it has of this kind.
    """

    def __init__(self, management: ManagementView) -> None:
        self._management = management
        self._one_at_a_time = asyncio.Lock()
        """A lock for changes that keep the values which the request does not give."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/global-parameters", self.parameters),
            web.get("/api/global-parameters/{name}", self.parameter),
            web.put("/api/global-parameters/{name}", self.put),
        ]

    async def parameters(self, _request: web.Request) -> web.Response:
        return web.json_response([deduplication_document(self._management.deduplication())])

    async def parameter(self, request: web.Request) -> web.Response:
        _check_name(request)
        return web.json_response(deduplication_document(self._management.deduplication()))

    async def put(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        _check_name(request)
        body = await read_body(request)
        async with self._one_at_a_time:
            await self._management.wait_applied()
            bounds = read_deduplication(body, self._management.deduplication())
            await self._management.change(LimitPublishers(*bounds))
        return done()


def _check_name(request: web.Request) -> None:
    if request.match_info["name"] != DEDUPLICATION:
        raise not_found()
