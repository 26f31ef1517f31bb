"""The unit of systemd, and the configuration beside it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from deployment import DEPLOY

from qq.config import load
from qq.node import LAST_SYNC_S, LEADER_HANDOVER_S

FILE = DEPLOY / "systemd" / "qq.service"
CONFIG = DEPLOY / "systemd" / "node.toml"
ENVIRONMENT = {"QQ_NODE_NAME": "n2", "QQ_CLUSTER_SECRET": "s" * 16, "QQ_USERS_DEFAULT_PASSWORD": "p4ss"}


def parsed(text: str) -> dict[str, list[str]]:
    """Values by key; no key is in two sections of ours."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for line in text.splitlines():
        if line and not line.startswith(("#", "[")):
            key, _, value = line.partition("=")
            found[key].append(value)
    return found


UNIT = parsed(FILE.read_text())


def test_a_node_starts_with_the_configuration() -> None:
    loaded = load(CONFIG, ENVIRONMENT)
    assert loaded.address.name == "n2"
    assert loaded.default_user not in loaded.loopback_users
    assert loaded.data_dir == Path("/var/lib") / UNIT["StateDirectory"][0]


def test_the_unit_names_every_variable_that_a_node_needs() -> None:
    assert set(re.findall(r"QQ_[A-Z_]+", FILE.read_text())) == set(ENVIRONMENT)
    assert UNIT["EnvironmentFile"] == ["/etc/qq/environment"]


def test_the_unit_starts_a_node_and_starts_it_again() -> None:
    assert UNIT["ExecStart"] == ["/usr/local/qq/bin/qq serve --config /etc/qq/node.toml"]
    assert UNIT["Restart"] == ["on-failure"]
    assert int(UNIT["LimitNOFILE"][0]) >= 65536


def test_a_node_is_given_the_time_that_it_needs_to_stop() -> None:
    assert "KillSignal" not in UNIT  # SIGTERM
    assert int(UNIT["TimeoutStopSec"][0]) >= 3 * (LEADER_HANDOVER_S + LAST_SYNC_S)


def test_a_node_may_do_little() -> None:
    assert UNIT["DynamicUser"] == UNIT["NoNewPrivileges"] == ["yes"]
    assert UNIT["ProtectSystem"] == ["strict"]
    assert UNIT["CapabilityBoundingSet"] == [""]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The unit with a program that is on this machine."""
    unit = tmp_path / FILE.name
    unit.write_text(FILE.read_text().replace("/usr/local/qq/bin/qq", sys.executable))
    return unit


def complaints(unit: Path) -> str:
    """What systemd says of it; where there is no systemd, of keys that it does not know among those that matter."""
    if shutil.which("systemd-analyze") is None:
        known = set(UNIT) | {"[Unit]", "[Service]", "[Install]"}
        return "".join(key for key in parsed(unit.read_text()) if key not in known)
    command = ["systemd-analyze", "verify", str(unit)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stderr


def test_systemd_takes_the_unit(here: Path) -> None:
    assert complaints(here) == ""


def test_systemd_would_find_a_mistake(here: Path) -> None:
    here.write_text(here.read_text().replace("ProtectHome", "ProtectHomes"))
    assert "ProtectHomes" in complaints(here)
