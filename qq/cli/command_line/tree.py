"""The tree of commands. Groups hold commands; the modules of commands are loaded on demand."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.exceptions import NoSuchCommand

from qq.cli.command_line.examples import EXAMPLES
from qq.cli.command_line.rabbitmq_commands import OPTION_NAMES, counterpart
from qq.cli.terminal.signals import exit_at_once

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from click.shell_completion import CompletionItem

COMMAND = "qq.command"
"""Key in the click context for the full name of the running command; its errors begin with that name."""

_OF_MANY = {"--url", "--context", "--user", "--password", "--password-file", "--output", "--json"}
"""Options of the node, the login and the output."""
_WHOLE = 1_000
"""Length of a help text that is not cut, in characters."""
_LIKENESS = 0.7
"""Least likeness (difflib) of a command that is offered in place of an unknown command."""


class CommandGroup(click.Group):
    """Commands by name. As in RabbitMQ's tools, names may have `_` instead of `-`."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _arranged(super().get_command(ctx, cmd_name.replace("_", "-")), ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names of the commands, with whole help texts."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(_WHOLE)) for name, command in found if command is not None]
            )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            _, command, rest = super().resolve_command(ctx, args)
        except NoSuchCommand as error:
            raise self._no_such_command(error.command_name, ctx) from None
        if command is not None:
            ctx.meta[COMMAND] = f"{ctx.command_path} {command.name}"
            rest = _with_options(command, rest)
        return command and command.name, command, rest

    def _no_such_command(self, name: str, ctx: click.Context) -> click.UsageError:
        """Return the error for an unknown command, with the command that the user most likely wants."""
        known = counterpart(name) if ctx.parent is None else None
        if known is not None:
            return click.UsageError(known, ctx)
        likely = get_close_matches(name.replace("_", "-"), self.list_commands(ctx), cutoff=_LIKENESS)
        return NoSuchCommand(name, possibilities=likely, ctx=ctx)


def _with_options(command: click.Command, arguments: list[str]) -> list[str]:
    """Return the arguments with `--name value` in place of rabbitmqadmin's `name=value`."""
    if isinstance(command, click.Group) or any(isinstance(each, click.Argument) for each in command.params):
        return arguments
    takes_value = {
        name: not (isinstance(option, click.Option) and option.is_flag)
        for option in command.params
        for name in option.opts
    }
    found: list[str] = []
    is_value = False
    for argument in arguments:
        name, separator, value = argument.partition("=")
        option = _option_named(name, takes_value) if separator and not is_value else None
        found += [argument] if option is None else [f"{option}={value}"]
        is_value = not is_value and takes_value.get(argument, False)
    return found


def _option_named(name: str, options: Mapping[str, bool]) -> str | None:
    """Return the option that takes the value of an argument of rabbitmqadmin, or `None`."""
    for each in (OPTION_NAMES.get(name, name), name):
        option = f"--{each.replace('_', '-')}"
        if options.get(option):
            return option
    return None


def _arranged(command: click.Command | None, ctx: click.Context) -> click.Command | None:
    """Return the command with its own options before those of many commands, and with examples in its help."""
    if command is None:
        return None
    if any("--context" in option.opts for option in command.params):
        command.params.sort(key=lambda option: not _OF_MANY.isdisjoint(option.opts))
    examples = EXAMPLES.get(f"{ctx.command_path} {command.name}")
    if examples:
        command.epilog = "\n".join(["\b", "Examples:" if len(examples) > 1 else "Example:", *examples])
    return command


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

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._entries.get(cmd_name.replace("_", "-"))
        if entry is None:
            return None
        with exit_at_once():
            module = import_module(f"{self._package}.{entry.module}")
        return _arranged(getattr(module, f"{entry.name.replace('-', '_')}_command"), ctx)

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
