"""RabbitMQ's management API, as far as there is one.

Lives here: which resources there are. Not here: each of them (queues.py, policies.py, vhosts.py, users.py,
permissions.py, connections.py, topology.py, definitions.py), what a document holds (documents.py, bodies.py, view.py),
who may ask (login.py), where the answers come from and what a change does (qq/management).

Law of all of them: a handler reads the request, asks the broker, and tells the answer. A list is written in slices:
there may be tens of thousands of queues, and other tasks run between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from qq.http.connections import Connections
from qq.http.definitions import Definitions
from qq.http.permissions import AllPermissions, TopicPermissions
from qq.http.policies import Parameters, Policies
from qq.http.queues import Queues
from qq.http.topology import Bindings, Exchanges
from qq.http.users import Users
from qq.http.vhosts import Vhosts

if TYPE_CHECKING:
    from qq.http.view import Management


def routes(management: Management) -> list[web.RouteDef]:
    """Everything below /api but what the node tells of itself (app.py)."""
    resources = (
        Queues(management),
        Exchanges(management),
        Bindings(management),
        Policies(management, operator=False),
        Policies(management, operator=True),
        Parameters(management),
        Vhosts(management),
        Users(management),
        AllPermissions(management),
        TopicPermissions(management),
        Connections(management),
        Definitions(management),
    )
    found = [route for resource in resources for route in resource.routes()]
    # RabbitMQ takes each path with a slash at its end, too, and some clients write one.
    with_slash = [web.RouteDef(each.method, f"{each.path}/", each.handler, each.kwargs) for each in found]
    return [*found, *with_slash]
