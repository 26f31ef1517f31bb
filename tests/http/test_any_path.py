"""Any path and method: an object is found only under its own name, and answers stay separate."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from aiohttp import http_parser
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from qq.http.app import build_app
from qq.http.app import serve as serve_http
from qq.http.base.listener import listen
from tests.http.fakes import FakeView, MachineManagement
from tests.http.http_node import GUEST, Client, Node, answer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from qq.http.server import HttpServer

MADE = {
    "queues/%2F/{}": {},
    "exchanges/%2F/{}": {"type": "topic"},
    "policies/%2F/{}": {"pattern": "x", "definition": {"max-length": 1}},
    "vhosts/{}": {},
    "users/{}": {"password": "x", "tags": ""},
    "global-parameters/{}": {"value": 1},
}
"""Objects with a name in their path, and the bodies that create them."""
WORDS = [
    "{",
    "}",
    "{name}",
    "%",
    "%2F",
    "%zz",
    "%ff",
    "/",
    ".",
    "..",
    "+",
    " ",
    "\0",
    "é",
    "get",
    "status",
    "-",
    '"',
]

names = (
    st.lists(
        st.sampled_from(WORDS) | st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"),
        min_size=1,
        max_size=5,
    )
    .map("".join)
    .filter(lambda name: name != "/")
)
"""Of "/" there is a virtual host already."""


@settings(max_examples=max(5, settings.default.max_examples // 4), deadline=None)
@given(name=names)
@example(name="{}")
@example(name="detailed")
@example(name="bindings")
def test_object_of_any_name_is_found_and_deleted(name: str) -> None:
    node = Node(MachineManagement())

    async def story(client: Client) -> None:
        async def request(path: str, method: str, body: Any = None) -> tuple[int, Any]:
            data = None if body is None else json.dumps(body)
            got = await answer(client, f"/api/{path}", method, headers=GUEST, data=data)
            return got.status, json.loads(got.text) if got.text else None

        for template, body in MADE.items():
            path = template.format(quote(name, safe="").replace(".", "%2E"))  # clients resolve dots
            assert (await request(path, "PUT", body))[0] == 201, path
            status, found = await request(path, "GET")
            assert (status, found["name"]) == (200, name)
            _, listed = await request(template.removesuffix("/{}"), "GET")
            assert [each["name"] for each in listed].count(name) == 1
            assert (await request(path, "DELETE"))[0] == 204
            assert (await request(path, "GET"))[0] == 404

    node.run(story)


@pytest.mark.parametrize("name", ["%ff", "%c0%80", "%ed%a0%80", "%", "%zz", "a%2"])
def test_path_that_is_not_utf8_is_400(name: str) -> None:
    node = Node(MachineManagement())
    for template, body in MADE.items():
        put = node.api(template.format(name), "PUT", data=json.dumps(body))
        assert (put.status, put.json["error"]) == (400, "bad_request")
    assert node.management.changes.applied == []


@pytest.mark.parametrize("name", [".", "..", "...", "~", "~.", "a/b", "%2E", "\u00e9"])
def test_escaped_path_reaches_names_of_dots_and_slashes(name: str) -> None:
    node = Node(MachineManagement())
    path = f"escaped/queues/~%2F/~{quote(name, safe='')}"
    assert node.api(path, "PUT", data="{}").status == 201
    assert [each["name"] for each in node.api("queues").json] == [name]
    assert node.api(path).json["name"] == name
    assert node.api(f"{path}/bindings").json[0]["destination"] == name
    bound = f"escaped/bindings/~%2F/e/~amq.direct/q/~{quote(name, safe='')}"
    assert node.api(bound, "POST", data="{}").status == 201
    assert node.api(bound).json[0]["destination"] == name
    assert node.api(path, "DELETE").status == 204
    assert node.api("queues").json == []
    assert node.request(f"/api/{path}").status == 401


@pytest.mark.parametrize("name", ["a\nb", "\n", "\r\n"])
def test_name_with_a_line_break_is_reachable_by_all_spellings(name: str) -> None:
    """Names of queues and exchanges lose theirs, those of users and virtual hosts do not."""
    node, quoted = Node(MachineManagement()), quote(name, safe="")
    assert node.api(f"escaped/vhosts/~{quoted}", "PUT", data="{}").status == 201
    assert node.api(f"vhosts/{quoted}/").json["name"] == name
    assert node.api(f"escaped/vhosts/~{quoted}", "DELETE").status == 204
    assert node.api(f"vhosts/{quoted}").status == 404


def serving(story: Callable[[HttpServer], Awaitable[None]]) -> None:
    async def serve() -> None:
        app = build_app(FakeView(), MachineManagement(), CollectorRegistry())
        server = await serve_http(app, await listen("127.0.0.1", 0))
        try:
            await asyncio.wait_for(story(server), 60)
        finally:
            await server.cleanup()

    asyncio.run(serve())


async def sent(server: HttpServer, text: str, body: bytes = b"") -> bytes:
    """Return all answers to some requests, of which the last ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(text.encode() + body)
    received = await reader.read()
    writer.close()
    return received


def paths() -> list[str]:
    app = build_app(FakeView(), MachineManagement(), CollectorRegistry())
    canonical = {route.resource.canonical for route in app.router.routes() if route.resource is not None}
    return sorted(re.sub(r"\{\w+\}", "%2F", path) for path in canonical)


AUTHORIZATION = f"Host: x\r\nAuthorization: {GUEST['Authorization']}\r\n"


def test_head_answer_has_no_body() -> None:
    async def story(server: HttpServer) -> None:
        for path in [*paths(), "/metrics/detailed?family=exchange_names", "/api/exchanges?page=1"]:
            request_head = f"HEAD {path} HTTP/1.1\r\n{AUTHORIZATION}\r\n"
            following = f"GET /livez HTTP/1.1\r\n{AUTHORIZATION}Connection: close\r\n\r\n"
            head, _, rest = (await sent(server, request_head + following)).partition(b"\r\n\r\n")
            assert b"\r\nconnection: close" in head.lower() or rest.startswith(b"HTTP/1.1 200 OK\r\n"), path

    serving(story)


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/api/queues/%2F/q", "PUT", 415), ("/api/definitions", "POST", 415), ("/healthz", "GET", 200)],
)
@pytest.mark.parametrize("body", [b"no gzip", gzip.compress(b"{}")], ids=["broken", "whole"])
def test_compressed_body_is_not_decompressed(
    monkeypatch: pytest.MonkeyPatch, path: str, method: str, status: int, body: bytes
) -> None:
    """An unauthenticated client could block the node for seconds with a request that takes a moment to send."""
    decompressors: list[Any] = []
    monkeypatch.setattr(http_parser, "ZLibDecompressor", lambda **options: decompressors.append(options))

    async def story(server: HttpServer) -> None:
        header = f"Content-Encoding: gzip\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        received = await sent(server, f"{method} {path} HTTP/1.1\r\n{AUTHORIZATION}{header}", body)
        assert received.startswith(f"HTTP/1.1 {status} ".encode())

    serving(story)
    assert decompressors == []


def test_client_that_disconnects_mid_request_logs_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def story(server: HttpServer) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"PUT /api/queues/%2F/q HTTP/1.1\r\n{AUTHORIZATION}Content-Length: 9\r\n\r\n".encode())
        await asyncio.sleep(0.1)
        writer.transport.abort()
        await asyncio.sleep(0.1)

    serving(story)
    assert [record for record in caplog.records if record.name == "qq.http.base.error_responses"] == []
