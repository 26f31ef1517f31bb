"""Messages of AMQP 1.0 by Qpid Proton: those of random form for a node, and those that a node delivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import proton

if TYPE_CHECKING:
    from random import Random

LARGE_BYTES = 20_000
HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS = 0x70, 0x71, 0x72
"""Descriptors of the sections before the bare message."""
_DATA = b"\x00\x53\x75\xb0"
_VALUE = b"\x00\x53\x77"
_FOOTER = b"\x00\x53\x78\xc1\x08\x02\xa3\x03x-f\x54\x07"


class Sections(NamedTuple):
    """A message of AMQP 1.0 on its way to or from a node."""

    head: bytes
    """The header and the annotations, which belong to the nodes on the way."""
    bare: bytes
    """The bare message and the footer."""

    @property
    def octets(self) -> bytes:
        return self.head + self.bare

    def decoded(self) -> proton.Message:
        message = proton.Message()
        message.decode(self.octets)
        return message


def split(octets: bytes) -> Sections:
    """Split a delivered message at its bare message."""
    at = 0
    while octets[at + 2] in (HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS):
        at += proton.Data().decode(octets[at:])
    return Sections(octets[:at], octets[at:])


class Written(NamedTuple):
    """A message for a node, and the body that a consumer of AMQP 0-9-1 gets."""

    sections: Sections
    body: bytes


def write(ident: str, priority: int, address: str | None, random: Random) -> Written:
    """Write a message with a body of random form; `address` is its `to`."""
    size = LARGE_BYTES if random.random() < 0.03 else random.choice((0, 0, 700))
    text = f"{ident} ".ljust(size, ".")
    message = proton.Message(text.encode(), inferred=True)
    message.durable, message.priority = random.random() < 0.9, priority
    if address is not None:
        message.address = address
    if random.random() < 0.3:
        message.id = ident
    if random.random() < 0.2:
        message.correlation_id = proton.ulong(random.randrange(2**40))
        message.properties = {"number": random.randrange(100), "text": "ä"}
    if random.random() < 0.2:
        message.annotations = {proton.symbol("x-note"): random.randrange(3)}
    body, form = text.encode(), random.random()
    if form < 0.7:
        octets = message.encode()
    elif form < 0.85:
        more = random.randbytes(random.randrange(300))
        octets, body = message.encode() + _DATA + len(more).to_bytes(4, "big") + more, body + more
    else:
        message.body, message.inferred = text, False
        octets = message.encode()
        body = octets[octets.index(_VALUE) :]
    if random.random() < 0.1:
        octets += _FOOTER
        body += _FOOTER if form >= 0.85 else b""
    return Written(split(octets), body)
