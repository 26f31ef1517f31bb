"""Error conditions of AMQP 1.0 (section 2.8.14 and on), and the exceptions that carry them.

Invariant: input of a client raises `ConditionError` and no other exception in this package.
"""

from __future__ import annotations

from enum import Enum


class Condition(Enum):
    """A symbol that names an error on the wire."""

    DECODE_ERROR = "amqp:decode-error"
    INVALID_FIELD = "amqp:invalid-field"
    FRAMING_ERROR = "amqp:connection:framing-error"


class ConditionError(Exception):
    """An error for the client: a condition, and a description for people."""

    condition = Condition.DECODE_ERROR

    def __init__(self, description: str) -> None:
        self.description = description
        super().__init__(f"{self.condition.value}: {description}")


class UndecodableValue(ConditionError):
    """Octets that are no value, or a value of another type than the field has."""


class InvalidFieldValue(ConditionError):
    """A value that the type of the field allows and the protocol forbids, or a missing mandatory field."""

    condition = Condition.INVALID_FIELD


class BadFrame(ConditionError):
    """Octets that are no frame, or a frame that the peer must not send."""

    condition = Condition.FRAMING_ERROR
