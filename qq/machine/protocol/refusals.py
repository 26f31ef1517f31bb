"""Refusals of commands: the AMQP reply codes and RabbitMQ's texts, which clients and their tests rely on.

Invariant: a refusal changes no state, because it is raised before the first change.
"""

from __future__ import annotations

NO_ROUTE = 312
CONNECTION_FORCED = 320


class Refused(Exception):
    """The command cannot be carried out: an AMQP reply code, and a text for the client."""

    def __init__(self, code: int, explanation: str) -> None:
        super().__init__(explanation)
        self.code = code
        self.text = explanation


def the_queue(name: str, vhost: str) -> str:
    return f"queue '{name}' in vhost '{vhost}'"


def the_exchange(name: str, vhost: str) -> str:
    return f"exchange '{name}' in vhost '{vhost}'"


def access_refused(explanation: str) -> Refused:
    return Refused(403, explanation)


def not_found(thing: str) -> Refused:
    return Refused(404, f"no {thing}")


def locked(queue: str) -> Refused:
    """Return the refusal for a queue that belongs to a different connection; `queue` is a result of `the_queue`."""
    return Refused(
        405,
        f"cannot obtain exclusive access to locked {queue}. It could be originally declared on another "
        "connection or the exclusive property value does not match that of the original declaration.",
    )


def no_access(explanation: str) -> Refused:
    return Refused(405, explanation)


def precondition_failed(explanation: str) -> Refused:
    return Refused(406, explanation)


def not_allowed(explanation: str) -> Refused:
    return Refused(530, explanation)


def not_implemented(explanation: str) -> Refused:
    return Refused(540, explanation)


def internal_error(explanation: str) -> Refused:
    return Refused(541, explanation)
