"""Why a command is refused: AMQP 0-9-1 codes with RabbitMQ's texts, which clients and their tests know.

Law: a refusal changes nothing; it is raised before the first change.
"""

from __future__ import annotations

VHOST = "/"

NO_ROUTE = 312

_NAMES = {
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    530: "NOT_ALLOWED",
    541: "INTERNAL_ERROR",
}


class Refused(Exception):
    """The command cannot be carried out; `text` is for the client."""

    def __init__(self, code: int, explanation: str) -> None:
        super().__init__(explanation)
        self.code = code
        self.text = f"{_NAMES[code]} - {explanation}"


def the_queue(name: str) -> str:
    return f"queue '{name}' in vhost '{VHOST}'"


def the_exchange(name: str) -> str:
    return f"exchange '{name}' in vhost '{VHOST}'"


def access_refused(explanation: str) -> Refused:
    return Refused(403, explanation)


def not_found(thing: str) -> Refused:
    return Refused(404, f"no {thing}")


def locked(queue: str) -> Refused:
    return Refused(
        405,
        f"cannot obtain exclusive access to locked {the_queue(queue)}. It could be originally declared on another "
        "connection or the exclusive property value does not match that of the original declaration.",
    )


def no_access(explanation: str) -> Refused:
    return Refused(405, explanation)


def precondition_failed(explanation: str) -> Refused:
    return Refused(406, explanation)


def not_allowed(explanation: str) -> Refused:
    return Refused(530, explanation)


def internal_error(explanation: str) -> Refused:
    return Refused(541, explanation)
