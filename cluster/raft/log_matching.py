"""Compare an append with a log: find new entries and contradictions (Raft paper, 5.3).

Invariant: pure; the functions change no log. Entries that match are never written again (hazard H2). The commit index
covers only entries that the append shows to match (H2, H3). Committed entries are never deleted (H12).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from cluster.raft.messages import Append


class TermsOfLog(Protocol):
    """The part of a log that these functions need."""

    first_index: int
    last_index: int

    def term_at(self, index: int) -> int:
        """Return the term of an entry from `first_index` to `last_index`."""
        ...


class ForeignLog(Exception):
    """A leader's log contradicts committed entries of this node.

    Either there have been two majorities, or a majority has lost its logs.
    """

    def __init__(self, leader: str, term: int, what: str, commit_index: int, applied_index: int) -> None:
        """`what` describes how the leader's log differs."""
        super().__init__(
            f"the log of node {leader!r}, leader of term {term}, {what}; but all up to entry {commit_index} is "
            f"committed here and up to {applied_index} applied, so members have lost their logs or were given old "
            "ones (nothing is deleted here): stop all nodes and put back the right data directories, or give this node "
            "an empty one, and what only it holds is lost"
        )


def conflict_with_committed(log: TermsOfLog, commit_index: int, append: Append) -> str | None:
    """Return how the append contradicts committed entries, in words, or `None` if it does not (H12).

    pysyncobj would delete the differing entries, even applied ones.
    """
    if append.prev_index >= commit_index:
        return None  # the usual case
    previous = (b"", append.prev_index, append.prev_term)
    for _, index, term in (previous, *append.entries):
        if index > commit_index:
            break
        if (found := conflicting_entry(log, commit_index, index, term)) is not None:
            return found
    return None


def conflicting_entry(log: TermsOfLog, commit_index: int, index: int, term: int) -> str | None:
    """Return how entry `index` of `term` differs from the committed entry, or None if it does not (H12)."""
    if not log.first_index <= index <= commit_index or log.term_at(index) == term:
        return None
    return f"has an entry {index} of term {term}, which is of term {log.term_at(index)} here"


def limit_commit_index(append: Append) -> Append:
    """Lower the append's commit index to the last entry that the append itself shows to match (H2, H3)."""
    vouched_index = append.prev_index + len(append.entries)
    return append if append.commit_index <= vouched_index else append._replace(commit_index=vouched_index)


def without_known_prefix(log: TermsOfLog, append: Append) -> Append:
    """Remove the entries from the append that the log already holds with the same term (Raft paper, figure 2; H2).

    pysyncobj deletes all entries behind the append's previous entry. So the previous entry must be the last one that
    matches. If no entry is left, there is no conflict, and the journal keeps its tail.
    """
    prev_index, prev_term, entries = append.prev_index, append.prev_term, append.entries
    last_index = log.last_index
    if not log.first_index <= prev_index <= last_index or log.term_at(prev_index) != prev_term:
        return append
    known = 0
    for _, index, term in entries:
        if index > last_index or log.term_at(index) != term:
            break
        known += 1
        prev_index, prev_term = index, term
    if not known:
        return append
    return append._replace(prev_index=prev_index, prev_term=prev_term, entries=entries[known:])
