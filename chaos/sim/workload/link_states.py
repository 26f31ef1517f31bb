"""The states of links in the octets of an AMQP 1.0 connection: requested by the client, and sent by the node.

Proton never sets `echo`, and hides the flows of the node. So this module sets `echo` in flows on their way out, and
reads flows on their way in.

Invariant: a state of the node stands behind the deliveries that it counts, and its credit follows from a flow of the
client. A later state never follows from an earlier flow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import proton

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

ATTACH, FLOW, TRANSFER, DETACH = 0x12, 0x13, 0x14, 0x16
_NAME, _HANDLE, _IS_RECEIVER = 0, 1, 2
"""Fields of an attach."""
_FLOW_HANDLE, _DELIVERY_COUNT, _CREDIT, _DRAIN, _ECHO = 4, 5, 6, 8, 9
"""Fields of a flow."""
_FIELDS_MAX = 14
_MORE = 5
"""A field of a transfer."""
_AMQP_HEADER, _HEADER_OCTETS = b"AMQP", 8
_SASL = 1
ECHOES = 0.3
"""Share of the flows that request the state of their link."""


@dataclass(slots=True)
class _ReceivingLink:
    name: str
    received: int = 0
    """Deliveries that have arrived completely."""
    drained: int = 0
    """Credit that the node has taken back."""
    limits: list[int] = field(default_factory=lambda: [0])
    """The delivery-count at which the client's credit ends, by each of its flows."""
    told: int = 0
    """Number of the first flow from which the last state may follow."""
    asked: int = 0
    """Number of the last flow with a request for the state; 0 after the answer."""


class _Frames:
    """Divides the octets of a direction into frames."""

    def __init__(self) -> None:
        self._octets = b""

    def take(self, octets: bytes) -> Iterator[bytes]:
        """Yield complete frames, and the headers of the protocol."""
        octets = self._octets + octets
        at = 0
        while len(octets) - at >= _HEADER_OCTETS:
            is_header = octets.startswith(_AMQP_HEADER, at)
            end = at + (_HEADER_OCTETS if is_header else int.from_bytes(octets[at : at + 4]))
            if end > len(octets):
                break
            yield octets[at:end]
            at = end
        self._octets = octets[at:]


class LinkStates:
    """The links of a connection on which the client receives, as its octets show them."""

    def __init__(self, random: Random, fail: Callable[[str], None]) -> None:
        self._random = random
        self._fail = fail
        self._sent, self._received = _Frames(), _Frames()
        self._by_name: dict[str, _ReceivingLink] = {}
        self._ours: dict[int, _ReceivingLink] = {}
        self._theirs: dict[int, _ReceivingLink] = {}
        """Links by the handles of the client, and by those of the node."""

    @property
    def awaited(self) -> list[str]:
        """The links that owe the client their state."""
        return [link.name for link in self._ours.values() if link.asked]

    def send(self, octets: bytes) -> bytes:
        """Return the octets of the engine, with `echo` in some flows."""
        return b"".join(self._asking(frame) for frame in self._sent.take(octets))

    def _asking(self, frame: bytes) -> bytes:
        code, fields = _performative(frame)
        if code == ATTACH and fields[_IS_RECEIVER]:
            link = _ReceivingLink(fields[_NAME])
            self._by_name[link.name] = self._ours[fields[_HANDLE]] = link
        elif code == DETACH:
            self._ours.pop(fields[0], None)
        elif code == FLOW and (link := self._ours.get(fields[_FLOW_HANDLE])) is not None:
            if fields[_CREDIT] is not None:
                link.limits.append((fields[_DELIVERY_COUNT] or 0) + fields[_CREDIT])
            if self._random.random() < ECHOES:
                link.asked = len(link.limits) - 1
                return _with_echo(frame, fields)
        return frame

    def receive(self, octets: bytes) -> None:
        """Check the states in octets of the node."""
        for frame in self._received.take(octets):
            code, fields = _performative(frame)
            if code == ATTACH and not fields[_IS_RECEIVER]:
                self._theirs[fields[_HANDLE]] = self._by_name[fields[_NAME]]
            elif code == DETACH:
                self._theirs.pop(fields[0], None)
            elif code == TRANSFER and not fields[_MORE]:
                self._theirs[fields[0]].received += 1
            elif code == FLOW and (link := self._theirs.get(fields[_FLOW_HANDLE])) is not None:
                self._check(
                    link, int(fields[_DELIVERY_COUNT]), int(fields[_CREDIT]), is_drain=bool(fields[_DRAIN])
                )

    def _check(self, link: _ReceivingLink, delivery_count: int, credit: int, *, is_drain: bool) -> None:
        if is_drain and not credit:
            link.drained = max(link.drained, delivery_count - link.received)
        numbers = [
            number
            for number, limit in enumerate(link.limits)
            if number >= link.told and credit == max(0, limit - delivery_count)
        ]
        if delivery_count != link.received + link.drained or not numbers:
            self._fail(
                f"is told that {link.name} has credit {credit} and delivery-count {delivery_count}, behind "
                f"{link.received} deliveries and {link.drained} drained, with limits {link.limits[link.told :]}"
            )
            return
        link.told = numbers[0]
        if link.asked <= numbers[-1]:
            link.asked = 0


def _performative(frame: bytes) -> tuple[int, list[Any]]:
    """Return the code and the fields of a frame; an absent field is `None`. The code is 0 for the login."""
    if frame.startswith(_AMQP_HEADER) or frame[5] == _SASL or len(frame) <= _HEADER_OCTETS:
        return 0, []
    data = proton.Data()
    data.decode(frame[4 * frame[4] :])
    data.rewind()
    data.next()
    described: Any = data.get_py_described()
    return int(described.descriptor), [*described.value, *[None] * _FIELDS_MAX]


def _with_echo(frame: bytes, fields: list[Any]) -> bytes:
    """Return the frame of a flow with `echo`."""
    data = proton.Data()
    data.put_py_described(proton.Described(proton.ulong(FLOW), [*fields[:_ECHO], True]))
    octets = frame[4:_HEADER_OCTETS] + bytes(data.encode())
    return (4 + len(octets)).to_bytes(4) + octets
