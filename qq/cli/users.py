"""Creates users and changes their passwords.

Invariant: a new password is never an argument, because arguments appear in the list of processes and in the history of
the shell.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qq.cli import objects
from qq.cli.credentials import read_password
from qq.cli.streams import STANDARD_STREAM
from qq.errors import CommandError

if TYPE_CHECKING:
    from qq.cli.remote import Remote


def new_password(file: str | None) -> str:
    """Read a new password from a file or standard input (`-`), or prompt for it. Raises CommandError."""
    if file == STANDARD_STREAM:
        return _read_line()
    if file is not None:
        return read_password(Path(file))
    if not sys.stdin.isatty():
        raise CommandError(
            "nobody can be asked for the new password here: give --new-password-file FILE, or - for standard input"
        )
    return click.prompt("New password", hide_input=True, confirmation_prompt=True, err=True)


def _read_line() -> str:
    try:
        password = sys.stdin.buffer.readline().decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise CommandError("the new password on standard input is not UTF-8 text") from None
    if not password:
        raise CommandError("standard input has no password in its first line")
    return password


def put_user(node: Remote, name: str, tags: str, secret: dict[str, Any]) -> int:
    """Create or replace a user. Raises CommandError.

    `tags` are separated by commas; `secret` contains a password, its hash, or neither.
    """
    return objects.put(node, objects.named("user", name, "users"), {"tags": tags, **secret})


def change_password(node: Remote, name: str, file: str | None) -> int:
    """Change the password of a user and keep the tags. Raises CommandError."""
    user = objects.named("user", name, "users")
    tags = node.send("GET", user.path, missing=user.text).document.get("tags")
    if not isinstance(tags, list):
        raise node.is_foreign()
    node.send("PUT", user.path, {"tags": tags, "password": new_password(file)})
    print(f"{user.text}: has another password")
    return 0
