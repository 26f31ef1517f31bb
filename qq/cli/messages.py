"""`qq publish`, `qq get`, `qq peek`: publish a message, and read the messages of a queue."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any

from qq.cli.escaping import quoted
from qq.cli.objects import DEFAULT_EXCHANGE, exchange, queue
from qq.cli.output import print_rows
from qq.cli.progress import counted
from qq.cli.streams import read_within
from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qq.cli.objects import Thing
    from qq.cli.progress import Count
    from qq.cli.remote import Remote

BODY_BYTES_MAX = 1024 * 1024
"""Largest body in bytes. The limit over HTTP is somewhat smaller, because the whole document has this limit."""
PAGE_MESSAGES = 1000
"""Messages requested at a time, which is a node's maximum."""
_GOT = ("exchange", "routing_key", "redelivered", "payload_bytes", "payload")
_BROWSED = ("offset", *_GOT)


def publish(
    node: Remote, vhost: str, exchange_name: str, routing_key: str, body: bytes, properties: dict[str, Any]
) -> int:
    """Publish a message and wait for the confirm; exit status 1 if no queue has got it.

    Raises CommandError.
    """
    thing = exchange(vhost, exchange_name or DEFAULT_EXCHANGE)
    asked = {"routing_key": routing_key, "properties": properties, **_payload(body)}
    is_routed = node.send("POST", f"{thing.path}/publish", asked, missing=thing.text).document.get("routed")
    if not is_routed:
        key = quoted(routing_key)
        print(f"not routed: exchange {quoted(exchange_name)} in {quoted(vhost)} has no queue for {key}")
        return 1
    print(f"published: {len(body):,} bytes, confirmed")
    return 0


def read_body(text: str | None, file: str | None) -> bytes:
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


def get(node: Remote, vhost: str, name: str, count: int, ack_mode: str, form: str) -> int:
    """Get messages of a queue, as a consumer would. Raises CommandError."""
    asked = {"count": count, "ackmode": ack_mode, "encoding": "auto"}
    thing = queue(vhost, name)
    rows = node.send("POST", f"{thing.path}/get", asked, kind=list, missing=thing.text).document
    print_rows(form, rows, _GOT)
    return 0


def peek(node: Remote, vhost: str, name: str, offset: int, count: int, form: str) -> int:
    """Print messages of a queue without consuming or changing them. Raises CommandError."""
    thing = queue(vhost, name)
    with counted("reading messages", prints=True) as progress:
        print_rows(form, _browsed(node, thing, offset, count, progress), _BROWSED)
    return 0


def _browsed(
    node: Remote, thing: Thing, offset: int, count: int, progress: Count
) -> Iterator[dict[str, Any]]:
    """Yield messages from an offset on, a page at a time; a page may be shorter than requested."""
    left = count
    while left > 0:
        query = {"offset": str(offset), "count": str(min(left, PAGE_MESSAGES))}
        wait = progress.wait(f"the messages behind {offset:,} others")
        page = node.send(
            "GET", f"{thing.path}/browse", query=query, kind=list, wait=wait, missing=thing.text
        ).document
        if not page:
            return
        yield from page
        left -= len(page)
        progress.so_far(count - left, count)
        offset = page[-1]["offset"] + 1
