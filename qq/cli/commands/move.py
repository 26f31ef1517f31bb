"""`qq move`: begins, awaits, lists and stops moves of messages.

Invariant: a move continues in the cluster when the command stops waiting, and the command then prints how to find it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from qq.cli.client.api import path_of
from qq.cli.command_line.tree import CommandGroup
from qq.cli.command_line.values import REQUIRED
from qq.cli.objects import queue_object
from qq.cli.options import with_node, with_output, with_vhost
from qq.cli.searches import search, with_filter
from qq.cli.terminal.escaping import escaped, quoted
from qq.cli.terminal.output import print_rows
from qq.cli.terminal.progress import progress_bar
from qq.diagnosis.words import number
from qq.errors import CommandError

if TYPE_CHECKING:
    from qq.cli.client.remote import Remote
    from qq.cli.objects import ApiObject

_POLL_S = 0.5
"""Seconds between polls of a move."""
_RUNNING, _FINISHED = "running", "finished"
_COLUMNS = (
    "vhost",
    "id",
    "source",
    "destination",
    "state",
    "moved",
    "skipped",
    "ready",
    "rate",
    "waits_for",
    "error",
)
_FROM_ONE = click.IntRange(min=1)


@click.group("move", cls=CommandGroup)
def move_command() -> None:
    """Move messages to another queue, or dead letters back to where they came from.

    The cluster moves each message once.
    """


@move_command.command("messages")
@click.option(
    "--from", "source", type=REQUIRED, required=True, metavar="QUEUE", help="Queue with the messages."
)
@click.option("--to", "destination", type=REQUIRED, metavar="QUEUE", help="Destination queue.")
@click.option("--to-origin", is_flag=True, help="Return each message to the queue in which it first died.")
@with_vhost
@click.option("--count", type=_FROM_ONE, metavar="N", help="Most messages to move.  [default: all]")
@click.option("--rate", type=_FROM_ONE, metavar="N", help="Most messages per second.  [default: no limit]")
@with_filter
@click.option("--dry-run", is_flag=True, help="Only print how many messages would be moved.")
@click.option("--no-wait", is_flag=True, help="Do not wait for the end of the move.")
@with_node
def move_messages(
    node: Remote,
    *,
    source: str,
    destination: str | None,
    to_origin: bool,
    vhost: str,
    count: int | None,
    rate: int | None,
    no_wait: bool,
    dry_run: bool,
    **filters: Any,
) -> int:
    """Move the ready messages of a queue, and wait until they are moved.

    Ctrl-C ends the command, but not the move: `qq move stop` does. The exit status is 1 if the move ends before it is
    finished.
    """
    if (destination is not None) == to_origin:
        raise click.UsageError("give either --to or --to-origin")
    target = {"to_origin": True} if destination is None else {"destination": destination}
    limits = {name: value for name, value in {"count": count, "rate": rate}.items() if value is not None}
    given = {name: value for name, value in filters.items() if value}
    if dry_run:
        return _count(node, queue_object(vhost, source), given, count, to_origin=to_origin)
    begun = node.send(
        "POST", path_of("moves", vhost), {"source": source, **target, **limits, "filter": given}
    ).document
    if no_wait:
        print(f"move {escaped(begun['id'])} is under way: `qq move list` shows its progress")
        return 0
    return _wait_for_end(node, begun)


def _count(
    node: Remote, source: ApiObject, wanted: dict[str, Any], most: int | None, *, to_origin: bool
) -> int:
    """Print how many messages a move would move now."""
    found = ready = 0
    for answer, _ in search(node, source, wanted):
        found += answer["returnable" if to_origin else "matched"]
        ready = answer["ready"]
    moved = found if most is None else min(found, most)
    print(f"would move {moved:,} of {number(ready, 'message')} from {source.text}")
    return 0


def _wait_for_end(node: Remote, move: dict[str, Any]) -> int:
    path = path_of("moves", move["vhost"], move["id"])
    total = move["ready"] if move["count"] is None else min(move["ready"], move["count"])
    with progress_bar("moving messages") as bar:
        try:
            while move["state"] == _RUNNING:
                bar.update(move["examined"] if move["count"] is None else move["moved"], total)
                time.sleep(_POLL_S)
                move = node.send("GET", path, missing=f"move {quoted(move['id'])} any more").document
        except (CommandError, KeyboardInterrupt) as error:
            note = f"the move goes on: `qq move stop --id {escaped(move['id'])}` stops it"
            if isinstance(error, CommandError):
                raise CommandError(f"{error}; {note}") from None
            print(note)
            raise
    moved = number(move["moved"], "message")
    done = f"moved {moved} from {quoted(move['source'])}, and left {move['skipped']:,}"
    if move["state"] == _FINISHED:
        print(done)
        return 0
    print(
        f"{move['state']}: {escaped(move['error'])}; {done}" if move["error"] else f"{move['state']}; {done}"
    )
    return 1


@move_command.command("list")
@with_vhost
@click.option("--all-vhosts", is_flag=True, help="List the moves of all virtual hosts.")
@with_output
@with_node
def list_moves(node: Remote, *, vhost: str, all_vhosts: bool, form: str) -> int:
    """List the moves under way, and moves that ended a short while ago."""
    path = path_of("moves") if all_vhosts else path_of("moves", vhost)
    print_rows(form, node.get_list(path), _COLUMNS)
    return 0


@move_command.command("stop")
@click.option("--id", "move", type=REQUIRED, required=True, metavar="ID", help="Id of the move.")
@with_vhost
@with_node
def stop_move(node: Remote, *, move: str, vhost: str) -> int:
    """Stop a move. Moved messages stay moved."""
    node.send("DELETE", path_of("moves", vhost, move), missing=f"move {quoted(move)} in {quoted(vhost)}")
    print("stopped")
    return 0
