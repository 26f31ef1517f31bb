"""HTTP over TLS of a real node: commands, redirects, health checks, and certificates that are replaced."""

from __future__ import annotations

import json
import ssl
import urllib.request
from base64 import b64encode
from collections.abc import Generator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from qq import testing
from qq.testing import ClusterNode, LocalCluster
from tests.cli.processes import Qq
from tests.harness.certificates import Authority


class World(NamedTuple):
    authority: Authority
    node: ClusterNode

    @property
    def url(self) -> str:
        return f"https://localhost:{self.node.http_port}"

    def get(self, path: str) -> str:
        login = {"Authorization": f"Basic {b64encode(b'guest:guest').decode()}"}
        request = urllib.request.Request(self.url + path, headers=login)
        with urllib.request.urlopen(request, context=self.authority.context()) as answer:
            return answer.read().decode()

    def api(self, path: str) -> Any:
        return json.loads(self.get(f"/api/{path}"))

    def plain(self, path: str) -> tuple[int, str | None]:
        connection = HTTPConnection("localhost", self.node.http_port, timeout=10)
        connection.request("GET", path)
        response = connection.getresponse()
        connection.close()
        return response.status, response.headers["Location"]

    def serial(self) -> str:
        address = ("localhost", self.node.http_port)
        return ssl.get_server_certificate(address, ca_certs=str(self.authority.file))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Generator[World]:
    authority = Authority(tmp_path_factory.mktemp("ca"))
    files = authority.issue("server")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("QQ_HTTP_TLS_CERT", str(files.cert))
        patched.setenv("QQ_HTTP_TLS_KEY", str(files.key))
        with LocalCluster(nodes=1) as cluster:
            yield World(authority, cluster.nodes[0])


def test_command_trusts_the_named_authority(
    called: Qq, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert called("status", "--url", world.url, "--ca-file", str(world.authority.file)).status == 0
    refused = called("status", "--url", world.url)
    assert refused.status != 0
    assert "the certificate of the node is not accepted" in refused.errors
    monkeypatch.setenv("QQ_CA_FILE", str(world.authority.file))
    assert called("list", "users", "--url", world.url).status == 0


def test_command_without_tls_is_told_to_use_https(called: Qq, world: World) -> None:
    result = called("status", "--url", f"http://localhost:{world.node.http_port}")
    assert "the port speaks TLS: use https:// in place of http://" in result.errors


def test_plain_requests_are_redirected_except_health_checks(world: World) -> None:
    assert world.plain("/livez") == world.plain("/healthz") == (200, None)
    for path in ("/", "/api/overview", "/metrics"):
        assert world.plain(path) == (308, world.url + path)


def test_health_and_page_are_served_over_tls(world: World) -> None:
    assert json.loads(world.get("/healthz")) == {"status": "ok"}
    assert "<html" in world.get("/")
    assert len(world.get("/static/vendor/uPlot.mjs")) > 10_000


def test_port_is_shown_as_https(world: World) -> None:
    [node] = world.api("nodes")
    assert [each["port"] for each in node["contexts"]] == [str(world.node.http_port)]
    assert "https" in [each["protocol"] for each in world.api("overview")["listeners"]]
    assert world.api("health/checks/protocol-listener/https")["status"] == "ok"


def test_end_of_the_certificate_is_a_metric(world: World) -> None:
    testing._wait_until(
        lambda: (
            'rabbitmq_certificate_not_after_seconds{file="cert",protocol="https"}' in world.get("/metrics")
        ),
        lambda: "no certificate is shown",
    )


def test_certificate_is_read_again_when_its_file_changes(world: World, tmp_path: Path) -> None:
    before = world.serial()
    world.authority.issue("server")
    testing._wait_until(lambda: world.serial() != before, lambda: "the certificate is the old one")
