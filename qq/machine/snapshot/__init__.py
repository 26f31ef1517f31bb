"""Snapshots: the whole state, frozen, dumped as rows, and loaded."""
