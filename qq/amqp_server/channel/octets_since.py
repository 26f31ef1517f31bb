"""The gate for octets that are not UTF-8, until the cluster has agreed on a version whose nodes can all carry them.

Invariant: before `OCTETS_SINCE` of the state, no routing key and no field name in the log has such octets. Nodes of
older programs could neither deliver them nor match them as newer nodes do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.amqp.fields import decode_publish
from qq.amqp.framing import Method, Publishes
from qq.errors import ConnectionFault, ReplyCode
from qq.machine.protocol.versions import OCTETS_SINCE, octets_need_version
from qq.octets import is_utf8
from qq.stored import layout
from qq.stored.fields import decode_table
from qq.tables import has_utf8_names

if TYPE_CHECKING:
    from qq.amqp_server.channel.method_queue import Event


def check_octets(event: Event, version: int) -> None:
    """Raise ConnectionFault if an event has octets that the agreed version of the state does not allow."""
    if version >= OCTETS_SINCE:
        return
    match event:
        case Method(frame=frame):
            has_octets = not has_utf8_names(getattr(frame, "arguments", None))
        case Publishes():
            key = decode_publish(event.method).routing_key
            has_octets = not is_utf8(key) or any(map(_has_octets, event.messages))
        case _:
            return
    if has_octets:
        raise ConnectionFault(ReplyCode.SYNTAX_ERROR, octets_need_version(version))


def _has_octets(message: bytes) -> bool:
    if not layout.flags(message) & layout.HEADERS:
        return False
    headers, _ = decode_table(message, layout.place(message, layout.HEADERS), len(message))
    keys = [key for name in ("CC", "BCC") if isinstance(found := headers.get(name), list) for key in found]
    return not has_utf8_names(headers) or any(isinstance(key, bytes) for key in keys)
