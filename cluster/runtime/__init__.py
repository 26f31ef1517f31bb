"""What the cluster asks of its surroundings: clock, timers, randomness and disk as ports, and asyncio and files behind
them.
"""
