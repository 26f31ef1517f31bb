"""Snapshots between nodes, backups, and new clusters that begin with one."""
