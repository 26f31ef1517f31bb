"""Reading a list of the management API.

All of it comes in one answer, which the node sorts once.

Invariant: no more of a list than some hundred things is in memory, however long it is.
"""

from __future__ import annotations

import json
import re
import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from qq.cli.output import print_rows, value_in
from qq.cli.progress import Count, counted
from qq.cli.remote import JSON, path_of
from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from qq.cli.kinds import Kind
    from qq.cli.remote import Remote

FIRST = 500
"""In how many of the first things a column is looked for."""
PART_CHARS = 64 * 1024
"""How much of a whole list is read at a time."""
_ONE = {"page": "1", "page_size": "1"}
_SEPARATORS = re.compile(r"[\s,]*")


class Filter(NamedTuple):
    """Which things are wanted, and in which order."""

    vhost: str | None = None
    name: str | None = None
    regex: str | None = None
    sort: str | None = None
    is_reversed: bool = False

    def query(self) -> dict[str, str]:
        """The parameters of a request."""
        asked = {"name": self.name or self.regex, "sort": self.sort}
        query = {key: value for key, value in asked.items() if value}
        if "name" in query:
            query["page"] = "all"
        if self.regex is not None:
            query["use_regex"] = "true"
        return query | ({"sort_reverse": "true"} if self.is_reversed else {})


def print_list(node: Remote, kind: Kind, wanted: Filter, columns: Sequence[str] | None, form: str) -> int:
    """Print the things of a kind; raises CommandError."""
    shown = columns or kind.columns
    query = wanted.query()
    if columns or form != "json":
        query["columns"] = ",".join(shown)
    path = path_of(*kind.path(wanted.vhost))
    if wanted.sort is not None and wanted.sort not in kind.columns:
        _check_known(node, path, kind, [wanted.sort])
    with counted(f"reading {kind.name}", prints=True) as count:
        rows = things(node, path, query, count)
        if columns:
            rows = _with_columns(rows, columns, partial(_check_known, node, path, kind))
        print_rows(form, rows, shown)
    return 0


def things(
    node: Remote, path: str, query: Mapping[str, str], count: Count | None = None
) -> Iterator[dict[str, Any]]:
    """Read the things of a list; raises CommandError.

    The answer is kept in a file, so that the node does not wait for whoever looks at it.
    """
    count = count or Count("reading", None)
    if "name" in query:
        _check_names_matter(node, path)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as kept:
        with node.download(path, JSON, query) as answer:
            while part := answer.read(PART_CHARS):
                kept.buffer.write(part)
                count.so_far(0, None)
        kept.seek(0)
        try:
            yield from _elements(kept)
        except ValueError:
            raise node.is_foreign() from None


def _elements(text: TextIO) -> Iterator[dict[str, Any]]:
    """Read a JSON list of objects, one after the other. Raises ValueError where it is none."""
    decode = json.JSONDecoder().raw_decode
    if text.read(1) != "[":
        raise ValueError
    unread, at = "", 0
    while True:
        between = _SEPARATORS.match(unread, at)
        at = between.end() if between else at
        if unread.startswith("]", at):
            return
        try:
            element, at = decode(unread, at)
        except ValueError:
            more = text.read(PART_CHARS)
            if not more:
                raise
            unread, at = unread[at:] + more, 0
            continue
        if not isinstance(element, dict):
            break
        yield element
    raise ValueError


def _check_names_matter(node: Remote, path: str) -> None:
    """Raise CommandError if the node looks at no names: release 0.1 answers with the whole list, whatever is asked."""
    if isinstance(node.send("GET", path, query=_ONE, kind=object).document, list):
        raise CommandError(
            f"{node.url}: this node is of a release that looks for no names in lists; upgrade it first"
        )


# --- columns


def _with_columns(
    rows: Iterator[dict[str, Any]], columns: Sequence[str], check_known: Callable[[Sequence[str]], None]
) -> Iterator[dict[str, Any]]:
    """Pass rows on; raises CommandError if none of the first rows has one of the columns."""
    seen: list[dict[str, Any]] = []
    for row in rows:
        seen.append(row)
        if len(seen) == FIRST:
            break
    missing = [each for each in columns if seen and all(value_in(row, each) is None for row in seen)]
    if missing:
        check_known(missing)
    yield from seen
    yield from rows


def _check_known(node: Remote, path: str, kind: Kind, columns: Sequence[str]) -> None:
    """Raise CommandError if one of the columns is not there; where there are no things, nobody can tell."""
    items = node.get(path, _ONE).get("items")
    if not isinstance(items, list):
        raise node.is_foreign()
    names = sorted({*(items[0] if items else ()), *(column.partition(".")[0] for column in kind.columns)})
    unknown = [each for each in columns if each.partition(".")[0] not in names]
    if items and unknown:
        raise CommandError(f"there is no column {unknown[0]!r}; there are {', '.join(names)}")
