"""Searches of a queue at the node, with the filter of a move."""

from __future__ import annotations

import json
from functools import reduce
from typing import TYPE_CHECKING, Any

import click

from qq.cli.command_line.values import OBJECT, REQUIRED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from qq.cli.client.remote import Remote
    from qq.cli.objects import ApiObject

LOOK_AT = 100_000
"""Messages that a request looks at, if the node need not read them; otherwise the node stops earlier."""

_OPTIONS = (
    click.option(
        "--reason",
        type=REQUIRED,
        metavar="REASON",
        help="Only messages that died of it: rejected, expired, ...",
    ),
    click.option(
        "--died-in",
        "from_queue",
        type=REQUIRED,
        metavar="QUEUE",
        help="Only messages that last died in this queue.",
    ),
    click.option(
        "--headers", type=OBJECT, default="{}", metavar="JSON", help="Only messages with these headers."
    ),
    click.option(
        "--text", type=REQUIRED, help="Only messages with this text in the body, a property or a header."
    ),
)


def with_filter(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a filter; they are passed as `reason`, `from_queue`, `headers` and `text`."""
    return reduce(lambda decorated, option: option(decorated), reversed(_OPTIONS), command)


def search(
    node: Remote, queue: ApiObject, wanted: dict[str, Any], offset: int = 0, count: int = 0
) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the answers of the node, each with the offset up to which all messages found were returned.

    An answer has at most `count` messages. The search ends when all ready messages were looked at.
    """
    place: int | None = offset
    texts = {name: json.dumps(value) if name == "headers" else value for name, value in wanted.items()}
    while place is not None:
        query = {**texts, "offset": str(place), "count": str(count), "look_at": str(LOOK_AT)}
        answer = node.send("GET", f"{queue.path}/search", query=query, missing=queue.text).document
        found = answer["messages"]
        is_part = count > 0 and len(found) < answer["matched"]
        place = found[-1]["offset"] + 1 if is_part else answer["next_offset"]
        yield answer, answer["ready"] if place is None else place
