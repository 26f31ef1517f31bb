"""`qq context`: shows and changes contexts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from qq.cli import contexts
from qq.cli.escaping import quoted
from qq.cli.output import print_document, print_rows
from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qq.cli.contexts import Context, Contexts

_COLUMNS = ("name", "in_use", "urls", "user")


def list_contexts(form: str) -> int:
    """Print all contexts. Raises CommandError."""
    found = _load()
    rows = [
        {"name": name, "in_use": name == found.current, **contexts.document_of(context)}
        for name, context in found.by_name.items()
    ]
    print_rows(form, rows, _COLUMNS)
    return 0


def show_context(name: str | None, form: str) -> int:
    """Print the settings of a context, by default of the current context. Raises CommandError."""
    found = _load()
    name = found.current if name is None else name
    if name is None:
        raise CommandError("no context is in use: name one, or choose one with `qq context use NAME`")
    document = {"name": name, **contexts.document_of(found[name])}
    if form == "json":
        print_document(document)
    else:
        print_rows(form, [{"key": key, "value": value} for key, value in document.items()], ("key", "value"))
    return 0


def use_context(name: str) -> int:
    """Make a context the current context, whose cluster commands ask. Raises CommandError."""
    found = _load()
    context = found[name]
    _change(found, name, found.by_name)
    print(f"context {quoted(name)} is in use: {', '.join(context.urls)}")
    return 0


def add_context(name: str, urls: Sequence[str], user: str | None, files: Mapping[str, Any]) -> int:
    """Add or replace a context. Raises CommandError."""
    found = _load()
    context = contexts.Context(tuple(urls), user, **files)
    current = name if found.current is None and not found.by_name else found.current
    _change(found, current, {**found.by_name, name: context})
    print(
        f"context {quoted(name)}: {'replaced' if name in found.by_name else 'added'}{_in_use(current, name)}"
    )
    return 0


def remove_context(name: str) -> int:
    """Remove a context. Raises CommandError."""
    found = _load()
    found[name]
    others = {other: context for other, context in found.by_name.items() if other != name}
    _change(found, None if found.current == name else found.current, others)
    note = "; none is in use now" if found.current == name else ""
    print(f"context {quoted(name)}: removed{note}")
    return 0


def _in_use(current: str | None, name: str) -> str:
    return ", and in use" if current == name else f"; `qq context use {name}` has commands ask it"


def _load() -> Contexts:
    return contexts.load(contexts.file_of(os.environ))


def _change(found: Contexts, current: str | None, by_name: Mapping[str, Context]) -> None:
    contexts.changed(contexts.file_of(os.environ), found, current=current, by_name=by_name)
