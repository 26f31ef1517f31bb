"""The tree of commands. Groups hold commands; the modules of commands are loaded on demand."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import NoSuchCommand

from qq.cli.ending import at_once

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


class Root(CommandGroup):
    """The commands of a package, a module each: `name-of-it` is `command` in the module `name_of_it`."""

    def __init__(self, package: str, sections: Mapping[str, Sequence[str]], **attributes: Any) -> None:
        """`sections` maps the titles in the help to the names of their commands."""
        super().__init__(**attributes)
        self._package = package
        self._sections = sections

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's signature
        return [name for names in self._sections.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = cmd_name.replace("_", "-")
        if name not in self.list_commands(ctx):
            return None
        with at_once():
            return import_module(f"{self._package}.{name.replace('-', '_')}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in self._sections.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            rows = [(name, command.get_short_help_str(80)) for name, command in commands if command]
            with formatter.section(title):
                formatter.write_dl(rows)
