"""Reading a list of the management API page by page.

Lives here: pages, filters, the order, and columns that are not there. Not here: which lists there are (kinds.py), how
rows are printed (output.py).

Law: no more than a page of a list is in memory, at the node as here, however long it is.
"""

from __future__ import annotations

import sys
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.cli.output import print_rows, value_in
from qq.cli.progress import Count, counted
from qq.cli.remote import path_of, reason_of
from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from qq.cli.kinds import Kind
    from qq.cli.progress import Wait
    from qq.cli.remote import Remote

PAGE_SIZE = 500
"""How many things are asked for at a time: as many as a node tells."""


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
    """Read the things of a list, a page at a time; raises CommandError."""
    count = count or Count("reading", None)
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
    if isinstance(answer, list):  # as release 0.1 answers, which also leaves nothing out
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
