"""Oracles: which promises a run must keep."""
