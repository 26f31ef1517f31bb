"""`qq status`: the cluster as one of its nodes sees it.

Lives here: asking `/api/cluster` and printing the answer. Not here: what the answer means (http/view.py).
"""

from __future__ import annotations

import asyncio
import json
import re
from http import HTTPStatus
from typing import Any

import aiohttp

from qq.errors import CommandError

_ANSWER_TIMEOUT_S = 10.0
_MIB = 1024 * 1024
_SUFFIX = re.compile("_(index|bytes|ms)$")
_COLUMNS = (
    "name",
    "state",
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
)


def status(url: str, user: str, password: str, *, as_json: bool) -> int:
    """Print the state of the cluster; raises CommandError."""
    answer = asyncio.run(_ask(url.rstrip("/") + "/api/cluster", user, password))
    try:
        print(json.dumps(answer, indent=2) if as_json else _table(answer))
    except (KeyError, TypeError, AttributeError):
        raise CommandError(f"{url}: the answer is not that of a qq node") from None
    return 0


async def _ask(url: str, user: str, password: str) -> Any:
    headers = {"Authorization": aiohttp.encode_basic_auth(user, password, "utf-8")}
    timeout = aiohttp.ClientTimeout(total=_ANSWER_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, headers=headers, allow_redirects=False) as response,
        ):
            if response.status == HTTPStatus.UNAUTHORIZED:
                raise CommandError(f"{url}: login of {user!r} was refused")
            if response.status != HTTPStatus.OK:
                raise CommandError(f"{url}: HTTP status {response.status}")
            return await response.json()
    except TimeoutError:
        raise CommandError(f"{url}: no answer within {_ANSWER_TIMEOUT_S:g} s") from None
    except aiohttp.InvalidURL:
        raise CommandError(f"{url}: is not a URL") from None
    except (aiohttp.ClientError, ValueError) as error:
        raise CommandError(f"{url}: {error}") from None


def _table(answer: dict[str, Any]) -> str:
    rows = [[_cell(column, node[column]) for column in _COLUMNS] for node in answer["nodes"]]
    head = [_SUFFIX.sub("", column).replace("_", " ") for column in _COLUMNS]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [f"cluster {answer['cluster']}, as {answer['node']} sees it"]
    for row in [head, *rows]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


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
