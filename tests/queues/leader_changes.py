"""Marks that choose the leader changes in the middle of a test. Default: a handover, and no change (a long test)."""

from __future__ import annotations

import pytest

from tests.harness.long_cases import cases

CHANGES = cases(["quiet", "handover"], lambda change: change == "handover")
"""Without a change of the leader, tests find few faults that they do not find with a change."""
QUIET = pytest.mark.parametrize("world", ["quiet"], indirect=True)
"""For tests of behaviour in which the leader has no part."""
KILLED = pytest.mark.parametrize("world", ["kill"], indirect=True)
ALSO_KILLED = pytest.mark.parametrize("world", [*CHANGES, "kill"], indirect=True)
KILLED_IF_LONG = pytest.mark.parametrize(
    "world", [*CHANGES, pytest.param("kill", marks=pytest.mark.long)], indirect=True
)
"""For tests on which a killed leader has the same effect as a transfer. Tests of confirmed or unacknowledged messages
have `ALSO_KILLED`."""
