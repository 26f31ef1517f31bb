"""Replicated state machines over pysyncobj: the log, its durability, the peers, exactly-once submission.

Knows bytes, indexes and terms; has never heard of AMQP or of queues. Imports nothing from ``qq``.
"""
