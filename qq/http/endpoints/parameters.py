"""Parameters of virtual hosts, for components of the broker, and global parameters, with the cluster's name.

Invariant: parameters of unknown components are refused, as RabbitMQ refuses those of a missing plugin. A global
parameter may have any value, because only clients read it.
"""

from __future__ import annotations

import asyncio
import json
from itertools import chain, starmap
from typing import TYPE_CHECKING, Any

from aiohttp import web

from qq.http.base.error_responses import bad_request, invalid
from qq.http.base.login import ADMINISTRATORS, POLICYMAKERS, require
from qq.http.documents import parsing
from qq.http.documents.lists import Listing, write_listing
from qq.http.documents.rendering import DEDUPLICATION, deduplication_document, policy_document
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
from qq.http.endpoints.shovels import check_may_set, check_shovel
from qq.machine.catalog.catalog import CLUSTER_NAME
from qq.machine.catalog.limits import PARAMETER_BYTES_MAX, VHOST_LIMITS
from qq.machine.protocol.commands import (
    ChangeVhostLimits,
    DeleteGlobalParameter,
    DeleteParameter,
    DeletePolicy,
    LimitPublishers,
    PutGlobalParameter,
    PutParameter,
    SetVhostLimits,
)
from qq.machine.queue.moves import SHOVEL
from qq.management.reports.catalog import GlobalParameter, ParameterStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from qq.machine.policy.policies import Policy
    from qq.machine.protocol.commands import Change
    from qq.management.management import Management

CLUSTER_ID = "internal_cluster_id"
"""A read-only global parameter with the id of this cluster; an import skips it."""
LIMITS, LIMITS_NAME = "vhost-limits", "limits"
OPERATOR_POLICIES = "operator_policy"
POLICIES = "policy"
"""Policies are not shown among the parameters, although RabbitMQ stores them there."""

COMPONENTS: dict[str, Callable[[str, str, Any], None]] = {SHOVEL: check_shovel}
"""Component -> function that checks virtual host, name and value of a parameter. It raises Refusal."""


# --- documents


def parameter_documents(management: Management, vhost: str | None) -> Iterator[dict[str, Any]]:
    """Yield all parameters of a virtual host, or of all, with limits and operator policies, as in RabbitMQ.

    The parameters are those at the time of the call.
    """
    parameters = chain(_own_parameters(management, vhost), management.catalog.parameters(vhost))
    return (parameter._asdict() for parameter in parameters)


def _own_parameters(management: Management, vhost: str | None) -> Iterator[ParameterStatus]:
    """Yield the parameters that also have paths of their own: limits and operator policies."""
    limits = ((known.name, dict(known.limits)) for known in management.catalog.vhosts() if known.limits)
    return chain(
        (
            ParameterStatus(where, LIMITS, LIMITS_NAME, value)
            for where, value in limits
            if vhost in (None, where)
        ),
        starmap(_operator_policy, management.catalog.policies(vhost, operator=True)),
    )


def _operator_policy(vhost: str, policy: Policy) -> ParameterStatus:
    document = policy_document(vhost, policy)
    value = {key: document[key] for key in ("pattern", "definition", "priority", "apply-to")}
    return ParameterStatus(vhost, OPERATOR_POLICIES, policy.name, value)


def global_parameter_documents(management: Management) -> Iterator[dict[str, Any]]:
    """Yield the global parameters that an import accepts, as of the time of the call."""
    own = deduplication_document(management.catalog.deduplication())
    return chain([own], (parameter._asdict() for parameter in management.catalog.global_parameters()))


def read_parameter(vhost: str, component: str, name: str, value: Any) -> Change:
    """Return the change that sets a parameter of a virtual host.

    Raises Refusal, with RabbitMQ's texts if it has any.
    """
    if component == POLICIES:
        raise bad_request("policies may not be set using this method")
    if component == LIMITS:
        if name != LIMITS_NAME:
            raise invalid(f"the parameter of {LIMITS} is '{LIMITS_NAME}'")
        return SetVhostLimits(vhost, parsing.limits(value, VHOST_LIMITS))
    if component == OPERATOR_POLICIES:
        if not isinstance(value, dict):
            raise bad_request("value should be a map")
        return parsing.put_policy(vhost, parsing.read_policy(name, value, operator=True))
    if not has_meaning(component):
        raise invalid(f"component {component} not found")
    COMPONENTS[component](vhost, parsing.name_of(name), value)
    return PutParameter(vhost, component, name, _json(value))


def has_meaning(component: str) -> bool:
    """Return whether parameters of this component are supported."""
    return component in (LIMITS, OPERATOR_POLICIES) or component in COMPONENTS


def read_global_parameter(name: str, value: Any) -> PutGlobalParameter:
    """Return the change that sets a global parameter. Raises Refusal."""
    if name == CLUSTER_NAME and not (isinstance(value, str) and value):
        raise bad_request("the name of a cluster should be a string, and not empty")
    if name == CLUSTER_ID:
        raise bad_request(f"{CLUSTER_ID} is given by the cluster itself")
    return PutGlobalParameter(parsing.name_of(name), _json(value))


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    size = len(text.encode())
    if size > PARAMETER_BYTES_MAX:
        raise bad_request(f"the value takes {size} bytes, the limit is {PARAMETER_BYTES_MAX}")
    return text


def _value_in(body: parsing.Body) -> Any:
    if "value" not in body:
        raise bad_request("key_missing: value")
    return body["value"]


class ParameterEndpoints:
    """Handlers for parameters of virtual hosts."""

    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        one = "/api/parameters/{component}/{vhost}/{name}"
        return [
            web.get("/api/parameters", self.parameters),
            web.get("/api/parameters/{component}", self.parameters),
            web.get("/api/parameters/{component}/{vhost}", self.parameters),
            web.get(one, self.parameter),
            web.put(one, self.put),
            web.delete(one, self.delete),
        ]

    async def parameters(self, request: web.Request) -> web.StreamResponse:
        require(request, POLICYMAKERS)
        vhost, is_seen = await vhost_if_named(request, self._management), sees(request, self._management)
        component = request.match_info.get("component")
        seen = (
            each
            for each in parameter_documents(self._management, vhost)
            if component in (None, each["component"]) and is_seen(each["vhost"])
        )
        return await write_listing(request, Listing(seen))

    async def parameter(self, request: web.Request) -> web.Response:
        require(request, POLICYMAKERS)
        vhost = await named_vhost(request, self._management)
        parameter = await existing(self._management, lambda: self._find(request, vhost))
        return web.json_response(parameter._asdict())

    async def put(self, request: web.Request) -> web.Response:
        vhost = await self._vhost_to_change(request)
        named = request.match_info
        body = await read_body(request)
        value = _value_in(body)
        change = read_parameter(vhost, named["component"], named["name"], value)
        if named["component"] == SHOVEL:
            await check_may_set(request, self._management, vhost, value)
        is_new = await find(self._management, lambda: self._find(request, vhost)) is None
        await self._management.changes.apply(change)
        return put_answer(is_new=is_new)

    async def delete(self, request: web.Request) -> web.Response:
        vhost = await self._vhost_to_change(request)
        component, name = request.match_info["component"], request.match_info["name"]
        parameter = await existing(self._management, lambda: self._find(request, vhost))
        if component == LIMITS:
            change = ChangeVhostLimits(vhost, dict.fromkeys(parameter.value))
        elif component == OPERATOR_POLICIES:
            change = DeletePolicy(vhost, name, operator=True)
        else:
            change = DeleteParameter(vhost, component, name)
        await self._management.changes.apply(change)
        return done()

    async def _vhost_to_change(self, request: web.Request) -> str:
        """Return the virtual host in the path, if the client may change this parameter in it. Raises Refusal."""
        is_operators = request.match_info["component"] in (LIMITS, OPERATOR_POLICIES)
        require(request, ADMINISTRATORS if is_operators else POLICYMAKERS)
        return await named_vhost(request, self._management)

    def _find(self, request: web.Request, vhost: str) -> ParameterStatus | None:
        component, name = request.match_info["component"], request.match_info["name"]
        if component not in (LIMITS, OPERATOR_POLICIES):
            return self._management.catalog.parameter(vhost, component, name)
        own = _own_parameters(self._management, vhost)
        return next((each for each in own if (each.component, each.name) == (component, name)), None)


class GlobalParameterEndpoints:
    """Handlers for global parameters and for the cluster's name.

    The bounds of deduplication are a global parameter. Only administrators set them and the cluster's name, because
    they affect every tenant. Policymakers see all global parameters and set the rest, as in RabbitMQ.
    """

    def __init__(self, management: Management) -> None:
        self._management = management
        self._one_at_a_time = asyncio.Lock()
        """Lock for changes that keep values which are missing in the request."""

    def routes(self) -> list[web.RouteDef]:
        one = "/api/global-parameters/{name}"
        return [
            web.get("/api/global-parameters", self.parameters),
            web.get(one, self.parameter),
            web.put(one, self.put),
            web.delete(one, self.delete),
            web.get("/api/cluster-name", self.cluster_name),
            web.put("/api/cluster-name", self.put_cluster_name),
        ]

    async def parameters(self, request: web.Request) -> web.StreamResponse:
        require(request, POLICYMAKERS)
        shown = filter(None, [self._find(CLUSTER_ID)])
        return await write_listing(
            request, Listing(chain(global_parameter_documents(self._management), shown))
        )

    async def parameter(self, request: web.Request) -> web.Response:
        require(request, POLICYMAKERS)
        name = request.match_info["name"]
        return web.json_response(await existing(self._management, lambda: self._find(name)))

    async def put(self, request: web.Request) -> web.Response:
        name = self._name_to_change(request)
        value = _value_in(await read_body(request))
        is_new = await find(self._management, lambda: self._find(name)) is None
        async with self._one_at_a_time:
            await self._management.changes.wait_applied()
            await self._management.changes.apply(self._change(name, value))
        return put_answer(is_new=is_new)

    async def delete(self, request: web.Request) -> web.Response:
        name = self._name_to_change(request)
        await existing(self._management, lambda: self._find(name))
        if name in (DEDUPLICATION, CLUSTER_ID):
            raise bad_request(f"{name} always has a value")
        await self._management.changes.apply(DeleteGlobalParameter(name))
        return done()

    async def cluster_name(self, _request: web.Request) -> web.Response:
        return web.json_response({"name": self._management.catalog.cluster_name()})

    async def put_cluster_name(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        name = parsing.field(await read_body(request), "name", str)
        await self._management.changes.apply(read_global_parameter(CLUSTER_NAME, name))
        return done()

    def _find(self, name: str) -> dict[str, Any] | None:
        if name == DEDUPLICATION:
            return deduplication_document(self._management.catalog.deduplication())
        if name == CLUSTER_ID:
            cluster_id = self._management.members.report().cluster_id
            return None if cluster_id is None else GlobalParameter(name, cluster_id)._asdict()
        parameter = self._management.catalog.global_parameter(name)
        return None if parameter is None else parameter._asdict()

    def _change(self, name: str, value: Any) -> Change:
        if name == DEDUPLICATION:
            bounds = parsing.read_deduplication({"value": value}, self._management.catalog.deduplication())
            return LimitPublishers(*bounds)
        return read_global_parameter(name, value)

    def _name_to_change(self, request: web.Request) -> str:
        """Return the name of the global parameter in the path, if the client may change it. Raises Refusal."""
        name = request.match_info["name"]
        is_every_tenants = name in (DEDUPLICATION, CLUSTER_NAME)
        require(request, ADMINISTRATORS if is_every_tenants else POLICYMAKERS)
        return name
