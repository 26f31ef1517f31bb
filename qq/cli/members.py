"""`qq member`, `qq drain`, `qq revive`, `qq upgrade`: change the members of a cluster.

Invariant: every command may be repeated, and finished steps are not repeated. A command that removes or replaces a
member names the data directory that the list of members shows now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cluster.configuration.configuration import PeerAddress
from qq.cli.output import print_document, print_rows
from qq.cli.remote import path_of
from qq.errors import CommandError

if TYPE_CHECKING:
    from qq.cli.remote import Remote

_MEMBERS = "/api/cluster/members"
_COLUMNS = ("name", "address", "role", "state", "lag", "versions", "drained", "id")


def list_members(node: Remote, form: str) -> int:
    """Print the members of the cluster. Raises CommandError."""
    answer = node.get(_MEMBERS)
    try:
        seen, rows = _seen(answer), list(map(_row, answer["members"]))
    except (KeyError, TypeError):
        raise node.is_foreign() from None
    if form == "json":
        print_document(answer)
        return 0
    if form == "table":
        print(seen)
    print_rows(form, rows, _COLUMNS)
    return 0


def add_member(node: Remote, name: str, host: str, port: int, *, waits_for_vote: bool) -> int:
    """Add a node to the cluster, and wait until it votes if `waits_for_vote`. Raises CommandError."""
    node.ask_until_done(
        "PUT",
        _path(name),
        body={"host": host, "port": port},
        waiting_for=f"{name} to come",
    )
    return _finish(node, name, waits_for_vote=waits_for_vote)


def promote_member(node: Remote, name: str) -> int:
    """Wait until a member votes. Raises CommandError."""
    node.ask_until_done("POST", f"{_path(name)}/promote", waiting_for=f"{name} to vote")
    print(f"{name} votes")
    return 0


def remove_member(node: Remote, name: str) -> int:
    """Remove a member, whether it is up or not. Raises CommandError."""
    found = _Found(node, name)
    if found.is_member:
        note = ""
        if found.is_asked:
            note = "; it is the node that was asked, and stops then: ask another one whether it is gone"
        node.ask_until_done(
            "DELETE",
            _path(name),
            query={"id": found.id},
            waiting_for=f"{name} to be removed",
            note=note,
        )
    elif not found.was_removed:
        raise CommandError(f"there is no member {name!r}; the members are {', '.join(found.members)}")
    print(f"{name} is no member: do not start it again with its data directory")
    return 0


def replace_member(node: Remote, name: str, *, waits_for_vote: bool) -> int:
    """Replace the lost data directory of a member by a new directory. Raises CommandError.

    With `waits_for_vote`, wait until the node with the new directory votes. A member that is catching up has its new
    directory already: an earlier request or the automatic return of nodes has replaced it. Then no second replacement
    is requested.
    """
    found = _Found(node, name)
    if not found.is_member:
        raise CommandError(f"there is no member {name!r}; the members are {', '.join(found.members)}")
    if found.is_given_the_log and not waits_for_vote:
        print(f"{name} is there with another data directory, and is given the log")
        return 0
    if not (found.is_awaited or found.is_given_the_log):
        node.ask_until_done(
            "POST",
            f"{_path(name)}/replace",
            body={"id": found.id},
            waiting_for=f"{name} to be replaced",
        )
    return _finish(node, name, waits_for_vote=waits_for_vote)


def _finish(node: Remote, name: str, *, waits_for_vote: bool) -> int:
    if waits_for_vote:
        return promote_member(node, name)
    print(f"{name} is awaited: start it with an empty data directory and `qq serve --join`")
    return 0


def drain(node: Remote, name: str | None) -> int:
    """Move leadership and clients away from a node, and wait until it has neither. Raises CommandError."""
    name = _asked(node) if name is None else name
    _maintain(node, "PUT", name, f"{name} to lead nothing and have no clients")
    print(f"{name} is under maintenance: it leads nothing and has no clients")
    return 0


def revive(node: Remote, name: str | None) -> int:
    """End the maintenance of a node. Raises CommandError."""
    name = _asked(node) if name is None else name
    _maintain(node, "DELETE", name, f"the maintenance of {name} to end")
    print(f"{name} is under maintenance no more")
    return 0


def _maintain(node: Remote, method: str, name: str, waiting_for: str) -> None:
    node.ask_until_done(method, f"{_path(name)}/drain", waiting_for=waiting_for)


def finish_upgrade(node: Remote) -> int:
    """Switch the cluster to the newest version of the state that the asked node supports. Raises CommandError."""
    answer = node.ask_until_done(
        "POST",
        "/api/cluster/upgrade/finish",
        waiting_for="the upgrade to be finished",
    )
    version = answer.document.get("version")
    if not isinstance(version, int):
        raise node.is_foreign()
    print(f"the cluster runs version {version} of the state")
    return 0


class _Found:
    """The entry of a member name in the list of members."""

    def __init__(self, node: Remote, name: str) -> None:
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
            raise node.is_foreign() from None


def _asked(node: Remote) -> str:
    name = node.get(_MEMBERS).get("node")
    if not isinstance(name, str):
        raise node.is_foreign()
    return name


def _path(name: str) -> str:
    return path_of("cluster", "members", name)


def _seen(answer: dict[str, Any]) -> str:
    """Return the line above the table of members."""
    cluster = (
        answer["cluster"] if answer["cluster_id"] is None else f"{answer['cluster']} ({answer['cluster_id']})"
    )
    return f"cluster {cluster}, version {answer['version']} of the state, as {answer['node']} sees it"


def _row(member: dict[str, Any]) -> dict[str, Any]:
    address = str(PeerAddress(member["host"], member["port"]))
    return {column: member[column] for column in _COLUMNS if column != "address"} | {"address": address}
