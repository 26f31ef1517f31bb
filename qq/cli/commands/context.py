"""`qq context`: shows and changes contexts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from qq.cli.client import contexts
from qq.cli.command_line.tree import CommandGroup
from qq.cli.command_line.values import FILE, URL, Value
from qq.cli.options import known_contexts, with_output
from qq.cli.terminal.escaping import quoted
from qq.cli.terminal.output import print_document, print_rows
from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from qq.cli.client.contexts import Context, Contexts

_COLUMNS = ("name", "in_use", "urls", "user")


def _read_name(text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError(f"{text!r} is no name for a context")
    return text


_name = click.argument("name", type=Value("NAME", _read_name), metavar="NAME", shell_complete=known_contexts)


@click.group("context", cls=CommandGroup)
def context_command() -> None:
    """Name clusters, with their nodes and the user, and choose the cluster that commands use."""


@context_command.command("list", short_help="list all contexts")
@with_output
def list_contexts(*, form: str) -> int:
    """List all contexts; the current context is marked."""
    found = _load()
    rows = [
        {"name": name, "in_use": name == found.current, **contexts.document_of(context)}
        for name, context in found.by_name.items()
    ]
    print_rows(form, rows, _COLUMNS)
    return 0


@context_command.command("show", short_help="show the settings of a context")
@click.argument(
    "name",
    type=Value("NAME", _read_name),
    metavar="[NAME]",
    required=False,
    shell_complete=known_contexts,
)
@with_output
def show_context(*, name: str | None, form: str) -> int:
    """Show the settings of a context, by default of the current context."""
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


@context_command.command("use", short_help="make a context the current context")
@_name
def use_context(*, name: str) -> int:
    """Make a context the current context: commands then ask its nodes, unless an option names other nodes."""
    found = _load()
    context = found[name]
    _change(found, name, found.by_name)
    print(f"context {quoted(name)} is in use: {', '.join(context.urls)}")
    return 0


@context_command.command("add", short_help="add or replace a context")
@_name
@click.option(
    "--url", "urls", type=URL, multiple=True, required=True, help="URL of a node; may be given several times."
)
@click.option("--user", metavar="USER", help="[default: guest]")
@click.option("--password-file", type=FILE, metavar="FILE", help="A file that contains only the password.")
@click.option("--ca-file", type=FILE, metavar="FILE", help="CA certificates that verify the nodes.")
@click.option("--cert-file", type=FILE, metavar="FILE", help="Your own certificate.")
@click.option("--key-file", type=FILE, metavar="FILE", help="Its key, if it is not in the same file.")
def add_context(*, name: str, urls: tuple[str, ...], user: str | None, **files: Path | None) -> int:
    """Add or replace a context. The first context becomes the current context."""
    if files["key_file"] is not None and files["cert_file"] is None:
        raise click.UsageError("--key-file needs --cert-file")
    found = _load()
    paths: dict[str, Any] = {key: file and file.absolute() for key, file in files.items()}
    context = contexts.Context(urls, user, **paths)
    current = name if found.current is None and not found.by_name else found.current
    _change(found, current, {**found.by_name, name: context})
    print(
        f"context {quoted(name)}: {'replaced' if name in found.by_name else 'added'}{_in_use(current, name)}"
    )
    return 0


@context_command.command("remove", short_help="remove a context")
@_name
def remove_context(*, name: str) -> int:
    """Remove a context."""
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
    contexts.save(contexts.file_of(os.environ), found, current=current, by_name=by_name)
