"""`qq context`: its commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from qq.cli.options import prints
from qq.cli.tree import CommandGroup
from qq.cli.values import FILE, URL, Value


def _read_name(text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError(f"{text!r} is no name for a context")
    return text


_name = click.argument("name", type=Value("NAME", _read_name), metavar="NAME")


@click.group("context", cls=CommandGroup, short_help="name clusters, and choose the one that is asked")
def command() -> None:
    """Name clusters, with their nodes and the user, and choose the one that is asked."""


@command.command("list", short_help="show all contexts")
@prints
def list_(*, form: str) -> int:
    """Show all contexts; the one in use is marked."""
    from qq.cli.own_contexts import list_contexts  # noqa: PLC0415

    return list_contexts(form)


@command.command("show", short_help="show what a context says")
@click.argument("name", type=Value("NAME", _read_name), metavar="[NAME]", required=False)
@prints
def show(*, name: str | None, form: str) -> int:
    """Show what a context says; without NAME that in use."""
    from qq.cli.own_contexts import show_context  # noqa: PLC0415

    return show_context(name, form)


@command.command("use", short_help="have commands ask the cluster of a context")
@_name
def use(*, name: str) -> int:
    """Have commands ask the cluster of this context, unless they are told otherwise."""
    from qq.cli.own_contexts import use_context  # noqa: PLC0415

    return use_context(name)


@command.command("add", short_help="add a context, or replace one")
@_name
@click.option(
    "--url", "urls", type=URL, multiple=True, required=True, help="A node; may be given several times."
)
@click.option("--user", metavar="USER", help="[default: guest]")
@click.option("--password-file", type=FILE, metavar="FILE", help="A file with the password and nothing else.")
@click.option(
    "--ca-file", type=FILE, metavar="FILE", help="The authorities that certificates of nodes are from."
)
@click.option("--cert-file", type=FILE, metavar="FILE", help="Your own certificate.")
@click.option("--key-file", type=FILE, metavar="FILE", help="Its key, if it is not in the same file.")
def add(*, name: str, urls: tuple[str, ...], user: str | None, **files: Path | None) -> int:
    """Add a context, or replace the one of this name. The first one is in use at once."""
    from qq.cli.own_contexts import add_context  # noqa: PLC0415

    if files["key_file"] is not None and files["cert_file"] is None:
        raise click.UsageError("--key-file needs --cert-file")
    whole: dict[str, Any] = {key: file and file.absolute() for key, file in files.items()}
    return add_context(name, urls, user, whole)


@command.command("remove", short_help="forget a context")
@_name
def remove(*, name: str) -> int:
    """Forget a context."""
    from qq.cli.own_contexts import remove_context  # noqa: PLC0415

    return remove_context(name)
