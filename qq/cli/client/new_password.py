"""Reads the new password of a user.

Invariant: a new password is never an argument, because arguments appear in the list of processes and in the history of
the shell.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from qq.cli.terminal.streams import STANDARD_STREAM
from qq.errors import CommandError

with_new_password = click.option(
    "--new-password-file",
    "file",
    metavar="FILE|-",
    help="A file that contains only the password, or - for standard input.  [default: a prompt]",
)


def prompt_or_read(file: str | None) -> str:
    """Read a new password from a file or standard input (`-`), or prompt for it. Raises CommandError."""
    if file == STANDARD_STREAM:
        return _read_line()
    if file is not None:
        from qq.cli.client.credentials import read_password  # noqa: PLC0415 -- large

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
