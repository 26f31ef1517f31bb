"""Snapshots for followers that are too far behind, backups, and new clusters from a backup or a survivor's log."""
