"""Errors of the broker as conditions of AMQP 1.0 (section 2.8.14 and on), as RabbitMQ 4 answers them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from qq.amqp10.conditions import Condition
from qq.amqp10.performatives import ErrorReply
from qq.errors import ConnectionFault, ReplyCode

if TYPE_CHECKING:
    from qq.amqp10.conditions import ConditionError

_CONDITIONS = {
    ReplyCode.ACCESS_REFUSED: Condition.UNAUTHORIZED_ACCESS,
    ReplyCode.CONTENT_TOO_LARGE: Condition.MESSAGE_SIZE_EXCEEDED,
    ReplyCode.NOT_ALLOWED: Condition.NOT_ALLOWED,
    ReplyCode.NOT_FOUND: Condition.NOT_FOUND,
    ReplyCode.NOT_IMPLEMENTED: Condition.NOT_IMPLEMENTED,
    ReplyCode.PRECONDITION_FAILED: Condition.PRECONDITION_FAILED,
    ReplyCode.RESOURCE_ERROR: Condition.RESOURCE_LIMIT_EXCEEDED,
    ReplyCode.RESOURCE_LOCKED: Condition.RESOURCE_LOCKED,
}


class ConditionFault(ConnectionFault):
    """An error with a condition of AMQP 1.0, which closes the connection or refuses a link."""

    def __init__(self, reply: ErrorReply) -> None:
        super().__init__(ReplyCode.INTERNAL_ERROR, reply.description or reply.condition)
        self.reply = reply

    def __str__(self) -> str:
        """Return the text for the node's log: the condition in place of the reply code."""
        return f"{self.reply.condition} - {self.text.removeprefix(f'{self.code.name} - ')}"


class LinkRefusal(NamedTuple):
    """The reason for refusing a request of a client."""

    error: ErrorReply
    ends_session: bool = False
    """Whether the session ends, and not only the link: the user lacks a permission."""


def error_reply(condition: Condition, text: str) -> ErrorReply:
    return ErrorReply(condition.value, text)


def error_of(code: int, text: str) -> ErrorReply:
    """Return the error for a reply code of AMQP 0-9-1."""
    return error_reply(_CONDITIONS.get(ReplyCode(code), Condition.INTERNAL_ERROR), text)


def reply_to(error: ConditionError) -> ErrorReply:
    """Return the error for a client's mistake."""
    return error_reply(error.condition, error.description)


def refusal_of(code: int, text: str) -> LinkRefusal:
    """Return the refusal for a reply code of AMQP 0-9-1."""
    return LinkRefusal(error_of(code, text), ends_session=code == ReplyCode.ACCESS_REFUSED)


def unauthorized(text: str) -> LinkRefusal:
    """Return the refusal for a missing permission."""
    return LinkRefusal(error_reply(Condition.UNAUTHORIZED_ACCESS, text), ends_session=True)
