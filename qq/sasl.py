"""The credentials in responses of SASL mechanisms, for every client protocol.

Invariant: an error text holds no part of a response, which may be a password.
"""

from __future__ import annotations

from qq.stored.fields import FieldError, StructError, decode_table

EXTERNAL = "EXTERNAL"
"""The mechanism by which a client has the name in its certificate (RFC 4422, appendix A)."""
_PLAIN_PARTS = 3


class InvalidResponse(Exception):
    """A response that does not have the form of its mechanism."""


def plain(response: bytes) -> tuple[str, bytes]:
    """Return user name and password of a response of PLAIN (RFC 4616), without an authorization identity.

    Raises InvalidResponse.
    """
    parts = response.split(b"\x00")
    if len(parts) != _PLAIN_PARTS or parts[0]:
        raise InvalidResponse("response invalid")
    return _user(parts[1]), parts[2]


def amqplain(response: bytes) -> tuple[str, bytes]:
    """Return user name and password of a response of AMQPLAIN: a field table without its length.

    Raises InvalidResponse.
    """
    try:
        table, _ = decode_table(len(response).to_bytes(4, "big") + response, 0, len(response) + 4)
    except (FieldError, IndexError, StructError):
        raise InvalidResponse("response invalid") from None
    user, password = table.get("LOGIN"), table.get("PASSWORD")
    if not isinstance(user, str | bytes) or not isinstance(password, str | bytes):
        raise InvalidResponse("AMQPLAIN auth info is missing LOGIN or PASSWORD field")
    return _user(_octets(user)), _octets(password)


PASSWORD_MECHANISMS = {"PLAIN": plain, "AMQPLAIN": amqplain}
"""The mechanisms whose responses hold a password, with the function that parses a response."""


def _user(octets: bytes) -> str:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        raise InvalidResponse("the user name is not UTF-8") from None


def _octets(text: str | bytes) -> bytes:
    """Return the octets of a long string, which decoding turns into text where it can."""
    return text if isinstance(text, bytes) else text.encode()
