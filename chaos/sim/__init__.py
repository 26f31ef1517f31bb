"""Deterministic simulator of a cluster: disks, links, clocks and randomness that fail on purpose.

Implements the ports of `cluster`; the same seed gives the same run.
"""
