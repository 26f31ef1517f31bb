"""Checks and decodes the arguments of AMQP methods.

Invariant: the input is treated as hostile. Every length is checked, and the work is linear in the length of the input.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812  # the name says nothing without its module
from typing import TYPE_CHECKING, Any, NamedTuple

from pamqp import commands

from qq.amqp.access import AccessRequest
from qq.errors import ChannelError, ConnectionFault, ReplyCode
from qq.octets import text_of
from qq.stored.fields import FieldError, TableLimitExceeded, decode_table, long_string

if TYPE_CHECKING:
    from collections.abc import Callable

    from pamqp import base

_U16 = Struct(">H")
_U32 = Struct(">I")
_U64 = Struct(">Q")

_CLASS_CONNECTION = 10
UNIMPLEMENTED = "unimplemented method"
"""The error text for a method that the client may not send, or not in this state."""

CLIENT_METHODS: dict[int, type[base.Frame]] = {
    method.index: method
    for method in (
        commands.Connection.StartOk,
        commands.Connection.SecureOk,
        commands.Connection.TuneOk,
        commands.Connection.Open,
        commands.Connection.Close,
        commands.Connection.CloseOk,
        commands.Connection.UpdateSecret,
        commands.Channel.Open,
        commands.Channel.Flow,
        commands.Channel.Close,
        commands.Channel.CloseOk,
        AccessRequest,
        commands.Exchange.Declare,
        commands.Exchange.Delete,
        commands.Exchange.Bind,
        commands.Exchange.Unbind,
        commands.Queue.Declare,
        commands.Queue.Bind,
        commands.Queue.Purge,
        commands.Queue.Delete,
        commands.Queue.Unbind,
        commands.Basic.Qos,
        commands.Basic.Consume,
        commands.Basic.Cancel,
        commands.Basic.CancelOk,
        commands.Basic.Publish,
        commands.Basic.Get,
        commands.Basic.Ack,
        commands.Basic.Reject,
        commands.Basic.Nack,
        commands.Basic.Recover,
        commands.Basic.RecoverAsync,
        commands.Confirm.Select,
        commands.Tx.Select,
        commands.Tx.Commit,
        commands.Tx.Rollback,
    )
}
"""The methods that a client may send. The server answers any other method with 503."""


class PublishArguments(NamedTuple):
    """The arguments of basic.publish."""

    exchange: str
    routing_key: str
    mandatory: bool
    immediate: bool


def decode_method(payload: bytes) -> base.Frame:
    """Decode the payload of a method frame, which must have four octets or more.

    Raises ConnectionFault (502, 503), ChannelError (406).
    """
    index = int.from_bytes(payload[:4], "big")
    cls = CLIENT_METHODS.get(index)
    if cls is None:
        # RabbitMQ's answer to a method that a client may not send. For a method that does not exist, RabbitMQ drops the
        # socket.
        raise ConnectionFault(ReplyCode.COMMAND_INVALID, UNIMPLEMENTED, index >> 16, index & 0xFFFF)
    # Not cls(), because all fields are set below, and pamqp checks or warns in some constructors.
    method = cls.__new__(cls)
    try:
        _arguments(method, payload)
    except TableLimitExceeded as error:
        text = f"{cls.name.lower()}: {error}"
        if index >> 16 == _CLASS_CONNECTION:
            raise ConnectionFault(ReplyCode.SYNTAX_ERROR, text, index >> 16, index & 0xFFFF) from None
        raise ChannelError(ReplyCode.PRECONDITION_FAILED, text, index >> 16, index & 0xFFFF) from None
    except UnicodeDecodeError:
        # RabbitMQ's answer. The codes of other methods than those of connections are not known there.
        at_fault = (index >> 16, index & 0xFFFF) if index >> 16 == _CLASS_CONNECTION else (0, 0)
        raise ConnectionFault(ReplyCode.FRAME_ERROR, "Malformed UTF-8 in shortstr", *at_fault) from None
    except (FieldError, IndexError, StructError) as error:
        text = f"cannot decode {cls.name.lower()}: {error}"
        raise ConnectionFault(ReplyCode.SYNTAX_ERROR, text, index >> 16, index & 0xFFFF) from None
    return method


def decode_publish(payload: bytes) -> PublishArguments:
    """Decode the payload of a basic.publish method frame. Raises ConnectionFault (502)."""
    try:
        # class (2), method (2), reserved (2), exchange, routing key, bits
        key_at = 7 + payload[6]
        bits_at = key_at + 1 + payload[key_at]
        (bits,) = payload[bits_at:]
        exchange, key = text_of(payload[7:key_at]), text_of(payload[key_at + 1 : bits_at])
    except (IndexError, ValueError) as error:
        raise ConnectionFault(
            ReplyCode.SYNTAX_ERROR, f"cannot decode basic.publish: {error}", 60, 40
        ) from None
    return PublishArguments(exchange, key, bits & 1 != 0, bits & 2 != 0)


def _arguments(method: base.Frame, payload: bytes) -> None:
    at, end, bit = 4, len(payload), 0
    for name in method.attributes():
        kind = method.amqp_type(name)
        if kind == "bit":
            setattr(method, name, payload[at] >> bit & 1 == 1)
            bit += 1
            continue
        if bit:
            at, bit = at + 1, 0
        value, at = _ARGUMENTS[kind](payload, at, end)
        setattr(method, name, value)
    if at + (bit > 0) != end:
        raise FieldError("the arguments do not fill the frame")


def _octet(data: bytes, at: int, end: int) -> tuple[int, int]:  # noqa: ARG001  # one shape for all arguments
    return data[at], at + 1


def _short(data: bytes, at: int, end: int) -> tuple[int, int]:  # noqa: ARG001
    return _U16.unpack_from(data, at)[0], at + 2


def _long(data: bytes, at: int, end: int) -> tuple[int, int]:  # noqa: ARG001
    return _U32.unpack_from(data, at)[0], at + 4


def _longlong(data: bytes, at: int, end: int) -> tuple[int, int]:  # noqa: ARG001
    return _U64.unpack_from(data, at)[0], at + 8


def _shortstr(data: bytes, at: int, end: int) -> tuple[str, int]:
    stop = at + 1 + data[at]
    if stop > end:
        raise FieldError("a short string runs over the end")
    return data[at + 1 : stop].decode(), stop


_ARGUMENTS: dict[str, Callable[[bytes, int, int], tuple[Any, int]]] = {
    "octet": _octet,
    "short": _short,
    "long": _long,
    "longlong": _longlong,
    "shortstr": _shortstr,
    "longstr": long_string,
    "table": decode_table,
}
