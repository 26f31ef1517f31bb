"""Ports for time, timers, randomness and the disk, and their implementation with asyncio and files.

Beside them the parts that know no node: histograms of durations, fair queues.
"""
