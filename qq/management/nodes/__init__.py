"""Nodes and members of the cluster: reports, changes, leadership, maintenance, backups, diagnosis."""
