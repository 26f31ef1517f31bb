"""The fixtures of qq/pytest_plugin.py in a project that has qq installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.xdist_group("releases"), pytest.mark.timeout(60)]

PROJECT = {
    "conftest.py": """
import pytest

@pytest.fixture(scope="session")
def qq_options():
    return {"nodes": 1, "settings": {"limits": {"channel_max": 7}}}
""",
    "test_orders.py": """
import pika

seen = []

def declare(vhost):
    [url] = vhost.urls
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        assert connection._impl.params.channel_max == 7
        assert connection.channel().queue_declare("orders", durable=True).method.message_count == 0
    seen.append(vhost)

def test_first(qq_vhost):
    declare(qq_vhost)

def test_a_node_that_is_killed(qq_vhost):
    declare(qq_vhost)
    qq_vhost.cluster.nodes[0].kill()

def test_after_the_kill(qq_vhost, qq_shared_cluster):
    declare(qq_vhost)
    assert {vhost.cluster for vhost in seen} == {qq_shared_cluster}
    assert len({vhost.name for vhost in seen}) == 3

def test_that_fails(qq_cluster, qq_shared_cluster):
    assert qq_cluster is qq_shared_cluster
""",
}


def test_fixtures_share_their_cluster_and_failures_show_its_logs(tmp_path: Path) -> None:
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:aiomisc"]
    tested = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=50)
    assert "1 failed, 3 passed" in tested.stdout, tested.stdout
    _, shared, fresh = tested.stdout.split(" log of n1 ")
    assert "serving AMQP" in fresh
    assert "serving AMQP" not in shared  # it did before
