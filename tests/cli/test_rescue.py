"""`qq rescue-admin`: an administrator is made on the node's machine, without a login."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from qq.node import rescue
from qq.testing import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Said

    Qq = Callable[..., Said]


def test_lost_administrator_is_made_again_on_the_machine(
    called: Qq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = tmp_path / "password"
    password.write_text("new secret\n")
    new_password = "--new-password-file", str(password)
    with LocalCluster(nodes=1) as cluster:
        (node,) = cluster.nodes
        monkeypatch.setenv("QQ_URL", f"127.0.0.1:{node.http_port}")
        assert called("declare", "user", "--name", "boss", "--no-password", "--tags", "x").status == 0
        forced = called("delete", "user", "--name", "guest", "--force")
        assert (forced.status, forced.output) == (0, "user 'guest': removed\n")
        assert "login of 'guest' was refused" in called("list", "users").errors
        config, data_dir = node.log.with_name("node.toml"), node.log.with_name("data")
        result = called("rescue-admin", "--config", str(config), "--name", "boss", *new_password)
        assert (result.status, result.errors) == (0, "")
        assert not (data_dir / rescue.REQUEST_FILE).exists()
        login = "--user", "boss", "--password-file", str(password)
        (boss,) = json.loads(called("list", "users", "-o", "json", *login).output)
        assert (boss["name"], boss["tags"]) == ("boss", ["administrator", "x"])


def test_rescue_without_a_running_node_leaves_the_request(called: Qq, tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text(
        f'[node]\nname = "n1"\ndata_dir = "{tmp_path}"\n[cluster]\nsecret = "0123456789abcdef"\n'
        '[[nodes]]\nname = "n1"\nhost = "127.0.0.1"\npeer_port = 1\namqp_port = 2\nhttp_port = 3\n'
    )
    password = tmp_path / "password"
    password.write_text("new secret\n")
    result = called(
        *("rescue-admin", "--config", str(config), "--name", "boss", "--new-password-file", str(password)),
        *("--timeout", "0.3"),
    )
    assert (result.status, result.output) == (1, "")
    assert "the node has not taken the request in 0.3 s" in result.errors
    request = tmp_path / rescue.REQUEST_FILE
    assert request.stat().st_mode & 0o777 == 0o600
    assert rescue.RescueRequest.decode(request.read_bytes()).name == "boss"
    assert "new secret" not in request.read_text()


@pytest.mark.parametrize("content", ["", "[]", '["a", "", "00"]', '["a", "x", "00"]', '{"a": 1}'])
def test_malformed_rescue_request_is_refused(content: str) -> None:
    with pytest.raises(ValueError):
        rescue.RescueRequest.decode(content.encode())


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_rescue_request_writable_by_other_users_is_refused(tmp_path: Path, mode: int) -> None:
    request = tmp_path / "request"
    request.write_bytes(rescue.RescueRequest("a", b"s", b"h").encode())
    request.chmod(mode)
    with pytest.raises(ValueError, match="only the node's user or root can write"):
        rescue._content_of(request)
