"""The setup of an environment.

Packages come from the sources that pip's configuration names, also if uv fetches them. A single `make` at a time sets
it up, and an interrupted setup is begun anew.
"""

from __future__ import annotations

import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "requirements" / "install.py"
INSTALL = runpy.run_path(str(SCRIPT))
for_uv, settings_of_pip = INSTALL["for_uv"], INSTALL["settings_of_pip"]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(INSTALL["os"].environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    # A second file may exist, but this file has precedence.
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))


def test_pip_settings_are_passed_to_uv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://a/simple\ntimeout = 60\nextra-index-url =\n  https://b/simple\n  https://c/simple\n"
        "[download]\nproxy = http://d\n[install]\nfind-links = /wheels\n  /more\n"
    )
    monkeypatch.setenv("PIP_CERT", "/own.pem")
    monkeypatch.setenv("PIP_INDEX_URL", "https://e/simple")
    assert for_uv(settings_of_pip()) == {
        "SSL_CERT_FILE": "/own.pem",
        "UV_DEFAULT_INDEX": "https://e/simple",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_INDEX": "https://b/simple https://c/simple",
    }


@pytest.mark.parametrize(
    "setting", ["proxy = http://d", "no-index = true", "trusted-host = a", "anything = new"]
)
def test_pip_is_used_when_uv_has_no_such_setting(tmp_path: Path, setting: str) -> None:
    (tmp_path / "pip.conf").write_text(f"[global]\n{setting}\n")
    assert for_uv(settings_of_pip()) is None


def test_default_pip_settings_add_no_variables_for_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", INSTALL["os"].devnull)
    assert for_uv(settings_of_pip()) == {}


@pytest.fixture
def uv(tmp_path: Path) -> Path:
    """The program `uv` of an environment with a pip that is configured in no way: to be written."""
    environment = tmp_path / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    [packages] = environment.glob("lib/*/site-packages")
    (packages / "pip").mkdir()
    (packages / "pip" / "__main__.py").touch()
    uv = environment / "bin" / "uv"
    uv.touch(mode=0o755)
    return uv


def test_environment_is_marked_unfinished_during_installation(uv: Path) -> None:
    mark = uv.parents[1] / "unfinished"
    uv.write_text(f"#!/bin/sh\ntest -e {mark} && echo installing\n")
    done = subprocess.run([uv.with_name("python"), SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    done = subprocess.run([uv.with_name("python"), SCRIPT, "x"], capture_output=True, text=True, check=True)
    assert (done.stdout, mark.exists()) == ("installing\n", False)


def test_interrupted_installation_is_silent_and_keeps_its_mark(uv: Path) -> None:
    uv.write_text("#!/bin/sh\nkill -INT $PPID\n")
    done = subprocess.run([uv.with_name("python"), SCRIPT, "x"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    assert (uv.parents[1] / "unfinished").exists()


def test_failed_installation_reports_the_reason_and_the_retry(uv: Path) -> None:
    uv.write_text("#!/bin/sh\nexit 1\n")
    (pip,) = uv.parents[1].glob("lib/*/site-packages/pip/__main__.py")
    pip.write_text("import sys; sys.exit('no index' if 'install' in sys.argv else None)\n")
    done = subprocess.run([uv.with_name("python"), SCRIPT, "x"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == [
        "no index",
        "not all packages could be installed, for the reason above; the same command tries again",
    ]
    assert not (uv.parents[1] / "unfinished").exists()


INSTALLS = """#!/bin/sh
# `python3 -m venv --without-pip .venv`, and then the interpreter in it.
echo "$@" >> log
case "$*" in
*venv*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
*install.py*) sleep 0.3 ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The Makefile with its inputs, and a Python that only prints its arguments."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "requirements").mkdir()
    for file in [*(ROOT / "requirements").iterdir(), ROOT / "pyproject.toml", ROOT / "setup.py"]:
        (tmp_path / file.relative_to(ROOT)).touch()
    python = tmp_path / "python"
    python.write_text(INSTALLS)
    python.chmod(0o755)
    return tmp_path


def _make(checkout: Path, target: str) -> subprocess.Popen[str]:
    command = ["make", "PYTHON=./python", f".venv/{target}"]
    return subprocess.Popen(command, cwd=checkout, stdout=subprocess.PIPE, text=True)


def _output(make: subprocess.Popen[str]) -> str:
    output, _ = make.communicate()
    assert make.returncode == 0
    return output


def _installations(checkout: Path) -> list[str]:
    lines = (checkout / "log").read_text().splitlines()
    return [line.rpartition(" ")[2] for line in lines if "install.py" in line]


def test_two_at_once_install_once(checkout: Path) -> None:
    first = _make(checkout, "stamp")
    while not (checkout / "log").exists():
        time.sleep(0.01)
    second = _make(checkout, "stamp")
    assert "another make is setting up .venv: waiting for it\n" in _output(second)
    _output(first)
    assert _installations(checkout) == [".", "requirements/dev.txt"]


def test_interrupted_installation_starts_again(checkout: Path) -> None:
    _output(_make(checkout, "docs-stamp"))
    (checkout / ".venv" / "unfinished").touch()
    (checkout / ".venv" / "in-part").touch()
    _output(_make(checkout, "run-stamp"))
    assert not (checkout / ".venv" / "in-part").exists()
    assert _installations(checkout) == [".", "requirements/dev.txt", "requirements/docs.txt", "."]
    _output(_make(checkout, "run-stamp"))
    assert len(_installations(checkout)) == 4
