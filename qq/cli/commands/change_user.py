"""`qq change-password` and `qq change-tags`: change a user, and keep the rest of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.client.new_password import prompt_or_read, with_new_password
from qq.cli.command_line.values import NAME, REQUIRED
from qq.cli.objects import put, user_object, warn_of_tags
from qq.cli.options import with_force, with_node

if TYPE_CHECKING:
    from qq.cli.client.remote import Remote


@click.command("change-password")
@click.option("--name", type=REQUIRED, required=True, metavar="USER", help="User of the password.")
@with_new_password
@with_node
def change_password_command(node: Remote, *, name: str, file: str | None) -> int:
    """Give a user a new password, from a prompt or from a file. The tags stay."""
    user = user_object(name)
    tags = node.send("GET", user.path, missing=user.text).document.get("tags")
    if not isinstance(tags, list):
        raise node.foreign_answer()
    node.send("PUT", user.path, {"tags": tags, "password": prompt_or_read(file)})
    print(f"{user.text}: has another password")
    return 0


@click.command("change-tags")
@click.option("--name", type=REQUIRED, required=True, metavar="USER", help="User of the tags.")
@click.option(
    "--tags",
    type=NAME,
    required=True,
    metavar="TAGS",
    help="The new tags, with commas between, or an empty text.",
)
@with_force
@with_node
def change_tags_command(node: Remote, *, name: str, tags: str, query: dict[str, str]) -> int:
    """Give a user other tags. The password stays."""
    user = user_object(name)
    known = node.send("GET", user.path, missing=user.text).document
    try:
        password = {key: known[key] for key in ("password_hash", "hashing_algorithm")}
    except KeyError:
        raise node.foreign_answer() from None
    status = put(node, user, {"tags": tags, **password}, query=query)
    warn_of_tags(tags)
    return status
