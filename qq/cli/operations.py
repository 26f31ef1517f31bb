"""`qq leader` and `qq check`: what operators do before they stop a node.

Lives here: what is asked of a node, and the line that tells the answer. Not here: requests (remote.py), what a node
makes of them (http/operations.py).

Law: each may be repeated: what is done already is not done again.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

from qq.errors import CommandError

if TYPE_CHECKING:
    from qq.cli.remote import Answer, Remote

_LEADER = "/api/cluster/leader"
_SAFE_TO_STOP = "/api/health/checks/safe-to-stop"


def show_leader(node: Remote) -> int:
    """Print the name of the node that leads; raises CommandError."""
    leader = node.get(_LEADER).get("leader")
    if leader is None:
        raise CommandError(
            f"{node.url}: no leader is known: fewer than a majority of the nodes are up, or they elect one"
        )
    print(leader)
    return 0


def transfer_leadership(node: Remote, to: str | None) -> int:
    """Have another node lead and print when it does; raises CommandError.

    What has not succeeded is tried again while the command has time. That is for a node that is named: any other one
    may have taken over after an answer was given up, and the next try would move leadership on.
    """
    answer = node.ask_until_done(
        "PUT",
        _LEADER,
        body={} if to is None else {"to": to},
        waiting_for=f"{to or 'another node'} to lead",
    )
    print(f"{_text(node, answer, 'leader')} leads")
    return 0


def check_safe_to_stop(node: Remote, name: str | None) -> int:
    """Print whether a node may be stopped, of which the exit status tells the same; raises CommandError.

    A no is printed when it has not become a yes while the command has time.
    """
    answer = node.ask_until_done(
        "GET",
        _SAFE_TO_STOP if name is None else f"{_SAFE_TO_STOP}/{quote(name, safe='')}",
        expected=(HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE),
        waiting_for="the others to go on without it",
    )
    print(_text(node, answer, "reason"))
    return 0 if answer.status == HTTPStatus.OK else 1


def _text(node: Remote, answer: Answer, field: str) -> str:
    text = answer.document.get(field)
    if not isinstance(text, str):
        raise node.is_foreign()
    return text
