"""Prints results on standard output: as a table, a JSON document, or comma-separated values.

Invariant: tables contain names escaped for a terminal, and so does CSV that is written to a terminal; JSON and other
CSV contain them unchanged. Rows are printed as they arrive; a table is laid out in pages of `PAGE_ROWS` rows.
"""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections.abc import Mapping
from functools import partial
from itertools import chain, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from qq.cli.terminal.escaping import escaped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Document = Mapping[str, Any]
    Rows = Iterable[Document]
    Texts = Mapping[str, Callable[[Any], str]]

PAGE_ROWS = 500
"""Rows of a table that are laid out together."""
GAP = 2
"""Spaces between two columns."""
_WIDTH_MAX = 60
"""Widest column, in places of a terminal; `rich` folds longer cells."""
_FOLDED_WIDTH = 30
"""Width of a column that is folded before other columns are left out, in places of a terminal."""
_TABLE_WIDTH_MAX = 100_000
"""Width for measuring a table, in characters: wider than any table."""


def print_document(document: Any) -> None:
    """Print a JSON document."""
    print(json.dumps(document, indent=2))


def print_rows(
    form: str,
    rows: Rows,
    columns: Sequence[str],
    head: Sequence[str] = (),
    *,
    texts: Texts = MappingProxyType({}),
    fits: bool = True,
) -> None:
    """Print documents in the given form: their `columns`, or with JSON the whole documents.

    A dot in a column leads into a nested document. `head` are the titles of the columns in a table, `texts` make the
    cells of some columns. With `fits`, a table leaves out columns that a terminal has no room for.
    """
    match form:
        case "json":
            _print_json(rows)
        case "csv":
            _print_csv(rows, columns)
        case _:
            made = ([_cell(row, column, texts) for column in columns] for row in rows)
            print_cells(head or columns, made, fits=fits)


def _cell(row: Document, column: str, texts: Texts) -> str:
    value = value_in(row, column)
    make = texts.get(column, cell)
    return cell(value) if value is None else make(value)


def print_answer(
    form: str, document: Document, rows: str, columns: Sequence[str], show: Callable[[], None]
) -> None:
    """Print a document in the given form; the rows for CSV are under its key `rows`.

    `show` prints the document for people.
    """
    match form:
        case "json":
            print_document(document)
        case "csv":
            print_rows(form, document[rows], columns)
        case _:
            show()


def value_in(document: Document, column: str) -> Any:
    """Return the value of a document in a column, or `None`."""
    value: Any = document
    for part in column.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


# --- for programs


def _print_json(rows: Rows) -> None:
    separator = "["
    for row in rows:
        sys.stdout.write(f"{separator}\n  {json.dumps(row)}")
        separator = ","
    print("[]" if separator == "[" else "\n]")


def _print_csv(rows: Rows, columns: Sequence[str]) -> None:
    writer = csv.writer(sys.stdout)
    field = _field_on_terminal if sys.stdout.isatty() else _field
    writer.writerow(columns)
    for row in rows:
        writer.writerow([field(value_in(row, column)) for column in columns])


def _field(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case _:
            return json.dumps(value)


def _field_on_terminal(value: Any) -> str:
    return escaped(_field(value))


# --- for people


def print_cells(head: Sequence[str], rows: Iterable[Sequence[str]], *, fits: bool = True) -> None:
    """Print a table of escaped texts, with `rich` on a terminal.

    With `fits`, the last columns that the terminal has no room for are left out, which a last line says.
    """
    following = iter(rows)
    is_terminal = sys.stdout.isatty()
    page = list(islice(following, PAGE_ROWS))
    widths = widths_that_fit(head, page, terminal_width()) if fits and is_terminal else ()
    count = len(widths) or len(head)
    show = partial(_show, widths) if is_terminal else _aligner()
    show(head[:count], [row[:count] for row in page])
    while page := list(islice(following, PAGE_ROWS)):
        show((), [row[:count] for row in page])
    if count < len(head):
        print_lines([f"(no room for: {', '.join(head[count:])}; make the terminal wider, or give --output)"])


def print_lines(lines: Sequence[str]) -> None:
    """Print escaped lines of text. On a terminal, a long line is broken between words, and keeps its indentation."""
    if not sys.stdout.isatty():
        print("\n".join(lines))
        return
    from rich.console import Console  # noqa: PLC0415 -- only for a terminal
    from rich.padding import Padding  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console()
    for line in lines:
        text = line.lstrip()
        console.print(Padding(Text(text), (0, 0, 0, len(line) - len(text)), expand=False))


def terminal_width() -> int:
    return shutil.get_terminal_size().columns


def widths_that_fit(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the widths of the first columns that have room in this width, and of at least 1 column.

    The widest columns are folded to `_FOLDED_WIDTH` places before a column is left out.
    """
    columns = [[title, *(row[place] for row in rows)] for place, title in enumerate(head)]
    widths = [min(_WIDTH_MAX, max(map(_places, column))) for column in columns]
    for count in range(len(head), 0, -1):
        folded, room = widths[:count], width - GAP * (count - 1)
        while sum(folded) > room and max(folded) > _FOLDED_WIDTH:
            folded[folded.index(max(folded))] -= 1
        if sum(folded) <= room:
            return folded
    return [max(1, min(widths[0], width))]


def _places(text: str) -> int:
    """Return how many places of a terminal a text takes: letters of East Asia take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415

    return cell_len(text)


def duration(milliseconds: float) -> str:
    """Return a time as people read it: `3d 4h`, `5m 12s`."""
    seconds = int(milliseconds / 1000)
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {seconds % 60}s" if minutes else f"{seconds}s"


def cell(value: Any) -> str:
    """Return a value as people read it: `-` for `None` or an empty list, `""` for an empty name."""
    match value:
        case None:
            return "-"
        case list() | dict() if not value:
            return "-"
        case "":
            return '""'
        case str():
            return escaped(value)
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.1f}"
        case list() if all(isinstance(each, str) for each in value):
            return escaped(", ".join(value))
        case _:
            return escaped(json.dumps(value, ensure_ascii=False))


def _aligner() -> Callable[[Sequence[str], Sequence[Sequence[str]]], None]:
    """Return a function that prints rows in aligned columns, which only get wider from page to page.

    Lines have no trailing spaces.
    """
    widths: list[int] = []

    def show(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        lines = list(chain([head] if head else [], rows))
        known = [widths] if widths else []
        taken = [list(map(_places, line)) for line in lines]
        widths[:] = map(max, zip(*known, *taken, strict=True))
        for line, places in zip(lines, taken, strict=True):
            padded = (
                text + " " * (width - used) for text, width, used in zip(line, widths, places, strict=True)
            )
            print((" " * GAP).join(padded).rstrip())

    return show


def _show(widths: Sequence[int], head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415 -- only for a terminal

    console, table = Console(), table_of(head, rows, widths)
    wide = console.options.update(width=_TABLE_WIDTH_MAX)
    needed = console.measure(table, options=wide).maximum
    # The terminal wraps lines that are too long, which reads better than columns of three letters.
    Console(width=max(needed, console.width)).print(table)


def table_of(head: Sequence[str], rows: Iterable[Sequence[str]], widths: Sequence[int] = ()) -> Any:
    """Make a table for `rich`. Its columns have the given widths, or as much as their cells need."""
    from rich.table import Column, Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415 -- Text, because names are no markup

    texts = [list(map(Text, row)) for row in rows]
    count = len(head) or max(map(len, texts), default=0)
    titles = map(Text, head or [""] * count)
    columns = [
        Column(title, overflow="fold", max_width=_WIDTH_MAX, width=width)
        for title, width in zip(titles, widths or [None] * count, strict=True)
    ]
    table = Table(
        *columns,
        box=None,
        show_header=bool(head),
        pad_edge=False,
        padding=(0, GAP, 0, 0),
    )
    for row in texts:
        table.add_row(*row)
    return table
