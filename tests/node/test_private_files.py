"""The files that commands write are for their user only."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from qq.testing import LocalCluster

QQ = Path(__file__).parents[2] / "qq" / "__main__.py"


@pytest.fixture
def _open_umask() -> object:
    before = os.umask(0)
    yield
    os.umask(before)


def shared(root: Path) -> list[Path]:
    """Return the paths that users other than the owner can access."""
    group_and_world = stat.S_IRWXG | stat.S_IRWXO
    return [path for path in (root, *root.rglob("*")) if path.stat().st_mode & group_and_world]


@pytest.mark.usefixtures("_open_umask")
def test_backup_and_cluster_files_are_private(tmp_path: Path) -> None:
    backup, export = tmp_path / "backup", tmp_path / "definitions.json"
    with LocalCluster(nodes=1) as cluster:
        node = cluster.nodes[0]
        for command in (("backup", backup), ("definitions", "export", export)):
            login = ("--url", f"http://127.0.0.1:{node.http_port}", "--user", "guest")
            subprocess.run(
                [sys.executable, "-P", str(QQ), *map(str, command), *login],
                env=os.environ | {"QQ_PASSWORD": "guest"},
                check=True,
                timeout=60,
            )
        assert shared(node.log.parent) == []
    assert shared(backup) == []
    assert shared(export) == []
