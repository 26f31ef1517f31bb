"""A cluster behind proxies for all tests that leave it intact, and its event loop."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from chaos.live.cluster import LiveCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager
    from pathlib import Path

# A few hundred messages leave segments and checkpoints behind.
LIMITS = {
    "segment_bytes": 20_000,
    "checkpoint_entries": 100,
    "checkpoint_bytes": 20_000,
    "retained_bytes": 50_000,
}


@pytest.fixture(scope="session")
def runner() -> Generator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def cluster(
    runner: asyncio.Runner,
    tmp_path_factory: pytest.TempPathFactory,
    until_left: Callable[[str, AbstractContextManager[Any]], Any],
) -> LiveCluster:
    return until_left("cluster", _entered(runner, tmp_path_factory.mktemp("live")))


@contextmanager
def _entered(runner: asyncio.Runner, directory: Path) -> Generator[LiveCluster]:
    cluster = LiveCluster(directory, limits=LIMITS)
    runner.run(cluster.__aenter__())
    try:
        yield cluster
    finally:
        runner.run(cluster.__aexit__())
