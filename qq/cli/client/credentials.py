"""Finds the login of a command: in its options, then in the environment, then in a context.

Invariant: a password can always be given without appearing in the list of processes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qq.cli.client.http_client import ClientLogin
from qq.cli.local_files import PASSWORD, USER
from qq.config import ConfigError, read_hidden
from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping

_USER, _PASSWORD, _PASSWORD_FILE, URL, CONTEXT, CA_FILE = VARIABLES = (
    "QQ_USER",
    "QQ_PASSWORD",
    "QQ_PASSWORD_FILE",
    "QQ_URL",
    "QQ_CONTEXT",
    "QQ_CA_FILE",
)
"""Environment variables of commands, which nodes do not take for settings."""


def client_login(
    user: str | None,
    password: str | None,
    password_file: Path | None,
    environ: Mapping[str, str],
    fallback_user: str = USER,
    fallback_file: Path | None = None,
) -> ClientLogin:
    """Find the user and the password. Raises CommandError.

    At most a single option of `password` and `password_file` may be given. The fallbacks apply if neither the options
    nor the environment give a value.
    """
    if password is None and password_file is None:
        password = environ.get(_PASSWORD)
        if _PASSWORD_FILE in environ:
            if password is not None:
                raise CommandError(f"environment: give either {_PASSWORD} or {_PASSWORD_FILE}")
            password_file = Path(environ[_PASSWORD_FILE])
        elif password is None:
            password_file = fallback_file
    if password_file is not None:
        password = read_password(password_file)
    return ClientLogin(user or environ.get(_USER, fallback_user), PASSWORD if password is None else password)


def read_password(file: Path) -> str:
    """Read a password from a file that contains only the password. Raises CommandError."""
    try:
        return read_hidden(file)
    except ConfigError as error:
        raise CommandError(str(error)) from None
