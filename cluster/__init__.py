"""Replicate a deterministic state machine over Raft (pysyncobj): log, durability, peers, exactly-once submission.

The package handles bytes, indexes and terms. It knows neither AMQP nor queues, and imports no module of ``qq``.
"""
