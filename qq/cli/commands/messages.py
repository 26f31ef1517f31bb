"""`qq publish`, `qq get`, `qq peek`, `qq purge`: publish a message; read and remove the messages of a queue."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any

import click

from qq.cli.command_line.tree import CommandGroup
from qq.cli.command_line.values import NAME, OBJECT, REQUIRED
from qq.cli.objects import DEFAULT_EXCHANGE, exchange_object, queue_object
from qq.cli.options import with_name, with_node, with_output, with_vhost
from qq.cli.searches import search, with_filter
from qq.cli.terminal.escaping import quoted
from qq.cli.terminal.output import print_rows
from qq.cli.terminal.progress import progress_bar
from qq.cli.terminal.streams import read_within
from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qq.cli.client.remote import Remote
    from qq.cli.objects import ApiObject
    from qq.cli.terminal.progress import ProgressBar

BODY_BYTES_MAX = 1024 * 1024
"""Largest body in bytes. The limit over HTTP is somewhat smaller, because the whole document has this limit."""
PAGE_MESSAGES = 1000
"""Messages requested at a time, which is a node's maximum."""
SEARCHED_AT_ONCE = 200
"""Messages of a search requested at a time, which is a node's maximum."""
_ACK_MODES = ("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")
_GET_COUNT_MAX = 1000
_GET_COLUMNS = ("exchange", "routing_key", "redelivered", "payload_bytes", "payload")
_PEEK_COLUMNS = ("offset", *_GET_COLUMNS)
_queue = click.option(
    "--queue", "name", type=REQUIRED, required=True, metavar="NAME", help="Name of the queue."
)


# --- qq publish


@click.group("publish", cls=CommandGroup)
def publish_command() -> None:
    """Publish a message."""


@publish_command.command("message")
@click.option(
    "--exchange",
    "exchange_name",
    type=NAME,
    default="",
    metavar="NAME",
    help="[default: the default exchange]",
)
@click.option(
    "--routing-key",
    type=NAME,
    required=True,
    metavar="KEY",
    help="Routing key; for the default exchange the name of a queue.",
)
@click.option("--payload", metavar="TEXT", help="The body.")
@click.option(
    "--payload-file", "file", metavar="FILE|-", help="A file with the body, or - for standard input."
)
@click.option(
    "--properties",
    type=OBJECT,
    default="{}",
    metavar="JSON",
    help='Properties, as {"delivery_mode": 2, "headers": {"a": 1}}.',
)
@with_vhost
@with_node
def publish_message(
    node: Remote,
    *,
    exchange_name: str,
    routing_key: str,
    payload: str | None,
    file: str | None,
    properties: dict[str, Any],
    vhost: str,
) -> int:
    """Publish a message and wait for the confirm. The exit status is 1 if the message reached no queue."""
    if (payload is None) == (file is None):
        raise click.UsageError("give either --payload or --payload-file")
    body = _read_body(payload, file)
    exchange = exchange_object(vhost, exchange_name or DEFAULT_EXCHANGE)
    request = {"routing_key": routing_key, "properties": properties, **_payload(body)}
    answer = node.send("POST", f"{exchange.path}/publish", request, missing=exchange.text)
    if not answer.document.get("routed"):
        key = quoted(routing_key)
        print(f"not routed: exchange {quoted(exchange_name)} in {quoted(vhost)} has no queue for {key}")
        return 1
    print(f"published: {len(body):,} bytes, confirmed")
    return 0


def _read_body(text: str | None, file: str | None) -> bytes:
    """Return the body of a message from a text, a file, or standard input (`-`). Raises CommandError."""
    if text is not None:
        return text.encode(errors="surrogateescape")
    body = read_within(file or "", BODY_BYTES_MAX)
    if body is None:
        raise CommandError(f"the message is larger than {BODY_BYTES_MAX:,} bytes: publish it over AMQP")
    return body


def _payload(body: bytes) -> dict[str, str]:
    try:
        return {"payload": body.decode(), "payload_encoding": "string"}
    except UnicodeDecodeError:
        return {"payload": b64encode(body).decode(), "payload_encoding": "base64"}


# --- qq get


@click.group("get", cls=CommandGroup)
def get_command() -> None:
    """Get messages, as a consumer would."""


@get_command.command("messages")
@_queue
@with_vhost
@click.option(
    "--count", type=click.IntRange(1, _GET_COUNT_MAX), default=1, metavar="NUMBER", help="[default: 1]"
)
@click.option(
    "--ack-mode",
    type=click.Choice(_ACK_MODES),
    default=_ACK_MODES[0],
    help="How to settle the messages; ack_requeue_false removes them.  [default: ack_requeue_true]",
)
@with_output
@with_node
def get_messages(node: Remote, *, name: str, vhost: str, count: int, ack_mode: str, form: str) -> int:
    """Get messages of a queue. They are returned, and count as redelivered, unless --ack-mode says otherwise."""
    request = {"count": count, "ackmode": ack_mode, "encoding": "auto"}
    queue = queue_object(vhost, name)
    rows = node.send("POST", f"{queue.path}/get", request, kind=list, missing=queue.text).document
    print_rows(form, rows, _GET_COLUMNS)
    return 0


# --- qq peek


@click.group("peek", cls=CommandGroup)
def peek_command() -> None:
    """Print messages of a queue without consuming or changing them."""


@peek_command.command("messages")
@_queue
@with_vhost
@click.option(
    "--offset", type=click.IntRange(0), default=0, metavar="NUMBER", help="Messages to skip.  [default: 0]"
)
@click.option("--count", type=click.IntRange(1), default=10, metavar="NUMBER", help="[default: 10]")
@with_filter
@with_output
@with_node
def peek_messages(
    node: Remote, *, name: str, vhost: str, offset: int, count: int, form: str, **filters: Any
) -> int:
    """Print the ready messages of a queue, in the order of delivery.

    With a filter the node searches the queue, and the last line says how many messages it has looked at.
    """
    queue, wanted = queue_object(vhost, name), {key: value for key, value in filters.items() if value}
    if wanted:
        found = _Found()
        print_rows(form, found.messages(node, queue, wanted, offset, count), _PEEK_COLUMNS)
        if form == "table":
            print(f"looked at {found.looked_at:,} of {found.ready:,} ready messages")
        return 0
    with progress_bar("reading messages", prints=True) as bar:
        print_rows(form, _browse(node, queue, offset, count, bar), _PEEK_COLUMNS)
    return 0


class _Found:
    """The messages that a search finds, and how many it has looked at."""

    def __init__(self) -> None:
        self.looked_at = self.ready = 0

    def messages(
        self, node: Remote, queue: ApiObject, wanted: dict[str, Any], offset: int, count: int
    ) -> Iterator[dict[str, Any]]:
        """Yield the first `count` messages, or all that the node returns of them."""
        left = count
        for answer, end in search(node, queue, wanted, offset, min(count, SEARCHED_AT_ONCE)):
            found, self.ready, self.looked_at = answer["messages"], answer["ready"], end - offset
            yield from found[:left]
            left -= len(found)
            if left <= 0:
                return


def _browse(
    node: Remote, queue: ApiObject, offset: int, count: int, bar: ProgressBar
) -> Iterator[dict[str, Any]]:
    """Yield messages from an offset on, a page at a time; a page may be shorter than requested."""
    left = count
    while left > 0:
        query = {"offset": str(offset), "count": str(min(left, PAGE_MESSAGES))}
        wait = bar.wait(f"the messages behind {offset:,} others")
        page = node.send(
            "GET", f"{queue.path}/browse", query=query, kind=list, wait=wait, missing=queue.text
        ).document
        if not page:
            return
        yield from page
        left -= len(page)
        bar.update(count - left, count)
        offset = page[-1]["offset"] + 1


# --- qq purge


@click.group("purge", cls=CommandGroup)
def purge_command() -> None:
    """Remove all ready messages of a queue."""


@purge_command.command("queue")
@with_name
@with_vhost
@with_node
def purge_queue(node: Remote, *, name: str, vhost: str) -> int:
    """Remove all ready messages of a queue. Unacknowledged messages of consumers stay."""
    queue = queue_object(vhost, name)
    node.send("DELETE", f"{queue.path}/contents", missing=queue.text)
    print(f"{queue.text}: purged")
    return 0
