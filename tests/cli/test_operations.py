"""`qq leader` and `qq check`, as real processes that ask a stub node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import Qq, started

from qq.cli.layout import local_nodes, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    Said = Callable[..., tuple[int, str, str]]


@pytest.fixture
def said(tmp_path: Path, base_port: int) -> Generator[Said]:
    """Call a command of a node that runs; it returns the exit status, the output and the errors."""
    url = f"http://127.0.0.1:{base_port + 10000}"
    nodes = local_nodes(tmp_path, 3, base_port)
    prepare(tmp_path, nodes, fresh=False)

    def said(*arguments: str) -> tuple[int, str, str]:
        with started(tmp_path, *arguments, "--http", url) as qq:
            return qq.exit_status(), qq.output, without_address(qq)

    def without_address(qq: Qq) -> str:
        return qq.errors.replace(url, "URL")

    with started(tmp_path, "serve", "--config", str(nodes[0].config), STUB_LEADER="n2") as node:
        node.until_line("n1 serves")
        yield said


def test_a_command_says_in_one_line_what_is_and_what_is_done(said: Said) -> None:
    assert said("leader", "show") == (0, "n2\n", "")
    assert said("leader", "transfer") == (0, "n2 leads\n", "")
    assert said("leader", "transfer", "--to", "n1") == (0, "n1 leads\n", "")
    assert said("check", "safe-to-stop") == (0, "n1 it is\n", "")
    assert said("check", "safe-to-stop", "--node", "n/3") == (1, "n/3 it is\n", "")


def test_who_waits_for_longer_than_a_second_is_told_what_for(said: Said) -> None:
    assert said("leader", "transfer", "--to", "n3") == (
        0,
        "n3 leads\n",
        "waiting for n3 to lead (1 s)\n",
    )


def test_a_refusal_is_one_line_with_the_reason(said: Said) -> None:
    reason = "qq leader transfer: URL/api/cluster/leader: 'n9' is no node of this cluster\n"
    assert said("leader", "transfer", "--to", "n9") == (1, "", reason)
    refused = "qq check safe-to-stop: URL/api/health/checks/safe-to-stop: login of 'eve' was refused\n"
    assert said("check", "safe-to-stop", "--user", "eve") == (1, "", refused)
    status, _, usage = said("leader")
    assert status == 2
    assert "usage: qq leader" in usage


def test_that_nobody_leads_is_an_error(tmp_path: Path, base_port: int) -> None:
    nodes = local_nodes(tmp_path, 1, base_port)
    prepare(tmp_path, nodes, fresh=False)
    url = f"http://127.0.0.1:{base_port + 10000}"
    with started(tmp_path, "serve", "--config", str(nodes[0].config)) as node:
        node.until_line("n1 serves")
        with started(tmp_path, "leader", "show", "--http", url) as qq:
            assert qq.exit_status() == 1
            assert qq.errors.startswith(f"qq leader show: {url}: no leader is known")
