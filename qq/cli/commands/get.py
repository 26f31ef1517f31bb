"""`qq get`: its command and the options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.options import asks_node, in_vhost, prints
from qq.cli.tree import CommandGroup
from qq.cli.values import REQUIRED

if TYPE_CHECKING:
    from qq.cli.remote import Remote

ACK_MODES = ("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")
_COUNT_MAX = 1000


@click.group("get", cls=CommandGroup, short_help="get messages, as a consumer would")
def command() -> None:
    """Get messages, as a consumer would."""


@command.command("messages")
@click.option(
    "--queue", "name", type=REQUIRED, required=True, metavar="NAME", help="What the queue is called."
)
@in_vhost
@click.option("--count", type=click.IntRange(1, _COUNT_MAX), default=1, metavar="NUMBER", help="[default: 1]")
@click.option(
    "--ack-mode",
    type=click.Choice(ACK_MODES),
    default=ACK_MODES[0],
    help="What becomes of them; with ack_requeue_false they are gone.  [default: ack_requeue_true]",
)
@prints
@asks_node
def messages(node: Remote, *, name: str, vhost: str, count: int, ack_mode: str, form: str) -> int:
    """Get messages of a queue. They are given back, and count as redelivered, unless --ack-mode says otherwise."""
    from qq.cli.messages import get  # noqa: PLC0415

    return get(node, vhost, name, count, ack_mode, form)
