"""The new entries of an append, compared with a log that follows Raft's rules entry by entry."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest

from cluster.raft.log_matching import (
    conflict_with_committed,
    conflicting_entry,
    limit_commit_index,
    without_known_prefix,
)
from cluster.raft.messages import Append, LogEntry


def log_of(*terms: int) -> SimpleNamespace:
    """Of entries 1, 2, 3, ... with these terms."""
    return SimpleNamespace(first_index=1, last_index=len(terms), term_at=lambda index: terms[index - 1])


def append(prev_index: int, prev_term: int, terms: list[int], commit_index: int = 0) -> Append:
    entries = [LogEntry(b"", index, term) for index, term in enumerate(terms, start=prev_index + 1)]
    return Append(9, commit_index, prev_index, prev_term, entries)


def test_remaining_append_gives_the_same_log_and_begins_anew() -> None:
    random = Random(1)
    for _ in range(2000):
        ours = sorted(random.choices(range(3), k=random.randint(1, 5)))
        theirs = sorted(random.choices(range(3), k=random.randint(1, 5)))
        prev_index = random.randint(1, len(theirs))
        message = append(prev_index, theirs[prev_index - 1], theirs[prev_index:])
        left = without_known_prefix(log_of(*ours), message)
        if prev_index > len(ours) or ours[prev_index - 1] != theirs[prev_index - 1]:
            assert left == message
            continue
        assert [entry.index for entry in left.entries] == list(range(left.prev_index + 1, len(theirs) + 1))
        assert left.prev_term == theirs[left.prev_index - 1] == ours[left.prev_index - 1]
        assert ours[prev_index : left.prev_index] == theirs[prev_index : left.prev_index]
        if left.entries and left.prev_index < len(ours):
            assert ours[left.prev_index] != left.entries[0].term


@pytest.mark.parametrize(("reported", "vouched"), [(0, 0), (4, 4), (5, 5), (50, 5)])
def test_append_vouches_for_the_entries_that_it_shows(reported: int, vouched: int) -> None:
    assert limit_commit_index(append(3, 1, [1, 1], reported)).commit_index == vouched


def test_committed_entries_are_contradicted_by_terms_only() -> None:
    journal = log_of(0, 1, 1, 2, 2)
    assert conflict_with_committed(journal, 4, append(1, 0, [1, 1, 2, 9])) is None
    assert conflict_with_committed(journal, 4, append(4, 9, [9])) is None
    assert (
        conflict_with_committed(journal, 4, append(3, 2, []))
        == "has an entry 3 of term 2, which is of term 1 here"
    )
    found = conflict_with_committed(journal, 4, append(2, 1, [1, 3]))
    assert found == "has an entry 4 of term 3, which is of term 2 here"


def test_uncommitted_or_missing_entry_is_not_contradicted() -> None:
    journal = log_of(0, 1, 1, 2)
    assert conflicting_entry(journal, 3, 4, 9) is None
    assert conflicting_entry(journal, 3, 7, 9) is None
    assert conflicting_entry(journal, 3, 3, 1) is None
    assert conflicting_entry(journal, 3, 3, 9) is not None
