"""Errors of requests to management."""

from __future__ import annotations

NOT_CARRIED_OUT = "not carried out"
UNKNOWN = "outcome unknown: it may still be carried out"
"""Known outcome of an abandoned request, at the end of the text of `Unavailable`."""


class Unavailable(Exception):
    """A change was not applied in time, and may still be applied; or a login could not be decided."""


class PublishersWait(Unavailable):
    """An alarm, or a limit of publishing (`is_limited`), holds up a request, so the client should try again later."""

    def __init__(self, text: str, retry_after_s: float, *, is_limited: bool) -> None:
        self.retry_after_s = retry_after_s
        self.is_limited = is_limited
        super().__init__(text)


class LoginThrottled(Exception):
    """Too many logins fail at the moment, so the client should try again later."""

    def __init__(self, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        super().__init__("too many logins fail")


class RequestRefused(Exception):
    """The broker refuses a request, as it would refuse an AMQP client, with an AMQP reply code."""

    def __init__(self, code: int, explanation: str, done: int = 0) -> None:
        """`done` is the number of commands of the request that were carried out."""
        self.code = code
        self.explanation = explanation
        self.done = done
        super().__init__(explanation)


class PublicationRejected(Exception):
    """A message had no room in a queue, and was published to no queue."""
