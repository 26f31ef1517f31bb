"""Reading a list of the management API.

All of it comes in one answer, which the node sorts once. Nodes look at names in pages only, so a list with a filter is
read page by page.

Lives here: these two ways, filters, the order, and columns that are not there. Not here: which lists there are
(kinds.py), how rows are printed (output.py).

Law: no more of a list than a page is in memory, at the node as here, however long it is.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from qq.cli.output import print_rows, value_in
from qq.cli.progress import Count, counted
from qq.cli.remote import JSON, path_of, reason_of
from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from qq.cli.kinds import Kind
    from qq.cli.progress import Wait
    from qq.cli.remote import Remote

PAGE_SIZE = 500
"""How many things are asked for at a time: as many as a node tells."""
PART_CHARS = 64 * 1024
"""How much of a whole list is read at a time."""
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
    with counted(f"reading {kind.name}", prints=True) as count:
        rows = things(node, path, query, count)
        if columns:
            rows = _with_columns(rows, columns, lambda: _known(node, path, kind))
        print_rows(form, rows, shown)
    return 0


def things(
    node: Remote, path: str, query: Mapping[str, str], count: Count | None = None
) -> Iterator[dict[str, Any]]:
    """Read the things of a list; raises CommandError."""
    count = count or Count("reading", None)
    return _in_pages(node, path, query, count) if "name" in query else _as_a_whole(node, path, query, count)


def _as_a_whole(node: Remote, path: str, query: Mapping[str, str], count: Count) -> Iterator[dict[str, Any]]:
    """Read all things in one answer. It is kept in a file, so that the node does not wait for whoever looks at it."""
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


def _in_pages(node: Remote, path: str, query: Mapping[str, str], count: Count) -> Iterator[dict[str, Any]]:
    """Read the things a page at a time; raises CommandError."""
    first = _first_page(node, path, {**query, **_page(1)}, count.wait("the first page"))
    read, page = 0, first
    for number in range(2, _count(node, first, "page_count") + 2):
        yield from page["items"]
        read += len(page["items"])
        count.so_far(read, page["filtered_count"])
        if number > page["page_count"]:
            break
        wait = count.wait(f"page {number} of {page['page_count']}")
        following = _page_at(node, path, {**query, **_page(number)}, wait)
        if following is None:
            break
        page = following
    if page["filtered_count"] != first["filtered_count"]:
        print("note: the list has changed while it was read", file=sys.stderr)


def _page(number: int) -> dict[str, str]:
    return {"page": str(number), "page_size": str(PAGE_SIZE)}


def _first_page(node: Remote, path: str, query: Mapping[str, str], wait: Wait) -> dict[str, Any]:
    answer = node.send("GET", path, query=query, kind=object, wait=wait).document
    if isinstance(answer, list):  # as release 0.1 answers
        raise CommandError(
            f"{node.url}: this node is of a release that lists nothing page by page; upgrade it first"
        )
    if not isinstance(answer, dict):
        raise node.is_foreign()
    return answer


def _page_at(node: Remote, path: str, query: Mapping[str, str], wait: Wait) -> dict[str, Any] | None:
    """Read a page; None if the list has become shorter meanwhile. Raises CommandError."""
    answer = node.send("GET", path, query=query, expected=(HTTPStatus.OK, HTTPStatus.BAD_REQUEST), wait=wait)
    if answer.status == HTTPStatus.OK:
        _count(node, answer.document, "page_count")
        return answer.document
    if answer.document.get("error") == "page_out_of_range":
        return None
    raise CommandError(f"{node.url_of(path)}: {reason_of(answer)}")


def _count(node: Remote, page: dict[str, Any], name: str) -> int:
    """A count of a page. Raises CommandError if it is none."""
    if not isinstance(page.get("items"), list) or not isinstance(page.get(name), int):
        raise node.is_foreign()
    return page[name]


# --- columns


def _with_columns(
    rows: Iterator[dict[str, Any]], columns: Sequence[str], known: Callable[[], list[str]]
) -> Iterator[dict[str, Any]]:
    """Pass rows on; raises CommandError if none of the first rows has one of the columns."""
    seen: list[dict[str, Any]] = []
    for row in rows:
        seen.append(row)
        if len(seen) == PAGE_SIZE:
            break
    missing = [each for each in columns if seen and all(value_in(row, each) is None for row in seen)]
    if missing:
        names = known()
        unknown = [each for each in missing if each.partition(".")[0] not in names]
        if unknown:
            raise CommandError(f"there is no column {unknown[0]!r}; there are {', '.join(names)}")
    yield from seen
    yield from rows


def _known(node: Remote, path: str, kind: Kind) -> list[str]:
    """The columns that there are."""
    page = node.get(path, {"page": "1", "page_size": "1"})
    _count(node, page, "page_count")
    of_first = page["items"][0] if page["items"] else {}
    return sorted({*of_first, *(column.partition(".")[0] for column in kind.columns)})
