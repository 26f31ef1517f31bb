from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.routing.topics import TopicTrie, words_of

words = st.sampled_from(["a", "b", "", "*", "#"])
keys = st.lists(words, max_size=6).map(".".join)


def matches(pattern: list[str], key: list[str]) -> bool:
    """The definition, word by word."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return matches(pattern[1:], key) or (bool(key) and matches(pattern, key[1:]))
    return bool(key) and pattern[0] in ("*", key[0]) and matches(pattern[1:], key[1:])


@given(st.lists(keys, max_size=8), st.lists(keys, min_size=1, max_size=8), st.data())
def test_the_trie_matches_what_the_definition_matches(
    patterns: list[str], routed: list[str], data: st.DataObject
) -> None:
    trie: TopicTrie[int] = TopicTrie()
    for item, pattern in enumerate(patterns):
        trie.add(pattern, item)
    left = set(range(len(patterns)))
    if patterns:
        for item in data.draw(st.sets(st.sampled_from(range(len(patterns))))):
            trie.remove(patterns[item], item)
            left.discard(item)
    for key in routed:
        expected = {item for item in left if matches(words_of(patterns[item]), words_of(key))}
        assert set(trie.match(key)) == expected


@given(st.lists(keys, max_size=8))
def test_removing_everything_leaves_nothing(patterns: list[str]) -> None:
    trie: TopicTrie[int] = TopicTrie()
    for item, pattern in enumerate(patterns):
        trie.add(pattern, item)
    for item, pattern in enumerate(patterns):
        trie.remove(pattern, item)
    assert not trie._root.children
    assert not trie._root.items


def test_removing_what_is_not_there_is_an_error() -> None:
    trie: TopicTrie[int] = TopicTrie()
    trie.add("a.b", 1)
    with pytest.raises(KeyError):
        trie.remove("a.c", 1)
    with pytest.raises(KeyError):
        trie.remove("a", 1)


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("", "", True),
        ("*", "", False),
        ("#", "", True),
        ("*", ".", False),
        ("*.*", ".", True),
        ("stock.*.nyse", "stock.ibm.nyse", True),
        ("stock.*.nyse", "stock.nyse", False),
        ("stock.#", "stock", True),
        ("#.nyse", "stock.ibm.nyse", True),
        ("#.a.#", "b.b", False),
    ],
)
def test_known_keys(pattern: str, key: str, expected: bool) -> None:
    trie: TopicTrie[int] = TopicTrie()
    trie.add(pattern, 1)
    assert bool(trie.match(key)) is expected


def test_hostile_binding_keys_do_not_make_a_match_explode() -> None:
    trie: TopicTrie[int] = TopicTrie()
    trie.add(".".join(["#", "a"] * 60), 1)
    trie.add(".".join(["#"] * 120), 2)
    assert set(trie.match(".".join("a" * 120))) == {1, 2}
    assert set(trie.match(".".join("b" * 120))) == {2}
