"""`qq config` and `qq serve --check`: settings in force, changes while a node runs, a dry run of a configuration."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.cli.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from conftest import Said

    from qq.testing import ClusterNode

    Qq = Callable[..., Said]


@pytest.fixture
def shown(qq: Qq) -> Generator[Callable[[str], str]]:
    """Return the value of a setting in force; after the test, all are as at the start."""

    def shown(name: str) -> str:
        (row,) = [
            line for line in qq("config", "show", "--name", name).lines[1:] if line.split()[0].endswith(name)
        ]
        return row.split()[1]

    yield shown
    for name in ("log_level", "memory_high_watermark", "disk_free_limit_bytes"):
        assert qq("config", "reset", "--name", name).status == 0


def test_memory_watermark_changes_while_the_node_runs(qq: Qq, shown: Callable[[str], str]) -> None:
    assert shown("memory_high_watermark") == "0.6"
    result = qq("config", "set", "--name", "memory_high_watermark_bytes", "--value", "2000000000")
    assert result.output == "memory_high_watermark_bytes is 2000000000 until the node's next start\n"
    assert qq("list", "nodes", "--columns", "mem_limit").lines[1] == "2000000000"
    assert qq("config", "set", "--name", "memory_high_watermark", "--value", "0.5").status == 0
    assert shown("memory_high_watermark") == "0.5"
    assert shown("memory_high_watermark_bytes") == "0"
    assert qq("config", "reset", "--name", "memory_high_watermark").status == 0
    assert shown("memory_high_watermark") == "0.6"


def test_disk_limit_raises_the_alarm_while_the_node_runs(qq: Qq, shown: Callable[[str], str]) -> None:
    limit = "config", "set", "--name", "disk_free_limit_bytes", "--value"
    assert qq(*limit, str(2**60)).status == 0
    assert shown("disk_free_limit_bytes") == str(2**60)
    assert qq("status").status == 1
    assert qq("list", "nodes", "--columns", "disk_free_alarm").lines[1] == "yes"
    assert qq("config", "reset", "--name", "disk_free_limit_bytes").status == 0
    assert qq("list", "nodes", "--columns", "disk_free_alarm").lines[1] == "no"


def test_log_level_changes_while_the_node_runs(
    qq: Qq, shown: Callable[[str], str], real_node: ClusterNode
) -> None:
    assert qq("config", "set", "--name", "log_level", "--value", "debug").status == 0
    assert shown("log_level") == "debug"
    assert "log_level is debug until the node's next start" in real_node.log.read_text()
    assert qq("config", "set", "--name", "log_level", "--value", "error").status == 0
    size = real_node.log.stat().st_size
    assert qq("config", "set", "--name", "disk_free_limit_bytes", "--value", "1").status == 0
    assert real_node.log.stat().st_size == size


def test_alarm_is_in_the_findings_at_once(qq: Qq) -> None:
    """The node checks its memory once a second, and samples what the doctor judges every five seconds."""
    assert qq("config", "set", "--name", "memory_high_watermark", "--value", "0").status == 0
    publish = "publish", "message", "--routing-key", "any", "--payload", "x"
    wait_until(lambda: "publishers must wait: low on memory" in qq(*publish).errors, "the alarm")
    assert "memory-alarm" in qq("doctor").output
    assert qq("config", "reset", "--name", "memory_high_watermark").status == 0
    wait_until(lambda: "publishers must wait" not in qq(*publish).errors, "the end of the alarm")
    assert "memory-alarm" not in qq("doctor").output


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("log_level", "loud", "log_level must be one of debug, info, warning, error"),
        ("memory_high_watermark", "1.5", "memory_high_watermark must be 1 at most, and at least 0.0"),
        ("memory_high_watermark", "true", "memory_high_watermark must be 1 at most, and at least 0.0"),
        (
            "memory_high_watermark",
            "1e-9",
            "message_bytes (16777216) of the memory; or 0, so that publishers wait",
        ),
        ("memory_high_watermark_bytes", "10", "at least message_bytes"),
        ("disk_free_limit_bytes", "-1", "disk_free_limit_bytes must be a whole number that is not negative"),
        (
            "disk_free_limit_bytes",
            "50MB",
            "disk_free_limit_bytes must be a whole number that is not negative",
        ),
        ("cluster_name", "x", "cluster_name cannot be changed while the node runs; there are log_level, "),
    ],
)
def test_wrong_setting_is_refused_with_the_rule(qq: Qq, name: str, value: str, reason: str) -> None:
    result = qq("config", "set", "--name", name, f"--value={value}")
    assert (result.status, result.output) == (1, "")
    assert reason in result.errors


def test_settings_are_for_administrators_only(qq: Qq, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("p4ss\n")
    new = "--tags", "monitoring", "--new-password-file", str(password)
    assert qq("declare", "user", "--name", "watcher", *new).status == 0
    login = "--user", "watcher", "--password-file", str(password)
    for command in (
        ("show",),
        ("set", "--name", "log_level", "--value", "debug"),
        ("reset", "--name", "log_level"),
    ):
        assert qq("config", *command, *login).status == 1
    assert qq("delete", "user", "--name", "watcher").status == 0


def test_serve_check_shows_the_settings_and_starts_no_node(
    called: Qq, real_node: ClusterNode, tmp_path: Path
) -> None:
    config = real_node.log.with_name("node.toml")
    result = called("serve", "--check", "--config", str(config))
    assert (result.status, result.errors) == (0, "")
    assert result.lines[-1] == f"{config}: node n1 can use these settings"
    assert any(line.split() == ["limits.memory_high_watermark", "0.6"] for line in result.lines)
    assert "guest" not in [line.split()[-1] for line in result.lines if "password" in line]
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(config.read_text().replace("../secret", "nosuch"))
    result = called("serve", "--check", "--config", str(wrong))
    assert (result.status, result.output) == (os.EX_CONFIG, "")
    assert "nosuch: cannot be read" in result.errors


def test_setting_of_all_nodes_is_changed_by_a_command(qq: Qq, shown: Callable[[str], str]) -> None:
    limit = "config", "set", "--name", "disk_free_limit_bytes", "--all-nodes", "--value"
    assert qq(*limit, "7").output == "n1: disk_free_limit_bytes is 7 until the node's next start\n"
    assert shown("disk_free_limit_bytes") == "7"
    status, printed, reason = qq(*limit, "-7")
    assert (status, printed) == (1, "")
    assert "a whole number that is not negative" in reason
    reset = qq("config", "reset", "--name", "disk_free_limit_bytes", "--all-nodes")
    assert reset.output == "n1: disk_free_limit_bytes is as at the node's start\n"
    assert shown("disk_free_limit_bytes") != "7"
