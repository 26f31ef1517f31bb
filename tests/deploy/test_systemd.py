"""The unit of systemd, and the configuration beside it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from qq.config import ConfigError, load
from qq.node.node import LAST_SYNC_S, LEADER_HANDOVER_S
from tests.deploy.deployment import DEPLOY, ROOT, RUNS_AS

FILE = DEPLOY / "systemd" / "qq.service"
CONFIG = DEPLOY / "systemd" / "node.toml"
ENVIRONMENT = {"QQ_NODE_NAME": "n2"}
HIDDEN = {"secret": "s" * 16, "password": "p4ss"}
"""Contents of files beside the configuration."""


def parsed(text: str) -> dict[str, list[str]]:
    """Values by key; no key is in two sections of ours."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for line in text.splitlines():
        if line and not line.startswith(("#", "[")):
            key, _, value = line.partition("=")
            found[key].append(value)
    return found


UNIT = parsed(FILE.read_text())


def test_a_node_starts_with_the_configuration(tmp_path: Path) -> None:
    shutil.copy(CONFIG, tmp_path)
    for name, content in HIDDEN.items():
        (tmp_path / name).write_text(f"{content}\n")
    loaded = load(tmp_path / CONFIG.name, ENVIRONMENT)
    assert loaded.secrets == (HIDDEN["secret"].encode(),)
    assert loaded.default_password == HIDDEN["password"]
    assert loaded.address.name == "n2"
    assert loaded.default_user not in loaded.loopback_users
    assert loaded.data_dir == Path("/var/lib") / UNIT["StateDirectory"][0]


def test_the_unit_names_every_variable_that_a_node_needs() -> None:
    assert set(re.findall(r"QQ_[A-Z_]+", FILE.read_text())) == set(ENVIRONMENT)
    assert UNIT["EnvironmentFile"] == ["/etc/qq/environment"]


def test_unit_starts_and_restarts_a_node() -> None:
    assert UNIT["ExecStart"] == ["/usr/local/qq/bin/python -I -m qq serve --config /etc/qq/node.toml"]
    assert UNIT["Restart"] == ["on-failure"]
    assert int(UNIT["LimitNOFILE"][0]) >= 65536


def test_node_with_an_invalid_configuration_is_not_restarted() -> None:
    assert UNIT["RestartPreventExitStatus"] == [str(ConfigError.exit_status)]


def test_unit_gives_a_node_time_to_stop() -> None:
    assert "KillSignal" not in UNIT  # SIGTERM
    assert int(UNIT["TimeoutStopSec"][0]) >= 3 * (LEADER_HANDOVER_S + LAST_SYNC_S)


def test_a_node_may_do_little() -> None:
    assert UNIT["User"] == UNIT["Group"] == ["qq"]
    assert UNIT["NoNewPrivileges"] == ["yes"]
    assert UNIT["ProtectSystem"] == ["strict"]
    assert UNIT["CapabilityBoundingSet"] == [""]
    assert UNIT["UMask"] == ["0077"]
    assert UNIT["StateDirectoryMode"] == ["0700"]


# Steps in its first lines


STEPS = re.findall(r"^#   ([\w/.-]+ \S.*)", FILE.read_text(), re.MULTILINE)


def steps(program: str) -> list[list[str]]:
    """Return the arguments of each call of a program, in any directory."""
    command_words = [shlex.split(command) for step in STEPS for command in step.split(" && ")]
    return [arguments for name, *arguments in command_words if Path(name).name == program]


def test_unit_installs_its_packages_pinned_with_hashes() -> None:
    (*_, environment), *_ = steps("python3")
    program, *_ = UNIT["ExecStart"][0].split()
    assert Path(program).parents[1] == Path(environment)
    assert f"{environment}/bin/pip" in FILE.read_text()
    requirements, ours = steps("pip")
    assert requirements[:-1] == ["install", "--require-hashes", "-r"]
    assert (ROOT / requirements[-1]).exists()
    assert ours == ["install", "--no-deps", "."]


def test_unit_user_is_created_and_may_read_the_hidden_files() -> None:
    ((*options, user),) = steps("useradd")
    number = f"{RUNS_AS}"
    assert [user] == UNIT["User"]
    assert steps("groupadd") == [["--system", "--gid", number, *UNIT["Group"]]]
    # useradd would warn of a number above those of system users.
    assert options[:7] == [
        "--system",
        "-K",
        f"SYS_UID_MAX={number}",
        "--uid",
        number,
        "--gid",
        *UNIT["Group"],
    ]
    ((owner, *files),) = steps("chown")
    assert owner == f"root:{UNIT['Group'][0]}"
    assert files == [f"/etc/qq/{name}" for name in HIDDEN]
    assert steps("chmod") == [["0640", *files]]


def test_files_of_the_unit_are_installed_at_its_paths() -> None:
    put = {target: ROOT / source for *_, source, target in steps("install")}
    assert put == {"/etc/qq/node.toml": CONFIG, f"/etc/systemd/system/{FILE.name}": FILE}
    assert UNIT["ExecStart"][0].endswith(" --config /etc/qq/node.toml")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The unit with a program that is on this machine."""
    unit = tmp_path / FILE.name
    unit.write_text(FILE.read_text().replace("/usr/local/qq/bin/python", sys.executable))
    return unit


def warnings(unit: Path) -> str:
    """Return systemd's warnings about a unit; without systemd, the keys that are not in `UNIT`."""
    if shutil.which("systemd-analyze") is None:
        known = set(UNIT) | {"[Unit]", "[Service]", "[Install]"}
        return "".join(key for key in parsed(unit.read_text()) if key not in known)
    command = ["systemd-analyze", "verify", str(unit)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stderr


def test_systemd_takes_the_unit(here: Path) -> None:
    assert warnings(here) == ""


def test_systemd_finds_an_invalid_setting(here: Path) -> None:
    here.write_text(here.read_text().replace("ProtectHome", "ProtectHomes"))
    assert "ProtectHomes" in warnings(here)
