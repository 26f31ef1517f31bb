"""`qq list`: its commands, each for a kind of object, and their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qq.cli.kinds import KINDS, Kind
from qq.cli.options import asks_node, prints
from qq.cli.tree import CommandGroup
from qq.cli.values import NAME, Value

if TYPE_CHECKING:
    from qq.cli.remote import Remote


def _read_columns(text: str) -> tuple[str, ...]:
    columns = tuple(part.strip() for part in text.split(","))
    if not all(columns):
        raise ValueError("must be names with commas between them")
    return columns


def _read_regex(text: str) -> str:
    from qq.machine.policy.patterns import InvalidPattern, Pattern  # noqa: PLC0415

    try:
        Pattern(f"(?i){text}")
    except InvalidPattern as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return text


_vhost = click.option("--vhost", type=NAME, metavar="NAME", help="Only in this virtual host.  [default: all]")


@click.group("list", cls=CommandGroup, short_help="list queues, exchanges, connections, users, ...")
def command() -> None:
    """List what is in the cluster."""


def _lister(kind: Kind) -> click.Command:
    def lister(
        node: Remote,
        *,
        form: str,
        columns: tuple[str, ...] | None,
        sort: str | None,
        reverse: bool,
        **which: Any,
    ) -> int:
        from qq.cli.listing import Filter, print_list  # noqa: PLC0415

        if which.get("name") is not None and which.get("regex") is not None:
            raise click.UsageError("give either --name or --regex")
        return print_list(node, kind, Filter(**which, sort=sort, is_reversed=reverse), columns, form)

    lister.__doc__ = f"List {kind.name.replace('-', ' ')}.\n\nColumns: {', '.join(kind.columns)}."
    options = [
        click.option(
            "--columns",
            type=Value("COLUMNS", _read_columns),
            help="What to show, with commas between; a dot leads into what is inside.",
        ),
        click.option("--sort", metavar="COLUMN", help="The order.  [default: by virtual host and name]"),
        click.option("--reverse", is_flag=True, help="The other way round."),
    ]
    if kind.of_vhost is not None:
        options.insert(0, _vhost)
    if kind.has_names:
        options += [
            click.option("--name", type=NAME, metavar="TEXT", help="Only with this in their names."),
            click.option(
                "--regex", type=Value("REGEX", _read_regex), help="Only those whose names match this."
            ),
        ]
    for option in reversed([*options, prints, asks_node]):
        lister = option(lister)
    return click.command(kind.name)(lister)


for _kind in KINDS:
    command.add_command(_lister(_kind))


@command.command("limits")
@_vhost
@click.option("--for-user", type=NAME, metavar="NAME", help="Only of this user.  [default: all]")
@prints
@asks_node
def limits(node: Remote, *, vhost: str | None, for_user: str | None, form: str) -> int:
    """List limits of virtual hosts and of users."""
    from qq.cli.limits import print_limits  # noqa: PLC0415

    if vhost is not None and for_user is not None:
        raise click.UsageError("give either --vhost or --for-user")
    return print_limits(node, vhost, for_user, form)
