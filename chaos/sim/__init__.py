"""The cluster's outside world under a seed: disks, links, clock and randomness that fail on purpose.

Implements the ports of `cluster`; the same seed gives the same run.
"""
