"""`qq move`: begins, awaits, lists and stops moves of messages.

Invariant: a move continues in the cluster when the command stops waiting, and the command then prints how to find it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qq.cli.escaping import escaped, quoted
from qq.cli.output import print_rows
from qq.cli.progress import counted
from qq.cli.remote import path_of
from qq.diagnosis.words import number
from qq.errors import CommandError

if TYPE_CHECKING:
    from qq.cli.remote import Remote

_LOOK_S = 0.5
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


@dataclass(frozen=True)
class WantedMove:
    """A move as the options describe it."""

    vhost: str
    source: str
    destination: str | None
    """Destination queue; `None` returns each message to the queue where it first died."""
    count: int | None
    rate: int | None
    wanted: dict[str, Any]
    """Filter of the messages to move, as in the API."""

    @property
    def document(self) -> dict[str, Any]:
        target = {"to_origin": True} if self.destination is None else {"destination": self.destination}
        limits = {"count": self.count, "rate": self.rate}
        given = {name: value for name, value in limits.items() if value is not None}
        return {"source": self.source, **target, **given, "filter": self.wanted}


def begin(node: Remote, move: WantedMove, *, is_awaited: bool) -> int:
    """Begin a move, and wait for its end if `is_awaited`. Raises CommandError.

    The exit status is 1 if the move ends before it is finished.
    """
    path = path_of("moves", move.vhost)
    begun = node.send("POST", path, move.document).document
    if not is_awaited:
        print(f"move {escaped(begun['id'])} is under way: `qq move list` shows how far it is")
        return 0
    return _until_ended(node, begun)


def _until_ended(node: Remote, move: dict[str, Any]) -> int:
    path = path_of("moves", move["vhost"], move["id"])
    total = move["ready"] if move["count"] is None else min(move["ready"], move["count"])
    with counted("moving messages") as progress:
        try:
            while move["state"] == _RUNNING:
                progress.so_far(move["examined"] if move["count"] is None else move["moved"], total)
                time.sleep(_LOOK_S)
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


def show(node: Remote, vhost: str | None, form: str) -> int:
    """Print the moves of a virtual host, or of all. Raises CommandError."""
    path = path_of("moves") if vhost is None else path_of("moves", vhost)
    print_rows(form, node.get_list(path), _COLUMNS)
    return 0


def stop(node: Remote, vhost: str, move: str) -> int:
    """Stop a move. Raises CommandError."""
    node.send("DELETE", path_of("moves", vhost, move), missing=f"move {quoted(move)} in {quoted(vhost)}")
    print("stopped")
    return 0
