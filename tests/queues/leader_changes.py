"""Marks that choose the leader changes in the middle of a test. Default: a handover, and no change (a long test)."""

from __future__ import annotations

import pytest

from tests.harness.long_cases import cases

CHANGES = cases(["quiet", "handover"], lambda change: change == "handover")
"""A cluster in which nothing happens shows little that one does not in which leadership is handed over."""
QUIET = pytest.mark.parametrize("world", ["quiet"], indirect=True)
"""For what a leader has no part in."""
KILLED = pytest.mark.parametrize("world", ["kill"], indirect=True)
ALSO_KILLED = pytest.mark.parametrize("world", [*CHANGES, "kill"], indirect=True)
KILLED_IF_LONG = pytest.mark.parametrize(
    "world", [*CHANGES, pytest.param("kill", marks=pytest.mark.long)], indirect=True
)
"""For what a node that dies takes no more of than one that hands over; what is confirmed or held is `ALSO_KILLED`."""
