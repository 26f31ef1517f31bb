"""Credentials in responses of SASL mechanisms."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import encode

from qq.sasl import PASSWORD_MECHANISMS, InvalidResponse, amqplain, plain


def table(**fields: str | int) -> bytes:
    return encode.field_table(fields)[4:]


@pytest.mark.parametrize(
    ("parse", "response"),
    [
        (plain, "\0änn\0secret".encode()),
        (amqplain, table(LOGIN="änn", PASSWORD="secret")),
        (amqplain, table(PASSWORD="secret", MORE=7, LOGIN="änn")),
    ],
)
def test_response_has_user_and_password(parse: Callable[[bytes], tuple[str, bytes]], response: bytes) -> None:
    assert parse(response) == ("änn", b"secret")


@pytest.mark.parametrize(
    ("parse", "response", "text"),
    [
        (plain, b"", "response invalid"),
        (plain, b"\0ann", "response invalid"),
        (plain, b"other\0ann\0secret", "response invalid"),
        (plain, b"\0ann\0secret\0more", "response invalid"),
        (plain, b"\0\xff\0secret", "the user name is not UTF-8"),
        (amqplain, b"\x05LOGIN", "response invalid"),
        (amqplain, table(LOGIN="ann"), "AMQPLAIN auth info is missing LOGIN or PASSWORD field"),
        (amqplain, table(LOGIN="ann", PASSWORD=7), "AMQPLAIN auth info is missing LOGIN or PASSWORD field"),
    ],
)
def test_invalid_response_has_a_reason(
    parse: Callable[[bytes], tuple[str, bytes]], response: bytes, text: str
) -> None:
    with pytest.raises(InvalidResponse, match=f"^{text}$"):
        parse(response)


@given(st.sampled_from(list(PASSWORD_MECHANISMS.values())), st.binary())
def test_response_of_any_octets_raises_no_other_error(
    parse: Callable[[bytes], tuple[str, bytes]], response: bytes
) -> None:
    with suppress(InvalidResponse):
        user, password = parse(response)
        assert user.encode() in response
        assert password in response
