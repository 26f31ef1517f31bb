"""`qq leader` and `qq check`: transfer leadership, and check whether a node may be stopped.

Invariant: every command may be repeated, and finished steps are not repeated.
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
    """Print the name of the leader. Raises CommandError."""
    leader = node.get(_LEADER).get("leader")
    if leader is None:
        raise CommandError(f"{node.url}: no leader is known; `qq status` says why")
    _print(form, "leader", {"leader": leader})
    return 0


def transfer_leadership(node: Remote, to: str | None) -> int:
    """Transfer leadership to a node, and print the new leader. Raises CommandError.

    A failed transfer is repeated until the timeout of the command. Only a transfer to a named node is safe to repeat:
    without a name, leadership may have moved after a lost answer, and the next try would move it again.
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
    """Print whether a node may be stopped; exit status 0 means yes, 1 means no. Raises CommandError.

    The command repeats the question until the answer is yes or its time ends.
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
    """Print an answer in the given form; the table form prints only the field `told`."""
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
