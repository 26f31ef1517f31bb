"""Permissions from scopes."""

from __future__ import annotations

import time

import pytest

from qq.scopes import Scopes, Wildcard


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("*", "", True),
        ("*", "anything/ at all\n", True),
        ("", "", True),
        ("", "x", False),
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("orders*", "orders", True),
        ("orders*", "orders2", True),
        ("*.eu", "orders.eu", True),
        ("a*c", "ac", True),
        ("a*c", "abcbc", True),
        ("a*c", "abcb", False),
        ("aba*aba", "aba", False),
        ("*b*b*", "abcb", True),
        ("*b*b*", "abc", False),
        ("a*b*c", "acb", False),
        ("%2F", "/", True),
        ("a%2Ab", "a*b", True),
        ("a%2Ab", "axb", False),
        ("%C3%A9*", "été", True),
        (".", "x", False),
    ],
)
def test_star_matches_any_characters(pattern: str, name: str, matches: bool) -> None:
    assert Wildcard(pattern).matches(name) is matches


def test_no_pattern_takes_long() -> None:
    began_s = time.process_time()
    assert not Wildcard("*a" * 2000 + "*b").matches("a" * 255)
    assert not Wildcard("*a" * 100 + "b*").matches("a" * 255)
    assert time.process_time() - began_s < 0.05


def test_omitted_parts_of_a_scope_match_all() -> None:
    scopes = Scopes(["read:shop", "write:shop/orders*", "configure:*/tmp-*"])
    assert scopes.permit("read", "shop", "anything")
    assert not scopes.permit("read", "other", "anything")
    assert scopes.permit("write", "shop", "orders.eu")
    assert not scopes.permit("write", "shop", "bills")
    assert scopes.permit("configure", "anywhere", "tmp-1")
    assert not scopes.restricts_keys
    assert scopes.opens("shop")
    assert scopes.opens("anywhere")
    assert not Scopes(["read:shop"]).opens("other")


def test_scope_with_a_key_pattern_restricts_keys() -> None:
    scopes = Scopes(["write:/x".replace("/", "%2F/"), "write:%2F/topics/eu.*", "read:%2F/*/*"])
    assert scopes.restricts_keys
    assert scopes.permit_key("write", "/", "x", "anything")
    assert scopes.permit_key("write", "/", "topics", "eu.berlin")
    assert not scopes.permit_key("write", "/", "topics", "us.boston")
    assert scopes.permit_key("read", "/", "topics", "us.boston")


def test_scopes_grant_tags_and_malformed_scopes_are_ignored() -> None:
    scopes = Scopes(
        ["tag:administrator", "tag:monitoring", "read", "read:", "own:%2F/x", "write:a/b/c/d", ""]
    )
    assert scopes.tags == {"administrator", "monitoring"}
    assert not scopes.opens("/")
    assert not scopes.opens("a")
