"""`qq publish`: its command and the options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qq.cli.options import asks_node, in_vhost
from qq.cli.tree import CommandGroup
from qq.cli.values import NAME, OBJECT

if TYPE_CHECKING:
    from qq.cli.remote import Remote


@click.group("publish", cls=CommandGroup, short_help="publish a message; returns when it is confirmed")
def command() -> None:
    """Publish a message."""


@command.command("message")
@click.option("--exchange", type=NAME, default="", metavar="NAME", help="[default: the default exchange]")
@click.option(
    "--routing-key", type=NAME, required=True, metavar="KEY", help="Of the default exchange: a queue's name."
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
    help='As {"delivery_mode": 2, "headers": {"a": 1}}.',
)
@in_vhost
@asks_node
def message(
    node: Remote,
    *,
    exchange: str,
    routing_key: str,
    payload: str | None,
    file: str | None,
    properties: dict[str, Any],
    vhost: str,
) -> int:
    """Publish a message, and return when it is confirmed. The exit status is 1 if no queue has got it."""
    from qq.cli.messages import publish, read_body  # noqa: PLC0415

    if (payload is None) == (file is None):
        raise click.UsageError("give either --payload or --payload-file")
    return publish(node, vhost, exchange, routing_key, read_body(payload, file), properties)
