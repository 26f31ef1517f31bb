"""`qq memory`: shows the parts of a node's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qq.cli.client.api import path_of
from qq.cli.command_line.values import REQUIRED
from qq.cli.options import with_node, with_output
from qq.cli.terminal.escaping import escaped
from qq.cli.terminal.output import print_rows
from qq.diagnosis.words import size
from qq.errors import CommandError

if TYPE_CHECKING:
    from qq.cli.client.remote import Remote

_WORDS = {
    "binary": "recent entries of the log",
    "code": "program and libraries",
    "connection_readers": "received, not yet used by a request",
    "connection_writers": "not yet taken by clients",
    "mgmt_db": "samples for charts",
    "other_system": "the rest: objects, and free heap",
}
_COLUMNS = ("kind", "bytes", "share", "contents")


@click.command("memory")
@click.option("--node", "name", type=REQUIRED, metavar="NAME", help="The node.  [default: the asked node]")
@with_output
@with_node
def memory_command(node: Remote, *, name: str | None, form: str) -> int:
    """Show the parts of a node's memory, the largest first. Kinds that are always 0 here are left out."""
    asked = name or _own_name(node)
    path, missing = path_of("nodes", asked, "memory"), f"node {escaped(asked)}"
    memory = node.send("GET", path, missing=missing).document.get("memory")
    if not isinstance(memory, dict):
        raise CommandError(f"{escaped(asked)} does not answer: start it, or look at its network")
    try:
        total = memory["total"]["rss"]
        rows = [
            _row(kind, memory[kind], total) for kind in sorted(_WORDS, key=memory.__getitem__, reverse=True)
        ]
    except (KeyError, TypeError):
        raise node.foreign_answer() from None
    all_of_it = {"kind": "total", "bytes": total, "share": 100.0, "contents": "memory of the process"}
    print_rows(form, [*rows, all_of_it], _COLUMNS, texts={"bytes": size, "share": _percent})
    return 0


def _own_name(node: Remote) -> str:
    try:
        return node.get("/api/cluster")["node"]
    except KeyError:
        raise node.foreign_answer() from None


def _row(kind: str, octets: int, total: int) -> dict[str, Any]:
    return {"kind": kind, "bytes": octets, "share": round(100 * octets / total, 1), "contents": _WORDS[kind]}


def _percent(share: float) -> str:
    return f"{share:.1f} %"
