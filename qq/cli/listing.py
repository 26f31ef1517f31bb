"""Reads a list of the management API and prints it.

The whole list comes in a single answer, which the node sorts once.

Invariant: only some hundred objects of a list are in memory, however long the list is.
"""

from __future__ import annotations

import json
import re
import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from qq.cli.client.api import JSON, path_of
from qq.cli.terminal.output import print_rows, value_in
from qq.cli.terminal.progress import ProgressBar, progress_bar
from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from qq.cli.client.remote import Remote
    from qq.cli.listed_kinds import Kind

FIRST = 500
"""Number of first objects that are searched for a column."""
PART_CHARS = 64 * 1024
"""Characters of a list that are read at a time."""
_ONE_ROW = {"page": "1", "page_size": "1"}
_SEPARATORS = re.compile(r"[\s,]*")


class Filter(NamedTuple):
    """The filter and the order of a list."""

    vhost: str | None = None
    name: str | None = None
    regex: str | None = None
    sort: str | None = None
    is_reversed: bool = False
    owner: str | None = None
    """User whose objects are listed."""

    def query(self) -> dict[str, str]:
        """Return the query parameters of the request."""
        values = {"name": self.name or self.regex, "sort": self.sort}
        query = {key: value for key, value in values.items() if value}
        if "name" in query:
            query["page"] = "all"
        if self.regex is not None:
            query["use_regex"] = "true"
        return query | ({"sort_reverse": "true"} if self.is_reversed else {})


def print_list(node: Remote, kind: Kind, wanted: Filter, columns: Sequence[str] | None, form: str) -> int:
    """Print the objects of a kind. Raises CommandError."""
    shown = columns or kind.columns
    query = wanted.query()
    if columns or form != "json":
        query["columns"] = ",".join(dict.fromkeys((*shown, *([kind.field] if kind.field else ()))))
    path = path_of(*kind.path(wanted.vhost, wanted.owner))
    if wanted.sort is not None and wanted.sort not in kind.columns:
        _check_known(node, path, kind, [wanted.sort])
    with progress_bar(f"reading {kind.name}", prints=True) as bar:
        rows = list_objects(node, path, query, bar)
        if kind.field:
            rows = (row for row in rows if kind.field in row)
        if wanted.owner is not None and wanted.vhost is not None:
            rows = (row for row in rows if row.get("vhost") == wanted.vhost)
        if columns:
            rows = _with_columns(rows, columns, partial(_check_known, node, path, kind))
        head = columns or kind.head
        print_rows(form, rows, shown, head, texts=kind.texts, fits=columns is None)
    return 0


def list_objects(
    node: Remote, path: str, query: Mapping[str, str], bar: ProgressBar | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the objects of a list. Raises CommandError.

    The answer is first stored in a temporary file, so that the node does not wait for a slow reader of the output.
    """
    bar = bar or ProgressBar("reading", None)
    if "name" in query:
        _check_names_matter(node, path)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as kept:
        with node.download(path, JSON, query) as answer:
            while part := answer.read(PART_CHARS):
                kept.buffer.write(part)
                bar.update(0, None)
        kept.seek(0)
        try:
            yield from _elements(kept)
        except ValueError:
            raise node.foreign_answer() from None


def _elements(text: TextIO) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON list. Raises ValueError if the text is no such list."""
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
    """Raise CommandError if the node ignores filters by name.

    Release 0.1 ignores the parameters and answers with the whole list.
    """
    if isinstance(node.send("GET", path, query=_ONE_ROW, kind=object).document, list):
        raise CommandError(
            f"{node.url}: this node is of a release that looks for no names in lists; upgrade it first"
        )


# --- columns


def _with_columns(
    rows: Iterator[dict[str, Any]], columns: Sequence[str], check_known: Callable[[Sequence[str]], None]
) -> Iterator[dict[str, Any]]:
    """Pass rows on. Raises CommandError if a column is unknown and missing in all of the first rows."""
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
    """Raise CommandError if a column is unknown. An empty list shows no columns, so it passes."""
    items = node.get(path, _ONE_ROW).get("items")
    if not isinstance(items, list):
        raise node.foreign_answer()
    names = sorted({*(items[0] if items else ()), *(column.partition(".")[0] for column in kind.columns)})
    unknown = [each for each in columns if each.partition(".")[0] not in names]
    if items and unknown:
        raise CommandError(f"there is no column {unknown[0]!r}; there are {', '.join(names)}")
