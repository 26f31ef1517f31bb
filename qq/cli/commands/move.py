"""`qq move`: its commands and their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qq.cli.options import asks_node, in_vhost, prints
from qq.cli.tree import CommandGroup
from qq.cli.values import OBJECT, REQUIRED

if TYPE_CHECKING:
    from qq.cli.remote import Remote

_FROM_ONE = click.IntRange(min=1)


@click.group(
    "move", cls=CommandGroup, short_help="move messages to another queue, or back to where they died"
)
def command() -> None:
    """Move messages to another queue, or dead letters back to where they came from. The cluster does it, each once."""


@command.command("messages")
@click.option("--from", "source", type=REQUIRED, required=True, metavar="QUEUE", help="Where they are.")
@click.option("--to", "destination", type=REQUIRED, metavar="QUEUE", help="Where they are to go.")
@click.option("--to-origin", is_flag=True, help="Each goes back to the queue in which it first died.")
@in_vhost
@click.option("--count", type=_FROM_ONE, metavar="N", help="How many to move at most.  [default: all]")
@click.option(
    "--rate", type=_FROM_ONE, metavar="N", help="How many in a second at most.  [default: no limit]"
)
@click.option(
    "--reason", type=REQUIRED, metavar="REASON", help="Only those that died of it: rejected, expired, ..."
)
@click.option(
    "--died-in", "from_queue", type=REQUIRED, metavar="QUEUE", help="Only those that died last in it."
)
@click.option("--headers", type=OBJECT, default="{}", metavar="JSON", help="Only those with these headers.")
@click.option("--no-wait", is_flag=True, help="Do not wait for the end of it.")
@asks_node
def messages(
    node: Remote,
    *,
    source: str,
    destination: str | None,
    to_origin: bool,
    vhost: str,
    count: int | None,
    rate: int | None,
    no_wait: bool,
    **wanted: Any,
) -> int:
    """Move the messages that wait in a queue, and wait until they are moved.

    Ctrl-C ends the waiting, and not the move: `qq move stop` does.
    """
    if (destination is not None) == to_origin:
        raise click.UsageError("give either --to or --to-origin")
    from qq.cli.moves import WantedMove, begin  # noqa: PLC0415

    move = WantedMove(
        vhost, source, destination, count, rate, {name: value for name, value in wanted.items() if value}
    )
    return begin(node, move, is_awaited=not no_wait)


@command.command("list")
@in_vhost
@click.option("--all-vhosts", is_flag=True, help="Those of all virtual hosts.")
@prints
@asks_node
def list_moves(node: Remote, *, vhost: str, all_vhosts: bool, form: str) -> int:
    """Show the moves that are under way, and those that have ended a short while ago."""
    from qq.cli.moves import show  # noqa: PLC0415

    return show(node, None if all_vhosts else vhost, form)


@command.command("stop")
@click.option("--id", "move", type=REQUIRED, required=True, metavar="ID", help="What the move is called.")
@in_vhost
@asks_node
def stop(node: Remote, *, move: str, vhost: str) -> int:
    """Stop a move. What is moved stays moved."""
    from qq.cli import moves  # noqa: PLC0415

    return moves.stop(node, vhost, move)
