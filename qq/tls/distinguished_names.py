"""Distinguished names of certificates as text, written as in RFC 4514 and as in RabbitMQ."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHORT_NAMES = {
    "surname": "SN",
    "givenName": "GIVENNAME",
    "initials": "INITIALS",
    "generationQualifier": "GENERATIONQUALIFIER",
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "title": "TITLE",
    "countryName": "C",
    "serialNumber": "SERIALNUMBER",
    "pseudonym": "PSEUDONYM",
    "domainComponent": "DC",
    "emailAddress": "EMAILADDRESS",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""RabbitMQ's names of the attributes of a certificate, by OpenSSL's."""


def distinguished_name(name: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Write a name from `SSLSocket.getpeercert` as text; "" if it has no parts."""
    relatives = [
        "+".join(f"{_SHORT_NAMES.get(kind, kind)}={_escaped(value)}" for kind, value in relative)
        for relative in name
    ]
    return ",".join(reversed(relatives))


def _escaped(value: str) -> str:
    """Escape a value as RFC 4514 (2.4) says, and bytes outside of printable ASCII in hexadecimal, as RabbitMQ does."""
    octets = value.encode()
    last = len(octets) - 1
    return "".join(_escaped_octet(octet, at == 0, at == last) for at, octet in enumerate(octets))


def _escaped_octet(octet: int, is_first: bool, is_last: bool) -> str:
    character = chr(octet)
    if (is_first and character in " #") or (is_last and character == " ") or character in '"+,;<>\\':
        return "\\" + character
    if octet < 32 or octet >= 126:
        return f"\\{octet:02X}"
    return character
