"""qq: a message broker for AMQP 0-9-1 with queues that Raft replicates.

ARCHITECTURE.md has a map of the packages.
"""

__version__ = "0.2.0"
