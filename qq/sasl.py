"""Responses of clients to mechanisms of SASL: the user and the password in them. Pure."""

from __future__ import annotations

from struct import error as StructError  # noqa: N812  # an exception, whatever its name

from qq.stored.fields import FieldError, decode_table


class BadResponse(ValueError):
    """A response that does not hold a user and a password; the text is for the client."""


def plain(response: bytes) -> tuple[str, bytes]:
    """Parse the response of PLAIN (RFC 4616), without an authorization identity. Raises BadResponse."""
    parts = response.split(b"\x00")
    if len(parts) != 3 or parts[0]:
        raise BadResponse("response invalid")
    return _user(parts[1]), parts[2]


def amqplain(response: bytes) -> tuple[str, bytes]:
    """Parse the response of AMQPLAIN: a field table without its length. Raises BadResponse."""
    try:
        table, _ = decode_table(len(response).to_bytes(4, "big") + response, 0, len(response) + 4)
    except (FieldError, IndexError, StructError):
        raise BadResponse("response invalid") from None
    user, password = table.get("LOGIN"), table.get("PASSWORD")
    if not isinstance(user, str | bytes) or not isinstance(password, str | bytes):
        raise BadResponse("AMQPLAIN auth info is missing LOGIN or PASSWORD field")
    return _user(octets(user)), octets(password)


def octets(text: str | bytes | None) -> bytes:
    """Return the octets of a long string, which decoding turns into text where it can."""
    return (text or "").encode() if not isinstance(text, bytes) else text


def _user(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise BadResponse("the user name is not UTF-8") from None


PARSERS = {"PLAIN": plain, "AMQPLAIN": amqplain}
"""By the names of the mechanisms that tell a user and a password."""
