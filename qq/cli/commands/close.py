"""`qq close`: closes connections of clients, groups that lease messages, and sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.client.api import path_of
from qq.cli.command_line.tree import CommandGroup
from qq.cli.command_line.values import LINE, REQUIRED
from qq.cli.objects import place_of, sink_object
from qq.cli.options import with_group, with_node, with_vhost
from qq.cli.terminal.escaping import quoted

if TYPE_CHECKING:
    from qq.cli.client.remote import Remote
    from qq.cli.objects import ApiObject

_reason = click.option("--reason", type=LINE, metavar="TEXT", help="Reason for the client.")


@click.group("close", cls=CommandGroup)
def close_command() -> None:
    """Close connections of clients, a group that leases messages, or a sink."""


@close_command.command("connection")
@click.option(
    "--name", type=REQUIRED, required=True, metavar="NAME", help="Name as `qq list connections` shows it."
)
@_reason
@with_node
def close_connection(node: Remote, *, name: str, reason: str | None) -> int:
    """Close a connection."""
    missing = f"connection {quoted(name)}: `qq list connections` shows their names"
    node.send("DELETE", path_of("connections", name), headers=_headers(reason), missing=missing)
    print(f"connection {quoted(name)}: closed")
    return 0


@close_command.command("connections")
@click.option(
    "--for-user", "owner", type=REQUIRED, required=True, metavar="USER", help="User of the connections."
)
@_reason
@with_node
def close_connections(node: Remote, *, owner: str, reason: str | None) -> int:
    """Close all connections of a user."""
    path = path_of("connections", "username", owner)
    count = len(node.get_list(path))
    if count:
        node.send("DELETE", path, headers=_headers(reason))
    print(f"connections of user {quoted(owner)}: {count} closed")
    return 0


@close_command.command("group")
@with_group
@click.option("--release", is_flag=True, help="Return the messages of its open leases to the queue.")
@with_node
def close_group(node: Remote, *, group: ApiObject, release: bool) -> int:
    """Close a group. Its job cannot go on with its leases."""
    query = place_of(node, group) | ({"release": "true"} if release else {})
    node.send("DELETE", group.path, query=query, missing=group.text)
    print(f"{group.text}: closed")
    return 0


@close_command.command("sink")
@click.option(
    "--sink", type=REQUIRED, required=True, metavar="NAME", help="Name as `qq list sinks` shows it."
)
@with_vhost
@with_node
def close_sink(node: Remote, *, sink: str, vhost: str) -> int:
    """Close a sink, and drop its messages that are not committed. Its writer cannot go on."""
    found = sink_object(vhost, sink)
    node.send("DELETE", found.path, missing=found.text)
    print(f"{found.text}: closed")
    return 0


def _headers(reason: str | None) -> dict[str, str]:
    return {} if reason is None else {"X-Reason": reason}
