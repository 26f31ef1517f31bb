"""The types of queues."""

from __future__ import annotations

CLASSIC = "classic"
QUORUM = "quorum"

MODULES = {CLASSIC: "rabbit_classic_queue", QUORUM: "rabbit_quorum_queue"}
"""The name of each queue type in RabbitMQ's texts."""
