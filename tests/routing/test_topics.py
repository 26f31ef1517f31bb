from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.routing import topics
from qq.routing.masks import Masks
from qq.routing.topics import TopicPatterns, words_of

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
def test_topic_index_matches_as_defined(patterns: list[str], routed: list[str], data: st.DataObject) -> None:
    index: TopicPatterns[int] = TopicPatterns()
    for item, pattern in enumerate(patterns):
        index.add(pattern, item)
    left = set(range(len(patterns)))
    if patterns:
        for item in data.draw(st.sets(st.sampled_from(range(len(patterns))))):
            index.remove(patterns[item], item)
            left.discard(item)
    for key in routed:
        expected = {item for item in left if matches(words_of(patterns[item]), words_of(key))}
        assert set(index.match(key)) == expected


@given(st.lists(keys, max_size=8))
def test_removing_all_patterns_leaves_the_index_empty(patterns: list[str]) -> None:
    index: TopicPatterns[int] = TopicPatterns()
    for item, pattern in enumerate(patterns):
        index.add(pattern, item)
    for item, pattern in enumerate(patterns):
        index.remove(pattern, item)
    assert not index


def test_removing_an_unknown_pattern_raises_key_error() -> None:
    index: TopicPatterns[int] = TopicPatterns()
    index.add("a.b", 1)
    with pytest.raises(KeyError):
        index.remove("a.c", 1)
    with pytest.raises(KeyError):
        index.remove("a", 1)


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
    index: TopicPatterns[int] = TopicPatterns()
    index.add(pattern, 1)
    assert list(index.match(key)) == [1] * expected


def test_hostile_binding_keys_do_not_make_a_match_explode() -> None:
    index: TopicPatterns[int] = TopicPatterns()
    index.add(".".join(["#", "a"] * 60), 1)
    index.add(".".join(["#"] * 120), 2)
    assert set(index.match(".".join("a" * 120))) == {1, 2}
    assert set(index.match(".".join("b" * 120))) == {2}


class CountingMasks(Masks[str]):
    """Counts how often a set is asked for: once for each place where any binding key stands, for each word."""

    lookups = 0

    def get(self, key: str) -> int:
        CountingMasks.lookups += 1
        return super().get(key)


def test_hostile_binding_keys_cost_the_same_at_100_and_10000(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "Masks", CountingMasks)
    lookups: list[int] = []
    rnd = random.Random(15)
    patterns = list(dict.fromkeys(".".join(["#", rnd.choice("ab")] * 62) for _ in range(20_000)))
    key = ".".join(rnd.choice("ab") for _ in range(127))
    for count in (100, 10_000):
        CountingMasks.lookups = 0
        index: TopicPatterns[int] = TopicPatterns()
        for item, pattern in enumerate(patterns[:count]):
            index.add(pattern, item)
        list(index.match(key))
        lookups.append(CountingMasks.lookups)
        assert index.steps(127) >= CountingMasks.lookups
    assert lookups[0] == lookups[1]
