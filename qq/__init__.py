"""qq: a message broker for AMQP 0-9-1 whose queues are replicated by Raft.

ARCHITECTURE.md has a map of the packages.
"""

__version__ = "0.2.0"
