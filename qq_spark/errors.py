"""Errors of this package."""

from __future__ import annotations


class QueueSourceError(Exception):
    """An option is wrong, a request was refused, or no node answered. The text says what to do."""


class Refusal(QueueSourceError):
    """A node refused a request, and each other node would refuse it, too."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        """Status of the HTTP answer."""

    def __reduce__(self) -> tuple[type[Refusal], tuple[int, str]]:
        return Refusal, (self.status, str(self))
