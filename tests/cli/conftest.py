"""Ports for nodes that `qq up` starts."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from qq.testing import _reserve_ports

if TYPE_CHECKING:
    from collections.abc import Generator


@pytest.fixture
def base_port() -> Generator[int]:
    """The first of the ports of five nodes, which no other test has."""
    with ExitStack() as cleanup:
        yield _reserve_ports(5, cleanup)
