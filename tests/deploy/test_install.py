"""What sets up an environment: where packages come from is what pip was told, also if uv fetches them."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

INSTALL = runpy.run_path(str(Path(__file__).parents[2] / "requirements" / "install.py"))
for_uv, settings_of_pip = INSTALL["for_uv"], INSTALL["settings_of_pip"]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(INSTALL["os"].environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    # Another file than this one may be there, too, but says less.
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))


def test_uv_is_told_what_pip_was_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
def test_what_uv_cannot_follow_is_left_to_pip(tmp_path: Path, setting: str) -> None:
    (tmp_path / "pip.conf").write_text(f"[global]\n{setting}\n")
    assert for_uv(settings_of_pip()) is None


def test_without_settings_there_is_nothing_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", INSTALL["os"].devnull)
    assert for_uv(settings_of_pip()) == {}
