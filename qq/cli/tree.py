"""The tree of commands. Groups hold commands; the modules of commands are loaded on demand."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.exceptions import NoSuchCommand

from qq.cli.signals import exit_at_once

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from click.shell_completion import CompletionItem

COMMAND = "qq.command"
"""Key in the click context for the full name of the running command; its errors begin with that name."""


class CommandGroup(click.Group):
    """Commands by name. As in RabbitMQ's tools, names may have `_` instead of `-`."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name.replace("_", "-"))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            _, command, rest = super().resolve_command(ctx, args)
        except NoSuchCommand as error:
            raise NoSuchCommand(error.command_name, possibilities=self.list_commands(ctx), ctx=ctx) from None
        if command is not None:
            ctx.meta[COMMAND] = f"{ctx.command_path} {command.name}"
        return command and command.name, command, rest


class Entry(NamedTuple):
    """A command in the help of `qq`."""

    name: str
    module: str
    """Module that defines the command `name-of-it` as `name_of_it_command`."""
    help: str


class Root(CommandGroup):
    """The commands of a package. Help and completion load none of its modules, and a command only its own."""

    def __init__(self, package: str, sections: Mapping[str, Sequence[Entry]], **attributes: Any) -> None:
        """`sections` maps titles in the help to commands."""
        super().__init__(**attributes)
        self._package = package
        self._sections = sections
        self._entries = {entry.name: entry for entries in sections.values() for entry in entries}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's signature
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = self._entries.get(cmd_name.replace("_", "-"))
        if entry is None:
            return None
        with exit_at_once():
            module = import_module(f"{self._package}.{entry.module}")
        return getattr(module, f"{entry.name.replace('-', '_')}_command")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for title, entries in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(entry.name, entry.help) for entry in entries])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        from click.shell_completion import CompletionItem  # noqa: PLC0415 -- only for completion

        entries = self._entries.values()
        return [
            CompletionItem(each.name, help=each.help) for each in entries if each.name.startswith(incomplete)
        ]
