"""`qq change-password`: changes the password of a user."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.new_password import prompt_or_read, with_new_password
from qq.cli.objects import cluster_object
from qq.cli.options import with_node
from qq.cli.values import REQUIRED

if TYPE_CHECKING:
    from qq.cli.remote import Remote


@click.command("change-password")
@click.option("--name", type=REQUIRED, required=True, metavar="USER", help="User of the password.")
@with_new_password
@with_node
def change_password_command(node: Remote, *, name: str, file: str | None) -> int:
    """Give a user a new password, from a prompt or from a file. The tags stay."""
    user = cluster_object("user", name, "users")
    tags = node.send("GET", user.path, missing=user.text).document.get("tags")
    if not isinstance(tags, list):
        raise node.foreign_answer()
    node.send("PUT", user.path, {"tags": tags, "password": prompt_or_read(file)})
    print(f"{user.text}: has another password")
    return 0
