"""Lists: filters, order, pages and columns, by the query parameters of RabbitMQ's API.

Two invariants. Documents are made only for objects that are sent, unless the order depends on a field that exists only
in documents. Other tasks run between slices of the work, and the cost of each request is bounded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from heapq import merge
from itertools import count, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from aiohttp import web

from qq.http.base.error_responses import Refusal, bad_request, has_left
from qq.http.documents.requests import is_asked, object_parts, write_list, write_object
from qq.machine.policy.patterns import InvalidPattern, Pattern
from qq.management.time_slices import Slices

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator

T = TypeVar("T")
Document = Mapping[str, Any]
Columns = dict[str, "Columns | None"]
"""Requested parts of a document by name, each with its requested parts; None for the whole part."""

BY_NAME = ("vhost", "name")
ALL = "all"
"""Value of `page` for the whole list filtered by name. RabbitMQ filters by name in numbered pages only."""
PAGE_SIZE = 100
PAGE_SIZE_MAX = 500
PATTERN_CHARS_MAX = 1024
DIGITS_MAX = 18
STEP = 256
"""Objects visited between two checks of the time: some tenths of a millisecond."""
RUN = 1024
"""Objects sorted at a time, which takes a millisecond. Such runs are merged as far as they are sent."""
NAME_STEPS_MAX = 3000
"""Steps of a regular expression in a name at most, some milliseconds; a longer search counts as no match."""
REQUEST_STEPS_MAX = 10_000_000
"""Steps of all searches of a request at most: some seconds, in slices."""
STATS_DISABLED = "Stats in management UI are disabled on this node"
"""RabbitMQ's reason for refusing a list that contains only statistics."""
_INVALID = "invalid_pagination_parameters"


def _as_it_is(_thing: Any, document: Document) -> Document:
    return document


class Listing(NamedTuple, Generic[T]):
    """The objects of a list, and the functions that make their documents."""

    things: Iterable[T]
    fields: Mapping[str, Callable[[T], Any]] | None = None
    """Field name in documents -> function that computes it from an object; None if the objects are documents."""
    is_seen: Callable[[T], bool] | None = None
    """Returns whether the client may see an object; None if it may see all."""
    order: Sequence[str] = BY_NAME
    is_in_order: bool = False
    """Whether the objects are a sequence in this order that contains only visible objects."""
    parts: Mapping[str, Callable[[T], Any]] = {}
    """Dotted name of a part of a field -> function that computes it more cheaply than the whole field."""
    basic: Collection[str] | None = None
    """Fields that remain with `disable_stats`; None if the list has no statistics."""
    whole: Callable[[Sequence[T]], Awaitable[Sequence[Document]]] | None = None
    """Makes the full documents of several objects at once, if `fields` contain only the fields used for most orders."""
    searched: Sequence[str] = ("name",)
    """Fields in which the requested name is searched; a match in one of them is enough."""
    completed: Callable[[T, Document], Document] = _as_it_is
    """Completes the document of an object that is sent, from its fields."""


def narrowed(request: web.Request, document: Document) -> web.Response:
    """Answer with a document, or with its requested `columns`."""
    return web.json_response(_narrowed(document, _columns(request)))


async def write_listing(request: web.Request, listing: Listing[T]) -> web.StreamResponse:
    """Answer with the whole list, or with the requested page. Raises Refusal."""
    names, page = _wanted(request)
    async with _selected(request, listing, names, page) as (head, documents):
        if head is None:
            return await write_list(request, documents)
        return await write_object(request, head, {"items": documents})


async def listed_page(request: web.Request, listing: Listing[T]) -> bytes:
    """Return the requested page, or the first page by default, as JSON. Raises Refusal."""
    names, page = _wanted(request)
    async with _selected(request, listing, names, page or _Page(1, PAGE_SIZE)) as (head, documents):
        return b"".join([part async for part in object_parts(head or {}, {"items": documents})])


@asynccontextmanager
async def _selected(
    request: web.Request, listing: Listing[Any], names: _Names, page: _Page | None
) -> AsyncGenerator[tuple[Mapping[str, int] | None, Iterable[Document]]]:
    """Select the requested documents, and the counts of their page (None for the whole list). Raises Refusal."""
    columns, slices = _columns(request), Slices(partial(has_left, request))
    if listing.basic is not None and is_asked(request, "disable_stats"):
        columns = _basic(columns, listing.basic)
    seen = await _seen(listing, slices)
    found: Sequence[Any] = await _named(listing, seen, names, slices)
    if page is not None and page.offset > len(found):
        text = f"Page out of range, page: {page.number} page size: {page.size}, len: {len(found)}"
        raise bad_request(text, "page_out_of_range")
    sort, reverse = request.query.get("sort"), is_asked(request, "sort_reverse")
    if listing.whole is not None and (page is None or (sort and not _may_have(listing, sort))):
        found = await listing.whole(found)
        listing = _as_documents(listing)
    order = _order(listing, sort)
    offset = 0 if page is None else page.offset
    runs = await _runs(listing, found, order, slices, reverse=reverse) if order else []
    if order:
        ordered = map(itemgetter(-1), merge(*runs, reverse=reverse))
        await _skip(ordered, offset, slices)
    else:
        ordered = map(found.__getitem__, range(len(found))[:: -1 if reverse else 1][offset:])

    def document(thing: Any) -> Document:
        return _narrowed(listing.completed(thing, _document(listing, thing, columns)), columns)

    if page is None:
        yield None, map(document, ordered)
    else:
        shown: Sequence[Any] = list(islice(ordered, page.size))
        if listing.whole is not None:
            shown, listing = await listing.whole(shown), _as_documents(listing)
        head = {
            "total_count": len(seen),
            "filtered_count": len(found),
            "item_count": len(shown),
            "page": page.number,
            "page_size": page.size,
            "page_count": -(-len(found) // page.size),
        }
        yield head, map(document, shown)
    del ordered
    for used in (*runs, seen):
        if isinstance(used, list) and used is not listing.things:  # the caller owns it
            await _let_go(used, slices)


def _as_documents(listing: Listing[Any]) -> Listing[Any]:
    """Return the list after its objects have become documents."""
    return listing._replace(fields=None, whole=None)


async def _skip(things: Iterator[Any], count: int, slices: Slices) -> None:
    for at in range(0, count, STEP):
        last = min(STEP, count - at) - 1
        next(islice(things, last, last + 1))
        await slices.give_way()


async def _let_go(things: list[Any], slices: Slices) -> None:
    """Empty a list in slices, because freeing tens of thousands of small objects at once takes milliseconds."""
    while things:
        del things[-STEP:]
        await slices.give_way()


# --- filters


class _Names(NamedTuple):
    text: str
    """Text that names must contain or match; "" for all names."""
    is_pattern: bool


class _Page(NamedTuple):
    number: int
    size: int

    @property
    def offset(self) -> int:
        return (self.number - 1) * self.size


def _wanted(request: web.Request) -> tuple[_Names, _Page | None]:
    """Return the requested names and page from the query; None for the whole list. Raises Refusal."""
    names = _Names(request.query.get("name", ""), is_asked(request, "use_regex"))
    if names.is_pattern and len(names.text) > PATTERN_CHARS_MAX:
        raise bad_request("name filter regex is too long", _INVALID)
    if request.query.get("page") == ALL:
        return names, None
    number, size = _whole(request, "page"), _whole(request, "page_size")
    if number is None:  # names are ignored then, as in RabbitMQ
        return _Names("", is_pattern=False), None
    if number < 1 or (size is not None and not 1 <= size <= PAGE_SIZE_MAX):
        shown = "undefined" if size is None else size
        text = f"Invalid pagination parameters: page number {number}, page size {shown}"
        raise bad_request(text, _INVALID)
    return names, _Page(number, size or PAGE_SIZE)


def _whole(request: web.Request, name: str) -> int | None:
    """Return an integer of the query, which may have a sign. Raises Refusal."""
    text = request.query.get(name)
    if text is None:
        return None
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= DIGITS_MAX):
        raise bad_request("Pagination parameters are invalid")
    return int(text)


async def _seen(listing: Listing[T], slices: Slices) -> Sequence[T]:
    """Return the objects of a list that are visible to the client."""
    things = listing.things
    if listing.is_in_order and isinstance(things, Sequence):
        return things
    return await _kept(things, listing.is_seen, slices)


async def _kept(things: Iterable[T], is_kept: Callable[[T], bool] | None, slices: Slices) -> list[T]:
    kept: list[T] = []
    following = iter(things)
    while part := list(islice(following, STEP)):
        kept += part if is_kept is None else filter(is_kept, part)
        await slices.give_way()
    return kept


async def _named(listing: Listing[T], things: Sequence[T], names: _Names, slices: Slices) -> Sequence[T]:
    """Return the objects with matching names. Objects without a name match any name."""
    names_of = [_value_of(listing, field) for field in listing.searched]
    if not names.text or not things or not isinstance(names_of[0](things[0]), str):
        return things
    if names.is_pattern:
        return await _matching(things, names_of, names.text, slices)
    wanted = names.text.lower()
    return await _kept(things, lambda thing: any(wanted in name(thing).lower() for name in names_of), slices)


async def _matching(
    things: Sequence[T], names_of: Sequence[Callable[[Any], str]], text: str, slices: Slices
) -> list[T]:
    """Return the objects with names that match a regular expression; an invalid expression matches no name.

    Raises Refusal.
    """
    try:
        pattern = Pattern(f"(?i){text}")
    except InvalidPattern:
        return []
    found: list[T] = []
    search = NameSearch(
        pattern, bad_request("the search for the regular expression takes too long", _INVALID)
    )
    for thing in things:
        if any(search.finds_in(name(thing)) for name in names_of):
            found.append(thing)
        await slices.give_way()
    return found


class NameSearch:
    """Searches a regular expression in the names of a request, with bounded cost per name and in all."""

    def __init__(self, pattern: Pattern, too_long: Refusal) -> None:
        """`too_long` is raised when the cost of all names together exceeds the bound."""
        self._pattern = pattern
        self._too_long = too_long
        self._steps_left = REQUEST_STEPS_MAX

    def finds_in(self, name: str) -> bool:
        is_found, steps = self._pattern.search_within(name, NAME_STEPS_MAX)
        self._steps_left -= steps
        if self._steps_left < 0:
            raise self._too_long
        return is_found


# --- order


def _order(listing: Listing[T], sort: str | None) -> Sequence[str]:
    """Return the columns that the objects must still be sorted by."""
    if not listing.is_in_order:
        return [sort, *listing.order] if sort else listing.order
    return [sort] if sort and _may_have(listing, sort) else []


async def _runs(
    listing: Listing[T], things: Sequence[T], order: Sequence[str], slices: Slices, *, reverse: bool
) -> list[list[tuple[Any, ...]]]:
    """Sort objects into runs for a merge; the object is last in its row. Equal objects keep their order."""
    wanted = [column for column in dict.fromkeys(order) if _may_have(listing, column)]
    columns = [await _column(listing, things, column, slices) for column in wanted]
    runs: list[list[tuple[Any, ...]]] = []
    for start in range(0, len(things), RUN):
        part = slice(start, start + RUN)
        # The numbers are unique, so objects themselves are never compared.
        run = list(zip(*(column[part] for column in columns), count(start), things[part], strict=False))
        run.sort(reverse=reverse)
        runs.append(run)
        await slices.give_way()
    return runs


async def _column(listing: Listing[T], things: Sequence[T], column: str, slices: Slices) -> list[Any]:
    """Return the value of a column for each object, in a form that can be compared."""
    value_of = _value_of(listing, column)
    values: list[Any] = []
    kinds: set[type] = set()
    for start in range(0, len(things), STEP):
        part = list(map(value_of, things[start : start + STEP]))
        values += part
        kinds.update(map(type, part))
        await slices.give_way()
    if kinds <= {str} or kinds <= {int, float}:
        return values
    for start in range(0, len(values), STEP):
        values[start : start + STEP] = map(_rank, values[start : start + STEP])
        await slices.give_way()
    return values


def _may_have(listing: Listing[T], column: str) -> bool:
    """Return whether objects may have a value in a column, so that it affects their order."""
    return listing.fields is None or column.partition(".")[0] in listing.fields


def _value_of(listing: Listing[T], column: str) -> Callable[[T], Any]:
    """Return a function that returns an object's value in a column; 0 without a value, as in RabbitMQ."""
    if column in listing.parts:
        return listing.parts[column]
    path = [part for part in column.split(".") if part]
    if listing.fields is None:
        return partial(_within, path)
    field = listing.fields.get(path[0]) if path else None
    if field is None:
        return lambda _: 0
    return field if len(path) == 1 else lambda thing: _within(path[1:], field(thing))


def _within(path: Sequence[str], value: Any) -> Any:
    for part in path:
        value = value.get(part, 0) if isinstance(value, Mapping) else 0
    return value


def _rank(value: Any) -> tuple[int, Any]:
    """Return a sort key for values of mixed types, in Erlang's order: numbers, atoms, compound values, texts."""
    match value:
        case str():
            return 3, value
        case bool() | None:
            return 1, json.dumps(value)
        case int() | float():
            return 0, value
        case _:
            return 2, json.dumps(value, sort_keys=True, default=str)


# --- columns


def _columns(request: web.Request) -> Columns | None:
    """Return the requested columns; None for all."""
    text = request.query.get("columns")
    if text is None:
        return None
    columns: Columns = {}
    for path in text.split(","):
        parts = [part for part in path.split(".") if part] or [""]
        within: Columns | None = columns
        for part in parts[:-1]:
            within = None if within is None else within.setdefault(part, {})
        if within is not None:
            within[parts[-1]] = None
    return columns


def _basic(columns: Columns | None, names: Collection[str]) -> Columns:
    """Return the requested columns without statistics."""
    return {
        name: None if columns is None else columns[name]
        for name in names
        if columns is None or name in columns
    }


def _narrowed(value: Any, columns: Columns | None) -> Any:
    """Return the requested part of a value, or of each element of a list."""
    if columns is None:
        return value
    if isinstance(value, Mapping):
        return {name: _narrowed(part, columns[name]) for name, part in value.items() if name in columns}
    if isinstance(value, list | tuple):
        return [_narrowed(part, columns) for part in value]
    return value


def _document(listing: Listing[T], thing: T, columns: Columns | None) -> Any:
    """Return the document of an object, with the requested columns at least."""
    if listing.fields is None:
        return thing
    names = listing.fields if columns is None else listing.fields.keys() & columns.keys()
    return {name: listing.fields[name](thing) for name in names}
