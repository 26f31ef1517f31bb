"""`qq leader` and `qq check`: transfer leadership, and check whether a node may be stopped.

Invariant: every command may be repeated, and finished steps are not repeated.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import click

from qq.cli.client.api import path_of
from qq.cli.command_line.tree import CommandGroup
from qq.cli.command_line.values import NODE, SECONDS
from qq.cli.options import with_node, with_output
from qq.cli.terminal.escaping import escaped
from qq.cli.terminal.output import print_document, print_rows
from qq.errors import CommandError

if TYPE_CHECKING:
    from qq.cli.client.remote import Answer, Remote

_LEADER = "/api/cluster/leader"
_SAFE_TO_STOP = ("health", "checks", "safe-to-stop")


@click.group("leader", cls=CommandGroup)
def leader_command() -> None:
    """Show or change the leader."""


@leader_command.command("show", short_help="print the name of the leader")
@with_node
@with_output
def show_leader(node: Remote, *, form: str) -> int:
    """Print the name of the leader."""
    leader = node.get(_LEADER).get("leader")
    if leader is None:
        raise CommandError(f"{node.url}: no leader is known; `qq status` says why")
    _print(form, "leader", {"leader": leader})
    return 0


@leader_command.command("transfer", short_help="transfer leadership to another node")
@with_node
@click.option("--to", type=NODE, metavar="NODE", help="[default: any other node]")
@click.option(
    "--timeout",
    type=SECONDS,
    metavar="SECONDS",
    help="For how long to try again if NODE has not taken over.  [default: a single attempt]",
)
def transfer_leadership(node: Remote, *, to: str | None) -> int:
    """Transfer leadership to another node, and return when it leads."""
    # A transfer without a name is not repeated: leadership may have moved after a lost answer, and the next try would
    # move it again.
    if node.has_time and to is None:
        raise click.UsageError("--timeout needs --to: without it each try moves leadership on")
    answer = node.repeat_until_done(
        "PUT",
        _LEADER,
        body={} if to is None else {"to": to},
        waiting_for=f"{to or 'another node'} to lead",
    )
    print(f"{_text(node, answer, 'leader')} leads")
    return 0


@click.group("check", cls=CommandGroup)
def check_command() -> None:
    """Check whether an action is safe; exit status 0 means yes."""


@check_command.command("safe-to-stop", short_help="check whether the cluster goes on without a node")
@with_node
@click.option("--node", "name", type=NODE, metavar="NODE", help="[default: the asked node]")
@click.option(
    "--timeout",
    type=SECONDS,
    metavar="SECONDS",
    help="How long to wait for a yes.  [default: a single question]",
)
@with_output
def check_safe_to_stop(node: Remote, *, name: str | None, form: str) -> int:
    """Check whether the cluster goes on without a node; exit status 0 means yes, 1 means no."""
    answer = node.repeat_until_done(
        "GET",
        path_of(*_SAFE_TO_STOP) if name is None else path_of(*_SAFE_TO_STOP, name),
        expected=(HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE),
        waiting_for="the others to go on without it",
    )
    is_safe = answer.status == HTTPStatus.OK
    _print(form, "reason", {"safe": is_safe, "reason": _text(node, answer, "reason")})
    return 0 if is_safe else 1


@check_command.command("ready", short_help="check whether a node serves clients")
@click.option(
    "--wait",
    "timeout",
    type=SECONDS,
    metavar="SECONDS",
    help="How long to wait for a yes.  [default: a single question]",
)
@with_output
@with_node
def check_ready(node: Remote, *, form: str) -> int:
    """Check whether a node serves clients; exit status 0 means yes. It needs no login."""
    reason = node.wait_ready()
    _print(form, "reason", {"ready": reason is None, "reason": reason or "it serves clients"})
    return 0 if reason is None else 1


def _print(form: str, field: str, answer: dict[str, Any]) -> None:
    """Print an answer in the given form; the table form prints only the field `field`."""
    match form:
        case "table":
            print(escaped(answer[field]))
        case "json":
            print_document(answer)
        case _:
            print_rows(form, [answer], list(answer))


def _text(node: Remote, answer: Answer, field: str) -> str:
    text = answer.document.get(field)
    if not isinstance(text, str):
        raise node.foreign_answer()
    return text
