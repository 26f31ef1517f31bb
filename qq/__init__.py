"""qq: a message broker whose queues are replicated by Raft and spoken to in AMQP 0-9-1.

ARCHITECTURE.md says which package does what.
"""

__version__ = "0.2.0"
