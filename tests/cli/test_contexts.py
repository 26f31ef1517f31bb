"""The nodes and the user of a command: options, variables, contexts; and `qq context`."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qq.cli.client import contexts, target

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Said

    from qq.testing import ClusterNode

    Qq = Callable[..., Said]

NOBODY = "127.0.0.1:9"


@pytest.fixture
def file() -> Path:
    return contexts.file_of(os.environ)


def resolved(**options: object) -> tuple[list[str], str, str]:
    """The URLs and the login of a command with these options."""
    default = {"urls": (), "context": None, "user": None, "password": None, "password_file": None}
    node = target.remote(**(default | options))
    return list(node._urls), *node._login


def test_option_precedes_variable_and_variable_precedes_context(
    called: Qq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resolved() == ([target.DEFAULT_URL], "guest", "guest")
    secret = tmp_path / "secret"
    secret.write_text("of-context\n")
    for name in ("one", "two"):
        options = "--url", f"{name}:1", "--url", f"https://{name}", "--user", f"user-{name}"
        assert called("context", "add", name, *options, "--password-file", str(secret)).status == 0
    one, two = (["http://one:1", "https://one"], "user-one"), (["http://two:1", "https://two"], "user-two")
    assert resolved() == (*one, "of-context")
    monkeypatch.setenv("QQ_CONTEXT", "two")
    assert resolved() == (*two, "of-context")
    assert resolved(context="one") == (*one, "of-context")
    monkeypatch.setenv("QQ_URL", "a:1,https://b")
    assert resolved() == (["http://a:1", "https://b"], "guest", "guest"), "no context's password is for these"
    assert resolved(context="two") == (*two, "of-context")
    assert resolved(urls=("http://c:1",)) == (["http://c:1"], "guest", "guest")
    monkeypatch.setenv("QQ_USER", "u")
    monkeypatch.setenv("QQ_PASSWORD", "p")
    assert resolved(context="two") == (two[0], "u", "p")
    assert resolved(context="two", user="o", password="q") == (two[0], "o", "q")
    monkeypatch.setenv("QQ_URL", "ftp://x")
    status, _, errors = called("status")
    assert (status, errors.count("\n")) == (1, 1)
    assert errors.startswith("qq status: environment: QQ_URL: 'ftp://x' is neither")


def test_a_context_is_added_used_shown_replaced_and_removed(called: Qq, file: Path) -> None:
    result = called("context", "add", "pröd", "--url", "n1:15672", "--ca-file", "ca.pem")
    assert result == (0, "context 'pröd': added, and in use\n", "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert called("context", "add", "b", "--url", "n2:1").output == (
        "context 'b': added; `qq context use b` has commands ask it\n"
    )
    shown = json.loads(called("context", "show", "-o", "json").output)
    assert shown == {"name": "pröd", "urls": ["http://n1:15672"], "ca_file": str(Path("ca.pem").absolute())}
    assert called("context", "list").lines[1:] == [
        "pröd  yes     http://n1:15672  -",
        "b     no      http://n2:1      -",
    ]
    assert called("context", "use", "b").status == 0
    assert called("context", "add", "b", "--url", "n3:1").output == "context 'b': replaced, and in use\n"
    assert called("context", "show").lines == ["key   value", "name  b", "urls  http://n3:1"]
    assert called("context", "remove", "b").output == "context 'b': removed; none is in use now\n"
    assert called("context", "show").errors.startswith("qq context show: no context is in use: name one")
    for command in (["use", "b"], ["show", "b"], ["remove", "b"]):
        status, output, errors = called("context", *command)
        assert (status, output) == (1, "")
        assert errors == f"qq context {command[0]}: there is no context 'b' in {file}; there are: pröd\n"
    assert list(file.parent.iterdir()) == [file]


def test_context_file_writable_by_the_group_is_not_read(called: Qq, file: Path) -> None:
    assert called("context", "add", "a", "--url", NOBODY).status == 0
    file.chmod(0o620)
    for command in (["status"], ["context", "list"], ["context", "use", "a"]):
        status, output, errors = called(*command)
        assert (status, output, errors.count("\n")) == (1, "", 1)
        assert errors.endswith(f": chmod 600 {file}\n")
    assert "cannot connect" in called("status", "--url", NOBODY).errors, "no context is needed"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("x", ""),
        ("currentt = 'a'", "must have nothing but `current`"),
        ("current = 1", "must have nothing but `current`"),
        ("contexts = 1", "must have nothing but `current`"),
        ("[contexts.a]", "[contexts.a] urls: must be a list of URLs"),
        ("[contexts.a]\nurls = []", "[contexts.a] urls: must be a list of URLs"),
        ("[contexts.a]\nurls = ['ftp://x']", "[contexts.a] urls: 'ftp://x' is neither"),
        ("[contexts.a]\nurls = ['x:1']\nuser = 1", "[contexts.a] user: must be a text"),
        ("[contexts.a]\nurls = ['x:1']\npassword = 'x'", "[contexts.a] password: there is no such key"),
        ("[contexts]\na = 1", "[contexts.a] must be a table"),
        ("current = 'a'", "there is no context 'a'"),
    ],
)
def test_invalid_context_file_is_reported(called: Qq, file: Path, text: str, wrong: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(text)
    status, output, errors = called("status")
    assert (status, output, errors.count("\n")) == (1, "", 1)
    assert errors.startswith("qq status: ")
    assert str(file) in errors
    assert wrong in errors


def test_certificates_of_a_context_are_read(called: Qq, tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("nothing")
    assert called("context", "add", "a", "--url", f"https://{NOBODY}", "--ca-file", str(bad)).status == 0
    assert called("status").errors.startswith(f"qq status: {bad}: ")
    bad.unlink()
    assert called("status").errors == f"qq status: {bad}: No such file or directory\n"
    assert called("context", "add", "a", "--url", NOBODY, "--key-file", "x").status == 2


def test_command_uses_the_first_node_that_answers(
    called: Qq, real_node: ClusterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qq.cli.client.remote._PROBE_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        silent = f"127.0.0.1:{frozen.getsockname()[1]}"
        good = f"127.0.0.1:{real_node.http_port}"
        result = called("leader", "show", "--url", NOBODY, "--url", silent, "--http", good)
        assert (result.status, result.output) == (0, "n1\n")
        status, output, errors = called("leader", "show", "--url", NOBODY, "--url", silent)
        assert (status, output, errors.count("\n")) == (1, "", 1)
        assert errors.startswith(f"qq leader show: no node answers: http://{NOBODY}/healthz: cannot connect")
        assert errors.endswith(
            f"; http://{silent}/healthz: no answer within 0.2 s; look at the node, or name another node with --url\n"
        )
    monkeypatch.setenv("QQ_URL", f"{NOBODY},{good}")
    assert called("leader", "show").output == "n1\n"
