"""Routes of the management API: the supported part of RabbitMQ's API, and our own additions.

Invariant of all handlers: a handler reads the request, asks the broker, and sends the answer. Lists are written in
slices, because there may be tens of thousands of queues and other tasks must run in between.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from qq.http.base.login import is_logged_in_still
from qq.http.endpoints.backup import BackupEndpoint
from qq.http.endpoints.connections import ConnectionEndpoints
from qq.http.endpoints.definitions import DefinitionEndpoints
from qq.http.endpoints.doctor import DoctorEndpoint
from qq.http.endpoints.health import HealthEndpoints
from qq.http.endpoints.leases import LeaseEndpoints
from qq.http.endpoints.members import MemberEndpoints
from qq.http.endpoints.moves import MoveEndpoints
from qq.http.endpoints.nodes import NodeEndpoints
from qq.http.endpoints.operations import OperationEndpoints
from qq.http.endpoints.overview import OverviewEndpoints
from qq.http.endpoints.parameters import GlobalParameterEndpoints, ParameterEndpoints
from qq.http.endpoints.permissions import PermissionEndpoints, TopicPermissionEndpoints
from qq.http.endpoints.policies import PolicyEndpoints
from qq.http.endpoints.policy_matches import PolicyMatchEndpoint
from qq.http.endpoints.queues import QueueEndpoints
from qq.http.endpoints.replicas import ReplicaEndpoints
from qq.http.endpoints.sessions import LoginEndpoints
from qq.http.endpoints.shovels import ShovelEndpoints
from qq.http.endpoints.sinks import SinkEndpoints
from qq.http.endpoints.topology import BindingEndpoints, ExchangeEndpoints
from qq.http.endpoints.users import UserEndpoints
from qq.http.endpoints.vhosts import VhostEndpoints
from qq.http.page.event_stream import LiveEndpoint
from qq.http.page.health_events import HealthEvents
from qq.http.page.live_views import LiveViews
from qq.http.page.oauth2_login import OAuth2Endpoints

ESCAPED = "/api/escaped/"
"""Prefix of the paths whose names are escaped."""
_REST = r"{rest:[\s\S]+}"
"""Any rest of a path. Names of users and virtual hosts may contain line breaks, which "." does not match."""

if TYPE_CHECKING:
    from qq.http.base.listener import HttpLimits
    from qq.http.base.node_view import NodeView
    from qq.http.base.repeated_checks import RepeatedChecks
    from qq.management.management import Management


def routes(
    view: NodeView, management: Management, repeated: RepeatedChecks, limits: HttpLimits
) -> list[web.RouteDef]:
    """Return all routes below /api, except for those of app.py. `repeated` gets the health checks."""
    live = LiveViews(view, management)
    resources = (
        LiveEndpoint(
            live.by_name(),
            limits.requests // 2,
            partial(is_logged_in_still, management),
            HealthEvents(view).newest,
        ),
        live,
        OverviewEndpoints(management),
        NodeEndpoints(view, management),
        HealthEndpoints(view, management, repeated),
        DoctorEndpoint(management),
        ReplicaEndpoints(view, management),
        QueueEndpoints(management),
        LeaseEndpoints(management, limits.lease_streams),
        SinkEndpoints(management),
        MoveEndpoints(management),
        ShovelEndpoints(management),
        ExchangeEndpoints(management),
        BindingEndpoints(management),
        PolicyEndpoints(management, operator=False),
        PolicyEndpoints(management, operator=True),
        PolicyMatchEndpoint(management),
        ParameterEndpoints(management),
        GlobalParameterEndpoints(management),
        VhostEndpoints(management),
        UserEndpoints(management),
        PermissionEndpoints(management),
        TopicPermissionEndpoints(management),
        ConnectionEndpoints(management),
        DefinitionEndpoints(management),
        OperationEndpoints(management),
        BackupEndpoint(management),
        MemberEndpoints(management),
        LoginEndpoints(view, management),
        OAuth2Endpoints(view, management),
    )
    found = [_any_name(route) for resource in resources for route in resource.routes()]
    return [
        *found,
        web.route("*", ESCAPED + _REST, _spelled),
        web.route("*", f"/api/{_REST}/", _spelled),
    ]


async def _spelled(request: web.Request) -> web.StreamResponse:
    """Serve the alternative spellings of all paths without hundreds of further routes.

    RabbitMQ also accepts each path with a slash at its end, and some clients write it. Below `ESCAPED` each name has
    the prefix `~`. Browsers and other clients that follow https://url.spec.whatwg.org remove the parts "." and ".."
    from a path, however they are written. So objects with such names are out of reach under RabbitMQ's paths.
    """
    path = request.rel_url.raw_path.removesuffix("/")
    is_escaped = path.startswith(ESCAPED)
    if is_escaped:
        path = path.replace(ESCAPED, "/api/", 1)
    meant = request.clone(rel_url=request.rel_url.with_path(path, encoded=True, keep_query=True))
    found = await request.app.router.resolve(meant)
    if found.http_exception is None and (found.handler == _spelled or (is_escaped and not found)):
        raise web.HTTPNotFound
    request.match_info.clear()
    request.match_info.update(
        {part: name.removeprefix("~") if is_escaped else name for part, name in found.items()}
    )
    return await found.handler(request)


def _any_name(route: web.RouteDef) -> web.RouteDef:
    """Return the route with names that may contain braces, because aiohttp's default pattern excludes braces."""
    path = re.sub(r"\{(\w+)\}", r"{\1:[^/]+}", route.path)
    return web.RouteDef(route.method, path, route.handler, route.kwargs)
