"""Errors that several parts of the broker share.

Invariant: an operating error (a port in use, a damaged file) carries a single line for the operator. A broken invariant
is not among these errors, and stops the node with its traceback. An AMQP error is an answer to a client.
"""

from enum import IntEnum

from qq.octets import as_latin


class OperatingError(Exception):
    """An error outside of the program; its text is a single line for the operator."""

    exit_status = 1
    """The exit status of a command that ends with this error."""


class StartError(OperatingError):
    """The node cannot start or cannot go on."""


class CommandError(OperatingError):
    """A command of `qq` cannot be carried out."""


class ReplyCode(IntEnum):
    """The AMQP reply codes; on the wire, a member's name begins the reply text."""

    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541


CHANNEL_REPLIES = frozenset(
    {
        ReplyCode.CONTENT_TOO_LARGE,
        ReplyCode.NO_ROUTE,
        ReplyCode.NO_CONSUMERS,
        ReplyCode.ACCESS_REFUSED,
        ReplyCode.NOT_FOUND,
        ReplyCode.RESOURCE_LOCKED,
        ReplyCode.PRECONDITION_FAILED,
    }
)
"""The codes that close a channel. All other codes close the connection."""

REPLY_TEXT_BYTES_MAX = 255
"""The longest reply text in bytes: it is an AMQP short string."""


class AmqpError(Exception):
    """The contents of channel.close or connection.close for a client: code, text and the method at fault."""

    def __init__(self, code: ReplyCode, explanation: str, class_id: int = 0, method_id: int = 0) -> None:
        self.code = code
        self.text = reply_text(code, explanation)
        self.class_id = class_id
        self.method_id = method_id
        super().__init__(self.text)


class ChannelError(AmqpError):
    """An error that closes the channel; the connection goes on."""


class ConnectionFault(AmqpError):
    """An error that closes the connection."""


def amqp_error(
    code: int, explanation: str, class_id: int = 0, method_id: int = 0
) -> ChannelError | ConnectionFault:
    """Build the error for a reply code: of the channel, or of the connection if the code is a hard error."""
    reply = ReplyCode(code)
    kind = ChannelError if reply in CHANNEL_REPLIES else ConnectionFault
    return kind(reply, explanation, class_id, method_id)


def reply_text(code: int, explanation: str) -> str:
    """Return ``NOT_FOUND - no queue 'q' in vhost '/'``, cut as RabbitMQ cuts it; an existing prefix is kept."""
    prefix = f"{ReplyCode(code).name} - "
    text = as_latin(explanation if explanation.startswith(prefix) else prefix + explanation)
    encoded = text.encode()
    if len(encoded) <= REPLY_TEXT_BYTES_MAX:
        return text
    return encoded[: REPLY_TEXT_BYTES_MAX - 3].decode("utf-8", "ignore") + "..."
