"""A dumb judge of small histories, for the tests of the workloads."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chaos.history import Row


def ids(rows: Iterable[Row], op: str, type_: str) -> set[str]:
    return {row["id"] for row in rows if row["op"] == op and row["type"] == type_}


def lost(rows: Sequence[Row]) -> set[str]:
    return ids(rows, "publish", "ok") - ids(rows, "deliver", "ok") - ids(rows, "leased", "ok")


def phantoms(rows: Sequence[Row]) -> set[str]:
    return ids(rows, "deliver", "ok") - (ids(rows, "publish", "invoke") - ids(rows, "publish", "fail"))


def unmarked_duplicates(rows: Sequence[Row]) -> set[tuple[str, str]]:
    first = Counter(
        (row["queue"], row["id"])
        for row in rows
        if row["op"] == "deliver" and not row["redelivered"] and row["type"] == "ok"
    )
    return {message for message, count in first.items() if count > 1}


def gaps(rows: Sequence[Row]) -> set[str]:
    """Return the publishers whose sequences do not rise by 1 from 1."""
    sequences: dict[str, dict[int, None]] = {}
    for row in rows:
        if row["op"] == "publish" and row["type"] == "invoke" and row["attempt"] == 1:
            sequences.setdefault(row["publisher"], {})[row["sequence"]] = None
    return {
        publisher for publisher, found in sequences.items() if list(found) != list(range(1, len(found) + 1))
    }


def unended(rows: Sequence[Row]) -> set[tuple[str, int]]:
    """Return the calls that do not have exactly one end."""
    begun = Counter((row["process"], row["call"]) for row in rows if row["type"] == "invoke")
    ended = Counter((row["process"], row["call"]) for row in rows if row["type"] in {"ok", "fail", "unknown"})
    return {call for call in begun if begun[call] != 1 or ended[call] != 1}
