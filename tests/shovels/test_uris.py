"""The addresses of brokers: their parts, and the parts that are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.shovels.uris import InvalidUri, UriTls, parse_uri, redacted


def test_uri_gives_host_user_and_options() -> None:
    uri = parse_uri("amqp://bob%40:p%2Fw@far.example:99/v%2Fh?heartbeat=7&connection_timeout=1500")
    assert (uri.host, uri.port, uri.vhost) == ("far.example", 99, "v/h")
    assert (uri.user, uri.password, uri.heartbeat_s, uri.connect_timeout_s) == ("bob@", "p/w", 7, 1.5)
    assert (uri.tls, uri.is_external, uri.is_local) == (None, False, False)


def test_uri_defaults_are_rabbitmqs() -> None:
    uri = parse_uri("amqp://far")
    assert (uri.port, uri.vhost, uri.user, uri.password, uri.heartbeat_s) == (5672, "/", "guest", "guest", 10)
    assert parse_uri("amqps://far").port == 5671


def test_an_address_without_a_host_is_this_cluster() -> None:
    assert parse_uri("amqp://").is_local
    assert parse_uri("amqp:///v").vhost == "v"
    assert not parse_uri("amqp://bob:pw@/v").is_local  # it logs in like any other client


def test_uri_gives_tls_options() -> None:
    text = "amqps://h?cacertfile=/ca&certfile=/c&keyfile=/k&password=pw&verify=verify_none"
    assert parse_uri(text).tls == UriTls("/ca", "/c", "/k", "pw", False, "")
    assert parse_uri("amqps://h?server_name_indication=other").tls == UriTls(server_name="other")
    assert parse_uri("amqps://h?server_name_indication=disable").tls == UriTls(server_name=None)
    assert parse_uri("amqps://h?auth_mechanism=external&auth_mechanism=plain").is_external


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://h",
        "amqp://h:0x1",
        "amqp://h:70000",
        "amqp://h:0",
        "amqp://h\r\nfoo",
        "amqp://[::1",
        "amqp://:5672",
        "amqps://",
        "amqp://h/a/b",
        "amqp://u:1/hidden@h",
        "amqp://h?heartbeat=-1",
        "amqp://h?heartbeat=x",
        "amqp://h?connection_timeout=0",
        "amqp://h?auth_mechanism=gssapi",
        "amqps://h?verify=maybe",
        "amqps://h?keyfile=k",
        "amqps://h?server_name_indication=.h",
        "amqps://h?server_name_indication=%00",
        "amqp://a..b",
        "amqp://a%00b",
        f"amqp://{'a' * 64}",
        f"amqp://h/{'v' * 256}",
    ],
)
def test_invalid_uri_is_refused(text: str) -> None:
    with pytest.raises(InvalidUri):
        parse_uri(text)


def test_redacted_uri_shows_neither_user_nor_password() -> None:
    assert redacted("amqps://bob:hidden@[::1]:99/v%2F?password=hidden") == "amqps://[::1]:99/v%2F"
    assert redacted(["amqp://u:hidden@far", "amqp://", "hidden"]) == [
        "amqp://far",
        "amqp://",
        "amqp://(invalid)",
    ]
    assert "hidden" not in repr(parse_uri("amqps://bob:hidden@h?password=hidden&certfile=c"))


@given(st.text(max_size=30), st.sampled_from(["amqp://u:hidden@", "amqp://", "amqps://hidden@", ""]))
def test_any_text_is_redacted_and_parsed_alike(text: str, before: str) -> None:
    shown = redacted(before + text)
    assert isinstance(shown, str)
    assert "hidden" not in shown
    if shown != "amqp://(invalid)":
        assert parse_uri(shown).vhost == parse_uri(before + text).vhost
