"""`qq leader` and `qq check`: what operators do before they stop a node.

Invariant: each may be repeated: what is done already is not done again.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from qq.cli.output import print_document, print_rows
from qq.cli.remote import path_of
from qq.errors import CommandError

if TYPE_CHECKING:
    from qq.cli.remote import Answer, Remote

_LEADER = "/api/cluster/leader"
_SAFE_TO_STOP = ("health", "checks", "safe-to-stop")


def show_leader(node: Remote, form: str) -> int:
    """Print the name of the node that leads; raises CommandError."""
    leader = node.get(_LEADER).get("leader")
    if leader is None:
        raise CommandError(f"{node.url}: no leader is known; `qq status` says why")
    _print(form, "leader", {"leader": leader})
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


def check_safe_to_stop(node: Remote, name: str | None, form: str) -> int:
    """Print whether a node may be stopped, of which the exit status tells the same; raises CommandError.

    A no is printed when it has not become a yes while the command has time.
    """
    answer = node.ask_until_done(
        "GET",
        path_of(*_SAFE_TO_STOP) if name is None else path_of(*_SAFE_TO_STOP, name),
        expected=(HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE),
        waiting_for="the others to go on without it",
    )
    is_safe = answer.status == HTTPStatus.OK
    _print(form, "reason", {"safe": is_safe, "reason": _text(node, answer, "reason")})
    return 0 if is_safe else 1


def _print(form: str, told: str, answer: dict[str, Any]) -> None:
    """Print an answer; for people only what is told."""
    match form:
        case "table":
            print(answer[told])
        case "json":
            print_document(answer)
        case _:
            print_rows(form, [answer], list(answer))


def _text(node: Remote, answer: Answer, field: str) -> str:
    text = answer.document.get(field)
    if not isinstance(text, str):
        raise node.is_foreign()
    return text
