"""The versions of a run's software, as the report shows them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from chaos import tools
from chaos.live import toxiproxy, versions
from chaos.pipeline import java


def program(path: Path, printed: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{printed}' >&2\n")
    path.chmod(0o755)
    return path


def test_commit_is_that_of_the_checkout_and_shows_changes(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        author = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
        command = ["git", "-C", str(tmp_path), *author, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert versions.commit(tmp_path) is None
    git("init", "--quiet")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "--quiet", "--message", "one")
    head = git("rev-parse", "HEAD")[:12]
    assert versions.commit(tmp_path) == head
    (tmp_path / "file").write_text("two")
    assert versions.commit(tmp_path) == f"{head}-dirty"


def test_toxiproxy_version_is_found_for_releases_and_go_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = program(tmp_path / "released", "toxiproxy-server version 2.9.0")
    monkeypatch.setenv(toxiproxy.VARIABLE, str(released))
    assert versions.of_own_cluster()["toxiproxy"] == "2.9.0"
    built = program(tmp_path / "built", "toxiproxy-server version git")
    with built.open("ab") as file:
        file.write(b"\0path\tx\nmod\tgithub.com/Shopify/toxiproxy/v2\tv2.12.0\th1:x\n")
    monkeypatch.setenv(toxiproxy.VARIABLE, str(built))
    assert versions.of_own_cluster()["toxiproxy"] == "2.12.0"


def test_java_version_is_that_of_java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin" / "java", 'openjdk version "21.0.5" 2024-10-15')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert versions.of_harness()["java"] == "21.0.5"


def test_versions_omit_programs_that_are_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("JAVA_HOME", toxiproxy.VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tools, "directory", lambda: tmp_path)
    monkeypatch.setattr(toxiproxy, "TOOLS", tmp_path)
    monkeypatch.setattr(versions, "PACKAGES", ("pika", "no-such-package"))
    assert versions.of_harness().keys() == {"python", "pika"}
    assert versions.of_own_cluster().keys() == {"qq"}
    with pytest.raises(java.JavaError):
        java.find()


def test_equal_versions_of_nodes_are_named_once() -> None:
    properties = {"product": "RabbitMQ", "version": b"4.0.0", "copyright": "the authors of qq"}
    introduction = versions.introduction(properties)
    assert introduction == "RabbitMQ 4.0.0 (the authors of qq)"
    assert versions.of_cluster([introduction, introduction])["cluster"] == introduction
    other = versions.introduction({"product": "Other"})
    assert (
        versions.of_cluster([introduction, other])["cluster"]
        == "Other ? (?); RabbitMQ 4.0.0 (the authors of qq)"
    )
