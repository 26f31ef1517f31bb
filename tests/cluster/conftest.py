"""Clusters that tests of several packages use; a module may define its own fixture of the same name."""

from __future__ import annotations

import pytest

from tests.cluster.harness import Growing, Trio


@pytest.fixture
def trio() -> Trio:
    return Trio()


@pytest.fixture
def growing() -> Growing:
    growing = Growing()
    growing.start()
    growing.until(lambda: growing.agrees("abc"))
    growing.pass_ms(2_000)  # everybody has told how it is
    return growing
