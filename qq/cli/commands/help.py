"""`qq help`: shows the help of a command, as `--help` behind it does."""

from __future__ import annotations

import click


@click.command("help")
@click.argument("names", metavar="[COMMAND]...", nargs=-1)
@click.pass_context
def help_command(context: click.Context, *, names: tuple[str, ...]) -> int:
    """Show the help of qq, or of a command."""
    found = context.find_root()
    for name in names:
        group = found.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"`{found.command_path}` has no commands", found)
        _, command, _ = group.resolve_command(found, [name])
        found = click.Context(command or group, parent=found, info_name=name)
    click.echo(found.get_help())
    return 0
