"""What happens to the leader in the middle of a test; without one of these: nothing, and a handover."""

from __future__ import annotations

import pytest

QUIET = pytest.mark.parametrize("world", ["quiet"], indirect=True)
"""For what a leader has no part in."""
KILLED = pytest.mark.parametrize("world", ["kill"], indirect=True)
ALSO_KILLED = pytest.mark.parametrize("world", ["quiet", "handover", "kill"], indirect=True)
