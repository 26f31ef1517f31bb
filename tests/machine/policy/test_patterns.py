"""Patterns, against Python's own where both know a construct, and by example where only PCRE does."""

from __future__ import annotations

import re
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.machine.policy.patterns import PATTERN_BYTES_MAX, InvalidPattern, Pattern

characters = "abAB1_-. \n"
texts = st.text(characters, max_size=10)

atoms = st.one_of(
    st.sampled_from(characters).map(re.escape),
    st.sampled_from(
        [".", "[ab]", "[^a1]", "[a-c_]", r"[^\W_]", r"[\d-]", "[]a]", r"\w", r"\W", r"\d", r"\D"]
    ),
    st.sampled_from(
        [r"\s", r"\S", "^", "$", r"\b", r"\B", r"\A", "(?<=a)", "(?<!ab)", "(?<=a|bb)", "(?:)", ""]
    ),
)
# Python has no look-behind of alternatives with several lengths, and its \B does not match an empty text.
for_python = {"(?<=a|bb)": "(?:(?<=a)|(?<=bb))", r"\B": r"(?!\b)"}
groups = st.sampled_from(["(", "(?:", "(?=", "(?!", "(?i:", "(?s:"])
suffixes = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,}", "{0,2}", "{1,2}?"])


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map("|".join).map(lambda text: f"(?:{text})"),
        st.tuples(groups, inner).map(lambda parts: f"{parts[0]}{parts[1]})"),
        st.tuples(inner, suffixes).map(lambda parts: f"(?:{parts[0]}){parts[1]}"),
    )


patterns = st.recursive(atoms, larger, max_leaves=8)


@given(patterns, st.lists(texts, min_size=1, max_size=5))
def test_pattern_finds_the_same_as_python(pattern: str, names: list[str]) -> None:
    theirs = pattern
    for ours, known in for_python.items():
        theirs = theirs.replace(ours, known)
    oracle = re.compile(theirs, re.ASCII)
    compiled = Pattern(pattern)
    for name in names:
        assert compiled.search(name) == (oracle.search(name) is not None), name


@given(st.text("ab()[]{}|*+?^$\\-:=!<>Pixs,019.\u00e9", max_size=20), texts)
def test_any_text_is_a_pattern_or_refused(pattern: str, name: str) -> None:
    try:
        compiled = Pattern(pattern)
    except InvalidPattern:
        return
    assert compiled.search(name) in {True, False}


@pytest.mark.parametrize(
    ("pattern", "found", "not_found"),
    [
        ("", ["", "q"], []),
        ("^", ["", "q"], []),
        (".*", ["", "q"], []),
        ("^amq\\.", ["amq.gen-x"], ["amqp", "x.amq."]),
        ("^(?!amq\\.).*", ["orders", "amq"], ["amq.gen"]),
        ("^(?!(amq|celery).*).*$", ["orders"], ["celeryev", "amq.x"]),
        ("(?i)ORDERS$", ["my.orders", "OrDeRs"], ["orders2"]),
        ("a(?i)b", ["aB"], ["AB"]),
        ("(?:a(?i)b)c|d", ["aBc", "d"], ["aBC", "D"]),
        ("(?i-s:a)", ["A"], ["b"]),
        ("^q[[:digit:]]+$", ["q12"], ["q", "qa"]),
        ("^[[:^alpha:]]$", ["1"], ["a"]),
        (r"^\x41\x{42}\t?$", ["AB", "AB\t"], ["ab"]),
        (r"^[\x61-c\]]$", ["b", "]"], ["d"]),
        (r"[\b]", ["\b"], ["b"]),
        ("a{,2}", ["a{,2}"], ["aa"]),
        ("a{x", ["a{x"], ["a"]),
        ("^a{2,3}$", ["aa", "aaa"], ["a", "aaaa"]),
        ("^(?<year>a)(?P<month>b)$", ["ab"], ["a"]),
        (r"\Aa\z", ["a"], ["a\n"]),
        (r"\Aa\Z", ["a", "a\n"], ["a\n\n"]),
        ("^caf\u00e9.$", ["caf\u00e9\u00e9"], ["cafe1"]),
        ("^é{8}-$", ["é" * 8 + "-"], ["é" * 7 + "-"]),
    ],
)
def test_pattern_matches_as_in_pcre(pattern: str, found: list[str], not_found: list[str]) -> None:
    compiled = Pattern(pattern)
    assert [name for name in found if not compiled.search(name)] == []
    assert [name for name in not_found if compiled.search(name)] == []


@pytest.mark.parametrize(
    ("pattern", "error"),
    [
        ("(a", '{"missing )",2}'),
        ("a)", '{"unmatched parentheses",1}'),
        ("*a", '{"nothing to repeat",1}'),
        ("a**", '{"nothing to repeat",3}'),
        ("a++", '{"possessive quantifiers are not supported",3}'),
        ("(?>a)", '{"unrecognized character after (? or (?-",3}'),
        ("(?<a)", '{"syntax error in subpattern name (missing terminator)",4}'),
        ("(?<=a*)", '{"lookbehind assertion is not fixed length",7}'),
        ("(a)\\1", '{"\\1 is not supported",5}'),
        ("a\\", '{"\\ at end of pattern",2}'),
        ("^[[:alpha:]", '{"missing terminating ] for character class",11}'),
        ("[a", '{"missing terminating ] for character class",2}'),
        ("[b-a]", '{"range out of order in character class",4}'),
        ("[[:x:]]", '{"unknown POSIX class name",2}'),
        ("a{3,2}", '{"numbers out of order in {} quantifier",6}'),
        ("\\x{110000}", '{"character value in \\x sequence is wrong",10}'),
        ("\\xg", '{"character value in \\x sequence is wrong",3}'),
        ("\\x{1", '{"missing terminating }",4}'),
        ("(" * 60 + ")" * 60, '{"parentheses are too deeply nested",50}'),
        ("(((a{99}){99}){99})", "regular expression is too large"),
        ("((){9999999}){9999999}", "regular expression is too large"),
        ("a" * (PATTERN_BYTES_MAX + 1), f"longer than {PATTERN_BYTES_MAX} bytes"),
        ("é" * (PATTERN_BYTES_MAX // 2 + 1), f"longer than {PATTERN_BYTES_MAX} bytes"),
    ],
)
def test_a_text_that_is_no_pattern_is_refused(pattern: str, error: str) -> None:
    with pytest.raises(InvalidPattern) as refusal:
        Pattern(pattern)
    assert str(refusal.value) == error


@pytest.mark.parametrize(
    "pattern",
    [
        "^(a+)+$",
        "^(a|a)*$",
        "^(a|aa)+$",
        "a*a*a*a*a*a*a*a*a*b",
        "(.*)*(.*)*(.*)*b",
        "(?=(.*a){20}$).*x",
        "((?=.*a.*a.*a.*c))x",
        "(?:a?){200}a{200}$",
        f"[{''.join(map(chr, range(0x100, 0x2D0, 2)))}a]*b",
    ],
)
def test_search_is_short_for_any_pattern(pattern: str) -> None:
    compiled = Pattern(pattern)
    begin = process_time()
    assert not compiled.search("a" * 254 + "!")
    assert process_time() - begin < 1


def test_pattern_that_takes_too_many_steps_does_not_match() -> None:
    pattern = Pattern("(?=(.*a){60}).*!$")
    assert pattern.search("a" * 60 + "!")
    assert not pattern.search("b" * 255 + "a" * 60 + "!" * 10 + "c" * 100)
