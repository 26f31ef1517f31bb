"""The state of a shovel that runs on this node, as operators see it.

Invariant: a report contains no secrets.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Report(NamedTuple):
    """The state of a shovel."""

    state: str
    reason: str | None
    """Reason why the shovel has stopped; `None` while it starts or runs."""
    figures: dict[str, Any]
    """Addresses and message counts, by RabbitMQ's names."""


RUNNING, BLOCKED, TERMINATED = "running", "blocked", "terminated"
STARTING = Report("starting", None, {})
