"""Ports for nodes that `qq up` starts, and a real node for commands that need it."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from qq.cli import main
from qq.cli.terminal import progress
from qq.testing import ClusterNode, LocalCluster, _reserve_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path


class Said(NamedTuple):
    """Exit status and output of a command."""

    status: int
    output: str
    errors: str

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()


Qq = Any
"""A function that calls a command."""


@pytest.fixture(autouse=True)
def no_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the user's own clusters from the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for variable in ("QQ_URL", "QQ_CONTEXT", "QQ_USER", "QQ_PASSWORD", "QQ_PASSWORD_FILE", "QQ_CA_FILE"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def base_port() -> Generator[int]:
    """The first of the ports of five nodes, which no other test has."""
    with ExitStack() as cleanup:
        yield _reserve_ports(5, cleanup)


@pytest.fixture(scope="module")
def real_node(until_left: Callable[[str, AbstractContextManager[Any]], Any]) -> ClusterNode:
    return until_left("node", LocalCluster(nodes=1)).nodes[0]


@pytest.fixture
def called(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Qq:
    """Call a command in this process; that it waits is not told, however slow the machine is."""
    monkeypatch.setattr(progress, "NOTICE_S", 60.0)

    def called(*arguments: str) -> Said:
        capfd.readouterr()
        status = main(arguments)
        return Said(status, *capfd.readouterr())

    return called


@pytest.fixture
def qq(real_node: ClusterNode, called: Qq, monkeypatch: pytest.MonkeyPatch) -> Qq:
    """Call a command that asks the real node."""
    monkeypatch.setenv("QQ_URL", f"127.0.0.1:{real_node.http_port}")
    return called
