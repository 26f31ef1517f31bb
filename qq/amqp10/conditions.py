"""Error conditions of AMQP 1.0 (section 2.8.14 and on), and the exceptions that carry them.

Invariant: input of a client raises `ConditionError` and no other exception in this package.
"""

from __future__ import annotations

from enum import Enum


class Condition(Enum):
    """A symbol that names an error on the wire."""

    DECODE_ERROR = "amqp:decode-error"
    INVALID_FIELD = "amqp:invalid-field"
    ILLEGAL_STATE = "amqp:illegal-state"
    UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"
    NOT_ALLOWED = "amqp:not-allowed"
    NOT_IMPLEMENTED = "amqp:not-implemented"
    NOT_FOUND = "amqp:not-found"
    RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
    RESOURCE_LOCKED = "amqp:resource-locked"
    RESOURCE_DELETED = "amqp:resource-deleted"
    PRECONDITION_FAILED = "amqp:precondition-failed"
    INTERNAL_ERROR = "amqp:internal-error"
    FRAME_SIZE_TOO_SMALL = "amqp:frame-size-too-small"
    FRAMING_ERROR = "amqp:connection:framing-error"
    WINDOW_VIOLATION = "amqp:session:window-violation"
    HANDLE_IN_USE = "amqp:session:handle-in-use"
    UNATTACHED_HANDLE = "amqp:session:unattached-handle"
    TRANSFER_LIMIT_EXCEEDED = "amqp:link:transfer-limit-exceeded"
    MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"


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


class EngineError(ConditionError):
    """An error in the order or in the numbers of valid frames."""

    def __init__(self, condition: Condition, description: str) -> None:
        self.condition = condition
        super().__init__(description)


class ConnectionFailure(EngineError):
    """An error that closes the connection."""


class SessionFailure(EngineError):
    """An error that ends the session."""


class LinkFailure(EngineError):
    """An error that detaches the link."""
