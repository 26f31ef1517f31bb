"""`qq status`: the cluster as one of its nodes sees it.

Lives here: printing the answer of `/api/cluster`. Not here: asking (remote.py), what the answer means (http/view.py).
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from qq.cli.table import aligned

if TYPE_CHECKING:
    from qq.cli.remote import Remote

_MIB = 1024 * 1024
_SUFFIX = re.compile("_(index|bytes|ms)$")
_COLUMNS = (
    "name",
    "state",
    "role",
    "standing",
    "term",
    "first_index",
    "last_index",
    "commit_index",
    "applied_index",
    "checkpoint_index",
    "disk_free_bytes",
    "alarm",
    "clock_offset_ms",
    "versions",
    "drained",
)


def status(node: Remote, *, as_json: bool) -> int:
    """Print the state of the cluster; raises CommandError."""
    answer = node.get("/api/cluster")
    try:
        print(json.dumps(answer, indent=2) if as_json else _table(answer))
    except (KeyError, TypeError, AttributeError):
        raise node.is_foreign() from None
    return 0


def _table(answer: dict[str, Any]) -> str:
    rows = [[_cell(column, node[column]) for column in _COLUMNS] for node in answer["nodes"]]
    head = [_SUFFIX.sub("", column).replace("_", " ") for column in _COLUMNS]
    seen = (
        f"cluster {answer['cluster']}, version {answer['version']} of the state, as {answer['node']} sees it"
    )
    return "\n".join([seen, *aligned([head, *rows])])


def _cell(column: str, value: Any) -> str:
    if value is None:
        return "-"
    if column.endswith("_bytes"):
        return f"{value / _MIB:,.0f} MiB"
    if column.endswith("_ms"):
        return f"{value / 1000:,.1f} s"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
