"""Where a node has the files of a group, as all know it who look for them, with no more than their names."""

from __future__ import annotations

GROUPS = "groups"
"""In a node's data directory, the directory with those of its groups."""
REMOVED = "removed"
"""In a group's directory, the file that is there if the node has heard that its cluster has removed it."""


def group_path(group_id: int) -> str:
    """The directory of a group, in a node's data directory."""
    return f"{GROUPS}/{group_id}"
