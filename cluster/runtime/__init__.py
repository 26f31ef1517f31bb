"""Ports for time, timers, randomness and the disk, and their implementation with asyncio and files."""
