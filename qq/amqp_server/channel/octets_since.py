"""The gate for octets that are not UTF-8, until the cluster has agreed on a version whose nodes can all carry them.

Invariant: before `OCTETS_SINCE` of the state, no routing key and no field name in the log has such octets. Nodes of
older programs could neither deliver them nor match them as newer nodes do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qq.amqp.fields import decode_publish
from qq.amqp.framing import Method, Publishes
from qq.errors import ConnectionFault, ReplyCode
from qq.machine.protocol.versions import OCTETS_SINCE
from qq.octets import is_utf8
from qq.stored import layout
from qq.stored.fields import decode_table

if TYPE_CHECKING:
    from qq.amqp_server.channel.method_queue import Event


def check_octets(event: Event, version: int) -> None:
    """Raise ConnectionFault if an event has octets that the agreed version of the state does not allow."""
    if version >= OCTETS_SINCE:
        return
    match event:
        case Method(frame=frame):
            has_octets = not _is_text(getattr(frame, "arguments", None))
        case Publishes():
            key = decode_publish(event.method).routing_key
            has_octets = not is_utf8(key) or any(map(_has_octets, event.messages))
        case _:
            return
    if has_octets:
        text = f"octets that are not UTF-8 need version {OCTETS_SINCE} of the state; the cluster has version {version}"
        raise ConnectionFault(ReplyCode.SYNTAX_ERROR, text)


def _has_octets(message: bytes) -> bool:
    if not layout.flags(message) & layout.HEADERS:
        return False
    headers, _ = decode_table(message, layout.place(message, layout.HEADERS), len(message))
    keys = [key for name in ("CC", "BCC") if isinstance(found := headers.get(name), list) for key in found]
    return not _is_text(headers) or any(isinstance(key, bytes) for key in keys)


def _is_text(value: Any) -> bool:
    match value:
        case dict():
            return all(is_utf8(name) and _is_text(item) for name, item in value.items())
        case list():
            return all(map(_is_text, value))
        case _:
            return True
