"""The HTTP interface, through a real server and a real client, with a view that the test sets."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import encode_basic_auth, web
from aiohttp.test_utils import TestServer
from prometheus_client import CollectorRegistry, Gauge

from cluster.net import acceptor
from qq.errors import StartError
from qq.http.app import build_app
from qq.http.base.listener import HttpLimits, listen
from tests.http.fakes import FakeManagement, FakeView
from tests.http.http_node import GUEST, Node, login


@pytest.fixture
def node() -> Node[FakeManagement]:
    return Node(FakeManagement())


def test_a_serving_node_is_healthy_without_a_login(node: Node[FakeManagement]) -> None:
    answer = node.request("/healthz")
    assert (answer.status, answer.json) == (200, {"status": "ok"})


def test_health_of_a_node_that_does_not_serve_gives_the_reason(node: Node[FakeManagement]) -> None:
    node.view.reason = "no leader is known"
    answer = node.request("/healthz")
    assert (answer.status, answer.json) == (503, {"status": "failed", "reason": "no leader is known"})


def test_a_node_that_does_not_serve_is_alive(node: Node[FakeManagement]) -> None:
    node.view.reason = "no leader is known"
    answer = node.request("/livez")
    assert (answer.status, answer.json) == (200, {"status": "ok"})


def test_cluster_status_shows_unknown_values_as_null(node: Node[FakeManagement]) -> None:
    answer = node.request("/api/cluster", headers=GUEST)
    assert answer.status == 200
    assert answer.json == {
        "cluster": "qq",
        "node": "n1",
        "leader": "n1",
        "nodes": [
            {
                "name": "n1",
                "state": "leader",
                "standing": "voter",
                "term": 3,
                "first_index": 5,
                "last_index": 12,
                "commit_index": 11,
                "applied_index": 10,
                "checkpoint_index": 9,
                "disk_free_bytes": 2**30,
                "alarm": False,
                "clock_offset_ms": -3,
                "role": "voter",
                "versions": "7 to 10",
                "drained": False,
                "disk_hangs": False,
                "misses": ["n2"],
                "hears_leader": True,
                "lost_ms": None,
                "rolled_back_ms": None,
                "other_directory": False,
            },
            {
                "name": "n2",
                "state": "down",
                "standing": None,
                "term": None,
                "first_index": None,
                "last_index": None,
                "commit_index": None,
                "applied_index": None,
                "checkpoint_index": None,
                "disk_free_bytes": None,
                "alarm": None,
                "clock_offset_ms": None,
                "role": None,
                "versions": None,
                "drained": False,
                "disk_hangs": None,
                "misses": None,
                "hears_leader": None,
                "lost_ms": None,
                "rolled_back_ms": None,
                "other_directory": False,
            },
        ],
        "version": 8,
        "majority_lost": None,
    }


@pytest.mark.parametrize(
    ("address", "status"), [("127.0.0.1", 200), ("::1", 200), ("192.0.2.7", 401), (None, 401)]
)
def test_guest_user_may_log_in_from_loopback_only(
    node: Node[FakeManagement], monkeypatch: pytest.MonkeyPatch, address: str | None, status: int
) -> None:
    monkeypatch.setattr(web.BaseRequest, "remote", address)
    assert node.request("/api/cluster", headers=GUEST).status == status


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Basic",
        "Basic ***",
        "Basic Z3Vlc3Q=",  # no colon
        "Basic /////w==",  # no UTF-8
        "Bearer Z3Vlc3Q6Z3Vlc3Q=",
        encode_basic_auth("guest", "wrong"),
        encode_basic_auth("nobody", "gu:éest", "utf-8"),
    ],
)
@pytest.mark.parametrize("path", ["/api/cluster", "/api/queues", "/api/nothing", "/%61pi/cluster"])
def test_api_without_a_valid_password_is_401(
    node: Node[FakeManagement], path: str, authorization: str | None
) -> None:
    answer = node.request(path, headers={} if authorization is None else {"Authorization": authorization})
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"] == 'Basic realm="qq", charset="UTF-8"'
    assert answer.json["error"] == "not_authorized"


def test_metrics_are_prometheus_text_without_a_login(node: Node[FakeManagement]) -> None:
    Gauge("rabbitmq_raft_term", "Term", registry=node.registry).set(3)
    answer = node.request("/metrics")
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert "rabbitmq_raft_term 3.0\n" in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/api/nothing/",
        "/api/queues//",
        "/api/escaped/nothing",
        "/api/escaped/queues",
        "/api/escaped/escaped/queues/~%2F",
    ],
)
def test_an_unknown_path_is_404_in_json(node: Node[FakeManagement], path: str) -> None:
    answer = node.request(path, headers=GUEST)
    assert (answer.status, answer.json["error"]) == (404, "Object Not Found")


@pytest.mark.parametrize(
    ("path", "allowed"), [(path, "GET, HEAD, OPTIONS") for path in ("/api/overview", "/api/overview/", "/")]
)
def test_options_of_a_path_need_no_login(node: Node[FakeManagement], path: str, allowed: str) -> None:
    answer = node.request(path, "OPTIONS")
    assert (answer.status, answer.headers["Allow"]) == (200, allowed)
    assert node.request("/nonesuch", "OPTIONS").status in (401, 404)


@pytest.mark.parametrize(
    "path",
    [
        "/livez",
        "/healthz",
        "/metrics",
        "/api/cluster",
        "/api/queues",
        "/api/queues/",
        "/api/escaped/queues/~%2F",
        "/api/escaped/queues/~%2F/",
        "/",
    ],
)
def test_a_method_that_a_path_does_not_have_is_405_in_json(node: Node[FakeManagement], path: str) -> None:
    answer = node.request(path, "POST", headers=GUEST, data=b"x")
    assert (answer.status, answer.json["error"]) == (405, "method_not_allowed")
    assert "GET" in answer.headers["Allow"]


def test_internal_error_is_500_without_details(node: Node[FakeManagement]) -> None:
    node.view.broken = True
    answer = node.request("/api/cluster", headers=GUEST)
    assert answer.status == 500
    assert "invariant" not in answer.text
    assert "Traceback" not in answer.text


def test_a_path_cannot_leave_the_static_files(node: Node[FakeManagement]) -> None:
    assert node.request("/static/%2e%2e/app.py").status == 404
    assert node.request("/static/").status in (403, 404)


@pytest.mark.parametrize(
    "path", ["/", "/static/js/main.js", "/livez", "/metrics", "/api/cluster", "/nothing"]
)
def test_answer_has_security_headers(node: Node[FakeManagement], path: str) -> None:
    headers = node.request(path).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"
    assert "Strict-Transport-Security" not in headers
    encrypted = node.request(path, headers={"X-Forwarded-Proto": "https"}).headers
    assert encrypted["Strict-Transport-Security"] == "max-age=31536000"


def test_garbage_instead_of_http_is_answered_with_400() -> None:
    async def send() -> bytes:
        async with TestServer(build_app(FakeView(), FakeManagement(), CollectorRegistry())) as server:
            reader, writer = await asyncio.open_connection(server.host, server.port)
            writer.write(b"\x00\xff AMQP\r\n\r\n")
            answer = await reader.read()
            writer.close()
            return answer

    answer = asyncio.run(send())
    assert b" 400 Bad Request" in answer
    assert b"Traceback" not in answer


def test_port_in_use_is_reported_in_a_single_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "ENDING_S", 0.0)

    async def listen_twice() -> None:
        async with TestServer(build_app(FakeView(), FakeManagement(), CollectorRegistry())) as server:
            await listen("127.0.0.1", server.port or 0)

    with pytest.raises(StartError, match=r"^HTTP cannot listen on 127\.0\.0\.1:\d+: "):
        asyncio.run(listen_twice())


@pytest.mark.parametrize(
    "path",
    ["/metrics", "/metrics/per-object", "/metrics/detailed?family=queue_metrics", "/%6detrics", "/metrics/x"],
)
def test_metrics_need_a_login_if_the_setting_says_so(node: Node[FakeManagement], path: str) -> None:
    node.limits = HttpLimits(metrics_need_login=True)
    node.view.tags |= {"scraper": ["monitoring"], "ann": ["management"]}
    for headers in ({}, login("ann")):
        assert node.request(path, headers=headers).status == 401
    for user in ("scraper", "guest"):
        assert node.request(path, headers=login(user)).status in (200, 404)
    assert node.request("/livez").status == 200
