"""What is told of a shovel that this node carries out.

Invariant: nothing of it is secret.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Report(NamedTuple):
    """The state of a shovel."""

    state: str
    reason: str | None
    """Why it does not run; None if it does, or will in a moment."""
    figures: dict[str, Any]
    """How many messages it has forwarded and how many are left, by RabbitMQ's names."""


RUNNING, BLOCKED, TERMINATED = "running", "blocked", "terminated"
STARTING = Report("starting", None, {})
