"""Names of the files and directories of a group, for modules that need only the names."""

from __future__ import annotations

GROUPS = "groups"
"""Directory with the directories of the groups, in a node's data directory."""
REMOVED = "removed"
"""File in a group's directory that marks the node as removed from its cluster."""


def group_path(group_id: int) -> str:
    """Return the path of a group's directory, relative to a node's data directory."""
    return f"{GROUPS}/{group_id}"
