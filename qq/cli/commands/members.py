"""`qq member`, `qq drain`, `qq revive`, `qq upgrade`: show and change the members of a cluster.

Invariant: every command may be repeated, and finished steps are not repeated. A command that removes or replaces a
member names the data directory that the list of members shows now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qq.cli.client.api import path_of
from qq.cli.command_line.tree import CommandGroup
from qq.cli.command_line.values import NODE, PEER
from qq.cli.options import with_node, with_output_and_json, with_timeout
from qq.cli.terminal.escaping import escaped
from qq.cli.terminal.output import print_document, print_lines, print_rows
from qq.errors import CommandError

if TYPE_CHECKING:
    from qq.cli.client.remote import Remote
    from qq.config import Seed

_MEMBERS = "/api/cluster/members"
_COLUMNS = ("name", "state", "role", "lag", "drained", "address", "versions", "id")
_name = click.argument("name", type=NODE, metavar="NODE")
_optional_name = click.argument("name", type=NODE, metavar="[NODE]", required=False)
_no_wait = click.option("--no-wait", is_flag=True, help="Return before the node votes.")


# --- qq member


@click.group("member", cls=CommandGroup)
def member_command() -> None:
    """Show or change the members of the cluster."""


@member_command.command("list", short_help="show the members")
@with_node
@with_output_and_json
def list_members(node: Remote, *, form: str) -> int:
    """Show the members of the cluster, as the log lists them."""
    answer = node.get(_MEMBERS)
    try:
        summary, rows = _summary(answer), list(map(_row, answer["members"]))
    except (KeyError, TypeError):
        raise node.foreign_answer() from None
    if form == "json":
        print_document(answer)
        return 0
    if form == "table":
        print_lines([escaped(summary)])
    print_rows(form, rows, _COLUMNS)
    return 0


@member_command.command("add", short_help="add a node, and wait until it votes")
@_name
@click.argument("address", type=PEER, metavar="HOST:PORT")
@with_node
@with_timeout
@_no_wait
def add_member(node: Remote, *, name: str, address: Seed, no_wait: bool) -> int:
    """Add a node to the cluster, and wait until it votes. The other nodes reach it at HOST:PORT."""
    host, port = address
    node.repeat_until_done(
        "PUT",
        _path(name),
        body={"host": host, "port": port},
        waiting_for=f"{name} to come",
    )
    return _finish(node, name, waits_for_vote=not no_wait)


@member_command.command("remove", short_help="remove a member, whether it is up or not")
@_name
@with_node
@with_timeout
def remove_member(node: Remote, *, name: str) -> int:
    """Remove a member from the cluster, whether it is up or not."""
    entry = _Entry(node, name)
    if entry.is_member:
        note = ""
        if entry.is_asked:
            note = "; it is the node that was asked, and stops then: ask another node whether it is removed"
        node.repeat_until_done(
            "DELETE",
            _path(name),
            query={"id": entry.id},
            waiting_for=f"{name} to be removed",
            note=note,
        )
    elif not entry.was_removed:
        raise _no_such_member(entry)
    print(f"{name} is no member: do not start it again with its data directory")
    return 0


@member_command.command("replace", short_help="replace a member whose data directory is lost")
@_name
@with_node
@with_timeout
@_no_wait
def replace_member(node: Remote, *, name: str, no_wait: bool) -> int:
    """Let a node with a new data directory take the place of a member whose directory is lost.

    The command waits until the node with the new directory votes.
    """
    # A member that is catching up has its new directory already: an earlier request or the automatic return of nodes
    # has replaced it. A second replacement is not requested then.
    entry = _Entry(node, name)
    if not entry.is_member:
        raise _no_such_member(entry)
    if entry.is_given_the_log and no_wait:
        print(f"{name} is there with another data directory, and is given the log")
        return 0
    if not (entry.is_awaited or entry.is_given_the_log):
        node.repeat_until_done(
            "POST",
            f"{_path(name)}/replace",
            body={"id": entry.id},
            waiting_for=f"{name} to be replaced",
        )
    return _finish(node, name, waits_for_vote=not no_wait)


@member_command.command("promote", short_help="wait until a member votes")
@_name
@with_node
@with_timeout
def promote_member(node: Remote, *, name: str) -> int:
    """Wait until a member is up and votes."""
    return _wait_for_vote(node, name)


def _finish(node: Remote, name: str, *, waits_for_vote: bool) -> int:
    if waits_for_vote:
        return _wait_for_vote(node, name)
    print(f"{name} is awaited: start it with an empty data directory and `qq serve --join`")
    return 0


def _wait_for_vote(node: Remote, name: str) -> int:
    node.repeat_until_done("POST", f"{_path(name)}/promote", waiting_for=f"{name} to vote")
    print(f"{name} votes")
    return 0


# --- qq drain, qq revive, qq upgrade


@click.command("drain")
@_optional_name
@with_node
@with_timeout
def drain_command(node: Remote, *, name: str | None) -> int:
    """Move leadership and clients away from a node, and wait until it has neither.

    Without NODE it is the node that receives the command.
    """
    name = name or _asked_node(node)
    node.repeat_until_done(
        "PUT", f"{_path(name)}/drain", waiting_for=f"{name} to lead nothing and have no clients"
    )
    print(f"{name} is under maintenance: it leads nothing and has no clients")
    return 0


@click.command("revive")
@_optional_name
@with_node
@with_timeout
def revive_command(node: Remote, *, name: str | None) -> int:
    """End the maintenance that `qq drain` has begun.

    Without NODE it is the node that receives the command.
    """
    name = name or _asked_node(node)
    node.repeat_until_done("DELETE", f"{_path(name)}/drain", waiting_for=f"the maintenance of {name} to end")
    print(f"{name} is under maintenance no more")
    return 0


@click.group("upgrade", cls=CommandGroup)
def upgrade_command() -> None:
    """Switch to the next version of the state."""


@upgrade_command.command("finish", short_help="switch all nodes to the newest version; this cannot be undone")
@with_node
@with_timeout
def finish_upgrade(node: Remote) -> int:
    """Switch all nodes to the newest version of the state that the asked node supports. This cannot be undone."""
    answer = node.repeat_until_done(
        "POST",
        "/api/cluster/upgrade/finish",
        waiting_for="the upgrade to be finished",
    )
    version = answer.document.get("version")
    if not isinstance(version, int):
        raise node.foreign_answer()
    print(f"the cluster runs version {version} of the state")
    return 0


# --- the list of members


class _Entry:
    """The entry of a name in the list of members."""

    def __init__(self, node: Remote, name: str) -> None:
        self.name = name
        answer = node.get(_MEMBERS)
        try:
            members = {member["name"]: member for member in answer["members"]}
            self.members = list(map(str, members))
            self.is_member = name in members
            member = members.get(name, {"id": None, "role": None, "state": None})
            self.id = str(member["id"] or "")
            """Id of the member's data directory; empty if it is unknown."""
            self.is_awaited = member["role"] == "awaited"
            self.is_given_the_log = member["role"] == "learner" and member["state"] != "down"
            self.is_asked = answer["node"] == name
            self.was_removed = any(removed["name"] == name for removed in answer["removed"])
        except (KeyError, TypeError, AttributeError):
            raise node.foreign_answer() from None


def _no_such_member(entry: _Entry) -> CommandError:
    return CommandError(f"there is no member {entry.name!r}; the members are {', '.join(entry.members)}")


def _asked_node(node: Remote) -> str:
    name = node.get(_MEMBERS).get("node")
    if not isinstance(name, str):
        raise node.foreign_answer()
    return name


def _path(name: str) -> str:
    return path_of("cluster", "members", name)


def _summary(answer: dict[str, Any]) -> str:
    """Return the line above the table of members."""
    cluster = (
        answer["cluster"] if answer["cluster_id"] is None else f"{answer['cluster']} ({answer['cluster_id']})"
    )
    return f"cluster {cluster}, version {answer['version']} of the state, as {answer['node']} sees it"


def _row(member: dict[str, Any]) -> dict[str, Any]:
    from cluster.configuration.configuration import PeerAddress  # noqa: PLC0415 -- large

    address = str(PeerAddress(member["host"], member["port"]))
    return {column: member[column] for column in _COLUMNS if column != "address"} | {"address": address}
