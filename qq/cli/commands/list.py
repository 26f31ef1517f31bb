"""`qq list`: lists objects, with a command for each kind."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import click

from qq.cli.client.api import path_of
from qq.cli.command_line.tree import CommandGroup
from qq.cli.command_line.values import NAME, REQUIRED, Value
from qq.cli.listed_kinds import KINDS, Kind
from qq.cli.listing import Filter, print_list
from qq.cli.options import with_group, with_node, with_output
from qq.cli.terminal.escaping import quoted
from qq.cli.terminal.output import print_rows
from qq.diagnosis.words import size, utc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qq.cli.client.remote import Remote
    from qq.cli.objects import ApiObject


def _count(links: list[Any]) -> str:
    return str(len(links))


_LEASE_COLUMNS = ("lease", "messages", "bytes", "taken_at")
_SESSION_COLUMNS = (
    *("channel_number", "incoming_window", "remote_incoming_window", "next_incoming_id", "next_outgoing_id"),
    *("outgoing_unsettled_deliveries", "incoming_links", "outgoing_links"),
)
_SESSION_TITLES = (
    *("session", "incoming window", "client's window", "next incoming", "next outgoing"),
    *("unsettled", "incoming links", "outgoing links"),
)
_SESSION_TEXTS = {"incoming_links": _count, "outgoing_links": _count}
_LIMIT_COLUMNS = ("of", "name", "limit", "value")


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


_of_user = click.option(
    "--for-user", "owner", type=NAME, metavar="NAME", help="Only this user.  [default: all]"
)
_vhost = click.option("--vhost", type=NAME, metavar="NAME", help="Only this virtual host.  [default: all]")


@click.group("list", cls=CommandGroup)
def list_command() -> None:
    """List objects of the cluster."""


def _lister(kind: Kind) -> click.Command:
    def lister(
        node: Remote,
        *,
        form: str,
        columns: tuple[str, ...] | None,
        sort: str | None,
        reverse: bool,
        **filters: Any,
    ) -> int:
        if filters.get("name") is not None and filters.get("regex") is not None:
            raise click.UsageError("give either --name or --regex")
        return print_list(node, kind, Filter(**filters, sort=sort, is_reversed=reverse), columns, form)

    lister.__doc__ = f"List {kind.name.replace('-', ' ')}.\n\nColumns: {', '.join(kind.columns)}."
    options = [
        click.option(
            "--columns",
            type=Value("COLUMNS", _read_columns),
            help="Columns to show, with commas between; a dot leads into a nested object.",
        ),
        click.option("--sort", metavar="COLUMN", help="Column to sort by.  [default: virtual host and name]"),
        click.option("--reverse", is_flag=True, help="Reverse the order."),
    ]
    if kind.of_user is not None:
        options.insert(0, _of_user)
    if kind.of_vhost is not None:
        options.insert(0, _vhost)
    if kind.has_names:
        options += [
            click.option(
                "--name", type=NAME, metavar="TEXT", help="Only objects with this text in their names."
            ),
            click.option(
                "--regex", type=Value("REGEX", _read_regex), help="Only objects with names that match."
            ),
        ]
    for option in reversed([*options, with_output, with_node]):
        lister = option(lister)
    return click.command(kind.name)(lister)


for _kind in KINDS:
    list_command.add_command(_lister(_kind))


@list_command.command("limits")
@_vhost
@_of_user
@with_output
@with_node
def list_limits(node: Remote, *, vhost: str | None, owner: str | None, form: str) -> int:
    """List limits of virtual hosts and of users."""
    if vhost is not None and owner is not None:
        raise click.UsageError("give either --vhost or --for-user")
    vhost_rows = _limit_rows(node, "vhost", vhost) if owner is None else iter(())
    user_rows = _limit_rows(node, "user", owner) if vhost is None else iter(())
    try:
        print_rows(form, [*vhost_rows, *user_rows], _LIMIT_COLUMNS)
    except (KeyError, TypeError, AttributeError):
        raise node.foreign_answer() from None
    return 0


@list_command.command("sessions")
@click.option(
    "--connection",
    type=REQUIRED,
    required=True,
    metavar="NAME",
    help="Name as `qq list connections` shows it.",
)
@with_output
@with_node
def list_sessions(node: Remote, *, connection: str, form: str) -> int:
    """List the sessions of an AMQP 1.0 connection, with their windows. `qq list links` shows their links."""
    missing = f"connection {quoted(connection)}: `qq list connections` shows their names"
    path = path_of("connections", connection, "sessions")
    rows = node.send("GET", path, expected=(HTTPStatus.OK,), missing=missing, kind=list).document
    print_rows(form, rows, _SESSION_COLUMNS, _SESSION_TITLES, texts=_SESSION_TEXTS)
    return 0


@list_command.command("leases")
@with_group
@with_output
@with_node
def list_leases(node: Remote, *, group: ApiObject, form: str) -> int:
    """List the open leases of a group."""
    leases = node.send("GET", group.path, expected=(HTTPStatus.OK,), missing=group.text).document.get(
        "leases"
    )
    if not isinstance(leases, list):
        raise node.foreign_answer()
    print_rows(form, leases, _LEASE_COLUMNS, texts={"bytes": size, "taken_at": utc})
    return 0


def _limit_rows(node: Remote, kind: str, name: str | None) -> Iterator[dict[str, Any]]:
    for each in node.get_list(path_of(f"{kind}-limits", *([] if name is None else [name]))):
        for limit, value in sorted(each["value"].items()):
            yield {"of": kind, "name": each[kind], "limit": limit, "value": value}
