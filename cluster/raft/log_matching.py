"""What of an append is new to a log, and what contradicts it (Raft paper, 5.3).

Invariant: pure; nothing is changed. What matches is never given to be written again (hazard H2), nothing is vouched for
that the message does not show (H2, H3), and what is committed here is never given up (H12).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from cluster.raft.messages import Append


class TermsOfLog(Protocol):
    """The part of a log that the functions here need."""

    first_index: int
    last_index: int

    def term_at(self, index: int) -> int:
        """The term of an entry from `first_index` to `last_index`."""
        ...


class ForeignLog(Exception):
    """A leader's log contradicts what is committed here: there have been two majorities, or one has lost its logs."""

    def __init__(self, leader: str, term: int, what: str, commit_index: int, applied_index: int) -> None:
        """`what` says in words how the log of this leader differs."""
        super().__init__(
            f"the log of node {leader!r}, leader of term {term}, {what}; but all up to entry {commit_index} is "
            f"committed here and up to {applied_index} applied, so members have lost their logs or were given old "
            "ones (nothing is deleted here): stop all nodes and put back the right data directories, or give this node "
            "an empty one, and what only it holds is lost"
        )


def contradiction(log: TermsOfLog, commit_index: int, append: Append) -> str | None:
    """How the append differs from what is committed here, in words; None if it does not (H12).

    pysyncobj would delete what differs, also if it has been applied.
    """
    if append.prev_index >= commit_index:
        return None  # as nearly always
    previous = (b"", append.prev_index, append.prev_term)
    for _, index, term in (previous, *append.entries):
        if index > commit_index:
            break
        if (found := other_entry(log, commit_index, index, term)) is not None:
            return found
    return None


def other_entry(log: TermsOfLog, commit_index: int, index: int, term: int) -> str | None:
    """How the entry `index` of `term` differs from the one that is committed here; None if it does not (H12)."""
    if not log.first_index <= index <= commit_index or log.term_at(index) == term:
        return None
    return f"has an entry {index} of term {term}, which is of term {log.term_at(index)} here"


def vouched_for(append: Append) -> Append:
    """Lower the append's commit index to the last entry that the append itself shows to match (H2, H3)."""
    vouched_index = append.prev_index + len(append.entries)
    return append if append.commit_index <= vouched_index else append._replace(commit_index=vouched_index)


def without_known_prefix(log: TermsOfLog, append: Append) -> Append:
    """Take out of the append what the log already holds (same index and term), as in figure 2 of the Raft paper (H2).

    pysyncobj deletes everything behind the previous entry, so that must be the last one that matches. If nothing is
    left over, nothing conflicts, and the journal keeps its tail.
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
