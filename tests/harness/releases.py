"""Nodes of a release: its code is taken out of the repository's history and runs in this Python environment."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import qq.testing
from chaos.live.releases import COMMITS, IN_USE, ROOT, ReleaseError, environment, serve_command, unpack

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

__all__ = ["COMMITS", "IN_USE", "ROOT", "running", "unpack_release"]


def unpack_release(release: str, directory: Path) -> None:
    """Write the code of a release to a directory."""
    try:
        unpack(release, directory)
    except ReleaseError as error:
        pytest.fail(str(error), pytrace=False)


@contextmanager
def running(program: Path) -> Generator[None]:
    """Nodes that are started now run the code in this directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qq.testing, "SERVE_COMMAND", serve_command(program))
        for variable, value in environment(program).items():
            patch.setenv(variable, value)
        yield
