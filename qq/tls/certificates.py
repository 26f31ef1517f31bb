"""The dates of validity of certificates in PEM files.

Invariant: for any contents of a file, the result is either dates or a reason.
"""

from __future__ import annotations

import re
from base64 import b64decode
from datetime import UTC, datetime
from typing import NamedTuple

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0
_BEFORE_VALIDITY = 3
"""The serial number, the algorithm and the issuer come before the dates; before these comes the version, if present."""
_CENTURY_BEGINS = 50
"""Two digits of a year below this are of the 21st century (RFC 5280, 4.1.2.5.1)."""


class InvalidCertificate(ValueError):
    """The bytes are no certificate."""


class Validity(NamedTuple):
    """The first and the last moment at which a certificate is valid."""

    begins: datetime
    ends: datetime


def validities(pem: bytes) -> list[Validity]:
    """Return the dates of all certificates in a PEM file. Raises InvalidCertificate, also if it has no certificate."""
    blocks = _CERTIFICATE.findall(pem)
    if not blocks:
        raise InvalidCertificate("there is no certificate in it")
    return [_validity(block) for block in blocks]


def _validity(block: bytes) -> Validity:
    try:
        [(kind, certificate), *_] = _parts(b64decode(block))
        (_, signed), *_ = _parts(certificate)
        parts = _parts(signed)
        if parts[0][0] == _VERSION:
            del parts[0]
        dates = _parts(parts[_BEFORE_VALIDITY][1])
        if kind != _SEQUENCE:
            raise InvalidCertificate("it is none")
        begins, ends = (_time(kind, text) for kind, text in dates)
    except (ValueError, IndexError) as error:
        raise InvalidCertificate("a certificate in it cannot be read") from error
    return Validity(begins, ends)


def _parts(octets: bytes) -> list[tuple[int, bytes]]:
    """Return the successive DER values, each with its tag. Raises IndexError if a value is cut short."""
    found: list[tuple[int, bytes]] = []
    place = 0
    while place < len(octets):
        tag, length = octets[place], octets[place + 1]
        place += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(octets[place : place + size])
            place += size
        if place + length > len(octets):
            raise IndexError
        found.append((tag, octets[place : place + length]))
        place += length
    return found


def _time(kind: int, text: bytes) -> datetime:
    digits = text.decode("ascii")
    if kind == _UTC_TIME:
        digits = ("20" if int(digits[:2]) < _CENTURY_BEGINS else "19") + digits
    elif kind != _GENERALIZED_TIME:
        raise ValueError("no time")
    return datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
