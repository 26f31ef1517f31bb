"""The HTTP interface of a fake node, behind a real server, with a real client."""

from __future__ import annotations

import asyncio
import atexit
import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from aiohttp import encode_basic_auth
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.web import AppRunner, BaseRunner
from prometheus_client import CollectorRegistry
from yarl import URL

from qq.http.app import build_app
from qq.http.base.listener import HttpLimits
from qq.http.base.repeated_checks import RepeatedChecks
from qq.machine.protocol.commands import PutUser, SetPermissions
from tests.http.fakes import PASSWORD, FakeView, MachineManagement

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp.web import Application
    from multidict import CIMultiDictProxy

Client = TestClient[Any, Any]
T = TypeVar("T")
M = TypeVar("M", bound=MachineManagement)


def login(user: str) -> dict[str, str]:
    return {"Authorization": encode_basic_auth(user, PASSWORD, "utf-8")}


_RUNNER = asyncio.Runner()
"""Runs all applications, because an application belongs to a single loop, and creating a loop takes longer than a
request."""
atexit.register(_RUNNER.close)

GUEST = login("guest")


class Answer(NamedTuple):
    status: int
    headers: CIMultiDictProxy[str]
    text: str

    @property
    def json(self) -> Any:
        assert self.headers["Content-Type"].startswith("application/json")
        return json.loads(self.text)


async def answer(client: Client, path: str, method: str = "GET", **options: Any) -> Answer:
    async with client.request(method, URL(path, encoded=True), **options) as response:
        return Answer(response.status, response.headers, await response.text())


class _Server(TestServer):
    """A server that completes a request whose client has left, as a node does."""

    async def _make_runner(self, **options: Any) -> BaseRunner:
        return AppRunner(self.app, **options | {"handler_cancellation": False})


class Node(Generic[M]):
    def __init__(self, management: M) -> None:
        self.view = FakeView()
        self.management = management
        self.registry = CollectorRegistry()
        self.limits = HttpLimits()
        self.repeated = RepeatedChecks()

    @cached_property
    def app(self) -> Application:
        return build_app(self.view, self.management, self.registry, self.limits, self.repeated)

    def request(self, path: str, method: str = "GET", **options: Any) -> Answer:
        async def request(client: Client) -> Answer:
            return await answer(client, path, method, **options)

        return self.run(request)

    def run(self, story: Callable[[Client], Awaitable[T]]) -> T:
        """Have something asked in a way of its own, by `answer`."""

        async def run() -> T:
            async with TestClient(_Server(self.app)) as client:
                return await story(client)

        return _RUNNER.run(run())

    def api(self, path: str, method: str = "GET", *, user: str = "guest", **options: Any) -> Answer:
        """Ask below /api, logged in."""
        return self.request(f"/api/{path}", method, headers=login(user), **options)

    def add_user(self, name: str, *tags: str, vhosts: tuple[str, ...] = ()) -> None:
        """Known to the machine, and able to log in over HTTP."""
        self.view.tags[name] = list(tags)
        self.management.make(PutUser(name, b"salt", b"hash", list(tags)))
        for vhost in vhosts:
            self.management.make(SetPermissions(name, vhost, ".*", ".*", ".*"))

    def close(self, path: str, reason: str | None) -> Answer:
        """Close a connection."""
        headers = {} if reason is None else {"X-Reason": reason}
        return self.request(f"/api/{path}", "DELETE", headers=GUEST | headers)
